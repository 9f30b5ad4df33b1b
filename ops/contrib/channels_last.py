"""Operators of the domain com.microsoft for quantised images with channels last, as ONNX Runtime saves them.

https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..core.composed import composed
from ..errors import ShapeError
from ..nn.pool import max_pool
from ..nn.windows import CONV, POOL
from ..op import REQUIRED, Builder, Sample, Value
from ..quantization.quantized import qlinear_conv
from ..types import Tensor
from .fused import Types
from .quantized import channels_first, channels_first_type, numbers

HALF, OUT = np.float32(0.5), np.float32(61)
IMAGES, FILTERS = numbers(2, 5, 6, 3), numbers(4, 3, 2, 3, dtype=np.int8)
PER_FILTER: list[Any] = [np.linspace(0.2, 0.6, 4, dtype=np.float32), np.zeros(4, np.int8)]


@composed(
    "NhwcMaxPool",
    domain="com.microsoft",
    inputs=("x",),
    outputs=("y",),
    attributes={**POOL, "kernel_shape": REQUIRED},
    written_out=True,
    samples=[
        Sample([numbers(2, 5, 6, 3)], {"kernel_shape": [3, 2]}),
        Sample([numbers(1, 6, 5, 2, dtype=np.int8)],
               {"kernel_shape": [2, 3], "pads": [1, 1, 0, 1], "strides": [2, 1]}),
        Sample([numbers(1, 7, 7, 4)], {"kernel_shape": [2, 2], "dilations": [2, 3], "ceil_mode": 1, "strides": [2, 2]}),
        Sample([numbers(1, 5, 5, 2)], {"kernel_shape": [3, 3], "auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    ],
)  # fmt: skip
def nhwc_max_pool(g: Builder, xs: Sequence[Value], types: Types, **attrs: Any) -> Value | None:
    return channels_first(g, xs[0], 1, lambda x: g.MaxPool(x, **attrs))


@nhwc_max_pool.infer
def _(x: Tensor, **attrs: Any) -> Tensor:
    if attrs.get("auto_pad", "NOTSET").startswith("SAME") and any(d != 1 for d in attrs.get("dilations") or ()):
        raise ShapeError(
            "ONNX Runtime pads dilated windows otherwise than MaxPool's auto_pad", hint="give pads instead"
        )
    return channels_first_type(x, 1, lambda y: max_pool.inferred(y, **attrs))


@composed(
    "QLinearConv",
    domain="com.microsoft",
    inputs=("x", "x_scale", "x_zero_point", "w", "w_scale", "w_zero_point", "y_scale", "y_zero_point", "B?"),
    outputs=("y",),
    attributes=CONV,
    written_out=True,
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
    g: Builder, xs: Sequence[Value | None], types: Types, *, channels_last: int = 0, **attrs: Any
) -> Value | None:
    """QLinearConv of the standard, whose image may have its channels last; filters are as there."""
    image, *parts = xs
    return channels_first(g, image, channels_last, lambda x: g.QLinearConv(x, *parts, **attrs))


@contrib_qlinear_conv.infer
def _(x: Tensor, *parts: Tensor | None, channels_last: int = 0, **attrs: Any) -> Any:
    return channels_first_type(x, channels_last, lambda y: qlinear_conv.inferred(y, *parts, **attrs))
