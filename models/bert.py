"""BERT (arXiv 1810.04805) as exporters write it: embeddings, an additive mask, attention in single operators, Gelu as
its formula with Erf."""

from __future__ import annotations

import numpy as np

from ..ops import DType
from ..ops.types import Tensor
from ..runtime.ir.graph import Graph, GraphBuilder
from .convnets import Weights, no_weights


def bert(
    batch: int | str = 1,
    weights: Weights = no_weights,
    *,
    layers: int = 12,
    width: int = 768,
    heads: int = 12,
    length: int | str = 128,
    vocabulary: int = 30522,
) -> Graph:
    """`input_ids`, `token_type_ids` and `attention_mask` int64 [batch, length] to the last hidden state float32
    [batch, length, width]. The defaults are BERT-base: 109 million parameters (without the pooler). A length that is a
    name is open, up to 512."""
    g = GraphBuilder("bert")
    tokens = Tensor(DType.INT64, (batch, length))
    ids, kinds, mask = (g.input(name, tokens) for name in ("input_ids", "token_type_ids", "attention_mask"))

    def number(value: float) -> str:
        return g.const(value, DType.FLOAT)

    def small(columns: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
        return np.float32(0.1) * weights((columns,))

    def dense(x: str, rows: int, columns: int) -> str:
        return g.Add(g.MatMul(x, g.const(weights((rows, columns)))), g.const(small(columns)))

    def normalised(x: str) -> str:
        scale, bias = g.const(1 + small(width)), g.const(small(width))
        return g.LayerNormalization(x, scale, bias, epsilon=1e-12)

    def split(x: str, order: list[int]) -> str:
        return g.Transpose(g.Reshape(x, g.const([0, 0, heads, width // heads])), perm=order)

    def gelu(x: str) -> str:
        return g.Mul(g.Mul(x, g.Add(g.Erf(g.Div(x, number(2**0.5))), number(1))), number(0.5))

    words, types, places = (g.const(weights((n, width))) for n in (vocabulary, 2, 512))
    summed = g.Add(g.Gather(words, ids), g.Gather(types, kinds))
    if isinstance(length, str):
        end = g.Shape(ids, start=1, end=2)
        order = g.Slice(g.const(np.arange(512)[None]), g.const([0]), end, g.const([1]))
    else:
        order = g.const(np.arange(length)[None])
    x = normalised(g.Add(summed, g.Gather(places, order)))
    # -10000 where the mask is 0: what is added to the scores, so that the softmax leaves these out
    seen = g.Cast(g.Unsqueeze(g.Unsqueeze(mask, g.const([1])), g.const([2])), to=DType.FLOAT.onnx)
    unseen = g.Mul(g.Sub(number(1), seen), number(-10000))
    for _ in range(layers):
        query, key, value = (dense(x, width, width) for _ in range(3))
        scores = g.MatMul(split(query, [0, 2, 1, 3]), split(key, [0, 2, 3, 1]))
        chances = g.Softmax(g.Add(g.Div(scores, number((width // heads) ** 0.5)), unseen), axis=-1)
        mixed = g.MatMul(chances, split(value, [0, 2, 1, 3]))
        joined = g.Reshape(g.Transpose(mixed, perm=[0, 2, 1, 3]), g.const([0, 0, width]))
        x = normalised(g.Add(dense(joined, width, width), x))
        x = normalised(g.Add(dense(gelu(dense(x, width, 4 * width)), 4 * width, width), x))
    return g.graph([x])
