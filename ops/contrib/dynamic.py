"""DynamicQuantizeMatMul of the domain com.microsoft: float rows, quantised as they come, times quantised weights.

https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md#com.microsoft.DynamicQuantizeMatMul
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..op import Builder, Context, Sample, Value, op
from ..quantization.quantize import dynamic_quantize_linear
from ..types import Array, Tensor, f32
from .fused import Types
from .quantized import numbers
from .quantized_parts import matmul_integer_to_float, scaled, scaled_product

WEIGHTS = numbers(4, 5, dtype=np.int8)
SCALES: Any = np.linspace(0.01, 0.05, 5, dtype=np.float32)


@op(
    "DynamicQuantizeMatMul",
    domain="com.microsoft",
    since=1,
    samples=[
        Sample([f32(3, 4), WEIGHTS, np.array([0.02], np.float32)]),
        Sample([f32(2, 3, 4), WEIGHTS, SCALES, np.zeros(5, np.int8), f32(5)]),
        Sample([f32(3, 4), numbers(4, 5), np.array([0.02], np.float32), np.array([120], np.uint8)]),
    ],
)
def dynamic_quantize_matmul(
    k: Context,
    A: Array,
    B: Array,
    b_scale: Array,
    b_zero_point: Array | None = None,
    bias: Array | None = None,
) -> Array:
    """The left operand in the steps of DynamicQuantizeLinear; the sums are exact before they are scaled."""
    steps, scale, zero = dynamic_quantize_linear.reference(k, A)
    made: Array = matmul_integer_to_float.reference(k, steps, B, scale, b_scale, zero, b_zero_point, bias)
    return made


@dynamic_quantize_matmul.infer
def _(A: Tensor, B: Tensor, b_scale: Tensor, b_zero_point: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
    return scaled_product(A, B, b_scale, b_zero_point, bias)


@dynamic_quantize_matmul.body
def _(g: Builder, xs: Sequence[Value | None], types: Types) -> Value:
    whole: list[Any] = [*xs, *[None] * (5 - len(xs))]
    a, b, scale, zero, bias = whole
    steps, a_scale, a_zero = g.DynamicQuantizeLinear(a, outputs=3)
    return scaled(g, g.MatMulInteger(steps, b, a_zero, zero), a_scale, scale, bias)
