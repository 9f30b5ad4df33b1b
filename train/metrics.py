"""`mz.metrics`: measures of the answers besides the loss. Each metric is a few sums over samples, so that batches of
any size, and workers, add up to the result for all samples together.

>>> metric = TopK(2)
>>> metric.update(preds=np.array([[1.0, 3.0, 2.0], [5.0, 1.0, 2.0]]), labels=np.array([2, 1]))
>>> metric.get()
('top_2', 0.5)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Self

import numpy as np

from ..ops.arguments import check_arguments
from ..ops.errors import InputError
from ..ops.types import Array
from ..runtime.ir.interpreter import Eager
from .loss import LOSSES, Loss
from .names import METRIC

Value = Any  # a float, or an array of floats


@dataclass(frozen=True, slots=True)
class StepMetrics:
    """Result of one `step`: its number, its loss, the rate of its update, and the norm of all gradients together before
    clipping (None if it was not requested, or no update was made)."""

    number: int
    loss: float
    rate: float
    norm: float | None = None


@dataclass(frozen=True, slots=True)
class Metrics:
    """Metrics over the samples since the last `reset`: their number, their mean loss, and the share of right answers
    (None where no loss has classes, or several have). Of several losses, `losses` has each by its output, without its
    weight, and `accuracies` those of classes; `values` has the requested metrics by name."""

    samples: int
    loss: float
    accuracy: float | None
    losses: Mapping[str, float] = field(default_factory=dict[str, float])
    accuracies: Mapping[str, float] = field(default_factory=dict[str, float])
    values: Mapping[str, Value] = field(default_factory=dict[str, Value])

    def __str__(self) -> str:
        parts = [f"loss {self.loss:.4f}", *(f"{n} {v:.4f}" for n, v in self.losses.items())]
        parts += [] if self.accuracy is None else [f"accuracy {self.accuracy:.2%}"]
        return ", ".join([*parts, *(f"{n} {v:.4f}" for n, v in self.values.items() if np.ndim(v) == 0)])

    def value(self, name: str) -> float:
        """A number by its name: `loss`, `accuracy`, an output (its loss), or a metric. Raises InputError for others."""
        known = {**self.losses, **self.values, "loss": self.loss}
        known |= {} if self.accuracy is None else {"accuracy": self.accuracy}
        if name not in known or np.ndim(known[name]):
            names = [n for n, v in known.items() if not np.ndim(v)]
            raise InputError(f"there is no metric {name!r}", where="watch", hint=f"one of {', '.join(names)}")
        return float(known[name])


class Metric:
    """A metric: `sums` of some samples, which add up, and the result for their total (`of`). A metric of your own is a
    subclass with both, or a function of outputs and labels whose mean over samples counts (`Own`)."""

    name = ""

    def __new__(cls, *_: Any, **given: Any) -> Self:
        if given and cls.__module__ == __name__:
            check_arguments(cls, given, METRIC)
        return super().__new__(cls)

    def __init__(self) -> None:
        self.total: Array | None = None

    def sums(self, preds: Array, labels: Array) -> Array:
        """float64 numbers of a batch, as many for every batch."""
        raise NotImplementedError

    def of(self, total: Array) -> Value:
        """The metric, from the total of all sums."""
        raise NotImplementedError

    def reset(self) -> None:
        """Count from nothing."""
        self.total = None

    def update(self, *, preds: Any, labels: Any) -> None:
        """Count a batch in: outputs, and what was asked for. MXNet and PyTorch have them in opposite orders; here they
        are named."""
        sums = np.asarray(self.sums(np.asarray(preds), np.asarray(labels)), np.float64)
        self.total = sums if self.total is None else self.total + sums

    @property
    def value(self) -> Value:
        """The metric over what was counted; NaN before anything was."""
        if self.total is None:
            return float("nan")
        with np.errstate(divide="ignore", invalid="ignore"):
            value = self.of(self.total)
        return float(value) if np.ndim(value) == 0 else value

    def get(self) -> tuple[str, Value]:
        """Name and value, as in MXNet."""
        return self.name, self.value


def _labelled(preds: Array, labels: Array, threshold: float, ignore: int | None) -> tuple[Array, Array]:
    """Predicted and asked classes, without those that are ignored: the largest along axis 1, or which side of the
    threshold a number is on."""
    labels = labels.astype(np.int64)
    if preds.ndim == labels.ndim + 1 and preds.shape[1] > 1:
        predicted = preds.argmax(1)
    elif preds.size == labels.size:
        preds = preds.reshape(labels.shape)
        predicted = preds.astype(np.int64) if preds.dtype.kind in "iub" else (preds > threshold).astype(np.int64)
    else:
        raise InputError(f"outputs {preds.shape} for labels {labels.shape}", where="metric")
    if predicted.shape != labels.shape:
        raise InputError(f"outputs {preds.shape} for labels {labels.shape}", where="metric")
    kept = slice(None) if ignore is None else labels != ignore
    return predicted[kept].ravel(), labels[kept].ravel()


class Accuracy(Metric):
    """The share of labels that are predicted: the largest number along axis 1, or, of two classes, whether a number is
    above `threshold` (0: logits)."""

    name = "accuracy"

    def __init__(self, *, threshold: float = 0.0, ignore_index: int | None = None) -> None:
        super().__init__()
        self.threshold, self.ignore_index = threshold, ignore_index

    def sums(self, preds: Array, labels: Array) -> Array:
        predicted, asked = _labelled(preds, labels, self.threshold, self.ignore_index)
        return np.array([(predicted == asked).sum(), asked.size])

    def of(self, total: Array) -> Value:
        return total[0] / total[1]


class TopK(Metric):
    """The share of labels that are among the `k` largest along axis 1; of equal numbers the first classes count."""

    def __init__(self, k: int = 5, *, ignore_index: int | None = None) -> None:
        super().__init__()
        if k < 1:
            raise InputError(f"the {k} largest", where="TopK")
        self.k, self.name, self.ignore_index = k, f"top_{k}", ignore_index

    def sums(self, preds: Array, labels: Array) -> Array:
        labels = labels.astype(np.int64)
        if preds.ndim != labels.ndim + 1 or preds.shape[:1] + preds.shape[2:] != labels.shape:
            raise InputError(f"outputs {preds.shape} for labels {labels.shape}", where=self.name)
        best = np.argsort(-preds, axis=1, kind="stable")[:, : self.k]
        right = (best == np.expand_dims(labels, 1)).any(1)
        kept = np.ones(labels.shape, bool) if self.ignore_index is None else labels != self.ignore_index
        return np.array([right[kept].sum(), kept.sum()])

    def of(self, total: Array) -> Value:
        return total[0] / total[1]


class ConfusionMatrix(Metric):
    """Counts of predictions by true class (rows) and predicted class (columns), of `classes`."""

    name = "confusion"

    def __init__(self, classes: int = 2, *, threshold: float = 0.0, ignore_index: int | None = None) -> None:
        super().__init__()
        self.classes, self.threshold, self.ignore_index = classes, threshold, ignore_index

    def sums(self, preds: Array, labels: Array) -> Array:
        predicted, asked = _labelled(preds, labels, self.threshold, self.ignore_index)
        for what, classes in (("labels", asked), ("outputs", predicted)):
            if classes.size and not 0 <= classes.min() <= classes.max() < self.classes:
                raise InputError(
                    f"{what} of class {classes.max()} or {classes.min()}, of {self.classes}",
                    where=self.name,
                    hint="give classes=",
                )
        return np.bincount(asked * self.classes + predicted, minlength=self.classes**2)

    def of(self, total: Array) -> Value:
        return self.matrix(total)

    def matrix(self, total: Array) -> Array:
        """The counts, a row for each class that was asked for."""
        return total.reshape(self.classes, self.classes)


class F1(ConfusionMatrix):
    """The harmonic mean of precision and recall: of class 1 of two, else the mean over classes ("macro"), or of all
    decisions together ("micro"). 0 where a class occurs neither in labels nor in predictions."""

    name = "f1"

    def __init__(self, classes: int = 2, *, average: str | None = None, **how: Any) -> None:
        super().__init__(classes, **how)
        self.average = average or ("binary" if classes == 2 else "macro")
        if self.average not in ("binary", "macro", "micro") or (self.average == "binary" and classes != 2):
            raise InputError(f"average {self.average!r}", where="F1", hint="binary (of two classes), macro or micro")

    def of(self, total: Array) -> Value:
        total = self.matrix(total)
        right, both = np.diag(total), total.sum(0) + total.sum(1)
        if self.average == "micro":
            return 2 * right.sum() / both.sum()
        each = np.where(both > 0, 2 * right / np.maximum(both, 1), 0.0)
        return each[1] if self.average == "binary" else each.mean()


class MCC(ConfusionMatrix):
    """Matthews' correlation coefficient of labels and predictions, of two classes or more (Gorodkin 2004); 0 if either
    is constant."""

    name = "mcc"

    def of(self, total: Array) -> Value:
        total = self.matrix(total)
        asked, predicted, seen, right = total.sum(1), total.sum(0), total.sum(), np.trace(total)
        spread = (seen**2 - (predicted**2).sum()) * (seen**2 - (asked**2).sum())
        return (right * seen - asked @ predicted) / np.sqrt(spread) if spread > 0 else 0.0


class Perplexity(Metric):
    """e to the mean cross-entropy of the softmax over axis 1."""

    name = "perplexity"

    def __init__(self, *, ignore_index: int | None = None) -> None:
        super().__init__()
        self.ignore_index = ignore_index

    def sums(self, preds: Array, labels: Array) -> Array:
        scores, labels = preds.astype(np.float64), labels.astype(np.int64)
        kept = np.ones(labels.shape, bool) if self.ignore_index is None else labels != self.ignore_index
        scores = scores - scores.max(1, keepdims=True)
        logs = scores - np.log(np.exp(scores).sum(1, keepdims=True))
        label_logs = np.take_along_axis(logs, np.expand_dims(np.where(kept, labels, 0), 1), 1).squeeze(1)
        return np.array([-label_logs[kept].sum(), kept.sum()])

    def of(self, total: Array) -> Value:
        return np.exp(total[0] / total[1])


class MAE(Metric):
    """The mean absolute error."""

    name, power = "mae", 1

    def sums(self, preds: Array, labels: Array) -> Array:
        if preds.size != labels.size:
            raise InputError(f"outputs {preds.shape} for labels {labels.shape}", where=self.name)
        off = np.abs(preds.astype(np.float64).reshape(labels.shape) - labels)
        return np.array([(off**self.power).sum(), off.size])

    def of(self, total: Array) -> Value:
        return total[0] / total[1]


class MSE(MAE):
    """The mean squared error."""

    name, power = "mse", 2


class RMSE(MSE):
    """The root of the mean squared error."""

    name = "rmse"

    def of(self, total: Array) -> Value:
        return np.sqrt(total[0] / total[1])


class Correlation(Metric):
    """Pearson's correlation of outputs and labels, over all elements."""

    name = "correlation"

    def sums(self, preds: Array, labels: Array) -> Array:
        x, y = preds.astype(np.float64).ravel(), labels.astype(np.float64).ravel()
        if x.size != y.size:
            raise InputError(f"outputs {preds.shape} for labels {labels.shape}", where=self.name)
        return np.array([x.size, x.sum(), y.sum(), x @ x, y @ y, x @ y])

    def of(self, total: Array) -> Value:
        n, x, y, xx, yy, xy = total
        return (n * xy - x * y) / np.sqrt((n * xx - x * x) * (n * yy - y * y))


class LossOf(Metric):
    """The mean of a loss over samples, or over the labels that count: one of `mz.loss` by its name, or a Loss."""

    def __init__(self, loss: str | Loss) -> None:
        super().__init__()
        from .loss import loss_named

        self.loss, self.name = loss_named(loss), loss if isinstance(loss, str) else "loss"

    def sums(self, preds: Array, labels: Array) -> Array:
        labels = labels.astype(np.int64) if self.loss.classes else labels.astype(preds.dtype)
        g, counts = Eager(), self.loss.counts
        many = float(len(labels) if counts is None else counts(g, preds, labels))
        return np.array([float(self.loss.build(g, preds, labels)) * many if many else 0.0, many])

    def of(self, total: Array) -> Value:
        return total[0] / total[1]


class Own(Metric):
    """The mean over samples of a user's function of the outputs and labels of a batch."""

    def __init__(self, function: Callable[[Array, Array], float], name: str = "") -> None:
        super().__init__()
        self.function, self.name = function, name or getattr(function, "__name__", "own")

    def sums(self, preds: Array, labels: Array) -> Array:
        return np.array([float(self.function(preds, labels)) * len(labels), len(labels)])

    def of(self, total: Array) -> Value:
        return total[0] / total[1]


METRICS: dict[str, Callable[[], Metric]] = {
    "accuracy": Accuracy, "top_k": TopK, "f1": F1, "mcc": MCC, "perplexity": Perplexity, "mae": MAE, "mse": MSE,
    "rmse": RMSE, "correlation": Correlation, "confusion": ConfusionMatrix,
}  # fmt: skip
OTHER_NAMES = {
    "acc": "accuracy", "top_k_accuracy": "top_k", "top_k_acc": "top_k", "topk": "top_k", "pearsonr": "correlation",
    "pearson": "correlation", "confusion_matrix": "confusion", "ce": "cross_entropy", "l2": "mse",
}  # fmt: skip
Asked = str | Metric | Callable[[Array, Array], float]


def register(metric: type[Metric]) -> type[Metric]:
    """Enter a metric of one's own, made without arguments, under its `name`; a decorator."""
    METRICS[metric.name] = metric
    return metric


def metric_named(asked: Asked) -> Metric:
    """A metric: itself, one of `METRICS`, a loss by name, or a function of outputs and labels. InputError lists them.

    >>> metric_named("mae").name, metric_named("huber").name
    ('mae', 'huber')
    """
    if isinstance(asked, Metric):
        return asked
    if callable(asked):
        return Own(asked)
    if asked in METRICS:
        return METRICS[asked]()
    if asked in LOSSES:
        return LossOf(asked)
    names = [*METRICS, *(n for n in LOSSES if n not in METRICS)]
    meant = OTHER_NAMES.get(str(asked).lower()) or next(iter(get_close_matches(str(asked).lower(), names, 1)), "")
    raise InputError(
        f"there is no metric {asked!r}",
        where="metrics",
        hint=f"it is {meant!r} here" if meant else f"one of {', '.join(names)}, a Metric, or a function",
    )


def metrics_named(asked: Sequence[Asked] | Asked) -> list[Metric]:
    """Several of them, by one name each. Raises InputError where two have the same."""
    several = asked if isinstance(asked, Sequence) and not isinstance(asked, str) else [asked]
    metrics = [metric_named(one) for one in several]
    names = [m.name for m in metrics]
    if len({*names}) < len(names):
        raise InputError(f"two metrics of one name: {', '.join(names)}", where="metrics", hint="give one another name")
    return metrics
