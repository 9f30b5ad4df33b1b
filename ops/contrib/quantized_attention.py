"""QAttention of the domain com.microsoft: what the quantisation tool makes of Attention.

https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..core.composed import composed
from ..core.shapes import wide
from ..errors import ShapeError
from ..op import Builder, Sample, Value
from ..types import DType, Tensor, f32
from .attention import MASK, attention, check_absent, projected_form
from .attention_form import AttentionForm
from .fused import Types
from .quantized import check_parts, numbers, scalar
from .quantized_parts import check_columns

FINE, SMALL = np.float32(0.004), np.float32(0.02)
MIDDLE = np.uint8(128)
ROWS, WEIGHTS = numbers(2, 4, 8), numbers(8, 24, dtype=np.int8)
PER_COLUMN: list[Any] = [np.linspace(0.002, 0.006, 24, dtype=np.float32)]


@composed(
    "QAttention",
    domain="com.microsoft",
    inputs=(
        *("input", "weight", "bias", "input_scale", "weight_scale"),
        *("mask_index?", "input_zero_point?", "weight_zero_point?", "past?"),
    ),
    outputs=("output", "present?"),
    attributes={"do_rotary": None, "past_present_share_buffer": None},
    written_out=True,
    samples=[
        Sample([ROWS, WEIGHTS, f32(24), SMALL, FINE, None, MIDDLE, np.int8(0)], {"num_heads": 2}),
        Sample([ROWS, WEIGHTS, f32(24), SMALL, *PER_COLUMN, MASK, MIDDLE, np.zeros(24, np.int8)],
               {"num_heads": 4, "unidirectional": 1}),
        Sample([ROWS, numbers(8, 24), f32(24), SMALL, FINE, np.array([4, 2], np.int32), MIDDLE, MIDDLE],
               {"num_heads": 2, "mask_filter_value": -50.0}),
        Sample([ROWS, WEIGHTS, f32(24), SMALL, FINE, None, np.uint8(99), np.int8(2),
                f32(2, 2, 2, 3, 4)], {"num_heads": 2, "unidirectional": 1}, 2),
    ],
)  # fmt: skip
def qattention(
    g: Builder,
    xs: Sequence[Value | None],
    types: Types,
    *,
    mask_filter_value: float = -10000.0,
    num_heads: int,
    scale: float | None = None,
    unidirectional: int = 0,
    **_: Any,
) -> tuple[Value, ...] | None:
    """The sums of integers are exact before they are scaled; from there on it is Attention."""
    if not AttentionForm.possible(types):
        return None
    x, weight, bias, x_scale, w_scale, mask, x_zero, w_zero, past = xs
    sums = g.MatMulInteger(x, weight, None if x_zero is None else scalar(g, x_zero, types[6]), w_zero)
    factor = g.Mul(scalar(g, x_scale, types[3]), wide(g, w_scale))
    projected = g.Add(g.Mul(g.Cast(sums, to=DType.FLOAT.onnx), factor), wide(g, bias))
    form = [projected, None, None, mask, past, None]
    m = AttentionForm(g, form, [types[0], types[1], None, types[5], types[8], None], num_heads)
    sizes = [m.sizes[1][1] // 3] * 3
    return projected_form(m, projected, sizes, m.xs[4], None, mask_filter_value, scale, unidirectional)


@qattention.infer
def _(
    input: Tensor,
    weight: Tensor,
    bias: Tensor,
    input_scale: Tensor,
    weight_scale: Tensor,
    mask_index: Tensor | None = None,
    input_zero_point: Tensor | None = None,
    weight_zero_point: Tensor | None = None,
    past: Tensor | None = None,
    *,
    num_heads: int,
    **asked: Any,
) -> tuple[Tensor, ...]:
    check_absent(**{name: asked.get(name) for name in ("do_rotary", "past_present_share_buffer")})
    check_parts(input_scale, input_zero_point)
    check_columns(weight, weight_scale, weight_zero_point)
    if input.dims is not None and input.dims[-1] == 0:
        raise ShapeError(f"{input} has no elements to project")
    results = attention.inferred(input.to(DType.FLOAT), weight.to(DType.FLOAT), bias, mask_index, past,
                              num_heads=num_heads)  # fmt: skip
    return tuple(results)
