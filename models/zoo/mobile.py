"""MobileNets: inverted residual blocks with depthwise convolutions, and their stages as data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ...gluon import nn
from ...gluon.hybrid import HybridBlock
from ...nd.array import Array
from ...nd.running import apply
from .parts import Activation, conv, mean


class Stage(NamedTuple):
    """Blocks of one kind. `expansion` 0 is a depthwise and a pointwise convolution, with an activation behind both if
    `flat`; the first block of `repeats` has the stride."""

    repeats: int
    kernel: int
    stride: int
    expansion: float
    channels: int
    act: str = "relu6"
    squeezed: bool = False
    flat: bool = False


class Net(NamedTuple):
    """The stages of a network, which begin together where they are one in the published names; the channels of the
    first layer, of a last 1 x 1 convolution (0: none), and of the head; its activation, and whether the head is behind
    the mean over the image."""

    stages: Sequence[Sequence[Stage]]
    stem: int
    last: int
    head: int
    act: str
    late: bool


def _small(repeats: int, stride: int, channels: int) -> list[Stage]:
    return [Stage(repeats, 3, stride, 0, channels, "relu6", flat=True)]


H = "hardswish"
NETS = {
    "v1": Net([_small(1, 1, 64), _small(2, 2, 128), _small(2, 2, 256), _small(6, 2, 512), _small(2, 2, 1024)],
              32, 0, 0, "relu6", late=False),
    "v2": Net([[Stage(1, 3, 1, 0, 16)], [Stage(2, 3, 2, 6, 24)], [Stage(3, 3, 2, 6, 32)], [Stage(4, 3, 2, 6, 64)],
               [Stage(3, 3, 1, 6, 96)], [Stage(3, 3, 2, 6, 160)], [Stage(1, 3, 1, 6, 320)]],
              32, 0, 1280, "relu6", late=False),
    "v3_large": Net([
        [Stage(1, 3, 1, 0, 16, "relu")], [Stage(1, 3, 2, 4, 24, "relu"), Stage(1, 3, 1, 3, 24, "relu")],
        [Stage(3, 5, 2, 3, 40, "relu", squeezed=True)],
        [Stage(1, 3, 2, 6, 80, H), Stage(1, 3, 1, 2.5, 80, H), Stage(2, 3, 1, 2.3, 80, H)],
        [Stage(2, 3, 1, 6, 112, H, squeezed=True)], [Stage(3, 5, 2, 6, 160, H, squeezed=True)],
    ], 16, 960, 1280, H, late=True),
    "v3_small": Net([
        [Stage(1, 3, 2, 0, 16, "relu", squeezed=True)],
        [Stage(1, 3, 2, 4.5, 24, "relu"), Stage(1, 3, 1, 3.67, 24, "relu")],
        [Stage(1, 5, 2, 4, 40, H, squeezed=True), Stage(2, 5, 1, 6, 40, H, squeezed=True)],
        [Stage(2, 5, 1, 3, 48, H, squeezed=True)], [Stage(3, 5, 2, 6, 96, H, squeezed=True)],
    ], 16, 576, 1024, H, late=True),
}  # fmt: skip


def eights(channels: float) -> int:
    """The nearest multiple of 8 that is no more than a tenth below.

    >>> eights(18), eights(88.08)
    (24, 88)
    """
    near = max(8, int(channels + 4) // 8 * 8)
    return near + 8 if near < 0.9 * channels else near


class Squeeze(HybridBlock):
    """A factor between 0 and 1 for each channel, from the mean of all (Hu et al. 2017)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        size = eights(channels / 4)
        self.conv_reduce, self.act1 = conv(channels, size, use_bias=True), nn.Activation("relu")
        self.conv_expand, self.gate = conv(size, channels, use_bias=True), Activation("hardsigmoid")

    def forward(self, x: Array) -> Array:
        whole = apply("GlobalAveragePool", x)
        return x * self.gate(self.conv_expand(self.act1(self.conv_reduce(whole))))


class Inverted(HybridBlock):
    """A block of MobileNets: expanded by 1 x 1, filtered by channel, reduced by 1 x 1."""

    def __init__(self, inputs: int, stage: Stage, channels: int, stride: int) -> None:
        super().__init__()
        wide, number = (eights(inputs * stage.expansion) if stage.expansion else inputs), 1

        def unit(name: str, outputs: int, norm: int, act: str, *how: Any, **more: Any) -> list[HybridBlock]:
            layers = [conv(*how, **more), nn.BatchNorm(in_channels=outputs)]
            setattr(self, name, layers[0])
            setattr(self, f"bn{norm}", layers[1])
            return [*layers, Activation(act)] if act else layers

        self._steps: list[HybridBlock] = []
        if stage.expansion:
            self._steps += unit("conv_pw", wide, 1, stage.act, inputs, wide)
            number = 2
        self._steps += unit("conv_dw", wide, number, stage.act, wide, wide, stage.kernel, stride, groups=wide)
        if stage.squeezed:
            self.se = Squeeze(wide)
            self._steps.append(self.se)
        last = "conv_pwl" if stage.expansion else "conv_pw"
        self._steps += unit(last, channels, number + 1, stage.act if stage.flat else "", wide, channels)
        self._around = stride == 1 and inputs == channels and not stage.flat

    def forward(self, x: Array) -> Array:
        y = x
        for step in self._steps:
            y = step(y)
        return x + y if self._around else y


class Last(HybridBlock):
    """A 1 x 1 convolution, batch normalisation and an activation."""

    def __init__(self, inputs: int, channels: int, act: str) -> None:
        super().__init__()
        self.conv, self.bn1, self.act = conv(inputs, channels), nn.BatchNorm(in_channels=channels), Activation(act)

    def forward(self, x: Array) -> Array:
        return self.act(self.bn1(self.conv(x)))


class MobileNet(HybridBlock):
    """MobileNet v1 (Howard et al. 2017, arXiv 1704.04861), v2 (Sandler et al. 2018, arXiv 1801.04381), and v3 large and
    small (Howard et al. 2019, arXiv 1905.02244): 4,231,976, 3,504,872, 5,483,032 and 2,542,856 parameters, as timm's
    mobilenetv1_100, mobilenetv2_100, mobilenetv3_large_100 and mobilenetv3_small_100, whose names it has."""

    def __init__(
        self, version: str = "v2", *, classes: int = 1000, channels: int = 3, width: float = 1.0, drop: float = 0.2
    ) -> None:
        super().__init__()
        net = NETS[version]
        size = eights(net.stem * width)
        self.conv_stem, self.bn1, self.act1 = (
            conv(channels, size, 3, 2), nn.BatchNorm(in_channels=size), Activation(net.act)
        )  # fmt: skip
        self.blocks = nn.HybridSequential()
        for stages in net.stages:
            blocks = nn.HybridSequential()
            for stage in stages:
                wanted = eights(stage.channels * width)
                for i in range(stage.repeats):
                    blocks.add(Inverted(size, stage, wanted, 1 if i else stage.stride))
                    size = wanted
            self.blocks.add(blocks)
        if net.last:
            self.blocks.add(nn.HybridSequential(Last(size, eights(net.last * width), net.act)))
            size = eights(net.last * width)
        self._late = net.late
        self.conv_head = self.bn2 = None
        if net.head:
            head = net.head if net.late else max(net.head, eights(net.head * width))  # never narrowed
            self.conv_head, self.act2 = conv(size, head, use_bias=net.late), Activation(net.act)
            self.bn2 = None if net.late else nn.BatchNorm(in_channels=head)
            size = head
        self.drop, self.classifier = nn.Dropout(drop), nn.Dense(classes, in_units=size)

    def forward(self, x: Array) -> Array:
        x = self.blocks(self.act1(self.bn1(self.conv_stem(x))))
        if self._late:
            x = apply("GlobalAveragePool", x)
        if self.conv_head is not None:
            x = self.conv_head(x)
            x = self.act2(x if self.bn2 is None else self.bn2(x))
        return self.classifier(self.drop(x.reshape(x.shape[:2]) if self._late else mean(x)))
