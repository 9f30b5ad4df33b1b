"""The derivative of broadcasting, and helpers that gradient rules share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import ShapeError
from ..op import Body, Builder, Context, Sample, Value, op
from ..types import Array, Tensor, Type, f32
from ..types import Sequence as SequenceType
from .rules import ints


@op(
    "SumTo",
    domain="mezzo",
    complex_numbers="direct",
    samples=[
        Sample([f32(2, 3, 4), np.array([3, 1])]),
        Sample([f32(2, 3), np.array([2, 3])]),
        Sample([f32(2, 1), np.array([], np.int64)]),
    ],
)
def sum_to(k: Context, X: Array, shape: Array) -> Array:
    """The sum of X over the dims that broadcasting a tensor of `shape` to the shape of X would add or stretch."""
    sizes = ints(shape)
    more = X.ndim - len(sizes)
    if more < 0 or any(n not in (1, m) for n, m in zip(sizes, X.shape[more:], strict=True)):
        raise ShapeError(f"{list(X.shape)} is no broadcast of {sizes}")
    axes = (*range(more), *(i for i, n in enumerate(sizes, more) if n != X.shape[i]))
    summed = X.sum(axes, keepdims=True, dtype=None if X.dtype.itemsize >= 4 else np.float32)
    return k.xp.array(summed.reshape(sizes).astype(X.dtype, copy=False))


@sum_to.infer
def _(X: Tensor, shape: Tensor) -> Type:
    sizes = shape.ints()
    if sizes is not None:
        return X.of(sizes)
    rank = shape.dims[0] if shape.dims else None
    return X.of((None,) * rank if isinstance(rank, int) else None)


@sum_to.body
def _(g: Builder, xs: Any, types: Any) -> Value | None:
    X, shape = xs
    rank = types[1].dims[0] if types[1] is not None and types[1].dims else None
    if types[0] is None or types[0].dims is None or not isinstance(rank, int):
        return None
    more = len(types[0].dims) - rank
    full = g.Concat(g.const(np.ones(more, np.int64)), shape, axis=0) if more else shape
    ones = g.Squeeze(g.NonZero(g.Equal(full, g.const(1))), g.const([0]))
    return g.Reshape(g.ReduceSum(X, ones, keepdims=1, noop_with_empty_axes=1), shape)


@sum_to.grad
def _(g: Builder, dys: Any, ys: Any, xs: Any) -> tuple[Value | None, ...]:
    return g.Expand(dys[0], g.shape_of(xs[0])), None


def zeros_like(g: Builder, x: Value) -> Value:
    """Zeros of the element type and shape of another value; of a sequence, a sequence of them."""
    known = g.type_of(x)
    if isinstance(known, SequenceType):
        return g.SequenceMap(x, body=Body([known.element], lambda b, v: (zeros_like(b, v),)))
    return g.Expand(g.scalar(0, x), g.shape_of(x))


def spread(g: Builder, dy: Value, x: Value, axes: Sequence[int]) -> Value:
    """`dy`, which lost these axes of `x` (counted from the front) in a reduction, in the shape of `x`."""
    kept = g.Unsqueeze(dy, g.const(np.array(axes, np.int64))) if len(axes) else dy
    return g.Expand(kept, g.shape_of(x))
