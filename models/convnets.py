"""Convolutional networks as graphs: the seven of the MXNet paper's memory figure (arXiv 1512.01274), and two more.

AlexNet (Krizhevsky 2012, without its two groups' memory split) and the single-tower form of "One weird trick"
(arXiv 1404.5997), GoogLeNet v1 (arXiv 1409.4842), Inception with batch normalisation (arXiv 1502.03167), and VGG with
11, 16 and 19 layers (configurations A, D and E of arXiv 1409.1556); `NETS` lists these. Beside them ResNet-18
and 50, and MobileNetV2. Each takes `data` float32 [batch, 3, 224, 224] and ends in a softmax over 1000 classes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..ops.types import f32
from ..runtime.ir.graph import Graph, GraphBuilder

Weights = Callable[[tuple[int, ...]], NDArray[np.float32]]


def no_weights(shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Zeros that take no memory: enough to plan a network, not to run it quickly."""
    return np.broadcast_to(np.float32(0), shape)


def random_weights(seed: int = 0) -> Weights:
    """Return a source of He-scaled random weights, for runs whose speed or answers matter."""
    rng = np.random.default_rng(seed)

    def make(shape: tuple[int, ...]) -> NDArray[np.float32]:
        fan_in = int(np.prod(shape[1:])) or 1
        scale = np.float32((2 / fan_in) ** 0.5)
        return rng.standard_normal(shape, np.float32) * scale

    return make


class Layers:
    """Layers over a GraphBuilder; each method takes a value with its channel count and returns the next."""

    def __init__(self, name: str, batch: int | str, weights: Weights, side: int = 224) -> None:
        self.g = GraphBuilder(name)
        self.weights = weights
        self.data = (self.g.input("data", f32(batch, 3, side, side)), 3)

    def weight(self, *shape: int) -> str:
        return self.g.const(self.weights(shape))

    def conv(
        self,
        x: tuple[str, int],
        channels: int,
        kernel: int,
        stride: int = 1,
        pad: int = 0,
        *,
        bias: bool = True,
        groups: int = 1,
    ) -> tuple[str, int]:
        name, depth = x
        w = self.weight(channels, depth // groups, kernel, kernel)
        b = [self.weight(channels)] if bias else []
        how = {"group": groups} if groups > 1 else {}
        y = self.g.Conv(name, w, *b, kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=[pad] * 4, **how)
        return y, channels

    def relu(self, x: tuple[str, int]) -> tuple[str, int]:
        return self.g.Relu(x[0]), x[1]

    def conv_relu(
        self, x: tuple[str, int], channels: int, kernel: int, stride: int = 1, pad: int = 0
    ) -> tuple[str, int]:
        return self.relu(self.conv(x, channels, kernel, stride, pad))

    def conv_norm_relu(
        self, x: tuple[str, int], channels: int, kernel: int, stride: int = 1, pad: int = 0, *, bias: bool = True
    ) -> tuple[str, int]:
        return self.relu(self.norm(self.conv(x, channels, kernel, stride, pad, bias=bias)))

    def norm(self, x: tuple[str, int], gain: float = 1) -> tuple[str, int]:
        """Near `gain` times its input, so that what goes through many of them stays in the range of real networks;
        the last one of a residual branch takes a small gain, since what is added adds up."""
        name, channels = x
        scale, bias, mean = (0.1 * self.weights((channels,)) for _ in range(3))
        constants = ((1 + scale) * gain, bias, mean, np.ones(channels))
        return self.g.BatchNormalization(name, *(self.g.const(c.astype(np.float32)) for c in constants)), channels

    def pool(
        self, x: tuple[str, int], kernel: int, stride: int, pad: int = 0, *, kind: str = "Max", ceil: int = 0
    ) -> tuple[str, int]:
        extra: dict[str, Any] = {"count_include_pad": 1} if kind == "Average" else {}
        y = self.g.op(
            f"{kind}Pool",
            x[0],
            kernel_shape=[kernel] * 2,
            strides=[stride] * 2,
            pads=[pad] * 4,
            ceil_mode=ceil,
            **extra,
        )
        return y, x[1]

    def lrn(self, x: tuple[str, int]) -> tuple[str, int]:
        return self.g.LRN(x[0], size=5, alpha=1e-4, beta=0.75, bias=2.0), x[1]

    def concat(self, *xs: tuple[str, int]) -> tuple[str, int]:
        return self.g.Concat(*(x for x, _ in xs), axis=1), sum(c for _, c in xs)

    def flat(self, x: tuple[str, int], side: int) -> tuple[str, int]:
        return self.g.Flatten(x[0]), x[1] * side * side

    def dense(self, x: tuple[str, int], channels: int) -> tuple[str, int]:
        return self.g.Gemm(x[0], self.weight(channels, x[1]), self.weight(channels), transB=1), channels

    def classes(self, x: tuple[str, int], count: int = 1000) -> Graph:
        return self.g.graph([self.g.Softmax(self.dense(x, count)[0])])


def alexnet(batch: int | str = 1, weights: Weights = no_weights) -> Graph:
    """AlexNet of 2012, normalised after pooling as MXNet's example has it: five convolutions, three dense layers."""
    n = Layers("alexnet_2012", batch, weights)
    x = n.lrn(n.pool(n.conv_relu(n.data, 96, 11, 4), 3, 2))
    x = n.lrn(n.pool(n.conv_relu(x, 256, 5, 1, 2), 3, 2))
    x = n.conv_relu(n.conv_relu(x, 384, 3, 1, 1), 384, 3, 1, 1)
    x = n.pool(n.conv_relu(x, 256, 3, 1, 1), 3, 2)
    x = n.relu(n.dense(n.flat(x, 5), 4096))
    return n.classes(n.relu(n.dense(x, 4096)))


def alexnet_owt(batch: int | str = 1, weights: Weights = no_weights) -> Graph:
    """The single tower of "One weird trick", as later benchmarks run it."""
    n = Layers("alexnet_owt", batch, weights)
    x = n.pool(n.conv_relu(n.data, 64, 11, 4, 2), 3, 2)
    x = n.pool(n.conv_relu(x, 192, 5, 1, 2), 3, 2)
    x = n.conv_relu(n.conv_relu(x, 384, 3, 1, 1), 256, 3, 1, 1)
    x = n.pool(n.conv_relu(x, 256, 3, 1, 1), 3, 2)
    x = n.relu(n.dense(n.flat(x, 6), 4096))
    return n.classes(n.relu(n.dense(x, 4096)))


VGG = {"a": (1, 1, 2, 2, 2), "d": (2, 2, 3, 3, 3), "e": (2, 2, 4, 4, 4)}


def vgg(configuration: str = "a", batch: int | str = 1, weights: Weights = no_weights) -> Graph:
    """VGG: 3x3 convolutions in five stages (configuration "a", "d" or "e"), three dense layers."""
    n = Layers(f"vgg_{configuration}", batch, weights)
    x = n.data
    for count, channels in zip(VGG[configuration], (64, 128, 256, 512, 512), strict=True):
        for _ in range(count):
            x = n.conv_relu(x, channels, 3, 1, 1)
        x = n.pool(x, 2, 2)
    x = n.relu(n.dense(n.flat(x, 7), 4096))
    return n.classes(n.relu(n.dense(x, 4096)))


def googlenet(batch: int | str = 1, weights: Weights = no_weights) -> Graph:
    """GoogLeNet v1 without its auxiliary heads."""
    n = Layers("googlenet_v1", batch, weights)
    x = n.pool(n.conv_relu(n.data, 64, 7, 2, 3), 3, 2, ceil=1)
    x = n.pool(n.conv_relu(n.conv_relu(x, 64, 1), 192, 3, 1, 1), 3, 2, ceil=1)

    def inception(
        x: tuple[str, int], one: int, three: Sequence[int], five: Sequence[int], proj: int
    ) -> tuple[str, int]:
        a = n.conv_relu(x, one, 1)
        b = n.conv_relu(n.conv_relu(x, three[0], 1), three[1], 3, 1, 1)
        c = n.conv_relu(n.conv_relu(x, five[0], 1), five[1], 5, 1, 2)
        d = n.conv_relu(n.pool(x, 3, 1, 1), proj, 1)
        return n.concat(a, b, c, d)

    x = inception(x, 64, (96, 128), (16, 32), 32)
    x = n.pool(inception(x, 128, (128, 192), (32, 96), 64), 3, 2, ceil=1)
    x = inception(x, 192, (96, 208), (16, 48), 64)
    x = inception(x, 160, (112, 224), (24, 64), 64)
    x = inception(x, 128, (128, 256), (24, 64), 64)
    x = inception(x, 112, (144, 288), (32, 64), 64)
    x = n.pool(inception(x, 256, (160, 320), (32, 128), 128), 3, 2, ceil=1)
    x = inception(x, 256, (160, 320), (32, 128), 128)
    x = inception(x, 384, (192, 384), (48, 128), 128)
    return n.classes(n.flat(n.pool(x, 7, 1, kind="Average"), 1))


def inception_bn(batch: int | str = 1, weights: Weights = no_weights) -> Graph:
    """Inception with batch normalisation after every convolution."""
    n = Layers("inception_bn", batch, weights)
    x = n.pool(n.conv_norm_relu(n.data, 64, 7, 2, 3), 3, 2, ceil=1)
    x = n.pool(n.conv_norm_relu(n.conv_norm_relu(x, 64, 1), 192, 3, 1, 1), 3, 2, ceil=1)

    def module(
        x: tuple[str, int], one: int, three: Sequence[int], double: Sequence[int], kind: str, proj: int
    ) -> tuple[str, int]:
        parts = [n.conv_norm_relu(x, one, 1)]
        parts.append(n.conv_norm_relu(n.conv_norm_relu(x, three[0], 1), three[1], 3, 1, 1))
        twice = n.conv_norm_relu(n.conv_norm_relu(x, double[0], 1), double[1], 3, 1, 1)
        parts.append(n.conv_norm_relu(twice, double[1], 3, 1, 1))
        parts.append(n.conv_norm_relu(n.pool(x, 3, 1, 1, kind=kind), proj, 1))
        return n.concat(*parts)

    def halving(x: tuple[str, int], three: Sequence[int], double: Sequence[int]) -> tuple[str, int]:
        a = n.conv_norm_relu(n.conv_norm_relu(x, three[0], 1), three[1], 3, 2, 1)
        b = n.conv_norm_relu(n.conv_norm_relu(x, double[0], 1), double[1], 3, 1, 1)
        return n.concat(a, n.conv_norm_relu(b, double[1], 3, 2, 1), n.pool(x, 3, 2, 1))

    x = module(x, 64, (64, 64), (64, 96), "Average", 32)
    x = module(x, 64, (64, 96), (64, 96), "Average", 64)
    x = halving(x, (128, 160), (64, 96))
    x = module(x, 224, (64, 96), (96, 128), "Average", 128)
    x = module(x, 192, (96, 128), (96, 128), "Average", 128)
    x = module(x, 160, (128, 160), (128, 160), "Average", 128)
    x = module(x, 96, (128, 192), (160, 192), "Average", 128)
    x = halving(x, (128, 192), (192, 256))
    x = module(x, 352, (192, 320), (160, 224), "Average", 128)
    x = module(x, 352, (192, 320), (192, 224), "Max", 128)
    return n.classes(n.flat(n.pool(x, 7, 1, kind="Average"), 1))


def resnet50(batch: int | str = 1, weights: Weights = no_weights, side: int = 224) -> Graph:
    """ResNet-50 v1.5 (arXiv 1512.03385, the stride in the 3x3 convolution): 25.6 million parameters."""
    n = Layers("resnet50", batch, weights, side)
    x = n.pool(n.conv_norm_relu(n.data, 64, 7, 2, 3, bias=False), 3, 2, 1)
    for stage, (count, channels) in enumerate(((3, 64), (4, 128), (6, 256), (3, 512))):
        for i in range(count):
            stride = 2 if stage and not i else 1
            y = n.conv_norm_relu(x, channels, 1, bias=False)
            y = n.conv_norm_relu(y, channels, 3, stride, 1, bias=False)
            y = n.norm(n.conv(y, 4 * channels, 1, bias=False), 0.25)
            shortcut = x if i else n.norm(n.conv(x, 4 * channels, 1, stride, bias=False))
            x = n.relu((n.g.Add(y[0], shortcut[0]), y[1]))
    return n.classes(n.flat((n.g.GlobalAveragePool(x[0]), x[1]), 1))


def resnet18(batch: int | str = 1, weights: Weights = no_weights, side: int = 224, classes: int = 1000) -> Graph:
    """ResNet-18 (arXiv 1512.03385): 11.7 million parameters; `y` are the classes' scores before the softmax."""
    n = Layers("resnet18", batch, weights, side)
    x = n.pool(n.conv_norm_relu(n.data, 64, 7, 2, 3, bias=False), 3, 2, 1)
    for stage, channels in enumerate((64, 128, 256, 512)):
        for i in range(2):
            stride = 2 if stage and not i else 1
            y = n.norm(n.conv(n.conv_norm_relu(x, channels, 3, stride, 1, bias=False), channels, 3, 1, 1, bias=False))
            same = stride == 1 and x[1] == channels
            shortcut = x if same else n.norm(n.conv(x, channels, 1, stride, bias=False))
            x = n.relu((n.g.Add(y[0], shortcut[0]), channels))
    return n.g.graph([n.dense(n.flat((n.g.GlobalAveragePool(x[0]), x[1]), 1), classes)[0]])


# Expansion, channels, repeats and first stride of each stage (arXiv 1801.04381, table 2).
STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


def mobilenetv2(batch: int | str = 1, weights: Weights = no_weights, side: int = 224) -> Graph:
    """MobileNetV2 1.0 (arXiv 1801.04381): 3.5 million parameters."""
    n = Layers("mobilenetv2", batch, weights, side)
    low, high = (n.g.const(np.float32(v)) for v in (0, 6))

    def conv(
        x: tuple[str, int], channels: int, kernel: int = 1, stride: int = 1, *, groups: int = 1
    ) -> tuple[str, int]:
        y = n.norm(n.conv(x, channels, kernel, stride, kernel // 2, bias=False, groups=groups))
        return n.g.Clip(y[0], low, high), channels

    x = conv(n.data, 32, 3, 2)
    for expansion, channels, repeats, first in STAGES:
        for i in range(repeats):
            stride = 1 if i else first
            y = conv(x, expansion * x[1]) if expansion > 1 else x
            y = n.norm(n.conv(conv(y, y[1], 3, stride, groups=y[1]), channels, 1, bias=False))
            x = (n.g.Add(x[0], y[0]), channels) if i else y
    x = conv(x, 1280)
    return n.classes(n.flat((n.g.GlobalAveragePool(x[0]), x[1]), 1))


def mlp(batch: int | str = 1, weights: Weights = no_weights) -> Graph:
    """Three dense layers, 784-128-64-10."""
    g = GraphBuilder("mlp")
    x = g.input("data", f32(batch, 784))
    for rows, columns in ((784, 128), (128, 64), (64, 10)):
        x = g.Gemm(x, g.const(weights((columns, rows))), g.const(weights((columns,))), transB=1)
        x = x if columns == 10 else g.Relu(x)
    return g.graph([x])


NETS: dict[str, Callable[..., Graph]] = {
    "alexnet_owt": alexnet_owt,
    "alexnet_2012": alexnet,
    "googlenet_v1": googlenet,
    "inception_bn": inception_bn,
    "vgg_a": lambda batch=1, weights=no_weights: vgg("a", batch, weights),
    "vgg_d": lambda batch=1, weights=no_weights: vgg("d", batch, weights),
    "vgg_e": lambda batch=1, weights=no_weights: vgg("e", batch, weights),
}
