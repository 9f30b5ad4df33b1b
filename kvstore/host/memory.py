"""Shared memory between the processes of a host: segments without a name, which end with the last process that maps
them.

A segment is an anonymous file of the kernel (memfd); its descriptor goes to the others over their sockets, and is
closed when it has been mapped. So nothing has to be unlinked, and nothing is left when processes are killed.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import weakref
from bisect import bisect_right
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...ops.errors import BudgetError, MezzoError
from ...ops.types import Array

ALIGN = 64  # bytes: arrays and the parts of them that members reduce begin at multiples
KNOWN = 4096  # arrays whose places are remembered


@dataclass(slots=True, eq=False)
class Segment:
    """Mapped bytes. `number` counts the segments of the member that made it."""

    number: int
    memory: mmap.mmap
    size: int
    address: int = 0

    def array(self, offset: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """An array in these bytes; MezzoError where it would end outside."""
        count = int(np.prod(shape, dtype=np.int64))
        if offset < 0 or offset + count * dtype.itemsize > self.size:
            raise MezzoError(
                f"{dtype}{list(shape)} at byte {offset} ends outside of a segment of {self.size} bytes", where="level 1"
            )
        return np.frombuffer(self.memory, dtype, count, offset).reshape(shape)


def create(size: int, where: str = "level 1") -> int:
    """The descriptor of a new segment, of zeros. Raises BudgetError where there is no such memory."""
    if not hasattr(os, "memfd_create"):
        raise MezzoError(
            "this system has no anonymous shared memory",
            where=where,
            hint="level 1 needs Linux; give each worker a MEZZO_HOST of its own, and servers (-s 1)",
        )
    room = available()
    if size > room:
        raise BudgetError(
            f"{size} bytes of shared memory, where {room} are free", where=where, hint="fewer or smaller values"
        )
    try:
        fd = os.memfd_create("mezzo", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.posix_fallocate(fd, 0, max(size, 1))  # now, and not by a signal when it is written
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        except BaseException:
            os.close(fd)
            raise
    except OSError as error:
        raise BudgetError(
            f"{size} bytes of shared memory cannot be had: {error}", where=where, hint="fewer or smaller values"
        ) from error
    return fd


def available() -> int:
    """Bytes that may be taken, as the kernel tells."""
    with open("/proc/meminfo", encoding="ascii") as lines:
        for line in lines:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")


def attach(number: int, fd: int) -> Segment:
    """Map a segment. The descriptor stays the caller's."""
    size = os.fstat(fd).st_size
    memory = mmap.mmap(fd, size)
    return Segment(number, memory, size, np.frombuffer(memory, np.uint8).ctypes.data)


class SharedPlaces:
    """Locations of arrays: the segments that this member has handed out, by address.

    >>> places = SharedPlaces()
    >>> segment = attach(3, fd := create(4096)); os.close(fd)
    >>> places.add(segment)
    >>> array = segment.array(64, (2, 3), np.dtype(np.float32))
    >>> places.find(array[1:]), places.find(array.T), places.find(np.zeros(3))
    ((3, 76), None, None)
    >>> del array, segment
    >>> places.dropped()
    [3]
    """

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._found: list[tuple[int, int]] = []  # end, number
        self._gone: deque[tuple[int, int]] = deque()  # start, number of segments that nobody holds any more
        self._dropped: list[int] = []
        self._known: dict[int, tuple[weakref.ref[Array], tuple[int, int]]] = {}  # by the array's id: they come again

    def add(self, segment: Segment) -> None:
        """Remember a segment, as long as an array of it lives."""
        self._forget()
        at = bisect_right(self._starts, segment.address)
        self._starts.insert(at, segment.address)
        self._found.insert(at, (segment.address + segment.size, segment.number))
        last = weakref.finalize(segment.memory, self._gone.append, (segment.address, segment.number))
        last.atexit = False

    def find(self, array: Array) -> tuple[int, int] | None:
        """The segment and the byte where an array lies, if it lies in one, in one piece and in order."""
        if self._gone:
            self._forget()
        if not self._starts or not array.flags.c_contiguous:
            return None
        known = self._known.get(id(array))
        if known is not None and known[0]() is array:
            return known[1]
        address: int = array.__array_interface__["data"][0]
        at = bisect_right(self._starts, address) - 1
        if at < 0:
            return None
        end, number = self._found[at]
        if address + array.nbytes > end:
            return None
        if len(self._known) >= KNOWN:
            self._known.clear()
        place = number, address - self._starts[at]
        self._known[id(array)] = weakref.ref(array), place
        return place

    def dropped(self) -> list[int]:
        """Segments whose last array has gone since the last call."""
        self._forget()
        made, self._dropped = self._dropped, []
        return made

    def _forget(self) -> None:
        """Remove the segments that are gone, before the kernel can reuse their addresses."""
        while self._gone:
            start, number = self._gone.popleft()
            at = bisect_right(self._starts, start) - 1
            del self._starts[at], self._found[at]
            self._dropped.append(number)
