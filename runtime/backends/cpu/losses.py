"""The cross-entropy of classes and its gradient, for labels of equal weight."""

from __future__ import annotations

from typing import Any

import numpy as np

from ....ops import DType, Tensor
from ....ops.core.rules import check_labels
from ...compile.kernel import Call, Choice, Declined, KernelArgs, KernelRequest
from ...ir.graph import Node

OPS = {("", "SoftmaxCrossEntropyLoss"), ("mezzo", "SoftmaxCrossEntropyGrad")}
LONG = 8192  # elements of a dot product for which BLAS wakes no other threads


class CrossEntropy:
    """A few numpy calls with `out=`; probabilities are in the workspace, or in the slot of the result."""

    name = "numpy.cross_entropy"

    def serves(self, node: Node) -> bool:
        return (node.domain, node.op) in OPS

    def select(self, request: KernelRequest) -> Choice | Declined:
        node = request.node
        forward = node.op == "SoftmaxCrossEntropyLoss"
        if len(request.inputs) < (2 if forward else 3):
            return Declined("an operand is missing")
        scores, labels = request.inputs[0 if forward else 1], request.inputs[1 if forward else 2]
        if not isinstance(scores, Tensor) or not scores.static or scores.dtype not in (DType.FLOAT, DType.DOUBLE):
            return Declined(f"scores are {scores}")
        if not isinstance(labels, Tensor) or not labels.static or not scores.elements:
            return Declined(f"labels are {labels}")
        if len([i for i in node.inputs if i]) > (2 if forward else 3) or node.attrs.get("ignore_index") is not None:
            return Declined("labels count differently")
        if node.attrs.get("reduction", "mean") == "none":
            return Declined("losses are not added up")
        saved = len(node.outputs) > 1 and node.outputs[1]
        return Choice(self.name, workspace=scores.nbytes if forward and not saved else 0)

    def prepare(self, args: KernelArgs) -> Call:
        mean = args.node.attrs.get("reduction", "mean") == "mean"
        if args.node.op == "SoftmaxCrossEntropyLoss":
            scores, labels = args.inputs[:2]
            loss, log_prob = (*args.outputs, None)[:2]
            assert scores is not None and labels is not None
            if log_prob is None:
                log_prob = args.scratch(DType.of(scores.dtype), scores.shape)
            return _Loss(scores, labels, log_prob, loss, mean)
        dloss, log_prob, labels = args.inputs[:3]
        (gradient,) = args.outputs
        assert dloss is not None and log_prob is not None and labels is not None and gradient is not None
        return _Grad(dloss, log_prob, labels, gradient, mean)


class _Labels:
    """Indices of the labels' elements among the scores."""

    def __init__(self, labels: Any, scores: Any) -> None:
        batch, self._classes, *spatial = scores.shape
        self._labels, self._scores, self._step = labels, scores, int(np.prod(spatial, dtype=np.int64))
        inner = np.arange(self._step).reshape(1, *spatial)
        self._begin = (np.arange(batch).reshape(-1, *[1] * len(spatial)) * (self._classes * self._step) + inner).copy()

    def places(self) -> Any:
        """Places in the scores as one list. Raises OutOfRange for a label that is no class."""
        labels = self._labels
        low, high = labels.item(labels.argmin()), labels.item(labels.argmax())  # quicker than reductions
        check_labels(low, high, self._classes)
        return (labels if self._step == 1 else labels * self._step) + self._begin


class _Loss:
    def __init__(self, scores: Any, labels: Any, log_prob: Any, loss: Any, mean: bool) -> None:
        self.scores, self.log_prob, self.loss = scores, log_prob, loss
        self.labels, self.share = _Labels(labels, scores), -1 / labels.size if mean else -1.0
        self.flat = log_prob.reshape(-1)
        rows = scores.ndim == 2 and scores.shape[1] < LONG
        self.ones = np.ones(scores.shape[1], scores.dtype) if rows else None

    def __call__(self) -> None:
        scores, log_prob = self.scores, self.log_prob
        np.subtract(scores, np.maximum.reduce(scores, 1, keepdims=True), out=log_prob)
        exps = np.exp(log_prob)
        # dot products are quicker, where rows are short and where they are not
        rows = self.ones
        total = np.add.reduce(exps, 1, keepdims=True) if rows is None else np.vecdot(exps, rows)[:, None]
        np.subtract(log_prob, np.log(total, out=total), out=log_prob)
        if self.loss is not None:
            np.multiply(np.add.reduce(self.flat.take(self.labels.places()), None), self.share, out=self.loss)


class _Grad:
    def __init__(self, dloss: Any, log_prob: Any, labels: Any, gradient: Any, mean: bool) -> None:
        self.dloss, self.log_prob, self.gradient = dloss, log_prob, gradient
        self.labels, self.count = _Labels(labels, gradient), gradient.dtype.type(labels.size if mean else 1)

    def __call__(self) -> None:
        gradient = self.gradient
        pull = self.dloss / self.count
        np.exp(self.log_prob, out=gradient)
        np.multiply(gradient, pull, out=gradient)
        flat, places = gradient.reshape(-1), self.labels.places()
        flat[places] = flat.take(places) - pull
