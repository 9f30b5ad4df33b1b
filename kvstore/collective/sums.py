"""Sums of the ranks' arrays in the order of the ranks, so that they have the same bits in every run."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from ...ops.types import Array

BLOCK = 1 << 15  # elements that are added at a time: they stay in the cache
NARROW = 2  # bytes: what has no more is added in float32, and rounded once


def sum_in_order(operands: Sequence[Array], out: Array) -> None:
    """Write the sum of flat arrays, from the first to the last; `out` may be one of them. Floats of 16 bits are added
    in float32, and rounded once.

    >>> parts = [np.array([1e8, 1.0], np.float32), np.array([1.0, 2.0], np.float32), np.array([-1e8, 3], np.float32)]
    >>> sum_in_order(parts, parts[1])
    >>> parts[1]
    array([0., 6.], dtype=float32)
    """
    first, *others = operands
    narrow = first.dtype.itemsize == NARROW and first.dtype.kind not in "iu"
    total = np.empty(min(BLOCK, len(first)), np.float32 if narrow else first.dtype)
    for begin in range(0, len(first), BLOCK):
        part = slice(begin, begin + BLOCK)
        block = total[: len(first[part])]
        block[...] = first[part]
        for other in others:
            np.add(block, other[part], out=block)
        out[part] = block


def shares(count: int, ranks: int) -> list[slice]:
    """The slice of `count` elements that each rank adds up, as equal as can be.

    >>> shares(5, 2)
    [slice(0, 3, None), slice(3, 5, None)]
    """
    ends = [-(-count * r // ranks) for r in range(ranks + 1)]
    return [slice(a, b) for a, b in pairwise(ends)]
