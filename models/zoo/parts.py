"""Building parts of the zoo: chains of named blocks, layers written as data, and what several networks have in common.

Every size is told when a block is made, so that a network knows the shapes of all its parameters, and takes no memory,
before it is initialised. Children have the names that published weights have (timm, torchvision, Hugging Face).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ... import nd
from ...gluon import nn
from ...gluon.hybrid import HybridBlock
from ...gluon.initializer import Xavier
from ...nd.array import Array
from ...nd.running import apply
from ...ops.errors import InputError

Layer = str | tuple[Any, ...]
Sizes = int | tuple[int, int]


class Chain(nn.HybridSequential):
    """Blocks one after the other, under names."""

    def __init__(self, **blocks: Any) -> None:
        super().__init__()
        for name, block in blocks.items():
            self.register_child(block, name)


class LocalNorm(HybridBlock):
    """Normalisation over five neighbouring channels (Krizhevsky et al. 2012)."""

    def forward(self, x: Array) -> Array:
        return apply("LRN", x, size=5, alpha=1e-4, beta=0.75, bias=2.0)


class Activation(nn.Activation):
    """An activation of ONNX by its name (Relu, HardSwish, ...), or one of gluon's."""

    def __init__(self, name: str) -> None:
        super().__init__(CLIPPED.get(name, name))


CLIPPED = {
    "relu6": lambda x: nd.clip(x, 0, 6),
    "hardswish": lambda x: apply("HardSwish", x),
    "hardsigmoid": lambda x: apply("HardSigmoid", x, alpha=1 / 6, beta=0.5),
}


def half(kernel: Sizes) -> Sizes:
    """The padding that keeps the size at stride 1."""
    return kernel // 2 if isinstance(kernel, int) else (kernel[0] // 2, kernel[1] // 2)


def conv(
    inputs: int, channels: int, kernel: Sizes = 1, stride: int = 1, pad: Sizes | None = None, **more: Any
) -> nn.Conv2D:
    """A convolution without a bias, padded so that stride 1 keeps the size unless `pad` says otherwise. One of each
    channel by itself begins with numbers that are scaled by what it reads: `initialize` knows nothing of groups."""
    options: dict[str, Any] = {"use_bias": False, **more}
    if options.get("groups") == inputs:
        options["weight_initializer"] = Xavier("gaussian", "in", 2)
    return nn.Conv2D(channels, kernel, stride, half(kernel) if pad is None else pad, in_channels=inputs, **options)


def dense(inputs: int, units: int, bias: bool = True) -> nn.Dense:
    """A dense layer over the last axis."""
    return nn.Dense(units, in_units=inputs, flatten=False, use_bias=bias)


class Unit(HybridBlock):
    """A convolution, batch normalisation if asked for, and an activation."""

    def __init__(
        self,
        inputs: int,
        channels: int,
        kernel: Sizes = 1,
        stride: int = 1,
        pad: Sizes | None = None,
        *,
        norm: bool = True,
        bias: bool = False,
        epsilon: float = 1e-5,
    ) -> None:
        super().__init__()
        self.conv = conv(inputs, channels, kernel, stride, pad, use_bias=bias)
        self.bn = nn.BatchNorm(epsilon=epsilon, in_channels=channels) if norm else None
        self.act = nn.Activation("relu")

    def forward(self, x: Array) -> Array:
        x = self.conv(x)
        return self.act(x if self.bn is None else self.bn(x))


def narrowed(channels: int, width: float, step: int = 8) -> int:
    """A count of channels times a width, in whole steps and no less than one; at width 1 as it is."""
    return channels if width == 1 else max(step, int(channels * width / step + 0.5) * step)


def stacked(layers: Sequence[Layer], channels: int, side: int, width: float = 1.0) -> tuple[nn.HybridSequential, int]:
    """Layers as data, and how many numbers they end in: ("conv", channels, kernel, stride, pad, groups), ("max",
    kernel, stride, pad), ("mean", kernel, stride, pad), names of activations, "norm" for batch normalisation, and
    "local" for LocalNorm. Raises InputError where the image is too small for them."""
    chain = nn.HybridSequential()
    for layer in layers:
        kind, *given = (layer,) if isinstance(layer, str) else layer
        sizes: list[int] = list(given)
        if kind == "conv":
            sizes += [1, 1, 0, 1][len(sizes) - 1 :]
            count, kernel, stride, pad, groups = sizes
            count = narrowed(count, width)
            chain.add(conv(channels, count, kernel, stride, pad, use_bias=True, groups=groups))
            channels = count
        elif kind in ("max", "mean"):
            kernel, stride, pad = [*sizes, 0][:3]
            chain.add((nn.MaxPool2D if kind == "max" else nn.AvgPool2D)(kernel, stride, pad))
        else:
            plain = {"local": LocalNorm(), "norm": nn.BatchNorm(in_channels=channels)}
            chain.add(plain.get(kind) or Activation(kind))
        if kind in ("conv", "max", "mean"):
            side = (side + 2 * pad - kernel) // stride + 1
            if side < 1:
                raise InputError("the image is too small for the network", where="models", hint="a larger image=")
    return chain, channels * side * side


def classifier(inputs: int, hidden: int, classes: int, drop: Sequence[int]) -> nn.HybridSequential:
    """Three dense layers, with dropout before those layers of the chain that `drop` names."""
    blocks: list[Any] = [nn.Dense(hidden, in_units=inputs), nn.Activation("relu")]
    blocks += [nn.Dense(hidden, in_units=hidden), nn.Activation("relu"), nn.Dense(classes, in_units=hidden)]
    for at in drop:
        blocks.insert(at, nn.Dropout(0.5))
    return nn.HybridSequential(*blocks)


def mean(x: Array) -> Array:
    """The mean of each channel: [batch, channels]."""
    return nd.reshape(apply("GlobalAveragePool", x), x.shape[:2])
