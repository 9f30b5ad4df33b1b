"""Operators that select elements of a tensor, sort them, or keep each once.

https://onnx.ai/onnx/operators/onnx__Compress.html, https://onnx.ai/onnx/operators/onnx__Unique.html
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..core.rules import axes_of, axis_of, ints, same
from ..errors import ShapeError
from ..op import Builder, Context, Sample, Value, op
from ..types import Array, Dim, DType, Tensor, f32, i64
from .movement import shaped_like, size_of


def _truths(*values: int) -> np.ndarray[Any, Any]:
    return np.array(values, bool)


@op(
    "Compress",
    complex_numbers="taken",
    since=28,
    outputs=("output",),
    samples=[
        Sample([f32(3, 2), _truths(0, 1, 1)], {"axis": 0}),
        Sample([f32(3, 2), _truths(0, 1)], {"axis": -1}),
        Sample([f32(3, 2), _truths(0, 1, 0, 0, 1)]),
        Sample([i64(3, 2), _truths(1)], {"axis": 1}),
        Sample([f32(2, 2), _truths(0, 0)], {"axis": 0}),
        Sample([f32(2), _truths(0, 1, 0, 1, 1)]),
        Sample([f32(3, 0), _truths(1)], {"axis": 1}),
    ],
)
def compress(k: Context, input: Array, condition: Array, *, axis: int | None = None) -> Array:
    x = input.ravel() if axis is None else input
    at = axis_of(0 if axis is None else axis, x.ndim)
    return k.xp.array(x.take(k.xp.nonzero(condition[: x.shape[at]])[0], at), order="C")


@compress.infer
def _(input: Tensor, condition: Tensor, *, axis: int | None = None) -> Tensor:
    at = 0 if axis is None else axis_of(axis, input.rank)
    along = input.elements if axis is None else input.shape[at]
    kept: Dim = None
    if condition.value is not None and isinstance(along, int):  # what is said beyond the axis counts for nothing
        kept = int(np.count_nonzero(np.asarray(condition.value)[:along]))
    return input.of((kept,) if axis is None else (kept if i == at else d for i, d in enumerate(input.shape)))


@compress.grad
def _(g: Builder, dys: Any, ys: Any, xs: Any, *, axis: int | None = None) -> tuple[Value | None, ...]:
    input, condition = xs
    shape = g.shape_of(input)
    sizes = g.ReduceProd(shape, keepdims=1) if axis is None else shape
    along = size_of(g, input, axis) if axis is not None else sizes
    heard = g.Slice(condition, g.const([0]), along)  # what is said beyond the axis counts for nothing
    kept = g.Squeeze(g.NonZero(heard), g.const([0]))
    dx = g.GatherGrad(dys[0], kept, sizes, axis=axis or 0, domain="mezzo")
    return shaped_like(g, dx, input) if axis is None else dx, None


@op(
    "ReverseSequence",
    complex_numbers="taken",
    since=28,
    samples=[
        Sample([f32(4, 3), np.array([4, 1, 2])]),
        Sample([f32(3, 4, 2), np.array([1, 0, 3])], {"batch_axis": 0, "time_axis": 1}),
    ],
)
def reverse_sequence(
    k: Context, input: Array, sequence_lens: Array, *, batch_axis: int = 1, time_axis: int = 0
) -> Array:
    x = k.xp.moveaxis(input, (batch_axis, time_axis), (0, 1))
    at, ends = k.xp.arange(x.shape[1])[None, :], sequence_lens[:, None].astype(np.int64)
    places = k.xp.where(at < ends, ends - 1 - at, at)
    y = x[k.xp.arange(x.shape[0])[:, None], places]
    return k.xp.array(k.xp.moveaxis(y, (0, 1), (batch_axis, time_axis)), order="C")


@reverse_sequence.infer
def _(input: Tensor, sequence_lens: Tensor, *, batch_axis: int = 1, time_axis: int = 0) -> Tensor:
    if {batch_axis, time_axis} != {0, 1}:
        raise ShapeError(f"batch_axis={batch_axis} and time_axis={time_axis} are not the first two axes")
    if input.dims is not None and sequence_lens.dims is not None:
        same(
            input.dims[batch_axis],
            sequence_lens.dims[0],
            f"the lengths {sequence_lens} do not fit the batch of {input}",
        )
    return input.forget()


@reverse_sequence.grad
def _(g: Builder, dys: Any, ys: Any, xs: Any, **axes: int) -> tuple[Value | None, ...]:
    return g.ReverseSequence(dys[0], xs[1], **axes), None


@op(
    "Unique",
    complex_numbers="taken",
    since=28,
    outputs=("Y", "indices?", "inverse_indices?", "counts?"),
    samples=[
        Sample([np.array([2, 1, 1, 3, 4, 3])], {}, 4),
        Sample([np.array([2, 1, 1, 3, 4, 3])], {"sorted": 0}, 4),
        Sample([np.array([[1.0, 3], [2, 3]], np.float32)]),
        Sample([np.array([[1, 0, 0], [1, 0, 0], [2, 3, 4]])], {"axis": 0}, 4),
        Sample([np.array([[[3, 1], [0, 1], [3, 1]]], np.float32)], {"axis": -2, "sorted": 0}, 4),
        Sample([np.zeros(0, np.float32)], {}, 4),
        Sample([np.zeros((1, 3, 0), np.float32)], {"axis": 1}, 4),
        Sample([np.array([["b", "a"], ["a", "c"], ["b", "a"]], object)], {"axis": 0}, 4),
    ],
)
def unique(k: Context, X: Array, *, axis: int | None = None, sorted: int = 1) -> tuple[Array, ...]:
    xp, at = k.xp, None if axis is None else axis_of(axis, X.ndim)
    keys = _ranks(k, X) if X.dtype == object else X
    if at is not None and not X.size:  # slices without elements are equal to each other
        keys = xp.zeros([n if a == at else 1 for a, n in enumerate(X.shape)], bool)
    _, first, inverse, counts = xp.unique(keys, True, True, True, axis=at)
    y, inverse = (X.ravel() if at is None else X).take(first, at or 0), inverse.reshape(-1)
    if not sorted:  # in the order of first occurrence
        order = xp.argsort(first)
        rank = xp.empty_like(order)
        rank[order] = xp.arange(len(order))
        y, first, counts, inverse = y.take(order, at or 0), first[order], counts[order], rank[inverse]
    return xp.array(y, order="C"), *(xp.array(v, dtype=np.int64) for v in (first, inverse, counts))


def _ranks(k: Context, X: Array) -> Array:
    """Numbers in the order of the texts that they stand for: NumPy compares no texts along an axis, and sorts them
    without a look at the clock."""
    words = X.ravel().tolist()
    rank = {word: i for i, word in enumerate(sorted(set(k.each(words))))}
    return np.array([rank[word] for word in k.each(words)], np.int64).reshape(X.shape)


@unique.infer
def _(X: Tensor, *, axis: int | None = None) -> tuple[Tensor, ...]:
    places = Tensor(DType.INT64, (None,))
    if axis is None:
        return X.of((None,)), places, Tensor(DType.INT64, (X.elements,)), places
    if X.dims is None:
        return X.of(None), places, places, places
    at = axis_of(axis, X.rank)
    y = X.of(None if i == at else d for i, d in enumerate(X.dims))
    return y, places, Tensor(DType.INT64, (X.dims[at],)), places


@op(
    "CenterCropPad",
    complex_numbers="taken",
    since=18,
    outputs=("output_data",),
    samples=[
        Sample([f32(5, 4), np.array([2, 7])]),
        Sample([f32(5, 4), np.array([8, 1], np.int32)]),
        Sample([f32(2, 5, 3), np.array([4])], {"axes": [1]}),
        Sample([i64(2, 5, 3), np.array([2, 6])], {"axes": [-1, 1]}),
    ],
)
def center_crop_pad(k: Context, input_data: Array, shape: Array, *, axes: Sequence[int] | None = None) -> Array:
    sizes = list(input_data.shape)
    of, to = [slice(None)] * input_data.ndim, [slice(None)] * input_data.ndim
    for a, size in _targets(ints(shape), axes, input_data.ndim):
        less, more = max(sizes[a] - size, 0), max(size - sizes[a], 0)
        of[a] = slice(less // 2, less // 2 + min(size, sizes[a]))
        to[a] = slice(more // 2, more // 2 + min(size, sizes[a]))
        sizes[a] = size
    fill: Any = "" if input_data.dtype == object else 0
    y = k.xp.full(sizes, fill, input_data.dtype)
    y[tuple(to)] = input_data[tuple(of)]
    return y


def _targets(shape: Sequence[int], axes: Sequence[int] | None, rank: int) -> list[tuple[int, int]]:
    """Return each axis that changes, with its new size."""
    at = tuple(range(rank)) if axes is None else axes_of(axes, rank)
    if len(shape) != len(at) or min(shape, default=0) < 0:
        raise ShapeError(f"the shape {list(shape)} does not fit {len(at)} axes")
    return list(zip(at, shape, strict=True))


@center_crop_pad.infer
def _(input_data: Tensor, shape: Tensor, *, axes: Sequence[int] | None = None) -> Tensor:
    sizes = shape.ints()
    if sizes is None:
        touched = range(input_data.rank) if axes is None else axes_of(axes, input_data.rank)
        return input_data.of(None if i in touched else d for i, d in enumerate(input_data.shape))
    dims: list[Dim] = list(input_data.shape)
    for a, size in _targets(sizes, axes, input_data.rank):
        dims[a] = size
    return input_data.of(dims)


@center_crop_pad.grad
def _(g: Builder, dys: Any, ys: Any, xs: Any, *, axes: Sequence[int] | None = None) -> tuple[Value | None, ...]:
    shape = g.shape_of(xs[0])
    if axes is None:
        return g.CenterCropPad(dys[0], shape), None
    return g.CenterCropPad(dys[0], g.Gather(shape, g.const(list(axes))), axes=axes), None
