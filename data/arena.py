"""Memory of batches: `empty` makes an array where the batch of this thread lies, in a worker in shared memory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from ..ops.types import Array

Allocate = Callable[[tuple[int, ...], np.dtype[Any]], Array]


class _Allocating(threading.local):
    """The way to make arrays in this thread."""

    allocate: Allocate | None = None


_NOW = _Allocating()


def empty(shape: Sequence[int], dtype: Any) -> Array:
    """An array for a batch, with whatever numbers its memory holds.

    A batchify function that fills such arrays spares the worker a copy.
    """
    if _NOW.allocate is None:
        return np.empty(tuple(shape), dtype)
    return _NOW.allocate(tuple(shape), np.dtype(dtype))


@contextmanager
def allocating(allocate: Allocate | None) -> Iterator[None]:
    """Let `empty` make arrays by this function inside of the block."""
    before, _NOW.allocate = _NOW.allocate, allocate
    try:
        yield
    finally:
        _NOW.allocate = before
