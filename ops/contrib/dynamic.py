"""DynamicQuantizeMatMul of the domain com.microsoft: float rows, quantised as they come, times quantised weights.

https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md#com.microsoft.DynamicQuantizeMatMul
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..core.composed import composed
from ..op import Builder, Sample, Value
from ..types import Tensor, f32
from .fused import Types
from .quantized import numbers
from .quantized_parts import scaled, scaled_product

WEIGHTS = numbers(4, 5, dtype=np.int8)
SCALES: Any = np.linspace(0.01, 0.05, 5, dtype=np.float32)


@composed(
    "DynamicQuantizeMatMul",
    domain="com.microsoft",
    inputs=("A", "B", "b_scale", "b_zero_point?", "bias?"),
    samples=[
        Sample([f32(3, 4), WEIGHTS, np.array([0.02], np.float32)]),
        Sample([f32(2, 3, 4), WEIGHTS, SCALES, np.zeros(5, np.int8), f32(5)]),
        Sample([f32(3, 4), numbers(4, 5), np.array([0.02], np.float32), np.array([120], np.uint8)]),
    ],
)
def dynamic_quantize_matmul(g: Builder, xs: Sequence[Value | None], types: Types) -> Value:
    """The left operand in the steps of DynamicQuantizeLinear; the sums are exact before they are scaled."""
    a, b, scale, zero, bias = xs
    steps, a_scale, a_zero = g.DynamicQuantizeLinear(a, outputs=3)
    return scaled(g, g.MatMulInteger(steps, b, a_zero, zero), a_scale, scale, bias)


@dynamic_quantize_matmul.infer
def _(A: Tensor, B: Tensor, *parts: Tensor | None) -> Tensor:
    return scaled_product(A, B, *parts)
