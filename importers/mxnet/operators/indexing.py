"""Operators that pick and place elements by indices, and those of sequences."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ....ops.errors import UnsupportedModel
from ..converter import Converter, Value, element_type
from ..rules import rule
from .reductions import within
from .shapes import bounds


def inside(c: Converter, indices: str, size: str, mode: str) -> Value:
    """Whole indices within a size (a scalar): cut off at its ends, or taken around."""
    whole = c.whole(indices)
    if mode == "wrap":
        return c.Mod(whole, size)
    if mode not in ("clip", "raise"):
        raise UnsupportedModel(f"indices of mode {mode!r} are not known")
    if mode == "raise":
        return whole
    return c.Max(c.Min(whole, c.Sub(size, c.const(1))), c.const(0))


def scalar_size(c: Converter, x: str, axis: int) -> Value:
    known = c.dims(x)[axis]
    return c.const(known) if isinstance(known, int) else c.squeeze(c.dim(x, axis), 0)


@rule("Embedding", "_contrib_SparseEmbedding", "_sparse_Embedding", "_npx_embedding")
def embedding(c: Converter, data: str, weight: str, *, input_dim: int, output_dim: int, dtype: Any = "float32") -> Any:
    """Rows of a table; indices beyond its ends are those of the ends."""
    c.agree(weight, 0, input_dim, "input_dim")
    c.agree(weight, 1, output_dim, "output_dim")
    return c.Gather(weight, inside(c, data, scalar_size(c, weight, 0), "clip"), axis=0)


@rule("take", "_npi_take")
def take(c: Converter, a: str, indices: str, *, axis: Any = 0, mode: str = "clip") -> Any:
    if axis is None:
        a, axis = c.reshape(a, [-1]), 0
    axis = c.axis(a, axis)
    return c.Gather(a, inside(c, indices, scalar_size(c, a, axis), mode), axis=axis)


@rule("batch_take")
def batch_take(c: Converter, a: str, indices: str) -> Any:
    return pick(c, a, indices, axis=1)


@rule("pick", "choose_element_0index", "_npx_pick")
def pick(c: Converter, data: str, index: str, *, axis: Any = -1, keepdims: bool = False, mode: str = "clip") -> Any:
    """One element of an axis for each index."""
    if axis is None:
        data, axis = c.reshape(data, [-1]), 0
    axis = c.axis(data, axis)
    if c.rank(index) < c.rank(data):
        index = c.unsqueeze(index, axis)
    picked = c.GatherElements(data, inside(c, index, scalar_size(c, data, axis), mode), axis=axis)
    return picked if keepdims else c.squeeze(picked, axis)


def _rows(c: Converter, indices: str) -> Value:
    """Index tuples as the last axis, where ONNX has them; MXNet has them as the first."""
    return c.transpose(c.whole(indices), [*range(1, c.rank(indices)), 0])


@rule("gather_nd", "_npi_gather_nd", "_npx_gather_nd")
def gather_nd(c: Converter, data: str, indices: str) -> Any:
    return c.GatherND(data, _rows(c, indices))


@rule("scatter_nd")
def scatter_nd(c: Converter, data: str, indices: str, *, shape: tuple[int, ...]) -> Any:
    return c.ScatterND(c.full(c.ints(*shape), 0, c.dtype(data)), _rows(c, indices), data)


@rule("_scatter_set_nd", "_npi_scatter_set_nd")
def scatter_set_nd(c: Converter, lhs: str, rhs: str, indices: str, *, shape: tuple[int, ...]) -> Any:
    return c.ScatterND(lhs, _rows(c, indices), rhs)


@rule("one_hot", "_npx_one_hot")
def one_hot(
    c: Converter, indices: str, *, depth: int, on_value: float = 1.0, off_value: float = 0.0, dtype: Any = "float32"
) -> Any:
    """Rows of `off_value` alone for indices outside of the depth: ONNX's OneHot counts negative ones from behind."""
    hits = c.Equal(c.unsqueeze(c.whole(indices), c.rank(indices)), c.const(np.arange(depth)))
    kind = element_type(dtype).numpy
    return c.Where(hits, c.const(np.array(on_value).astype(kind)), c.const(np.array(off_value).astype(kind)))


@rule("_onehot_encode")
def onehot_encode(c: Converter, lhs: str, rhs: str) -> Any:
    return one_hot(c, lhs, depth=c.size(rhs, 1))


@rule("where", "_sparse_where", "_npi_where")
def where(c: Converter, condition: str, x: str, y: str) -> Any:
    """A condition of one axis chooses among the rows of the others."""
    truth = c.truth(condition)
    if c.rank(condition) == 1 and c.rank(x) > 1:
        truth = c.unsqueeze(truth, *range(1, c.rank(x)))
    return c.Where(truth, x, y)


@rule("_contrib_boolean_mask", "_npi_boolean_mask")
def boolean_mask(c: Converter, data: str, index: str, *, axis: int = 0) -> Any:
    return c.Compress(data, c.truth(index), axis=axis)


@rule("_contrib_index_copy")
def index_copy(c: Converter, old_tensor: str, index_vector: str, new_tensor: str) -> Any:
    return c.ScatterND(old_tensor, c.unsqueeze(c.whole(index_vector), 1), new_tensor)


@rule("_sparse_retain")
def sparse_retain(c: Converter, data: str, indices: str) -> Any:
    """The rows that are named; the others are 0."""
    rows = c.unsqueeze(c.whole(indices), 1)
    return c.ScatterND(c.like(data, 0), rows, c.GatherND(data, rows))


@rule("fill_element_0index")
def fill_element(c: Converter, lhs: str, mhs: str, rhs: str) -> Any:
    return c.ScatterElements(lhs, c.unsqueeze(c.whole(rhs), 1), c.unsqueeze(mhs, 1), axis=1)


def _strides(shape: tuple[int, ...]) -> list[int]:
    return [math.prod(shape[i + 1 :]) for i in range(len(shape))]


@rule("_ravel_multi_index", "ravel_multi_index")
def ravel_multi_index(c: Converter, data: str, *, shape: tuple[int, ...]) -> Any:
    factors = c.array(np.reshape(_strides(shape), [-1, *[1] * (c.rank(data) - 1)]), data)
    return c.ReduceSum(c.Mul(data, factors), c.ints(0), keepdims=0)


@rule("_unravel_index", "unravel_index")
def unravel_index(c: Converter, data: str, *, shape: tuple[int, ...]) -> Any:
    whole, column = c.unsqueeze(c.whole(data), 0), [-1, *[1] * c.rank(data)]
    parts = c.Div(whole, c.const(np.reshape(_strides(shape), column)))
    sizes = np.reshape([np.iinfo(np.int64).max, *shape[1:]], column)  # the first axis takes what is left
    return c.cast(c.Mod(parts, c.const(sizes)), c.dtype(data))


def _assigned(c: Converter, lhs: str, value: str, begin: Any, end: Any, step: Any) -> Value:
    """`lhs` with a slice of it replaced: the slice of the positions says where."""
    shape = c.sizes(lhs, "to write a slice of it")
    begin, end = (v if isinstance(v, tuple) else (v,) for v in (begin, end))
    numbers = c.const(np.arange(math.prod(shape)).reshape(shape))
    places = c.Slice(numbers, *bounds(c, lhs, begin, end, step))
    flat = c.ScatterElements(c.reshape(lhs, [-1]), c.reshape(places, [-1]), c.reshape(value, [-1]), axis=0)
    return c.Reshape(flat, c.ints(*shape))


@rule("_slice_assign", "_crop_assign", "_npi_slice_assign")
def slice_assign(c: Converter, lhs: str, rhs: str, *, begin: Any, end: Any, step: tuple[Any, ...] = ()) -> Any:
    return _assigned(c, lhs, rhs, begin, end, step)


@rule("_slice_assign_scalar", "_crop_assign_scalar", "_npi_slice_assign_scalar")
def slice_assign_scalar(
    c: Converter, data: str, *, scalar: float = 0.0, begin: Any, end: Any, step: tuple[Any, ...] = ()
) -> Any:
    begin, end = (v if isinstance(v, tuple) else (v,) for v in (begin, end))
    part = c.Slice(data, *bounds(c, data, begin, end, step))
    return _assigned(c, data, c.like(part, scalar), begin, end, step)


# Sequences: the time is axis 0, the batch axis 1, unless `axis` swaps them


def _lengths(c: Converter, data: str, lengths: str, axis: int) -> Value:
    """Lengths that broadcast with the data."""
    rank = c.rank(data)
    return c.reshape(lengths, [-1 if i == 1 - axis else 1 for i in range(rank)])


@rule("SequenceMask", "_npx_sequence_mask")
def sequence_mask(
    c: Converter,
    data: str,
    sequence_length: str | None = None,
    *,
    use_sequence_length: bool = False,
    value: float = 0.0,
    axis: int = 0,
) -> Any:
    if not use_sequence_length or sequence_length is None:
        return c.Identity(data)
    return c.Where(within(c, data, _lengths(c, data, sequence_length, axis), axis), data, c.number(value, data))


@rule("SequenceLast")
def sequence_last(
    c: Converter,
    data: str,
    sequence_length: str | None = None,
    *,
    use_sequence_length: bool = False,
    axis: int = 0,
) -> Any:
    if not use_sequence_length or sequence_length is None:
        return c.squeeze(c.slice(data, axis, -1, None), axis)
    last = c.Sub(c.whole(_lengths(c, data, sequence_length, axis)), c.const(1))
    sizes = [c.dim(data, i) for i in range(c.rank(data))]
    sizes[axis] = c.ints(1)
    return c.squeeze(c.GatherElements(data, c.Expand(last, c.shape_with(sizes)), axis=axis), axis)


@rule("SequenceReverse")
def sequence_reverse(
    c: Converter,
    data: str,
    sequence_length: str | None = None,
    *,
    use_sequence_length: bool = False,
    axis: int = 0,
) -> Any:
    if not use_sequence_length or sequence_length is None:
        return c.slice(data, axis, -1, None, -1)
    return c.ReverseSequence(data, c.whole(sequence_length), time_axis=axis, batch_axis=1 - axis)
