"""Quantisation and dequantisation: QuantizeLinear, DequantizeLinear, DynamicQuantizeLinear.

https://onnx.ai/onnx/operators/onnx__QuantizeLinear.html, https://onnx.ai/onnx/operators/onnx__DequantizeLinear.html
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..core.broadcast import zeros_like
from ..core.rules import axis_of, narrow, same, widen
from ..errors import ShapeError
from ..math.derivatives import flat
from ..op import Builder, Context, Sample, Value, op
from ..tensor.cast import convert
from ..types import Array, DType, Tensor, f32


def int_range(dtype: DType) -> tuple[int, int]:
    """The least and the largest number of an integer type.

    >>> int_range(DType.INT4), int_range(DType.UINT8)
    ((-8, 7), (0, 255))
    """
    return (-(1 << dtype.bits - 1), (1 << dtype.bits - 1) - 1) if dtype.signed else (0, (1 << dtype.bits) - 1)


def to_steps(xp: Any, x: Array, zero: Array | int, to: DType) -> Array:
    """Numbers of steps (floats) rounded to the nearest even, moved by the zero point, saturated into an integer type.

    NaN becomes the zero point, so that all machines agree.
    """
    low, high = int_range(to)
    whole = xp.rint(xp.where(xp.isnan(x), 0, x).astype(np.float64))
    return xp.clip(whole + zero, low, high).astype(np.int64).astype(to.numpy)


def spread(xp: Any, part: Array, x: Array, axis: int, block_size: int) -> Array:
    """A scale or zero point in a shape that broadcasts against `x`: per tensor, per axis or per block."""
    if part.size == 1 and part.ndim < 2:
        return part.reshape(())
    if part.ndim == 1 and not block_size:
        at = axis_of(axis, x.ndim) if x.ndim > 1 else 0
        return part.reshape([-1 if i == at else 1 for i in range(x.ndim)])
    at = axis_of(axis, x.ndim) if x.ndim > 1 else 0
    size = x.shape[at]
    each = block_size or -(-size // max(part.shape[at], 1))
    return xp.repeat(part, each, at)[(slice(None),) * at + (slice(size),)]


def _check(x: Tensor, scale: Tensor, zero: Tensor | None, axis: int, block_size: int) -> None:
    """Scale and zero point fit each other and the input; raises ShapeError."""
    if zero is not None and zero.dims is not None and scale.dims is not None:
        if len(zero.dims) != len(scale.dims) and {zero.elements, scale.elements} != {1}:
            raise ShapeError(f"the scale {scale} and the zero point {zero} differ in shape")
        for a, b in zip(zero.dims, scale.dims, strict=False):
            same(a, b, f"the scale {scale} and the zero point {zero} differ in shape")
    if block_size < 0:
        raise ShapeError(f"block_size {block_size} is negative")
    if x.dims is None or scale.dims is None or not scale.dims or (scale.elements == 1 and len(scale.dims) == 1):
        return
    at = axis_of(axis, len(x.dims)) if len(x.dims) > 1 else 0
    if len(scale.dims) == 1 and not block_size:
        same(scale.dims[0], x.dims[at], f"the scale {scale} does not fit axis {axis} of {x}")
    elif len(scale.dims) != len(x.dims):
        raise ShapeError(f"the scale {scale} is neither per tensor, per axis nor per block of {x}")
    else:
        for i, (a, b) in enumerate(zip(scale.dims, x.dims, strict=True)):
            if i != at:
                same(a, b, f"the scale {scale} does not fit {x}: axis {i}")
            elif block_size and isinstance(b, int):
                same(a, -(-b // block_size), f"the scale {scale} does not fit {x} in blocks of {block_size}")


def _given(number: int) -> DType | None:
    return DType.from_onnx(number) if number else None


X = np.array([[-40, -1.5, 0.5], [2.5, 3, 900]], np.float32)
SCALES = np.array([0.5, 1, 2], np.float32)
INT_TYPES = (DType.INT8, DType.UINT16, DType.INT16, DType.INT4, DType.UINT4, DType.INT2, DType.UINT2)
FLOAT_TYPES = (DType.FLOAT8E4M3FN, DType.FLOAT8E4M3FNUZ, DType.FLOAT8E5M2, DType.FLOAT8E5M2FNUZ, DType.FLOAT4E2M1)


@op(
    "QuantizeLinear",
    rounds=True,
    since=28,
    jumps=True,
    outputs=("y",),
    samples=[
        Sample([X, np.float32(0.5)]),
        Sample([X, np.float32(0.5), np.uint8(128)]),
        Sample([X, np.array([0.5], np.float32), np.array([-3], np.int8)]),
        Sample([X, SCALES, np.array([0, 3, 200], np.uint8)]),
        Sample([X, SCALES[:2]], {"axis": 0, "output_dtype": DType.INT8.onnx}),
        Sample([X, np.array([[0.5, 1], [2, 4]], np.float32)], {"axis": -1, "block_size": 2}),
        *(Sample([X, np.float32(1)], {"output_dtype": t.onnx}) for t in INT_TYPES),
        *(Sample([X, np.float32(2)], {"output_dtype": t.onnx, "saturate": s}) for t in FLOAT_TYPES for s in (1, 0)),
        Sample([X, np.float32(1 / 3)], {"precision": DType.FLOAT16.onnx}),
        Sample([np.array([3, -400], np.int32), np.float32(2), np.int8(0)]),
        Sample([f32(0, 3), np.float32(1)]),
        Sample([f32(3), np.array([1], np.float32)]),
    ],
)
def quantize_linear(
    k: Context,
    x: Array,
    y_scale: Array,
    y_zero_point: Array | None = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
    precision: int = 0,
    saturate: int = 1,
) -> Array:
    to = DType.of(y_zero_point.dtype) if y_zero_point is not None else _given(output_dtype) or DType.UINT8
    divided = _quotient(x, spread(k.xp, y_scale, x, axis, block_size), _given(precision))
    zero = np.zeros((), to.numpy) if y_zero_point is None else spread(k.xp, y_zero_point, x, axis, block_size)
    if to.integer:
        return to_steps(k.xp, divided, zero.astype(np.int64), to)
    return convert(k.xp, widen(divided) + zero.astype(np.float32), to, saturate)


def _quotient(x: Array, scale: Array, precision: DType | None) -> Array:
    """x / scale in the asked precision, which is by default that of the scale; where a scale is a power of two
    (float8e8m0) or an integer, its type says nothing of the precision, and the division is one of float32."""
    kind = precision or DType.of(scale.dtype)
    if kind.floating and kind.bits > 8:
        return x.astype(kind.numpy) / scale.astype(kind.numpy)
    return x.astype(np.float32) / scale.astype(np.float32)


@quantize_linear.infer
def _(
    x: Tensor,
    y_scale: Tensor,
    y_zero_point: Tensor | None = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
) -> Tensor:
    asked = _given(output_dtype)
    if y_zero_point is not None and asked and asked is not y_zero_point.dtype:
        raise ShapeError(f"output_dtype {asked} is not the type of the zero point {y_zero_point}")
    _check(x, y_scale, y_zero_point, axis, block_size)
    return x.to(y_zero_point.dtype if y_zero_point is not None else asked or DType.UINT8)


flat(quantize_linear)  # steps: whoever trains through them asks for a straight-through estimate by name


def _stored(values: Sequence[float], dtype: DType) -> np.ndarray[Any, Any] | Tensor:
    """These elements; of a type that numpy lacks any elements, since ml_dtypes is not to be in every process."""
    if not hasattr(np, str(dtype)):
        return Tensor(dtype, (len(values),))
    return np.array(values, np.float32).astype(dtype.numpy)


@op(
    "DequantizeLinear",
    rounds=True,
    since=28,
    outputs=("y",),
    samples=[
        Sample([np.array([0, 3, 128, 255], np.uint8), np.float32(2), np.uint8(128)]),
        Sample([np.array([[0, 3], [-128, 127]], np.int8), np.float32(0.5)]),
        Sample([np.array([[0, 3], [-128, 127]], np.int8), np.array([0.5, 2], np.float32), np.array([0, -1], np.int8)]),
        Sample([np.array([[0, 3], [-128, 127]], np.int8), np.array([0.5, 2], np.float32)], {"axis": 0}),
        Sample(
            [np.arange(10, dtype=np.uint8).reshape(2, 5), np.arange(1, 7, dtype=np.float32).reshape(2, 3)],
            {"block_size": 2},
        ),
        Sample([np.array([70000, -5], np.int32), np.float32(0.25)]),
        *(Sample([_stored([0, 1, -1 if t.signed else 2], t), np.float32(3)]) for t in INT_TYPES),
        *(Sample([_stored([0, -1, 2], t), np.float32(3)]) for t in FLOAT_TYPES),
        Sample([_stored([0, 1, -2], DType.INT4), np.float32(3)], {"output_dtype": DType.FLOAT16.onnx}),
        Sample([np.zeros((0, 2), np.int8), np.float32(1)]),
        Sample(
            [np.arange(30, dtype=np.uint8).reshape(5, 3, 2), np.arange(1, 19, dtype=np.float32).reshape(3, 3, 2)],
            {"axis": 0, "block_size": 2},
        ),
        Sample([np.array([[3, 4], [7, 9]], np.uint8), np.array([0.5], np.float32), np.array([2], np.uint8)]),
    ],
)
def dequantize_linear(
    k: Context,
    x: Array,
    x_scale: Array,
    x_zero_point: Array | None = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
) -> Array:
    steps = x.astype(np.int64 if DType.of(x.dtype).integer else np.float32)
    if x_zero_point is not None:
        steps = steps - spread(k.xp, x_zero_point, x, axis, block_size).astype(steps.dtype)
    scale = spread(k.xp, widen(x_scale), x, axis, block_size)
    return narrow(k.xp.asarray(steps.astype(scale.dtype) * scale), _result(DType.of(x_scale.dtype), output_dtype).numpy)


def _result(scale: DType, output_dtype: int) -> DType:
    return _given(output_dtype) or (scale if scale.bits > 8 else DType.FLOAT)


@dequantize_linear.infer
def _(
    x: Tensor,
    x_scale: Tensor,
    x_zero_point: Tensor | None = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
) -> Tensor:
    _check(x, x_scale, x_zero_point, axis, block_size)
    return x.to(_result(x_scale.dtype, output_dtype))


@dequantize_linear.grad
def _(
    g: Builder, dys: Any, ys: Any, xs: Any, *, axis: int = 1, block_size: int = 0, output_dtype: int = 0
) -> tuple[Value | None, ...]:
    """To the scale: dY times the numbers of steps, which a scale of ones gives."""
    x, scale, zero_point = xs
    if not g.wants[1]:
        return None, None, None
    rank, ones = g.rank_of(x), g.Expand(g.scalar(1, scale), g.shape_of(scale))
    steps = g.DequantizeLinear(x, ones, zero_point, axis=axis, block_size=block_size)
    pull = g.Mul(g.CastLike(dys[0], scale), g.CastLike(steps, scale))
    at = axis_of(axis, rank) if rank > 1 else 0
    if g.rank_of(scale) > 1:  # blocks along the axis: each element goes to its block
        length, blocks = (g.Gather(g.shape_of(v), g.const(at), axis=0) for v in (x, scale))
        each = g.const(block_size) if block_size else g.Div(g.Sub(g.Add(length, blocks), g.const(1)), blocks)
        block = g.Div(g.Range(g.const(0), length, g.const(1)), each)
        column = g.Unsqueeze(block, g.const(list(range(1, rank - at)))) if at < rank - 1 else block
        where = g.Expand(column, g.shape_of(x))
        return None, g.ScatterElements(zeros_like(g, scale), where, pull, axis=at, reduction="add"), None
    if rank and g.rank_of(scale):  # one scale for each place along the axis, or one for all
        pull = g.ReduceSum(pull, g.const([i for i in range(rank) if i != at]), keepdims=0, noop_with_empty_axes=1)
        return None, g.sum_to(pull, scale), None
    return None, g.Reshape(g.ReduceSum(pull, keepdims=0), g.shape_of(scale)), None


@op(
    "DynamicQuantizeLinear",
    since=11,
    jumps=True,
    outputs=("y", "y_scale", "y_zero_point"),
    samples=[
        Sample([X], outputs=3),
        Sample([np.array([1, 2, 5], np.float32)], outputs=3),
        Sample([np.array([-3, -1], np.float32)], outputs=3),
        Sample([np.zeros((2, 2), np.float32)], outputs=3),
    ],
)
def dynamic_quantize_linear(k: Context, x: Array) -> tuple[Array, Array, Array]:
    least, most = k.xp.minimum(x.min(initial=0), 0), k.xp.maximum(x.max(initial=0), 0)
    scale = k.xp.asarray((most - least) / np.float32(255), dtype=np.float32)
    scale = k.xp.where(scale == 0, np.float32(1), scale)  # nothing but zeros: any scale will do
    zero = to_steps(k.xp, -least / scale, 0, DType.UINT8)
    return to_steps(k.xp, x / scale, zero.astype(np.int64), DType.UINT8), scale, zero


@dynamic_quantize_linear.infer
def _(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return x.to(DType.UINT8), Tensor(DType.FLOAT, ()), Tensor(DType.UINT8, ())
