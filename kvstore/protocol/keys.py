"""The keys of a server: shapes and types known before any data arrives, and the split of each key over servers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from zlib import crc32

import numpy as np

from ...ops.errors import BudgetError, InputError, ShapeError
from ...ops.types import Array, DType
from .messages import FRAME, Init

ALIGNMENT = 64  # bytes: shards and the ranges inside them begin at multiples
SPLIT = 256 << 10  # bytes: longer keys are split over all servers
OWN = "mezzo/sum/"  # how the store's own keys begin, whose rounds are sums whatever the optimizer
MOST_DIMS = 32
MOST_BYTES = 1 << 46  # of one array; what a server really takes is its own limit


@cache
def element(dtype: str) -> DType:
    """The element type of this name; InputError if values cannot have it.

    >>> element("float32").itemsize
    4
    """
    for known in DType:
        if known is not DType.STRING and str(known) == dtype:
            return known
    raise InputError(f"there are no values of type {dtype[:40]!r}", hint="use float32, float64, float16, bfloat16...")


@dataclass(frozen=True, slots=True)
class Shard:
    """The bytes [lo, hi) of an array, on one server."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    lo: int
    hi: int

    @property
    def nbytes(self) -> int:
        return self.hi - self.lo

    @property
    def whole(self) -> bool:
        """True if the shard is the whole array."""
        return self.nbytes == math.prod(self.shape) * element(self.dtype).itemsize

    @classmethod
    def of(cls, init: Init) -> Shard:
        """Return the shard that an Init declares. Raises ShapeError or InputError if there can be no such shard.

        >>> Shard.of(Init("w", "float32", (4, 4), 0, 64)).whole
        True
        """
        where = f"key {init.name!r}"
        try:
            size = element(init.dtype).itemsize
        except InputError as error:
            raise error.at(where) from None
        total = math.prod(init.shape) * size
        if len(init.shape) > MOST_DIMS or min(init.shape, default=0) < 0 or total > MOST_BYTES:
            raise ShapeError(f"no array has the shape {init.shape}", where=where)
        if not 0 <= init.lo <= init.hi <= total or init.lo % size or init.hi % size:
            raise ShapeError(f"bytes {init.lo} to {init.hi} are no part of an array of {total} bytes", where=where)
        return cls(init.name, init.dtype, init.shape, init.lo, init.hi)

    def __str__(self) -> str:
        part = "" if self.whole else f", bytes {self.lo} to {self.hi}"
        return f"{self.dtype}{list(self.shape)}{part}"


class Keys(Mapping[int, Shard]):
    """The shards of one server, by the small integer that goes over the wire; `wire.check` reads it. `names` of ranks
    are for errors.

    >>> keys = Keys(most_bytes=1000)
    >>> keys.admit(Init("w", "float32", (4,), 0, 16))
    1
    >>> keys[1].nbytes
    16
    """

    def __init__(self, most_bytes: int, names: Sequence[str] = ()) -> None:
        self.most_bytes, self._names = most_bytes, names
        self.nbytes = 0
        self._shards: list[Shard] = []
        self._ids: dict[str, int] = {}
        self._first: list[int] = []  # the rank that declared it first

    def admit(self, init: Init) -> int:
        """The key's number, a new one if the name is new.

        Raises InputError where it was declared differently, BudgetError beyond `most_bytes`; nothing has changed then.
        """
        shard = Shard.of(init)
        known = self._ids.get(init.name)
        if known is not None:
            if self[known] != shard:
                first = self._name(self._first[known - 1])
                raise InputError(
                    f"{self._name(init.rank)} declares {shard}, {first} declared {self[known]}",
                    where=f"key {init.name!r}",
                    hint="call init with the same shape and element type on every worker",
                )
            return known
        if self.nbytes + shard.nbytes > self.most_bytes:
            raise BudgetError(
                f"{shard} after {self.nbytes} bytes of others passes the {self.most_bytes} bytes of MEZZO_KV_MEMORY",
                where=f"key {init.name!r}",
                hint="start more servers, or raise MEZZO_KV_MEMORY",
            )
        self.nbytes += shard.nbytes
        self._shards.append(shard)
        self._first.append(init.rank)
        self._ids[init.name] = len(self._shards)
        return len(self._shards)

    def withdraw(self, key: int) -> None:
        """Forget the newest key, for which there is no memory: the next one has its number, as it has in a server that
        is started again and never heard of this one."""
        assert key == len(self._shards)
        shard = self._shards.pop()
        self._first.pop()
        del self._ids[shard.name]
        self.nbytes -= shard.nbytes

    def first(self, key: int) -> int:
        """The rank that has declared a key first."""
        return self._first[key - 1]

    def _name(self, rank: int) -> str:
        return self._names[rank] if self._names else f"rank {rank}"

    def __getitem__(self, key: int) -> Shard:
        if not 1 <= key <= len(self._shards):
            raise KeyError(key)
        return self._shards[key - 1]

    def __iter__(self) -> Iterator[int]:
        return iter(range(1, len(self._shards) + 1))

    def __len__(self) -> int:
        return len(self._shards)


def cut(nbytes: int, parts: int, alignment: int = ALIGNMENT) -> tuple[tuple[int, int], ...]:
    """Ranges that share `nbytes` out evenly, each beginning at a multiple of `alignment`; late ones may be empty.

    >>> cut(1000, 2)
    ((0, 512), (512, 1000))
    """
    blocks = -(-nbytes // alignment)
    edges = [min(nbytes, blocks * i // parts * alignment) for i in range(parts + 1)]
    return tuple(pairwise(edges))


def place(name: str, dtype: str, shape: tuple[int, ...], servers: int, split: int = SPLIT) -> dict[int, Shard]:
    """Return, by server, the part of this array that it holds: an even share beyond `split` bytes, else all on one.

    The server depends on the name alone, so that every rank finds the same one in whatever order keys are declared.
    Raises ShapeError, InputError.

    >>> {s: p.nbytes for s, p in place("w", "float32", (1000, 1000), 2).items()}
    {0: 2000000, 1: 2000000}
    """
    nbytes = math.prod(shape) * element(dtype).itemsize
    whole = Shard.of(Init(name, dtype, shape, 0, nbytes))
    if servers < 1:
        raise InputError("there is no server to hold it", where=f"key {name!r}")
    if nbytes <= split or servers == 1:
        return {crc32(name.encode()) % servers: whole}
    return {s: replace(whole, lo=a, hi=b) for s, (a, b) in enumerate(cut(nbytes, servers)) if b > a}


def slices(rows: Array, width: int, shard: Shard) -> Iterator[tuple[Array, int, int]]:
    """Yield the parts of these rows (int64) of `width` bytes that a shard holds: groups of indices into `rows`, and the
    bytes [lo, hi) of each of those rows. A group, and its list of indices, fit into a frame.

    >>> for which, lo, hi in slices(np.array([3, 0, 1, 0]), 8, Shard("w", "float32", (4, 2), 0, 12)):
    ...     print(which, lo, hi)
    [2] 0 4
    [1 3] 0 8
    """
    for first in range(0, width, FRAME):
        last = min(first + FRAME, width)
        lo, hi = (np.clip(edge - rows * width, first, last) for edge in (shard.lo, shard.hi))
        for a, b in np.unique(np.stack([lo, hi], 1)[hi > lo], axis=0).tolist():
            which = np.flatnonzero((lo == a) & (hi == b))
            most = FRAME // max(b - a, 8)
            for at in range(0, len(which), most):
                yield which[at : at + most], a, b
