"""Parts of gradients of indexing operators: a small tensor added into zeros at given places, as a dense tensor or as
its non-zero rows."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ..core.rules import axis_of, in_table, ints, narrow, sliced, widen
from ..errors import ShapeError
from ..op import Builder, Context, Sample, Value, op
from ..types import Array, DType, Tensor, f32, i64


def _list(*values: int) -> np.ndarray[Any, Any]:
    return np.array(values, np.int64)


def shaped(like: Tensor, shape: Tensor) -> Tensor:
    """The type of a tensor of the shape that a vector holds."""
    sizes = shape.ints()
    if sizes is not None:
        return like.of(sizes)
    rank = shape.dims[0] if shape.dims else None
    return like.of((None,) * rank if isinstance(rank, int) else None)


def untaken(xp: Any, dy: Array, places: Array, size: int, axis: int) -> Array:
    """The transpose of `take(places, axis)` from an axis of `size`: slices of `dy` that show one place are summed."""
    before, after = math.prod(dy.shape[:axis]), math.prod(dy.shape[axis + 1 :])
    if places.size and not (-size <= places.min() and places.max() < size):
        raise ShapeError(f"an index is outside an axis of {size}", hint=f"indices run from {-size} to {size - 1}")
    x = widen(dy)
    sums = xp.zeros(before * size * after, x.dtype)
    rows = xp.arange(before)[:, None] * size + xp.where(places < 0, places + size, places)
    xp.add.at(sums, (rows[:, :, None] * after + xp.arange(after)).ravel(), x.ravel())
    return narrow(sums.reshape(*dy.shape[:axis], size, *dy.shape[axis + 1 :]), dy.dtype)


def unmoved(g: Builder, dy: Value, shape: Value, move: Callable[[Value], Value]) -> Value:
    """The transpose of an operator that only moves elements, in standard operators: `move` is given the places of all
    elements of a tensor of `shape`, and returns the place that each element of `dy` came from."""
    count = g.ReduceProd(shape, keepdims=1)
    places = g.Range(g.const(0), g.Squeeze(count, g.const([0])), g.const(1))
    came = move(g.Reshape(places, shape, allowzero=1))
    flat = g.const([-1])
    sums = g.ScatterElements(
        g.Expand(g.scalar(0, dy), count), g.Reshape(came, flat), g.Reshape(dy, flat), reduction="add"
    )
    return g.Reshape(sums, shape, allowzero=1)


@op(
    "GatherGrad",
    domain="mezzo",
    complex_numbers="direct",
    samples=[
        Sample([f32(2, 2, 3), np.array([[0, -1], [2, 2]]), _list(4, 3)]),
        Sample([f32(4), np.array(1), _list(4, 3)], {"axis": 1}),
        Sample([f32(2, 3, 2), np.array([1, 0, 1], np.int32), _list(2, 2, 2)], {"axis": -2}),
        Sample([f32(0, 3), i64(0), _list(4, 3)]),
        Sample([f32(), np.array(-1), _list(4)]),
    ],
)
def gather_grad(k: Context, dY: Array, indices: Array, shape: Array, *, axis: int = 0) -> Array:
    """Zeros of `shape`, to which the slices of dY are added at the places that Gather took them from."""
    sizes = ints(shape)
    at = axis_of(axis, len(sizes))
    slices = dY.reshape(*sizes[:at], indices.size, *sizes[at + 1 :])
    return untaken(k.xp, slices, indices.ravel(), sizes[at], at)


@gather_grad.infer
def _(dY: Tensor, indices: Tensor, shape: Tensor) -> Tensor:
    return shaped(dY, shape)


@gather_grad.body
def _(g: Builder, xs: Any, types: Any, *, axis: int = 0) -> Value | None:
    dY, indices, shape = xs
    if types[0].dims is None or types[1].dims is None:
        return None
    more = len(types[1].dims)
    rank = len(types[0].dims) - more + 1
    at = axis_of(axis, rank)
    if types[1].dtype is not DType.INT64:
        indices = g.Cast(indices, to=DType.INT64.onnx)
    if at:  # the indexed axes go to the front, and the sum back
        dY = g.Transpose(dY, perm=[*range(at, at + more), *range(at), *range(at + more, rank - 1 + more)])
        shape = g.Gather(shape, g.const([at, *range(at), *range(at + 1, rank)]))
    places = g.Unsqueeze(indices, g.const([-1]))
    sums = g.ScatterND(g.Expand(g.scalar(0, dY), shape), places, dY, reduction="add")
    return g.Transpose(sums, perm=[*range(1, at + 1), 0, *range(at + 1, rank)]) if at else sums


@gather_grad.grad
def _(g: Builder, dys: Any, ys: Any, xs: Any, *, axis: int = 0) -> tuple[Value | None, ...]:
    return g.Gather(dys[0], xs[1], axis=axis), None, None


@op(
    "GatherGradRows",
    domain="mezzo",
    outputs=("ids", "rows"),
    samples=[
        Sample([f32(2, 2, 3), np.array([[0, -1], [2, 2]]), _list(6, 3)], {}, 2),
        Sample([f32(4, 2), np.array([1, 3, 1, -1], np.int32), _list(3, 2)], {}, 2),
        Sample([f32(2), np.array([2, 0]), _list(4)], {}, 2),
        Sample([f32(0, 3), i64(0), _list(4, 3)], {}, 2),
        Sample([f32(3), np.array(-1), _list(4, 3)], {}, 2),
    ],
)
def gather_grad_rows(k: Context, dY: Array, indices: Array, shape: Array) -> tuple[Array, ...]:
    """The rows of `GatherGrad` along axis 0 that indices show: their numbers, ascending, and the sums of the slices of
    dY that show them, in the order of the indices. There are as many as indices, or as the table has, if that is less:
    behind the last row stand the number of rows of the table, which is no row, and zeros. As an index it counts for
    nothing, so that what this operator has made may be summed by it."""
    size, *rest = ints(shape)
    places = indices.ravel()
    in_table(places, -size, size)
    places = k.xp.where(places < 0, places + size, places)
    kept = places < size
    distinct, order = k.xp.unique(places[kept], return_inverse=True)
    sums = untaken(k.xp, dY.reshape(indices.size, *rest)[kept], order, len(distinct), 0)
    ids = k.xp.full(min(indices.size, size), size, np.int64)
    rows = k.xp.zeros((len(ids), *rest), dY.dtype)
    ids[: len(distinct)], rows[: len(distinct)] = distinct, sums
    return ids, rows


@gather_grad_rows.infer
def _(dY: Tensor, indices: Tensor, shape: Tensor) -> tuple[Tensor, ...]:
    dims = shaped(dY, shape).dims
    count, size = indices.elements, dims[0] if dims else None
    many = min(count, size) if count is not None and isinstance(size, int) else None
    return Tensor(DType.INT64, (many,)), dY.of(None if dims is None else (many, *dims[1:]))


@gather_grad_rows.body
def _(g: Builder, xs: Any, types: Any) -> tuple[Value, ...] | None:
    dY, indices, shape = xs
    if types[2].dims is None:
        return None
    one = g.const([1])
    size, rest = g.Gather(shape, g.const([0])), g.Slice(shape, one, g.const([2**31 - 1]))
    places = g.Reshape(g.Cast(indices, to=DType.INT64.onnx), g.const([-1]))
    places = g.Where(g.Less(places, g.const(0)), g.Add(places, size), places)
    kept = g.Less(places, size)
    ids, _, order, _ = g.op("Unique", g.Compress(places, kept, axis=0), outputs=4)
    count = g.Reshape(g.Size(indices), one)
    many = g.Min(count, size)
    slices = g.Compress(g.Reshape(dY, g.Concat(count, rest, axis=0), allowzero=1), kept, axis=0)
    zeros = g.Expand(g.scalar(0, dY), g.Concat(many, rest, axis=0))
    rows = g.ScatterND(zeros, g.Unsqueeze(order, g.const([-1])), slices, reduction="add")
    return g.Concat(ids, g.Expand(size, g.Sub(many, g.Reshape(g.Size(ids), one))), axis=0), rows


@op(
    "SliceGrad",
    domain="mezzo",
    complex_numbers="direct",
    samples=[
        Sample([f32(2, 4), _list(5, 4), _list(1, 0), _list(3, 100)]),
        Sample([f32(5, 4), _list(5, 4), _list(-1), _list(-100), _list(0), _list(-1)]),
        Sample([f32(2, 3), _list(5, 4), _list(4, 3), _list(0, -(2**63)), _list(-1, 0), _list(-1, -2)]),
        Sample([f32(2, 2), _list(5, 2), np.array([-4], np.int32), np.array([-2], np.int32), np.array([-2], np.int32)]),
        Sample([f32(2), _list(5), _list(1), _list(5), None, _list(2)]),
        Sample([f32(0, 2), _list(5, 2), _list(3), _list(2), _list(0)]),
    ],
)
def slice_grad(
    k: Context,
    dY: Array,
    shape: Array,
    starts: Array,
    ends: Array,
    axes: Array | None = None,
    steps: Array | None = None,
) -> Array:
    """Zeros of `shape` with dY where Slice took its elements from."""
    sizes = ints(shape)
    result = k.xp.zeros(sizes, dY.dtype)
    result[sliced(sizes, starts, ends, axes, steps)] = dY
    return result


@slice_grad.infer
def _(
    dY: Tensor, shape: Tensor, starts: Tensor, ends: Tensor, axes: Tensor | None = None, steps: Tensor | None = None
) -> Tensor:
    return shaped(dY, shape)


@slice_grad.body
def _(g: Builder, xs: Any, types: Any) -> Value:
    dY, shape, *where = xs
    steps = types[5]
    if steps is not None and set(steps.ints() or [0]) != {1}:
        return unmoved(g, dY, shape, lambda places: g.Slice(places, *where))
    starts, axes = (v if v is None else g.Cast(v, to=DType.INT64.onnx) for v in (where[0], where[2]))
    if axes is None:
        axes = g.Range(g.const(0), g.Size(starts), g.const(1))
    sizes = g.Gather(shape, axes)
    first = g.Where(g.Less(starts, g.const(0)), g.Add(starts, sizes), starts)
    before = g.Max(g.Min(first, sizes), g.const(0))
    after = g.Sub(g.Sub(sizes, before), g.Gather(g.shape_of(dY), axes))
    return g.Pad(dY, g.Concat(before, after, axis=0), None, axes)


@slice_grad.grad
def _(g: Builder, dys: Any, ys: Any, xs: Any) -> tuple[Value | None, ...]:
    return g.Slice(dys[0], *xs[2:]), None, None, None, None, None
