"""Shared memory lent to a server of the same machine, so that values between the two need not travel.

Who lends a segment says where its descriptor is, and keeps it open until the server has opened it by way of /proc; the
kernel lets processes of the same user alone do so. The boot of the kernel, the name and the number of the file tell
that it is the same one, whatever hosts and containers are called.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

from ..ops.errors import WireError
from .stream import Stream

NAME = "/memfd:mezzo (deleted)"  # of segments (host/memory.py), as the kernel tells it


class Place(NamedTuple):
    """The place of a segment of shared memory: which process has it open as which descriptor, and which file it is."""

    process: int
    file: int
    kernel: str
    node: int
    size: int


@cache
def _kernel() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def near(stream: Stream) -> bool:
    """True if both ends of a connection have one address, as those within a machine have."""
    try:
        return bool(stream.sock.getsockname()[0] == stream.sock.getpeername()[0])
    except (OSError, IndexError):
        return False


def keep(fd: int, size: int) -> Place:
    """Another descriptor of a segment, which stays open until `release`."""
    return Place(os.getpid(), os.dup(fd), _kernel(), os.fstat(fd).st_ino, size)


def release(place: Place) -> None:
    os.close(place.file)


def reach(place: Place) -> memoryview | None:
    """The bytes of a segment of another process; None where it cannot be reached from here."""
    if not place.kernel or place.kernel != _kernel():
        return None
    path = f"/proc/{place.process}/fd/{place.file}"
    try:
        if os.readlink(path) != NAME:  # before it is opened: to open a terminal or a device does something
            return None
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        about = os.fstat(fd)
        same = about.st_ino == place.node and 0 < place.size <= about.st_size
        if not same or os.readlink(f"/proc/self/fd/{fd}") != NAME:
            return None
        if not fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:  # whoever shrank it would end this process
            return None
        return memoryview(mmap.mmap(fd, place.size))
    except (OSError, ValueError, OverflowError):
        return None
    finally:
        os.close(fd)


def within(
    segments: Mapping[int, memoryview], name: str, number: int, at: int, *, nbytes: int, itemsize: int
) -> memoryview:
    """The bytes of a shard in a segment that the peer of this name has lent. Raises WireError."""
    memory = segments.get(number)
    if memory is None or at + nbytes > len(memory) or at % itemsize:
        raise WireError(f"bytes {at} to {at + nbytes} of segment {number} are not lent", where=name)
    return memory[at : at + nbytes]
