"""Embeddings and attention on quantised operands, of the domain com.microsoft: what the quantisation tool makes of
EmbedLayerNormalization and Attention.

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
from .attention import (
    IDS,
    MASK,
    _unsupported,
    attention,
    embed_layer_normalization,
    projected_attention,
    projected_form,
)
from .attention_form import AttentionForm
from .fused import Types, normalised
from .quantized import _check_parts, _scalar, numbers, real

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
    whole = None if weight.dims is None else weight.dims[-1]
    for part in (weight_scale, weight_zero_point):
        if part is not None and isinstance(whole, int) and part.elements not in (None, 1, whole):
            raise ShapeError(f"{part} has not one entry for each column of {weight}")
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


def _table(rows: int, seed: int) -> list[Any]:
    return [numbers(rows, 8, seed=seed), SMALL, MIDDLE]


WORDS, PLACES, KINDS = (_table(rows, seed) for seed, rows in enumerate((6, 5, 2)))
GAMMA, BETA = ([numbers(8, seed=seed), SMALL, MIDDLE] for seed in (3, 4))


def _operands(mask: Any = None, kinds: Any = KINDS, ids: Any = IDS % 2) -> list[Any]:
    parts = [WORDS, PLACES, kinds, GAMMA, BETA]
    return [IDS, ids, *(p[0] for p in parts), mask, *(p[1] for p in parts), *(p[2] for p in parts)]


@op(
    "QEmbedLayerNormalization",
    domain="com.microsoft",
    since=1,
    outputs=("layernorm_out", "mask_index_out"),
    samples=[
        Sample(_operands(MASK), outputs=2),
        Sample(_operands(), {"epsilon": 1e-3}, 2),
        Sample(_operands(MASK, [None] * 3, None), {"epsilon": 1e-5}, 2),
    ],
)
def qembed_layer_normalization(
    k: Context,
    input_ids: Array,
    segment_ids: Array | None,
    word_embedding_quant: Array,
    position_embedding_quant: Array,
    segment_embedding: Array | None,
    gamma_quant: Array,
    beta_quant: Array,
    mask: Array | None,
    word_embedding_scale: Array,
    position_embedding_scale: Array,
    segment_embedding_scale: Array | None,
    gamma_scale: Array,
    beta_scale: Array,
    word_embedding_zero_point: Array,
    position_embedding_zero_point: Array,
    segment_embedding_zero_point: Array | None,
    gamma_zero_point: Array,
    beta_zero_point: Array,
    *,
    epsilon: float = 1e-12,
) -> tuple[Array, ...]:
    """Only the rows that are picked are dequantised."""
    words = real(word_embedding_quant[input_ids], word_embedding_scale, word_embedding_zero_point)
    places = position_embedding_quant[: input_ids.shape[1]]
    summed = words + real(places, position_embedding_scale, position_embedding_zero_point)
    if segment_ids is not None and segment_embedding is not None and segment_embedding_scale is not None:
        summed = summed + real(segment_embedding[segment_ids], segment_embedding_scale, segment_embedding_zero_point)
    gamma = real(gamma_quant, gamma_scale, gamma_zero_point)
    y, _, _ = normalised(k.xp, summed, gamma, real(beta_quant, beta_scale, beta_zero_point), epsilon)
    counted = k.xp.zeros(input_ids.shape[0], np.int32) if mask is None else (mask == 1).sum(1).astype(np.int32)
    return y, counted


@qembed_layer_normalization.infer
def _(
    input_ids: Tensor,
    segment_ids: Tensor | None,
    word_embedding_quant: Tensor,
    position_embedding_quant: Tensor,
    segment_embedding: Tensor | None,
    gamma_quant: Tensor,
    beta_quant: Tensor,
    mask: Tensor | None = None,
    *parts: Tensor | None,
) -> tuple[Tensor, ...]:
    _check_parts(*parts)
    y, counted, _ = embed_layer_normalization.inferred(
        input_ids, segment_ids, word_embedding_quant, position_embedding_quant, segment_embedding, gamma_quant,
        beta_quant, mask,
    )  # fmt: skip
    return y.to(DType.FLOAT), counted


@qembed_layer_normalization.body
def _(g: Builder, xs: Sequence[Value | None], types: Types, *, epsilon: float = 1e-12) -> tuple[Value, ...]:
    ids, segments, *tables, mask = xs[:8]
    parts = [None if x is None else _scalar(g, x, t) for x, t in zip(xs[8:], types[8:], strict=True)]

    def dequantised(i: int, rows: Value) -> Value:
        return g.DequantizeLinear(rows, parts[i], parts[5 + i])

    batch, length = (g.Slice(g.shape_of(ids), g.const([i]), g.const([i + 1]), g.const([0])) for i in (0, 1))
    places = g.Slice(tables[1], g.const([0]), length, g.const([0]))
    summed = g.Add(dequantised(0, g.Gather(tables[0], ids, axis=0)), dequantised(1, places))
    if segments is not None and tables[2] is not None:
        summed = g.Add(summed, dequantised(2, g.Gather(tables[2], segments, axis=0)))
    y = g.LayerNormalization(summed, dequantised(3, tables[3]), dequantised(4, tables[4]), epsilon=epsilon)
    if mask is None:
        return y, g.Expand(g.const(0, DType.INT32), batch)
    seen = g.Cast(g.Equal(mask, g.scalar(1, mask)), to=DType.INT32.onnx)
    return y, g.ReduceSum(seen, g.const([1]), keepdims=0)
