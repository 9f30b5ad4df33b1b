"""Calls of machine code over a block of arguments, which take part in batches of the library's calls."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Self

from ....ops.types import Array
from ...compile.kernel import KernelRequest
from ..onednn.library import library
from .blobs import Loaded, loaded
from .routines import Routine, address_of, row

Place = tuple[str, int]
# calls that keep Python's lock, and calls that let others run
_HELD, _RELEASED = ctypes.PYFUNCTYPE(None, ctypes.c_void_p), ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class MachineCall(Routine):
    """A kernel with its block of arguments; `words` tells which of them is the address of an operand or a result.

    What is read and written is the caller's to keep, and lies in rows without gaps.
    """

    threads: int
    short: bool
    _block: Any
    _words: Mapping[Place, int]

    def __new__(
        cls, function: int, block: Sequence[int], words: Mapping[Place, int], threads: int = 1, short: bool = True
    ) -> Self:
        kept = (ctypes.c_int64 * len(block))(*block)
        place = ctypes.addressof(kept)
        call = super().__new__(cls, (_HELD if short else _RELEASED)(function), ctypes.c_void_p(place))
        call.rows = (row(function, place),)
        call.threads, call.short, call._block, call._words = threads, short, kept, words
        return call

    def rebind(self, place: Place, array: Array) -> None:
        """Let an operand or a result be another array of the same type."""
        word = self._words.get(place)
        if word is not None:
            self._block[word] = address(array)


def address(array: Array | None) -> int:
    """The address of an array's first byte, 0 for None."""
    if array is None:
        return 0
    assert array.flags.c_contiguous
    return int(array.__array_interface__["data"][0])


def code_for(request: KernelRequest) -> Loaded | str:
    """The machine code for steps of a target, or why there is none."""
    if not request.target.onednn:
        return "onednn=False leaves the CPU to NumPy"
    return loaded()


@cache
def parallel() -> int:
    """The address of `GOMP_parallel` in the library whose threads oneDNN uses, 0 without it: one team serves both."""
    openmp = library()
    return address_of(openmp.held.GOMP_parallel) if openmp is not None and hasattr(openmp.held, "GOMP_parallel") else 0
