"""Losses of one prediction against its label: L1, L2, Huber, sigmoid and softmax cross entropy, KL, hinge."""

from __future__ import annotations

from ...nd import functions as nd
from ...nd.array import Array
from ...nd.running import apply
from .base import Loss


class L2Loss(Loss):
    """Half the squared error."""

    def each(self, pred: Array, label: Array) -> Array:
        off = pred - nd.reshape(label, pred.shape)
        return off * off * 0.5


class L1Loss(Loss):
    """The absolute error."""

    def each(self, pred: Array, label: Array) -> Array:
        return nd.abs(pred - nd.reshape(label, pred.shape))


class HuberLoss(Loss):
    """Huber loss: squares near zero, linear beyond `rho` (Huber 1964)."""

    def __init__(self, rho: float = 1.0, weight: float | None = 1.0, batch_axis: int = 0) -> None:
        super().__init__(weight, batch_axis)
        self.rho = float(rho)

    def each(self, pred: Array, label: Array) -> Array:
        off = nd.abs(pred - nd.reshape(label, pred.shape))
        return nd.where(off > self.rho, off - 0.5 * self.rho, off * off * (0.5 / self.rho))


class SigmoidBinaryCrossEntropyLoss(Loss):
    """The cross entropy of the sigmoid of `pred`, or of `pred` itself (`from_sigmoid`)."""

    def __init__(self, from_sigmoid: bool = False, weight: float | None = 1.0, batch_axis: int = 0) -> None:
        super().__init__(weight, batch_axis)
        self.from_sigmoid = from_sigmoid

    def each(self, pred: Array, label: Array) -> Array:
        label = nd.reshape(label, pred.shape)
        if self.from_sigmoid:
            return -(nd.log(pred + 1e-12) * label + nd.log(1 - pred + 1e-12) * (1 - label))
        plus: Array = apply("Softplus", pred)
        return plus - pred * label


SigmoidBCELoss = SigmoidBinaryCrossEntropyLoss


class SoftmaxCrossEntropyLoss(Loss):
    """The cross entropy of the softmax over `axis` with class indices, or (`sparse_label=False`) with a distribution;
    with `from_logits`, `pred` are log probabilities already."""

    def __init__(
        self,
        axis: int = -1,
        sparse_label: bool = True,
        from_logits: bool = False,
        weight: float | None = 1.0,
        batch_axis: int = 0,
    ) -> None:
        super().__init__(weight, batch_axis)
        self.axis, self.sparse_label, self.from_logits = axis, sparse_label, from_logits

    def each(self, pred: Array, label: Array) -> Array:
        axis = self.axis % pred.ndim
        if not self.sparse_label:
            logs: Array = pred if self.from_logits else apply("LogSoftmax", pred, axis=axis)
            return -nd.sum(logs * label, axis=axis)
        index = label if label.dtype.kind in "iu" else label.astype("int64")
        rest = tuple(n for i, n in enumerate(pred.shape) if i != axis)
        index = nd.reshape(index, rest)
        moved = nd.moveaxis(pred, axis, 1) if axis != 1 else pred
        op = "NegativeLogLikelihoodLoss" if self.from_logits else "SoftmaxCrossEntropyLoss"
        return apply(op, moved, index, reduction="none")


SoftmaxCELoss = SoftmaxCrossEntropyLoss


class KLDivLoss(Loss):
    """The Kullback-Leibler divergence of `label` from `pred`, which are log probabilities, unless `from_logits` is
    false."""

    def __init__(
        self, from_logits: bool = True, axis: int = -1, weight: float | None = 1.0, batch_axis: int = 0
    ) -> None:
        super().__init__(weight, batch_axis)
        self.from_logits, self.axis = from_logits, axis

    def each(self, pred: Array, label: Array) -> Array:
        logs: Array = pred if self.from_logits else apply("LogSoftmax", pred, axis=self.axis)
        return label * (nd.log(label + 1e-12) - logs)


class HingeLoss(Loss):
    """The hinge loss: the distance of a prediction on the wrong side of a margin; labels are -1 and 1."""

    def __init__(self, margin: float = 1.0, weight: float | None = 1.0, batch_axis: int = 0) -> None:
        super().__init__(weight, batch_axis)
        self.margin = float(margin)

    def each(self, pred: Array, label: Array) -> Array:
        return apply("Relu", self.margin - pred * nd.reshape(label, pred.shape))


class SquaredHingeLoss(HingeLoss):
    """The square of HingeLoss."""

    def each(self, pred: Array, label: Array) -> Array:
        off = super().each(pred, label)
        return off * off
