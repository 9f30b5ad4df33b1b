"""Allocation of CPU memory for operators and programs: from the pool of arrays, or from NumPy where that is quicker.

Fresh pages of the system have to be cleared and entered in the table of pages, which takes longer than adding two
arrays does: blocks that come back lie ready for the next array of their size. `mz.memory` tells of them.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from ...ops.types import Array
from .ledger import Rounding
from .pool import Pool

LEAST = 1 << 18  # bytes of an array: below, NumPy and malloc have them ready as soon
KEEP = 1 << 28  # bytes that may lie ready, if nothing is said
# exact sizes suit programs that repeat themselves a little better, and keep all there were where lengths change
USUAL = Rounding("round", 20)
POOL = Pool(None, USUAL, KEEP, "arrays")


def new_array(shape: tuple[int, ...], dtype: np.dtype[Any], owner: str) -> Array:
    """An uninitialised array for a result. Raises BudgetError where the pool's limit would be passed."""
    if prod(shape) * dtype.itemsize < LEAST:
        return np.empty(shape, dtype)
    return POOL.empty(shape, dtype, owner)


def copied(array: Array, owner: str) -> Array:
    """A copy, row after row."""
    if array.nbytes < LEAST:
        return np.array(array)
    copy = POOL.empty(array.shape, array.dtype, owner)
    np.copyto(copy, array)
    return copy


def counted(array: Array, owner: str) -> Array:
    """An array that an operator has made in memory of its own: it counts, and lies in no block of the pool."""
    return array if array.nbytes < LEAST else POOL.adopt(array, owner)


def owned(value: Any) -> Any:
    """A dynamic result as the caller's own array: bytes of the pool go back, lists no longer share their elements."""
    if isinstance(value, list):
        return [owned(v) for v in value]
    return np.array(value) if isinstance(value, np.ndarray) else value
