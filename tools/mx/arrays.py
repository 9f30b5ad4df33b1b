"""`mx.nd`: arrays under MXNet's names. What is not here is `mz.nd`'s own."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ... import nd as ours
from ...gluon import nn
from ...importers.mxnet import read_arrays
from ...nd import concat as _concat
from ...nd import linalg, random
from ...nd.array import Array
from ...nd.place import place_of
from ...runtime.files import replace_file
from .files import write_arrays

NDArray = Array
NAMES = {  # MXNet's names of functions that ours call otherwise
    "argmax_channel": "argmax", "broadcast_axis": "broadcast_to", "identity": "positive", "sum_axis": "sum",
    "max_axis": "max", "min_axis": "min", "Flatten": "flatten", "stop_gradient": "stop_gradient",
    "BlockGrad": "stop_gradient", "Cast": "astype", "cast": "astype", "SwapAxis": "swapaxes",
    "broadcast_plus": "broadcast_add", "broadcast_minus": "broadcast_sub", "lesser": "less",
    "lesser_equal": "less_equal", "ElementWiseSum": "add_n", "fixed": "fix",
}  # fmt: skip


def array(source_array: Any, ctx: Any = None, dtype: Any = None) -> Array:
    """An array of what NumPy takes for one; float32 unless it says, or is an array, of another type."""
    kind = dtype or (source_array.dtype if isinstance(source_array, Array) else np.float32)
    values = source_array.asnumpy() if isinstance(source_array, Array) else source_array
    return ours.array(np.asarray(values, kind), ctx=ctx)


def zeros(shape: Any, ctx: Any = None, dtype: Any = None, **_: Any) -> Array:
    return ours.zeros(shape, dtype or np.float32, ctx=ctx)


def ones(shape: Any, ctx: Any = None, dtype: Any = None, **_: Any) -> Array:
    return ours.ones(shape, dtype or np.float32, ctx=ctx)


def full(shape: Any, val: Any, ctx: Any = None, dtype: Any = np.float32) -> Array:
    return ours.full(shape, val, dtype=dtype, ctx=ctx)


def empty(shape: Any, ctx: Any = None, dtype: Any = None) -> Array:
    return zeros(shape, ctx, dtype)


def arange(
    start: float,
    stop: float | None = None,
    step: float = 1.0,
    repeat: int = 1,
    ctx: Any = None,
    dtype: Any = np.float32,
) -> Array:
    """Numbers in float32, each `repeat` times."""
    first, last = (0, start) if stop is None else (start, stop)
    return array(np.repeat(np.arange(first, last, step), repeat), ctx, dtype)


def concat(*data: Any, dim: int = 1) -> Array:
    return _concat(list(data), axis=dim)


Concat = concat


def concatenate(arrays: Sequence[Array], axis: int = 0, always_copy: bool = True) -> Array:
    return _concat(list(arrays), axis=axis)


def stack(*data: Array, axis: int = 0) -> Array:
    return ours.stack(list(data), axis=axis)


def onehot_encode(indices: Array, out: Array) -> Array:
    out[:] = ours.one_hot(indices.astype("int64"), out.shape[1]).astype(out.dtype)
    return out


def take(a: Array, indices: Array, axis: int = 0, mode: str = "clip") -> Array:
    """Parts of an axis; what lies beyond its ends is cut off, or taken around."""
    whole, size = indices.astype("int64"), a.shape[axis]
    inside = ours.remainder(whole, size) if mode == "wrap" else ours.clip(whole, 0, size - 1)
    flat = ours.take(a, inside.reshape((-1,)), axis=axis)
    axis %= a.ndim
    return flat.reshape((*a.shape[:axis], *indices.shape, *a.shape[axis + 1 :]))


def dot(lhs: Array, rhs: Array, transpose_a: bool = False, transpose_b: bool = False, **_: Any) -> Array:
    """The product over the last axis of one and the first of the other; of what is transposed, the other end."""
    left = ours.permute_dims(lhs, (*range(1, lhs.ndim), 0)) if transpose_a and lhs.ndim > 1 else lhs
    right = ours.permute_dims(rhs, (rhs.ndim - 1, *range(rhs.ndim - 1))) if transpose_b and rhs.ndim > 1 else rhs
    return ours.tensordot(left, right, axes=1)


def SequenceMask(  # noqa: N802
    data: Array, sequence_length: Array | None = None, use_sequence_length: bool = False, value: float = 0.0,
    axis: int = 0,
) -> Array:  # fmt: skip
    """Steps behind each sequence's length become `value`; the other of the first two axes is the batch's."""
    if sequence_length is None or not use_sequence_length:
        return data
    steps = arange(data.shape[axis]).reshape((-1, 1) if axis == 0 else (1, -1))
    lengths = sequence_length.astype("float32").reshape((1, -1) if axis == 0 else (-1, 1))
    inside = ours.less(steps, lengths)
    inside = inside.reshape(inside.shape + (1,) * (data.ndim - 2))
    return ours.where(inside, data, ours.full_like(data, value))


def where(condition: Array, x: Array, y: Array) -> Array:
    """Elements of `x` where the condition is not 0, else of `y`; a vector of conditions chooses rows."""
    rows = condition.ndim == 1 and x.ndim > 1
    return ours.where(condition.reshape((-1,) + (1,) * (x.ndim - 1)) if rows else condition, x, y)


def round(data: Array) -> Array:
    """Whole numbers; halves go away from zero, where NumPy and `mz.nd` take the even one."""
    size = ours.abs(data)
    whole = ours.floor(size)
    return ours.sign(data) * (whole + (size - whole >= 0.5).astype(data.dtype))


def sort(data: Array, axis: int = -1, is_ascend: bool = True) -> Array:
    return ours.sort(data, axis=axis, descending=not is_ascend)


def clip(data: Array, a_min: float, a_max: float) -> Array:
    return ours.clip(data, a_min, a_max)


def repeat(data: Array, repeats: int, axis: int | None = None) -> Array:
    return ours.repeat(data, repeats, axis=axis)


def tile(data: Array, reps: Sequence[int]) -> Array:
    return ours.tile(data, tuple(reps))


def transpose(data: Array, axes: Sequence[int] = ()) -> Array:
    return ours.permute_dims(data, tuple(axes) or tuple(range(data.ndim))[::-1])


def FullyConnected(  # noqa: N802 (MXNet's name)
    data: Array, weight: Array, bias: Array | None = None, *, num_hidden: int, no_bias: bool = False,
    flatten: bool = True,
) -> Array:  # fmt: skip
    x = data.reshape((data.shape[0], -1)) if flatten else data
    return ours.linear(x, weight, None if no_bias else bias)


def Activation(data: Array, act_type: str = "relu") -> Array:  # noqa: N802
    return nn.Activation(act_type)(data)  # type: ignore[no-any-return]


def Convolution(  # noqa: N802
    data: Array, weight: Array, bias: Array | None = None, *, kernel: Sequence[int], num_filter: int,
    stride: Sequence[int] = (), pad: Sequence[int] = (), dilate: Sequence[int] = (), num_group: int = 1,
    no_bias: bool = False,
) -> Array:  # fmt: skip
    n = len(kernel)
    return ours.operator("Conv")(  # type: ignore[no-any-return]
        data, weight, None if no_bias else bias, kernel_shape=tuple(kernel), strides=tuple(stride) or (1,) * n,
        pads=(tuple(pad) or (0,) * n) * 2, dilations=tuple(dilate) or (1,) * n, group=num_group,
    )  # fmt: skip


def Pooling(  # noqa: N802
    data: Array, *, kernel: Sequence[int] = (), pool_type: str = "max", stride: Sequence[int] = (),
    pad: Sequence[int] = (), global_pool: bool = False,
) -> Array:  # fmt: skip
    name = {"max": "Max", "avg": "Average"}[pool_type] + "Pool"
    if global_pool:
        return ours.operator(f"Global{name}")(data)  # type: ignore[no-any-return]
    n = len(kernel)
    more = {"count_include_pad": 1} if pool_type == "avg" else {}
    return ours.operator(name)(  # type: ignore[no-any-return]
        data, kernel_shape=tuple(kernel), strides=tuple(stride) or (1,) * n, pads=(tuple(pad) or (0,) * n) * 2, **more
    )


def save(fname: str | os.PathLike[str], data: Any) -> None:
    """Write arrays, a list or a dict of them, as MXNet does: `load` here and there reads it."""
    if isinstance(data, Mapping):
        named = {str(k): np.asarray(v.asnumpy()) for k, v in data.items()}
        content = write_arrays(named)
    else:
        arrays = [data] if isinstance(data, Array) else list(data)
        content = write_arrays([np.asarray(v.asnumpy()) for v in arrays])
    replace_file(fname, [content])


def load(fname: str | os.PathLike[str], ctx: Any = None) -> Any:
    """The arrays of a file: a dict, or a list where they have no names."""
    arrays = read_arrays(fname)
    values = {k: ours.asarray(v, device=None if ctx is None else place_of(ctx)) for k, v in arrays.items()}
    return list(values.values()) if list(values) == [str(i) for i in range(len(values))] else values


def __getattr__(name: str) -> Any:
    """The names of `mz.nd`, under MXNet's names too (PEP 562)."""
    return getattr(ours, NAMES.get(name, name))


__all__ = ["NAMES", "NDArray", "linalg", "random"]
