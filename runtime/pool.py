"""Memory for values whose size is known only while a program runs: bounded, reused, given back by itself."""

from __future__ import annotations

import mmap
import threading
import weakref
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..ops import DType
from ..ops.errors import BudgetError
from ..ops.types import Array
from .lives import ALIGN


@dataclass(frozen=True, slots=True)
class PoolStats:
    """Bytes handed out now, the most there ever were, and bytes kept for reuse."""

    used: int
    peak: int
    idle: int
    limit: int


class Pool:
    """Hands out arrays whose bytes return when the last view of them is gone.

    Blocks come in powers of two, so that changing sizes reuse the same bytes. Raises BudgetError before `limit` bytes
    are passed.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.room: int | None = None  # what a session's ceiling leaves beside its arenas
        self._lock = threading.RLock()  # a block may return while another is being handed out
        self._free: dict[int, list[np.ndarray[Any, Any]]] = {}
        self._watched: set[int] = set()  # ids of the arrays that own what is handed out
        self._used = self._peak = self._idle = 0

    def take(self, dtype: DType, shape: tuple[int, ...]) -> Array:
        """An uninitialised array."""
        nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        size = max(256, 1 << (nbytes - 1).bit_length()) if nbytes else 256
        with self._lock:
            self._count(size)
            kept = self._free.get(size)
            block = kept.pop() if kept else None
            if block is not None:
                self._idle -= size
        if block is None:
            block = aligned_empty(size)
        # a memoryview as base keeps numpy from looking through it: every view then holds this array alive
        handed = np.frombuffer(block.data, np.uint8)
        with self._lock:
            self._watched.add(id(handed))
        weakref.finalize(handed, self._give, block, id(handed)).atexit = False
        return handed[:nbytes].view(dtype.numpy).reshape(shape)

    def adopt(self, array: Array) -> Array:
        """Count an array that a reference has made for as long as it lives."""
        owner = array if array.base is None else array.base
        size = int(array.nbytes)
        with self._lock:
            if id(owner) in self._watched:  # our own bytes, or adopted before
                return array
            self._count(size)
            self._watched.add(id(owner))
        try:
            weakref.finalize(owner, self._uncount, size, id(owner)).atexit = False
        except TypeError:  # the owner cannot be watched (a buffer of another library): nothing to give back later
            self._uncount(size, id(owner))
        return array

    def trim(self) -> int:
        """Release the bytes kept for reuse; returns how many."""
        with self._lock:
            released, self._idle = self._idle, 0
            self._free.clear()
        return released

    def held(self) -> int:
        """Bytes handed out and kept."""
        with self._lock:
            return self._used + self._idle

    def stats(self) -> PoolStats:
        with self._lock:
            return PoolStats(self._used, self._peak, self._idle, self.limit)

    def _count(self, size: int) -> None:
        limit = self.limit if self.room is None else min(self.limit, self.room)
        if self._used + self._idle + size > limit:
            self.trim()
        if self._used + size > limit:
            raise BudgetError(
                f"{size} bytes more than the {self._used} in use would pass the limit of {limit} bytes for "
                "values of data-dependent size",
                hint="raise Budget(dynamic_bytes=...) or max_memory, or feed smaller inputs",
            )
        self._used += size
        self._peak = max(self._peak, self._used)

    def _uncount(self, size: int, owner: int) -> None:
        with self._lock:
            self._used -= size
            self._watched.discard(owner)

    def _give(self, block: np.ndarray[Any, Any], owner: int) -> None:
        with self._lock:
            self._used -= block.nbytes
            self._watched.discard(owner)
            if self._idle + block.nbytes <= self.limit // 4:
                self._idle += block.nbytes
                self._free.setdefault(block.nbytes, []).append(block)


def aligned_empty(nbytes: int) -> np.ndarray[Any, Any]:
    """Uninitialised bytes whose address is a multiple of ALIGN; many of them in large pages, where the system has such.

    Large pages spare kernels that stride over megabytes most of their misses in the processor's table of pages.
    """
    if nbytes >= 2 * HUGE_PAGE and hasattr(mmap, "MADV_HUGEPAGE"):
        return _in_large_pages(nbytes)
    raw = np.empty(nbytes + ALIGN, np.uint8)
    start = -raw.ctypes.data % ALIGN
    return raw[start : start + nbytes]


HUGE_PAGE = 2 << 20


def _in_large_pages(nbytes: int) -> np.ndarray[Any, Any]:
    size, flags = (-(-nbytes // HUGE_PAGE) + 1) * HUGE_PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    memory = mmap.mmap(-1, size, flags)  # private: shared pages are large only where the system says so for them too
    with suppress(OSError):  # a kernel without large pages: small ones do
        memory.madvise(mmap.MADV_HUGEPAGE)
    raw = np.frombuffer(memory, np.uint8)
    start = -raw.ctypes.data % HUGE_PAGE
    return raw[start : start + nbytes]
