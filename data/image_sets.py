"""Datasets of images and their classes: folders, lists and packed records.

Samples are pairs: pixels, uint8 [height, width, channels] (with `pillow=True` an image of Pillow, which crops and
resizes without a copy between), and a label. Files are read when their samples are.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ..ops.errors import InputError
from ..ops.types import Array
from .clock import stage
from .dataset import Dataset
from .image_records import unpack
from .images import ENDINGS, Size, Source, decode, pixels
from .records import RecordFile

Transform = Callable[..., Any] | None
Labels = Literal["int", "float"]


class Images(Dataset):
    """A dataset of images: `channels`, `size` to decode to (None: as large as they are), and a
    function `transform(image, label)`."""

    def __init__(self, channels: int = 3, size: Size | None = None, transform: Transform = None, pillow: bool = False):
        self.channels, self.size, self.function, self.pillow = channels, size, transform, pillow
        self.classes: Sequence[str] = ()  # names, where there are any

    def source(self, number: int) -> tuple[Source, Any]:
        """The path or the bytes of an image file, and its label."""
        raise NotImplementedError

    def __getitem__(self, number: int) -> Any:
        source, label = self.source(number)
        if self.pillow:
            image: Any = pixels(source, self.channels, least=self.size, where=self.name(number))
        else:
            image = decode(source, self.channels, size=self.size, where=self.name(number))
        if self.function is None:
            return image, label
        with stage("augment"):
            return self.function(image, label)

    @property
    def labels(self) -> Array:
        """All labels, read now."""
        return np.array([self.source(i)[1] for i in range(len(self))])


class ImageFolderDataset(Images):
    """A folder with one folder of images for each class; classes are numbered in the order of their names."""

    def __init__(self, root: str | os.PathLike[str], channels: int = 3, **how: Any) -> None:
        super().__init__(channels, **how)
        self.root = Path(root)
        self.classes, self.items = folder_items(self.root)

    def __len__(self) -> int:
        return len(self.items)

    def source(self, number: int) -> tuple[Source, Any]:
        return self.items[number]

    def name(self, number: int) -> str:
        return str(self.items[number][0])


class ImageListDataset(Images):
    """The images of a `.lst` list (MXNet's im2rec): lines of number, labels and path, with tabs between.

    A single label is an integer if all of them are whole numbers, else float32; `labels` says which ("int", "float")
    whatever they are. Several are a float32 array.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        root: str | os.PathLike[str] | None = None,
        channels: int = 3,
        *,
        labels: Labels | None = None,
        **how: Any,
    ) -> None:
        super().__init__(channels, **how)
        self.path = Path(path)
        self.items = list_items(self.path, Path(root) if root is not None else self.path.parent)
        whole, single = checked(labels), [labels[0] for _, labels, _ in self.items if len(labels) == 1]
        self._whole = all(map(float.is_integer, single)) if whole is None else whole

    def __len__(self) -> int:
        return len(self.items)

    def source(self, number: int) -> tuple[Source, Any]:
        _, labels, path = self.items[number]
        return path, plain_label(labels, self._whole, self.name(number))

    def name(self, number: int) -> str:
        return str(self.items[number][2])


class ImageRecordDataset(Images):
    """The images of a packed record file (see RecordFile).

    A single label is an integer if that of the first record is a whole number, else float32; `labels` says which
    ("int", "float") whatever it is, and one that is not whole among integers is an InputError. Several are a float32
    array.
    """

    def __init__(
        self,
        filename: str | os.PathLike[str],
        channels: int = 3,
        *,
        check: bool = True,
        labels: Labels | None = None,
        **how: Any,
    ) -> None:
        super().__init__(channels, **how)
        self.records = RecordFile(filename, check=check)
        self._whole = checked(labels)
        names = self.records.path.with_suffix(".classes")
        if names.is_file():
            self.classes = tuple(names.read_text("utf8").splitlines())

    def __len__(self) -> int:
        return len(self.records)

    def source(self, number: int) -> tuple[Source, Any]:
        label, content = self._read(number)
        if self._whole is None:
            self._whole = self._begins_whole()
        return content, plain_label(label, self._whole, self.name(number))

    def _begins_whole(self) -> bool:
        """True if the first record that can be read has one label, a whole number."""
        for number in range(len(self)):
            with suppress(InputError):
                label, _ = self._read(number)
                return len(label) == 1 and float(label[0]).is_integer()
        return False

    def _read(self, number: int) -> tuple[Array, Source]:
        """The labels and the bytes of a record's image."""
        try:
            header, content = unpack(self.records[number])
        except InputError as error:
            error.where = error.where if "record" in error.where else self.name(number)
            raise
        return np.atleast_1d(np.asarray(header.label, np.float32)), content

    def name(self, number: int) -> str:
        return self.records.name(number)


class RecordFileDataset(Dataset):
    """The records of a file as bytes, for a transform of your own."""

    def __init__(self, filename: str | os.PathLike[str], **how: Any) -> None:
        self.records = RecordFile(filename, **how)

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, number: int) -> bytes:
        return bytes(self.records[number])

    def name(self, number: int) -> str:
        return self.records.name(number)


def checked(labels: Labels | None) -> bool | None:
    """Return True if single labels are integers, None if they say so themselves. Raises InputError for other words."""
    if labels not in (None, "int", "float"):
        raise InputError(f"labels={labels!r}", where="labels", hint="'int' or 'float'")
    return None if labels is None else labels == "int"


def plain_label(labels: Any, whole: bool, where: str) -> Any:
    """A label as an integer or float32, several as a float32 array; so the batches of a dataset have one element type.

    Raises InputError for a fraction among integers.
    """
    if len(labels) != 1:
        return np.asarray(labels, np.float32)
    label = float(labels[0])
    if not whole:
        return np.float32(label)
    if not label.is_integer():
        raise InputError(
            f"the label {label:g} is no whole number, as the first one is", where=where, hint="labels='float' takes all"
        )
    return int(label)


def folder_items(root: Path) -> tuple[tuple[str, ...], list[tuple[Path, int]]]:
    """Names of classes, and paths of images with their numbers. Raises InputError for a folder without images."""
    if not root.is_dir():
        raise InputError("there is no such folder", where=str(root), hint="it has a folder of images for each class")
    kinds = sorted(p for p in root.iterdir() if p.is_dir() and not p.name.startswith("."))
    items = [
        (p, number)
        for number, kind in enumerate(kinds)
        for p in sorted(kind.rglob("*"))
        if p.suffix.lower() in ENDINGS and p.is_file()
    ]
    seen = {number for _, number in items}
    empty = [kind.name for number, kind in enumerate(kinds) if number not in seen]
    if empty or not items:
        raise InputError(
            f"no image in {empty[0]!r}" if empty else "no folders",
            where=str(root),
            hint=f"each class is a folder with files {' '.join(sorted(ENDINGS))}",
        )
    return tuple(kind.name for kind in kinds), items


def list_items(path: Path, root: Path) -> list[tuple[int, list[float], Path]]:
    """Numbers, labels and paths of a `.lst` list. Raises InputError that names the line."""
    items = []
    try:
        lines = path.read_text("utf8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"the list cannot be read: {error}", where=str(path), hint="check the path") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        cells = line.split("\t")
        try:
            items.append((int(float(cells[0])), [float(c) for c in cells[1:-1]], root / cells[-1].strip()))
            if len(cells) < 3:
                raise ValueError("a line has a number, labels and a path")
        except (ValueError, OverflowError) as error:
            raise InputError(
                f"{line[:60]!r} is no item: {error}",
                where=f"{path}, line {number}",
                hint="number, labels and path with tabs between",
            ) from error
    return items
