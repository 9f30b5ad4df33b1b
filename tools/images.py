"""A folder with one folder of images for each class, as batches; an image is read when its batch is."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..ops import DType
from ..ops.dataclasses import dataclass
from ..ops.errors import InputError
from ..ops.types import Array
from .batches import Data, Reading, numbered

ENDINGS = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"}
MODES = {1: "L", 3: "RGB", 4: "RGBA"}  # Pillow's name for so many channels
AHEAD = 2  # batches
DEEP = ("I", "F")  # Pillow's modes of more than 8 bits begin like this; it would cut them off


@dataclass(frozen=True, slots=True)
class Form:
    """Format of the arrays that images are decoded to; `first`: channels come before height and width."""

    channels: int
    height: int
    width: int
    first: bool
    dtype: DType
    factor: Array
    offset: Array

    def decoded(self, path: Path) -> Array:
        """One image, resized with a filter as wide as the reduction, scaled and normalised."""
        from PIL import Image, ImageOps

        try:
            with Image.open(path) as opened:
                upright = ImageOps.exif_transpose(opened).convert(MODES[self.channels])
                small = upright.resize((self.width, self.height), Image.Resampling.BILINEAR)
        except (OSError, SyntaxError, ValueError) as error:
            raise _bad(path, error) from error
        pixels = np.asarray(small).reshape(self.height, self.width, self.channels)
        if self.dtype.floating:
            pixels = (pixels * self.factor - self.offset).astype(self.dtype.numpy)
        return pixels.transpose(2, 0, 1) if self.first else pixels


def images(folder: Path, how: Reading) -> Data:
    """The images of a folder; every file's beginning is read now, so that a bad one is known before the training.

    Raises InputError for a model that takes no images, and for files that are none.
    """
    if how.asked is not None:
        raise InputError("folders of images are classes", where=str(folder), hint="use --loss cross_entropy")
    if how.target or how.sources:
        raise InputError("--target and --input are for arrays and columns", where=str(folder), hint="leave them out")
    name, form = _form(folder, how)
    kinds = sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))
    paths = [p for kind in kinds for p in sorted(kind.rglob("*")) if p.suffix.lower() in ENDINGS]
    for path in paths:
        _check(path)
    found = {p.relative_to(folder).parts[0] for p in paths}
    empty = [k.name for k in kinds if k.name not in found]
    if empty or not paths:
        raise InputError(
            f"no image in {empty[0]!r}" if empty else "no folders",
            where=str(folder),
            hint=f"each class is a folder with files {' '.join(sorted(ENDINGS))}",
        )
    target, names = numbered([p.relative_to(folder).parts[0] for p in paths], how.names, str(folder))

    def take(some: Array) -> dict[str, Array]:
        return {name: np.stack([form.decoded(paths[i]) for i in some])}

    return Data(str(folder), target, names, take, ahead=AHEAD)


def _form(folder: Path, how: Reading) -> tuple[str, Form]:
    """Return the name and the image format of the only input of the model. Raises InputError if it takes no images."""
    hint = "images are an input of rank 4, with 1, 3 or 4 channels before or behind height and width"
    if len(how.inputs) != 1:
        raise InputError(f"the model has {len(how.inputs)} inputs", where=str(folder), hint=hint)
    ((name, kind),) = how.inputs.items()
    dims = kind.dims or ()
    if len(dims) != 4 or not (dims[1] in MODES or dims[3] in MODES):
        raise InputError(f"the model takes {kind}", where=str(folder), hint=hint)
    if not kind.dtype.floating and kind.dtype is not DType.UINT8:
        raise InputError(f"the model takes {kind.dtype}", where=str(folder), hint="images are floats or uint8")
    first = dims[1] in MODES
    channels = dims[1] if first else dims[3]
    known = [d for d in (dims[2:] if first else dims[1:3]) if isinstance(d, int)]
    if len(known) < 2 and how.size is None:
        raise InputError(f"the model takes images of any size: {kind}", where=str(folder), hint="give --size 224")
    height, width = known if len(known) == 2 else how.size or (0, 0)
    if how.size not in (None, (height, width)):
        raise InputError(f"the model takes {height} x {width}", where=str(folder), hint="leave --size out")
    assert isinstance(channels, int)
    mean, std = _each(how.mean, 0.0, channels, "--mean"), _each(how.std, 1.0, channels, "--std")
    if not np.all(std > 0):
        raise InputError("a standard deviation is not above 0", where="--std", hint="for example 0.229,0.224,0.225")
    factor = ((1 / 255 if how.scale is None else how.scale) / std).astype(np.float32)
    return name, Form(channels, height, width, first, kind.dtype, factor, (mean / std).astype(np.float32))


def _each(given: Sequence[float], usual: float, channels: int, where: str) -> Array:
    if len(given) not in (0, 1, channels):
        raise InputError(f"{len(given)} numbers for {channels} channels", where=where, hint="give one, or one for each")
    return np.broadcast_to(np.array(given or [usual], np.float64), channels)


def _check(path: Path) -> None:
    """Read what an image says of itself; Pillow warns of those that would take too much memory."""
    from PIL import Image

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(path) as opened:
                mode = opened.mode
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise _bad(path, error) from error
    if mode.startswith(DEEP):
        raise InputError(f"more than 8 bits in a pixel ({mode})", where=str(path), hint="convert it to 8 bits")


def _bad(path: Path, error: Any) -> InputError:
    return InputError(f"no image that can be read: {error}", where=str(path), hint="remove the file, or mend it")
