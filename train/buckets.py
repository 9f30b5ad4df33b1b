"""Flat buckets: the gradients of several parameters behind each other, which travel as one; and the part of each that a
rank keeps, where optimizer states are shared out (ZeRO: Rajbhandari et al. 2020, arXiv 1910.02054)."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from ..ops import DType
from ..ops.types import Array

LEAST, MOST, MANY = 1 << 20, 25 << 20, 8  # bytes of a bucket; how many a step has, between these sizes
KEY = "bucket "


@dataclass(frozen=True, slots=True)
class Piece:
    """Elements `begin` to `end` of a parameter that is laid out flat."""

    name: str
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Bucket:
    """Parameters whose gradients travel together, in the order in which they are made. The bucket is padded with zeros
    to `workers` parts of `each` elements.

    >>> bucket = Bucket("bucket 0", ("w", "b"), ((2, 2), (3,)), DType.FLOAT, 2)
    >>> bucket.count, bucket.each, bucket.padding
    (7, 4, 1)
    >>> bucket.pieces(0)
    (Piece(name='w', begin=0, end=4),)
    >>> bucket.pieces(1)
    (Piece(name='b', begin=0, end=3),)
    """

    key: str
    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtype: DType
    workers: int

    @property
    def sizes(self) -> tuple[int, ...]:
        """Elements of each parameter."""
        return tuple(map(prod, self.shapes))

    @property
    def count(self) -> int:
        """Elements of all parameters."""
        return sum(self.sizes)

    @property
    def each(self) -> int:
        """Elements of one worker's part."""
        return -(-self.count // self.workers)

    @property
    def padding(self) -> int:
        return self.each * self.workers - self.count

    @property
    def places(self) -> dict[str, int]:
        """The first element of each parameter."""
        ends = np.cumsum((0, *self.sizes)).tolist()
        return dict(zip(self.names, ends, strict=False))

    def pieces(self, rank: int) -> tuple[Piece, ...]:
        """The pieces of parameters that lie in a worker's part; padding stands behind them."""
        begin, end = rank * self.each, (rank + 1) * self.each
        places = zip(self.places.items(), self.sizes, strict=True)
        inside = (Piece(n, max(begin, at) - at, min(end, at + size) - at) for (n, at), size in places)
        return tuple(piece for piece in inside if piece.begin < piece.end)

    def flat(self, arrays: Mapping[str, Array], rank: int) -> Array:
        """A worker's part of arrays that have the shapes of the parameters."""
        part = np.zeros(self.each, next(iter(arrays.values())).dtype)
        at = 0
        for piece in self.pieces(rank):
            size = piece.end - piece.begin
            part[at : at + size] = arrays[piece.name].reshape(-1)[piece.begin : piece.end]
            at += size
        return part

    def whole(self, parts: Sequence[Array]) -> dict[str, Array]:
        """The arrays of the parameters from the parts of all workers."""
        flat = np.concatenate(parts)
        shaped = zip(self.places.items(), self.shapes, strict=True)
        return {n: flat[at : at + prod(shape)].reshape(shape) for (n, at), shape in shaped}


def bytes_of_one(total: int) -> int:
    """The bytes that a bucket has at most: so many that a step has several, of which the first leaves early.

    >>> bytes_of_one(100), bytes_of_one(96 << 20) >> 20, bytes_of_one(1 << 40) >> 20
    (1048576, 12, 25)
    """
    return min(MOST, max(LEAST, total // MANY))


def buckets_of(
    parameters: Mapping[str, Array], order: Sequence[str], alike: Callable[[str], Hashable], workers: int, most: int = 0
) -> tuple[Bucket, ...]:
    """The buckets of parameters, whose gradients are made in this order. Each has at most `most` bytes (0: as their
    sizes want), unless one parameter has more, and holds what is `alike` and has one element type."""
    most = most or bytes_of_one(sum(parameters[n].nbytes for n in order))
    groups: list[list[str]] = []
    last: tuple[Hashable, int] | None = None
    for name in order:
        kind, size = (alike(name), parameters[name].dtype), parameters[name].nbytes
        if last is None or last[0] != kind or last[1] + size > most:
            groups.append([])
            last = kind, 0
        groups[-1].append(name)
        last = kind, last[1] + size
    return tuple(
        Bucket(f"{KEY}{i}", tuple(names), tuple(parameters[n].shape for n in names),
               DType.of(parameters[names[0]].dtype), workers)
        for i, names in enumerate(groups)
    )  # fmt: skip
