"""Products of quantised operands: MatMulInteger, QLinearMatMul, ConvInteger, QLinearConv.

The sums are taken in float64, which holds every sum of products of 8-bit numbers exactly, and by a fast product.

https://onnx.ai/onnx/operators/onnx__QLinearMatMul.html, https://onnx.ai/onnx/operators/onnx__QLinearConv.html
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..core.rules import same, widen
from ..core.samples import scattered
from ..math.linear import matmul
from ..nn.conv import conv
from ..nn.windows import CONV
from ..op import Context, Sample, op
from ..tensor.cast import convert
from ..types import Array, DType, Tensor
from .quantize import to_steps


def _numbers(low: int, high: int, *shape: int, dtype: type = np.uint8) -> np.ndarray[Any, Any]:
    return scattered(low, high, *shape).astype(dtype)


def _rows(part: Array) -> Array:
    """A scale or zero point of the left operand: a list has one entry per row."""
    return part[:, None] if part.ndim == 1 and part.size > 1 else part


def apart(x: Array, zero: Array | None) -> Array:
    """Distances from the zero point, in float64."""
    wide = x.astype(np.float64)
    return wide if zero is None else wide - zero.astype(np.float64)


def _wrap(sums: Array) -> Array:
    """Exact sums as int32, which may overflow by going round."""
    return sums.astype(np.int64).astype(np.int32)


A, B = _numbers(0, 255, 2, 3), _numbers(-128, 127, 3, 4, dtype=np.int8)


@op(
    "MatMulInteger",
    since=10,
    samples=[
        Sample([A, B]),
        Sample([A, B, np.uint8(12), np.int8(-7)]),
        Sample([A, B, np.array([12, 0], np.uint8), np.array([1, 2, -3, 4], np.int8)]),
        Sample([_numbers(0, 255, 5, 2, 3), _numbers(0, 255, 3, 4), np.array([[[3], [4]]] * 5, np.uint8)]),
        Sample([A[0], B]),
        Sample([A[:, :0], B[:0]]),
    ],
)
def matmul_integer(
    k: Context, A: Array, B: Array, a_zero_point: Array | None = None, b_zero_point: Array | None = None
) -> Array:
    a = apart(A, None if a_zero_point is None else _rows(a_zero_point))
    return _wrap(k.xp.asarray(k.xp.matmul(a, apart(B, b_zero_point))))


@matmul_integer.infer
def _(A: Tensor, B: Tensor, a_zero_point: Tensor | None = None, b_zero_point: Tensor | None = None) -> Tensor:
    return _product(A, B).to(DType.INT32)


def _product(a: Tensor, b: Tensor) -> Tensor:
    if a.dims is None or b.dims is None:
        return a.of(None)
    product = matmul.inferred(a, b)
    assert isinstance(product, Tensor)
    return product


HALF, QUARTER = np.float32(0.5), np.float32(0.25)


@op(
    "QLinearMatMul",
    since=21,
    outputs=("y",),
    samples=[
        Sample([A, HALF, np.uint8(12), A.T.copy(), QUARTER, np.uint8(100), np.float32(40), np.uint8(118)]),
        Sample([A, HALF, np.uint8(12), B, QUARTER, np.int8(-3), np.float32(30), np.int8(5)]),
        Sample(
            [
                A,
                np.array([0.5, 0.25], np.float32),
                np.array([12, 0], np.uint8),
                B,
                np.array([1, 2, 0.5, 0.25], np.float32),
                np.array([0, 1, 2, 3], np.int8),
                np.float32(64),
                np.uint8(100),
            ]
        ),
        Sample(
            [
                _numbers(0, 255, 2, 2, 3),
                HALF,
                np.uint8(0),
                _numbers(0, 255, 3, 4),
                HALF,
                np.uint8(9),
                np.float32(90),
                np.uint8(3),
            ]
        ),
    ],
)
def qlinear_matmul(
    k: Context,
    a: Array,
    a_scale: Array,
    a_zero_point: Array,
    b: Array,
    b_scale: Array,
    b_zero_point: Array,
    y_scale: Array,
    y_zero_point: Array,
) -> Array:
    sums = k.xp.asarray(k.xp.matmul(apart(a, _rows(a_zero_point)), apart(b, b_zero_point)))
    factor = _rows(widen(a_scale)) * widen(b_scale) / widen(y_scale)
    return requantized(k.xp, sums, factor, y_zero_point)


def requantized(xp: Any, sums: Array, factor: Array, zero: Array) -> Array:
    """Exact sums in steps of the result. The product with the factor is one of float32, as in other runtimes, so that
    ties fall alike."""
    to = DType.of(zero.dtype)
    steps = sums.astype(np.float32) * factor
    if to.integer:
        return to_steps(xp, steps, zero.astype(np.int64), to)
    return convert(xp, steps + zero.astype(np.float32), to)


@qlinear_matmul.infer
def _(
    a: Tensor,
    a_scale: Tensor,
    a_zero_point: Tensor,
    b: Tensor,
    b_scale: Tensor,
    b_zero_point: Tensor,
    y_scale: Tensor,
    y_zero_point: Tensor,
) -> Tensor:
    return _product(a, b).to(y_zero_point.dtype)


def _by_filter(part: Array, rank: int) -> Array:
    """A scale or zero point of weights, one for all or one per filter, against weights of this rank."""
    return part.reshape(-1, *(1,) * (rank - 1)) if part.size > 1 else part.reshape(())


IMAGE, KERNEL = _numbers(0, 255, 1, 2, 5, 4), _numbers(-128, 127, 4, 2, 3, 3, dtype=np.int8)


@op(
    "ConvInteger",
    attributes=CONV,
    since=10,
    outputs=("y",),
    samples=[
        Sample([IMAGE, KERNEL.view(np.uint8)]),
        Sample([IMAGE, KERNEL.view(np.uint8), np.uint8(3)], {"pads": [1, 1, 1, 1]}),
        Sample([IMAGE, KERNEL, np.uint8(3), np.int8(0)], {"strides": [2, 1], "auto_pad": "SAME_UPPER"}),
        Sample([IMAGE, KERNEL[:, :1], np.uint8(3)], {"group": 2, "dilations": [2, 1]}),
    ],
)
def conv_integer(
    k: Context, x: Array, w: Array, x_zero_point: Array | None = None, w_zero_point: Array | None = None, **attrs: Any
) -> Array:
    weights = apart(w, None if w_zero_point is None else _by_filter(w_zero_point, w.ndim))
    image = apart(x, x_zero_point)  # the padding is then 0, which stands for the zero point
    return _wrap(conv.reference(k, image, weights, **attrs))


def _convolved(x: Tensor, w: Tensor, bias: Tensor | None, to: DType, **attrs: Any) -> Tensor:
    image = conv.inferred(x, w, bias, **attrs)
    assert isinstance(image, Tensor)
    return image.to(to)


@conv_integer.infer
def _(
    x: Tensor, w: Tensor, x_zero_point: Tensor | None = None, w_zero_point: Tensor | None = None, **attrs: Any
) -> Tensor:
    return _convolved(x, w, None, DType.INT32, **attrs)


@op(
    "QLinearConv",
    attributes=CONV,
    since=10,
    outputs=("y",),
    samples=[
        Sample([IMAGE, HALF, np.uint8(9), KERNEL, QUARTER, np.int8(0), np.float32(64), np.uint8(99)]),
        Sample(
            [
                IMAGE,
                HALF,
                np.uint8(9),
                KERNEL,
                np.array([0.25, 0.5, 1, 0.125], np.float32),
                np.array([0, 0, 0, 0], np.int8),
                np.float32(99),
                np.uint8(100),
                np.array([5000, 0, -900, 4], np.int32),
            ],
            {"pads": [0, 1, 1, 0], "strides": [2, 2]},
        ),
        Sample(
            [IMAGE, HALF, np.uint8(9), KERNEL[:, :1], QUARTER, np.int8(0), np.float32(64), np.uint8(9)],
            {"group": 2, "auto_pad": "VALID"},
        ),
    ],
)
def qlinear_conv(
    k: Context,
    x: Array,
    x_scale: Array,
    x_zero_point: Array,
    w: Array,
    w_scale: Array,
    w_zero_point: Array,
    y_scale: Array,
    y_zero_point: Array,
    B: Array | None = None,
    **attrs: Any,
) -> Array:
    sums = conv.reference(
        k,
        apart(x, x_zero_point),
        apart(w, _by_filter(w_zero_point, w.ndim)),
        None if B is None else B.astype(np.float64),
        **attrs,
    )
    factor = x_scale.reshape(()) * _by_filter(w_scale, x.ndim - 1) / y_scale.reshape(())
    return requantized(k.xp, sums, factor, y_zero_point)


@qlinear_conv.infer
def _(
    x: Tensor,
    x_scale: Tensor,
    x_zero_point: Tensor,
    w: Tensor,
    w_scale: Tensor,
    w_zero_point: Tensor,
    y_scale: Tensor,
    y_zero_point: Tensor,
    B: Tensor | None = None,
    **attrs: Any,
) -> Tensor:
    if w_scale.dims and w_scale.elements != 1 and w.dims is not None:
        same(w_scale.dims[0], w.dims[0], f"the scale {w_scale} does not fit the filters of {w}")
    return _convolved(x, w, B, y_zero_point.dtype, **attrs)
