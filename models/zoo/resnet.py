"""Residual networks of 18 to 152 layers, in both versions, and DenseNet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ... import nd
from ...gluon import nn
from ...gluon.hybrid import HybridBlock
from ...nd.array import Array
from .parts import Chain, conv, mean, narrowed

# Blocks in each stage, and whether they are bottlenecks (arXiv 1512.03385, table 1).
DEPTHS: dict[int, tuple[tuple[int, ...], bool]] = {
    18: ((2, 2, 2, 2), False), 34: ((3, 4, 6, 3), False), 50: ((3, 4, 6, 3), True), 101: ((3, 4, 23, 3), True),
    152: ((3, 8, 36, 3), True),
}  # fmt: skip
CHANNELS = (64, 128, 256, 512)


def kernels(bottleneck: bool) -> tuple[tuple[int, int], ...]:
    """Kernel and relative channels of a block's convolutions; the stride is that of the first 3 x 3 one."""
    return ((1, 1), (3, 1), (1, 4)) if bottleneck else ((3, 1), (3, 1))


class _Residual(HybridBlock):
    """Base of a residual block: conv1, conv2, and of bottlenecks conv3."""

    conv1: HybridBlock
    norm1: HybridBlock

    def _convolutions(self, inputs: int, channels: int, stride: int, bottleneck: bool) -> list[tuple[int, int]]:
        """Make them; inputs and outputs of each."""
        sizes, left = [], stride
        for i, (kernel, wide) in enumerate(kernels(bottleneck), 1):
            here = left if kernel == 3 else 1
            left = 1 if kernel == 3 else left
            setattr(self, f"conv{i}", conv(inputs, channels * wide, kernel, here))
            sizes.append((inputs, channels * wide))
            inputs = channels * wide
        self._count = len(sizes)
        return sizes


class Residual(_Residual):
    """A block of the first version: convolution, normalisation, activation; added, then activated."""

    def __init__(self, inputs: int, channels: int, stride: int, bottleneck: bool) -> None:
        super().__init__()
        sizes = self._convolutions(inputs, channels, stride, bottleneck)
        for i, (_, outputs) in enumerate(sizes, 1):
            setattr(self, f"bn{i}", nn.BatchNorm(in_channels=outputs))
        self.channels = sizes[-1][1]
        same = stride == 1 and inputs == self.channels
        self.downsample = None if same else nn.HybridSequential(
            conv(inputs, self.channels, 1, stride), nn.BatchNorm(in_channels=self.channels)
        )  # fmt: skip
        self.act = nn.Activation("relu")

    def forward(self, x: Array) -> Array:
        y = x
        for i in range(1, self._count + 1):
            y = getattr(self, f"bn{i}")(getattr(self, f"conv{i}")(y))
            y = self.act(y) if i < self._count else y
        return self.act(y + (x if self.downsample is None else self.downsample(x)))


class PreResidual(_Residual):
    """A block of the second version: normalisation, activation, convolution; what is added is left alone."""

    def __init__(self, inputs: int, channels: int, stride: int, bottleneck: bool) -> None:
        super().__init__()
        sizes = self._convolutions(inputs, channels, stride, bottleneck)
        for i, (before, _) in enumerate(sizes, 1):
            setattr(self, f"norm{i}", nn.BatchNorm(in_channels=before))
        self.channels = sizes[-1][1]
        same = stride == 1 and inputs == self.channels
        self.downsample = None if same else Chain(conv=conv(inputs, self.channels, 1, stride))
        self.act = nn.Activation("relu")

    def forward(self, x: Array) -> Array:
        first = self.act(self.norm1(x))
        around = x if self.downsample is None else self.downsample(first)
        y = self.conv1(first)
        for i in range(2, self._count + 1):
            y = getattr(self, f"conv{i}")(self.act(getattr(self, f"norm{i}")(y)))
        return y + around


def _stages(kind: type[Any], inputs: int, depths: Sequence[int], bottleneck: bool, width: float) -> tuple[Any, int]:
    """The four stages, as chains of blocks, and the channels that they end in."""
    stages = []
    for stage, (count, size) in enumerate(zip(depths, CHANNELS, strict=True)):
        blocks = nn.HybridSequential()
        for i in range(count):
            block = kind(inputs, narrowed(size, width), 2 if stage and not i else 1, bottleneck)
            blocks.add(block)
            inputs = block.channels
        stages.append(blocks)
    return stages, inputs


def _stem(channels: int, outputs: int, small_images: bool) -> tuple[HybridBlock, HybridBlock]:
    """The first convolution and the pool behind it; of small images neither makes them smaller."""
    if small_images:
        return conv(channels, outputs, 3), nn.Identity()
    return conv(channels, outputs, 7, 2), nn.MaxPool2D(3, 2, 1)


class ResNet(HybridBlock):
    """ResNet (He et al. 2015, arXiv 1512.03385) with 18, 34, 50, 101 or 152 layers: 11,689,512, 21,797,672, 25,557,032,
    44,549,160 and 60,192,808 parameters, as timm's resnet18 to resnet152, whose names it has. Bottlenecks halve the
    image in their 3 x 3 convolution ("v1.5"). `small_images` begins with a 3 x 3 convolution and without a pool, as for
    CIFAR."""

    def __init__(
        self,
        layers: int = 50,
        *,
        classes: int = 1000,
        channels: int = 3,
        width: float = 1.0,
        depths: Sequence[int] | None = None,
        small_images: bool = False,
    ) -> None:
        super().__init__()
        usual, bottleneck = DEPTHS[layers]
        inputs = narrowed(64, width)
        self.conv1, self.maxpool = _stem(channels, inputs, small_images)
        self.bn1, self.act = nn.BatchNorm(in_channels=inputs), nn.Activation("relu")
        stages, size = _stages(Residual, inputs, depths or usual, bottleneck, width)
        self.layer1, self.layer2, self.layer3, self.layer4 = stages
        self.fc = nn.Dense(classes, in_units=size)

    def forward(self, x: Array) -> Array:
        x = self.maxpool(self.act(self.bn1(self.conv1(x))))
        return self.fc(mean(self.layer4(self.layer3(self.layer2(self.layer1(x))))))


class ResNetV2(HybridBlock):
    """ResNet with identity mappings (He et al. 2016, arXiv 1603.05027), 18 to 152 layers: 25,549,352 parameters at 50,
    as timm's resnetv2_50, whose names it has."""

    def __init__(
        self,
        layers: int = 50,
        *,
        classes: int = 1000,
        channels: int = 3,
        width: float = 1.0,
        depths: Sequence[int] | None = None,
        small_images: bool = False,
    ) -> None:
        super().__init__()
        usual, bottleneck = DEPTHS[layers]
        inputs = narrowed(64, width)
        first, pool = _stem(channels, inputs, small_images)
        self.stem = Chain(conv=first, pool=pool)
        stages, size = _stages(PreResidual, inputs, depths or usual, bottleneck, width)
        self.stages = nn.HybridSequential(*(Chain(blocks=stage) for stage in stages))
        self.norm, self.act = nn.BatchNorm(in_channels=size), nn.Activation("relu")
        self.head = Chain(fc=nn.Dense(classes, in_units=size))

    def forward(self, x: Array) -> Array:
        return self.head(mean(self.act(self.norm(self.stages(self.stem(x))))))


class DenseLayer(HybridBlock):
    """A layer of DenseNet, whose answer is put behind its input."""

    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.BatchNorm(in_channels=inputs), nn.BatchNorm(in_channels=4 * growth)
        self.conv1, self.conv2 = conv(inputs, 4 * growth), conv(4 * growth, growth, 3)
        self.act = nn.Activation("relu")

    def forward(self, x: Array) -> Array:
        y = self.conv1(self.act(self.norm1(x)))
        return nd.concat([x, self.conv2(self.act(self.norm2(y)))], axis=1)


class DenseNet(HybridBlock):
    """DenseNet-121 (Huang et al. 2016, arXiv 1608.06993): 7,978,856 parameters, as timm's densenet121, whose names it
    has."""

    def __init__(
        self,
        depths: Sequence[int] = (6, 12, 24, 16),
        *,
        growth: int = 32,
        classes: int = 1000,
        channels: int = 3,
    ) -> None:
        super().__init__()
        size = 2 * growth
        parts: dict[str, HybridBlock] = {
            "conv0": conv(channels, size, 7, 2), "norm0": nn.BatchNorm(in_channels=size),
            "relu0": nn.Activation("relu"), "pool0": nn.MaxPool2D(3, 2, 1),
        }  # fmt: skip
        for i, depth in enumerate(depths, 1):
            block = Chain(**{f"denselayer{j + 1}": DenseLayer(size + j * growth, growth) for j in range(depth)})
            parts[f"denseblock{i}"] = block
            size += depth * growth
            if i < len(depths):
                parts[f"transition{i}"] = Chain(
                    norm=nn.BatchNorm(in_channels=size), relu=nn.Activation("relu"), conv=conv(size, size // 2),
                    pool=nn.AvgPool2D(2, 2),
                )  # fmt: skip
                size //= 2
        parts |= {"norm5": nn.BatchNorm(in_channels=size), "relu5": nn.Activation("relu")}
        self.features, self.classifier = Chain(**parts), nn.Dense(classes, in_units=size)

    def forward(self, x: Array) -> Array:
        return self.classifier(mean(self.features(x)))
