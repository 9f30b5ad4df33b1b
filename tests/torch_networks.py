"""The networks of networks.py in PyTorch, and its steps. Imported inside tests: it needs PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from mezzo.runtime.ir.graph import Graph

from .networks import HEADS, HIDDEN, WIDE, Array, distance


class Block(nn.Module):  # type: ignore[misc]
    """A residual block."""

    def __init__(self, wide: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(wide, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out)
        self.conv2, self.bn2 = nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out)
        self.short = nn.Sequential()
        if wide != out:
            self.short = nn.Sequential(nn.Conv2d(wide, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: Any) -> Any:
        y = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        return torch.relu(y + self.short(x))


class ResNet(nn.Module):  # type: ignore[misc]
    """Eight blocks behind a stem."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)
        sizes = [width, *(width * 2 ** (i // 2) for i in range(8))]
        pairs = pairwise(sizes)
        self.blocks = nn.Sequential(*(Block(a, b, 1 if a == b else 2) for a, b in pairs))
        self.fc = nn.Linear(sizes[-1], 10)

    def forward(self, x: Any) -> Any:
        return self.fc(self.blocks(torch.relu(self.bn(self.conv(x)))).mean((2, 3)))


class Reader(nn.Module):  # type: ignore[misc]
    """A body that reads a sequence, and a linear layer over what `summary` makes of it."""

    def __init__(self, body: Any, size: int, summary: Any) -> None:
        super().__init__()
        self.body, self.head, self.summary = body, nn.Linear(size, 5), summary

    def forward(self, x: Any) -> Any:
        return self.head(self.summary(self.body(x)))


def encoder() -> Any:
    layer = nn.TransformerEncoderLayer(WIDE, HEADS, 32, dropout=0.0, batch_first=True, activation="gelu")
    return Reader(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), WIDE, lambda y: y.mean(1))


def conv(wide: int, out: int, pad: int) -> list[Any]:
    return [nn.Conv2d(wide, out, 5, padding=pad), nn.ReLU(), nn.MaxPool2d(2)]


TWINS: dict[str, Any] = {
    "mlp": lambda: nn.Sequential(
        nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 5)
    ),
    "lenet": lambda: nn.Sequential(
        *conv(1, 6, 2), *conv(6, 16, 0), nn.Flatten(), nn.Linear(64, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(),
        nn.Linear(84, 10),
    ),
    "resnet18": ResNet,
    "encoder": encoder,
    "lstm": lambda: Reader(nn.LSTM(4, HIDDEN, batch_first=True), HIDDEN, lambda y: y[1][0][0]),
}  # fmt: skip


def twin(name: str, graph: Graph, dtype: Any) -> Any:
    """The network in PyTorch, in training mode, with the weights of the graph."""
    module = TWINS[name]().to(dtype).train()
    kept = {n: torch.tensor(a) for n, a in graph.initializers.items() if n in module.state_dict()}
    lacking, _ = module.load_state_dict(kept, strict=False)
    assert all(n.endswith("num_batches_tracked") for n in lacking)
    return module


def loss_of(module: Any, feeds: Mapping[str, Array]) -> Any:
    dtype = next(module.parameters()).dtype
    answer = module(torch.tensor(feeds["x"]).to(dtype))
    return nn.functional.cross_entropy(answer, torch.tensor(feeds["target"]))


def step_of(module: Any, optimizer: Any, feeds: Mapping[str, Array]) -> float:
    """One step of PyTorch's; the loss before it."""
    optimizer.zero_grad()
    loss = loss_of(module, feeds)
    loss.backward()
    optimizer.step()
    return float(loss.detach())


def parameters(module: Any) -> dict[str, Array]:
    return {n: p.detach().numpy().copy() for n, p in module.named_parameters()}


def at_kink(module: Any, feeds: dict[str, Any], true: dict[str, Any], name: str) -> bool:
    """Whether the gradient of a parameter jumps when all parameters move by a few roundings of float32."""
    begun = {n: t.clone() for n, t in module.state_dict().items()}
    random = torch.Generator().manual_seed(0)
    for _ in range(20):
        module.load_state_dict(begun)
        with torch.no_grad():
            for p in module.parameters():
                p *= 1 + 2**-21 * torch.randn(p.shape, generator=random, dtype=p.dtype)
        moved = torch.autograd.grad(loss_of(module, feeds), list(module.parameters()))
        found = dict(zip(true, moved, strict=True))
        if distance(found[name].numpy(), true[name].numpy()) > 1e-4:
            return True
    return False
