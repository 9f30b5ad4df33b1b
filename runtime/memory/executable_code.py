"""Memory for machine code: written first, executable afterwards, and never both at once."""

from __future__ import annotations

import ctypes
import mmap
import os

import numpy as np


class ExecutableCode:
    """Machine code in memory that may be read and executed. Its `address` holds as long as the object lives.

    Raises OSError where the system grants no such memory.
    """

    __slots__ = ("_array", "_memory", "address")

    def __init__(self, code: bytes) -> None:
        self._memory = _mapped(code)
        self._array = np.frombuffer(self._memory, np.uint8)
        self.address = int(self._array.ctypes.data)


def _mapped(code: bytes) -> mmap.mmap:
    size = -(-len(code) // mmap.PAGESIZE) * mmap.PAGESIZE
    try:
        return _from_file(code, size)
    except (AttributeError, OSError):  # no such files here, or none that may be executed
        return _protected(code, size)


def _from_file(code: bytes, size: int) -> mmap.mmap:
    """A file without a name, mapped."""
    file = os.memfd_create("mezzo", os.MFD_CLOEXEC)
    try:
        os.truncate(file, size)
        os.pwrite(file, code, 0)
        return mmap.mmap(file, size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_EXEC)
    finally:
        os.close(file)


def _protected(code: bytes, size: int) -> mmap.mmap:
    """Memory of this process alone, that is no longer written to."""
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.write(code)
    place = ctypes.c_char.from_buffer(memory)
    address = ctypes.addressof(place)
    del place
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    protect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    if protect(address, size, mmap.PROT_READ | mmap.PROT_EXEC):
        number = ctypes.get_errno()
        memory.close()
        raise OSError(number, os.strerror(number))
    return memory
