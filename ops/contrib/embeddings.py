"""Embeddings of the domain com.microsoft: rows of several tables, summed and normalised.

https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..core.composed import composed
from ..core.rules import has_dims, has_rank, same
from ..core.shapes import cast_like, wide
from ..errors import ShapeError
from ..op import Builder, Sample, Value
from ..types import Dim, DType, Tensor, f32
from .fused import Types
from .quantized import check_parts, numbers, scalar

IDS = np.array([[1, 0, 4, 2], [3, 3, 0, 1]], np.int32)
TABLES = [f32(6, 8), f32(5, 8)]
MASK = np.array([[1, 1, 1, 0], [1, 1, 0, 0]], np.int32)
SMALL, MIDDLE = np.float32(0.02), np.uint8(128)


def _embedded(
    g: Builder,
    real: Callable[[int, Value], Value],
    tables: Sequence[Any],
    ids: Value,
    segments: Value | None,
    positions: Value | None,
    mask: Value | None,
    epsilon: float,
) -> tuple[Value, Value, Value]:
    """The rows that are picked of words, positions and segments, summed and normalised; how many places of each text
    the mask shows; and the sum. `tables` are these, the slope and the offset; `real` makes numbers of a part of one.
    Without the numbers of segments, all places are of the first."""
    words, places, kinds, gamma, beta = tables
    batch, length = (g.Slice(g.shape_of(ids), g.const([i]), g.const([i + 1]), g.const([0])) for i in (0, 1))
    first = g.Slice(places, g.const([0]), length, g.const([0])) if positions is None else g.Gather(places, positions)
    summed = g.Add(real(0, g.Gather(words, ids)), real(1, first))
    if kinds is not None:
        first_kinds = g.Expand(g.const(0), g.shape_of(ids))
        summed = g.Add(summed, real(2, g.Gather(kinds, first_kinds if segments is None else segments)))
    y = g.LayerNormalization(summed, real(3, gamma), real(4, beta), epsilon=epsilon)
    if mask is None:
        return y, g.Expand(g.const(0, DType.INT32), batch), summed
    seen = g.Cast(g.Equal(mask, g.scalar(1, mask)), to=DType.INT32.onnx)
    return y, g.ReduceSum(seen, g.const([1]), keepdims=0), summed


@composed(
    "EmbedLayerNormalization",
    domain="com.microsoft",
    inputs=(
        *("input_ids", "segment_ids?", "word_embedding", "position_embedding", "segment_embedding?", "gamma", "beta"),
        *("mask?", "position_ids?"),
    ),
    outputs=("output", "mask_index?", "embedding_sum?"),
    samples=[
        Sample([IDS, IDS % 2, *TABLES, f32(2, 8), f32(8), f32(8), MASK], outputs=3),
        Sample([IDS, None, *TABLES, None, f32(8), f32(8)], {"epsilon": 1e-3}, 2),
        Sample(
            [IDS, None, *TABLES, None, f32(8), f32(8), MASK, np.array([[3, 2, 1, 0]], np.int32)], {"epsilon": 1e-5}, 2
        ),
        Sample([IDS, IDS % 2, *TABLES, f32(2, 8), f32(8), f32(8), None, IDS], {"mask_index_type": 0}),
        Sample([IDS, None, *TABLES, f32(2, 8), f32(8), f32(8)], outputs=2),
    ],
)
def embed_layer_normalization(
    g: Builder, xs: Sequence[Value | None], types: Types, *, epsilon: float = 1e-12, mask_index_type: int | None = None
) -> tuple[Value, ...]:
    ids, segments, *tables, mask, positions = xs
    y, counts, summed = _embedded(g, lambda _, x: wide(g, x), tables, ids, segments, positions, mask, epsilon)
    return cast_like(g, y, xs[2]), counts, cast_like(g, summed, xs[2])


@embed_layer_normalization.infer
def _(
    input_ids: Tensor,
    segment_ids: Tensor | None,
    word_embedding: Tensor,
    position_embedding: Tensor,
    segment_embedding: Tensor | None,
    gamma: Tensor,
    beta: Tensor,
    mask: Tensor | None = None,
    position_ids: Tensor | None = None,
) -> tuple[Tensor, ...]:
    if segment_ids is not None and segment_embedding is None:
        raise ShapeError("segment_ids are of no table", hint="give segment_embedding too, or neither")
    has_rank(input_ids, 2)
    batch, length = input_ids.dims or (None, None)
    hidden: Dim = None
    for table, rank in ((word_embedding, 2), (position_embedding, 2), (segment_embedding, 2), (gamma, 1), (beta, 1)):
        if table is not None and table.dims is not None:
            has_rank(table, rank)
            hidden = same(hidden, table.dims[-1], f"{word_embedding} and {table} differ in width")
    for beside in (segment_ids, mask, position_ids):
        if beside is not None:
            alike = beside is position_ids and beside.dims and beside.dims[0] == 1
            has_dims(beside, (1 if alike else batch, length), f"{input_ids}")
    places = position_embedding.dims[0] if position_embedding.dims else None
    if position_ids is None and isinstance(places, int) and isinstance(length, int) and places < length:
        raise ShapeError(f"{length} places, of which {position_embedding} has {places}")
    y = word_embedding.of((batch, length, hidden))
    return y, Tensor(DType.INT32, (batch,)), y


def _table(rows: int, seed: int) -> list[Any]:
    return [numbers(rows, 8, seed=seed), SMALL, MIDDLE]


WORDS, PLACES, KINDS = (_table(rows, seed) for seed, rows in enumerate((6, 5, 2)))
GAMMA, BETA = ([numbers(8, seed=seed), SMALL, MIDDLE] for seed in (3, 4))


def _operands(mask: Any = None, kinds: Any = KINDS, ids: Any = IDS % 2) -> list[Any]:
    parts = [WORDS, PLACES, kinds, GAMMA, BETA]
    return [IDS, ids, *(p[0] for p in parts), mask, *(p[1] for p in parts), *(p[2] for p in parts)]


PARTS = ("word_embedding", "position_embedding", "segment_embedding", "gamma", "beta")
ABSENT = "segment_embedding"  # which may be


@composed(
    "QEmbedLayerNormalization",
    domain="com.microsoft",
    inputs=(
        *("input_ids", "segment_ids?", "word_embedding_quant", "position_embedding_quant", "segment_embedding?"),
        *("gamma_quant", "beta_quant", "mask?"),
        *(f"{part}_scale{'?' * (part == ABSENT)}" for part in PARTS),
        *(f"{part}_zero_point{'?' * (part == ABSENT)}" for part in PARTS),
    ),
    outputs=("layernorm_out", "mask_index_out"),
    samples=[
        Sample(_operands(MASK), outputs=2),
        Sample(_operands(), {"epsilon": 1e-3}, 2),
        Sample(_operands(MASK, [None] * 3, None), {"epsilon": 1e-5}, 2),
    ],
)
def qembed_layer_normalization(
    g: Builder, xs: Sequence[Value | None], types: Types, *, epsilon: float = 1e-12
) -> tuple[Value, ...]:
    """Only the rows that are picked are dequantised."""
    ids, segments, *tables, mask = xs[:8]
    parts = [None if x is None else scalar(g, x, t) for x, t in zip(xs[8:], types[8:], strict=True)]

    def dequantised(i: int, x: Value) -> Value:
        return g.DequantizeLinear(x, parts[i], parts[5 + i])

    y, counts, _ = _embedded(g, dequantised, tables, ids, segments, None, mask, epsilon)
    return y, counts


@qembed_layer_normalization.infer
def _(input_ids: Tensor, segment_ids: Tensor | None, *others: Tensor | None) -> tuple[Tensor, ...]:
    tables, mask, parts = others[:5], others[5], others[6:]
    check_parts(*parts)
    if len({x is None for x in (segment_ids, tables[2], parts[2], parts[7])}) > 1:
        raise ShapeError(
            "segment_ids, segment_embedding, its scale and its zero point come together or not at all",
            hint="correct the node",
        )
    y, counts, _ = embed_layer_normalization.inferred(input_ids, segment_ids, *tables, mask)
    return y.to(DType.FLOAT), counts
