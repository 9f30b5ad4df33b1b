"""Readers of MNIST's and CIFAR's files, and data that installed packages carry.

MNIST: http://yann.lecun.com/exdb/mnist (idx files, plain or .gz). CIFAR: https://www.cs.toronto.edu/~kriz/cifar.html,
the binary version; the Python version is pickles, which are never read.
"""

from __future__ import annotations

import gzip
import os
import struct
import zlib
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar

import numpy as np

from ..ops.errors import InputError, MissingPackage
from ..ops.types import Array
from .dataset import ArrayDataset

IDX_TYPES = {8: ">u1", 9: ">i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}
LARGEST = 1 << 34  # bytes of one array


def read_idx(path: str | os.PathLike[str]) -> Array:
    """The array of an idx file. Raises InputError for what is none, and one that is cut off.

    Its header is two zeros, the element type, the rank, and a big-endian u32 for each size.
    """
    path = Path(path)
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            head = file.read(4)
            if len(head) < 4 or head[:2] != b"\0\0" or head[2] not in IDX_TYPES or not head[3]:
                raise InputError("no idx file", where=str(path), hint="it begins with two zeros, a type and a rank")
            sizes = struct.unpack(f">{head[3]}I", file.read(4 * head[3]))
            dtype = np.dtype(IDX_TYPES[head[2]])
            nbytes = dtype.itemsize * int(np.prod(sizes, dtype=object))
            if nbytes > LARGEST:
                raise InputError(f"sizes {list(sizes)}, {nbytes} bytes", where=str(path), hint="is it damaged?")
            data = file.read(nbytes + 1)
    except (OSError, EOFError, zlib.error, struct.error) as error:
        raise InputError(f"the file cannot be read: {error}", where=str(path), hint="fetch it again") from error
    if len(data) != nbytes:
        raise InputError(
            f"{len(data)} bytes of data, and sizes {list(sizes)} of {nbytes}", where=str(path), hint="fetch it again"
        )
    array = np.frombuffer(data, dtype).reshape(sizes)
    return array.astype(dtype.newbyteorder("="))


class MNIST(ArrayDataset):
    """Handwritten digits, or whatever has its four files (Fashion-MNIST, KMNIST): images uint8 [28, 28, 1], labels."""

    FILES: ClassVar = {True: ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
             False: ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")}  # fmt: skip

    def __init__(self, root: str | os.PathLike[str], train: bool = True) -> None:
        arrays = []
        for name in self.FILES[train]:
            places = [Path(root) / f"{n}{end}" for n in (name, name.replace("-idx", ".idx")) for end in ("", ".gz")]
            present = [p for p in places if p.is_file()]
            if not present:
                raise InputError(f"there is no {name}", where=str(root), hint="the four files lie there, plain or .gz")
            arrays.append(read_idx(present[0]))
        images, labels = arrays
        if images.ndim != 3 or labels.shape != images.shape[:1]:
            raise InputError(
                f"images {list(images.shape)} and labels {list(labels.shape)}", where=str(root), hint="is it MNIST?"
            )
        super().__init__(images[..., None].astype(np.uint8), labels.astype(np.int32))


class CIFAR10(ArrayDataset):
    """Images uint8 [32, 32, 3] and classes, of the binary version's .bin files."""

    labels = 1  # bytes before the pixels
    FILES: ClassVar = {True: tuple(f"data_batch_{i}.bin" for i in range(1, 6)), False: ("test_batch.bin",)}

    def __init__(self, root: str | os.PathLike[str], train: bool = True) -> None:
        self.root = Path(root)
        super().__init__(*self._read(self.FILES[train], self.labels - 1))

    def _read(self, files: Sequence[str], column: int) -> tuple[Array, Array]:
        size = self.labels + 3072
        parts = []
        for name in files:
            path = self.root / name
            if not path.is_file():
                pickled = (self.root / name.removesuffix(".bin")).is_file()
                raise InputError(
                    f"there is no {name}" + (", but the Python version, which is pickles" if pickled else ""),
                    where=str(self.root),
                    hint="unpack the binary version there; pickles run what they say, and are never read",
                )
            data = np.fromfile(path, np.uint8)
            if not len(data) or len(data) % size:
                raise InputError(f"{len(data)} bytes, no multiple of {size}", where=str(path), hint="fetch it again")
            parts.append(data.reshape(-1, size))
        rows = np.concatenate(parts)
        images = rows[:, self.labels :].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        return np.ascontiguousarray(images), rows[:, column].astype(np.int32)


class CIFAR100(CIFAR10):
    """As CIFAR10, of 100 classes, or of their 20 groups with `fine=False`."""

    labels = 2
    FILES: ClassVar = {True: ("train.bin",), False: ("test.bin",)}

    def __init__(self, root: str | os.PathLike[str], train: bool = True, fine: bool = True) -> None:
        self.root = Path(root)
        ArrayDataset.__init__(self, *self._read(self.FILES[train], int(fine)))


class Packaged(ArrayDataset):
    """Data that an installed package carries: "digits" (8 x 8 pixels, 0 to 16), "iris", "wine", "breast_cancer" as
    float32 numbers and classes, of scikit-learn's files. `names` are the classes, where they have names."""

    FILES: ClassVar = {"digits": "digits.csv.gz", "iris": "iris.csv", "wine": "wine_data.csv",
             "breast_cancer": "breast_cancer.csv"}  # fmt: skip

    def __init__(self, name: str) -> None:
        if name not in self.FILES:
            raise InputError(f"there are no data {name!r}", where="Packaged", hint=f"there are {', '.join(self.FILES)}")
        spec = find_spec("sklearn")
        if spec is None or not spec.submodule_search_locations:
            raise MissingPackage(f"{name} lies in scikit-learn", where="Packaged", hint="pip install scikit-learn")
        path = Path(spec.submodule_search_locations[0]) / "datasets" / "data" / self.FILES[name]
        skipped = 0 if name == "digits" else 1
        with gzip.open(path, "rt") if path.suffix == ".gz" else path.open(encoding="utf8") as file:
            names = list(map(str, range(10))) if not skipped else file.readline().strip().split(",")[2:]
            numbers = np.loadtxt(file, delimiter=",", dtype=np.float32, ndmin=2)
        self.names = tuple(names)
        inputs = numbers[:, :-1] if skipped else numbers[:, :-1].reshape(-1, 8, 8)
        super().__init__(inputs, numbers[:, -1].astype(np.int32))
