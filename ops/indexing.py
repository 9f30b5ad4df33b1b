"""Operators that pick elements out of a tensor by position, or write into a copy of one.

https://onnx.ai/onnx/operators/
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .errors import ShapeError
from .op import Context, Sample, op
from .rules import axes_of, axis_of, ints, length, same, unknown
from .types import Array, Dim, Tensor, f32, i64

FAR = 2**31 - 1  # ends at or past this mean "to the end", whatever the size


def _list(*values: int) -> np.ndarray[Any, Any]:
    return np.array(values, np.int64)


def _range(size: int, start: int, end: int, step: int) -> range:
    """The places that a slice takes. Where Python leaves a start before the axis outside, ONNX moves it to the axis."""
    if step == 0:
        raise ShapeError("a slice cannot have step 0")
    start, end = (v + size if v < 0 else v for v in (start, end))
    if step > 0:
        return range(min(max(start, 0), size), min(max(end, 0), size), step)
    return range(min(max(start, 0), size - 1), min(max(end, -1), size - 1), step)


def _sliced(dim: Dim, start: int, end: int, step: int) -> Dim:
    if isinstance(dim, int):
        return len(_range(dim, start, end, step))
    return dim if (start, step) == (0, 1) and end >= FAR else None


@op(
    "Slice",
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
    start, end = ints(starts), ints(ends)
    at = range(len(start)) if axes is None else axes_of(ints(axes), data.ndim)
    step = [1] * len(start) if steps is None else ints(steps)
    index: list[Any] = [slice(None)] * data.ndim
    for a, s, e, by in zip(at, start, end, step, strict=True):
        places = _range(data.shape[a], s, e, by)
        index[a] = slice(places.start, places.stop if places.stop >= 0 else None, by) if places else slice(0, 0)
    return data[tuple(index)].copy()


@slice_.infer
def _(data: Tensor, starts: Tensor, ends: Tensor, axes: Tensor | None = None, steps: Tensor | None = None) -> Tensor:
    count = next((n for n in (length(t) for t in (starts, ends, axes, steps) if t is not None) if n is not None), None)
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


@op(
    "Gather",
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


@op(
    "GatherElements",
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
    """Where each entry of `indices` points: itself along `axis`, its own position along the others."""
    grid = [xp.arange(n).reshape([-1 if i == j else 1 for j in range(len(shape))]) for i, n in enumerate(indices.shape)]
    grid[axis] = xp.asarray(indices)
    return tuple(grid)


@gather_elements.infer
def _(data: Tensor, indices: Tensor, *, axis: int = 0) -> Tensor:
    if data.dims is not None and indices.dims is not None and len(data.dims) != len(indices.dims):
        raise ShapeError(f"indices {indices} and data {data} differ in rank")
    return data.of(indices.dims)


@op(
    "GatherND",
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
    if batch_dims + depth > data.rank:
        raise ShapeError(f"indices {indices} address {batch_dims + depth} axes of {data}")
    lead = [
        same(a, b, f"batch axis {i} of {data} and {indices}")
        for i, (a, b) in enumerate(zip(data.shape[:batch_dims], indices.shape, strict=False))
    ]
    return data.of((*lead, *indices.shape[batch_dims:-1], *data.shape[batch_dims + depth :]))


UPDATES = {"add": "add", "mul": "multiply", "max": "maximum", "min": "minimum"}


def _write(xp: Any, data: Array, where: tuple[Array, ...], updates: Array, reduction: str) -> Array:
    result = data.copy()
    if reduction == "none":
        result[where] = updates
    elif reduction in UPDATES:
        getattr(xp, UPDATES[reduction]).at(result, where, updates)
    else:
        raise ShapeError(f"reduction {reduction!r} is none of none, {', '.join(UPDATES)}")
    return result


_CELLS = np.array([[0, 1], [2, 3], [0, 0]])
_TWICE = np.array([[0, 1], [-1, 3], [0, 1]])  # for reductions, which may meet one place twice


@op(
    "ScatterND",
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
def _(data: Tensor, indices: Tensor, updates: Tensor, *, reduction: str = "none") -> Tensor:
    if data.dims is not None and indices.dims and isinstance(indices.dims[-1], int) and updates.dims is not None:
        dims = (*indices.dims[:-1], *data.dims[indices.dims[-1] :])
        if len(dims) != len(updates.dims):
            raise ShapeError(f"updates {updates} should have dims {list(dims)}")
        for i, (a, b) in enumerate(zip(dims, updates.dims, strict=True)):
            same(a, b, f"axis {i} of updates {updates}")
    return data.forget()


_ROWS = np.array([[1, 0, 2], [0, 2, 1]])
_SAME_ROW = np.array([[1, 1, -1]])


@op(
    "ScatterElements",
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
def _(data: Tensor, indices: Tensor, updates: Tensor, *, axis: int = 0, reduction: str = "none") -> Tensor:
    axis_of(axis, data.rank)
    for i, (a, b) in enumerate(zip(indices.shape, updates.shape, strict=False)):
        same(a, b, f"axis {i} of indices {indices} and updates {updates}")
    return data.forget()
