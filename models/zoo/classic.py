"""LeNet, AlexNet in both forms, VGG and SqueezeNet: layers one after the other, as data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from ... import nd
from ...gluon import nn
from ...gluon.hybrid import HybridBlock
from ...nd.array import Array
from .parts import Chain, Layer, classifier, conv, mean, narrowed, stacked

LENET: tuple[Layer, ...] = (("conv", 6, 5, 1, 2), "tanh", ("mean", 2, 2), ("conv", 16, 5), "tanh", ("mean", 2, 2))
THREE: tuple[Layer, ...] = (("conv", 384, 3, 1, 1), "relu")  # AlexNet's third layer
ALEXNET: tuple[Layer, ...] = (
    *(("conv", 96, 11, 4), "relu", "local", ("max", 3, 2), ("conv", 256, 5, 1, 2, 2), "relu", "local", ("max", 3, 2)),
    *(*THREE, ("conv", 384, 3, 1, 1, 2), "relu", ("conv", 256, 3, 1, 1, 2), "relu", ("max", 3, 2)),
)
ALEXNET_OWT: tuple[Layer, ...] = (
    *(("conv", 64, 11, 4, 2), "relu", ("max", 3, 2), ("conv", 192, 5, 1, 2), "relu", ("max", 3, 2)),
    *(*THREE, ("conv", 256, 3, 1, 1), "relu", ("conv", 256, 3, 1, 1), "relu", ("max", 3, 2)),
)
VGG = {11: (1, 1, 2, 2, 2), 16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}


def lenet(*, classes: int = 10, channels: int = 1, image: int = 28) -> Chain:
    """LeNet-5 (LeCun et al. 1998), with all connections in its third layer and tanh: 61,706 parameters. The paper's
    partial connections there leave 60,000."""
    features, size = stacked(LENET, channels, image)
    dense = nn.HybridSequential(
        *(nn.Dense(120, "tanh", in_units=size), nn.Dense(84, "tanh", in_units=120), nn.Dense(classes, in_units=84))
    )
    return Chain(features=features, classifier=dense)


def _dense_headed(
    layers: Sequence[Layer], drop: Sequence[int], *, classes: int, channels: int, image: int, width: float
) -> Chain:
    features, size = stacked(layers, channels, image, width)
    return Chain(features=features, classifier=classifier(size, narrowed(4096, width), classes, drop))


def alexnet(*, classes: int = 1000, channels: int = 3, image: int = 227, width: float = 1.0) -> Chain:
    """AlexNet (Krizhevsky et al. 2012) with its two groups, in the order of its paper: normalised, then pooled.
    60,965,224 parameters ("60 million" in the paper; 60,965,224 in Caffe's reference model)."""
    return _dense_headed(ALEXNET, (2, 5), classes=classes, channels=channels, image=image, width=width)


def alexnet_owt(*, classes: int = 1000, channels: int = 3, image: int = 224, width: float = 1.0) -> Chain:
    """The single tower of "One weird trick" (Krizhevsky 2014, arXiv 1404.5997): 61,100,840 parameters, as torchvision's
    alexnet, whose names it has."""
    return _dense_headed(ALEXNET_OWT, (0, 3), classes=classes, channels=channels, image=image, width=width)


def vgg(
    layers: int = 16,
    *,
    classes: int = 1000,
    channels: int = 3,
    image: int = 224,
    width: float = 1.0,
    norm: bool = False,
) -> Chain:
    """VGG (Simonyan and Zisserman 2014, arXiv 1409.1556), configurations A, D and E: 132,863,336, 138,357,544 and
    143,667,240 parameters (table 2: 133, 138 and 144 million), with torchvision's names. `norm` adds batch
    normalisation."""
    unit: tuple[Layer, ...]
    data: list[Layer] = []
    for count, size in zip(VGG[layers], (64, 128, 256, 512, 512), strict=True):
        unit = (("conv", size, 3, 1, 1), *(("norm",) if norm else ()), "relu")
        data += [*unit * count, ("max", 2, 2)]
    return _dense_headed(data, (2, 5), classes=classes, channels=channels, image=image, width=width)


class Fire(HybridBlock):
    """The module of SqueezeNet: few channels, then 1 x 1 and 3 x 3 convolutions beside each other."""

    def __init__(self, inputs: int, squeezed: int, expanded: int) -> None:
        super().__init__()
        self.squeeze = conv(inputs, squeezed, use_bias=True, activation="relu")
        self.expand1x1 = conv(squeezed, expanded, use_bias=True, activation="relu")
        self.expand3x3 = conv(squeezed, expanded, 3, use_bias=True, activation="relu")

    def forward(self, x: Array) -> Array:
        x = self.squeeze(x)
        return nd.concat([self.expand1x1(x), self.expand3x3(x)], axis=1)


class SqueezeNet(HybridBlock):
    """SqueezeNet (Iandola et al. 2016, arXiv 1602.07360), 1.0 and 1.1: 1,248,424 and 1,235,496 parameters, with
    torchvision's names."""

    # Channels of the first layer and its kernel, and at which places the image is halved.
    FORMS: ClassVar[dict[str, Any]] = {"1.0": (96, 7, (0, 3, 7)), "1.1": (64, 3, (0, 2, 4))}

    def __init__(
        self, version: str = "1.0", *, classes: int = 1000, channels: int = 3, image: int = 224, width: float = 1.0
    ) -> None:
        super().__init__()
        count, kernel, halved = self.FORMS[version]
        inputs = narrowed(count, width)
        self.features = nn.HybridSequential(conv(channels, inputs, kernel, 2, 0, use_bias=True), nn.Activation("relu"))
        for i in range(9):
            if i:
                size = narrowed(16 * ((i + 1) // 2), width)
                self.features.add(Fire(inputs, size, 4 * size))
                inputs = 8 * size
            if i in halved:
                self.features.add(nn.MaxPool2D(3, 2, ceil_mode=True))
        self.classifier = nn.HybridSequential(
            nn.Dropout(0.5), conv(inputs, classes, use_bias=True), nn.Activation("relu")
        )

    def forward(self, x: Array) -> Array:
        return mean(self.classifier(self.features(x)))
