"""Softmax and its relatives: LogSoftmax, Hardmax, the losses of classification.

https://onnx.ai/onnx/operators/onnx__Softmax.html, https://onnx.ai/onnx/operators/onnx__NegativeLogLikelihoodLoss.html
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ..core import weights
from ..core.broadcast import zeros_like
from ..core.rules import axis_of, check_labels, narrow, same, widen
from ..errors import ShapeError
from ..math.derivatives import flat
from ..op import Builder, Context, Op, Sample, Twin, Value, op
from ..types import Array, Dim, Tensor, f32

if TYPE_CHECKING:
    from typing import Unpack

    from ..traits import Traits


OPERATORS = "Softmax LogSoftmax mezzo::SoftmaxGrad mezzo::LogSoftmaxGrad"


def _soft(name: str, combine: Callable[[Any, Array, int, Any], Array], **traits: Unpack[Traits]) -> Op:
    """Softmax or its logarithm, of `x` less its largest element."""

    def reference(k: Context, input: Array, *, axis: int = -1) -> Array:
        at = axis_of(axis, input.ndim)
        if not input.size:
            return input.copy()
        x = widen(input)
        return narrow(combine(k.xp, x - x.max(at, keepdims=True), at, input.dtype), input.dtype)

    samples = [Sample([f32(2, 5)]), Sample([f32(2, 5, 3)], {"axis": 1}), Sample([f32(0, 3)]), Sample([f32(2, 0)])]
    large = Sample([np.array([[1e4, 0, -1e4], [1, 2, 3]], np.float32)])
    record = op(name, since=13, outputs=("output",), samples=[*samples, large], **traits)(reference)
    record.kind, record.planned_from = "softmax", 4096

    @record.infer
    def _(input: Tensor, *, axis: int = -1) -> Tensor:
        axis_of(axis, input.rank)
        return input.forget()

    return record


def _softmax(xp: Any, x: Array, axis: int, dtype: Any) -> Array:
    # the official vectors of attention in float16 come from a softmax that rounds each step
    step = np.float16 if dtype == np.float16 else x.dtype
    e = xp.exp(x).astype(step).astype(x.dtype, copy=False)
    e /= e.sum(axis, keepdims=True).astype(step)
    return e


def _log_softmax(xp: Any, x: Array, axis: int, dtype: Any) -> Array:
    return x - xp.log(xp.exp(x).sum(axis, keepdims=True))


softmax = _soft("Softmax", _softmax, follows=True)
log_softmax = _soft("LogSoftmax", _log_softmax)


def _soft_gradient(of: Op, combine: Callable[[Any, Array, Array, int], Array]) -> Op:
    """The gradient of Softmax or of its logarithm, from that of the output and the output itself."""

    def reference(k: Context, dY: Array, Y: Array, *, axis: int = -1) -> Array:
        return narrow(combine(k.xp, widen(dY), widen(Y), axis_of(axis, Y.ndim)), dY.dtype)

    samples = [Sample([s.inputs[0], s.inputs[0]], s.attrs) for s in of.samples if isinstance(s.inputs[0], Tensor)]
    record = op(f"{of.name}Grad", domain="mezzo", outputs=("dX",), samples=samples)(reference)

    @record.infer
    def _(dY: Tensor, Y: Tensor, *, axis: int = -1) -> Tensor:
        axis_of(axis, Y.rank)
        return dY.of(Y.dims)

    @of.grad
    def _(g: Builder, dys: Any, ys: Any, xs: Any, *, axis: int = -1) -> tuple[Value, ...]:
        return (getattr(g, record.name)(dys[0], ys[0], axis=axis, domain="mezzo"),)

    return record


softmax_grad = _soft_gradient(softmax, lambda xp, dy, y, axis: y * (dy - (dy * y).sum(axis, keepdims=True)))
log_softmax_grad = _soft_gradient(log_softmax, lambda xp, dy, y, axis: dy - xp.exp(y) * dy.sum(axis, keepdims=True))


@softmax_grad.body
def _(g: Builder, xs: Any, types: Any, *, axis: int = -1) -> Value:
    dY, Y = xs
    return g.Mul(Y, g.Sub(dY, g.ReduceSum(g.Mul(dY, Y), g.const([axis]), keepdims=1)))


@log_softmax_grad.body
def _(g: Builder, xs: Any, types: Any, *, axis: int = -1) -> Value:
    dY, Y = xs
    return g.Sub(dY, g.Mul(g.Exp(Y), g.ReduceSum(dY, g.const([axis]), keepdims=1)))


@op(
    "Hardmax",
    since=13,
    jumps=True,
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


flat(hardmax)


def _loss(
    xp: Any, log_prob: Array, target: Array, weight: Array | None, ignore_index: int | None, reduction: str, dtype: Any
) -> Array:
    """The negative log likelihood of the targets, in the element type `dtype`."""
    counted = xp.ones(target.shape, bool) if ignore_index is None else target != ignore_index
    classes = xp.where(counted, target, 0).astype(np.int64)
    if classes.size:
        check_labels(int(classes.min()), int(classes.max()), log_prob.shape[1])
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
    Sample([f32(2, 10, 2), np.abs(_IGNORED), np.linspace(1, 2, 10, dtype=np.float32)], {"ignore_index": 9}),
    Sample([f32(2, 10, 2), _IGNORED], {"ignore_index": -1, "reduction": "none"}),
]


def _weighed(
    g: Builder, target: Value, weight: Value | None, ignore_index: int | None, like: Value
) -> tuple[Value, Value, Value | None]:
    """The class of each target, the weight that it has, and whether it counts (None: all do)."""
    known, classes, counted = g.type_of(target), target, None
    if ignore_index is not None and isinstance(known, Tensor):
        counted = g.Not(g.Equal(target, g.const(ignore_index, known.dtype)))
        classes = g.Where(counted, target, g.const(0, known.dtype))
    each = g.Expand(g.scalar(1, like), g.shape_of(target)) if weight is None else g.Gather(weight, classes)
    return classes, each if counted is None else g.Where(counted, each, g.scalar(0, like)), counted


def _to_weight(
    g: Builder, dY: Value, log_prob: Value, target: Value, weight: Value | None, ignore_index: int | None,
    reduction: str
) -> Value | None:  # fmt: skip
    """The gradient to the weights of the classes: the losses of each class's targets, less the mean loss where the sum
    of the weights divides."""
    if weight is None:
        return None
    classes, each, counted = _weighed(g, target, weight, ignore_index, dY)
    axis = g.const([1])
    losses = g.Neg(g.Squeeze(g.GatherElements(log_prob, g.Unsqueeze(classes, axis), axis=1), axis))
    if reduction == "mean":
        count = g.ReduceSum(each, keepdims=0)
        losses = g.Sub(losses, g.Div(g.ReduceSum(g.Mul(losses, each), keepdims=0), count))
        dY = g.Div(dY, count)
    part = g.Mul(dY, losses)
    part = part if counted is None else g.Where(counted, part, g.scalar(0, dY))
    flat = g.const([-1])
    places, parts = g.Reshape(classes, flat), g.Reshape(part, flat)
    dweight: Value = g.ScatterElements(zeros_like(g, weight), places, parts, axis=0, reduction="add")
    return dweight


def _pulls(
    g: Builder, dY: Value, target: Value, weight: Value | None, ignore_index: int | None, reduction: str
) -> tuple[Value, Value]:
    """The class of each target, and how much its log likelihood counts in the loss: both with an axis for classes."""
    classes, each, _ = _weighed(g, target, weight, ignore_index, dY)
    if reduction == "mean":
        dY = g.Div(dY, g.ReduceSum(each, keepdims=0))
    axis = g.const([1])
    return g.Unsqueeze(classes, axis), g.Unsqueeze(g.Mul(dY, each), axis)


@op("NegativeLogLikelihoodLoss", weights=weights.labels, kind="loss", since=22, outputs=("loss",), samples=LOSS_SAMPLES)
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
def _(input: Tensor, target: Tensor, weight: Tensor | None = None, *, reduction: str = "mean") -> Tensor:
    return _loss_type(input, target, weight, reduction)


@negative_log_likelihood_loss.grad
def _(
    g: Builder, dys: Any, ys: Any, xs: Any, *, ignore_index: int | None = None, reduction: str = "mean"
) -> tuple[Value | None, ...]:
    input, target, weight = xs
    classes, pull = _pulls(g, dys[0], target, weight, ignore_index, reduction)
    dinput = g.ScatterElements(zeros_like(g, input), classes, g.Neg(pull), axis=1)
    return dinput, None, _to_weight(g, dys[0], input, target, weight, ignore_index, reduction)


@op(
    "SoftmaxCrossEntropyLoss",
    weights=weights.labels,
    kind="loss",
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
    scores: Tensor, labels: Tensor, weights: Tensor | None = None, *, reduction: str = "mean"
) -> tuple[Tensor, Tensor]:
    return _loss_type(scores, labels, weights, reduction), scores.forget()


@softmax_cross_entropy_loss.twin
def _(types: Any, wanted: tuple[bool, ...], **attrs: Any) -> Twin | None:
    return None if len(wanted) > 1 and wanted[1] else Twin("SoftmaxCrossEntropyLoss", attrs, 2)


@softmax_cross_entropy_loss.grad
def _(g: Builder, dys: Any, ys: Any, xs: Any, **attrs: Any) -> tuple[Value | None, ...]:
    (dloss, dlog_prob), (_, log_prob), (_, labels, weights) = dys, ys, xs
    parts = []
    if dloss is not None:
        parts.append(g.SoftmaxCrossEntropyGrad(dloss, log_prob, labels, weights, domain="mezzo", **attrs))
    if dlog_prob is not None:
        parts.append(g.LogSoftmaxGrad(dlog_prob, log_prob, axis=1, domain="mezzo"))
    how = attrs.get("ignore_index"), attrs.get("reduction", "mean")
    to_weights = None if dloss is None else _to_weight(g, dloss, log_prob, labels, weights, *how)
    return g.total(parts), None, to_weights


def _grad_sample(s: Sample) -> Sample:
    """The gradient of a loss's sample."""
    scores, labels, *weight = s.inputs
    assert isinstance(scores, Tensor)
    assert isinstance(labels, np.ndarray)
    loss = f32(*labels.shape) if s.attrs.get("reduction") == "none" else f32()
    return Sample([loss, scores, labels, *weight], s.attrs)


@op("SoftmaxCrossEntropyGrad", domain="mezzo", outputs=("dscores",), samples=[_grad_sample(s) for s in LOSS_SAMPLES])
def softmax_cross_entropy_grad(
    k: Context,
    dloss: Array,
    log_prob: Array,
    labels: Array,
    weights: Array | None = None,
    *,
    ignore_index: int | None = None,
    reduction: str = "mean",
) -> Array:
    """The gradient of SoftmaxCrossEntropyLoss to its scores: the pull of each example times its probabilities, less one
    at its label."""
    xp, known = k.xp, labels != ignore_index if ignore_index is not None else None
    classes = labels if known is None else xp.where(known, labels, 0)
    each = xp.ones(labels.shape, log_prob.dtype) if weights is None else weights[classes]
    each = each if known is None else xp.where(known, each, 0)
    pull = widen(dloss) / widen(each).sum() if reduction == "mean" else widen(dloss)
    pull = xp.expand_dims(pull * each, 1)
    dinput = xp.exp(widen(log_prob)) * pull
    at = xp.expand_dims(classes, 1)
    xp.put_along_axis(dinput, at, xp.take_along_axis(dinput, at, 1) - pull, 1)
    return narrow(dinput, log_prob.dtype)


@softmax_cross_entropy_grad.infer
def _(dloss: Tensor, log_prob: Tensor, labels: Tensor, weights: Tensor | None = None, **attrs: Any) -> Tensor:
    return log_prob.forget()


@softmax_cross_entropy_grad.body
def _(
    g: Builder, xs: Any, types: Any, *, ignore_index: int | None = None, reduction: str = "mean"
) -> tuple[Value, ...]:
    dloss, log_prob, labels, weights = xs
    classes, pull = _pulls(g, dloss, labels, weights, ignore_index, reduction)
    return (g.ScatterElements(g.Mul(g.Exp(log_prob), pull), classes, g.Neg(pull), axis=1, reduction="add"),)
