"""Model files that stay mapped: their weights are views of the file, which takes no memory of the process's own.

Planning reads them. Programs read packed forms or copies, so that a run never depends on the file, and the pages of a
weight leave memory again as soon as something else stands for it.
"""

from __future__ import annotations

import mmap
import os
from typing import Any, BinaryIO, Self
from weakref import finalize

import numpy as np

from ...ops.errors import ModelError
from ...ops.types import Array
from .liveness import ALIGN

# Elsewhere, as on Windows, a map would hinder others to replace the file.
CAN_GIVE_BACK = hasattr(mmap, "MADV_DONTNEED") and hasattr(os, "preadv")


class ModelFile(mmap.mmap):
    """The map of an open file, which may be closed, renamed or deleted afterwards. `begin` is its address."""

    name: str
    begin: int
    _file: int
    _stamp: tuple[int, int]

    @classmethod
    def of(cls, file: BinaryIO, name: str) -> Self:
        """Map a file that is not empty; errors call it by `name`."""
        mapped = cls(file.fileno(), 0, access=mmap.ACCESS_READ)
        mapped.name, mapped.begin = name, int(np.frombuffer(mapped, np.uint8).ctypes.data)
        mapped._file = os.dup(file.fileno())
        mapped._stamp = _stamp(mapped._file)
        finalize(mapped, os.close, mapped._file)
        return mapped

    def check(self) -> None:
        """Raise ModelError if somebody has written to the file since it was mapped."""
        if _stamp(self._file) != self._stamp:
            raise ModelError(
                "the model's file was written to after it was loaded, and more of its weights are needed",
                where=self.name,
                hint="load it again; replace the file of a running service by renaming another one to it",
            )

    def read_into(self, buffer: Array, place: int) -> bool:
        """Fill a buffer with the bytes at a place; return whether that was done. Raises ModelError where the file ends
        before."""
        done = 0
        while done < buffer.nbytes:  # the system reads at most 2 GiB at once
            try:
                read = os.preadv(self._file, [buffer[done:].data], place + done)
            except OSError:
                return False
            if not read:
                raise ModelError("the model's file was cut short after it was loaded", where=self.name)
            done += read
        return True

    def give_back(self) -> None:
        """Give back the memory that holds what was read of the file so far."""
        self.madvise(mmap.MADV_DONTNEED)


def _stamp(file: int) -> tuple[int, int]:
    now = os.fstat(file)
    return now.st_size, now.st_mtime_ns


def model_file(array: Any) -> ModelFile | None:
    """The model file that holds the elements of an array, if one does."""
    base = _owner(array)
    return base if isinstance(base, ModelFile) else None


def _owner(array: Any) -> Any:
    """Return what the elements of an array belong to: a map of a file, for one, or the last of its bases."""
    base: Any = array
    while isinstance(base, np.ndarray) and base.base is not None and not isinstance(base, np.memmap):
        base = base.base
    return base.obj if isinstance(base, memoryview) else base


def give_back(array: Array) -> None:
    """Give back the memory that holds elements of a mapped file: kernels read another form of them, and who wants these
    reads them again."""
    base = _owner(array)
    if not CAN_GIVE_BACK or not array.size:
        return
    low, high = np.lib.array_utils.byte_bounds(array)
    if isinstance(base, ModelFile):
        source, begin = base, base.begin
    elif isinstance(base, np.memmap) and base.mode == "r" and isinstance(base.base, mmap.mmap):
        source, begin = base.base, base.ctypes.data - base.offset % mmap.PAGESIZE
    else:
        return
    first, behind = -(-(low - begin) // mmap.PAGESIZE), (high - begin) // mmap.PAGESIZE
    if first < behind:
        source.madvise(mmap.MADV_DONTNEED, first * mmap.PAGESIZE, (behind - first) * mmap.PAGESIZE)


def in_memory(array: Array) -> Array:
    """A copy of an array, in row-major order and in memory of its own."""
    room = np.empty(array.nbytes + ALIGN, np.uint8)
    begin = -room.ctypes.data % ALIGN
    raw = room[begin : begin + array.nbytes]
    file = model_file(array)
    # read, and not copied: pages that are mapped for one reading cost as much again
    if file is None or not array.flags.c_contiguous or not file.read_into(raw, array.ctypes.data - file.begin):
        raw.view(array.dtype).reshape(array.shape)[...] = array
    copy: Array = raw.view(array.dtype).reshape(array.shape)
    return copy
