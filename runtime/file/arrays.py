"""The arrays of a file: plain elements at aligned offsets, used in place where they are mapped.

Small arrays lie in the part of the file that its digest covers; the large ones, the weights, each have a digest of
their own, which only `mezzo doctor` reads them for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from ...ops import DType
from ...ops.budget import Budget
from ...ops.dataclasses import dataclass
from ...ops.errors import ModelError
from ...ops.types import Array
from ..digests import blake2b
from .layout import ALIGN
from .pool import dtype_of, read_strings, same_length, strings_content
from .table import Table, malformed

SMALL = 1024  # bytes: arrays up to here are covered by the file's digest
DIGEST = 16
MOST_DIMS = 64  # numpy's limit


def aligned(at: int) -> int:
    """The next place that may begin an array."""
    return -(-at // ALIGN) * ALIGN


def digest_of(data: Any) -> bytes:
    """The digest of an array's stored bytes."""
    return blake2b(data, digest_size=DIGEST).digest()


@dataclass(frozen=True, slots=True)
class Stored:
    """Location of an array, and the digest of its bytes."""

    dtype: DType
    dims: tuple[int, ...]
    at: int
    digest: bytes

    @property
    def nbytes(self) -> int:
        return math.prod(self.dims) * self.dtype.itemsize

    @property
    def extent(self) -> int:
        """Size in bytes, with the padding after it."""
        return aligned(self.nbytes)


class ArrayWriter:
    """Writer of arrays; equal ones are stored once. Offsets are assigned when all arrays are known."""

    def __init__(self) -> None:
        self._index: dict[Any, int] = {}
        self._by_id: dict[int, tuple[Any, int]] = {}  # keeps the object, so that its id stays its own
        self._rows: list[tuple[DType, tuple[int, ...], bytes]] = []
        self._data: list[Any] = []
        self._strings: list[str] = []

    def __call__(self, array: Array) -> int:
        """The index of an array; ModelError if its elements cannot be stored."""
        known = self._by_id.get(id(array))
        if known is None:
            known = self._by_id[id(array)] = (array, self._add(np.asarray(array)))
        return known[1]

    def _add(self, array: np.ndarray[Any, Any]) -> int:
        dtype = DType.of(array.dtype)
        if dtype is DType.STRING:
            strings = array.ravel().tolist()
            if not all(isinstance(t, str) for t in strings):
                raise ModelError("an array of strings holds something else", hint="store strings as str")
            self._rows.append((dtype, array.shape, b"\0" * DIGEST))
            self._data.append(len(self._strings))
            self._strings += strings
            return len(self._rows) - 1
        flat = np.ascontiguousarray(array.astype(dtype.numpy, copy=False)).reshape(-1).view(np.uint8)
        digest = digest_of(flat)
        key = (dtype, array.shape, digest)
        if key not in self._index:
            self._index[key] = len(self._rows)
            self._rows.append(key)
            self._data.append(flat)
        return self._index[key]

    def content(self, places: Sequence[int]) -> dict[str, Any]:
        """The Arrays table, once the place of each array is known."""
        return {
            "dtype": [d.onnx for d, _, _ in self._rows],
            "rank": [len(s) for _, s, _ in self._rows],
            "dims": [n for _, s, _ in self._rows for n in s],
            "at": list(places),
            "digest": np.frombuffer(b"".join(d for _, _, d in self._rows), np.uint8),
            "strings": strings_content(self._strings),
        }

    def places(self, begin: int) -> tuple[list[int], int, int]:
        """The place of each array from `begin` on; where the small ones end, and where all of them end.

        Strings have the index of their first text instead.
        """
        at, places = begin, dict[int, int]()
        ends = []
        for small in (True, False):
            for i, data in enumerate(self._data):
                if isinstance(data, int):
                    places[i] = data
                elif (data.nbytes <= SMALL) is small:
                    places[i] = at
                    at += aligned(data.nbytes)
            ends.append(at)
        return [places[i] for i in range(len(self._data))], ends[0], ends[1]

    def parts(self, *, small: bool) -> Iterator[Any]:
        """The bytes of the small arrays or of the large ones, in the order of their places, each with its padding."""
        for data in self._data:
            if not isinstance(data, int) and (data.nbytes <= SMALL) is small:
                yield data
                yield b"\0" * (aligned(data.nbytes) - data.nbytes)


class Arrays:
    """The arrays of a file by number, as read-only views of the mapped bytes; made on first use.

    Raises ModelError where one lies outside of the file, BudgetError where one is too large.
    """

    def __init__(self, table: Table, mapped: Any, begin: int, budget: Budget) -> None:
        self._arguments = (table, mapped, begin, budget)

    @cached_property
    def _read(self) -> tuple[list[Array], list[Stored]]:
        return _read_arrays(*self._arguments)

    @property
    def stored(self) -> list[Stored]:
        """Locations of the arrays that are not of strings."""
        return self._read[1]

    def __getitem__(self, number: int) -> Array:
        return self._read[0][number]


def _read_arrays(table: Table, mapped: Any, begin: int, budget: Budget) -> tuple[list[Array], list[Stored]]:
    dtypes, ranks, places = (table.column(c) for c in ("dtype", "rank", "at"))
    dims, digests = table.column("dims"), table.raw("digest").tobytes()
    count = same_length(dtypes, ranks, places)
    if len(digests) != DIGEST * count or sum(ranks) != len(dims) or max(ranks, default=0) > MOST_DIMS:
        raise malformed("the columns of the arrays do not fit")
    strings = read_strings(table.table("strings"))
    limit, make = budget.tensor_elements, _maker(mapped)
    arrays: list[Array] = []
    stored: list[Stored] = []
    first = 0
    for i, (number, rank, at) in enumerate(zip(dtypes, ranks, places, strict=True)):
        dtype, shape = dtype_of(number), tuple(dims[first : first + rank])
        first += rank
        elements = math.prod(shape)
        if elements > limit:
            budget.check("tensor_elements", elements, f"elements of a stored array of dims {list(shape)}")
        if not elements and math.prod(filter(None, shape)) >= 1 << 60:
            raise malformed(f"an array has the dims {list(shape)}")
        if dtype is DType.STRING:
            arrays.append(_strings(strings, at, shape))
            continue
        nbytes = elements * dtype.itemsize
        if at % ALIGN or at < begin or at + nbytes > len(mapped):
            raise malformed(f"an array lies at bytes {at} to {at + nbytes} of {len(mapped)}")
        arrays.append(make(shape, dtype.numpy, at))
        stored.append(Stored(dtype, shape, at, digests[DIGEST * i : DIGEST * (i + 1)]))
    return arrays, stored


def _maker(mapped: Any) -> Callable[[tuple[int, ...], np.dtype[Any], int], Array]:
    view = memoryview(mapped)  # every view holds the mapping

    def make(shape: tuple[int, ...], dtype: np.dtype[Any], at: int) -> Array:
        if 0 in shape:
            return np.zeros(shape, dtype)
        return np.ndarray(shape, dtype, view, at)

    return make


def _strings(strings: Sequence[str], at: int, shape: tuple[int, ...]) -> Array:
    count = math.prod(shape)
    if at + count > len(strings):
        raise malformed("an array of strings has more elements than there are strings")
    array = np.empty(count, object)
    array[:] = strings[at : at + count]
    return array.reshape(shape)
