"""The derivatives of pooling: each window passes its gradient to its maximum, or to all of its elements.

https://onnx.ai/onnx/operators/onnx__MaxPool.html; the saved position is what oneDNN's workspace of max pooling holds
(https://uxlfoundation.github.io/oneDNN/dev_guide_pooling.html).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..core.rules import ints, narrow, unknown, widen
from ..core.shapes import (
    cast_like,
    count,
    joined,
    multiples,
    reaches,
    reshaped,
    size,
    sizes,
    spread_over_windows,
    starts,
    wide,
    with_axes,
    zeros,
)
from ..op import Builder, Context, Sample, Value, op
from ..types import Array, DType, Tensor
from .pool import POOL_SAMPLES, counted, lowest, pooled_dims
from .windows import POOL, Ints, Window, known, padded, per_axis, taps, unpadded, windows


def _of_windows(sample: Sample) -> Tensor:
    """The type of what a pool makes of a sample."""
    (x,) = sample.inputs
    assert isinstance(x, Tensor)
    return x.of(pooled_dims(x, **{a: v for a, v in sample.attrs.items() if a != "count_include_pad"}))


def _image(sample: Sample) -> Any:
    (x,) = sample.inputs
    assert isinstance(x, Tensor)
    return np.array(x.sizes, np.int64)


def _position_type(kernel_shape: Sequence[int]) -> DType:
    return DType.UINT8 if math.prod(kernel_shape) <= 256 else DType.INT32


@op(
    "MaxPoolTrain",
    domain="mezzo",
    attributes=POOL,
    outputs=("Y", "position"),
    samples=[Sample(s.inputs, s.attrs, 2) for s in POOL_SAMPLES],
)
def max_pool_train(
    k: Context, X: Array, *, kernel_shape: Sequence[int], storage_order: int = 0, **window: Any
) -> tuple[Array, Array]:
    """MaxPool, and where in its window each maximum stands, counted row by row; the first of equal ones."""
    sliding = known(windows(X.shape[2:], kernel_shape, **window))
    x = widen(X)
    first, *rest = taps(padded(k.xp, x, sliding, lowest(x.dtype)), sliding)
    y = k.xp.array(first, order="C")
    position = k.xp.empty(y.shape, _position_type(kernel_shape).numpy)
    position[...] = k.xp.asarray(_first_inside(sliding))
    for t, view in enumerate(rest, start=1):
        better = (view > y) | (view != view)
        k.xp.copyto(y, view, where=better)
        position[better] = t
    return narrow(y, X.dtype), position


def _first_inside(sliding: Sequence[Window]) -> Array:
    """Return, for each window, the first place of the kernel that is not in the padding: the answer if all elements are
    -inf."""
    position: Any = np.zeros((), np.int64)
    for w in sliding:
        outside = np.maximum(w.before - np.arange(w.out) * w.stride, 0)
        position = position[..., None] * w.kernel + np.minimum(-(-outside // w.dilation), w.kernel - 1)
    return position


@max_pool_train.infer
def _(X: Tensor, *, kernel_shape: Sequence[int], storage_order: int = 0, **attrs: Any) -> tuple[Tensor, Tensor]:
    y = X.of(pooled_dims(X, kernel_shape, **attrs))
    return y, y.to(_position_type(kernel_shape))


@max_pool_train.grad
def _(g: Builder, dys: Any, ys: Any, xs: Any, **attrs: Any) -> tuple[Value | None, ...]:
    return (g.MaxPoolGrad(dys[0], ys[1], g.shape_of(xs[0]), domain="mezzo", **attrs),)


@max_pool_train.body
def _(
    g: Builder, xs: Any, types: Any, *, kernel_shape: Sequence[int], storage_order: int = 0, **attrs: Any
) -> tuple[Value, Value]:
    (X,) = xs
    y, indices = g.MaxPool(X, kernel_shape=kernel_shape, outputs=2, **attrs)
    shape = g.shape_of(X)
    within = g.Mod(indices, count(g, sizes(g, shape, 2)))
    position: Value = None
    for i, (first, step, spread) in enumerate(_axes(g, g.shape_of(y), shape, kernel_shape, **attrs)):
        at = g.Mod(g.Div(within, step), size(g, shape, i + 2))
        tap = g.Div(g.Sub(at, first), g.const(spread))
        position = tap if position is None else g.Add(g.Mul(position, g.const(kernel_shape[i])), tap)
    return y, g.Cast(position, to=_position_type(kernel_shape).onnx)


def _axes(
    g: Builder,
    pooled: Value,
    shape: Value,
    kernel_shape: Sequence[int],
    *,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: Ints = None,
    pads: Ints = None,
    strides: Ints = None,
) -> list[tuple[Value, Value, int]]:
    """Yield, for each spatial axis, the starts of its windows (shaped as the pooled tensor), the number of elements of
    a channel in a step along it, and the dilation."""
    n = len(kernel_shape)
    image, out = sizes(g, shape, 2), sizes(g, pooled, 2)
    reach = reaches(g, out, g.const(kernel_shape), n, strides, dilations)
    before = starts(g, image, reach, n, pads, auto_pad)
    step, spread = per_axis(strides, n, 1, "strides"), per_axis(dilations, n, 1, "dilations")
    return [
        (
            with_axes(g, g.Sub(multiples(g, size(g, out, i), step[i]), size(g, before, i)), n - 1 - i),
            count(g, sizes(g, image, i + 1)),
            spread[i],
        )
        for i in range(n)
    ]


def _positions(sample: Sample) -> Array:
    """Return the positions of the maxima of a sample's image."""
    sizes = _image(sample)
    image = (np.arange(sizes.prod()) * 7 % 11).astype(np.float32).reshape(sizes)
    return max_pool_train.run(Context(), [image], sample.attrs)[1]


@op(
    "MaxPoolGrad",
    domain="mezzo",
    attributes=POOL,
    outputs=("dX",),
    samples=[Sample([_of_windows(s), _positions(s), _image(s)], s.attrs) for s in POOL_SAMPLES],
)
def max_pool_grad(
    k: Context,
    dy: Array,
    position: Array,
    shape: Array,
    *,
    kernel_shape: Sequence[int],
    storage_order: int = 0,
    **window: Any,
) -> Array:
    """The gradient of MaxPool to its input of this shape, from the positions that MaxPoolTrain saved."""
    spatial = ints(shape)[2:]
    sliding = known(windows(spatial, kernel_shape, **window))
    dx, part = _ground(k, shape, sliding, widen(dy).dtype), widen(dy)
    for t, view in enumerate(taps(dx, sliding)):
        view += k.xp.where(position == t, part, 0)
    return narrow(unpadded(k.xp, dx, sliding, spatial), dy.dtype)


def _ground(k: Context, shape: Array, sliding: Sequence[Window], dtype: Any) -> Array:
    """Zeros for an image of this shape, padded."""
    batch, channels, *spatial = ints(shape)
    whole = [n + w.before + w.after + w.extra for n, w in zip(spatial, sliding, strict=True)]
    return k.xp.zeros((batch, channels, *whole), dtype)


def _like_image(dy: Tensor, shape: Tensor, kernel_shape: Sequence[int]) -> Tensor:
    asked = shape.ints()
    return dy.of(unknown(len(kernel_shape) + 2) if asked is None else asked)


@max_pool_grad.infer
def _(dy: Tensor, position: Tensor, shape: Tensor, *, kernel_shape: Sequence[int], **attrs: Any) -> Tensor:
    return _like_image(dy, shape, kernel_shape)


def _by_channel(g: Builder, x: Value) -> Value:
    """The tensor as [batch * channels, elements]."""
    shape = g.shape_of(x)
    return reshaped(g, x, joined(g, count(g, sizes(g, shape, 0, 2)), count(g, sizes(g, shape, 2))))


def _places(g: Builder, position: Value, shape: Value, kernel_shape: Sequence[int], attrs: dict[str, Any]) -> Value:
    """Return the position of each maximum in its channel, as [batch * channels, windows]."""
    attrs = {a: v for a, v in attrs.items() if a != "storage_order"}
    at = g.Cast(position, to=DType.INT64.onnx)
    place: Value = None
    for i, (first, step, spread) in enumerate(_axes(g, g.shape_of(position), shape, kernel_shape, **attrs)):
        tap = g.Mod(g.Div(at, g.const(math.prod(kernel_shape[i + 1 :]))), g.const(kernel_shape[i]))
        part = g.Mul(g.Add(g.Mul(tap, g.const(spread)), first), step)
        place = part if place is None else g.Add(place, part)
    return _by_channel(g, place)


@max_pool_grad.body
def _(g: Builder, xs: Any, types: Any, *, kernel_shape: Sequence[int], **attrs: Any) -> Value:
    dy, position, shape = xs
    at = _places(g, position, shape, kernel_shape, attrs)
    ground = zeros(g, joined(g, count(g, sizes(g, shape, 0, 2)), count(g, sizes(g, shape, 2))), dy)
    return reshaped(g, g.ScatterElements(ground, at, _by_channel(g, dy), axis=1, reduction="add"), shape)


@max_pool_grad.grad
def _(g: Builder, dys: Any, ys: Any, xs: Any, *, kernel_shape: Sequence[int], **attrs: Any) -> tuple[Value | None, ...]:
    dy, position, shape = xs
    at = _places(g, position, shape, kernel_shape, attrs)
    return reshaped(g, g.GatherElements(_by_channel(g, dys[0]), at, axis=1), g.shape_of(dy)), None, None


@op(
    "AveragePoolGrad",
    domain="mezzo",
    attributes=POOL,
    outputs=("dX",),
    samples=[
        Sample([_of_windows(s), _image(s)], {**s.attrs, "count_include_pad": include})
        for s in POOL_SAMPLES
        for include in (0, 1)
    ],
)
def average_pool_grad(
    k: Context, dy: Array, shape: Array, *, count_include_pad: int = 0, kernel_shape: Sequence[int], **window: Any
) -> Array:
    """The gradient of AveragePool to its input of this shape: each window hands its elements equal parts."""
    spatial = ints(shape)[2:]
    sliding = known(windows(spatial, kernel_shape, **window))
    part = widen(dy) / k.xp.asarray(counted(sliding, spatial, count_include_pad), widen(dy).dtype)
    dx = _ground(k, shape, sliding, part.dtype)
    for view in taps(dx, sliding):
        view += part
    return narrow(unpadded(k.xp, dx, sliding, spatial), dy.dtype)


@average_pool_grad.infer
def _(dy: Tensor, shape: Tensor, *, kernel_shape: Sequence[int], **attrs: Any) -> Tensor:
    return _like_image(dy, shape, kernel_shape)


@average_pool_grad.grad
def _(g: Builder, dys: Any, ys: Any, xs: Any, **attrs: Any) -> tuple[Value | None, ...]:
    return g.AveragePool(dys[0], **attrs), None


@average_pool_grad.body
def _(
    g: Builder, xs: Any, types: Any, *, kernel_shape: Sequence[int], count_include_pad: int = 0, **attrs: Any
) -> Value:
    dy, shape = xs
    part = wide(g, dy)
    part = g.Div(part, _counts(g, part, shape, kernel_shape, count_include_pad, **attrs))
    return cast_like(g, spread_over_windows(g, part, shape, kernel_shape, **attrs), dy)


def _counts(
    g: Builder,
    pooled: Value,
    shape: Value,
    kernel_shape: Sequence[int],
    count_include_pad: int,
    *,
    auto_pad: str = "NOTSET",
    pads: Ints = None,
    **attrs: Any,
) -> Value:
    """Return the number of elements that the average of each window is taken over (see pool.counted)."""
    if count_include_pad and auto_pad in ("SAME_UPPER", "SAME_LOWER"):  # padded as far as the windows reach
        return g.scalar(math.prod(kernel_shape), pooled)
    n = len(kernel_shape)
    after = per_axis(pads, 2 * n, 0, "pads")[n:] if auto_pad == "NOTSET" else (0,) * n
    number: Value = None
    for i, (first, _, spread) in enumerate(
        _axes(g, g.shape_of(pooled), shape, kernel_shape, auto_pad=auto_pad, pads=pads, **attrs)
    ):
        first = g.Unsqueeze(first, g.const([-1]))
        seen = g.Add(first, g.const(np.arange(kernel_shape[i]) * spread))
        if not count_include_pad:
            inside = g.And(g.GreaterOrEqual(seen, g.const(0)), g.Less(seen, size(g, shape, i + 2)))
        else:
            inside = g.Less(seen, g.Add(size(g, shape, i + 2), g.const(after[i])))
        counts = g.ReduceSum(cast_like(g, inside, pooled), g.const([-1]), keepdims=0)
        number = counts if number is None else g.Mul(number, counts)
    return number
