"""Operators on the bits of whole numbers.

https://onnx.ai/onnx/operators/onnx__BitShift.html
"""

from __future__ import annotations

import numpy as np

from .errors import ShapeError
from .expr import Expr, Expressions
from .op import Sample, pointwise
from .types import DType, Tensor, i64

_BYTES = Sample([Tensor(DType.INT8, (2, 3)), Tensor(DType.INT8, (3,))])
BITS = [Sample([i64(2, 3), i64(3)]), _BYTES, Sample([np.array([6, 255], np.uint8), np.array(3, np.uint8)])]


@pointwise("BitwiseAnd", since=18, output="C", samples=BITS)
def bitwise_and(e: Expressions, A: Expr, B: Expr) -> Expr:
    return e.bit_and(A, B)


@pointwise("BitwiseOr", since=18, output="C", samples=BITS)
def bitwise_or(e: Expressions, A: Expr, B: Expr) -> Expr:
    return e.bit_or(A, B)


@pointwise("BitwiseXor", since=18, output="C", samples=BITS)
def bitwise_xor(e: Expressions, A: Expr, B: Expr) -> Expr:
    return e.bit_xor(A, B)


@pointwise("BitwiseNot", since=18, samples=[Sample([i64(2, 3)]), Sample([np.array([0, 7], np.uint16)])])
def bitwise_not(e: Expressions, X: Expr) -> Expr:
    return e.bit_not(X)


_SHIFTS = [Sample([np.array([[1], [200]], np.uint8), np.array([0, 1, 7, 8, 255], np.uint8)], {"direction": d})
           for d in ("LEFT", "RIGHT")]  # fmt: skip
_SIGNED = [Sample([np.array([[5], [-7]], t), np.array([0, 1, 7, 63, 64, -1], t)], {"direction": d})
           for d in ("LEFT", "RIGHT") for t in (np.int8, np.int64)]  # fmt: skip


@pointwise("BitShift", since=28, output="Z", samples=[*_SHIFTS, *_SIGNED])
def bit_shift(e: Expressions, X: Expr, Y: Expr, *, direction: str) -> Expr:
    if direction not in ("LEFT", "RIGHT"):
        raise ShapeError(f"direction {direction!r} is none of LEFT, RIGHT")
    return e.shift_left(X, Y) if direction == "LEFT" else e.shift_right(X, Y)
