"""Shared memory of batches: segments that a worker fills, the trainer reads, and gives back when it is done with them.

A segment is an anonymous file of the kernel: it has no name, so nothing is left of it when processes die. The trainer
gives one back when the last array that lies in it is gone; the worker then fills it again, so that memory is mapped and
cleared once and not for every batch.
"""

from __future__ import annotations

import weakref
from collections import deque
from typing import Any

import numpy as np

from ..kvstore.host.memory import Segment, attach, create
from ..ops.types import Array

ALIGN = 64
LEAST = 1 << 16  # bytes of a segment
MOST_FREE = 8  # segments that a worker keeps for later


class Arena:
    """The worker's side: memory for one batch at a time. `fresh` has descriptors that the trainer does not have yet,
    `dropped` the numbers of segments that are of no more use."""

    def __init__(self) -> None:
        self.free: list[Segment] = []
        self.lent: dict[int, Segment] = {}
        self.fresh: list[tuple[int, int]] = []  # number, descriptor
        self.dropped: list[int] = []
        self.used: list[Segment] = []
        self._at = self._count = 0
        self._usual = 0  # bytes of the last batch

    def begin(self) -> None:
        """A new batch begins."""
        self.used, self._at = [], 0

    def allocate(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """An array of this batch."""
        count = int(np.prod(shape, dtype=np.int64))
        nbytes = count * dtype.itemsize
        if not self.used or self._at + nbytes > self.used[-1].size:
            self.used.append(self._segment(nbytes if self.used else max(nbytes, self._usual)))
            self._at = 0
        array = self.used[-1].array(self._at, shape, dtype) if nbytes else np.empty(shape, dtype)
        self._at += -(-nbytes // ALIGN) * ALIGN
        return array

    def place(self, array: Array) -> tuple[int, int]:
        """The segment and the offset where an array of the batch lies; one from elsewhere is copied."""
        if not array.nbytes:
            return -1, 0
        place = self._where(array)
        if place is None:
            copy = self.allocate(array.shape, array.dtype)
            copy[...] = array
            place = self._where(copy)
        assert place is not None
        return place

    def _where(self, array: Array) -> tuple[int, int] | None:
        if not array.flags.c_contiguous:
            return None
        for segment in self.used:
            offset = array.ctypes.data - segment.address
            if offset >= 0 and offset + array.nbytes <= segment.size:
                return segment.number, offset
        return None

    def lend(self) -> list[int]:
        """The batch is done: its segments are the trainer's until it gives them back. Returns their numbers."""
        self._usual = max(sum(s.size for s in self.used), LEAST) if self.used else self._usual
        self.lent |= {s.number: s for s in self.used}
        numbers = [s.number for s in self.used]
        self.used = []
        return numbers

    def cancel(self) -> None:
        """The batch came to nothing."""
        self.free += self.used
        self.used = []

    def take_back(self, numbers: list[int]) -> None:
        """Segments that the trainer is done with."""
        self.free += [self.lent.pop(n) for n in numbers if n in self.lent]
        while len(self.free) > MOST_FREE:
            self.dropped.append(self.free.pop(0).number)

    def _segment(self, nbytes: int) -> Segment:
        fitting = [s for s in self.free if s.size >= nbytes]
        if fitting:
            best = min(fitting, key=lambda s: s.size)
            self.free.remove(best)
            return best
        if self.free:  # all are too small: batches have grown
            self.dropped.append(self.free.pop(0).number)
        size = -(-max(nbytes, LEAST) // 4096) * 4096
        fd = create(size, "DataLoader")
        segment = attach(self._count, fd)
        self.fresh.append((self._count, fd))
        self._count += 1
        return segment


class Borrowed:
    """The trainer's side: the segments of one worker. `back` has the numbers of those that it is done with."""

    def __init__(self) -> None:
        self.segments: dict[int, Segment] = {}
        self.back: deque[int] = deque()

    def add(self, number: int, fd: int) -> None:
        """Map a segment; the descriptor stays the caller's."""
        self.segments[number] = attach(number, fd)

    def lease(self, numbers: list[int]) -> dict[int, Array]:
        """The bytes of segments; one goes back when nobody holds its array any more."""
        leased = {}
        for number in numbers:
            segment = self.segments[number]
            raw: Array = np.frombuffer(segment.memory, np.uint8)
            end = weakref.finalize(raw, self.back.append, number)
            end.atexit = False
            leased[number] = raw
        return leased

    def returned(self) -> list[int]:
        """The numbers of segments that have come back since the last call."""
        numbers = []
        while self.back:
            numbers.append(self.back.popleft())
        return numbers


def view(raw: Array, offset: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """An array in leased bytes, which it keeps alive."""
    nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    return raw[offset : offset + nbytes].view(dtype).reshape(shape)
