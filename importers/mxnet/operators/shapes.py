"""Operators that move elements: shapes, slices, joins, repeats, fills."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from ....ops.errors import ModelError, ShapeError, UnsupportedModel
from ..converter import Converter, Value, element_type
from ..rules import rule
from .reductions import positions

KEEP, INFER, REST, MERGE, SPLIT = 0, -1, -2, -3, -4  # codes of Reshape


@rule("Reshape", "reshape")
def reshape(
    c: Converter,
    data: str,
    *,
    shape: tuple[int, ...] = (),
    reverse: bool = False,
    target_shape: tuple[int, ...] = (),
    keep_highest: bool = False,
) -> Any:
    """Codes of `shape`: 0 keeps a size, -1 is inferred, -2 keeps all that are left, -3 merges two, -4 splits one into
    the two that follow. `reverse` reads both from the right; `target_shape` is the form of the first releases."""
    if not shape and target_shape:
        first = (KEEP,) if keep_highest else ()
        return c.reshape(data, [*first, *(INFER if d == 0 else d for d in target_shape[len(first) :])])
    if not shape:
        raise ModelError("it lacks its attribute 'shape'")
    axes = list(range(c.rank(data)))
    read = _reshaped(c, data, _reversed(shape) if reverse else shape, axes[::-1] if reverse else axes)
    parts = read[::-1] if reverse else read
    return c.Reshape(data, c.shape_with(parts))


def _reversed(shape: Sequence[int]) -> list[int]:
    """The codes from the right, each still before its operands."""
    items: list[list[int]] = []
    at = 0
    while at < len(shape):
        width = 3 if shape[at] == SPLIT else 1
        items.append(list(shape[at : at + width]))
        at += width
    return [code for item in reversed(items) for code in (item if len(item) == 1 else [SPLIT, item[2], item[1]])]


def _reshaped(c: Converter, x: str, shape: Sequence[int], axes: list[int]) -> list[int | str]:
    """Sizes, or vectors of one size, of the result; `axes` are those of `x` in the order in which codes take them."""

    def size(axis: int) -> Value:
        known = c.dims(x)[axis]
        return known if isinstance(known, int) else c.dim(x, axis)

    def product(a: int | str, b: int | str) -> Value:
        if isinstance(a, int) and isinstance(b, int):
            return a * b
        return c.Mul(*(c.ints(v) if isinstance(v, int) else v for v in (a, b)))

    parts: list[int | str] = []
    at, used = 0, 0
    while at < len(shape):
        code = shape[at]
        at += 1
        taken = {MERGE: 2, REST: len(axes) - used, KEEP: 1, SPLIT: 1}.get(code, 1)
        if code != INFER and code < 1 and used + taken > len(axes):
            raise ShapeError(f"shape={tuple(shape)} takes more axes than the {len(axes)} of its operand")
        if code == KEEP:
            parts.append(size(axes[used]))
        elif code == REST:
            parts.extend(size(a) for a in axes[used:])
        elif code == MERGE:
            parts.append(product(size(axes[used]), size(axes[used + 1])))
        elif code == SPLIT:
            if at + 2 > len(shape):
                raise ModelError(f"shape={tuple(shape)} ends within a split")
            parts.extend(_halves(c, size(axes[used]), shape[at], shape[at + 1]))
            at += 2
        elif code == INFER or code > 0:
            parts.append(code)
        else:
            raise UnsupportedModel(f"shape={tuple(shape)} has the code {code}, which is not known")
        used += taken
    return parts


def _halves(c: Converter, size: int | str, first: int, second: int) -> list[int | str]:
    if INFER not in (first, second):
        return [first, second]
    known = second if first == INFER else first
    if known < 1:
        raise ModelError(f"a split into {first} and {second}")
    other = size // known if isinstance(size, int) else c.Div(size, c.ints(known))
    return [other, second] if first == INFER else [first, other]


@rule("reshape_like", "_npx_reshape_like")
def reshape_like(
    c: Converter,
    lhs: str,
    rhs: str,
    *,
    lhs_begin: Any = None,
    lhs_end: Any = None,
    rhs_begin: Any = None,
    rhs_end: Any = None,
) -> Any:
    """Some axes of the left operand take the sizes of some of the right one's."""
    if lhs_begin is None and lhs_end is None and rhs_begin is None and rhs_end is None:
        return c.Reshape(lhs, c.shape_of(rhs))
    left = range(c.rank(lhs))[slice(lhs_begin, lhs_end)]
    right = range(c.rank(rhs))[slice(rhs_begin, rhs_end)]
    before = [c.dim(lhs, i) for i in range(left.start)]
    after = [c.dim(lhs, i) for i in range(left.stop, c.rank(lhs))]
    return c.Reshape(lhs, c.shape_with([*before, *(c.dim(rhs, i) for i in right), *after]))


@rule("Flatten", "flatten", "_npx_batch_flatten")
def flatten(c: Converter, data: str) -> Any:
    return c.Flatten(data, axis=1)


@rule("expand_dims", "_npi_expand_dims")
def expand_dims(c: Converter, data: str, *, axis: int) -> Any:
    return c.unsqueeze(data, c.axis(data, axis, 1))


@rule("squeeze", "_np_squeeze")
def squeeze(c: Converter, data: str, *, axis: Any = None) -> Any:
    if axis is None:
        axes = [i for i, d in enumerate(c.sizes(data, "to tell which are 1")) if d == 1]
        axes = axes[1:] if len(axes) == c.rank(data) else axes
    else:
        axes = c.axes(data, axis)
    return c.squeeze(data, *axes) if axes else c.Identity(data)


@rule("transpose")
def transpose(c: Converter, data: str, *, axes: tuple[int, ...] = ()) -> Any:
    order = [c.axis(data, a) for a in axes] or list(range(c.rank(data)))[::-1]
    return c.Transpose(data, perm=tuple(order))


@rule("SwapAxis", "swapaxes", "_npi_swapaxes")
def swapaxes(c: Converter, data: str, *, dim1: int = 0, dim2: int = 0) -> Any:
    order = list(range(c.rank(data)))
    a, b = c.axis(data, dim1), c.axis(data, dim2)
    order[a], order[b] = b, a
    return c.Transpose(data, perm=tuple(order))


def bounds(
    c: Converter, data: str, begin: Sequence[Any], end: Sequence[Any], step: Sequence[Any]
) -> tuple[str, str, str, str]:
    """Operands of Slice: starts, ends, axes, steps; None is an open end."""
    steps = [s if s is not None else 1 for s in (*step, *[None] * len(begin))][: len(begin)]
    far = 1 << 62
    starts = [b if b is not None else (0 if s > 0 else far) for b, s in zip(begin, steps, strict=True)]
    ends = [e if e is not None else (far if s > 0 else -far) for e, s in zip(end, steps, strict=True)]
    return c.ints(*starts), c.ints(*ends), c.ints(*range(len(begin))), c.ints(*steps)


@rule("slice", "crop", "_sparse_slice", "_npi_slice", "_npx_slice")
def slice_(c: Converter, data: str, *, begin: Any, end: Any, step: tuple[Any, ...] = ()) -> Any:
    begin, end = (v if isinstance(v, tuple) else (v,) for v in (begin, end))
    return c.Slice(data, *bounds(c, data, begin, end, step))


@rule("slice_axis")
def slice_axis(c: Converter, data: str, *, axis: int, begin: int, end: Any) -> Any:
    return c.slice(data, c.axis(data, axis), begin, end)


@rule("slice_like")
def slice_like(c: Converter, data: str, shape_like: str, *, axes: tuple[int, ...] = ()) -> Any:
    over = c.axes(data, axes)
    ends = c.shape_with([c.dim(shape_like, a) for a in over])
    return c.Slice(data, c.ints(*[0] * len(over)), ends, c.ints(*over), c.ints(*[1] * len(over)))


@rule("Crop")
def crop_like(
    c: Converter,
    *data: str,
    offset: tuple[int, ...] = (0, 0),
    h_w: tuple[int, ...] = (0, 0),
    center_crop: bool = False,
) -> Any:
    """Rows and columns of the first operand, as many as the second has, or as `h_w` says."""
    if center_crop:
        height, width = (c.size(data[1], a) for a in (2, 3)) if len(data) > 1 else h_w
        top, left = ((c.size(data[0], a, "to crop its centre") - s) // 2 for a, s in ((2, height), (3, width)))
        return c.Slice(data[0], c.ints(top, left), c.ints(top + height, left + width), c.ints(2, 3))
    if len(data) > 1:
        size = c.shape_with([c.dim(data[1], 2), c.dim(data[1], 3)])
        return c.Slice(data[0], c.ints(*offset), c.Add(size, c.ints(*offset)), c.ints(2, 3))
    return c.Slice(data[0], c.ints(*offset), c.ints(*(o + s for o, s in zip(offset, h_w, strict=True))), c.ints(2, 3))


@rule("SliceChannel", "split")
def slice_channel(c: Converter, data: str, *, num_outputs: int, axis: int = 1, squeeze_axis: bool = False) -> Any:
    axis = c.axis(data, axis)
    parts = c.op("Split", data, outputs=num_outputs, axis=axis, num_outputs=num_outputs)
    parts = (parts,) if num_outputs == 1 else parts
    return tuple(c.squeeze(p, axis) for p in parts) if squeeze_axis else parts


@rule("_split_v2", "_npi_split")
def split_v2(
    c: Converter, data: str, *, indices: Any = (), axis: int = 1, squeeze_axis: bool = False, sections: int = 0
) -> Any:
    axis = c.axis(data, axis)
    if sections:
        return slice_channel(c, data, num_outputs=sections, axis=axis, squeeze_axis=squeeze_axis)
    starts = [*(indices if isinstance(indices, tuple) else (indices,)), None]
    if starts[0] != 0:
        starts = [0, *starts]
    parts = [c.slice(data, axis, a, b) for a, b in pairwise(starts)]
    return tuple(c.squeeze(p, axis) for p in parts) if squeeze_axis else tuple(parts)


@rule("Concat", "concat", "_sparse_concat", "_rnn_param_concat", "_npi_rnn_param_concat")
def concat(c: Converter, *data: str, dim: int = 1) -> Any:
    return c.op("Concat", *data, axis=c.axis(data[0], dim))


@rule("stack", "_npi_stack")
def stack(c: Converter, *data: str, axis: int = 0) -> Any:
    at = c.axis(data[0], axis, 1)
    return c.op("Concat", *(c.unsqueeze(x, at) for x in data), axis=at)


@rule("tile", "_npi_tile")
def tile(c: Converter, data: str, *, reps: Any) -> Any:
    times = list(reps) if isinstance(reps, tuple) else [reps]
    more = len(times) - c.rank(data)
    data = c.unsqueeze(data, *range(more)) if more > 0 else data
    return c.Tile(data, c.ints(*[1] * -more, *times))


@rule("repeat", "_np_repeat")
def repeat(c: Converter, data: str, *, repeats: int, axis: Any = None) -> Any:
    if axis is None:
        data, axis = c.reshape(data, [-1]), 0
    axis = c.axis(data, axis)
    apart = c.unsqueeze(data, axis + 1)
    wide = c.Tile(apart, c.ints(*(repeats if i == axis + 1 else 1 for i in range(c.rank(apart)))))
    sizes = [c.dim(data, i) for i in range(c.rank(data))]
    sizes[axis] = c.Mul(sizes[axis], c.ints(repeats))
    return c.Reshape(wide, c.shape_with(sizes))


@rule("reverse", "flip")
def reverse(c: Converter, data: str, *, axis: Any) -> Any:
    for a in c.axes(data, axis):
        data = c.slice(data, a, -1, None, -1)
    return data


@rule("Pad", "pad")
def pad(c: Converter, data: str, *, mode: str, pad_width: tuple[int, ...], constant_value: float = 0.0) -> Any:
    pads = c.ints(*pad_width[::2], *pad_width[1::2])
    if mode == "constant":
        return c.Pad(data, pads, c.number(constant_value, data))
    if mode not in ("edge", "reflect"):
        raise UnsupportedModel(f"padding of mode {mode!r} is not known")
    return c.Pad(data, pads, mode=mode)


@rule("broadcast_to", "_npi_broadcast_to")
def broadcast_to(c: Converter, data: str, *, shape: tuple[int, ...] = ()) -> Any:
    return c.Expand(data, c.ints(*(s or 1 for s in shape)))


@rule("broadcast_axis", "broadcast_axes")
def broadcast_axis(c: Converter, data: str, *, axis: tuple[int, ...] = (), size: tuple[int, ...] = ()) -> Any:
    wide = [1] * c.rank(data)
    for a, s in zip(axis, size, strict=True):
        wide[c.axis(data, a)] = s
    return c.Expand(data, c.ints(*wide))


@rule("broadcast_like")
def broadcast_like(c: Converter, lhs: str, rhs: str, *, lhs_axes: Any = None, rhs_axes: Any = None) -> Any:
    if lhs_axes is None or rhs_axes is None:
        return c.Expand(lhs, c.shape_of(rhs))
    wide: list[int | str] = [1] * c.rank(lhs)
    for a, b in zip(lhs_axes, rhs_axes, strict=True):
        wide[c.axis(lhs, a)] = c.dim(rhs, c.axis(rhs, b))
    return c.Expand(lhs, c.shape_with(wide))


@rule("shape_array", "_npx_shape_array")
def shape_array(c: Converter, data: str) -> Any:
    return c.Shape(data)


@rule("size_array")
def size_array(c: Converter, data: str) -> Any:
    return c.reshape(c.Size(data), [1])


@rule("depth_to_space")
def depth_to_space(c: Converter, data: str, *, block_size: int) -> Any:
    return c.DepthToSpace(data, blocksize=block_size)


@rule("space_to_depth")
def space_to_depth(c: Converter, data: str, *, block_size: int) -> Any:
    return c.SpaceToDepth(data, blocksize=block_size)


@rule("diag", "_np_diag")
def diag(c: Converter, data: str, *, k: int = 0, axis1: int = 0, axis2: int = 1) -> Any:
    """The diagonal of two axes, or the matrix with a vector as its diagonal."""
    if c.rank(data) == 1:
        size = c.size(data, 0) + abs(k)
        places = np.arange(size - abs(k))
        index = np.stack([places + max(-k, 0), places + max(k, 0)], 1)
        zeros = c.full(c.ints(size, size), 0, c.dtype(data))
        return c.ScatterND(zeros, c.const(index), data)
    first, second = c.axis(data, axis1), c.axis(data, axis2)
    return diagonal(c, data, first, second, k)


def diagonal(c: Converter, x: str, first: int, second: int, k: int) -> Value:
    """The elements where the index of one axis is that of another plus k, as the last axis."""
    rows, columns = c.size(x, first), c.size(x, second)
    count = max(min(rows, columns - k) if k >= 0 else min(rows + k, columns), 0)
    others = [i for i in range(c.rank(x)) if i not in (first, second)]
    moved = c.transpose(x, [first, second, *others])
    places = np.arange(count)
    index = np.stack([places + max(-k, 0), places + max(k, 0)], 1)
    picked: str = c.GatherND(moved, c.const(index))
    return c.transpose(picked, [*range(1, len(others) + 1), 0]) if others else picked


# Fills


@rule("zeros_like", "_sparse_zeros_like")
def zeros_like(c: Converter, data: str) -> Any:
    return c.like(data, 0)


@rule("ones_like")
def ones_like(c: Converter, data: str) -> Any:
    return c.like(data, 1)


def filled(c: Converter, shape: Any, value: float, dtype: Any) -> Value:
    sizes = (shape,) if isinstance(shape, int) else tuple(shape or ())
    fill: str = c.full(c.ints(*(s or 1 for s in sizes)), value, element_type(dtype))
    if 0 in sizes:
        c.partial[fill] = sizes
    return fill


rule("_zeros", "_npi_zeros")(lambda c, *, shape=(), dtype="float32": filled(c, shape, 0, dtype))
rule("_ones", "_npi_ones")(lambda c, *, shape=(), dtype="float32": filled(c, shape, 1, dtype))
rule("_zeros_without_dtype")(
    lambda c, *, shape=(), dtype=-1: filled(c, shape, 0, "float32" if dtype in (-1, None) else dtype)
)
rule("_full", "_npi_full")(lambda c, *, value, shape=(), dtype="float32": filled(c, shape, value, dtype))


@rule("_arange", "_npi_arange")
def arange(
    c: Converter,
    *,
    start: float,
    stop: Any = None,
    step: float = 1.0,
    repeat: int = 1,
    infer_range: bool = False,
    dtype: Any = "float32",
) -> Any:
    if infer_range:
        raise UnsupportedModel("a range of which MXNet infers the end")
    first, last = (0, start) if stop is None else (start, stop)
    values = np.repeat(np.arange(first, last, step), repeat)
    return c.Identity(c.const(values.astype(element_type(dtype).numpy)))


@rule("_linspace", "_npi_linspace")
def linspace(
    c: Converter,
    *,
    start: float,
    stop: float,
    num: int = 50,
    endpoint: bool = True,
    step: Any = 1.0,
    repeat: int = 1,
    infer_range: bool = False,
    dtype: Any = "float32",
) -> Any:
    values = np.linspace(start, stop, num, endpoint=endpoint)
    return c.Identity(c.const(values.astype(element_type(dtype).numpy)))


@rule("_eye", "_npi_eye")
def eye(c: Converter, *, N: int, M: Any = None, k: int = 0, dtype: Any = "float32") -> Any:
    return c.Identity(c.const(np.eye(N, M or N, k, dtype=element_type(dtype).numpy)))


@rule("_contrib_arange_like", "_npx_arange_like")
def arange_like(
    c: Converter, data: str, *, start: float = 0.0, step: float = 1.0, repeat: int = 1, axis: Any = None
) -> Any:
    count = c.Size(data) if axis is None else c.squeeze(c.dim(data, c.axis(data, axis)), 0)
    steps = c.Range(c.const(0), count, c.const(1))
    if repeat > 1:
        steps = c.Div(steps, c.const(repeat))
    values = c.cast(steps, c.dtype(data))
    values = c.Add(c.Mul(values, c.number(step, data)), c.number(start, data))
    return c.Reshape(values, c.shape_of(data)) if axis is None else values


@rule("_contrib_index_array")
def index_array(c: Converter, data: str, *, axes: Any = None) -> Any:
    """The indices of each element, as a last axis: int64."""
    shape = c.shape_of(data)
    over = range(c.rank(data)) if axes is None else [c.axis(data, a) for a in axes]
    grids = [c.unsqueeze(c.Expand(positions(c, data, a), shape), c.rank(data)) for a in over]
    return c.op("Concat", *grids, axis=c.rank(data))
