"""More quantised operators of the domain com.microsoft: products of integers, and conversions.

https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..core.composed import composed
from ..core.shapes import wide
from ..errors import ShapeError
from ..op import OPS, Builder, Sample, Value
from ..quantization.quantize import dequantize_linear, quantize_linear
from ..types import DType, Tensor, f32
from .fused import Types
from .quantized import BELOW, HALF, MIDDLE, SMALL, check_parts, numbers, said, scalar

COLUMNS: Any = np.linspace(0.01, 0.05, 5, dtype=np.float32)


@composed(
    "MatMulIntegerToFloat",
    domain="com.microsoft",
    inputs=("A", "B", "a_scale", "b_scale", "a_zero_point?", "b_zero_point?", "bias?"),
    samples=[
        Sample([numbers(3, 4), numbers(4, 5, dtype=np.int8), SMALL, SMALL, MIDDLE]),
        Sample([numbers(2, 3, 4), numbers(4, 5), SMALL, COLUMNS, MIDDLE, np.arange(5, dtype=np.uint8), f32(5)]),
        Sample([numbers(3, 4, dtype=np.int8), numbers(4, 5, dtype=np.int8), SMALL, HALF, BELOW, BELOW, f32(5)]),
        Sample([numbers(3, 4), numbers(4, 5), SMALL, SMALL]),
    ],
)
def matmul_integer_to_float(g: Builder, xs: Sequence[Value | None], types: Types) -> Value:
    """The sums of integers are exact before they are scaled."""
    a, b, a_scale, b_scale, a_zero, b_zero, bias = xs
    a_zero = None if a_zero is None else scalar(g, a_zero, types[4])
    return scaled(g, g.MatMulInteger(a, b, a_zero, b_zero), scalar(g, a_scale, types[2]), b_scale, bias)


@matmul_integer_to_float.infer
def _(A: Tensor, B: Tensor, a_scale: Tensor, b_scale: Tensor, *others: Tensor | None) -> Tensor:
    check_parts(a_scale, *others[:1])
    return scaled_product(A, B, b_scale, *others[1:])


def scaled_product(A: Tensor, B: Tensor, *parts: Tensor | None) -> Tensor:
    """The type of a product of integers scaled to float32, whose `parts` have one entry or one for each column."""
    if A.dims is None or B.dims is None:
        return Tensor(DType.FLOAT, None)
    product = OPS["", "MatMul"].inferred(A, B)
    assert isinstance(product, Tensor)
    check_columns(B, *parts)
    return product.to(DType.FLOAT)


def check_columns(B: Tensor, *parts: Tensor | None) -> None:
    """Raise ShapeError for a scale, zero point or bias with neither one entry nor one for each column of a matrix."""
    columns = None if B.dims is None else B.dims[-1]
    for part in parts:
        if part is None or not part.dims or not isinstance(columns, int) or part.elements in (None, 1):
            continue
        if (part.elements, part.dims[-1]) != (columns, columns):
            raise ShapeError(f"{part} has not one entry for each column of {B}")


def scaled(g: Builder, sums: Value, a_scale: Value, b_scale: Value, bias: Value | None) -> Value:
    """Add what makes float32 of sums of integers."""
    product = g.Mul(g.Cast(sums, to=DType.FLOAT.onnx), g.Mul(a_scale, wide(g, b_scale)))
    return product if bias is None else g.Add(product, wide(g, bias))


# The quantisation tool writes these where the standard ones of the model's opset lack an element type.

SHORT = np.int16(-300)


@composed(
    "QuantizeLinear",
    domain="com.microsoft",
    inputs=("x", "y_scale", "y_zero_point?"),
    samples=[
        Sample([f32(2, 3, 4), SMALL, SHORT]),
        Sample([f32(2, 3, 4), SMALL, np.uint16(30000)]),
        Sample([f32(2, 3), np.array([0.1, 0.02, 0.3], np.float32), np.array([1, -2, 3], np.int8)], {"axis": 1}),
        Sample([f32(5), SMALL, None]),
    ],
)
def contrib_quantize_linear(g: Builder, xs: Sequence[Value | None], types: Types, *, axis: int = 1) -> Value:
    x, scale, zero = xs
    return g.QuantizeLinear(x, scale, said(g, zero, DType.UINT8), axis=axis)


@contrib_quantize_linear.infer
def _(*types: Tensor | None, axis: int = 1) -> Any:
    return quantize_linear.inferred(*types, axis=axis)


@composed(
    "DequantizeLinear",
    domain="com.microsoft",
    inputs=("x", "x_scale", "x_zero_point?"),
    samples=[
        Sample([numbers(2, 3, 4, dtype=np.int16), SMALL, SHORT]),
        Sample([numbers(2, 3, 4, dtype=np.uint16), SMALL, np.uint16(30000)]),
        Sample([numbers(2, 3, dtype=np.int8), np.array([0.1, 0.02, 0.3], np.float32), np.array([1, -2, 3], np.int8)],
               {"axis": 1}),
        Sample([numbers(5), SMALL, None]),
    ],
)  # fmt: skip
def contrib_dequantize_linear(g: Builder, xs: Sequence[Value | None], types: Types, *, axis: int = 1) -> Value:
    return g.DequantizeLinear(*xs, axis=axis)


@contrib_dequantize_linear.infer
def _(*types: Tensor | None, axis: int = 1) -> Any:
    return dequantize_linear.inferred(*types, axis=axis)
