"""Normalisation in training: the saved statistics of a batch, and the gradients.

Ioffe and Szegedy, Batch normalization (https://arxiv.org/abs/1502.03167), section 3; Ba, Kiros and Hinton, Layer
normalization (https://arxiv.org/abs/1607.06450).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..core.rules import axis_of, mean_of, narrow, widen
from ..core.shapes import cast_like, wide
from ..op import Builder, Context, Sample, Value, op
from ..types import Array, DType, Tensor, f32
from .norm import POSITIVE, by_batch, check_channels, over_channels, per_channel, to_channels


def _wide_type(X: Tensor) -> DType:
    return DType.FLOAT if X.dtype.narrow else X.dtype


@op(
    "BatchNormalizationTrain",
    domain="mezzo",
    kind="normalization",
    outputs=("Y", "running_mean?", "running_var?", "saved_mean", "saved_var"),
    samples=[
        Sample([f32(2, 3, 4), f32(3), f32(3), f32(3), POSITIVE], {"momentum": 0.8}, 5),
        Sample([f32(4, 3), f32(3), f32(3), f32(3), POSITIVE], {"epsilon": 0.01}, 5),
    ],
)
def batch_normalization_train(
    k: Context,
    X: Array,
    scale: Array,
    B: Array,
    mean: Array,
    var: Array,
    *,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
) -> tuple[Array, ...]:
    """BatchNormalization by the statistics of the batch, which are saved: the mean and the variance that divides by the
    number of elements, in float32 where X is narrower."""
    return by_batch(k, X, scale, B, mean, var, epsilon, momentum)


@batch_normalization_train.infer
def _(X: Tensor, scale: Tensor, B: Tensor, mean: Tensor, var: Tensor, **attrs: Any) -> tuple[Tensor, ...]:
    check_channels(X, scale=scale, B=B, mean=mean, var=var)
    saved = Tensor(_wide_type(X), (X.dims[1],) if X.dims is not None else (None,))
    return X.forget(), mean.forget(), var.forget(), saved, saved


@batch_normalization_train.body
def _(g: Builder, xs: Any, types: Any, **attrs: Any) -> tuple[Value, ...]:
    results = g.BatchNormalization(*xs, training_mode=1, outputs=3, **attrs)
    x = wide(g, xs[0])
    axes = g.const([0, *range(2, g.rank_of(x))])
    centred = g.Sub(x, g.ReduceMean(x, axes))
    saved = g.ReduceMean(x, axes, keepdims=0), g.ReduceMean(g.Mul(centred, centred), axes, keepdims=0)
    return *results, *saved


@batch_normalization_train.grad
def _(
    g: Builder, dys: Any, ys: Any, xs: Any, *, epsilon: float = 1e-5, momentum: float = 0.9
) -> tuple[Value | None, ...]:
    """The running statistics are means of the old ones and those of the batch."""
    dy, *doutside = dys
    X, scale, _, *old = xs
    saved = ys[3:]
    dx = dscale = db = None
    if dy is not None:
        dx, dscale, db = g.BatchNormalizationGrad(dy, X, scale, *saved, epsilon=epsilon, domain="mezzo", outputs=3)
    dold: list[Value | None] = []
    x = cast_like(g, X, saved[0])
    for i, (kept, drunning, dsaved) in enumerate(zip(old, doutside[:2], doutside[2:], strict=True)):
        dold.append(None if drunning is None else g.Mul(drunning, g.scalar(momentum, kept)))
        if drunning is not None:
            part = g.Mul(cast_like(g, drunning, x), g.scalar(1 - momentum, x))
            dsaved = part if dsaved is None else g.Add(dsaved, part)
        if dsaved is not None:
            many = g.Div(g.Size(x), g.Size(saved[0]))
            part = to_channels(g, g.Div(dsaved, cast_like(g, many, x)), x)
            if i:
                part = g.Mul(part, g.Mul(g.Sub(x, to_channels(g, saved[0], x)), g.scalar(2, x)))
            part = g.Expand(cast_like(g, part, X), g.shape_of(X))
            dx = part if dx is None else g.Add(dx, part)
    return dx, dscale, db, *dold


@op(
    "BatchNormalizationGrad",
    domain="mezzo",
    outputs=("dX", "dscale", "dB"),
    samples=[
        Sample([f32(2, 3, 4), f32(2, 3, 4), f32(3), f32(3), POSITIVE], {}, 3),
        Sample([f32(4, 3), f32(4, 3), f32(3), f32(3), POSITIVE], {"epsilon": 0.01}, 3),
    ],
)
def batch_normalization_grad(
    k: Context, dY: Array, X: Array, scale: Array, saved_mean: Array, saved_var: Array, *, epsilon: float = 1e-5
) -> tuple[Array, ...]:
    """The gradients of BatchNormalization to X, scale and B, where the statistics are those of the batch."""
    x, dy = widen(X), widen(dY)
    axes = (0, *range(2, x.ndim))
    inverse = 1 / k.xp.sqrt(saved_var + epsilon)
    normal = (x - per_channel(saved_mean, x)) * per_channel(inverse, x)
    dscale, db = (dy * normal).sum(axes), dy.sum(axes)
    many = x.dtype.type(max(x.size // max(len(dscale), 1), 1))
    dx = (dy - per_channel(db / many, x) - normal * per_channel(dscale / many, x)) * per_channel(
        widen(scale) * inverse, x
    )
    return narrow(dx, X.dtype), narrow(dscale, scale.dtype), narrow(db, scale.dtype)


@batch_normalization_grad.infer
def _(dY: Tensor, X: Tensor, scale: Tensor, saved_mean: Tensor, saved_var: Tensor) -> tuple[Tensor, ...]:
    check_channels(X, scale=scale, saved_mean=saved_mean, saved_var=saved_var)
    return X.of(dY.dims if X.dims is None else X.dims), scale.forget(), scale.forget()


@batch_normalization_grad.body
def _(g: Builder, xs: Any, types: Any, *, epsilon: float = 1e-5) -> tuple[Value, ...]:
    scale, mean, var = xs[2:]
    dy, x = wide(g, xs[0]), wide(g, xs[1])
    inverse = g.Reciprocal(g.Sqrt(g.Add(var, g.scalar(epsilon, var))))
    normal = g.Mul(g.Sub(x, to_channels(g, mean, x)), to_channels(g, inverse, x))
    dscale, db = over_channels(g, g.Mul(dy, normal)), over_channels(g, dy)
    many = cast_like(g, g.Div(g.Size(x), g.Size(mean)), x)
    rest = g.Sub(dy, to_channels(g, g.Div(db, many), x))
    rest = g.Sub(rest, g.Mul(normal, to_channels(g, g.Div(dscale, many), x)))
    dx = g.Mul(rest, to_channels(g, g.Mul(cast_like(g, scale, x), inverse), x))
    return cast_like(g, dx, xs[1]), cast_like(g, dscale, scale), cast_like(g, db, scale)


def _inverse(*dims: int) -> Array:
    """Inverses of deviations, which are above zero."""
    return np.linspace(0.5, 2, int(np.prod(dims)), dtype=np.float32).reshape(dims)


@op(
    "LayerNormalizationGrad",
    domain="mezzo",
    outputs=("dX", "dscale", "dB"),
    samples=[
        Sample([f32(2, 3, 4), f32(2, 3, 4), f32(4), f32(2, 3, 1), _inverse(2, 3, 1)], {}, 3),
        Sample([f32(2, 3, 4), f32(2, 3, 4), f32(3, 4), f32(2, 1, 1), _inverse(2, 1, 1)], {"axis": 1}, 3),
        Sample([f32(2, 3, 4), f32(2, 3, 4), f32(3, 1), f32(2, 1, 1), _inverse(2, 1, 1)], {"axis": 1}, 3),
        Sample([f32(2, 3), f32(2, 3), f32(), f32(1, 1), _inverse(1, 1)], {"axis": 0}, 3),
        Sample([f32(0, 3), f32(0, 3), f32(3), f32(0, 1), _inverse(0, 1)], {}, 3),
    ],
)
def layer_normalization_grad(
    k: Context, dY: Array, X: Array, scale: Array, mean: Array, inv_std_dev: Array, *, axis: int = -1
) -> tuple[Array, ...]:
    """The gradients of LayerNormalization to X, and to a scale and a bias for each element that is normalised."""
    inverse = widen(inv_std_dev)
    at = axis_of(axis, X.ndim)
    lead, axes = tuple(range(at)), tuple(range(at, X.ndim))
    normal = (X.astype(inverse.dtype) - mean) * inverse
    dy = dY.astype(inverse.dtype)
    dnormal = dy * scale.astype(inverse.dtype)
    dx = (
        dnormal - mean_of(dnormal, axes, keepdims=True) - normal * mean_of(dnormal * normal, axes, keepdims=True)
    ) * inverse
    dscale, db = (dy * normal).sum(lead), k.xp.array(dy.sum(lead))
    return narrow(dx, X.dtype), narrow(dscale, scale.dtype), narrow(db, scale.dtype)


@layer_normalization_grad.infer
def _(dY: Tensor, X: Tensor, scale: Tensor, mean: Tensor, inv_std_dev: Tensor, *, axis: int = -1) -> tuple[Tensor, ...]:
    inner = scale.of(X.shape[axis_of(axis, X.rank) :])
    return X.forget(), inner, inner


@layer_normalization_grad.body
def _(g: Builder, xs: Any, types: Any, *, axis: int = -1) -> tuple[Value, ...]:
    dY, X, scale, mean, inverse = xs
    mean, inverse = wide(g, mean), wide(g, inverse)
    rank = g.rank_of(X)
    at = axis_of(axis, rank)
    lead, axes = g.const(np.arange(at)), g.const(np.arange(at, rank))
    normal = g.Mul(g.Sub(cast_like(g, X, mean), mean), inverse)
    dy = cast_like(g, dY, mean)
    dnormal = g.Mul(dy, cast_like(g, scale, mean))
    rest = g.Sub(g.Sub(dnormal, g.ReduceMean(dnormal, axes)), g.Mul(normal, g.ReduceMean(g.Mul(dnormal, normal), axes)))
    sums = [g.ReduceSum(v, lead, keepdims=0, noop_with_empty_axes=1) for v in (g.Mul(dy, normal), dy)]
    return cast_like(g, g.Mul(rest, inverse), X), *(cast_like(g, v, scale) for v in sums)
