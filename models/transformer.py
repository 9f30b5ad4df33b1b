"""A transformer encoder (arXiv 1706.03762) as a graph, of any size, with random weights."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..ops import DType
from ..ops.types import f32
from ..runtime.ir.graph import Graph, GraphBuilder
from .convnets import Weights, no_weights


def encoder(
    layers: int = 4,
    width: int = 256,
    heads: int = 4,
    *,
    batch: int | str = "batch",
    length: int | str = "length",
    seed: int = 0,
) -> Graph:
    """`x` float32 [batch, length, width] to `y` of the same shape: attention and a feed-forward network of four times
    the width in each layer, each added to its input and normalised."""
    g, rng = GraphBuilder("encoder"), np.random.default_rng(seed)

    def weights(shape: tuple[int, ...]) -> NDArray[np.float32]:
        return rng.standard_normal(shape, np.float32) * np.float32(shape[0] ** -0.5)

    return g.graph([_encoded(g, g.input("x", f32(batch, length, width)), weights, layers, width, heads)])


def classifier(
    batch: int | str = 1,
    weights: Weights = no_weights,
    *,
    layers: int = 4,
    width: int = 256,
    heads: int = 4,
    length: int = 128,
    classes: int = 10,
) -> Graph:
    """The encoder with a linear layer over the mean of its answer: `x` float32 [batch, length, width] to scores."""
    g = GraphBuilder("transformer")
    x = _encoded(g, g.input("x", f32(batch, length, width)), weights, layers, width, heads)
    mean = g.ReduceMean(x, g.const([1]), keepdims=0)
    return g.graph([g.Gemm(mean, g.const(weights((classes, width))), g.const(weights((classes,))), transB=1)])


def _encoded(g: GraphBuilder, x: str, weights: Weights, layers: int, width: int, heads: int) -> str:
    def dense(x: str, rows: int, columns: int) -> str:
        return g.Add(g.MatMul(x, g.const(weights((rows, columns)))), g.const(np.zeros(columns, np.float32)))

    def normalised(x: str) -> str:
        ones, zeros = (g.const(np.full(width, v, np.float32)) for v in (1, 0))
        return g.LayerNormalization(x, ones, zeros)

    def split(x: str, order: list[int]) -> str:
        return g.Transpose(g.Reshape(x, g.const([0, 0, heads, width // heads])), perm=order)

    for _ in range(layers):
        query, key, value = (dense(x, width, width) for _ in range(3))
        scores = g.MatMul(split(query, [0, 2, 1, 3]), split(key, [0, 2, 3, 1]))
        scaled = g.Mul(scores, g.const((width // heads) ** -0.5, DType.FLOAT))
        mixed = g.MatMul(g.Softmax(scaled), split(value, [0, 2, 1, 3]))
        joined = g.Reshape(g.Transpose(mixed, perm=[0, 2, 1, 3]), g.const([0, 0, width]))
        x = normalised(g.Add(x, dense(joined, width, width)))
        x = normalised(g.Add(x, dense(g.Relu(dense(x, width, 4 * width)), 4 * width, width)))
    return x
