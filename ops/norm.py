"""Normalisation and dropout.

https://onnx.ai/onnx/operators/
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from .errors import ShapeError
from .op import Context, Sample, broadcast_dims, op
from .random import draw
from .rules import axes_of, axis_of, mean_of, narrow, same, variance_of, widen
from .types import Array, DType, Tensor, f32

POSITIVE = np.array([0.5, 1.0, 2.0], np.float32)


def _per_channel(v: Array, x: Array) -> Array:
    """A vector with one entry per channel, shaped to meet `x`."""
    return widen(v).reshape(-1, *(1,) * (x.ndim - 2))


def _check_channels(X: Tensor, **vectors: Tensor) -> None:
    for name, v in vectors.items():
        if v.dims is not None and len(v.dims) != 1:
            raise ShapeError(f"{name} should be a list, not {v}")
        if v.dims is not None and X.dims is not None and len(X.dims) > 1:
            same(v.dims[0], X.dims[1], f"{name} {v} does not fit the channels of {X}")


@op(
    "BatchNormalization",
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
        y = x * _per_channel(factor, x)
        y += _per_channel(widen(B) - widen(input_mean) * factor, x)
        return (narrow(y, X.dtype),)
    axes = (0, *range(2, X.ndim))
    mean, var = mean_of(x, axes), variance_of(x, axes)
    y = (x - _per_channel(mean, x)) * _per_channel(widen(scale) / k.xp.sqrt(var + epsilon), x) + _per_channel(B, x)
    running = [
        narrow(widen(old) * momentum + new * (1 - momentum), old.dtype)
        for old, new in ((input_mean, mean), (input_var, var))
    ]
    return narrow(y, X.dtype), *running


@batch_normalization.infer
def _(
    X: Tensor,
    scale: Tensor,
    B: Tensor,
    input_mean: Tensor,
    input_var: Tensor,
    *,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    training_mode: int = 0,
) -> tuple[Tensor, ...]:
    _check_channels(X, scale=scale, B=B, input_mean=input_mean, input_var=input_var)
    if not training_mode:
        return (X.forget(),)
    return X.forget(), input_mean.forget(), input_var.forget()


@op(
    "InstanceNormalization",
    since=22,
    outputs=("output",),
    samples=[Sample([f32(2, 3, 4, 5), f32(3), f32(3)]), Sample([f32(1, 2, 6), f32(2), f32(2)], {"epsilon": 0.01})],
)
def instance_normalization(k: Context, input: Array, scale: Array, B: Array, *, epsilon: float = 1e-5) -> Array:
    x = widen(input)
    axes = tuple(range(2, x.ndim))
    y = (x - mean_of(x, axes, keepdims=True)) / k.xp.sqrt(variance_of(x, axes, keepdims=True) + epsilon)
    return narrow(y * _per_channel(scale, x) + _per_channel(B, x), input.dtype)


@instance_normalization.infer
def _(input: Tensor, scale: Tensor, B: Tensor, *, epsilon: float = 1e-5) -> Tensor:
    _check_channels(input, scale=scale, B=B)
    return input.forget()


@op(
    "LayerNormalization",
    since=17,
    outputs=("Y", "Mean?", "InvStdDev?"),
    samples=[
        Sample([f32(2, 3, 4), f32(4), f32(4)]),
        Sample([f32(2, 3, 4), f32(3, 4)], {"axis": 1, "epsilon": 0.01}, 3),
        Sample([f32(2, 3), f32(2, 3), f32(3)], {"axis": 0}, 3),
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
    x = X.astype(np.float32 if stash_type == 1 else np.float64)
    axes = tuple(range(axis_of(axis, X.ndim), X.ndim))
    mean = mean_of(x, axes, keepdims=True)
    centred = x - mean
    inverse = 1 / k.xp.sqrt(mean_of(centred * centred, axes, keepdims=True) + np.asarray(epsilon, x.dtype))
    y = narrow(centred * inverse, X.dtype) * Scale
    return narrow(y if B is None else y + B, X.dtype), narrow(mean, stash), narrow(inverse, stash)


@layer_normalization.infer
def _(
    X: Tensor,
    Scale: Tensor,
    B: Tensor | None = None,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
    stash_type: int = 1,
) -> tuple[Tensor, Tensor, Tensor]:
    stash = DType.from_onnx(stash_type)
    if X.dims is None:
        return X.of(None), Tensor(stash, None), Tensor(stash, None)
    at = axis_of(axis, X.rank)
    for t in (Scale, B):
        if t is not None and t.dims is not None and broadcast_dims(X.dims, t.dims) is not None and len(t.dims) > X.rank:
            raise ShapeError(f"{t} does not broadcast to {X}")
    kept = Tensor(stash, tuple(d if i < at else 1 for i, d in enumerate(X.dims)))
    return X.forget(), kept, kept


@op(
    "GroupNormalization",
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
    return narrow(widen(y) * _per_channel(scale, y) + _per_channel(bias, y), X.dtype)


@group_normalization.infer
def _(X: Tensor, scale: Tensor, bias: Tensor, *, epsilon: float = 1e-5, num_groups: int, stash_type: int = 1) -> Tensor:
    _check_channels(X, scale=scale, bias=bias)
    if X.dims is not None and isinstance(X.dims[1], int) and X.dims[1] % num_groups:
        raise ShapeError(f"the channels of {X} do not divide into {num_groups} groups")
    return X.forget()


def _stashed(x: Array, stash_type: int) -> Array:
    """The input of a normalisation in the element type of its first stage, 16-bit ones taken in float32."""
    return widen(x.astype(DType.from_onnx(stash_type).numpy))


@op(
    "RMSNormalization",
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
def _(X: Tensor, scale: Tensor, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1) -> Tensor:
    if X.dims is None:
        return scale.of(None)
    axis_of(axis, X.rank)
    if scale.dims is not None and (broadcast_dims(X.dims, scale.dims) is None or len(scale.dims) > X.rank):
        raise ShapeError(f"{scale} does not broadcast to {X}")
    return scale.of(X.dims)


@op(
    "MeanVarianceNormalization",
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
    spread = k.xp.sqrt(mean_of(centred * centred, over, keepdims=True))
    return narrow(centred / (spread + np.asarray(1e-9, x.dtype)), X.dtype)  # the schema's body adds the 1e-9


@mean_variance_normalization.infer
def _(X: Tensor, *, axes: Sequence[int] = (0, 2, 3)) -> Tensor:
    axes_of(axes, X.rank)
    return X.forget()


@op(
    "LpNormalization",
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
def _(input: Tensor, *, axis: int = -1, p: int = 2) -> Tensor:
    axis_of(axis, input.rank)
    return input.forget()


@op(
    "LRN",
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
    for shift in range(-min((size - 1) // 2, most), min(size // 2, most) + 1):
        if shift > 0:
            sums[:, :-shift] += squares[:, shift:]
        elif shift < 0:
            sums[:, -shift:] += squares[:, :shift]
    return narrow(x / (bias + alpha / size * sums) ** beta, X.dtype)


@op(
    "Dropout",
    since=22,
    outputs=("output", "mask?"),
    deterministic=False,  # a pass turns it into Identity where training_mode is known to be false
    samples=[
        Sample([f32(2, 3)]),
        Sample([f32(2, 3), np.float32(0.3), np.array(False)], {}, 2),
        Sample([f32(4, 5), np.float32(0.5), np.array(True)], {"seed": 7}, 2),
        Sample([f32(2), np.float32(0), np.array(True)], {}, 2),
        Sample([f32(0), None, np.array(True)], {}, 2),
    ],
)
def dropout(
    k: Context, data: Array, ratio: Array | None = None, training_mode: Array | None = None, *, seed: int | None = None
) -> tuple[Array, Array]:
    rate = 0.5 if ratio is None else float(ratio)
    if training_mode is None or not bool(training_mode) or rate == 0:
        return data.copy(), k.xp.ones(data.shape, bool)
    kept = draw(k, seed, data.shape) >= rate
    return narrow(k.xp.where(kept, widen(data) / (1 - rate), 0), data.dtype), kept


@dropout.infer
def _(
    data: Tensor, ratio: Tensor | None = None, training_mode: Tensor | None = None, *, seed: int | None = None
) -> tuple[Tensor, Tensor]:
    return data.forget(), Tensor(DType.BOOL, data.dims)
