"""Searches of arrays for numbers that a primitive loses or mistakes, by the bits of their elements: they touch no flag
of the processor, and nothing of Python is called between them and primitives."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any, Final, Literal

import numpy as np

from ....ops.types import Array
from ...execution.alarm import readable
from ..machine.routines import SEARCH, SEARCH_HALVES, Row, routine, row

Odd = Literal["nan", "not finite", "lowest"]  # the last: -inf or the lowest finite number, where there is no NaN
_INFINITY: Final = {"float32": 0x7F800000, "bfloat16": 0x7F80, "float16": 0x7C00}  # its bits
PIECE: Final = 1 << 14  # elements that NumPy looks at in one go, where no memory may be executed
SHORT: Final = 1 << 18  # bytes that take microseconds


_Numbers = ctypes.c_ubyte * 16


class _Terms(ctypes.Structure):
    """Terms of a search: an array, and 16 bytes each of what its bits are changed by, cut to and compared with."""

    _fields_ = (
        ("address", ctypes.c_void_p),
        ("nbytes", ctypes.c_int64),
        *((name, _Numbers) for name in ("flip", "mask", "limit")),
    )


class Search:
    """Search of a contiguous array for an odd number; a call answers with a number other than 0 where there is one.
    `rows` are the same call for machine code, also after `bind`."""

    def __init__(self, odd: Odd, dtype: np.dtype[Any]) -> None:
        signed = np.dtype(f"i{dtype.itemsize}")
        sign, infinity = 1 << (8 * dtype.itemsize - 1), _INFINITY[dtype.name]
        flip, mask, limit = {
            "nan": (0, sign - 1, infinity),
            "not finite": (0, sign - 1, infinity - 1),
            "lowest": (sign, 2 * sign - 1, infinity - 2),
        }[odd]
        numbers = [np.full(16 // dtype.itemsize, n, f"u{dtype.itemsize}").view(signed) for n in (flip, mask, limit)]
        self._numbers = [n[0] for n in numbers]
        self._terms = _Terms(None, 0, *(_Numbers.from_buffer_copy(n.tobytes()) for n in numbers))
        self.bits = np.empty(0, signed)
        self.rows: tuple[Row, ...] = ()
        if readable():
            code = SEARCH if dtype.itemsize == 4 else SEARCH_HALVES
            self._call = _function(code)
            self.rows = (row(routine(code), ctypes.addressof(self._terms), mask=0xFFFF),)

    @property
    def short(self) -> bool:
        """True if the search takes microseconds."""
        return self.bits.nbytes <= SHORT

    def bind(self, array: Array) -> None:
        """Let it be another array of the same element type."""
        assert array.flags.c_contiguous  # else the elements would be a copy, of what lies there now
        self.bits = array.reshape(-1).view(self.bits.dtype)
        self._terms.address, self._terms.nbytes = self.bits.__array_interface__["data"][0], self.bits.nbytes

    def let_go(self) -> None:
        """Keep no array."""
        self.bits = self.bits[:0].copy()
        self._terms.nbytes = 0

    def __call__(self) -> int:
        if self.rows:
            return int(self._call(ctypes.byref(self._terms)))
        flip, mask, limit = self._numbers
        pieces = (self.bits[i : i + PIECE] for i in range(0, self.bits.size, PIECE))
        return int(any((((p ^ flip) & mask) > limit).any() for p in pieces))


def searches(odds: tuple[Odd, ...], dtype: np.dtype[Any]) -> list[Search]:
    """A search for each, of arrays of this element type; none for integers, which have no such numbers."""
    return [Search(odd, dtype) for odd in odds if dtype.name in _INFINITY]


@cache
def _function(code: str) -> Any:
    return ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(routine(code))
