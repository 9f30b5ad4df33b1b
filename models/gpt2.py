"""GPT-2 (Radford et al. 2019) as Hugging Face's exporters write it, with caches: a past in, a present out."""

from __future__ import annotations

import numpy as np

from ..ops import DType
from ..ops.types import Tensor, f32
from ..runtime.ir.graph import Graph, GraphBuilder, Node
from .convnets import Weights, no_weights


def gpt2(
    batch: int | str = "batch",
    weights: Weights = no_weights,
    *,
    layers: int = 12,
    width: int = 768,
    heads: int = 12,
    vocabulary: int = 50257,
    places: int = 1024,
) -> Graph:
    """`input_ids` and `position_ids` int64 [batch, length], `attention_mask` int64 [batch, past + length] and, for each
    layer, `past_key_values.N.key` and `.value` float32 [batch, heads, past, width / heads] to `logits` float32 [batch,
    length, vocabulary] and `present.N.key` and `.value` with the new rows behind the past. The defaults are the small
    GPT-2: 124 million parameters, the embeddings used twice.
    """
    g = GraphBuilder("gpt2")
    tokens = Tensor(DType.INT64, (batch, "length"))
    ids, positions = g.input("input_ids", tokens), g.input("position_ids", tokens)
    mask = g.input("attention_mask", Tensor(DType.INT64, (batch, "total")))
    past = f32(batch, heads, "past", width // heads)
    pasts = [[g.input(f"past_key_values.{n}.{kind}", past) for kind in ("key", "value")] for n in range(layers)]

    def dense(x: str, rows: int, columns: int) -> str:
        bias = g.const(np.float32(0.1) * weights((columns,)))
        return g.Add(g.MatMul(x, g.const(weights((rows, columns)))), bias)

    def normalised(x: str) -> str:
        scale, bias = (g.const(one + np.float32(0.1) * weights((width,))) for one in np.array([1, 0], np.float32))
        return g.LayerNormalization(x, scale, bias, epsilon=1e-5)

    def split(x: str) -> str:
        return g.Transpose(g.Reshape(x, g.const([0, 0, heads, width // heads])), perm=[0, 2, 1, 3])

    def present(name: str, past: str, new: str) -> str:
        g.add(Node("Concat", (past, split(new)), (name,), {"axis": 2}))
        return name

    words, where = (g.const(weights((count, width))) for count in (vocabulary, places))
    x = g.Add(g.Gather(words, ids), g.Gather(where, positions))
    seen = _seen(g, ids, mask)
    presents: list[str] = []
    for n, (keys, values) in enumerate(pasts):
        query, key, value = g.op("Split", dense(normalised(x), width, 3 * width), outputs=3, axis=-1, num_outputs=3)
        key = present(f"present.{n}.key", keys, key)
        value = present(f"present.{n}.value", values, value)
        presents += [key, value]
        scores = g.MatMul(split(query), g.Transpose(key, perm=[0, 1, 3, 2]))
        scores = g.Mul(scores, g.const((width // heads) ** -0.5, DType.FLOAT))
        scores = g.Where(seen, scores, g.const(np.finfo(np.float32).min))
        mixed = g.Transpose(g.MatMul(g.Softmax(scores, axis=-1), value), perm=[0, 2, 1, 3])
        x = g.Add(x, dense(g.Reshape(mixed, g.const([0, 0, width])), width, width))
        x = g.Add(x, dense(_gelu(g, dense(normalised(x), width, 4 * width)), 4 * width, width))
    g.add(Node("MatMul", (normalised(x), g.Transpose(words, perm=[1, 0])), ("logits",)))
    return g.graph(["logits", *presents])


def _seen(g: GraphBuilder, ids: str, mask: str) -> str:
    """Booleans [batch, 1, length, total]: the tokens that each new one looks at, itself and those before it that the
    mask leaves."""
    total, new = (g.Gather(g.Shape(x), g.const(1)) for x in (mask, ids))
    keys = g.Range(g.const(0), total, g.const(1))
    queries = g.Range(g.Sub(total, new), total, g.const(1))
    before = g.LessOrEqual(g.Unsqueeze(keys, g.const([0])), g.Unsqueeze(queries, g.const([1])))
    return g.And(before, g.Unsqueeze(g.Cast(mask, to=DType.BOOL.onnx), g.const([1, 2])))


def _gelu(g: GraphBuilder, x: str) -> str:
    """The approximation with tanh, by its formula."""

    def number(value: float) -> str:
        return g.const(value, DType.FLOAT)

    cubed = g.Add(x, g.Mul(number(0.044715), g.Pow(x, number(3))))
    return g.Mul(g.Mul(number(0.5), x), g.Add(number(1), g.Tanh(g.Mul(number((2 / np.pi) ** 0.5), cubed))))
