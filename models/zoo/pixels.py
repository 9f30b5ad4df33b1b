"""Networks whose answer has places: U-Net for segmentation, SSD for detection."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ... import nd
from ...gluon import nn
from ...gluon.hybrid import HybridBlock
from ...gluon.initializer import Constant
from ...gluon.parameter import Parameter
from ...nd.array import Array
from ...nd.running import apply
from ...ops.errors import InputError
from .classic import VGG
from .parts import Chain, conv, narrowed

Boxes = NDArray[np.float32]


def _double(inputs: int, channels: int) -> Chain:
    blocks: list[HybridBlock] = []
    for size in (inputs, channels):
        blocks += [conv(size, channels, 3), nn.BatchNorm(in_channels=channels), nn.Activation("relu")]
    return Chain(double_conv=nn.HybridSequential(*blocks))


class Up(HybridBlock):
    """Twice the size by a transposed convolution, put behind what came from the same size on the way down."""

    def __init__(self, inputs: int, channels: int) -> None:
        super().__init__()
        self.up = nn.Conv2DTranspose(inputs // 2, 2, 2, in_channels=inputs)
        self.conv = _double(inputs, channels)

    def forward(self, x: Array, beside: Array) -> Array:
        x = self.up(x)
        high, wide = (beside.shape[i] - x.shape[i] for i in (2, 3))
        if high or wide:  # an odd size was halved
            x = nd.pad(x, (0, 0, 0, 0, high // 2, high - high // 2, wide // 2, wide - wide // 2))
        return self.conv(nd.concat([beside, x], axis=1))


class UNet(HybridBlock):
    """U-Net (Ronneberger et al. 2015, arXiv 1505.04597), padded and with batch normalisation as in milesial's
    Pytorch-UNet, whose names it has: 31,037,698 parameters for 3 channels and 2 classes. Images [batch, channels,
    height, width] of at least 16 pixels to scores [batch, classes, height, width]."""

    def __init__(self, *, classes: int = 2, channels: int = 3, width: float = 1.0) -> None:
        super().__init__()
        sizes = [narrowed(64 << i, width) for i in range(5)]
        self.inc = _double(channels, sizes[0])
        for i in range(1, 5):
            down = nn.HybridSequential(nn.MaxPool2D(2, 2), _double(sizes[i - 1], sizes[i]))
            setattr(self, f"down{i}", Chain(maxpool_conv=down))
            setattr(self, f"up{i}", Up(sizes[5 - i], sizes[4 - i]))
        self.outc = Chain(conv=conv(sizes[0], classes, use_bias=True))

    def forward(self, x: Array) -> Array:
        kept = [self.inc(x)]
        for i in range(1, 5):
            kept.append(getattr(self, f"down{i}")(kept[-1]))
        y = kept.pop()
        for i in range(1, 5):
            y = getattr(self, f"up{i}")(y, kept.pop())
        return self.outc(y)


class ScaledNorm(HybridBlock):
    """Each pixel's vector of channels, of length 1 times a learnt factor for each channel (arXiv 1506.04579)."""

    def __init__(self, channels: int, scale: float) -> None:
        super().__init__()
        self.weight = Parameter("weight", shape=(channels,), init=Constant(scale))

    def forward(self, x: Array) -> Array:
        return apply("LpNormalization", x, axis=1, p=2) * nd.reshape(self.weight.data(), (1, -1, 1, 1))


# Of the six maps of SSD300 (arXiv 1512.02325, section 3.1): boxes at each place, their sizes as shares of the image of
# 300 pixels, and the larger size of the second square; sides are to each other as 1, 2, 1/2, and of six 3 and 1/3.
PER_PLACE = (4, 6, 6, 6, 4, 4)
SIZES = (30, 60, 111, 162, 213, 264, 315)
EXTRAS = (256, 512, 128, 256, 128, 256, 128, 256)  # channels behind conv7, by 1 x 1 and 3 x 3 in turn
SPREAD = np.array([0.1, 0.1, 0.2, 0.2], np.float32)  # of offsets: middles, then sizes


class SSD(HybridBlock):
    """SSD300 over VGG-16 (Liu et al. 2015, arXiv 1512.02325): 26,285,486 parameters with 21 classes, and 35,641,826
    with the 91 of torchvision's ssd300_vgg16. Names are those of amdegroot's ssd.pytorch. Class 0 is background.

    Images [batch, 3, 300, 300] to scores [batch, places, classes] and offsets [batch, places, 4]. `anchors` are the
    places' boxes, `targets` what they should say, `detections` what they said, in shares of the image.
    """

    def __init__(self, *, classes: int = 21, image: int = 300, width: float = 1.0) -> None:
        super().__init__()
        self.vgg, inputs, side, self._taps = nn.HybridSequential(), 3, image, [0]
        for i, (count, size) in enumerate(zip(VGG[16], (64, 128, 256, 512, 512), strict=True)):
            for _ in range(count):
                self.vgg.add(conv(inputs, narrowed(size, width), 3, use_bias=True), nn.Activation("relu"))
                inputs = narrowed(size, width)
            if i == 3:
                self._taps[0], fine = len(self.vgg), side
            # the third pool keeps odd borders, the fifth keeps the size
            self.vgg.add(nn.MaxPool2D(3, 1, 1) if i == 4 else nn.MaxPool2D(2, 2, ceil_mode=i == 2))
            side = side if i == 4 else -(-side // 2) if i == 2 else side // 2
        last, tapped = narrowed(1024, width), inputs
        self.vgg.add(
            conv(inputs, last, 3, 1, 6, dilation=6, use_bias=True), nn.Activation("relu"),
            conv(last, last, use_bias=True), nn.Activation("relu"),
        )  # fmt: skip
        self.L2Norm, self.extras = ScaledNorm(tapped, 20), nn.HybridSequential()
        sources, sides, inputs = [tapped, last], [fine, side], last
        for i, size in enumerate(EXTRAS):
            stride, pad = (2, 1) if i in (1, 3) else (1, 0)
            self.extras.add(conv(inputs, narrowed(size, width), 3 if i % 2 else 1, stride, pad, use_bias=True))
            inputs = narrowed(size, width)
            if i % 2:
                side = (side + 2 * pad - 3) // stride + 1
                sources, sides = [*sources, inputs], [*sides, side]
        if side < 1:
            raise InputError(f"images of {image} pixels", where="SSD", hint="image=300, or at least 268")
        self._classes = classes
        self.loc, self.conf = (
            nn.HybridSequential(*(conv(c, n * each, 3, use_bias=True) for c, n in zip(sources, PER_PLACE, strict=True)))
            for each in (4, classes)
        )
        self._sides = tuple(sides)

    @property
    def anchors(self) -> Boxes:
        """The boxes of all places [places, 4]: left, top, right, bottom, in shares of the image."""
        return places_of(self._sides)

    def forward(self, x: Array) -> tuple[Array, Array]:
        kept = []
        for i, layer in enumerate(self.vgg):
            if i == self._taps[0]:
                kept.append(self.L2Norm(x))
            x = layer(x)
        kept.append(x)
        for i, layer in enumerate(self.extras):
            x = nd.relu(layer(x))
            if i % 2:
                kept.append(x)
        answers = []
        for heads, each in ((self.conf, self._classes), (self.loc, 4)):
            maps = [nd.permute_dims(head(y), (0, 2, 3, 1)) for head, y in zip(heads, kept, strict=True)]
            answers.append(nd.concat([nd.reshape(m, (m.shape[0], -1, each)) for m in maps], axis=1))
        return answers[0], answers[1]

    def targets(self, boxes: Sequence[Any], labels: Sequence[Any], overlap: float = 0.5) -> tuple[Any, Any]:
        """Classes int64 [batch, places] and offsets float32 [batch, places, 4] that images with these boxes should
        have: for each image float [count, 4] (left, top, right, bottom, in shares of the image) and integers from 1 on.
        A place has the class of the box that it overlaps most, if by at least `overlap`; each box has the place that
        overlaps it most."""
        places = len(self.anchors)
        classes = np.zeros((len(boxes), places), np.int64)
        offsets = np.zeros((len(boxes), places, 4), np.float32)
        for i, (given, names) in enumerate(zip(boxes, labels, strict=True)):
            known = np.asarray(given, np.float32).reshape(-1, 4)
            if not len(known):
                continue
            shares = overlaps(known, self.anchors)
            best = shares.argmax(0)
            taken = shares[best, np.arange(places)] >= overlap
            own = shares.argmax(1)
            best[own], taken[own] = np.arange(len(known)), True
            classes[i, taken] = np.asarray(names)[best[taken]]
            offsets[i, taken] = encoded(known[best[taken]], self.anchors[taken])
        return classes, offsets

    def detections(
        self, scores: Any, offsets: Any, *, least: float = 0.01, overlap: float = 0.45, most: int = 200
    ) -> list[tuple[Boxes, NDArray[np.int64], NDArray[np.float32]]]:
        """Boxes, classes and probabilities of each image, the most probable first: those of at least `least`, without
        those that overlap a better one of their class by more than `overlap`."""
        logits, moved = (x if isinstance(x, Array) else nd.asarray(np.asarray(x)) for x in (scores, offsets))
        chances = nd.softmax(logits, axis=-1)
        boxes = decoded(moved.asnumpy(), self.anchors)
        kept = apply(
            "NonMaxSuppression", nd.asarray(boxes), nd.permute_dims(chances[:, :, 1:], (0, 2, 1)),
            nd.asarray(np.array([most])), nd.asarray(np.array([overlap], np.float32)),
            nd.asarray(np.array([least], np.float32)),
        ).asnumpy()  # fmt: skip
        detected, sure = [], chances.asnumpy()
        for i in range(len(boxes)):
            _, names, places = kept[kept[:, 0] == i].T
            chance = sure[i, places, names + 1]
            order = np.argsort(-chance, kind="stable")[:most]
            detected.append((boxes[i, places[order]], names[order] + 1, chance[order]))
        return detected


@lru_cache(maxsize=16)
def places_of(sides: tuple[int, ...]) -> Boxes:
    """Boxes [places, 4] of six maps of these sides, row by row."""
    levels = []
    for i, (side, count) in enumerate(zip(sides, PER_PLACE, strict=True)):
        small, large = SIZES[i] / 300, SIZES[i + 1] / 300
        shapes = [(small, small), ((small * large) ** 0.5,) * 2]
        for ratio in (2, 3)[: count // 2 - 1]:
            wide, high = small * ratio**0.5, small / ratio**0.5
            shapes += [(wide, high), (high, wide)]
        y, x = np.meshgrid(*[(np.arange(side) + 0.5) / side] * 2, indexing="ij")
        middles = np.stack([x, y], -1).reshape(-1, 1, 2)
        halves = np.array(shapes).reshape(1, -1, 2) / 2
        levels.append(np.concatenate([middles - halves, middles + halves], -1).reshape(-1, 4))
    boxes: Boxes = np.clip(np.concatenate(levels), 0, 1).astype(np.float32)
    boxes.flags.writeable = False
    return boxes


def overlaps(some: Boxes, others: Boxes) -> Boxes:
    """The share of their union that boxes have together: [some, others]."""
    low = np.maximum(some[:, None, :2], others[None, :, :2])
    high = np.minimum(some[:, None, 2:], others[None, :, 2:])
    both = np.prod(np.maximum(high - low, 0), -1)
    areas = [np.prod(b[:, 2:] - b[:, :2], -1) for b in (some, others)]
    whole = areas[0][:, None] + areas[1][None] - both
    return np.asarray(both / np.maximum(whole, 1e-12), np.float32)


def _middles(boxes: Boxes) -> tuple[Boxes, Boxes]:
    low, high = boxes[..., :2], boxes[..., 2:]
    return np.asarray((low + high) / 2, np.float32), np.asarray(high - low, np.float32)


def encoded(boxes: Boxes, places: Boxes) -> Boxes:
    """Offsets of boxes from the boxes of their places; see `decoded`."""
    (at, size), (middle, extent) = _middles(boxes), _middles(places)
    moved = np.concatenate([(at - middle) / extent, np.log(np.maximum(size, 1e-6) / extent)], -1)
    return np.asarray(moved / SPREAD, np.float32)


def decoded(offsets: Boxes, places: Boxes) -> Boxes:
    """The boxes that offsets [..., places, 4] say."""
    middle, extent = _middles(places)
    moved = offsets * SPREAD
    at, size = middle + moved[..., :2] * extent, np.exp(moved[..., 2:]) * extent
    return np.asarray(np.concatenate([at - size / 2, at + size / 2], -1), np.float32)
