"""Files of arrays as MXNet saves them: `.params`, `mx.nd.save`, versions V0 to V3, sparse arrays included.

The bytes are mapped or given, counted before anything is made of them, and never unpickled. Little endian:

    file : u64 0x112 | u64 0 | u64 n | n arrays | u64 k in {0, n} | k names (u64 length, UTF-8)
    V2 0xF993fac9 and V3 0xF993faca (NumPy's shapes): i32 storage | [sparse: shape] | shape | device | i32 dtype
        | a pair (i32 dtype, shape) for each auxiliary array | data | auxiliary data
    V1 0xF993fac8: shape | device | i32 dtype | data       V0: u32 rank, u32 dims | device | i32 dtype | data

Source: `NDArray::Save` and `NDArray::LegacyLoad` of Apache MXNet 1.9.1, `src/ndarray/ndarray.cc`.
"""

from __future__ import annotations

import math
import os
import struct
from pathlib import Path

import numpy as np

from ...ops import DType
from ...ops.budget import Budget
from ...ops.dataclasses import dataclass, field
from ...ops.errors import ModelError
from ...ops.types import Array

MAGIC = struct.pack("<QQ", 0x112, 0)
V1, V2, V3 = 0xF993FAC8, 0xF993FAC9, 0xF993FACA
DENSE, ROW_SPARSE, CSR = 0, 1, 2
AUXILIARY = {DENSE: 0, ROW_SPARSE: 1, CSR: 2}  # arrays of indices beside the values
MOST_DIMS = 32
PICKLE = b"\x80"  # the first byte of every pickle since protocol 2
DTYPES = (  # by MXNet's number of the element type
    DType.FLOAT, DType.DOUBLE, DType.FLOAT16, DType.UINT8, DType.INT32, DType.INT8, DType.INT64, DType.BOOL,
    DType.INT16, DType.UINT16, DType.UINT32, DType.UINT64, DType.BFLOAT16,
)  # fmt: skip


def read_arrays(source: str | os.PathLike[str] | bytes, budget: Budget | None = None) -> dict[str, Array]:
    """Read all arrays of a file by name: `arg:` and `aux:` prefixes as they stand there; arrays without names are
    called "0", "1", .... Sparse arrays become dense ones.

    `source` is a path or the bytes of a file. Raises ModelError for malformed files, BudgetError for arrays of more
    than `budget.tensor_elements` elements.
    """
    if isinstance(source, bytes):
        return _Reader(memoryview(source), "model", Budget.of(budget)).file()
    path, limits = Path(source), Budget.of(budget)
    content = content_of(path, limits, "give the .params file of the model")
    return _Reader(memoryview(content), path.name, limits).file()


def content_of(path: Path, budget: Budget, hint: str) -> bytes:
    """The bytes of a regular file. Raises ModelError for one that is none or cannot be read, BudgetError for a larger
    one than `budget.file_bytes`."""
    try:
        if not path.is_file():
            raise ModelError("it is no regular file", where=path.name, hint=hint)
        budget.check("file_bytes", path.stat().st_size, "bytes of the file", where=path.name)
        return path.read_bytes()
    except OSError as error:
        raise ModelError(f"it cannot be read: {error.strerror}", where=path.name) from error


def read_one(content: bytes, where: str, budget: Budget) -> Array:
    """The array in the bytes that MXNet keeps of a single one, without a file's head."""
    reader = _Reader(memoryview(content), where, budget)
    array = reader.array(0)
    if reader.at != len(content):
        raise ModelError(f"{len(content) - reader.at} bytes follow an array", where=where)
    return array


@dataclass(slots=True)
class _Reader:
    """A position in the bytes of a file; every read says how many bytes it needs."""

    content: memoryview
    where: str
    budget: Budget
    at: int = field(default=0)

    def file(self) -> dict[str, Array]:
        if bytes(self.content[:1]) == PICKLE:
            raise ModelError(
                "it is a pickle, as MXNet keeps the states of optimizers",
                where=self.where,
                hint="for states there is mz.mxnet.read_states, which reads them as data and runs nothing",
            )
        if bytes(self.take(len(MAGIC), "the file's head")) != MAGIC:
            raise ModelError("it does not begin as MXNet's files of arrays do", where=self.where)
        count = self.count("arrays", 8)
        arrays = [self.array(i) for i in range(count)]
        named = self.count("names", 8)
        if named not in (0, count):
            raise ModelError(f"it has {count} arrays and {named} names", where=self.where)
        names = [self.text() for _ in range(named)] or [str(i) for i in range(count)]
        if len(set(names)) < count:
            twice = next(n for i, n in enumerate(names) if n in names[:i])
            raise ModelError(f"two arrays are called {twice!r}", where=self.where)
        if self.at != len(self.content):
            raise ModelError(f"{len(self.content) - self.at} bytes follow the last name", where=self.where)
        return dict(zip(names, arrays, strict=True))

    def take(self, size: int, what: str) -> memoryview:
        left = len(self.content) - self.at
        if not 0 <= size <= left:
            raise ModelError(f"it ends within {what}: {size} bytes are needed, {left} are left", where=self.where)
        self.at += size
        return self.content[self.at - size : self.at]

    def number(self, code: str, what: str) -> int:
        size = struct.calcsize(f"<{code}")
        return int(struct.unpack(f"<{code}", self.take(size, what))[0])

    def count(self, what: str, least: int) -> int:
        """A number of things that take at least `least` bytes each."""
        number = self.number("Q", f"the number of {what}")
        left = len(self.content) - self.at
        if number > left // least:
            raise ModelError(f"it says that {number} {what} follow in {left} bytes", where=self.where)
        return number

    def text(self) -> str:
        try:
            return bytes(self.take(self.count("letters", 1), "a name")).decode("utf-8")
        except UnicodeDecodeError as error:
            raise ModelError("a name is no UTF-8", where=self.where) from error

    def shape(self, what: str, *, unknown: int = 0) -> tuple[int, ...] | None:
        """Dims of 64 bits; None for the rank that stands for no array."""
        rank = self.number("i", f"the rank of {what}")
        if rank == unknown:
            return None
        return self.dims(rank, "q", what)

    def dims(self, rank: int, code: str, what: str) -> tuple[int, ...]:
        if not 0 <= rank <= MOST_DIMS:
            raise ModelError(f"{what} has {rank} axes", where=self.where)
        dims = tuple(self.number(code, f"the shape of {what}") for _ in range(rank))
        if any(d < 0 for d in dims):
            raise ModelError(f"{what} has the shape {dims}", where=self.where)
        # sizes of 0 count as 1: NumPy refuses what the others make too large
        self.budget.check("tensor_elements", math.prod(d or 1 for d in dims), f"elements of {what}", where=self.where)
        return dims

    def dtype(self, what: str) -> DType:
        number = self.number("i", f"the element type of {what}")
        if not 0 <= number < len(DTYPES):
            raise ModelError(f"{what} has the element type {number}, which MXNet does not have", where=self.where)
        return DTYPES[number]

    def elements(self, dtype: DType, shape: tuple[int, ...], what: str) -> Array:
        size = math.prod(shape)
        content = self.take(size * dtype.itemsize, what)
        return np.frombuffer(content, dtype.numpy, size).reshape(shape).copy()

    def device(self, what: str) -> None:
        """Pass over the device that the array lay on."""
        self.take(8, f"the device of {what}")

    def array(self, index: int) -> Array:
        what = f"array {index}"
        version = self.number("I", what)
        if version in (V2, V3):
            return self.versioned(what, unknown=-1 if version == V3 else 0)
        shape = self.shape(what) if version == V1 else self.dims(version, "I", what)
        if not shape:
            return np.zeros(0, np.float32)
        self.device(what)
        return self.elements(self.dtype(what), shape, what)

    def versioned(self, what: str, unknown: int) -> Array:
        storage = self.number("i", f"the storage of {what}")
        if storage not in AUXILIARY:
            raise ModelError(f"{what} is stored in the way {storage}, which MXNet does not have", where=self.where)
        if storage != DENSE:
            self.shape(f"the values of {what}")  # a csr array of NumPy's says (0,): the indices tell how many there are
        shape = self.shape(what, unknown=unknown)
        if shape is None:
            return np.zeros(0, np.float32)
        self.device(what)
        dtype = self.dtype(what)
        indices: list[tuple[DType, tuple[int, ...], str]] = []
        for i in range(AUXILIARY[storage]):
            part = f"indices {i} of {what}"
            kind = self.dtype(part)
            if kind.floating or kind is DType.BOOL:
                raise ModelError(f"{part} are no integers", where=self.where)
            indices.append((kind, self.shape(part) or (0,), part))
        if storage == DENSE:
            return self.elements(dtype, shape, what)
        return self.sparse(storage, dtype, shape, indices, what)

    def sparse(
        self,
        storage: int,
        dtype: DType,
        shape: tuple[int, ...],
        indices: list[tuple[DType, tuple[int, ...], str]],
        what: str,
    ) -> Array:
        if len(shape) < 1 or (storage == CSR and len(shape) != 2) or any(len(s) != 1 for _, s, _ in indices):
            raise ModelError(f"{what} is sparse, with the shape {shape}", where=self.where)
        stored = indices[-1][1][0]
        values = self.elements(dtype, (stored, *shape[1:]) if storage == ROW_SPARSE else (stored,), what)
        parts = [self.elements(d, s, part).astype(np.int64) for d, s, part in indices]
        dense = np.zeros(shape, dtype.numpy)
        if storage == ROW_SPARSE:
            rows = self.within(parts[0], shape[0], f"rows of {what}")
            dense[rows] = values
            return dense
        starts, columns = parts
        if len(starts) != shape[0] + 1 or starts[0] != 0 or starts[-1] != stored or (np.diff(starts) < 0).any():
            raise ModelError(f"{what} has rows that do not fit its {stored} values", where=self.where)
        dense[np.repeat(np.arange(shape[0]), np.diff(starts)), self.within(columns, shape[1], f"columns of {what}")] = (
            values
        )
        return dense

    def within(self, indices: Array, size: int, what: str) -> Array:
        if len(indices) and not (indices.min() >= 0 and indices.max() < size):
            raise ModelError(f"{what} lie outside of {size}", where=self.where)
        return indices
