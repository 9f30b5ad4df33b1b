"""Packing of images into record files, in parallel, and the check of packed files."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..ops.dataclasses import dataclass, field
from ..ops.errors import InputError
from ..runtime.environment import processors
from ..runtime.files import replace_file
from . import images
from .batchify import Append, AsList
from .dataset import Dataset
from .image_records import IRHeader, pack
from .image_sets import ImageRecordDataset, folder_items, list_items
from .loader import DataLoader
from .record_writer import RecordWriter
from .samplers import permutation

BATCH = 16
KEPT = {"JPEG", "PNG", "WEBP", "GIF", "BMP"}  # formats that are stored as they are
Progress = Callable[[int], object]


@dataclass(frozen=True, slots=True)
class Recipe:
    """The way to pack images: `resize` is the most that the shorter side has, in pixels; images that are larger, and
    those of rare formats, are encoded again as `encoding` with `quality`. All others keep their bytes."""

    resize: int | None = None
    quality: int = 95
    encoding: str = "JPEG"

    def __post_init__(self) -> None:
        if self.encoding not in ("JPEG", "PNG", "WEBP"):
            raise InputError(f"{self.encoding!r} is no encoding", where="pack", hint="JPEG, PNG or WEBP")
        if not 1 <= self.quality <= 100 or (self.resize is not None and self.resize < 1):
            raise InputError(f"resize={self.resize}, quality={self.quality}", where="pack", hint="quality is 1 to 100")

    def content(self, path: Path) -> bytes:
        """The bytes of an image file to store. Raises InputError for what is no image."""
        with images.opened(path) as image:
            small = self.resize is None or min(image.size) <= self.resize
            mode, kept = image.mode, image.format in KEPT
        channels = 1 if mode in ("1", "L") else 4 if mode in ("RGBA", "LA", "PA") and self.encoding != "JPEG" else 3
        picture = images.pixels(path, channels, least=self.resize)  # all of it: a bad file is told now
        if small and kept:
            return path.read_bytes()
        if not small:
            assert self.resize is not None
            picture = images.resized(picture, images.shorter(picture.size, self.resize))
        return images.encode(picture, self.encoding, self.quality)


@dataclass(frozen=True, slots=True)
class Item:
    """An image to pack: its number, labels, and path."""

    number: int
    labels: Sequence[float]
    path: Path


@dataclass(slots=True)
class Packed:
    """Files that were written, records in them, their bytes, classes, and images that were left out, with reasons."""

    files: list[Path] = field(default_factory=list[Path])
    records: int = 0
    bytes: int = 0
    classes: Sequence[str] = ()
    skipped: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])


class _Records(Dataset):
    """Images as the bytes of their records."""

    def __init__(self, items: Sequence[Item], recipe: Recipe) -> None:
        self.items, self.recipe = items, recipe

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, number: int) -> Any:
        item = self.items[number]
        label: Any = item.labels[0] if len(item.labels) == 1 else np.asarray(item.labels, np.float32)
        record = pack(IRHeader(0, label, item.number), self.recipe.content(item.path))
        return np.frombuffer(record, np.uint8)

    def name(self, number: int) -> str:
        return str(self.items[number].path)


def items_of(
    source: str | os.PathLike[str], root: str | os.PathLike[str] | None = None
) -> tuple[list[Item], list[str]]:
    """The images of a folder with a folder for each class, or of a `.lst` list (paths below `root`), and the names of
    classes. Raises InputError."""
    path = Path(source)
    if path.suffix == ".lst":
        return [Item(n, labels, p) for n, labels, p in list_items(path, Path(root) if root else path.parent)], []
    classes, items = folder_items(path)
    return [Item(i, [float(label)], p) for i, (p, label) in enumerate(items)], [*classes]


def pack_images(
    source: str | os.PathLike[str],
    output: str | os.PathLike[str],
    recipe: Recipe = Recipe(),  # noqa: B008 (frozen)
    *,
    root: str | os.PathLike[str] | None = None,
    shards: int = 1,
    shuffle: bool = True,
    seed: int = 0,
    workers: int | None = None,
    skip_bad: bool = False,
    progress: Progress = lambda done: None,
) -> Packed:
    """Pack a folder or list of images into OUT.rec, or into `shards` files OUT-00000-of-00004.rec of equal numbers.

    Beside each file lie its index, checksums and, of folders, the names of classes. The order follows from `seed`.
    Raises InputError that names an image that cannot be read, unless bad ones are skipped.
    """
    items, classes = items_of(source, root)
    target = Path(output)
    if target.suffix != ".rec":
        raise InputError("packed images are a .rec file", where=str(target), hint=f"write -o {target.stem}.rec")
    if not target.parent.is_dir():
        raise InputError("there is no such folder", where=str(target.parent), hint="make it first")
    if not items or not 1 <= shards <= len(items):
        raise InputError(f"{len(items)} images in {shards} files", where=str(source), hint="give fewer --shards")
    if shuffle:
        items = [items[i] for i in permutation(len(items), seed, 0)]
    packed = Packed(classes=classes)
    count = processors() if workers is None else workers
    names = "".join(f"{name}\n" for name in classes).encode()
    parts = np.array_split(np.arange(len(items)), shards)
    for number, part in enumerate(parts):
        path = target if shards == 1 else target.with_name(f"{target.stem}-{number:05d}-of-{shards:05d}.rec")
        data = _Records([items[i] for i in part], recipe)
        loader = DataLoader(
            data,
            BATCH,
            batchify_fn=Append(expand=False),
            workers=count if len(data) > BATCH else 0,
            bad="skip" if skip_bad else "error",
        )
        with loader, RecordWriter(path) as out:
            for records in loader:
                for record in records:
                    out.write(memoryview(record))
                progress(len(records))
            written = out.bytes
            packed.records += len(out)
        packed.files.append(path)
        packed.bytes += written
        packed.skipped += loader.stats().skipped_samples
        if classes:
            replace_file(path.with_suffix(".classes"), [names])
    return packed


@dataclass(slots=True)
class Verified:
    """Records of a file, those that are damaged with reasons, and whether there are index and checksums."""

    records: int
    damaged: list[tuple[str, str]]
    index: bool
    checksums: bool


def verify_records(
    path: str | os.PathLike[str], *, workers: int | None = None, progress: Progress = lambda done: None
) -> Verified:
    """Read and decode every record of a file. Raises InputError for files that are damaged as a whole."""
    data = ImageRecordDataset(path)
    whole = Verified(len(data), [], data.records.path.with_suffix(".idx").is_file(), data.records.checked)
    count = processors() if workers is None else workers
    checking = _Checked(data)
    with DataLoader(checking, BATCH, batchify_fn=AsList(), workers=count if len(data) > 4 * BATCH else 0) as loader:
        for results in loader:
            whole.damaged += [(data.name(number), why) for number, why in results if why]
            progress(len(results))
    return whole


class _Checked(Dataset):
    """Numbers of records, and what is wrong with them."""

    def __init__(self, data: ImageRecordDataset) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, number: int) -> tuple[int, str]:
        try:
            self.data[number]
        except InputError as error:
            return number, error.message
        return number, ""
