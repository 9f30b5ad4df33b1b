"""Normalisation.

https://onnx.ai/onnx/operators/
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..core import weights
from ..core.rules import axes_of, axis_of, check_broadcast_to, mean_of, narrow, same, variance_of, widen
from ..core.shapes import cast_like, count, joined, reshaped, sizes, wide, with_axes
from ..errors import ShapeError
from ..op import Builder, Context, Sample, Twin, Value, op
from ..types import Array, DType, Tensor, f32

POSITIVE = np.array([0.5, 1.0, 2.0], np.float32)


def per_channel(v: Array, x: Array) -> Array:
    """A vector with one entry per channel, shaped to meet `x`."""
    return widen(v).reshape(-1, *(1,) * (x.ndim - 2))


def check_channels(X: Tensor, **vectors: Tensor) -> None:
    """ShapeError where a list has another number of entries than there are channels."""
    for name, v in vectors.items():
        if v.dims is not None and len(v.dims) != 1:
            raise ShapeError(f"{name} should be a list, not {v}")
        if v.dims is not None and X.dims is not None and len(X.dims) > 1:
            same(v.dims[0], X.dims[1], f"{name} {v} does not fit the channels of {X}")


@op(
    "BatchNormalization",
    weights=weights.channels,
    kind="normalization",
    mixed="first",
    planned_from=4096,
    since=15,
    outputs=("Y", "running_mean?", "running_var?"),
    samples=[
        Sample([f32(2, 3, 4, 4), f32(3), f32(3), f32(3), POSITIVE]),
        Sample([f32(2, 3), f32(3), f32(3), f32(3), POSITIVE], {"epsilon": 0.1}),
        Sample([f32(2, 3, 4), f32(3), f32(3), f32(3), POSITIVE], {"training_mode": 1, "momentum": 0.8}, 3),
        Sample([f32(0, 3, 2), f32(3), f32(3), f32(3), POSITIVE]),
    ],
)
def batch_normalization(
    k: Context,
    X: Array,
    scale: Array,
    B: Array,
    input_mean: Array,
    input_var: Array,
    *,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    training_mode: int = 0,
) -> tuple[Array, ...]:
    x = widen(X)
    if not training_mode:
        factor = widen(scale) / k.xp.sqrt(widen(input_var) + epsilon)
        y = x * per_channel(factor, x)
        y += per_channel(widen(B) - widen(input_mean) * factor, x)
        return (narrow(y, X.dtype),)
    return by_batch(k, X, scale, B, input_mean, input_var, epsilon, momentum)[:3]


def by_batch(
    k: Context, X: Array, scale: Array, B: Array, input_mean: Array, input_var: Array, epsilon: float, momentum: float
) -> tuple[Array, ...]:
    """Normalised by the statistics of the batch; the running ones, and those of the batch."""
    x, axes = widen(X), (0, *range(2, X.ndim))
    mean, var = mean_of(x, axes), variance_of(x, axes)
    y = (x - per_channel(mean, x)) * per_channel(widen(scale) / k.xp.sqrt(var + epsilon), x) + per_channel(B, x)
    running = [
        narrow(widen(old) * momentum + new * (1 - momentum), old.dtype)
        for old, new in ((input_mean, mean), (input_var, var))
    ]
    return narrow(y, X.dtype), *running, mean, var


@batch_normalization.infer
def _(
    X: Tensor, scale: Tensor, B: Tensor, input_mean: Tensor, input_var: Tensor, *, training_mode: int = 0
) -> tuple[Tensor, ...]:
    check_channels(X, scale=scale, B=B, input_mean=input_mean, input_var=input_var)
    if not training_mode:
        return (X.forget(),)
    return X.forget(), input_mean.forget(), input_var.forget()


@batch_normalization.twin
def _(types: Any, wanted: Any, *, training_mode: int = 0, **attrs: Any) -> Twin | None:
    return Twin("BatchNormalizationTrain", attrs, 5, "mezzo") if training_mode else None


@batch_normalization.grad
def _(g: Builder, dys: Any, ys: Any, xs: Any, *, epsilon: float = 1e-5, **attrs: Any) -> tuple[Value | None, ...]:
    """Of what is not training: the statistics are inputs like others."""
    X, scale, _, mean, var = (wide(g, x) for x in xs)
    dy = wide(g, dys[0])
    deviation = g.Sqrt(g.Add(var, g.scalar(epsilon, var)))
    factor = g.Div(cast_like(g, scale, dy), cast_like(g, deviation, dy))
    dmean = dvar = dscale = None
    db = over_channels(g, dy)
    if g.wants[1] or g.wants[4]:
        centred = g.Sub(X, to_channels(g, cast_like(g, mean, X), X))
        dscale = g.Div(over_channels(g, g.Mul(dy, centred)), cast_like(g, deviation, dy))
        slope = g.Div(g.Mul(dscale, factor), cast_like(g, deviation, dy))
        dvar = g.Mul(slope, g.scalar(-0.5, slope))
    if g.wants[3]:
        dmean = g.Neg(g.Mul(db, factor))
    dx = g.Mul(dy, to_channels(g, factor, X)) if g.wants[0] else None
    gradients = (dx, dscale, db, dmean, dvar)
    return tuple(None if d is None else cast_like(g, d, x) for d, x in zip(gradients, xs, strict=True))


def to_channels(g: Builder, v: Value, x: Value) -> Value:
    """A list with one entry per channel, shaped to meet `x`."""
    return with_axes(g, v, g.rank_of(x) - 2)


def over_channels(g: Builder, x: Value) -> Value:
    """The sum of each channel."""
    return g.ReduceSum(x, g.const([0, *range(2, g.rank_of(x))]), keepdims=0)


def standardised(
    g: Builder, x: Value, axes: Sequence[int], epsilon: float, *, centre: bool = True
) -> tuple[Value, Callable[[Value], Value]]:
    """`x` with mean 0 and mean square 1 over axes, and the derivative of that: from its gradient to that of x.
    Not to `centre` leaves the mean."""

    def mean(v: Value) -> Value:
        return g.ReduceMean(v, g.const(np.array(axes, np.int64)), keepdims=1, noop_with_empty_axes=1)

    centred = g.Sub(x, mean(x)) if centre else x
    inverse = g.Reciprocal(g.Sqrt(g.Add(mean(g.Mul(centred, centred)), g.scalar(epsilon, x))))
    normal = g.Mul(centred, inverse)

    def grad(dy: Value) -> Value:
        rest = g.Sub(dy, g.Mul(normal, mean(g.Mul(dy, normal))))
        return g.Mul(g.Sub(rest, mean(dy)) if centre else rest, inverse)

    return normal, grad


@op(
    "InstanceNormalization",
    weights=weights.channels,
    kind="normalization",
    planned_from=4096,
    since=22,
    outputs=("output",),
    samples=[Sample([f32(2, 3, 4, 5), f32(3), f32(3)]), Sample([f32(1, 2, 6), f32(2), f32(2)], {"epsilon": 0.01})],
)
def instance_normalization(k: Context, input: Array, scale: Array, B: Array, *, epsilon: float = 1e-5) -> Array:
    x = widen(input)
    axes = tuple(range(2, x.ndim))
    y = (x - mean_of(x, axes, keepdims=True)) / k.xp.sqrt(variance_of(x, axes, keepdims=True) + epsilon)
    return narrow(y * per_channel(scale, x) + per_channel(B, x), input.dtype)


@instance_normalization.infer
def _(input: Tensor, scale: Tensor, B: Tensor) -> Tensor:
    check_channels(input, scale=scale, B=B)
    return input.forget()


@instance_normalization.grad
def _(g: Builder, dys: Any, ys: Any, xs: Any, *, epsilon: float = 1e-5) -> tuple[Value | None, ...]:
    return _channels_grad(g, dys[0], wide(g, xs[0]), xs, epsilon)


def _channels_grad(
    g: Builder, dy: Value, x: Value, xs: Any, epsilon: float, groups: int = 0
) -> tuple[Value | None, ...]:
    """The gradients of a normalisation over each channel, or over groups of channels, with a scale and a bias for each
    channel; `x` is the input in the element type of the statistics."""
    X, scale, bias = xs
    shape, axes = g.shape_of(X), [2] if groups else range(2, g.rank_of(X))

    def split(v: Value) -> Value:
        each = g.Div(count(g, sizes(g, shape, 1)), g.const([groups or 1]))
        return reshaped(g, v, joined(g, sizes(g, shape, 0, 1), [groups], each)) if groups else v

    normal, grad = standardised(g, split(x), axes, epsilon)
    dy = cast_like(g, dy, x)
    normal = reshaped(g, normal, shape) if groups else normal
    dmade = split(g.Mul(dy, to_channels(g, cast_like(g, scale, x), x)))
    dx = grad(dmade) if g.wants[0] else None
    if dx is not None and groups:
        dx = reshaped(g, dx, shape)
    gradients = dx, over_channels(g, g.Mul(dy, normal)), over_channels(g, dy)
    return tuple(None if d is None else cast_like(g, d, v) for d, v in zip(gradients, (X, scale, bias), strict=True))


@op(
    "LayerNormalization",
    weights=weights.trailing,
    kind="normalization",
    follows=True,
    planned_from=4096,
    since=17,
    outputs=("Y", "Mean?", "InvStdDev?"),
    samples=[
        Sample([f32(2, 3, 4), f32(4), f32(4)]),
        Sample([f32(2, 3, 4), f32(3, 4)], {"axis": 1, "epsilon": 0.01}, 3),
        Sample([f32(2, 3), f32(2, 3), f32(3)], {"axis": 0}, 3),
        Sample([f32(2, 3, 4), f32(3, 4), f32(3, 1)]),
        Sample([f32(0, 3), f32(3)]),
    ],
)
def layer_normalization(
    k: Context,
    X: Array,
    Scale: Array,
    B: Array | None = None,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
    stash_type: int = 1,
) -> tuple[Array, ...]:
    stash = DType.from_onnx(stash_type).numpy
    x = X.astype(np.float32 if stash_type == 1 and X.dtype != np.float64 else np.float64)
    axes = tuple(range(axis_of(axis, X.ndim), X.ndim))
    mean = mean_of(x, axes, keepdims=True)
    centred = x - mean
    inverse = 1 / k.xp.sqrt(mean_of(centred * centred, axes, keepdims=True) + np.asarray(epsilon, x.dtype))
    y = narrow(centred * inverse, X.dtype) * Scale
    return narrow(y if B is None else y + B, X.dtype), narrow(mean, stash), narrow(inverse, stash)


@layer_normalization.infer
def _(
    X: Tensor, Scale: Tensor, B: Tensor | None = None, *, axis: int = -1, stash_type: int = 1
) -> tuple[Tensor, Tensor, Tensor]:
    stash = DType.from_onnx(stash_type)
    if X.dims is None:
        return X.of(None), Tensor(stash, None), Tensor(stash, None)
    at = axis_of(axis, X.rank)
    check_broadcast_to(X, Scale, B)
    kept = Tensor(stash, tuple(d if i < at else 1 for i, d in enumerate(X.dims)))
    return X.forget(), kept, kept


@layer_normalization.body
def _(
    g: Builder, xs: Any, types: Any, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> tuple[Value, ...] | None:
    X, scale, bias = xs
    axes = g.const(np.arange(axis_of(axis, g.rank_of(X)), g.rank_of(X)))
    if stash_type not in (DType.FLOAT.onnx, DType.DOUBLE.onnx):
        return None
    x = _stage_one(g, X, stash_type)
    mean = g.ReduceMean(x, axes, keepdims=1)
    centred = g.Sub(x, mean)
    variance = g.ReduceMean(g.Mul(centred, centred), axes, keepdims=1)
    inverse = g.Reciprocal(g.Sqrt(g.Add(variance, g.scalar(epsilon, x))))
    y = g.Mul(cast_like(g, g.Mul(centred, inverse), X), scale)
    if stash_type == DType.FLOAT.onnx and types[0].dtype is DType.DOUBLE:
        mean, inverse = (g.Cast(v, to=stash_type) for v in (mean, inverse))
    return y if bias is None else g.Add(y, bias), mean, inverse


@layer_normalization.twin
def _(types: Any, wanted: Any, **attrs: Any) -> Twin:
    if types[0].dtype is DType.DOUBLE and not any(wanted[1:]):  # what the gradient reads is as precise as the numbers
        attrs["stash_type"] = DType.DOUBLE.onnx
    return Twin("LayerNormalization", attrs, 3)


@layer_normalization.grad
def _(g: Builder, dys: Any, ys: Any, xs: Any, *, axis: int = -1, **attrs: Any) -> tuple[Value | None, ...]:
    (dy, dmean, dinverse), (_, mean, inverse), (X, scale, B) = dys, ys, xs
    at = axis_of(axis, g.rank_of(X))
    inner = g.rank_of(X) - at
    dx = dscale = db = None
    if dy is not None:
        whole = g.rank_of(scale) > inner  # a scale for more than the axes that are normalised
        scaled, by = (g.Mul(dy, scale), g.scalar(1, scale)) if whole else (dy, scale)
        dx, dscale, db = g.LayerNormalizationGrad(scaled, X, by, mean, inverse, axis=at, domain="mezzo", outputs=3)
        if whole:
            normal = g.Mul(g.Sub(cast_like(g, X, mean), mean), inverse)
            dscale = g.Mul(dy, cast_like(g, normal, dy))
        dscale = g.sum_to(dscale, scale)
        db = None if B is None else g.sum_to(dy if whole or g.rank_of(B) > inner else db, B)
    if dmean is not None or dinverse is not None:
        more = g.scalar(0, mean) if dmean is None else dmean
        if dinverse is not None:
            centred = g.Sub(cast_like(g, X, mean), mean)
            cube = g.Mul(g.Mul(inverse, inverse), inverse)
            more = g.Sub(more, g.Mul(g.Mul(dinverse, cube), centred))
        many = cast_like(g, count(g, sizes(g, g.shape_of(X), at)), mean)
        more = g.Expand(cast_like(g, g.Div(more, many), X), g.shape_of(X))
        dx = more if dx is None else g.Add(dx, more)
    return dx, dscale, db


@op(
    "GroupNormalization",
    weights=weights.channels,
    kind="normalization",
    planned_from=4096,
    since=21,
    samples=[
        Sample([f32(2, 4, 3, 2), f32(4), f32(4)], {"num_groups": 2}),
        Sample([f32(1, 6, 5), f32(6), f32(6)], {"num_groups": 3, "epsilon": 0.01}),
        Sample([f32(2, 3, 4), f32(3), f32(3)], {"num_groups": 3}),
        Sample([f32(0, 4, 2), f32(4), f32(4)], {"num_groups": 1}),
    ],
)
def group_normalization(
    k: Context, X: Array, scale: Array, bias: Array, *, epsilon: float = 1e-5, num_groups: int, stash_type: int = 1
) -> Array:
    x = _stashed(X, stash_type)
    x = x.reshape(*x.shape[:1], num_groups, -1 if x.size else math.prod(x.shape[1:]) // num_groups)
    y = (x - mean_of(x, 2, keepdims=True)) / k.xp.sqrt(variance_of(x, 2, keepdims=True) + epsilon)
    y = narrow(y.reshape(X.shape), X.dtype)
    return narrow(widen(y) * per_channel(scale, y) + per_channel(bias, y), X.dtype)


@group_normalization.infer
def _(X: Tensor, scale: Tensor, bias: Tensor, *, num_groups: int) -> Tensor:
    check_channels(X, scale=scale, bias=bias)
    if X.dims is not None and isinstance(X.dims[1], int) and X.dims[1] % num_groups:
        raise ShapeError(f"the channels of {X} do not divide into {num_groups} groups")
    return X.forget()


@group_normalization.body
def _(g: Builder, xs: Any, types: Any, *, epsilon: float = 1e-5, num_groups: int, stash_type: int = 1) -> Value:
    (X, *affine), shape = xs, g.shape_of(xs[0])
    inner = g.Div(count(g, sizes(g, shape, 1)), g.const([num_groups]))
    grouped = reshaped(g, _staged(g, X, stash_type), joined(g, sizes(g, shape, 0, 1), [num_groups], inner))
    normal, _ = standardised(g, grouped, [2], epsilon)
    y = wide(g, cast_like(g, reshaped(g, normal, shape), X))
    scale, bias = (with_axes(g, wide(g, v), g.rank_of(X) - 2) for v in affine)
    return cast_like(g, g.Add(g.Mul(y, scale), bias), X)


@group_normalization.grad
def _(
    g: Builder, dys: Any, ys: Any, xs: Any, *, epsilon: float = 1e-5, num_groups: int, stash_type: int = 1
) -> tuple[Value | None, ...]:
    return _channels_grad(g, dys[0], _staged(g, xs[0], stash_type), xs, epsilon, num_groups)


def _staged(g: Builder, x: Value, stash_type: int) -> Value:
    """Convert a value to the type of `stash_type`; the counterpart of `_stashed` for graphs."""
    return wide(g, _stage_one(g, x, stash_type))


def _stage_one(g: Builder, x: Value, stash_type: int) -> Value:
    """The input of a normalisation in the element type of its first stage. ONNX lets a first stage be wider than the
    numbers; narrower ones would throw digits away that its reference and ONNX Runtime keep."""
    known = g.type_of(x)
    assert isinstance(known, Tensor)
    return x if known.dtype is DType.DOUBLE else g.Cast(x, to=stash_type)


def _stashed(x: Array, stash_type: int) -> Array:
    """Convert an array to the type of `stash_type`, 16-bit ones to float32; the counterpart of `_staged` for arrays."""
    return x if x.dtype == np.float64 else widen(x.astype(DType.from_onnx(stash_type).numpy))


@op(
    "RMSNormalization",
    weights=weights.trailing,
    kind="normalization",
    planned_from=4096,
    since=23,
    samples=[
        Sample([f32(2, 3, 4), f32(4)]),
        Sample([f32(2, 3, 4), f32(3, 4)], {"axis": 1, "epsilon": 0.01}),
        Sample([f32(2, 3), f32(1)], {"axis": 0}),
        Sample([f32(2, 3), np.array([1, 2, 3], np.float16)]),
        Sample([f32(0, 3), f32(3)]),
    ],
)
def rms_normalization(
    k: Context, X: Array, scale: Array, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> Array:
    x = _stashed(X, stash_type)
    axes = tuple(range(axis_of(axis, X.ndim), X.ndim))
    y = narrow(x / k.xp.sqrt(mean_of(x * x, axes, keepdims=True) + np.asarray(epsilon, x.dtype)), X.dtype)
    return narrow(widen(y) * widen(scale), scale.dtype)


@rms_normalization.infer
def _(X: Tensor, scale: Tensor, *, axis: int = -1) -> Tensor:
    if X.dims is None:
        return scale.of(None)
    axis_of(axis, X.rank)
    check_broadcast_to(X, scale)
    return scale.of(X.dims)


@rms_normalization.body
def _(g: Builder, xs: Any, types: Any, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1) -> Value:
    (X, scale), rank = xs, g.rank_of(xs[0])
    x = _staged(g, X, stash_type)
    normal, _ = standardised(g, x, range(axis_of(axis, rank), rank), epsilon, centre=False)
    y = wide(g, cast_like(g, normal, X))
    return cast_like(g, g.Mul(y, cast_like(g, scale, y)), scale)


@rms_normalization.grad
def _(
    g: Builder, dys: Any, ys: Any, xs: Any, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> tuple[Value | None, ...]:
    X, scale = xs
    x, rank = _staged(g, X, stash_type), g.rank_of(X)
    dy = cast_like(g, dys[0], x)
    normal, grad = standardised(g, x, range(axis_of(axis, rank), rank), epsilon, centre=False)
    dx = grad(g.Mul(dy, cast_like(g, scale, x))) if g.wants[0] else None
    dscale = g.sum_to(g.Mul(dy, normal), scale) if g.wants[1] else None
    return tuple(None if d is None else cast_like(g, d, v) for d, v in ((dx, X), (dscale, scale)))


@op(
    "MeanVarianceNormalization",
    kind="normalization",
    since=13,
    samples=[
        Sample([f32(2, 3, 4, 2)]),
        Sample([f32(2, 3, 4)], {"axes": [-1]}),
        Sample([np.ones((1, 2, 2, 1), np.float32)]),
    ],
)
def mean_variance_normalization(k: Context, X: Array, *, axes: Sequence[int] = (0, 2, 3)) -> Array:
    x, over = widen(X), axes_of(axes, X.ndim)
    centred = x - mean_of(x, over, keepdims=True)
    centred = centred - mean_of(centred, over, keepdims=True)  # less the rounding of the mean
    spread = k.xp.sqrt(mean_of(centred * centred, over, keepdims=True))
    return narrow(centred / (spread + np.asarray(1e-9, x.dtype)), X.dtype)  # the schema's body adds the 1e-9


@mean_variance_normalization.infer
def _(X: Tensor, *, axes: Sequence[int] = (0, 2, 3)) -> Tensor:
    axes_of(axes, X.rank)
    return X.forget()


@mean_variance_normalization.grad
def _(g: Builder, dys: Any, ys: Any, xs: Any, *, axes: Sequence[int] = (0, 2, 3)) -> tuple[Value | None, ...]:
    """With s the spread, of which the derivative is the centred x over s: nothing where that is 0."""
    over = g.const(np.array(axes, np.int64))
    x, y, dy = (wide(g, v) for v in (xs[0], ys[0], dys[0]))
    centred = g.Sub(x, g.ReduceMean(x, over))
    s = g.Sqrt(g.ReduceMean(g.Mul(centred, centred), over))
    part = g.Mul(y, g.ReduceMean(g.Mul(dy, y), over))
    flat = g.Equal(s, g.scalar(0, s))
    part = g.Div(part, g.Where(flat, g.scalar(1, s), s))  # y is 0 there
    dc = g.Sub(g.Div(dy, g.Add(s, g.scalar(1e-9, s))), part)
    return (cast_like(g, g.Sub(dc, g.ReduceMean(dc, over)), xs[0]),)


@op(
    "LpNormalization",
    kind="normalization",
    since=22,
    outputs=("output",),
    samples=[
        Sample([f32(2, 3, 4)]),
        Sample([f32(2, 3)], {"p": 1, "axis": 0}),
        Sample([np.array([[0, 0], [3, 4]], np.float32)]),
        Sample([f32(0, 3)]),
    ],
)
def lp_normalization(k: Context, input: Array, *, axis: int = -1, p: int = 2) -> Array:
    x = widen(input)
    if p not in (1, 2):
        raise ShapeError(f"p={p} is none of 1, 2")
    sizes = k.xp.abs(x) if p == 1 else x * x
    norm = sizes.sum(axis_of(axis, x.ndim), keepdims=True)
    norm = norm if p == 1 else k.xp.sqrt(norm)
    return narrow(x / k.xp.where(norm == 0, 1, norm), input.dtype)  # where the norm is 0, so is every element


@lp_normalization.infer
def _(input: Tensor, *, axis: int = -1) -> Tensor:
    axis_of(axis, input.rank)
    return input.forget()


@lp_normalization.grad
def _(g: Builder, dys: Any, ys: Any, xs: Any, *, axis: int = -1, p: int = 2) -> tuple[Value | None, ...]:
    x, dy, over = wide(g, xs[0]), wide(g, dys[0]), g.const([axis])
    norm = g.ReduceL1(x, over) if p == 1 else g.ReduceL2(x, over)
    norm = g.Where(g.Equal(norm, g.scalar(0, norm)), g.scalar(1, norm), norm)
    normal = g.Div(x, norm)
    along = g.Mul(g.Sign(x) if p == 1 else normal, g.ReduceSum(g.Mul(dy, normal), over))
    return (cast_like(g, g.Div(g.Sub(dy, along), norm), xs[0]),)


@op(
    "LRN",
    kind="normalization",
    planned_from=0,
    since=13,
    samples=[
        Sample([f32(1, 6, 2, 2)], {"size": 3}),
        Sample([f32(1, 5, 3, 1)], {"size": 5, "alpha": 0.1, "beta": 0.5, "bias": 2.0}),
        Sample([f32(2, 2, 2, 2)], {"size": 7}),
    ],
)
def lrn(k: Context, X: Array, *, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0, size: int) -> Array:
    x = widen(X)
    squares = x * x
    sums = squares.copy()
    most = X.shape[1] - 1  # no channel is further away
    for shift in k.each(range(-min((size - 1) // 2, most), min(size // 2, most) + 1), 1):
        if shift > 0:
            sums[:, :-shift] += squares[:, shift:]
        elif shift < 0:
            sums[:, -shift:] += squares[:, :shift]
    return narrow(x / (bias + alpha / size * sums) ** beta, X.dtype)


@lrn.grad
def _(
    g: Builder, dys: Any, ys: Any, xs: Any, *, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0, size: int
) -> tuple[Value | None, ...]:
    x, dy = wide(g, xs[0]), wide(g, dys[0])
    shape = g.shape_of(x)

    def neighbours(v: Value, before: int, after: int) -> Value:
        """The mean over channels around each: an average over the rows of one large image."""
        rows = reshaped(
            g, v, joined(g, sizes(g, shape, 0, 1), [1], sizes(g, shape, 1, 2), count(g, sizes(g, shape, 2)))
        )
        means = g.AveragePool(rows, kernel_shape=[size, 1], pads=[before, 0, after, 0], count_include_pad=1)
        return reshaped(g, means, shape)

    below, above = (size - 1) // 2, size // 2
    base = g.Add(g.Mul(neighbours(g.Mul(x, x), below, above), g.scalar(alpha, x)), g.scalar(bias, x))
    straight = g.Mul(dy, g.Pow(base, g.scalar(-beta, x)))
    around = neighbours(g.Div(g.Mul(straight, x), base), above, below)
    dx = g.Sub(straight, g.Mul(g.Mul(around, x), g.scalar(2 * alpha * beta, x)))
    return (cast_like(g, dx, xs[0]),)
