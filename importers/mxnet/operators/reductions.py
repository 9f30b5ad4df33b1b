"""Reductions, positions of extremes, sorting, and softmax with its relatives."""

from __future__ import annotations

from typing import Any

import numpy as np

from ....ops import DType
from ....ops.errors import ModelError, UnsupportedModel
from ..converter import Converter, Value, element_type
from ..rules import rule


def reduced(c: Converter, op: str, x: str, axes: list[int], *, keep: bool) -> Value:
    """A reduction; one of all axes leaves one element in one axis, as MXNet's legacy operators do."""
    if not axes:
        return c.Identity(x)
    whole = len(axes) == c.rank(x) and not keep
    result: str = c.op(op, x, c.ints(*axes), keepdims=int(keep))
    return c.reshape(result, [1]) if whole else result


def _reduce(
    c: Converter,
    data: str,
    *,
    op: str,
    axis: Any = None,
    keepdims: bool = False,
    exclude: bool = False,
    nan: float | None = None,
) -> Any:
    if nan is not None:
        data = c.Where(c.IsNaN(data), c.number(nan, data), data)
    return reduced(c, op, data, c.axes(data, axis, exclude=exclude), keep=keepdims)


for _names, _op in (
    ("sum sum_axis _sparse_sum", "Sum"),
    ("mean _sparse_mean", "Mean"),
    ("prod", "Prod"),
    ("max max_axis", "Max"),
    ("min min_axis", "Min"),
    ("_square_sum", "SumSquare"),
):
    rule(*_names.split(), nan=None, op=f"Reduce{_op}")(_reduce)
rule("nansum", op="ReduceSum", nan=0.0)(_reduce)
rule("nanprod", op="ReduceProd", nan=1.0)(_reduce)


@rule("norm", "_sparse_norm")
def norm(
    c: Converter, data: str, *, ord: int = 2, axis: Any = None, keepdims: bool = False, out_dtype: Any = None
) -> Any:
    if ord not in (1, 2):
        raise UnsupportedModel(f"norms of order {ord} are not known")
    if out_dtype is not None:
        data = c.cast(data, element_type(out_dtype))
    return reduced(c, f"ReduceL{ord}", data, c.axes(data, axis), keep=keepdims)


@rule("moments")
def moments(c: Converter, data: str, *, axes: Any = None, keepdims: bool = False) -> Any:
    over = c.axes(data, axes)
    mean = c.ReduceMean(data, c.ints(*over), keepdims=1)
    centred = c.Sub(data, mean)
    variance = reduced(c, "ReduceMean", c.Mul(centred, centred), over, keep=keepdims)
    return reduced(c, "ReduceMean", data, over, keep=keepdims), variance


def _position(c: Converter, data: str, *, op: str, axis: Any = None, keepdims: bool = False) -> Any:
    """Positions as floats, the first of equal elements."""
    if axis is None:
        flat = c.op(op, c.reshape(data, [-1]), axis=0, keepdims=1)
        result = c.reshape(flat, [1] * c.rank(data) if keepdims else [1])
    else:
        result = c.op(op, data, axis=c.axis(data, axis), keepdims=int(keepdims))
        if c.rank(data) == 1 and not keepdims:
            result = c.reshape(result, [1])
    return c.cast(result, DType.FLOAT)


rule("argmax", op="ArgMax")(_position)
rule("argmin", op="ArgMin")(_position)


@rule("argmax_channel")
def argmax_channel(c: Converter, data: str) -> Any:
    return c.cast(c.ArgMax(data, axis=1, keepdims=0), DType.FLOAT)


def ordered(c: Converter, x: str, axis: int, *, largest: bool, k: int = 0) -> tuple[str, str]:
    """The k largest or smallest of an axis (0: all) in order, and where they stood."""
    count = c.ints(k) if k else c.dim(x, axis)
    values, places = c.op("TopK", x, count, outputs=2, axis=axis, largest=int(largest))
    return values, places


def _flattened(c: Converter, data: str, axis: int | None) -> tuple[str, int]:
    return (c.reshape(data, [-1]), 0) if axis is None else (data, c.axis(data, axis))


@rule("sort", "_npi_sort")
def sort(c: Converter, data: str, *, axis: Any = -1, is_ascend: bool = True) -> Any:
    data, axis = _flattened(c, data, axis)
    return ordered(c, data, axis, largest=not is_ascend)[0]


@rule("argsort", "_npi_argsort")
def argsort(c: Converter, data: str, *, axis: Any = -1, is_ascend: bool = True, dtype: Any = "float32") -> Any:
    data, axis = _flattened(c, data, axis)
    return c.cast(ordered(c, data, axis, largest=not is_ascend)[1], element_type(dtype))


@rule("topk", "_npx_topk")
def topk(
    c: Converter,
    data: str,
    *,
    axis: Any = -1,
    k: int = 1,
    ret_typ: str = "indices",
    is_ascend: bool = False,
    dtype: Any = "float32",
) -> Any:
    shape = data
    data, axis = _flattened(c, data, axis)
    values, places = ordered(c, data, axis, largest=not is_ascend, k=k)
    if ret_typ == "value":
        return values
    if ret_typ == "mask":
        zeros, ones = c.like(data, 0), c.like(values, 1)
        mask = c.ScatterElements(zeros, places, ones, axis=axis)
        return c.Reshape(mask, c.shape_of(shape)) if shape != data else mask
    indices = c.cast(places, element_type(dtype))
    if ret_typ == "both":
        return values, indices
    if ret_typ == "indices":
        return indices
    raise UnsupportedModel(f"topk cannot return {ret_typ!r}")


def _softmax(
    c: Converter,
    data: str,
    length: str | None = None,
    *,
    op: str,
    negate: bool,
    axis: int = -1,
    temperature: Any = None,
    use_length: bool = False,
    dtype: Any = None,
) -> Any:
    """With lengths, what lies behind each is 0."""
    if dtype is not None:
        data = c.cast(data, element_type(dtype))
    axis = c.axis(data, axis)
    if negate:
        data = c.Neg(data)
    if temperature is not None and temperature != 1.0:
        data = c.Div(data, c.number(temperature, data))
    if not use_length:
        return c.op(op, data, axis=axis)
    assert length is not None
    inside = within(c, data, c.unsqueeze(length, axis), axis)
    hidden = c.Where(inside, data, c.number(-1e30, data))
    return c.Where(inside, c.op(op, hidden, axis=axis), c.number(0, data))


rule("softmax", "_npx_softmax", op="Softmax", negate=False)(_softmax)
rule("log_softmax", "_npx_log_softmax", op="LogSoftmax", negate=False)(_softmax)
rule("softmin", op="Softmax", negate=True)(_softmax)


def positions(c: Converter, x: str, axis: int) -> Value:
    """0, 1, 2, ... along an axis of `x`, with sizes of 1 elsewhere: int64."""
    rank = c.rank(x)
    size = c.squeeze(c.dim(x, axis), 0)
    steps = c.Range(c.const(0), size, c.const(1))
    return c.reshape(steps, [-1 if i == axis else 1 for i in range(rank)])


def within(c: Converter, x: str, length: str, axis: int) -> Value:
    """Truths: elements that lie before a length, which broadcasts with `x`."""
    return c.Less(positions(c, x, axis), c.whole(length))


@rule("softmax_cross_entropy")
def softmax_cross_entropy(c: Converter, data: str, label: str) -> Any:
    logs = c.LogSoftmax(data, axis=1)
    picked = c.GatherElements(logs, c.unsqueeze(c.whole(label), 1), axis=1)
    return c.reshape(c.Neg(c.ReduceSum(picked, keepdims=0)), [1])


@rule("_histogram")
def histogram(c: Converter, data: str, bins: str | None = None, *, bin_cnt: Any = None, range: Any = None) -> Any:
    """Counts of the elements between each two of the bounds, the last of which belongs to the last bin; and the
    bounds."""
    if bins is None:
        if not isinstance(bin_cnt, int) or not isinstance(range, tuple) or len(range) != 2 or bin_cnt < 1:
            raise ModelError(f"a histogram of {bin_cnt!r} bins in {range!r}")
        low, high = (v + (s if range[0] == range[1] else 0) for v, s in zip(range, (-0.5, 0.5), strict=True))
        steps = np.arange(bin_cnt + 1)
        bins = c.array((high * steps + low * (bin_cnt - steps)) / bin_cnt, data)
    flat = c.reshape(data, [-1, 1])
    within = c.LessOrEqual(flat, c.slice(bins, 0, -1, None))
    reached = c.And(c.GreaterOrEqual(flat, c.slice(bins, 0, 0, -1)), within)
    counts = c.ReduceSum(c.cast(reached, DType.INT64), c.ints(0), keepdims=0)
    beyond = c.Pad(c.slice(counts, 0, 1, None), c.ints(0, 1))
    return c.constant(c.Sub(counts, beyond)), c.Identity(bins)
