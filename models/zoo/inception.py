"""GoogLeNet, Inception with batch normalisation, and Inception-v3: modules of several ways, as data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ... import nd
from ...gluon import nn
from ...gluon.hybrid import HybridBlock
from ...nd.array import Array
from .parts import Sizes, Unit, mean, narrowed

# A way is convolutions (channels, kernel, stride), or a pool ("max" | "mean", stride); a list forks into several.
Way = Sequence[Any]


class Mixed(HybridBlock):
    """Ways beside each other, whose channels are put together. The convolutions of a way are called by its name, and by
    their number where it has several."""

    def __init__(self, inputs: int, ways: Mapping[str, Way], width: float, ceil: bool, **how: Any) -> None:
        super().__init__()
        self._ways: list[list[Any]] = []
        self.channels = 0
        for way, steps in ways.items():
            count = sum(not isinstance(s[0], str) for s in steps)
            at, plan, number = inputs, list[Any](), 0
            for step in steps:
                if isinstance(step[0], str):
                    pool = nn.MaxPool2D if step[0] == "max" else nn.AvgPool2D
                    plan.append(pool(3, step[1], 1 if step[1] == 1 or ceil else 0))
                    self.register_child(plan[-1], f"{way}_{step[0]}")
                    continue
                number += 1
                parts = step if isinstance(step, list) else [step]
                branch = []
                for part, letter in zip(parts, "abcdef", strict=False):
                    channels, kernel, stride = (*part, 1, 1)[:3]
                    channels = narrowed(channels, width)
                    name = way if count == 1 else f"{way}_{number}{letter if len(parts) > 1 else ''}"
                    pad = None if stride == 1 or ceil else 0
                    branch.append(Unit(at, channels, kernel, stride, pad, **how))
                    self.register_child(branch[-1], name)
                plan.append(branch)
                at = sum(narrowed(part[0], width) for part in parts)
            self._ways.append(plan)
            self.channels += at

    def forward(self, x: Array) -> Array:
        ends = []
        for way in self._ways:
            y = [x]
            for step in way:
                y = [block(y[0]) for block in step] if isinstance(step, list) else [step(y[0])]
            ends += y
        return nd.concat(ends, axis=1)


class Inception(HybridBlock):
    """Modules one after the other between a stem and a classifier. `stages` has (name, ways) for a module and (name,
    None) for a pool; `stem` (name, convolution) and (name, None)."""

    def __init__(
        self,
        stem: Sequence[tuple[str, Any]],
        stages: Sequence[tuple[str, Any]],
        *,
        classes: int,
        channels: int,
        width: float,
        ceil: bool = True,
        drop: float = 0.0,
        **how: Any,
    ) -> None:
        super().__init__()
        self._order: list[str] = []
        for name, part in (*stem, *stages):
            block: HybridBlock
            if part is None:
                block = nn.MaxPool2D(3, 2, ceil_mode=ceil)
            elif isinstance(part, Mapping):
                block = Mixed(channels, part, width, ceil, **how)
                channels = block.channels
            else:
                count, kernel, stride, pad = part
                block = Unit(channels, narrowed(count, width), kernel, stride, pad, **how)
                channels = narrowed(count, width)
            setattr(self, name, block)
            self._order.append(name)
        self.drop, self.fc = nn.Dropout(drop), nn.Dense(classes, in_units=channels)

    def forward(self, x: Array) -> Array:
        for name in self._order:
            x = getattr(self, name)(x)
        return self.fc(self.drop(mean(x)))


# Channels: 1 x 1; before 3 x 3 and of it; before 5 x 5 and of it; behind the pool (arXiv 1409.4842, table 1).
GOOGLENET = {
    "3a": (64, 96, 128, 16, 32, 32), "3b": (128, 128, 192, 32, 96, 64), "pool3": None,
    "4a": (192, 96, 208, 16, 48, 64), "4b": (160, 112, 224, 24, 64, 64), "4c": (128, 128, 256, 24, 64, 64),
    "4d": (112, 144, 288, 32, 64, 64), "4e": (256, 160, 320, 32, 128, 128), "pool4": None,
    "5a": (256, 160, 320, 32, 128, 128), "5b": (384, 192, 384, 48, 128, 128),
}  # fmt: skip
# The same with two 3 x 3 in place of 5 x 5, and the kind of pool; 0: no such way, and the others halve the image (arXiv
# 1502.03167, figure 5).
INCEPTION_BN = {
    "3a": (64, 64, 64, 64, 96, "mean", 32), "3b": (64, 64, 96, 64, 96, "mean", 64),
    "3c": (0, 128, 160, 64, 96, "max", 0),
    "4a": (224, 64, 96, 96, 128, "mean", 128), "4b": (192, 96, 128, 96, 128, "mean", 128),
    "4c": (160, 128, 160, 128, 160, "mean", 128), "4d": (96, 128, 192, 160, 192, "mean", 128),
    "4e": (0, 128, 192, 192, 256, "max", 0), "5a": (352, 192, 320, 160, 224, "mean", 128),
    "5b": (352, 192, 320, 192, 224, "max", 128),
}  # fmt: skip
STEM = (("conv1", (64, 7, 2, 3)), ("pool1", None), ("conv2", (64, 1, 1, 0)), ("conv3", (192, 3, 1, 1)), ("pool2", None))


def googlenet(*, classes: int = 1000, channels: int = 3, width: float = 1.0) -> Inception:
    """GoogLeNet (Szegedy et al. 2014, arXiv 1409.4842) without its auxiliary heads: 6,998,552 parameters, as Caffe's
    bvlc_googlenet has; "6.8M" in table 1."""
    stages: list[tuple[str, Any]] = []
    for name, sizes in GOOGLENET.items():
        if sizes is None:
            stages.append((name, None))
            continue
        one, before3, three, before5, five, pool = sizes
        ways = {"branch1": [(one,)], "branch2": [(before3,), (three, 3)], "branch3": [(before5,), (five, 5)]}
        stages.append((f"inception{name}", {**ways, "branch4": [("max", 1), (pool,)]}))
    return Inception(
        STEM, stages, classes=classes, channels=channels, width=width, drop=0.4, norm=False, bias=True
    )  # fmt: skip


def inception_bn(*, classes: int = 1000, channels: int = 3, width: float = 1.0) -> Inception:
    """Inception with batch normalisation (Ioffe and Szegedy 2015, arXiv 1502.03167), convolutions with their biases:
    11,295,240 parameters, as Caffe's and PyTorch's bninception have."""
    stages: list[tuple[str, Any]] = []
    for name, (one, before3, three, before5, five, kind, pool) in INCEPTION_BN.items():
        stride = 1 if one else 2
        ways: dict[str, Way] = {"branch1": [(one,)]} if one else {}
        ways["branch2"] = [(before3,), (three, 3, stride)]
        ways["branch3"] = [(before5,), (five, 3), (five, 3, stride)]
        ways["branch4"] = [(kind, stride), *([(pool,)] if pool else [])]
        stages.append((f"inception{name}", ways))
    return Inception(STEM, stages, classes=classes, channels=channels, width=width, bias=True)


def _long(*channels: int, first: Sizes) -> list[tuple[int, Sizes]]:
    """Convolutions of 1 x 7 and 7 x 1 in turn."""
    turn: dict[Sizes, Sizes] = {(1, 7): (7, 1), (7, 1): (1, 7)}
    layers: list[tuple[int, Sizes]] = []
    for count in channels:
        layers.append((count, first))
        first = turn[first]
    return layers


def _first(pool: int) -> dict[str, Way]:
    return {
        "branch1x1": [(64,)], "branch5x5": [(48,), (64, 5)], "branch3x3dbl": [(64,), (96, 3), (96, 3)],
        "branch_pool": [("mean", 1), (pool,)],
    }  # fmt: skip


def _middle(n: int) -> dict[str, Way]:
    return {
        "branch1x1": [(192,)], "branch7x7": [(n,), *_long(n, 192, first=(1, 7))],
        "branch7x7dbl": [(n,), *_long(n, n, n, 192, first=(7, 1))], "branch_pool": [("mean", 1), (192,)],
    }  # fmt: skip


FORK = [(384, (1, 3)), (384, (3, 1))]
_LAST: dict[str, Way] = {
    "branch1x1": [(320,)], "branch3x3": [(384,), FORK], "branch3x3dbl": [(448,), (384, 3), FORK],
    "branch_pool": [("mean", 1), (192,)],
}  # fmt: skip
INCEPTION_V3: dict[str, Any] = {
    "Conv2d_1a_3x3": (32, 3, 2, 0), "Conv2d_2a_3x3": (32, 3, 1, 0), "Conv2d_2b_3x3": (64, 3, 1, 1), "Pool1": None,
    "Conv2d_3b_1x1": (80, 1, 1, 0), "Conv2d_4a_3x3": (192, 3, 1, 0), "Pool2": None,
    "Mixed_5b": _first(32), "Mixed_5c": _first(64), "Mixed_5d": _first(64),
    "Mixed_6a": {"branch3x3": [(384, 3, 2)], "branch3x3dbl": [(64,), (96, 3), (96, 3, 2)], "branch_pool": [("max", 2)]},
    "Mixed_6b": _middle(128), "Mixed_6c": _middle(160), "Mixed_6d": _middle(160), "Mixed_6e": _middle(192),
    "Mixed_7a": {
        "branch3x3": [(192,), (320, 3, 2)],
        "branch7x7x3": [(192,), *_long(192, 192, first=(1, 7)), (192, 3, 2)],
        "branch_pool": [("max", 2)],
    },
    "Mixed_7b": _LAST, "Mixed_7c": _LAST,
}  # fmt: skip


def inception_v3(*, classes: int = 1000, channels: int = 3, width: float = 1.0) -> Inception:
    """Inception-v3 (Szegedy et al. 2015, arXiv 1512.00567) for images of 299 x 299, without its auxiliary head:
    23,834,568 parameters, as timm's inception_v3, whose names it has."""
    how = {"classes": classes, "channels": channels, "width": width, "ceil": False, "epsilon": 1e-3}
    return Inception((), tuple(INCEPTION_V3.items()), **how)  # type: ignore[arg-type]
