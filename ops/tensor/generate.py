"""Operators that make their result from a description: constants, ranges, shapes, masks.

https://onnx.ai/onnx/operators/
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..core.rules import axis_of, has_rank, ints, is_narrow, length, places, unknown
from ..errors import ShapeError
from ..op import Builder, Context, Sample, Value, op
from ..symbolic import sizes_array
from ..types import Array, Dim, DType, Tensor, f32, i64, type_of

_CONSTANT_TYPES: dict[str, Any] = {"value_int": np.int64, "value_float": np.float32, "value_string": object}


def _constant(given: dict[str, Any]) -> np.ndarray[Any, Any]:
    present = {name: v for name, v in given.items() if v is not None}
    if len(present) != 1:
        raise ShapeError(f"Constant takes one of its attributes, here are {', '.join(present) or 'none'}")
    ((name, value),) = present.items()
    return np.array(value, _CONSTANT_TYPES.get(name.rstrip("s")))


@op(
    "Constant",
    since=25,
    outputs=("output",),
    samples=[
        Sample([], {"value": np.array([[1, 2]], np.int32)}),
        Sample([], {"value_int": 3}),
        Sample([], {"value_ints": [1, 2]}),
        Sample([], {"value_float": 0.5}),
        Sample([], {"value_floats": [0.5, 1.0]}),
        Sample([], {"value_string": "a"}),
        Sample([], {"value_strings": ["a", "bc"]}),
    ],
)
def constant(
    k: Context,
    *,
    value: Array | None = None,
    sparse_value: Array | None = None,  # importers hand it over as the dense array
    value_float: float | None = None,
    value_floats: Sequence[float] | None = None,
    value_int: int | None = None,
    value_ints: Sequence[int] | None = None,
    value_string: str | None = None,
    value_strings: Sequence[str] | None = None,
) -> Array:
    return _constant(
        {
            "value": value,
            "sparse_value": sparse_value,
            "value_float": value_float,
            "value_floats": value_floats,
            "value_int": value_int,
            "value_ints": value_ints,
            "value_string": value_string,
            "value_strings": value_strings,
        }
    )


@constant.infer
def _(**given: Any) -> Any:
    return type_of(_constant(given), known=True)


@op(
    "ConstantOfShape",
    since=25,
    outputs=("output",),
    samples=[
        Sample([np.array([2, 3])]),
        Sample([np.array([2, 0])], {"value": np.array([7])}),
        Sample([np.zeros(0, np.int64)], {"value": np.array([True])}),
    ],
)
def constant_of_shape(k: Context, input: Array, *, value: Array | None = None) -> Array:
    fill = np.zeros(1, np.float32) if value is None else np.asarray(value)
    return k.xp.full(tuple(ints(input)), fill.ravel()[0], fill.dtype)


@constant_of_shape.infer
def _(input: Tensor, *, value: Array | None = None) -> Tensor:
    sizes = input.ints()
    if sizes is not None and any(n < 0 for n in sizes):
        raise ShapeError(f"{sizes} is no shape: sizes cannot be negative")
    dtype = DType.FLOAT if value is None else DType.of(np.asarray(value).dtype)
    return Tensor(dtype, unknown(length(input)) if sizes is None else tuple(sizes))


def _steps(start: Any, limit: Any, delta: Any) -> int:
    """Return the number of elements of a range. Raises ShapeError for a step of 0."""
    if delta == 0:
        raise ShapeError(f"a range from {start} to {limit} cannot have step 0")
    if isinstance(start, int):
        return places(start, limit, delta)
    return max(math.ceil(float(limit - start) / float(delta)), 0)


def _scalar(x: Any) -> Any:
    """The only element of an array: a Python integer, or a numpy float in which sums are taken."""
    if x.dtype == object:  # symbolic
        return x.item()
    value = np.asarray(x.tolist(), np.float32 if is_narrow(x.dtype) else x.dtype).reshape(())
    return int(value) if value.dtype.kind in "iu" else value[()]


@op(
    "Range",
    since=27,
    outputs=("output",),
    samples=[
        Sample([np.array(1), np.array(7), np.array(3)]),
        Sample([np.float32(10), np.float32(4), np.float32(-1.5)]),
        Sample([np.array(3, np.int32), np.array(3, np.int32), np.array(1, np.int32)]),
        Sample([np.array(5), np.array(0), np.array(-2)]),
    ],
)
def range_(k: Context, start: Array, limit: Array, delta: Array, *, stash_type: int = 1) -> Array:
    first, last, step = map(_scalar, (start, limit, delta))
    at = k.xp.arange(_steps(first, last, step))
    return (first + at.astype(np.asarray(first).dtype) * step).astype(start.dtype)


@range_.infer
def _(start: Tensor, limit: Tensor, delta: Tensor) -> Tensor:
    if start.value is None or limit.value is None or delta.value is None:
        return start.of((None,))
    return start.of((_steps(*(_scalar(np.asarray(t.value)) for t in (start, limit, delta))),))


@op(
    "Shape", complex_numbers="unchecked",
    since=25,
    outputs=("shape",),
    samples=[Sample([f32(2, 3, 4)]), Sample([f32(2, 3, 4)], {"start": -2}), Sample([f32()]), Sample([f32(0, 3)]),
             Sample([f32(2, 3, 4)], {"start": 1, "end": -1}), Sample([f32(2, 3)], {"start": 2, "end": 9})],
)  # fmt: skip
def shape(k: Context, data: Array, *, start: int = 0, end: int | None = None) -> Array:
    return k.xp.array(data.shape[slice(start, end)], dtype=np.int64)


@shape.infer
def _(data: Tensor, *, start: int = 0, end: int | None = None) -> Tensor:
    if data.dims is None:
        return Tensor(DType.INT64, (None,))
    dims = data.dims[slice(start, end)]
    known = all(isinstance(d, int) for d in dims)
    return Tensor(DType.INT64, (len(dims),), sizes_array(dims) if known else None)


@shape.older
def _(g: Builder, xs: Any, types: Any, *, start: int = 0, end: int | None = None) -> Value:
    ends = np.iinfo(np.int64).max if end is None else end
    return g.Slice(g.Shape(xs[0]), g.const([start]), g.const([ends]), g.const([0]))


@op(
    "Size",
    complex_numbers="unchecked",
    since=25,
    outputs=("size",),
    samples=[Sample([f32(2, 3)]), Sample([f32()]), Sample([f32(0, 3)])],
)
def size(k: Context, data: Array) -> Array:
    return k.xp.array(data.size, dtype=np.int64)


@size.infer
def _(data: Tensor) -> Tensor:
    count = data.elements
    return Tensor(DType.INT64, (), None if count is None else sizes_array([count]).reshape(()))


@op(
    "NonZero", complex_numbers="unchecked",
    since=13,
    samples=[Sample([np.array([[1, 0], [2, 3]])]), Sample([np.zeros((2, 3), np.float32)]), Sample([f32(0, 2)]),
             Sample([np.array([True, False, True])])],
)  # fmt: skip
def non_zero(k: Context, X: Array) -> Array:
    if X.ndim == 0:  # the schema says so: no rows, one column per element that is not zero
        return k.xp.zeros((0, int(X != 0)), np.int64)
    return k.xp.stack(k.xp.nonzero(X)).astype(np.int64)


@non_zero.infer
def _(X: Tensor) -> Tensor:
    return Tensor(DType.INT64, (None if X.dims is None else X.rank, None))


@op(
    "OneHot",
    complex_numbers="last",
    since=28,
    outputs=("output",),
    samples=[
        Sample([np.array([0, 2, -1, 7]), np.array(3), np.array([0, 1], np.float32)]),
        Sample([np.array([[0], [1]]), np.array([4]), np.array([5, 2])], {"axis": 0}),
        Sample([np.array([[0], [1]]), np.array(2), np.array([0, 1])], {"axis": -2}),
        Sample([np.array([1.0], np.float32), np.float32(2), np.array([0, 1], np.float32)]),
    ],
)
def one_hot(k: Context, indices: Array, depth: Array, values: Array, *, axis: int = -1) -> Array:
    count = int(depth.reshape(()))
    at = axis_of(axis, indices.ndim + 1)
    place = k.xp.expand_dims(indices.astype(np.int64), at)
    place = k.xp.where(place < 0, place + count, place)
    hot = place == k.xp.arange(count).reshape([-1 if i == at else 1 for i in range(indices.ndim + 1)])
    return k.xp.where(hot, values[1], values[0])


@one_hot.infer
def _(indices: Tensor, depth: Tensor, values: Tensor, *, axis: int = -1) -> Tensor:
    if indices.dims is None:
        return values.of(None)
    count = depth.ints()
    dims: list[Dim] = list(indices.shape)
    dims.insert(axis_of(axis, indices.rank + 1), count[0] if count else None)
    return values.of(dims)


@op(
    "EyeLike",
    since=22,
    outputs=("output",),
    samples=[Sample([f32(2, 3)]), Sample([i64(3, 3)], {"k": -1, "dtype": DType.FLOAT.onnx}), Sample([f32(0, 2)])],
)
def eye_like(context: Context, input: Array, *, dtype: int | None = None, k: int = 0) -> Array:
    n, m = input.shape
    return context.xp.eye(n, m, k, dtype=input.dtype if dtype is None else DType.from_onnx(dtype).numpy)


@eye_like.infer
def _(input: Tensor, *, dtype: int | None = None) -> Tensor:
    has_rank(input, 2)
    return Tensor(input.dtype if dtype is None else DType.from_onnx(dtype), input.dims or (None, None))
