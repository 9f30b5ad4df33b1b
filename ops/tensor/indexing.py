"""Operators that pick elements out of a tensor by position, or write into a copy of one.

https://onnx.ai/onnx/operators/
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..core.broadcast import zeros_like
from ..core.rules import axes_of, axis_of, bounds, length, narrow, places, same, sliced, unknown, widen
from ..errors import ShapeError
from ..op import Builder, Context, Sample, Value, op
from ..types import Array, Dim, DType, Tensor, f32, i64

FAR = 2**31 - 1  # ends at or past this mean "to the end", whatever the size


def _list(*values: int) -> np.ndarray[Any, Any]:
    return np.array(values, np.int64)


def _sliced(dim: Dim, start: int, end: int, step: int) -> Dim:
    if isinstance(dim, int):
        return places(*bounds(dim, start, end, step), step)
    return dim if (start, step) == (0, 1) and end >= FAR else None


@op(
    "Slice",
    moves="slice",
    since=13,
    outputs=("output",),
    samples=[
        Sample([f32(5, 4), _list(1, 0), _list(3, 100)]),
        Sample([f32(5, 4), _list(-1), _list(-100), _list(0), _list(-1)]),
        Sample([f32(5, 4), _list(4, 3), _list(0, -(2**63)), _list(-1, 0), _list(-1, -2)]),
        Sample([f32(5), _list(1), _list(5), None, _list(2)]),
        Sample([f32(5, 2), _list(3), _list(2), _list(0)]),
        Sample([f32(3), _list(0), _list(2**63 - 1)]),
    ],
)
def slice_(
    k: Context, data: Array, starts: Array, ends: Array, axes: Array | None = None, steps: Array | None = None
) -> Array:
    return data[sliced(data.shape, starts, ends, axes, steps)].copy()


@slice_.infer
def _(data: Tensor, starts: Tensor, ends: Tensor, axes: Tensor | None = None, steps: Tensor | None = None) -> Tensor:
    counts = [n for t in (starts, ends, axes, steps) if t is not None and (n := length(t)) is not None]
    if len(set(counts)) > 1:
        raise ShapeError(f"starts, ends, axes and steps have {counts} elements, they should have as many")
    count = counts[0] if counts else None
    at = (None if count is None else list(range(count))) if axes is None else axes.ints()
    if at is None:
        return data.of(unknown(data.rank))
    dims = list(data.shape)
    start, end = starts.ints(), ends.ints()
    step = [1] * len(at) if steps is None else steps.ints()
    for i, a in enumerate(axes_of(at, data.rank)):
        exact = start is not None and end is not None and step is not None
        dims[a] = _sliced(dims[a], start[i], end[i], step[i]) if exact and start and end and step else None
    return data.of(dims)


@slice_.grad
def _(g: Builder, dys: Any, ys: Any, xs: Any) -> tuple[Value | None, ...]:
    data, *where = xs
    return g.SliceGrad(dys[0], g.shape_of(data), *where, domain="mezzo"), None, None, None, None


@op(
    "Gather",
    moves="gather",
    since=13,
    outputs=("output",),
    samples=[
        Sample([f32(4, 3), np.array([[0, -1], [2, 2]])]),
        Sample([f32(4, 3), np.array(1)], {"axis": 1}),
        Sample([f32(4, 3), np.array([2, 0], np.int32)], {"axis": -1}),
        Sample([f32(4, 3), i64(0)]),
        Sample([f32(4), np.array(-1)]),
    ],
)
def gather(k: Context, data: Array, indices: Array, *, axis: int = 0) -> Array:
    return k.xp.array(data.take(indices, axis_of(axis, data.ndim)))


@gather.infer
def _(data: Tensor, indices: Tensor, *, axis: int = 0) -> Tensor:
    at = axis_of(axis, data.rank)
    return data.of((*data.shape[:at], *indices.shape, *data.shape[at + 1 :]))


@gather.grad
def _(g: Builder, dys: Any, ys: Any, xs: Any, *, axis: int = 0) -> tuple[Value | None, ...]:
    data, indices = xs
    return g.GatherGrad(dys[0], indices, g.shape_of(data), axis=axis, domain="mezzo"), None


@op(
    "GatherElements",
    moves="pick",
    since=13,
    outputs=("output",),
    samples=[
        Sample([f32(3, 2), np.array([[0, 2], [-1, 0]])]),
        Sample([f32(2, 3), np.array([[2], [0]])], {"axis": 1}),
        Sample([f32(3), i64(0)]),
    ],
)
def gather_elements(k: Context, data: Array, indices: Array, *, axis: int = 0) -> Array:
    at = axis_of(axis, data.ndim)
    return data[_positions(k.xp, indices, data.shape, at)]


def _positions(xp: Any, indices: Array, shape: Sequence[int], axis: int) -> tuple[Array, ...]:
    """Return the index arrays of `indices`: its entries along `axis`, the own position along the other axes."""
    grid = [xp.arange(n).reshape([-1 if i == j else 1 for j in range(len(shape))]) for i, n in enumerate(indices.shape)]
    grid[axis] = xp.asarray(indices)
    return tuple(grid)


@gather_elements.infer
def _(data: Tensor, indices: Tensor) -> Tensor:
    if data.dims is not None and indices.dims is not None and len(data.dims) != len(indices.dims):
        raise ShapeError(f"indices {indices} and data {data} differ in rank")
    return data.of(indices.dims)


@gather_elements.grad
def _(g: Builder, dys: Any, ys: Any, xs: Any, *, axis: int = 0) -> tuple[Value | None, ...]:
    data, indices = xs
    return g.ScatterElements(zeros_like(g, data), indices, dys[0], axis=axis, reduction="add"), None


@op(
    "GatherND",
    moves="pick",
    since=13,
    outputs=("output",),
    samples=[
        Sample([f32(3, 4), np.array([[0, 1], [-1, 3]])]),
        Sample([f32(3, 4, 2), np.array([[1], [0]])]),
        Sample([f32(2, 4, 3), np.array([[[1], [0]], [[2], [3]]])], {"batch_dims": 1}),
        Sample([f32(3, 4), np.array([2, 2])]),
        Sample([f32(3, 4, 2), np.zeros((2, 0), int)]),
        Sample([f32(2, 4), np.zeros((2, 3, 0), int)], {"batch_dims": 1}),
    ],
)
def gather_nd(k: Context, data: Array, indices: Array, *, batch_dims: int = 0) -> Array:
    lead = indices.shape[:-1]
    batch = [k.xp.arange(lead[i]).reshape([-1 if i == j else 1 for j in range(len(lead))]) for i in range(batch_dims)]
    picked = [indices[..., i] for i in range(indices.shape[-1])]
    if not picked:  # each tuple of no indices picks the whole of its batch
        kept = k.xp.expand_dims(data, tuple(range(batch_dims, len(lead))))
        return k.xp.array(k.xp.broadcast_to(kept, (*lead, *data.shape[batch_dims:])), order="C")
    return k.xp.array(data[(*batch, *picked)])


@gather_nd.infer
def _(data: Tensor, indices: Tensor, *, batch_dims: int = 0) -> Tensor:
    depth = indices.shape[-1] if indices.shape else None
    if not isinstance(depth, int):
        return data.of(None)
    if batch_dims < 0 or batch_dims + depth > data.rank:
        raise ShapeError(f"indices {indices} address {batch_dims + depth} axes of {data}, {batch_dims} of them batches")
    lead = [
        same(a, b, f"batch axis {i} of {data} and {indices}")
        for i, (a, b) in enumerate(zip(data.shape[:batch_dims], indices.shape, strict=False))
    ]
    return data.of((*lead, *indices.shape[batch_dims:-1], *data.shape[batch_dims + depth :]))


@gather_nd.grad
def _(g: Builder, dys: Any, ys: Any, xs: Any, *, batch_dims: int = 0) -> tuple[Value | None, ...]:
    data, indices = xs
    if batch_dims:  # each entry of `indices` gets its own place in the batch before it
        rank = g.rank_of(indices)
        sizes = [g.Gather(g.shape_of(indices), g.const([i])) for i in range(rank - 1)]
        column = g.Concat(*sizes, g.const([1]), axis=0)
        places = [g.Range(g.const(0), g.Squeeze(n, g.const([0])), g.const(1)) for n in sizes[:batch_dims]]
        upright = [g.Unsqueeze(p, g.const(list(range(1, rank - i)))) for i, p in enumerate(places)]
        indices = g.Concat(*(g.Expand(p, column) for p in upright), indices, axis=-1)
    return g.ScatterND(zeros_like(g, data), indices, dys[0], reduction="add"), None


UPDATES = {"add": "add", "mul": "multiply", "max": "maximum", "min": "minimum"}


def _write(xp: Any, data: Array, where: tuple[Array, ...], updates: Array, reduction: str) -> Array:
    """A copy of `data` where the blocks that `where` addresses by its first axes have become `updates`, or were
    combined with them."""
    lead, block = data.shape[: len(where)], math.prod(data.shape[len(where) :])
    rows = xp.asarray(xp.broadcast_to(_row(xp, where, lead), updates.shape[: updates.ndim - data.ndim + len(where)]))
    rows, news = rows.ravel(), updates.reshape(rows.size, block)
    if reduction == "none":
        result = data.copy()
        result.reshape(math.prod(lead), block)[rows] = news
        return result
    if reduction not in UPDATES:
        raise ShapeError(f"reduction {reduction!r} is none of none, {', '.join(UPDATES)}")
    result = xp.array(widen(data) if reduction == "add" else data)
    places = rows[:, None] * block + xp.arange(block)  # in one dimension `at` is many times as fast
    getattr(xp, UPDATES[reduction]).at(result.reshape(-1), places.ravel(), news.ravel().astype(result.dtype))
    return narrow(result, data.dtype)


def _row(xp: Any, where: tuple[Array, ...], sizes: Sequence[int]) -> Array:
    """The number of the block with these indices, counted through axes of these sizes."""
    row = xp.zeros((), np.int64)
    for index, n in zip(where, sizes, strict=True):
        if index.size and not (-n <= index.min() and index.max() < n):
            raise ShapeError(f"an index is outside an axis of {n}", hint=f"indices run from {-n} to {n - 1}")
        row = row * n + xp.where(index < 0, index + n, index)
    return row


def _scatter_grad(
    g: Builder,
    dy: Value,
    y: Value,
    data: Value,
    updates: Value,
    reduction: str,
    scatter: Callable[..., Value],
    gather: Callable[[Value], Value],
) -> tuple[Value | None, ...]:
    """Gradients to `data` and `updates`. `scatter` writes into a tensor, `gather` reads the same places of one."""
    if reduction == "none":
        return scatter(dy, zeros_like(g, updates)), None, gather(dy)
    if reduction == "add":
        return dy, None, gather(dy)

    def where_equal(a: Value, b: Value) -> Value:
        return g.Cast(g.Equal(a, b), to=_dtype(g, data).onnx)

    if reduction == "mul":  # the product of the others: counting zeros tells whether one of them is 0
        zero = [where_equal(v, g.scalar(0, v)) for v in (data, updates)]
        rest = [g.Add(v, z) for v, z in zip((data, updates), zero, strict=True)]
        zeros, product = scatter(*zero, reduction="add"), scatter(*rest, reduction="mul")

        def others(dy: Value, product: Value, zeros: Value, rest: Value, zero: Value) -> Value:
            return g.Mul(dy, g.Mul(g.Div(product, rest), where_equal(zeros, zero)))

        return (
            others(dy, product, zeros, rest[0], zero[0]),
            None,
            others(gather(dy), gather(product), gather(zeros), rest[1], zero[1]),
        )
    won = where_equal(data, y), where_equal(updates, gather(y))
    share = g.Div(dy, scatter(*won, reduction="add"))  # equals share alike, as in PyTorch
    return g.Mul(won[0], share), None, g.Mul(won[1], gather(share))


def _dtype(g: Builder, x: Value) -> DType:
    known = g.type_of(x)
    assert isinstance(known, Tensor)
    return known.dtype


_CELLS = np.array([[0, 1], [2, 3], [0, 0]])
_TWICE = np.array([[0, 1], [-1, 3], [0, 1]])  # for reductions, which may meet one place twice


@op(
    "ScatterND",
    complex_numbers="direct",
    since=18,
    outputs=("output",),
    samples=[
        Sample([f32(3, 4), _CELLS, f32(3)]),
        Sample([f32(4, 3), np.array([[2], [0]]), f32(2, 3)]),
        *(Sample([f32(3, 4), _TWICE, f32(3)], {"reduction": r}) for r in UPDATES),
        Sample([f32(3), i64(0, 1), f32(0)]),
    ],
)
def scatter_nd(k: Context, data: Array, indices: Array, updates: Array, *, reduction: str = "none") -> Array:
    return _write(k.xp, data, tuple(indices[..., i] for i in range(indices.shape[-1])), updates, reduction)


@scatter_nd.infer
def _(data: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    if data.dims is not None and indices.dims and isinstance(indices.dims[-1], int) and updates.dims is not None:
        dims = (*indices.dims[:-1], *data.dims[indices.dims[-1] :])
        if len(dims) != len(updates.dims):
            raise ShapeError(f"updates {updates} should have dims {list(dims)}")
        for i, (a, b) in enumerate(zip(dims, updates.dims, strict=True)):
            same(a, b, f"axis {i} of updates {updates}")
    return data.forget()


@scatter_nd.grad
def _(g: Builder, dys: Any, ys: Any, xs: Any, *, reduction: str = "none") -> tuple[Value | None, ...]:
    data, indices, updates = xs

    def scatter(data: Value, updates: Value, **how: Any) -> Value:
        return g.ScatterND(data, indices, updates, **how)

    def gather(x: Value) -> Value:
        return g.GatherND(x, indices)

    return _scatter_grad(g, dys[0], ys[0], data, updates, reduction, scatter, gather)


_ROWS = np.array([[1, 0, 2], [0, 2, 1]])
_SAME_ROW = np.array([[1, 1, -1]])


@op(
    "ScatterElements",
    complex_numbers="direct",
    since=18,
    outputs=("output",),
    samples=[
        Sample([f32(3, 3), _ROWS, f32(2, 3)]),
        Sample([f32(1, 5), np.array([[1, -2]]), f32(1, 2)], {"axis": 1}),
        *(Sample([f32(1, 5), _SAME_ROW, f32(1, 3)], {"axis": -1, "reduction": r}) for r in UPDATES),
        Sample([f32(3), i64(0), f32(0)]),
    ],
)
def scatter_elements(
    k: Context, data: Array, indices: Array, updates: Array, *, axis: int = 0, reduction: str = "none"
) -> Array:
    where = _positions(k.xp, indices, data.shape, axis_of(axis, data.ndim))
    return _write(k.xp, data, where, updates, reduction)


@scatter_elements.infer
def _(data: Tensor, indices: Tensor, updates: Tensor, *, axis: int = 0) -> Tensor:
    axis_of(axis, data.rank)
    for i, (a, b) in enumerate(zip(indices.shape, updates.shape, strict=False)):
        same(a, b, f"axis {i} of indices {indices} and updates {updates}")
    return data.forget()


@scatter_elements.grad
def _(g: Builder, dys: Any, ys: Any, xs: Any, *, axis: int = 0, reduction: str = "none") -> tuple[Value | None, ...]:
    data, indices, updates = xs

    def scatter(data: Value, updates: Value, **how: Any) -> Value:
        return g.ScatterElements(data, indices, updates, axis=axis, **how)

    def gather(x: Value) -> Value:
        return g.GatherElements(x, indices, axis=axis)

    return _scatter_grad(g, dys[0], ys[0], data, updates, reduction, scatter, gather)
