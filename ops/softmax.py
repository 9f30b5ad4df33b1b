"""Softmax and what is made of it: its logarithm, the hard maximum, the losses of classification.

https://onnx.ai/onnx/operators/onnx__Softmax.html, https://onnx.ai/onnx/operators/onnx__NegativeLogLikelihoodLoss.html
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .errors import ShapeError
from .op import Context, Op, Sample, op
from .rules import axis_of, narrow, same, widen
from .types import Array, Dim, Tensor, f32


def _soft(name: str, combine: Callable[[Any, Array, int, Any], Array]) -> Op:
    """Softmax or its logarithm, of `x` less its largest element."""

    def reference(k: Context, input: Array, *, axis: int = -1) -> Array:
        at = axis_of(axis, input.ndim)
        if not input.size:
            return input.copy()
        x = widen(input)
        return narrow(combine(k.xp, x - x.max(at, keepdims=True), at, input.dtype), input.dtype)

    samples = [Sample([f32(2, 5)]), Sample([f32(2, 5, 3)], {"axis": 1}), Sample([f32(0, 3)]), Sample([f32(2, 0)])]
    large = Sample([np.array([[1e4, 0, -1e4], [1, 2, 3]], np.float32)])
    made = op(name, since=13, outputs=("output",), samples=[*samples, large])(reference)

    @made.infer
    def _(input: Tensor, *, axis: int = -1) -> Tensor:
        axis_of(axis, input.rank)
        return input.forget()

    return made


def _softmax(xp: Any, x: Array, axis: int, dtype: Any) -> Array:
    # the official vectors of attention in float16 come from a softmax that rounds each step
    step = np.float16 if dtype == np.float16 else x.dtype
    e = xp.exp(x).astype(step).astype(x.dtype, copy=False)
    e /= e.sum(axis, keepdims=True).astype(step)
    return e


def _log_softmax(xp: Any, x: Array, axis: int, dtype: Any) -> Array:
    return x - xp.log(xp.exp(x).sum(axis, keepdims=True))


softmax = _soft("Softmax", _softmax)
log_softmax = _soft("LogSoftmax", _log_softmax)


@op(
    "Hardmax",
    since=13,
    outputs=("output",),
    samples=[
        Sample([f32(2, 5)]),
        Sample([f32(2, 3, 2)], {"axis": 1}),
        Sample([np.array([[1, 3, 3], [2, 2, 2]], np.float32)]),
        Sample([f32(0, 3)]),
    ],
)
def hardmax(k: Context, input: Array, *, axis: int = -1) -> Array:
    at = axis_of(axis, input.ndim)
    y = k.xp.zeros_like(input, order="C")
    if input.size:
        k.xp.put_along_axis(y, k.xp.expand_dims(widen(input).argmax(at), at), 1, at)
    return y


@hardmax.infer
def _(input: Tensor, *, axis: int = -1) -> Tensor:
    axis_of(axis, input.rank)
    return input.forget()


def _loss(
    xp: Any, log_prob: Array, target: Array, weight: Array | None, ignore_index: int | None, reduction: str, dtype: Any
) -> Array:
    """The negative log likelihood of the targets, in the element type `dtype`."""
    counted = xp.ones(target.shape, bool) if ignore_index is None else target != ignore_index
    classes = xp.where(counted, target, 0).astype(np.int64)
    picked = xp.take_along_axis(log_prob, xp.expand_dims(classes, 1), 1).squeeze(1)
    weights = xp.ones(target.shape, log_prob.dtype) if weight is None else widen(weight)[classes]
    weights = xp.where(counted, weights, 0)
    loss = xp.where(counted, -picked * weights, 0)
    if reduction == "none":
        return loss.astype(dtype)
    if reduction not in ("sum", "mean"):
        raise ShapeError(f"reduction {reduction!r} is none of none, sum, mean")
    total = xp.asarray(loss.sum())
    if reduction == "mean":
        with xp.errstate(all="ignore"):
            total = total / weights.sum()
    return xp.asarray(total).astype(dtype)


def _loss_type(scores: Tensor, target: Tensor, weight: Tensor | None, reduction: str) -> Tensor:
    dims: tuple[Dim, ...] | None = None
    if weight is not None and weight.dims is not None and scores.dims is not None:
        if len(weight.dims) != 1:
            raise ShapeError(f"weights are a list, not {weight}")
        same(weight.dims[0], scores.dims[1], f"the weights {weight} do not fit the classes of {scores}")
    if scores.dims is not None:
        dims = (scores.dims[0], *scores.dims[2:])
    if dims is not None and target.dims is not None:
        if len(dims) != len(target.dims):
            raise ShapeError(f"the targets {target} do not fit {scores}")
        dims = tuple(same(a, b, f"the targets {target} of {scores}") for a, b in zip(dims, target.dims, strict=True))
    return scores.of((dims or target.dims) if reduction == "none" else ())


_TARGET = np.array([[2, 0], [1, 1]])
_IGNORED = np.array([[2, -1], [1, 9]], np.int32)
LOSS_SAMPLES = [
    Sample([f32(2, 3), np.array([2, 0])]),
    *(Sample([f32(2, 3, 2), _TARGET, w], {"reduction": r}) for r in ("none", "sum", "mean") for w in (None, f32(3))),
    Sample([f32(2, 10, 2), _IGNORED], {"ignore_index": -1}),
    Sample([f32(2, 10, 2), _IGNORED, np.linspace(1, 2, 10, dtype=np.float32)], {"ignore_index": 9}),
    Sample([f32(2, 10, 2), _IGNORED], {"ignore_index": -1, "reduction": "none"}),
]


@op("NegativeLogLikelihoodLoss", since=22, outputs=("loss",), samples=LOSS_SAMPLES)
def negative_log_likelihood_loss(
    k: Context,
    input: Array,
    target: Array,
    weight: Array | None = None,
    *,
    ignore_index: int | None = None,
    reduction: str = "mean",
) -> Array:
    return _loss(k.xp, widen(input), target, weight, ignore_index, reduction, input.dtype)


@negative_log_likelihood_loss.infer
def _(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    *,
    ignore_index: int | None = None,
    reduction: str = "mean",
) -> Tensor:
    return _loss_type(input, target, weight, reduction)


@op(
    "SoftmaxCrossEntropyLoss",
    since=13,
    outputs=("output", "log_prob?"),
    samples=[*LOSS_SAMPLES, *(Sample(s.inputs, s.attrs, 2) for s in LOSS_SAMPLES[:3])],
)
def softmax_cross_entropy_loss(
    k: Context,
    scores: Array,
    labels: Array,
    weights: Array | None = None,
    *,
    ignore_index: int | None = None,
    reduction: str = "mean",
) -> tuple[Array, Array]:
    x = widen(scores)
    x = x - x.max(1, keepdims=True)
    log_prob = x - k.xp.log(k.xp.exp(x).sum(1, keepdims=True))
    loss = _loss(k.xp, log_prob, labels, weights, ignore_index, reduction, scores.dtype)
    return loss, narrow(log_prob, scores.dtype)


@softmax_cross_entropy_loss.infer
def _(
    scores: Tensor,
    labels: Tensor,
    weights: Tensor | None = None,
    *,
    ignore_index: int | None = None,
    reduction: str = "mean",
) -> tuple[Tensor, Tensor]:
    return _loss_type(scores, labels, weights, reduction), scores.forget()
