"""Losses that compare several predictions, or count events."""

from __future__ import annotations

import math

from ...nd import functions as nd
from ...nd.array import Array
from ...nd.running import apply
from ...ops.errors import InputError
from ..hybrid import HybridBlock
from .base import Loss, weighted_mean


class PoissonNLLLoss(Loss):
    """The negative log likelihood of counts under a Poisson distribution, whose rate is `pred`, or (`from_logits`) its
    exponential. `compute_full` adds Stirling's approximation of log(label!) where the label is above 1."""

    def __init__(
        self,
        from_logits: bool = True,
        compute_full: bool = False,
        weight: float | None = 1.0,
        batch_axis: int = 0,
        epsilon: float = 1e-8,
    ) -> None:
        super().__init__(weight, batch_axis)
        self.from_logits, self.compute_full, self.epsilon = from_logits, compute_full, epsilon

    def each(self, pred: Array, label: Array) -> Array:
        label = nd.reshape(label, pred.shape)
        rate, log = (nd.exp(pred), pred) if self.from_logits else (pred, nd.log(pred + self.epsilon))
        losses = rate - label * log
        if self.compute_full:
            many = nd.maximum(label, nd.ones_like(label))
            stirling = many * nd.log(many) - many + 0.5 * nd.log(2 * math.pi * many)
            losses = losses + nd.where(label > 1, stirling, nd.zeros_like(label))
        return losses


class LogisticLoss(Loss):
    """The cross entropy of two classes; labels are -1 and 1, or (`label_format="binary"`) 0 and 1."""

    def __init__(self, weight: float | None = 1.0, batch_axis: int = 0, label_format: str = "signed") -> None:
        super().__init__(weight, batch_axis)
        if label_format not in ("signed", "binary"):
            raise InputError(f"labels {label_format!r}", where="LogisticLoss", hint="signed or binary")
        self.label_format = label_format

    def each(self, pred: Array, label: Array) -> Array:
        label = nd.reshape(label, pred.shape)
        share = (label + 1) * 0.5 if self.label_format == "signed" else label
        plus: Array = apply("Softplus", pred)
        return plus - pred * share


class TripletLoss(HybridBlock):
    """The triplet loss: the squared distance to the positive less that to the negative, plus a margin, at least 0
    (Schroff et al. 2015). Each operand may be [batch, ...]."""

    def __init__(self, margin: float = 1.0, weight: float | None = 1.0, batch_axis: int = 0) -> None:
        super().__init__()
        self.margin, self.weight, self.batch_axis = float(margin), 1.0 if weight is None else float(weight), batch_axis

    def forward(self, pred: Array, positive: Array, negative: Array, sample_weight: Array | None = None) -> Array:
        near, far = (nd.reshape(x, pred.shape) - pred for x in (positive, negative))
        others = tuple(i for i in range(pred.ndim) if i != self.batch_axis)
        apart = near * near - far * far
        margins = (nd.sum(apart, axis=others) if others else apart) + self.margin
        return weighted_mean(apply("Relu", margins), self.weight, 0, sample_weight)


class CosineEmbeddingLoss(HybridBlock):
    """One minus the cosine of two vectors where the label is 1; where it is -1, the cosine beyond a margin. Vectors are
    along the last axis."""

    def __init__(self, weight: float | None = 1.0, batch_axis: int = 0, margin: float = 0.0) -> None:
        super().__init__()
        self.weight, self.batch_axis, self.margin = 1.0 if weight is None else float(weight), batch_axis, float(margin)

    def forward(self, input1: Array, input2: Array, label: Array, sample_weight: Array | None = None) -> Array:
        inner = nd.sum(input1 * input2, axis=-1)
        lengths = nd.sum(input1 * input1, axis=-1) * nd.sum(input2 * input2, axis=-1)
        cosine = inner / nd.sqrt(nd.maximum(lengths, nd.full((), 1e-24, dtype=lengths.dtype, device=lengths.device)))
        alike = nd.reshape(label, cosine.shape) == 1
        losses = nd.where(alike, 1 - cosine, apply("Relu", cosine - self.margin))
        return weighted_mean(losses, self.weight, self.batch_axis, sample_weight)
