"""Operators of graphs whose sizes are rounded up (runtime/compile/padding.py): what lies behind the elements that count
is overwritten, or left out."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import ShapeError
from ..op import Builder, Context, Sample, Value, op
from ..types import Array, DType, Tensor, f32


def tail(X: Array, count: int, axis: int, outer: int) -> Array:
    """The view of what lies behind the first `count` rows of each of `outer` blocks of an axis."""
    blocks = X.reshape(*X.shape[:axis], outer, -1, *X.shape[axis + 1 :])
    return blocks[(slice(None),) * (axis + 1) + (slice(count, None),)]


@op(
    "FillTail",
    domain="mezzo",
    samples=[
        Sample([f32(2, 5, 3), np.int64(2)], {"axis": 1}),
        Sample([f32(6, 2), np.int64(1)], {"axis": 0, "outer": 2, "value": float("-inf")}),
        Sample([np.arange(4), np.int64(4)], {"axis": 0, "value": 7.0}),
    ],
)
def fill_tail(k: Context, X: Array, count: Array, *, axis: int, outer: int = 1, value: float = 0.0) -> Array:
    """X with `value` in the place of what lies behind the first `count` rows of each of `outer` equal blocks of an
    axis. An infinite `value` is the least or greatest number of integers."""
    result = k.xp.array(X, order="C")
    tail(result, int(count), axis, outer)[...] = fitting(value, DType.of(X.dtype))
    return result


def fitting(value: float, dtype: DType) -> Any:
    """The value in an element type, of whose least or greatest number an infinite one becomes."""
    if np.isinf(value) and dtype.numpy.kind in "iu":
        info = np.iinfo(dtype.numpy)
        return info.max if value > 0 else info.min
    return value > 0 if dtype is DType.BOOL else value


@fill_tail.infer
def _(X: Tensor, count: Tensor, *, axis: int, outer: int = 1) -> Tensor:
    size = X.shape[axis]
    if isinstance(size, int) and size % max(outer, 1):
        raise ShapeError(f"axis {axis} of {X} has no {outer} equal blocks")
    return X.forget()


@fill_tail.body
def _(g: Builder, xs: Any, types: Any, *, axis: int, outer: int = 1, value: float = 0.0) -> Value | None:
    known = types[0]
    if known.dims is None:
        return None
    size = g.Gather(g.shape_of(xs[0]), g.const(axis), axis=0)
    rows = g.Mod(g.Range(g.const(0), size, g.const(1)), g.Max(g.Div(size, g.const(max(outer, 1))), g.const(1)))
    behind = known.rank - 1 - axis % known.rank
    rows = g.Unsqueeze(rows, g.const(np.arange(1, behind + 1))) if behind else rows
    return g.Where(g.Less(rows, xs[1]), xs[0], g.const(fitting(value, known.dtype), known.dtype))


@op(
    "ConcatHeads",
    domain="mezzo",
    appends=((1, 0),),
    samples=[
        Sample([np.array([2, 1]), f32(2, 4, 3), f32(2, 1, 3)], {"axis": 1, "size": 5}),
        Sample([np.array([0, 3]), f32(4), f32(3)], {"axis": 0, "size": 4}),
    ],
)
def concat_heads(k: Context, counts: Array, *X: Array, axis: int, size: int) -> Array:
    """The first `counts[i]` rows of each operand along an axis, one behind the other, and zeros up to `size` rows."""
    shape = list(X[0].shape)
    shape[axis] = size
    result, at = k.xp.zeros(shape, X[0].dtype), 0
    for x, count in zip(X, counts.tolist(), strict=True):
        if not 0 <= count <= min(x.shape[axis], size - at):
            raise ShapeError(f"{count} rows of {x.shape[axis]}, behind {at}, are none of {size}")
        before = (slice(None),) * axis
        result[(*before, slice(at, at + count))] = x[(*before, slice(count))]
        at += count
    return result


@concat_heads.infer
def _(counts: Tensor, *X: Tensor, axis: int, size: int) -> Tensor:
    dims = None if X[0].dims is None else [size if a == axis else d for a, d in enumerate(X[0].dims)]
    return Tensor(X[0].dtype, dims if dims is None else tuple(dims))


@concat_heads.body
def _(g: Builder, xs: Any, types: Any, *, axis: int, size: int) -> Value:
    zero, along = g.const([0]), g.const([axis])
    counts = [g.Gather(xs[0], g.const([i]), axis=0) for i in range(len(xs) - 1)]
    heads = [g.Slice(x, zero, n, along) for x, n in zip(xs[1:], counts, strict=True)]
    missing = g.Sub(g.const([size]), g.ReduceSum(xs[0]))
    return g.Pad(g.Concat(*heads, axis=axis), g.Concat(zero, missing, axis=0), None, along)


@op(
    "ReverseHead",
    domain="mezzo",
    samples=[
        Sample([f32(5, 2), np.int64(3)], {"axis": 0}),
        Sample([f32(2, 4, 3), np.int64(4)], {"axis": 1}),
        Sample([np.arange(4), np.int64(0)], {"axis": 0}),
    ],
)
def reverse_head(k: Context, X: Array, count: Array, *, axis: int) -> Array:
    """The first `count` rows along an axis in the opposite order, and zeros behind them."""
    before, n = (slice(None),) * axis, int(count)
    if not 0 <= n <= X.shape[axis]:
        raise ShapeError(f"the first {n} of {X.shape[axis]}")
    result = k.xp.zeros(X.shape, X.dtype)
    result[(*before, slice(n))] = X[(*before, slice(n))][(*before, slice(None, None, -1))]
    return result


@reverse_head.infer
def _(X: Tensor, count: Tensor, *, axis: int) -> Tensor:
    return X.forget()


@reverse_head.body
def _(g: Builder, xs: Any, types: Any, *, axis: int) -> Value:
    along, size = g.const([axis]), g.Gather(g.shape_of(xs[0]), g.const([axis]), axis=0)
    count = g.Reshape(xs[1], g.const([1]))
    head = g.Slice(xs[0], g.const([0]), count, along)
    turned = g.Slice(head, g.const([-1]), g.const([-(1 << 62)]), along, g.const([-1]))
    return g.Pad(turned, g.Concat(g.const([0]), g.Sub(size, count), axis=0), None, along)
