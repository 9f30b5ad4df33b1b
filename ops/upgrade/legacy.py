"""Operators that ONNX once had and that have no equal of one node today. They live in the domain `mezzo`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..op import Builder, Context, Sample, Value, op
from ..types import Array, Type, f32


def _rows(x: Array, axis: int) -> Array:
    """The matrix that opsets before 13 made of a tensor: dims before `axis` by the others."""
    at = axis + x.ndim if axis < 0 else axis
    return x.reshape(int(np.prod(x.shape[:at], dtype=np.int64)), int(np.prod(x.shape[at:], dtype=np.int64)))


def _shifted(k: Context, x: Array, axis: int) -> tuple[Array, Array]:
    rows = _rows(x, axis)
    if not rows.size:
        return rows, rows
    moved = rows - rows.max(1, keepdims=True)
    return moved, k.xp.exp(moved)


OLD_SOFTMAX_SAMPLES = [
    Sample([f32(2, 3)]),
    Sample([f32(2, 3, 4)], {"axis": 1}),
    Sample([f32(2, 3, 4)], {"axis": -1}),
    Sample([f32(2, 3, 1, 1)], {"axis": 0}),
]


@op("SoftmaxFlattened", domain="mezzo", since=1, samples=OLD_SOFTMAX_SAMPLES)
def softmax_flattened(k: Context, x: Any, *, axis: int = 1) -> Any:
    """Softmax as ONNX had it before opset 13: over all dims from `axis` on together."""
    _, e = _shifted(k, x, axis)
    return (e / e.sum(1, keepdims=True)).reshape(x.shape)


@softmax_flattened.body
def _(g: Builder, xs: Sequence[Value], types: Sequence[Type | None], *, axis: int = 1) -> Value:
    return g.Reshape(g.Softmax(g.Flatten(xs[0], axis=axis), axis=1), g.shape_of(xs[0]))


@op("LogSoftmaxFlattened", domain="mezzo", since=1, samples=OLD_SOFTMAX_SAMPLES)
def log_softmax_flattened(k: Context, x: Any, *, axis: int = 1) -> Any:
    """LogSoftmax as ONNX had it before opset 13: over all dims from `axis` on together."""
    moved, e = _shifted(k, x, axis)
    return (moved - k.xp.log(e.sum(1, keepdims=True))).reshape(x.shape)


@log_softmax_flattened.body
def _(g: Builder, xs: Sequence[Value], types: Sequence[Type | None], *, axis: int = 1) -> Value:
    return g.Reshape(g.LogSoftmax(g.Flatten(xs[0], axis=axis), axis=1), g.shape_of(xs[0]))
