"""Images in folders and record files, as batches; an image is read when its batch is."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ..data.image_sets import ImageRecordDataset, folder_items
from ..data.images import MODES, Source, array_of, numbers, opened, pixels, resized
from ..ops import DType
from ..ops.dataclasses import dataclass
from ..ops.errors import InputError
from ..ops.types import Array
from .batches import Data, Reading, numbered

AHEAD = 2  # batches


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

    def decoded(self, source: Source, where: str = "") -> Array:
        """One image, resized with a filter as wide as the reduction, scaled and normalised."""
        size = self.height, self.width
        image = array_of(resized(pixels(source, self.channels, least=size, where=where), size))
        if self.dtype.floating:
            image = (image * self.factor - self.offset).astype(self.dtype.numpy)
        return image.transpose(2, 0, 1) if self.first else image


def images(folder: Path, how: Reading) -> Data:
    """The images of a folder; every file's beginning is read now, so that a bad one is known before the training.

    Raises InputError for a model that takes no images, and for files that are none.
    """
    name, form = _form(folder, how)
    _, items = folder_items(folder)
    paths = [path for path, _ in items]
    for path in paths:
        opened(path).close()
    target, names = numbered([p.relative_to(folder).parts[0] for p in paths], how.names, str(folder))

    def take(some: Array) -> dict[str, Array]:
        return {name: np.stack([form.decoded(paths[i]) for i in some])}

    return Data(str(folder), target, names, take, ahead=AHEAD)


def records(path: Path, how: Reading) -> Data:
    """The images of a record file (`mezzo pack`), whose labels are classes.

    Raises InputError for a model that takes no images, and for a record whose label is no class.
    """
    name, form = _form(path, how)
    data = ImageRecordDataset(path)
    if not len(data):
        raise InputError("no records", where=str(path), hint="`mezzo pack` makes some")
    labels = [data.source(i)[1] for i in range(len(data))]
    for number, label in enumerate(labels):
        if not isinstance(label, int) or label < 0:
            raise InputError(f"the label {label} is no class", where=data.name(number), hint="classes count from 0")
    if data.classes and how.names:
        target, names = numbered([data.classes[i] for i in labels], how.names, str(path))
    else:
        target, names = np.array(labels, np.int64), how.names or tuple(data.classes)
    if names and target.max() >= len(names):
        raise InputError(f"a label {target.max()}, and {len(names)} classes", where=str(path), hint="pack it again")

    def take(some: Array) -> dict[str, Array]:
        return {name: np.stack([form.decoded(data.source(i)[0], data.name(i)) for i in some.tolist()])}

    return Data(str(path), target, names, take, ahead=AHEAD)


def _form(folder: Path, how: Reading) -> tuple[str, Form]:
    """Return the name and the image format of the only input of the model. Raises InputError if it takes no images, and
    for options that images do not have."""
    if how.asked is not None:
        raise InputError("images have classes", where=str(folder), hint="use --loss cross_entropy")
    if how.target or how.sources:
        raise InputError("--target and --input are for arrays and columns", where=str(folder), hint="leave them out")
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
    mean, std = numbers(how.mean or 0.0, channels, "--mean"), numbers(how.std or 1.0, channels, "--std")
    if not np.all(std > 0):
        raise InputError("a standard deviation is not above 0", where="--std", hint="for example 0.229,0.224,0.225")
    factor = ((1 / 255 if how.scale is None else how.scale) / std).astype(np.float32)
    return name, Form(channels, height, width, first, kind.dtype, factor, (mean / std).astype(np.float32))
