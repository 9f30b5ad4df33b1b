"""More quantised operators of the domain com.microsoft: those around the products and sums of quantized.py.

https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import ShapeError
from ..op import OPS, Builder, Context, Sample, Value, broadcast_dims, op
from ..quantization.quantize import dequantize_linear, quantize_linear
from ..quantization.quantized import apart
from ..types import Array, DType, Tensor, f32
from .fused import Types, rank_of
from .quantized import (
    BELOW,
    HALF,
    MIDDLE,
    SMALL,
    WIDE,
    _check_parts,
    _scalar,
    _wrapped,
    _zero,
    numbers,
    real,
    steps,
)


@op(
    "QLinearLeakyRelu",
    domain="com.microsoft",
    since=1,
    samples=[
        Sample([numbers(2, 3, 4), SMALL, MIDDLE, SMALL, np.uint8(60)], {"alpha": 0.25}),
        Sample([numbers(20, dtype=np.int8), HALF, BELOW, WIDE, np.int8(-90)]),
        Sample([numbers(3, 3), SMALL, None, HALF, None], {"alpha": 0.5}),
    ],
)
def qlinear_leaky_relu(
    k: Context,
    X: Array,
    X_scale: Array,
    X_zero_point: Array | None,
    Y_scale: Array,
    Y_zero_point: Array | None = None,
    *,
    alpha: float = 0.01,
) -> Array:
    x = real(X, X_scale, X_zero_point)
    return steps(k.xp, k.xp.where(x >= 0, x, x * np.float32(alpha)), Y_scale, Y_zero_point, X.dtype)


@qlinear_leaky_relu.infer
def _(
    X: Tensor, X_scale: Tensor, X_zero_point: Tensor | None, Y_scale: Tensor, Y_zero_point: Tensor | None = None
) -> Tensor:
    _check_parts(X_scale, X_zero_point, Y_scale, Y_zero_point)
    return X.forget()


@qlinear_leaky_relu.body
def _(g: Builder, xs: Sequence[Value | None], types: Types, *, alpha: float = 0.01) -> Value:
    return _wrapped(g, xs, types, lambda x: g.LeakyRelu(x, alpha=alpha))


@op(
    "QLinearSoftmax",
    domain="com.microsoft",
    since=1,
    samples=[
        Sample([numbers(2, 3, 5), SMALL, MIDDLE, np.float32(1 / 256), np.uint8(0)], {"axis": -1, "opset": 13}),
        Sample([numbers(4, 6, dtype=np.int8), SMALL, BELOW, np.float32(1 / 256), np.int8(-128)],
               {"axis": 1, "opset": 13}),
        Sample([numbers(2, 3, 4), SMALL, MIDDLE, np.float32(1 / 256), np.uint8(0)], {"axis": 1, "opset": 12}),
        Sample([numbers(4, 0), SMALL, MIDDLE, np.float32(1 / 256), np.uint8(0)], {"axis": 1, "opset": 13}),
    ],
)  # fmt: skip
def qlinear_softmax(
    k: Context,
    X: Array,
    X_scale: Array,
    x_zero_point: Array | None,
    y_scale: Array,
    y_zero_point: Array,
    *,
    axis: int = -1,
    opset: int,
) -> Array:
    """Before opset 13 the axes from `axis` on are one, as in Softmax."""
    if not X.size:
        return X.copy()
    x = real(X, X_scale, x_zero_point)
    axes = (axis,) if opset >= 13 else tuple(range(axis % X.ndim, X.ndim))
    grown = k.xp.exp(x - x.max(axes, keepdims=True))
    return steps(k.xp, grown / grown.sum(axes, keepdims=True), y_scale, y_zero_point, X.dtype)


@qlinear_softmax.infer
def _(
    X: Tensor, X_scale: Tensor, x_zero_point: Tensor | None, y_scale: Tensor, y_zero_point: Tensor, *, axis: int = -1
) -> Tensor:
    _check_parts(X_scale, x_zero_point, y_scale, y_zero_point)
    if X.dims is not None and not -len(X.dims) <= axis < len(X.dims):
        raise ShapeError(f"axis {axis} is outside {X}")
    return X.forget()


@qlinear_softmax.body
def _(g: Builder, xs: Sequence[Value | None], types: Types, *, axis: int = -1, opset: int) -> Value | None:
    rank = rank_of(types[0])
    if opset >= 13:
        return _wrapped(g, xs, types, lambda x: g.Softmax(x, axis=axis))
    if rank is None:
        return None
    at = axis % rank

    def flat(x: Value) -> Value:
        return g.Reshape(g.Softmax(g.Flatten(x, axis=at), axis=-1), g.Shape(x))

    return _wrapped(g, xs, types, flat)


@op(
    "QLinearWhere",
    domain="com.microsoft",
    since=1,
    outputs=("Z",),
    samples=[
        Sample([np.array([[True], [False]]), numbers(2, 5), SMALL, MIDDLE, numbers(2, 5, seed=1), HALF, MIDDLE, WIDE,
                MIDDLE]),
        Sample([np.arange(4) % 2 > 0, numbers(3, 4, dtype=np.int8), SMALL, BELOW, numbers(1, dtype=np.int8), SMALL,
                BELOW, SMALL, np.int8(5)]),
        Sample([np.array(True), numbers(6), SMALL, MIDDLE, numbers(6, seed=2), SMALL, MIDDLE, HALF, np.uint8(0)]),
    ],
)  # fmt: skip
def qlinear_where(
    k: Context,
    condition: Array,
    X: Array,
    x_scale: Array,
    x_zero_point: Array,
    Y: Array,
    y_scale: Array,
    y_zero_point: Array,
    z_scale: Array,
    z_zero_point: Array,
) -> Array:
    x, y = real(X, x_scale, x_zero_point), real(Y, y_scale, y_zero_point)
    return steps(k.xp, k.xp.where(condition, x, y), z_scale, z_zero_point, X.dtype)


@qlinear_where.infer
def _(
    condition: Tensor,
    X: Tensor,
    x_scale: Tensor,
    x_zero_point: Tensor,
    Y: Tensor,
    y_scale: Tensor,
    y_zero_point: Tensor,
    z_scale: Tensor,
    z_zero_point: Tensor,
) -> Tensor:
    _check_parts(x_scale, x_zero_point, y_scale, y_zero_point, z_scale, z_zero_point)
    if X.dtype is not Y.dtype:
        raise ShapeError(f"{X} and {Y} differ in type")
    return X.of(broadcast_dims(condition.dims, X.dims, Y.dims))


@qlinear_where.body
def _(g: Builder, xs: Sequence[Value], types: Types) -> Value:
    parts = [x if i in (0, 1, 4) else _scalar(g, x, t) for i, (x, t) in enumerate(zip(xs, types, strict=True))]
    x, y = g.DequantizeLinear(*parts[1:4]), g.DequantizeLinear(*parts[4:7])
    return g.QuantizeLinear(g.Where(parts[0], x, y), *parts[7:])


COLUMNS: Any = np.linspace(0.01, 0.05, 5, dtype=np.float32)


@op(
    "MatMulIntegerToFloat",
    domain="com.microsoft",
    since=1,
    samples=[
        Sample([numbers(3, 4), numbers(4, 5, dtype=np.int8), SMALL, SMALL, MIDDLE]),
        Sample([numbers(2, 3, 4), numbers(4, 5), SMALL, COLUMNS, MIDDLE, np.arange(5, dtype=np.uint8), f32(5)]),
        Sample([numbers(3, 4, dtype=np.int8), numbers(4, 5, dtype=np.int8), SMALL, HALF, BELOW, BELOW, f32(5)]),
        Sample([numbers(3, 4), numbers(4, 5), SMALL, SMALL]),
    ],
)
def matmul_integer_to_float(
    k: Context,
    A: Array,
    B: Array,
    a_scale: Array,
    b_scale: Array,
    a_zero_point: Array | None = None,
    b_zero_point: Array | None = None,
    bias: Array | None = None,
) -> Array:
    """The sums of whole numbers are exact before they are scaled."""
    sums = k.xp.asarray(k.xp.matmul(apart(A, a_zero_point), apart(B, b_zero_point)))
    made: Array = sums.astype(np.float32) * (a_scale * b_scale)
    return made if bias is None else made + bias


@matmul_integer_to_float.infer
def _(
    A: Tensor,
    B: Tensor,
    a_scale: Tensor,
    b_scale: Tensor,
    a_zero_point: Tensor | None = None,
    b_zero_point: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    _check_parts(a_scale, a_zero_point)
    return scaled_product(A, B, b_scale, b_zero_point, bias)


def scaled_product(A: Tensor, B: Tensor, *parts: Tensor | None) -> Tensor:
    """The type of a product of whole numbers scaled to float32, whose `parts` have one entry or one for each column."""
    if A.dims is None or B.dims is None:
        return Tensor(DType.FLOAT, None)
    found = OPS["", "MatMul"].inferred(A, B)
    assert isinstance(found, Tensor)
    check_columns(B, *parts)
    return found.to(DType.FLOAT)


def check_columns(B: Tensor, *parts: Tensor | None) -> None:
    """Raise ShapeError for a scale, zero point or bias with neither one entry nor one for each column of a matrix."""
    columns = None if B.dims is None else B.dims[-1]
    for part in parts:
        if part is None or not part.dims or not isinstance(columns, int) or part.elements in (None, 1):
            continue
        if (part.elements, part.dims[-1]) != (columns, columns):
            raise ShapeError(f"{part} has not one entry for each column of {B}")


@matmul_integer_to_float.body
def _(g: Builder, xs: Sequence[Value | None], types: Types) -> Value:
    whole: list[Any] = [*xs, *[None] * (7 - len(xs))]
    a, b, a_scale, b_scale, a_zero, b_zero, bias = whole
    a_zero = None if a_zero is None else _scalar(g, a_zero, types[4])
    return scaled(g, g.MatMulInteger(a, b, a_zero, b_zero), _scalar(g, a_scale, types[2]), b_scale, bias)


def scaled(g: Builder, sums: Value, a_scale: Value, b_scale: Value, bias: Value | None) -> Value:
    """Add what makes float32 of sums of whole numbers."""
    made = g.Mul(g.Cast(sums, to=DType.FLOAT.onnx), g.Mul(a_scale, b_scale))
    return made if bias is None else g.Add(made, bias)


# The quantisation tool writes these where the standard ones of the model's opset lack an element type.

SHORT = np.int16(-300)


@op(
    "QuantizeLinear",
    domain="com.microsoft",
    since=1,
    samples=[
        Sample([f32(2, 3, 4), SMALL, SHORT]),
        Sample([f32(2, 3, 4), SMALL, np.uint16(30000)]),
        Sample([f32(2, 3), np.array([0.1, 0.02, 0.3], np.float32), np.array([1, -2, 3], np.int8)], {"axis": 1}),
        Sample([f32(5), SMALL, None]),
    ],
)
def contrib_quantize_linear(
    k: Context, x: Array, y_scale: Array, y_zero_point: Array | None = None, *, axis: int = 1
) -> Array:
    return quantize_linear.run(k, [x, y_scale, y_zero_point], {"axis": axis} if y_scale.ndim else {})[0]


@contrib_quantize_linear.infer
def _(x: Tensor, y_scale: Tensor, y_zero_point: Tensor | None = None, *, axis: int = 1) -> Any:
    return quantize_linear.inferred(x, y_scale, y_zero_point, axis=axis)


@contrib_quantize_linear.body
def _(g: Builder, xs: Sequence[Value | None], types: Types, *, axis: int = 1) -> Value:
    x, scale, *zero = xs
    return g.QuantizeLinear(x, scale, _zero(g, zero[0], DType.UINT8) if zero else None, axis=axis)


@op(
    "DequantizeLinear",
    domain="com.microsoft",
    since=1,
    samples=[
        Sample([numbers(2, 3, 4, dtype=np.int16), SMALL, SHORT]),
        Sample([numbers(2, 3, 4, dtype=np.uint16), SMALL, np.uint16(30000)]),
        Sample([numbers(2, 3, dtype=np.int8), np.array([0.1, 0.02, 0.3], np.float32), np.array([1, -2, 3], np.int8)],
               {"axis": 1}),
        Sample([numbers(5), SMALL, None]),
    ],
)  # fmt: skip
def contrib_dequantize_linear(
    k: Context, x: Array, x_scale: Array, x_zero_point: Array | None = None, *, axis: int = 1
) -> Array:
    return dequantize_linear.run(k, [x, x_scale, x_zero_point], {"axis": axis} if x_scale.ndim else {})[0]


@contrib_dequantize_linear.infer
def _(x: Tensor, x_scale: Tensor, x_zero_point: Tensor | None = None, *, axis: int = 1) -> Any:
    return dequantize_linear.inferred(x, x_scale, x_zero_point, axis=axis)


@contrib_dequantize_linear.body
def _(g: Builder, xs: Sequence[Value | None], types: Types, *, axis: int = 1) -> Value:
    return g.DequantizeLinear(*xs, axis=axis)
