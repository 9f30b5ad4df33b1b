"""Normalisation by the root mean square with what stands before it, as ONNX Runtime's optimiser writes the two."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..core.composed import composed
from ..op import Builder, Sample, Value
from ..types import DType, Tensor, Type, f32
from .fused import skip_layer_normalization

HIDDEN = [f32(2, 3, 8), f32(2, 3, 8), f32(8)]


@composed(
    "SkipSimplifiedLayerNormalization",
    domain="com.microsoft",
    inputs=("input", "skip", "gamma", "bias?"),
    outputs=("output", "mean?", "inv_std_var?", "input_skip_bias_sum?"),
    rowwise=True,
    samples=[
        Sample(HIDDEN, {"epsilon": 1e-5}),
        Sample([*HIDDEN, f32(8)], {"epsilon": 1e-3}, 4),
        Sample([f32(2, 3, 8), f32(1, 3, 8), f32(8)], {"epsilon": 1e-2}, 4),
    ],
)
def skip_simplified_layer_normalization(
    g: Builder, xs: Sequence[Value | None], types: Sequence[Type | None], *, epsilon: float = 1e-12
) -> tuple[Value, ...]:
    input, skip, gamma, bias = xs
    x = g.Add(input, skip)
    if bias is not None:
        x = g.Add(x, bias)
    wide, last = g.Cast(x, to=DType.FLOAT.onnx), g.const([-1])
    square = g.Add(g.ReduceMean(g.Mul(wide, wide), last), g.const(epsilon, DType.FLOAT))
    return g.RMSNormalization(x, gamma, epsilon=epsilon), g.ReduceMean(wide, last), g.Reciprocal(g.Sqrt(square)), x


@skip_simplified_layer_normalization.infer
def _(input: Tensor, skip: Tensor, gamma: Tensor, bias: Tensor | None = None) -> Any:
    return skip_layer_normalization.inferred(input, skip, gamma, None, bias)
