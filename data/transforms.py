"""Transforms of images: MXNet's and torchvision's usual set, on uint8 pixels [height, width, channels] until
`ToTensor`.

What is random draws from the generator of its sample (`mezzo.data.draws`), so that an epoch is the same however many
workers make it.

>>> import numpy as np
>>> from .draws import drawing
>>> steps = Compose([RandomResizedCrop(8), RandomFlipLeftRight(), ToTensor(), Normalize(0.5, 0.25)])
>>> image = np.arange(16 * 16 * 3, dtype=np.uint8).reshape(16, 16, 3)
>>> with drawing(1):
...     once = steps(image)
>>> with drawing(1):
...     bool((steps(image) == once).all()), once.shape, once.dtype.name
(True, (3, 8, 8), 'float32')
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..ops.errors import InputError
from ..ops.types import Array
from . import images
from .arena import empty
from .draws import generator
from .images import Size, both

Range = tuple[float, float]


class Compose:
    """Transforms one after the other."""

    def __init__(self, steps: Sequence[Callable[[Any], Any]]) -> None:
        self.steps = list(steps)

    def __call__(self, image: Any) -> Any:
        for step in self.steps:
            image = step(image)
        return image


class RandomApply:
    """A transform with a probability."""

    def __init__(self, step: Callable[[Any], Any], p: float = 0.5) -> None:
        self.step, self.p = step, _share(p, "RandomApply")

    def __call__(self, image: Any) -> Any:
        return self.step(image) if generator().random() < self.p else image


class Cast:
    """Another element type."""

    def __init__(self, dtype: Any = "float32") -> None:
        self.dtype = np.dtype(dtype)

    def __call__(self, image: Any) -> Array:
        return np.asarray(image).astype(self.dtype)


class ToTensor:
    """Pixels as float32 [channels, height, width] from 0 to 1."""

    def __call__(self, image: Any) -> Array:
        array = images.array_of(image) if hasattr(image, "getbands") else np.asarray(image)
        array = array[:, :, None] if array.ndim == 2 else array
        channels: Array = np.empty((array.shape[2], *array.shape[:2]), np.float32)
        factor = np.float32(1 / 255) if array.dtype == np.uint8 else np.float32(1)
        return images.normalized(array, factor, 0, channels)


class Normalize:
    """Float numbers [channels, height, width] minus a mean, by a deviation, of each channel."""

    def __init__(self, mean: Any = 0.0, std: Any = 1.0) -> None:
        self.mean, self.std = np.asarray(mean, np.float32), np.asarray(std, np.float32)
        if not (self.std > 0).all():
            raise InputError(f"a deviation of {std}", where="Normalize", hint="above 0, as 0.225")

    def __call__(self, image: Array) -> Array:
        if image.dtype.kind != "f" or image.ndim < 3:
            raise InputError(
                f"{image.dtype} {list(image.shape)}", where="Normalize", hint="it takes what ToTensor() makes"
            )
        mean, std = (a.reshape(-1, 1, 1) if a.ndim else a for a in (self.mean, self.std))
        return (image - mean) / std


class ToNormalized:
    """ToTensor and Normalize in one step, which passes over the pixels once."""

    def __init__(self, mean: Any = 0.0, std: Any = 1.0) -> None:
        Normalize(mean, std)
        std = np.asarray(std, np.float64)
        self.factor = (1 / 255 / std).astype(np.float32)
        self.offset = (np.asarray(mean, np.float64) / std).astype(np.float32)

    def __call__(self, image: Any) -> Array:
        array = images.array_of(images.image_of(image))
        channels: Array = np.empty((array.shape[2], *array.shape[:2]), np.float32)
        return images.normalized(array, self.factor, self.offset, channels)


# -- sizes -------------------------------------------------------------------------------------------------------------


class Resize:
    """Another size (height, width); with `keep_ratio` the shorter side gets it."""

    def __init__(self, size: Size, keep_ratio: bool = False) -> None:
        self.size, self.keep = size, keep_ratio
        both(size)

    def __call__(self, image: Any) -> Array:
        return images.resize(image, self.size, keep=self.keep)


class CenterCrop:
    """The middle of an image, which is resized before if it is smaller."""

    def __init__(self, size: Size) -> None:
        self.size = both(size)

    def __call__(self, image: Any) -> Array:
        return images.center_crop(_pixels(image), self.size)


class CropResize:
    """A part of an image (MXNet's order: x, y, width, height), and perhaps another size of it."""

    def __init__(self, x: int, y: int, width: int, height: int, size: Size | None = None) -> None:
        self.box, self.size = (y, x, height, width), size

    def __call__(self, image: Any) -> Array:
        part = images.crop(_pixels(image), *self.box)
        return part if self.size is None else images.resize(part, self.size)


class RandomCrop:
    """A part of this size at a place that is drawn, after `pad` pixels of `value` were put around."""

    def __init__(self, size: Size, pad: int = 0, value: int = 0) -> None:
        self.size, self.pad, self.value = both(size), pad, value

    def __call__(self, image: Any) -> Array:
        array = _pixels(image)
        if self.pad:
            around = ((self.pad, self.pad), (self.pad, self.pad), (0, 0))
            array = np.pad(array, around, constant_values=self.value)
        height, width = self.size
        if array.shape[0] < height or array.shape[1] < width:
            array = images.center_crop(array, (max(height, array.shape[0]), max(width, array.shape[1])))
        draws = generator()
        top = int(draws.integers(array.shape[0] - height + 1))
        left = int(draws.integers(array.shape[1] - width + 1))
        return images.crop(array, top, left, height, width)


class RandomResizedCrop:
    """A part whose share of the area and whose ratio of width to height are drawn, resized (Szegedy et al. 2014,
    https://arxiv.org/abs/1409.4842)."""

    def __init__(self, size: Size, scale: Range = (0.08, 1.0), ratio: Range = (3 / 4, 4 / 3)) -> None:
        self.size, self.scale, self.ratio = both(size), _range(scale, "scale"), _range(ratio, "ratio")

    def box(self, height: int, width: int) -> tuple[int, int, int, int]:
        """Draw left, top, right and bottom of a part."""
        draws, area = generator(), height * width
        for _ in range(10):
            share = draws.uniform(*self.scale) * area
            ratio = math.exp(draws.uniform(math.log(self.ratio[0]), math.log(self.ratio[1])))
            w, h = round(math.sqrt(share * ratio)), round(math.sqrt(share / ratio))
            if 0 < w <= width and 0 < h <= height:
                left, top = int(draws.integers(width - w + 1)), int(draws.integers(height - h + 1))
                return left, top, left + w, top + h
        w, h = min(width, max(round(height * self.ratio[1]), 1)), min(height, max(round(width / self.ratio[0]), 1))
        left, top = (width - w) // 2, (height - h) // 2
        return left, top, left + w, top + h

    def __call__(self, image: Any) -> Array:
        picture = images.image_of(image)
        width, height = picture.size
        return images.array_of(images.resized(picture, self.size, self.box(height, width)))


# -- flips and colours -------------------------------------------------------------------------------------------------


class RandomFlipLeftRight:
    """Left to right, with a probability."""

    axis = 1

    def __init__(self, p: float = 0.5) -> None:
        self.p = _share(p, type(self).__name__)

    def __call__(self, image: Any) -> Array:
        array = _pixels(image)
        return images.flip(array, self.axis) if generator().random() < self.p else array


class RandomFlipTopBottom(RandomFlipLeftRight):
    """Upside down, with a probability."""

    axis = 0


class RandomRotation:
    """Turned by an angle in degrees that is drawn, around the middle; what comes in is `value`."""

    def __init__(self, angles: float | Range, value: int = 0) -> None:
        self.angles = (-angles, angles) if isinstance(angles, int | float) else angles
        self.value = value

    def __call__(self, image: Any) -> Array:
        from PIL import Image

        picture = images.image_of(image)
        fill = self.value if len(picture.getbands()) == 1 else (self.value,) * len(picture.getbands())
        turned = picture.rotate(generator().uniform(*self.angles), Image.Resampling.BILINEAR, fillcolor=fill)
        return images.array_of(turned)


class _Jitter:
    """A colour transform whose factor is drawn around 1."""

    change: Callable[[Array, float], Array]
    middle = 1.0

    def __init__(self, amount: float) -> None:
        if not amount >= 0:
            raise InputError(f"an amount of {amount}", where=type(self).__name__, hint="from 0 on")
        self.amount = amount

    def __call__(self, image: Any) -> Array:
        low = max(self.middle - self.amount, 0.0) if self.middle else -self.amount
        factor = generator().uniform(low, self.middle + self.amount)
        return type(self).change(_pixels(image), factor)


class RandomBrightness(_Jitter):
    """Brightness times 1 +- amount."""

    change = staticmethod(images.brightness)


class RandomContrast(_Jitter):
    """Contrast times 1 +- amount."""

    change = staticmethod(images.contrast)


class RandomSaturation(_Jitter):
    """Saturation times 1 +- amount."""

    change = staticmethod(images.saturation)


class RandomHue(_Jitter):
    """Hue turned by +- amount of the circle."""

    change = staticmethod(images.hue)
    middle = 0.0


class RandomColorJitter:
    """Brightness, contrast, saturation and hue, in an order that is drawn."""

    def __init__(
        self, brightness: float = 0.0, contrast: float = 0.0, saturation: float = 0.0, hue: float = 0.0
    ) -> None:
        kinds = {
            RandomBrightness: brightness,
            RandomContrast: contrast,
            RandomSaturation: saturation,
            RandomHue: hue,
        }
        self.steps = [kind(amount) for kind, amount in kinds.items() if amount]

    def __call__(self, image: Any) -> Array:
        array = _pixels(image)
        for i in generator().permutation(len(self.steps)):
            array = self.steps[i](array)
        return array


class RandomLighting:
    """Noise along the main colours of ImageNet's pixels, of deviation `alpha` (Krizhevsky et al. 2012)."""

    VALUES = np.array([55.46, 4.794, 1.148], np.float32)
    VECTORS = np.array([[-0.5675, 0.7192, 0.4009], [-0.5808, -0.0045, -0.8140], [-0.5836, -0.6948, 0.4203]], np.float32)

    def __init__(self, alpha: float = 0.1) -> None:
        self.alpha = alpha

    def __call__(self, image: Any) -> Array:
        drawn = generator().normal(0, self.alpha, 3).astype(np.float32)
        shift = self.VECTORS @ (drawn * self.VALUES)
        return np.clip(np.rint(_pixels(image) + shift), 0, 255).astype(np.uint8)


class RandomGray:
    """Without colour, with a probability."""

    def __init__(self, p: float = 0.5) -> None:
        self.p = _share(p, "RandomGray")

    def __call__(self, image: Any) -> Array:
        array = _pixels(image)
        return images.gray(array) if generator().random() < self.p and array.shape[-1] == 3 else array


class RandomErasing:
    """A rectangle of a drawn share of the area is filled with `value` (Zhong et al. 2017, arXiv 1708.04896)."""

    def __init__(self, p: float = 0.5, scale: Range = (0.02, 0.33), ratio: Range = (0.3, 3.3), value: int = 0) -> None:
        self.p, self.value = _share(p, "RandomErasing"), value
        self.part = RandomResizedCrop(1, scale, ratio)

    def __call__(self, image: Any) -> Array:
        array = _pixels(image)
        if generator().random() >= self.p:
            return array
        left, top, right, bottom = self.part.box(*array.shape[:2])
        erased = array.copy()
        erased[top:bottom, left:right] = self.value
        return erased


# -- of whole batches --------------------------------------------------------------------------------------------------


class StackNormalized:
    """A batchify rule for pixels: uint8 [height, width, channels] of one size, as ToTensor and Normalize would make
    them, straight into the batch [batch, channels, height, width] of float32.

    Samples of several fields (an image, a label) are joined by it and `Stack`: `Group(StackNormalized(), Stack())`.
    """

    def __init__(self, mean: Any = 0.0, std: Any = 1.0) -> None:
        self._rule = ToNormalized(mean, std)

    def __call__(self, samples: Sequence[Any]) -> Array:
        pictures = [_pixels(s) for s in samples]
        height, width, channels = pictures[0].shape
        batch = empty((len(pictures), channels, height, width), np.float32)
        for picture, row in zip(pictures, batch, strict=True):
            if picture.shape != pictures[0].shape:
                raise InputError(
                    f"images of {list(pictures[0].shape)} and {list(picture.shape)}",
                    where="StackNormalized",
                    hint="crop or resize before",
                )
            images.normalized(picture, self._rule.factor, self._rule.offset, row)
        return batch


class MixUp:
    """Images mixed with others of their batch, and labels as shares of classes (Zhang et al. 2017, arXiv 1710.09412).

    A rule for `batchify_fn`: `MixUp(classes, 0.2)` joins samples of an image and a class; labels are float32 [batch,
    classes], for a loss that takes them. Draws follow from the batch's first sample.
    """

    def __init__(self, classes: int, alpha: float = 0.2, batchify: Callable[[Any], Any] | None = None) -> None:
        if not alpha > 0 or classes < 1:
            raise InputError(f"alpha={alpha}, classes={classes}", where="MixUp", hint="above 0")
        self.classes, self.alpha, self.batchify = classes, alpha, batchify

    def __call__(self, samples: Sequence[Any]) -> tuple[Array, Array]:
        from .batchify import default

        pictures, labels = (self.batchify or default)(samples)
        if pictures.dtype.kind != "f":
            raise InputError(f"images of {pictures.dtype}", where="MixUp", hint="mix what ToTensor() makes")
        draws = generator()
        share = np.float32(draws.beta(self.alpha, self.alpha))
        partner = draws.permutation(len(labels))
        mixed = share * pictures + (1 - share) * pictures[partner]
        pictures[...] = mixed
        hot = np.zeros((len(labels), self.classes), np.float32)
        rows = np.arange(len(labels))
        np.add.at(hot, (rows, labels), share)
        np.add.at(hot, (rows, labels[partner]), 1 - share)
        return pictures, hot


def _pixels(image: Any) -> Array:
    """Pixels as an array [height, width, channels] of whatever an image is."""
    if hasattr(image, "getbands"):
        return images.array_of(image)
    array = image.asnumpy() if hasattr(image, "asnumpy") else np.asarray(image)
    if array.ndim == 2:
        array = array[:, :, None]
    if array.dtype != np.uint8 or array.ndim != 3:
        raise InputError(
            f"{array.dtype} {list(array.shape)} are no pixels",
            where="transform",
            hint="uint8 [height, width, channels]: change pixels before ToTensor",
        )
    return array


def _share(p: float, where: str) -> float:
    if not 0 <= p <= 1:
        raise InputError(f"a probability of {p}", where=where, hint="from 0 to 1")
    return p


def _range(given: Range, where: str) -> Range:
    low, high = given
    if not 0 < low <= high:
        raise InputError(f"{given}", where=where, hint="two numbers above 0, the smaller one first")
    return low, high
