"""Images by Pillow and NumPy: decoded, resized, cropped, flipped, coloured, as uint8 arrays of height, width, channels.

Functions here draw nothing; `mz.data.transforms` has what is random. Files are checked for their size before they are
decoded, and a file that cannot be decoded is an InputError.
"""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..ops.errors import InputError
from ..ops.types import Array
from .clock import stage

if TYPE_CHECKING:
    from PIL.Image import Image

ENDINGS = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"}
MODES = {1: "L", 3: "RGB", 4: "RGBA"}  # Pillow's name for so many channels
DEEP = ("I", "F")  # Pillow's modes of more than 8 bits begin like this; it would cut them off
Source = str | os.PathLike[str] | bytes | bytearray | memoryview
Size = int | tuple[int, int]


def opened(source: Source, where: str = "") -> Image:
    """Read what an image says of itself; pixels follow when they are asked for. Raises InputError for what is no image,
    for one whose pixels would take too much memory, and for more than 8 bits in a pixel."""
    from PIL import Image

    path = isinstance(source, str | os.PathLike)
    where = where or (str(source) if path else "image")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            image = Image.open(Path(source) if path else io.BytesIO(source))  # type: ignore[arg-type]
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise bad_image(where, error) from error
    if image.mode.startswith(DEEP):
        mode = image.mode
        image.close()
        raise InputError(f"more than 8 bits in a pixel ({mode})", where=where, hint="convert it to 8 bits")
    return image


def bad_image(where: str, error: object) -> InputError:
    return InputError(f"no image that can be read: {error}", where=where, hint="remove the file, or mend it")


def pixels(
    source: Source, channels: int = 3, *, least: Size | None = None, upright: bool = True, where: str = ""
) -> Image:
    """Decode a path or the bytes of a file to a Pillow image.

    `least` lets JPEGs be read at a half, a quarter or an eighth of their size, as long as both sides stay so large.
    `upright` turns what a camera says to turn. Raises InputError.
    """
    from PIL import ImageOps

    if channels not in MODES:
        raise InputError(f"{channels} channels", where="decode", hint="1, 3 or 4")
    if isinstance(source, str | os.PathLike):
        where = where or str(source)
        try:
            source = Path(source).read_bytes()
        except OSError as error:
            raise bad_image(where, error) from error
    with stage("decode"):
        image = opened(source, where)
        try:
            if least is not None and image.format == "JPEG":
                height, width = both(least)
                if upright and image.getexif().get(0x0112, 1) >= 5:  # turned by a quarter
                    height, width = width, height
                image.draft(MODES[channels] if channels < 4 else "RGB", (width, height))
            turned = ImageOps.exif_transpose(image) if upright else image
            turned.load()
            return turned if turned.mode == MODES[channels] else turned.convert(MODES[channels])
        except (OSError, SyntaxError, ValueError) as error:
            raise bad_image(where or "image", error) from error


def decode(
    source: Source,
    channels: int = 3,
    *,
    size: Size | None = None,
    upright: bool = True,
    where: str = "",
) -> Array:
    """Decode a path or the bytes of a file to uint8 [height, width, channels], resized where `size` is given: JPEGs are
    read at a fraction of their size then, where that is more than enough. Raises InputError.

    >>> decode(encode(np.zeros((4, 6, 3), np.uint8), "PNG")).shape
    (4, 6, 3)
    """
    image = pixels(source, channels, least=size, upright=upright, where=where)
    with stage("decode"):
        if size is not None:
            image = resized(image, both(size))
        return array_of(image)


def array_of(image: Image) -> Array:
    """The pixels of a Pillow image of 8 bits: uint8 [height, width, channels]."""
    array: Array = np.asarray(image)
    return array[:, :, None] if array.ndim == 2 else array


def image_of(array: Any) -> Image:
    """A Pillow image of uint8 pixels [height, width] or [height, width, 1, 3 or 4]. Raises InputError for others."""
    from PIL import Image

    if not isinstance(array, np.ndarray):
        if isinstance(array, Image.Image):
            return array
        array = array.asnumpy() if hasattr(array, "asnumpy") else np.asarray(array)
    if array.dtype != np.uint8 or array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in MODES):
        raise InputError(
            f"{array.dtype} {list(array.shape)} are no pixels",
            where="image",
            hint="uint8 [height, width, channels]: crop and resize before ToTensor",
        )
    return Image.fromarray(array[:, :, 0] if array.ndim == 3 and array.shape[2] == 1 else array)


def encode(array: Any, kind: str = "JPEG", quality: int = 95) -> bytes:
    """The bytes of an image file of pixels. Raises InputError."""
    out = io.BytesIO()
    try:
        image_of(array).save(out, kind.upper().replace("JPG", "JPEG"), quality=quality)
    except (OSError, KeyError, ValueError) as error:
        raise InputError(f"{kind} cannot be written: {error}", where="encode", hint="JPEG, PNG or WEBP") from error
    return out.getvalue()


def both(size: Size) -> tuple[int, int]:
    """Height and width; one number is both. Raises InputError for sizes below 1."""
    height, width = (size, size) if isinstance(size, int) else size
    if height < 1 or width < 1:
        raise InputError(f"an image of {height} x {width}", where="size", hint="from 1 on")
    return height, width


def resized(image: Image, size: tuple[int, int], box: tuple[int, int, int, int] | None = None) -> Image:
    """A Pillow image in a new size (height, width), of the pixels inside of `box` (left, top, right, bottom), with a
    filter as wide as the reduction (bilinear)."""
    from PIL import Image

    height, width = size
    if image.size == (width, height) and box in (None, (0, 0, width, height)):
        return image
    return image.resize((width, height), Image.Resampling.BILINEAR, box=box)


def resize(array: Any, size: Size, *, keep: bool = False) -> Array:
    """Pixels in a new size; with `keep` the shorter side gets it, and the shape stays.

    >>> resize(np.zeros((40, 60, 3), np.uint8), 20, keep=True).shape
    (20, 30, 3)
    """
    image = image_of(array)
    return array_of(resized(image, shorter(image.size, size) if keep else both(size)))


def shorter(now: tuple[int, int], size: Size) -> tuple[int, int]:
    """Height and width of an image of (width, height) whose shorter side becomes `size`."""
    least = min(both(size))
    width, height = now
    scale = least / min(width, height)
    return (least, max(round(width * scale), 1)) if height <= width else (max(round(height * scale), 1), least)


def crop(array: Array, top: int, left: int, height: int, width: int) -> Array:
    """A part of the pixels, as a view. Raises InputError for one that lies outside."""
    if min(top, left) < 0 or height < 1 or width < 1 or top + height > array.shape[0] or left + width > array.shape[1]:
        raise InputError(
            f"a crop of {height} x {width} at {top}, {left} of {array.shape[0]} x {array.shape[1]} pixels",
            where="crop",
            hint="resize or pad first",
        )
    return array[top : top + height, left : left + width]


def center_crop(array: Array, size: Size) -> Array:
    """The middle of the pixels; an image that is smaller is resized first, as little as will do."""
    height, width = both(size)
    if array.shape[0] < height or array.shape[1] < width:
        scale = max(height / array.shape[0], width / array.shape[1])
        array = resize(array, (max(round(array.shape[0] * scale), height), max(round(array.shape[1] * scale), width)))
    return crop(array, (array.shape[0] - height) // 2, (array.shape[1] - width) // 2, height, width)


def flip(array: Array, axis: int) -> Array:
    """The pixels upside down (0), or left to right (1), as a view."""
    return array[::-1] if axis == 0 else array[:, ::-1]


# -- colours -----------------------------------------------------------------------------------------------------------
LUMA = np.array([0.299, 0.587, 0.114], np.float32)  # ITU-R BT.601


def gray(array: Array) -> Array:
    """Brightness of RGB pixels, in all three channels."""
    brightness = np.rint(array[..., :3].astype(np.float32) @ LUMA).astype(np.uint8)
    return np.repeat(brightness[..., None], 3, -1)


def blend(array: Array, other: Any, factor: float) -> Array:
    """`factor` of the pixels and the rest of others, in 0 to 255."""
    mixed = array.astype(np.float32)
    mixed *= factor
    mixed += np.asarray(other, np.float32) * np.float32(1 - factor)
    return np.clip(np.rint(mixed), 0, 255).astype(np.uint8)


def brightness(array: Array, factor: float) -> Array:
    """Pixels times a factor."""
    table = np.clip(np.rint(np.arange(256) * factor), 0, 255).astype(np.uint8)
    return table[array]


def contrast(array: Array, factor: float) -> Array:
    """Differences to the mean brightness times a factor."""
    mean = float((array[..., :3].astype(np.float32) @ LUMA).mean() if array.shape[-1] >= 3 else array.mean())
    table = np.clip(np.rint(np.arange(256) * factor + mean * (1 - factor)), 0, 255).astype(np.uint8)
    return table[array]


def saturation(array: Array, factor: float) -> Array:
    """Differences to the brightness of each RGB pixel times a factor."""
    return blend(array, gray(array), factor) if array.shape[-1] == 3 else array


def hue(array: Array, turn: float) -> Array:
    """Colours of RGB pixels turned by a part of the whole circle."""
    if array.shape[-1] != 3:
        return array
    image = image_of(array).convert("HSV")
    turned = np.array(image)
    turned[..., 0] += np.uint8(round(turn * 255) % 256)
    height, width = turned.shape[:2]
    from PIL import Image

    return np.asarray(Image.frombytes("HSV", (width, height), turned.tobytes()).convert("RGB"))


def normalized(array: Array, factor: Any, offset: Any, out: Array) -> Array:
    """Pixels [height, width, channels] times a factor, minus an offset for each channel, into `out` [channels, height,
    width]."""
    factor, offset = np.broadcast_to(factor, array.shape[2]), np.broadcast_to(offset, array.shape[2])
    for channel, result in enumerate(out):  # one channel at a time stays in the cache
        result[...] = array[:, :, channel]
        result *= factor[channel]
        if offset[channel]:
            result -= offset[channel]
    return out


def numbers(given: Sequence[float] | float, channels: int, where: str) -> Array:
    """A number for each channel. Raises InputError for another count of them."""
    several = np.atleast_1d(np.asarray(given, np.float64))
    if several.ndim != 1 or len(several) not in (1, channels):
        raise InputError(f"{given} for {channels} channels", where=where, hint="give one number, or one for each")
    return np.broadcast_to(several, channels)
