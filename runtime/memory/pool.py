"""Pools of memory: arrays that return to the pool by themselves, and are reused by later requests."""

from __future__ import annotations

import mmap
import threading
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from math import prod
from typing import Any, Protocol

import numpy as np

from ...ops import DType
from ...ops.dataclasses import replace
from ...ops.errors import BudgetError
from ...ops.types import Array
from .ledger import LARGEST_CUTOFF, Ledger, PoolStats, Rounding
from .liveness import ALIGN

Block = tuple[Any, int]  # what owns the bytes, and where they begin in it


class Lent(weakref.ref[Any]):
    """A weak reference to an allocated array: its views, and owners of it through DLPack, keep it alive."""

    __slots__ = ("block", "key", "number", "terms")
    block: Block | None
    key: int
    number: int  # among those that a watcher was told of, 0 if none was
    terms: tuple[int, int, str]  # the size of the block, the bytes that were asked for, who asked


class PoolWatcher(Protocol):
    """Observer of a pool's allocations and frees."""

    def took(self, number: int, nbytes: int, owner: str) -> None: ...

    def gave(self, number: int) -> None: ...


class Turn:
    """Mutual exclusion of threads at the ledger of a pool.

    Arrays die anywhere, within a turn too (Python looks for circles when it likes): what dies is noted down, and
    entered when the next turn begins, or this one ends.
    """

    __slots__ = ("_back", "_busy", "_lock", "ledger", "out", "watcher")

    def __init__(self, ledger: Ledger) -> None:
        self.ledger, self.out = ledger, dict[int, Lent]()  # by the ids of the arrays
        self.watcher: PoolWatcher | None = None
        self._back: deque[Lent] = deque()
        self._busy, self._lock = False, threading.RLock()

    def __enter__(self) -> Ledger:
        self._lock.acquire()
        self._busy = True
        while self._back:
            lent = self._back.popleft()
            if self.out.get(lent.key) is lent:
                del self.out[lent.key]
            self.ledger.give(*lent.terms, lent.block)
            if self.watcher is not None and lent.number:
                self.watcher.gave(lent.number)
        return self.ledger

    def __exit__(self, *_: object) -> None:
        self._busy = False
        self._lock.release()
        self._settle()

    def back(self, lent: Lent) -> None:
        """Return an array that is no longer in use."""
        self._back.append(lent)
        self._settle()

    def has(self, array: Any) -> bool:
        """True if this very array is in use."""
        lent = self.out.get(id(array))
        return lent is not None and lent() is array

    def _settle(self) -> None:
        while self._back and not self._busy:
            with self:
                pass


SMALL = Rounding("round", LARGEST_CUTOFF, 256)


class Pool:
    """A pool of arrays whose bytes return when no view, buffer or DLPack capsule of them is left.

    What lies ready is at most `keep` bytes (a quarter of the limit, if nothing is said). Raises BudgetError before
    `limit` bytes are passed; `what` tells what for.
    """

    def __init__(
        self,
        limit: int | None,
        rounding: Rounding = SMALL,
        keep: int | None = None,
        what: str = "values of data-dependent size",
    ) -> None:
        keep = (limit or 0) // 4 if keep is None else keep
        self._turn = Turn(Ledger(rounding, limit, keep, what))
        self._limit, self._room = limit, limit
        self._numbers = count(1)
        # called with a number of bytes before the pool takes so many, to make room beside it; outside of a turn
        self.before: Callable[[int], None] | None = None

    @property
    def room(self) -> int | None:
        """Bytes that a session's ceiling leaves beside its arenas, if that is less than the limit."""
        return self._room

    @room.setter
    def room(self, room: int | None) -> None:
        with self._turn as ledger:
            self._room = room
            ledger.limit = min((n for n in (self._limit, room) if n is not None), default=None)

    def set(self, rounding: Rounding, limit: int | None, keep: int) -> None:
        """Go on by other rules, and count anew. What is out stays out; what lies ready goes back to the system."""
        with self._turn as ledger:
            ledger.trim()
            ledger.rounding, ledger.limit, ledger.keep = rounding, limit, keep
            ledger.hits = ledger.misses = 0
            ledger.peak, ledger.peak_asked, ledger.peak_reserved = ledger.in_use, ledger.asked, ledger.in_use
            self._limit = self._room = limit

    def watch(self, watcher: PoolWatcher | None) -> None:
        """Tell somebody (nobody, for None) of what is handed out from now on."""
        with self._turn:
            self._turn.watcher = watcher
            for lent in list(self._turn.out.values()):
                lent.number = 0  # an earlier one's

    def take(self, dtype: DType, shape: tuple[int, ...]) -> Array:
        """An uninitialised array of one of our element types."""
        return self.empty(shape, dtype.numpy)

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any], owner: str = "") -> Array:
        """An uninitialised array."""
        nbytes = prod(shape) * dtype.itemsize
        if self.before is not None:
            self.before(nbytes)
        with self._turn as ledger:
            size, block = ledger.take(nbytes, owner)
        if block is None:
            block = self._made(size, nbytes, owner)
        array: Array = np.ndarray(shape, dtype, *block)
        self._lend(array, block, (size, nbytes, owner))
        return array

    def adopt(self, array: Array, owner: str = "") -> Array:
        """Count an array that was made elsewhere for as long as it lives."""
        root, nbytes = array if array.base is None else array.base, int(array.nbytes)
        if self.before is not None:
            self.before(nbytes)
        with self._turn as ledger:
            if self._turn.has(array) or self._turn.has(root):  # our own bytes, or adopted before
                return array
            ledger.take(nbytes, owner, nbytes)
        try:
            self._lend(root, None, (nbytes, nbytes, owner))
        except TypeError:  # it cannot be watched (a buffer of another library): nothing to give back later
            with self._turn as ledger:
                ledger.give(nbytes, nbytes, owner)
        return array

    def trim(self) -> int:
        """Give the blocks that lie ready back to the system; returns their bytes."""
        with self._turn as ledger:
            return ledger.trim()

    def held(self) -> int:
        """Bytes that are out or lie ready."""
        with self._turn as ledger:
            return ledger.in_use + ledger.idle

    def stats(self) -> PoolStats:
        """A consistent snapshot."""
        with self._turn as ledger:
            return replace(ledger.stats(), limit=self._limit)

    def _made(self, size: int, nbytes: int, owner: str) -> Block:
        """A new block. Raises BudgetError where the system has no memory for it, not even after a trim."""
        make = _own if self._turn.ledger.rounding.kind == "unpooled" else _block
        try:
            return make(size)
        except (MemoryError, OSError):
            self.trim()
        try:
            return make(size)
        except (MemoryError, OSError) as error:
            with self._turn as ledger:
                ledger.give(size, nbytes, owner)
            raise BudgetError(f"the system has no {size} bytes left for {self._turn.ledger.what}") from error

    def _lend(self, array: Any, block: Block | None, terms: tuple[int, int, str]) -> None:
        turn = self._turn
        lent = Lent(array, turn.back)
        lent.block, lent.terms, lent.key, lent.number = block, terms, id(array), 0
        turn.out[lent.key] = lent
        if turn.watcher is not None:
            with turn:
                if turn.watcher is not None:
                    lent.number = next(self._numbers)
                    turn.watcher.took(lent.number, *terms[1:])


class Owned(np.ndarray[Any, Any]):
    """Bytes of NumPy's as the base of arrays. Being of another class, it keeps NumPy from collapsing it as a base:
    every view of an array over it then keeps that array alive."""


MAPPED = 1 << 17  # from here on memory is asked of the system itself, and is given back to it for certain


def _block(nbytes: int) -> Block:
    if nbytes >= 2 * HUGE_PAGE and hasattr(mmap, "MADV_HUGEPAGE"):
        return _in_large_pages(nbytes)
    if nbytes >= MAPPED and hasattr(mmap, "MAP_ANONYMOUS"):
        return mmap.mmap(-1, nbytes, PRIVATE), 0
    return _own(nbytes)


def _own(nbytes: int) -> Block:
    raw = np.ndarray.__new__(Owned, (nbytes + ALIGN,), np.uint8)
    return raw, -raw.ctypes.data % ALIGN


def aligned_empty(nbytes: int) -> np.ndarray[Any, Any]:
    """Uninitialised bytes whose address is a multiple of ALIGN; many of them in large pages, where the system has such.

    Large pages spare kernels that stride over megabytes most of their misses in the processor's table of pages.
    """
    if nbytes >= 2 * HUGE_PAGE and hasattr(mmap, "MADV_HUGEPAGE"):
        memory, start = _in_large_pages(nbytes)
        return np.frombuffer(memory, np.uint8)[start : start + nbytes]
    raw = np.empty(nbytes + ALIGN, np.uint8)
    start = -raw.ctypes.data % ALIGN
    return raw[start : start + nbytes]


HUGE_PAGE = 2 << 20
# shared pages are slower to come by, and large only where the system says so for them too
PRIVATE = getattr(mmap, "MAP_PRIVATE", 0) | getattr(mmap, "MAP_ANONYMOUS", 0)


def _in_large_pages(nbytes: int) -> tuple[mmap.mmap, int]:
    memory = mmap.mmap(-1, (-(-nbytes // HUGE_PAGE) + 1) * HUGE_PAGE, PRIVATE)
    with suppress(OSError):  # a kernel without large pages: small ones do
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory, -np.frombuffer(memory, np.uint8).ctypes.data % HUGE_PAGE
