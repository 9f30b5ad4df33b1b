"""Operators on the bits of integers.

https://onnx.ai/onnx/operators/onnx__BitShift.html
"""

from __future__ import annotations

import numpy as np

from ..core.expr import Expr, Expressions
from ..errors import ShapeError
from ..op import Context, Sample, op, pointwise
from ..types import Array, DType, Tensor, f32, i64
from .derivatives import primitive

_BYTES = Sample([Tensor(DType.INT8, (2, 3)), Tensor(DType.INT8, (3,))])
BITS = [Sample([i64(2, 3), i64(3)]), _BYTES, Sample([np.array([6, 255], np.uint8), np.array(3, np.uint8)])]


OPERATORS = "BitwiseAnd BitwiseOr BitwiseXor BitwiseNot"
bitwise_and = primitive("BitwiseAnd", 18, "bit_and", BITS, operands="A B", output="C")
bitwise_or = primitive("BitwiseOr", 18, "bit_or", BITS, operands="A B", output="C")
bitwise_xor = primitive("BitwiseXor", 18, "bit_xor", BITS, operands="A B", output="C")
bitwise_not = primitive("BitwiseNot", 18, "bit_not", [Sample([i64(2, 3)]), Sample([np.array([0, 7], np.uint16)])])

_SHIFTS = [Sample([np.array([[1], [200]], np.uint8), np.array([0, 1, 7, 8, 255], np.uint8)], {"direction": d})
           for d in ("LEFT", "RIGHT")]  # fmt: skip
_SIGNED = [Sample([np.array([[5], [-7]], t), np.array([0, 1, 7, 63, 64, -1], t)], {"direction": d})
           for d in ("LEFT", "RIGHT") for t in (np.int8, np.int64)]  # fmt: skip


@pointwise("BitShift", partial=True, since=28, output="Z", samples=[*_SHIFTS, *_SIGNED])
def bit_shift(e: Expressions, X: Expr, Y: Expr, *, direction: str) -> Expr:
    if direction not in ("LEFT", "RIGHT"):
        raise ShapeError(f"direction {direction!r} is none of LEFT, RIGHT")
    return e.shift_left(X, Y) if direction == "LEFT" else e.shift_right(X, Y)


def _nibbles(x: Array) -> Array:
    """The bits of elements narrower than a byte, which the host keeps in one byte each."""
    return x.view(np.uint8) & np.uint8((1 << DType.of(x.dtype).bits) - 1)


def _from_nibbles(bits: Array, to: DType) -> Array:
    top = np.uint8(1 << (to.bits - 1))
    # signed ones fill the byte with copies of their sign
    return (((bits ^ top) - top) if to.integer and to.signed else bits).view(to.numpy)


@op(
    "BitCast",
    complex_numbers="unchecked",
    since=26,
    outputs=("output",),
    samples=[
        Sample([f32(2, 3)], {"to": DType.INT32.onnx}),
        Sample([i64(2)], {"to": DType.DOUBLE.onnx}),
        Sample([np.array([1 - 2j], np.complex128)], {"to": DType.COMPLEX128.onnx}),
        Sample([np.array(1.5, np.float16)], {"to": DType.BFLOAT16.onnx}),
        Sample([np.array([True, False])], {"to": DType.UINT8.onnx}),
        # types, not arrays: an array would bring ml_dtypes into every process
        Sample([Tensor(DType.INT4, (3, 5))], {"to": DType.UINT4.onnx}),
        Sample([Tensor(DType.UINT4, (3, 5))], {"to": DType.INT4.onnx}),
        Sample([Tensor(DType.UINT2, (3, 5))], {"to": DType.INT2.onnx}),
    ],
)
def bit_cast(k: Context, input: Array, *, to: int) -> Array:
    kind = DType.from_onnx(to)
    _check_width(DType.of(input.dtype), kind)
    x = k.xp.array(input, order="C")
    return _from_nibbles(_nibbles(x), kind) if kind.bits < 8 else x.view(kind.numpy)


def _check_width(of: DType, to: DType) -> None:
    if of.bits != to.bits or DType.STRING in (of, to):
        raise ShapeError(f"the bits of {of} are no {to}", hint="the types have to be of one width")


@bit_cast.infer
def _(input: Tensor, *, to: int) -> Tensor:
    kind = DType.from_onnx(to)
    _check_width(input.dtype, kind)
    return input.to(kind)
