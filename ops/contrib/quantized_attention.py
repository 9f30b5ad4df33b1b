"""QAttention of the domain com.microsoft: what the quantisation tool makes of Attention.

https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import ShapeError
from ..op import Builder, Context, Sample, Value, op
from ..quantization.quantized import apart
from ..types import Array, DType, Tensor, Type, f32
from .attention import MASK, _unsupported, attention, projected_attention, projected_form
from .attention_form import AttentionForm
from .fused import Types
from .quantized import _check_parts, _scalar, numbers
from .quantized_parts import check_columns

FINE, SMALL = np.float32(0.004), np.float32(0.02)
MIDDLE = np.uint8(128)
ROWS, WEIGHTS = numbers(2, 4, 8), numbers(8, 24, dtype=np.int8)
PER_COLUMN: list[Any] = [np.linspace(0.002, 0.006, 24, dtype=np.float32)]


@op(
    "QAttention",
    domain="com.microsoft",
    written_out=True,
    since=1,
    outputs=("output", "present?"),
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
    k: Context,
    input: Array,
    weight: Array,
    bias: Array,
    input_scale: Array,
    weight_scale: Array,
    mask_index: Array | None = None,
    input_zero_point: Array | None = None,
    weight_zero_point: Array | None = None,
    past: Array | None = None,
    *,
    do_rotary: int | None = None,
    mask_filter_value: float = -10000.0,
    num_heads: int,
    past_present_share_buffer: int | None = None,
    scale: float | None = None,
    unidirectional: int = 0,
) -> tuple[Array, ...]:
    """The sums of whole numbers are exact before they are scaled; from there on it is Attention."""
    sums = k.xp.asarray(k.xp.matmul(apart(input, input_zero_point), apart(weight, weight_zero_point)))
    projected = sums.astype(np.float32) * (input_scale * weight_scale) + bias
    return projected_attention(
        k, projected, [weight.shape[1] // 3] * 3, mask_index, past, None,
        mask_filter_value=mask_filter_value, num_heads=num_heads, scale=scale, unidirectional=unidirectional,
    )  # fmt: skip


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
    do_rotary: int | None = None,
    num_heads: int,
    past_present_share_buffer: int | None = None,
) -> tuple[Tensor, ...]:
    _unsupported(do_rotary=do_rotary, past_present_share_buffer=past_present_share_buffer)
    _check_parts(input_scale, input_zero_point)
    check_columns(weight, weight_scale, weight_zero_point)
    if input.dims is not None and input.dims[-1] == 0:
        raise ShapeError(f"{input} has no elements to project")
    made = attention.inferred(input.to(DType.FLOAT), weight.to(DType.FLOAT), bias, mask_index, past,
                              num_heads=num_heads)  # fmt: skip
    return tuple(made)


@qattention.body
def _(
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
    if not AttentionForm.possible(types):
        return None
    operands: list[Value | None] = [*xs, *[None] * (9 - len(xs))]
    x, weight, bias, x_scale, w_scale, mask, x_zero, w_zero, past = operands
    kinds: list[Type | None] = [*types, *[None] * (9 - len(types))]
    sums = g.MatMulInteger(x, weight, None if x_zero is None else _scalar(g, x_zero, kinds[6]), w_zero)
    factor = g.Mul(_scalar(g, x_scale, kinds[3]), w_scale)
    projected = g.Add(g.Mul(g.Cast(sums, to=DType.FLOAT.onnx), factor), bias)
    form = [projected, None, None, mask, past, None]
    m = AttentionForm(g, form, [kinds[0], kinds[1], None, kinds[5], kinds[8], None], num_heads)
    sizes = [m.sizes[1][1] // 3] * 3
    return projected_form(m, projected, sizes, m.xs[4], None, mask_filter_value, scale, unidirectional)
