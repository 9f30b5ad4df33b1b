"""The norm of several tensors together: that of a training step's gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..op import Builder, Context, Sample, Value, op
from ..types import Array, DType, Tensor, f32


@op(
    "TotalNorm",
    domain="mezzo",
    samples=[
        Sample([f32(2, 3), f32(4)]),
        Sample([np.array([[3.0]])]),
        Sample([np.zeros(2), f32(5), np.float16(2), np.zeros((0, 3), np.float32)]),
    ],
)
def total_norm(k: Context, *X: Array) -> Array:
    """Return the norm of all elements of all tensors, as of one long vector, in float32, or float64 where one is."""
    total = sum(k.xp.sum(x.astype(np.float64) ** 2) for x in X)
    return k.xp.sqrt(total).astype(_wide([DType.of(x.dtype) for x in X]).numpy)


def _wide(types: Sequence[DType]) -> DType:
    return DType.DOUBLE if DType.DOUBLE in types else DType.FLOAT


@total_norm.infer
def _(*X: Tensor) -> Tensor:
    return Tensor(_wide([x.dtype for x in X]), ())


@total_norm.body
def _(g: Builder, xs: Any, types: Any) -> Value:
    wide = _wide([t.dtype for t in types])
    squares = [g.Cast(g.ReduceSumSquare(x, keepdims=0), to=wide.onnx) for x in xs]
    return g.Sqrt(g.Sum(*squares))
