"""Networks to fine-tune, written small in PyTorch, and the files that its exporters write of them for training.
Imported inside tests: it needs PyTorch."""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

Array = np.ndarray[Any, Any]


class Residual(nn.Module):  # type: ignore[misc]
    """Two convolutions beside a short way."""

    def __init__(self, wide: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(wide, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out)
        self.conv2, self.bn2 = nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out)
        self.short = nn.Sequential()
        if wide != out:
            self.short = nn.Sequential(nn.Conv2d(wide, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: Any) -> Any:
        return torch.relu(self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x))))) + self.short(x))


def resnet() -> Any:
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, 1, 1, bias=False), nn.BatchNorm2d(6), nn.ReLU(), Residual(6, 6, 1), Residual(6, 12, 2),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, 5),
    )  # fmt: skip


class Inverted(nn.Module):  # type: ignore[misc]
    """MobileNetV2's block: wider, each channel by itself, narrower."""

    def __init__(self, wide: int, out: int, stride: int) -> None:
        super().__init__()
        inside, self.same = 3 * wide, stride == 1 and wide == out
        self.body = nn.Sequential(
            nn.Conv2d(wide, inside, 1, bias=False), nn.BatchNorm2d(inside), nn.ReLU6(),
            nn.Conv2d(inside, inside, 3, stride, 1, groups=inside, bias=False), nn.BatchNorm2d(inside), nn.ReLU6(),
            nn.Conv2d(inside, out, 1, bias=False), nn.BatchNorm2d(out),
        )  # fmt: skip

    def forward(self, x: Any) -> Any:
        return x + self.body(x) if self.same else self.body(x)


def mobilenet() -> Any:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU6(), Inverted(8, 8, 1), Inverted(8, 12, 2),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.0), nn.Linear(12, 5),
    )  # fmt: skip


def blocks(wide: int, layers: int, norm_first: bool = False) -> Any:
    layer = nn.TransformerEncoderLayer(
        wide, 2, 2 * wide, dropout=0.0, batch_first=True, activation="gelu", norm_first=norm_first
    )
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)


class ViT(nn.Module):  # type: ignore[misc]
    """Patches behind a class token, learned places, and a learned scale that is divided by."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 8, 4, 4)
        self.token = nn.Parameter(torch.randn(1, 1, 8) * 0.1)
        self.place = nn.Parameter(torch.randn(1, 5, 8) * 0.1)
        self.temperature = nn.Parameter(torch.tensor([2.0]))
        self.body, self.norm, self.head = blocks(8, 2, True), nn.LayerNorm(8), nn.Linear(8, 5)

    def forward(self, x: Any) -> Any:
        y = self.patch(x).flatten(2).transpose(1, 2)
        y = torch.cat([self.token.expand(x.shape[0], -1, -1), y], 1) + self.place
        return self.head(self.norm(self.body(y))[:, 0]) / self.temperature


class Bert(nn.Module):  # type: ignore[misc]
    """Words, places and segments; what the first word says is classified."""

    def __init__(self) -> None:
        super().__init__()
        self.word, self.place, self.segment = nn.Embedding(20, 8), nn.Embedding(12, 8), nn.Embedding(2, 8)
        self.norm, self.body = nn.LayerNorm(8), blocks(8, 2)
        self.pool, self.head = nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, ids: Any, kinds: Any) -> Any:
        places = torch.arange(ids.shape[1], device=ids.device).unsqueeze(0)
        y = self.body(self.norm(self.word(ids) + self.place(places) + self.segment(kinds)))
        return self.head(torch.tanh(self.pool(y[:, 0])))


class GPT(nn.Module):  # type: ignore[misc]
    """One causal block, whose embedding is its head too."""

    def __init__(self) -> None:
        super().__init__()
        self.word, self.place = nn.Embedding(20, 8), nn.Embedding(12, 8)
        self.norm1, self.norm2, self.last = nn.LayerNorm(8), nn.LayerNorm(8), nn.LayerNorm(8)
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)
        self.head = nn.Linear(8, 20, bias=False)
        self.head.weight = self.word.weight
        self.register_buffer("mask", torch.tril(torch.ones(12, 12)).view(1, 1, 12, 12))

    def forward(self, ids: Any) -> Any:
        n, t = ids.shape
        y = self.word(ids) + self.place(torch.arange(t, device=ids.device))
        q, k, v = (a.view(n, t, 2, 4).transpose(1, 2) for a in self.qkv(self.norm1(y)).chunk(3, -1))
        scores = (q @ k.transpose(-2, -1)) * 0.5
        scores = scores.masked_fill(self.mask[:, :, :t, :t] == 0, float("-inf"))
        y = y + self.out((torch.softmax(scores, -1) @ v).transpose(1, 2).reshape(n, t, 8))
        y = y + self.down(nn.functional.gelu(self.up(self.norm2(y))))
        return self.head(self.last(y)).transpose(1, 2)


class Tagger(nn.Module):  # type: ignore[misc]
    """A recurrent network that reads words both ways, and a score for each."""

    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.word = nn.Embedding(20, 6)
        self.reads = kind(6, 5, num_layers=2, bidirectional=True, batch_first=True)
        self.scores = nn.Linear(10, 4)

    def forward(self, ids: Any) -> Any:
        return self.scores(self.reads(self.word(ids))[0]).transpose(1, 2)


def twice(wide: int, out: int) -> Any:
    return nn.Sequential(nn.Conv2d(wide, out, 3, 1, 1), nn.BatchNorm2d(out), nn.ReLU())


class UNet(nn.Module):  # type: ignore[misc]
    """Down, and up again beside what was seen on the way."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = twice(3, 4), twice(4, 8), twice(8, 4)
        self.up, self.last = nn.ConvTranspose2d(8, 4, 2, 2), nn.Conv2d(4, 3, 1)

    def forward(self, x: Any) -> Any:
        a = self.first(x)
        b = self.second(nn.functional.max_pool2d(a, 2))
        return self.last(self.third(torch.cat([a, self.up(b)], 1)))


class Detector(nn.Module):  # type: ignore[misc]
    """For each cell of a grid a class, a box and whether anything is there."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.SiLU()),
            *(nn.Conv2d(8, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.SiLU()),
        )
        self.classes, self.boxes, self.objects = nn.Conv2d(8, 3, 1), nn.Conv2d(8, 4, 1), nn.Conv2d(8, 1, 1)
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x: Any) -> Any:
        y = self.body(x)
        return self.classes(y), torch.exp(self.boxes(y) * self.scale), self.objects(y)


@dataclass(frozen=True)
class Lesson:
    """A network, arrays to export it with and to learn from (its inputs in order, then its targets), and PyTorch's
    loss of outputs and targets."""

    make: Callable[[], Any]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    draw: Callable[[np.random.Generator, int], tuple[list[Array], list[Array]]]
    loss: Callable[[Any, Any], Any] = lambda ys, ts: nn.functional.cross_entropy(ys[0], ts[0])


class FakeQuantized(nn.Module):  # type: ignore[misc]
    """What PyTorch's own training in few bits puts around operators: for all, or by channel; 7 and 8 bits."""

    def __init__(self, scale: float, sizes: tuple[int, ...] = (), low: int = -128, high: int = 127, zero: int = 0):
        super().__init__()
        self.low, self.high = low, high
        self.register_buffer("scale", torch.full(sizes, scale))
        self.register_buffer("zero", torch.full(sizes, zero, dtype=torch.int32))

    def forward(self, x: Any) -> Any:
        if self.scale.ndim:
            return torch.fake_quantize_per_channel_affine(x, self.scale, self.zero, 0, self.low, self.high)
        return torch.fake_quantize_per_tensor_affine(x, float(self.scale), int(self.zero), self.low, self.high)


class FewBits(nn.Module):  # type: ignore[misc]
    """A convolution and a linear layer with quantised weights, between quantised activations."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.line = nn.Conv2d(3, 4, 3, padding=1), nn.Linear(256, 5)
        self.x, self.w = FakeQuantized(0.03, (), 0, 127, 60), FakeQuantized(0.003, (4,))
        self.h, self.v = FakeQuantized(0.01, (), 0, 255), FakeQuantized(0.001, (5,))

    def forward(self, x: Any) -> Any:
        y = nn.functional.conv2d(self.x(x), self.w(self.conv.weight), self.conv.bias, padding=1)
        return nn.functional.linear(self.h(torch.relu(y)).flatten(1), self.v(self.line.weight), self.line.bias)


def images(classes: int, side: int = 8) -> Any:
    return lambda rng, n: ([rng.standard_normal((n, 3, side, side))], [rng.integers(0, classes, n)])


def words(classes: int, *, many: bool, segments: bool = False) -> Any:
    def draw(rng: Any, n: int) -> Any:
        read = [rng.integers(0, 20, (n, 7)), *([rng.integers(0, 2, (n, 7))] if segments else [])]
        return read, [rng.integers(0, classes, (n, 7) if many else n)]

    return draw


def detected(rng: Any, n: int) -> Any:
    there = rng.integers(0, 2, (n, 1, 2, 2)).astype(np.float64)
    return [rng.standard_normal((n, 3, 8, 8))], [
        rng.integers(0, 3, (n, 2, 2)), rng.uniform(0, 2, (n, 4, 2, 2)), there
    ]  # fmt: skip


def detection_loss(ys: Any, ts: Any) -> Any:
    return (
        nn.functional.cross_entropy(ys[0], ts[0])
        + 0.5 * nn.functional.l1_loss(ys[1], ts[1])
        + 2.0 * nn.functional.binary_cross_entropy_with_logits(ys[2], ts[2])
    )


def pixels(rng: Any, n: int) -> Any:
    return [rng.standard_normal((n, 3, 8, 8))], [rng.integers(0, 3, (n, 8, 8))]


LESSONS = {
    "resnet": Lesson(resnet, ("x",), ("y",), images(5)),
    "mobilenet": Lesson(mobilenet, ("x",), ("y",), images(5)),
    "vit": Lesson(ViT, ("x",), ("y",), images(5)),
    "bert": Lesson(Bert, ("ids", "kinds"), ("y",), words(3, many=False, segments=True)),
    "gpt": Lesson(GPT, ("ids",), ("y",), words(20, many=True)),
    "lstm": Lesson(lambda: Tagger(nn.LSTM), ("ids",), ("y",), words(4, many=True)),
    "gru": Lesson(lambda: Tagger(nn.GRU), ("ids",), ("y",), words(4, many=True)),
    "unet": Lesson(UNet, ("x",), ("y",), pixels),
    "detector": Lesson(Detector, ("x",), ("classes", "boxes", "objects"), detected, detection_loss),
}


def module(lesson: Lesson, dtype: Any = torch.float64) -> Any:
    torch.manual_seed(3)
    return lesson.make().to(dtype).train()


def exported(lesson: Lesson, net: Any, exporter: str, **how: Any) -> bytes:
    """The file for training of an exporter, as docs/training.md has it; the batch is free."""
    rng = np.random.default_rng(0)
    dtype = next(net.parameters()).dtype
    read = [torch.from_numpy(a) for a in lesson.draw(rng, 4)[0]]
    example = tuple(a.to(dtype) if a.is_floating_point() else a for a in read)
    names = {"input_names": [*lesson.inputs], "output_names": [*lesson.outputs]}
    with warnings.catch_warnings(action="ignore"):
        logging.disable(logging.WARNING)
        try:
            if exporter == "dynamo":
                batch = torch.export.Dim("batch", min=1, max=64)
                how = {"optimize": False, **how}
                program = torch.onnx.export(
                    net, example, dynamo=True, dynamic_shapes=tuple({0: batch} for _ in example), verbose=False,
                    **names, **how,
                )  # fmt: skip
                content: bytes = program.model_proto.SerializeToString()
                return content
            made = io.BytesIO()
            how = {"training": torch.onnx.TrainingMode.TRAINING, "do_constant_folding": False, **how}
            axes = {n: {0: "batch"} for n in (*lesson.inputs, *lesson.outputs)}
            torch.onnx.export(net, example, made, dynamo=False, dynamic_axes=axes, **names, **how)
            return made.getvalue()
        finally:
            logging.disable(logging.NOTSET)
