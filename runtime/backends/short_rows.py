"""Rows that are too short for a library's kernel to be worth a call for each."""

from __future__ import annotations

from ...ops import DType, Tensor

SHORT, MANY = 8, 256  # elements of a row, rows


def short_rows(x: Tensor, axis: int) -> bool:
    """True for float32 of known sizes, row by row in memory, whose last axis this is, and short."""
    return (
        x.static
        and x.dtype is DType.FLOAT
        and not x.layout
        and axis in (-1, len(x.sizes) - 1)
        and 1 < x.sizes[-1] <= SHORT
        and x.nbytes >= MANY * x.sizes[-1] * x.dtype.numpy.itemsize
    )
