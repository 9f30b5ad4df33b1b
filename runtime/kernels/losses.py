"""The cross-entropy of classes and its gradient, for labels that all count alike."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...ops import DType, Tensor
from ...ops.errors import ShapeError
from ..graph import Node
from .kernel import Ask, Call, Choice, Declined, Work

OPS = {("", "SoftmaxCrossEntropyLoss"), ("mezzo", "SoftmaxCrossEntropyGrad")}


class CrossEntropy:
    """A few numpy calls with `out=`; probabilities lie in the workspace, or where the result shall be."""

    name = "numpy.cross_entropy"

    def serves(self, node: Node) -> bool:
        return (node.domain, node.op) in OPS

    def select(self, ask: Ask) -> Choice | Declined:
        node = ask.node
        forward = node.op == "SoftmaxCrossEntropyLoss"
        scores, labels = ask.inputs[0 if forward else 1], ask.inputs[1 if forward else 2]
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

    def prepare(self, work: Work) -> Call:
        mean = work.node.attrs.get("reduction", "mean") == "mean"
        if work.node.op == "SoftmaxCrossEntropyLoss":
            scores, labels = work.inputs[:2]
            loss, log_prob = (*work.outputs, None)[:2]
            assert scores is not None and labels is not None
            if log_prob is None:
                log_prob = work.scratch(DType.of(scores.dtype), scores.shape)
            return _Loss(scores, _at(labels), log_prob, loss, mean)
        dloss, log_prob, labels = work.inputs[:3]
        (made,) = work.outputs
        assert dloss is not None and log_prob is not None and labels is not None and made is not None
        return _Grad(dloss, log_prob, _at(labels), made, mean)


def _at(labels: Any) -> Any:
    return np.expand_dims(labels, 1)


class _Loss:
    def __init__(self, scores: Any, at: Any, log_prob: Any, loss: Any, mean: bool) -> None:
        self.scores, self.at, self.log_prob, self.loss = scores, at, log_prob, loss
        self.share = -1 / at.size if mean else -1.0

    def __call__(self) -> None:
        scores, at, log_prob, loss = self.scores, self.at, self.log_prob, self.loss
        classes = scores.shape[1]
        if at.min() < 0 or at.max() >= classes:
            raise ShapeError(f"a label is outside of the {classes} classes")
        np.subtract(scores, scores.max(1, keepdims=True), out=log_prob)
        total = np.exp(log_prob).sum(1, keepdims=True)
        np.subtract(log_prob, np.log(total, out=total), out=log_prob)
        if loss is not None:
            np.multiply(np.take_along_axis(log_prob, at, 1).sum(), self.share, out=loss, casting="unsafe")


class _Grad:
    def __init__(self, dloss: Any, log_prob: Any, at: Any, made: Any, mean: bool) -> None:
        self.dloss, self.log_prob, self.at, self.made = dloss, log_prob, at, made
        self.count = made.dtype.type(at.size if mean else 1)

    def __call__(self) -> None:
        made, at = self.made, self.at
        pull = self.dloss / self.count
        np.exp(self.log_prob, out=made)
        np.multiply(made, pull, out=made)
        np.put_along_axis(made, at, np.take_along_axis(made, at, 1) - pull, 1)
