"""Pad: a border of a constant, of edge elements, or of the tensor reflected or repeated.

https://onnx.ai/onnx/operators/onnx__Pad.html
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ..core.rules import axes_of, ints, total, unknown
from ..errors import ShapeError
from ..op import Builder, Context, Sample, Value, op
from ..types import Array, Tensor, f32, i64
from .indexing_grads import shaped, unmoved, untaken
from .movement import shaped_like


def _list(*values: int) -> np.ndarray[Any, Any]:
    return np.array(values, np.int64)


def pad_pairs(pads: Sequence[int], axes: Iterable[int] | None, rank: int) -> list[tuple[int, int]]:
    """(before, after) for each axis."""
    at = tuple(range(rank)) if axes is None else axes_of(axes, rank)
    if len(pads) != 2 * len(at):
        raise ShapeError(f"pads {list(pads)} has {len(pads)} entries for {len(at)} axes, which take {2 * len(at)}")
    pairs = [(0, 0)] * rank
    for i, a in enumerate(at):
        pairs[a] = (pads[i], pads[len(at) + i])
    return pairs


def pad_indices(mode: str, n: int, before: int, after: int) -> np.ndarray[Any, Any]:
    """Return the index, along an axis of size `n`, of the element at each place of the padded axis. Negative padding
    crops first."""
    first, last = max(-before, 0), n - max(-after, 0)
    size = last - first
    at = np.arange(-max(before, 0), size + max(after, 0))
    if size < 1 and len(at):
        raise ShapeError(f"mode {mode!r} cannot pad an axis without elements")
    if mode == "edge":
        at = at.clip(0, size - 1)
    elif mode == "wrap":
        at = at % size
    elif mode == "reflect":
        period = max(2 * (size - 1), 1)
        at = at % period
        at = np.minimum(at, period - at) if size > 1 else at * 0
    else:
        raise ShapeError(f"pad mode {mode!r} is none of constant, reflect, edge, wrap")
    return at + first


@op(
    "Pad",
    moves="pad",
    since=25,
    outputs=("output",),
    samples=[
        Sample([f32(2, 3), _list(1, 0, 0, 2)]),
        Sample([f32(2, 3), _list(1, 0, 0, 2), np.float32(1.5)]),
        Sample([f32(2, 3), _list(-1, 0, 1, -1)]),
        Sample([f32(2, 4), _list(3, 2), None, _list(-1)], {"mode": "reflect"}),
        Sample([f32(2, 3), _list(1, 2, 0, 1)], {"mode": "edge"}),
        Sample([f32(2, 3), _list(1, 2, 1, 1)], {"mode": "wrap"}),
        Sample([f32(0, 2), _list(1, 0, 1, 0)]),
        Sample([i64(2), _list(1, 1), np.int64(7), _list(0)]),
        Sample([f32(2, 3), _list(-1, 2), np.float32(2), _list(-1)]),
    ],
)
def pad(
    k: Context,
    data: Array,
    pads: Array,
    constant_value: Array | None = None,
    axes: Array | None = None,
    *,
    mode: str = "constant",
) -> Array:
    pairs = pad_pairs(ints(pads), None if axes is None else ints(axes), data.ndim)
    if mode != "constant":
        result = data.copy()
        for axis, (before, after) in enumerate(pairs):
            if before or after:
                result = result.take(k.xp.asarray(pad_indices(mode, data.shape[axis], before, after)), axis)
        return result
    sizes = tuple(n + b + a for n, (b, a) in zip(data.shape, pairs, strict=True))
    fill: Any = "" if data.dtype == object else 0
    result = k.xp.full(sizes, fill if constant_value is None else constant_value.reshape(()), data.dtype)
    to = tuple(slice(max(b, 0), n - max(a, 0)) for n, (b, a) in zip(sizes, pairs, strict=True))
    of = tuple(slice(max(-b, 0), n - max(-a, 0)) for n, (b, a) in zip(data.shape, pairs, strict=True))
    result[to] = data[of]
    return result


@pad.infer
def _(data: Tensor, pads: Tensor, constant_value: Tensor | None = None, axes: Tensor | None = None) -> Tensor:
    sizes, at = pads.ints(), None if axes is None else axes.ints()
    if axes is not None and at is None:
        return data.of(unknown(data.rank))
    if sizes is None:
        touched = range(data.rank) if at is None else axes_of(at, data.rank)
        return data.of(None if i in touched else d for i, d in enumerate(data.shape))
    pairs = pad_pairs(sizes, at, data.rank)
    dims = [total((d, b + a)) for d, (b, a) in zip(data.shape, pairs, strict=True)]
    if any(isinstance(d, int) and d < 0 for d in dims):
        raise ShapeError(f"pads {sizes} crop more than {data} has")
    return data.of(dims)


@pad.grad
def _(g: Builder, dys: Any, ys: Any, xs: Any, *, mode: str = "constant") -> tuple[Value | None, ...]:
    data, pads, constant, axes = xs
    if mode != "constant":
        return g.PadGrad(dys[0], pads, g.shape_of(data), axes, mode=mode, domain="mezzo"), None, None, None
    dx = g.Pad(dys[0], g.Neg(pads), None, axes)  # a negative border crops
    if constant is None or not g.wants[2]:
        return dx, None, None, None
    border = g.ReduceSum(g.Sub(dys[0], g.Pad(dx, pads, None, axes)), keepdims=0)
    return dx, None, shaped_like(g, border, constant), None


@op(
    "PadGrad",
    domain="mezzo",
    complex_numbers="direct",
    samples=[
        Sample([f32(2, 9), _list(3, 2), _list(2, 4), _list(-1)], {"mode": "reflect"}),
        Sample([f32(3, 6), _list(1, 2, 0, 1), _list(2, 3)], {"mode": "edge"}),
        Sample([f32(4, 6), _list(1, 2, 1, 1), _list(2, 3)], {"mode": "wrap"}),
        Sample([f32(2, 4), _list(0, -1, 1, 2), _list(1, 3)], {"mode": "edge"}),
        Sample([f32(0, 3), _list(1, 1), _list(0, 1), _list(1)], {"mode": "edge"}),
    ],
)
def pad_grad(k: Context, dY: Array, pads: Array, shape: Array, axes: Array | None = None, *, mode: str) -> Array:
    """Zeros of `shape`, to which dY is added where a Pad whose mode repeats elements took them from."""
    sizes = ints(shape)
    result = dY.copy()
    for axis, (before, after) in enumerate(pad_pairs(ints(pads), None if axes is None else ints(axes), dY.ndim)):
        if before or after:
            places = k.xp.asarray(pad_indices(mode, sizes[axis], before, after))
            result = untaken(k.xp, result, places, sizes[axis], axis)
    return result


@pad_grad.infer
def _(dY: Tensor, pads: Tensor, shape: Tensor, axes: Tensor | None = None) -> Tensor:
    return shaped(dY, shape)


@pad_grad.body
def _(g: Builder, xs: Any, types: Any, *, mode: str) -> Value:
    dY, pads, shape, axes = xs
    return unmoved(g, dY, shape, lambda places: g.Pad(places, pads, None, axes, mode=mode))


@pad_grad.grad
def _(g: Builder, dys: Any, ys: Any, xs: Any, *, mode: str) -> tuple[Value | None, ...]:
    return g.Pad(dys[0], xs[1], None, xs[3], mode=mode), None, None, None
