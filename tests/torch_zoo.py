"""Networks of the zoo in PyTorch, small, with the names that torchvision, Hugging Face and PyTorch's examples give
their weights. Imported inside tests: it needs PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.functional import gelu, scaled_dot_product_attention


class LeNet(nn.Module):  # type: ignore[misc]
    def __init__(self, image: int) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 6, 5, 1, 2), nn.Tanh(), nn.AvgPool2d(2), nn.Conv2d(6, 16, 5), nn.Tanh(), nn.AvgPool2d(2)
        )
        size = 16 * ((image // 2 - 4) // 2) ** 2
        dense = [nn.Linear(size, 120), nn.Linear(120, 84), nn.Linear(84, 10)]
        self.classifier = nn.Sequential(*dense)

    def forward(self, x: Any) -> Any:
        x = self.features(x).flatten(1)
        for layer in self.classifier[:2]:
            x = torch.tanh(layer(x))
        return self.classifier[2](x)


class Basic(nn.Module):  # type: ignore[misc]
    def __init__(self, inputs: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, channels, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)
        self.downsample = None
        if stride > 1 or inputs != channels:
            around = nn.Conv2d(inputs, channels, 1, stride, bias=False)
            self.downsample = nn.Sequential(around, nn.BatchNorm2d(channels))

    def forward(self, x: Any) -> Any:
        y = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        return torch.relu(y + (x if self.downsample is None else self.downsample(x)))


class ResNet18(nn.Module):  # type: ignore[misc]
    def __init__(self, sizes: tuple[int, ...], channels: int, classes: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(channels, sizes[0], 3, 1, 1, bias=False), nn.BatchNorm2d(sizes[0])
        inputs = sizes[0]
        for i, size in enumerate(sizes, 1):
            stage = nn.Sequential(Basic(inputs, size, 2 if i > 1 else 1), Basic(size, size, 1))
            setattr(self, f"layer{i}", stage)
            inputs = size
        self.fc = nn.Linear(inputs, classes)

    def forward(self, x: Any) -> Any:
        x = torch.relu(self.bn1(self.conv1(x)))
        return self.fc(self.layer4(self.layer3(self.layer2(self.layer1(x)))).mean((2, 3)))


class Language(nn.Module):  # type: ignore[misc]
    def __init__(self, vocabulary: int, units: int) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Embedding(vocabulary, units), nn.Linear(units, vocabulary)
        self.rnn = nn.LSTM(units, units, 1, batch_first=True)

    def forward(self, ids: Any) -> Any:
        return self.decoder(self.rnn(self.encoder(ids))[0])


class Turned(nn.Module):  # type: ignore[misc]
    """A dense layer whose matrix is [inputs, outputs]."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(inputs, outputs) * 0.05)
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Any) -> Any:
        return x @ self.weight + self.bias


class Layer(nn.Module):  # type: ignore[misc]
    def __init__(self, units: int, heads: int) -> None:
        super().__init__()
        self.heads, self.ln_1, self.ln_2 = heads, nn.LayerNorm(units), nn.LayerNorm(units)
        self.attn = nn.ModuleDict({"c_attn": Turned(units, 3 * units), "c_proj": Turned(units, units)})
        self.mlp = nn.ModuleDict({"c_fc": Turned(units, 4 * units), "c_proj": Turned(4 * units, units)})

    def forward(self, x: Any) -> Any:
        parts = self.attn["c_attn"](self.ln_1(x)).chunk(3, 2)
        query, key, value = (t.unflatten(2, (self.heads, -1)).transpose(1, 2) for t in parts)
        y = scaled_dot_product_attention(query, key, value, is_causal=True).transpose(1, 2).flatten(2)
        x = x + self.attn["c_proj"](y)
        return x + self.mlp["c_proj"](gelu(self.mlp["c_fc"](self.ln_2(x)), approximate="tanh"))


class GPT2(nn.Module):  # type: ignore[misc]
    def __init__(self, vocabulary: int, places: int, units: int, layers: int, heads: int) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary, units), nn.Embedding(places, units)
        for table in (self.wte, self.wpe):
            nn.init.normal_(table.weight, std=0.05)
        self.h, self.ln_f = nn.ModuleList(Layer(units, heads) for _ in range(layers)), nn.LayerNorm(units)

    def forward(self, ids: Any) -> Any:
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1]))
        for layer in self.h:
            x = layer(x)
        return self.ln_f(x) @ self.wte.weight.T


# By the name of our network: PyTorch's, and our options. Images are of 16 pixels and one channel, texts of 32 tokens.
TWINS: dict[str, tuple[Callable[[int], Any], dict[str, Any]]] = {
    "lenet": (lambda _: LeNet(16), {"image": 16}),
    "resnet18": (
        lambda _: ResNet18((8, 16, 32, 64), 1, 10),
        {"width": 1 / 8, "channels": 1, "classes": 10, "small_images": True},
    ),
    "lstm_medium": (lambda letters: Language(letters, 64), {"units": 64, "layers": 1, "drop": 0.0}),
    "gpt2": (
        lambda letters: GPT2(letters, 32, 32, 2, 4),
        {"units": 32, "layers": 2, "heads": 4, "places": 32, "drop": 0.0},
    ),
}
