"""Operators of the domain com.microsoft for quantised images with channels last, as ONNX Runtime saves them.

https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import ShapeError
from ..nn.pool import max_pool
from ..nn.windows import CONV, POOL
from ..op import Builder, Context, Sample, Value, op
from ..quantization.quantized import qlinear_conv
from ..types import Array, Tensor
from .fused import Types, rank_of
from .quantized import _around, _dims_first, _dims_last, _first, numbers

HALF, OUT = np.float32(0.5), np.float32(61)
IMAGES, FILTERS = numbers(2, 5, 6, 3), numbers(4, 3, 2, 3, dtype=np.int8)
PER_FILTER: list[Any] = [np.linspace(0.2, 0.6, 4, dtype=np.float32), np.zeros(4, np.int8)]


@op(
    "NhwcMaxPool",
    domain="com.microsoft",
    attributes=POOL,
    written_out=True,
    since=1,
    outputs=("y",),
    samples=[
        Sample([numbers(2, 5, 6, 3)], {"kernel_shape": [3, 2]}),
        Sample([numbers(1, 6, 5, 2, dtype=np.int8)],
               {"kernel_shape": [2, 3], "pads": [1, 1, 0, 1], "strides": [2, 1]}),
        Sample([numbers(1, 7, 7, 4)], {"kernel_shape": [2, 2], "dilations": [2, 3], "ceil_mode": 1, "strides": [2, 2]}),
        Sample([numbers(1, 5, 5, 2)], {"kernel_shape": [3, 3], "auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    ],
)  # fmt: skip
def nhwc_max_pool(k: Context, x: Array, *, kernel_shape: Sequence[int], **window: Any) -> Array:
    y, *_ = max_pool.reference(k, _first(x), kernel_shape=kernel_shape, **window)
    return k.xp.array(k.xp.moveaxis(y, 1, -1), order="C")


@nhwc_max_pool.infer
def _(x: Tensor, **attrs: Any) -> Tensor:
    if attrs.get("auto_pad", "NOTSET").startswith("SAME") and any(d != 1 for d in attrs.get("dilations") or ()):
        raise ShapeError(
            "ONNX Runtime pads dilated windows otherwise than MaxPool's auto_pad", hint="give pads instead"
        )
    return _dims_last(x, max_pool.inferred(_dims_first(x), **attrs))


@nhwc_max_pool.body
def _(g: Builder, xs: Sequence[Value], types: Types, **attrs: Any) -> Value | None:
    rank = rank_of(types[0])
    return None if rank is None else _around(g, xs[0], rank, 1, lambda x: g.MaxPool(x, **attrs))


@op(
    "QLinearConv",
    domain="com.microsoft",
    attributes=CONV,
    written_out=True,
    since=1,
    outputs=("y",),
    samples=[
        Sample([IMAGES, HALF, np.uint8(120), FILTERS, HALF, np.int8(0), OUT, np.uint8(99)], {"channels_last": 1}),
        Sample([IMAGES, HALF, np.uint8(9), FILTERS, *PER_FILTER, OUT, np.uint8(100),
                np.array([5000, 0, -900, 4], np.int32)],
               {"channels_last": 1, "pads": [0, 1, 1, 0], "strides": [2, 2], "dilations": [1, 2]}),
        Sample([numbers(1, 5, 5, 4), HALF, np.uint8(9), FILTERS[:, :1], HALF, np.int8(0), OUT, np.uint8(9)],
               {"channels_last": 1, "group": 4, "auto_pad": "SAME_LOWER"}),
        Sample([numbers(2, 3, 5, 6), HALF, np.uint8(120), FILTERS, *PER_FILTER, OUT, np.uint8(99)]),
    ],
)  # fmt: skip
def contrib_qlinear_conv(
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
    *,
    channels_last: int = 0,
    **attrs: Any,
) -> Array:
    """QLinearConv of the standard, whose image may have its channels last; filters are as there."""
    y = qlinear_conv.reference(
        k, _first(x) if channels_last else x, x_scale, x_zero_point, w, w_scale, w_zero_point, y_scale, y_zero_point, B,
        **attrs,
    )  # fmt: skip
    return k.xp.array(k.xp.moveaxis(y, 1, -1), order="C") if channels_last else y


@contrib_qlinear_conv.infer
def _(x: Tensor, *parts: Tensor | None, channels_last: int = 0, **attrs: Any) -> Any:
    if not channels_last:
        return qlinear_conv.inferred(x, *parts, **attrs)
    return _dims_last(x, qlinear_conv.inferred(_dims_first(x), *parts, **attrs))


@contrib_qlinear_conv.body
def _(g: Builder, xs: Sequence[Value | None], types: Types, *, channels_last: int = 0, **attrs: Any) -> Value | None:
    rank, (image, *parts) = rank_of(types[0]), xs
    if channels_last and rank is None:
        return None
    return _around(g, image, rank, channels_last, lambda x: g.QLinearConv(x, *parts, **attrs))
