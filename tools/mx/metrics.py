"""`mx.metric`: metrics with MXNet's `update(labels, preds)`, over ours and over functions of NumPy's arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy

from ...ops.errors import InputError
from ...train import metrics as ours

Pair = Callable[[Any, Any], Any]


def _numpy(x: Any) -> Any:
    return x.asnumpy() if hasattr(x, "asnumpy") else numpy.asarray(x)


def _list(x: Any) -> list[Any]:
    return list(x) if isinstance(x, list | tuple) else [x]


def check_label_shapes(labels: Any, preds: Any, wrap: bool = False, shape: bool = False) -> Any:
    """Compare how many labels and answers there are, or their shapes; `wrap` makes lists of single ones. Raises
    InputError where they differ."""
    one, two = (labels.shape, preds.shape) if shape else (len(labels), len(preds))
    if one != two:
        raise InputError(f"labels of {one} for answers of {two}", where="check_label_shapes", hint="give one for each")
    return (_list(labels), _list(preds)) if wrap else (labels, preds)


class EvalMetric:
    """Base of metrics: a sum and a count, which `update` adds to. Subclasses of yours may keep both themselves."""

    def __init__(self, name: str, output_names: Any = None, label_names: Any = None, **_: Any) -> None:
        self.name, self.output_names, self.label_names = str(name), output_names, label_names
        self.sum_metric, self.num_inst = 0.0, 0
        self.reset()

    def reset(self) -> None:
        self.sum_metric, self.num_inst = 0.0, 0

    def update(self, labels: Any, preds: Any) -> None:
        raise NotImplementedError

    def update_dict(self, label: Mapping[str, Any], pred: Mapping[str, Any]) -> None:
        self.update([*label.values()], [*pred.values()])

    def get(self) -> tuple[Any, Any]:
        return self.name, self.sum_metric / self.num_inst if self.num_inst else float("nan")

    def get_name_value(self) -> list[tuple[str, float]]:
        names, values = (_list(v) for v in self.get())
        return list(zip(names, values, strict=True))

    def __str__(self) -> str:
        return f"EvalMetric: {dict(self.get_name_value())}"


class _Counted(EvalMetric):
    """A metric of ours."""

    def __init__(self, metric: ours.Metric, name: str = "") -> None:
        self.metric = metric
        super().__init__(name or metric.name)

    def reset(self) -> None:
        self.metric.reset()

    def update(self, labels: Any, preds: Any) -> None:
        for label, pred in zip(_list(labels), _list(preds), strict=True):
            asked, answer = _numpy(label), _numpy(pred)
            if isinstance(self.metric, ours.Accuracy | ours.TopK | ours.Perplexity) and asked.shape != answer.shape:
                asked = asked.reshape(-1) if answer.ndim == 2 else asked
            self.metric.update(preds=answer, labels=asked)

    def get(self) -> tuple[Any, Any]:
        return self.name, self.metric.value


class Accuracy(_Counted):
    """The share of labels that are the largest along the axis of classes; predictions may be classes themselves."""

    def __init__(
        self, axis: int = 1, name: str = "accuracy", output_names: Any = None, label_names: Any = None
    ) -> None:
        super().__init__(ours.Accuracy(), name)
        self.axis = axis

    def update(self, labels: Any, preds: Any) -> None:
        for label, pred in zip(_list(labels), _list(preds), strict=True):
            asked, answer = _numpy(label).astype(numpy.int64), _numpy(pred)
            if answer.ndim == asked.ndim + 1:
                answer = numpy.moveaxis(answer, self.axis, 1)
            if answer.shape == asked.shape:  # classes: as rows of truths
                answer = numpy.equal.outer(
                    answer.reshape(-1).astype(numpy.int64), numpy.arange(int(max(answer.max(), asked.max())) + 1)
                )
                answer = numpy.pad(answer.astype(numpy.float32), ((0, 0), (0, 1)))
            self.metric.update(preds=answer, labels=asked.reshape(-1) if answer.ndim == 2 else asked)


class TopKAccuracy(EvalMetric):
    """The share of labels among the `top_k` largest predictions; of equal ones NumPy's partition chooses."""

    def __init__(self, top_k: int = 1, name: str = "top_k_accuracy", **_: Any) -> None:
        self.top_k = top_k
        super().__init__(f"{name}_{top_k}")

    def update(self, labels: Any, preds: Any) -> None:
        for label, pred in zip(_list(labels), _list(preds), strict=True):
            asked, answer = _numpy(label).reshape(-1).astype(numpy.int64), _numpy(pred)
            best = numpy.argpartition(answer.astype(numpy.float32), -self.top_k)[:, -self.top_k :]
            self.sum_metric += int((best == asked[:, None]).sum())
            self.num_inst += len(asked)


class _ByElement(EvalMetric):
    """The mean over batches of a function of labels and predictions, as MXNet counts regressions."""

    def __init__(self, function: Pair, name: str) -> None:
        self._function = function
        super().__init__(name)

    def update(self, labels: Any, preds: Any) -> None:
        for label, pred in zip(_list(labels), _list(preds), strict=True):
            asked, answer = _numpy(label), _numpy(pred)
            asked = asked.reshape(len(asked), -1)
            answer = answer.reshape(len(answer), -1)
            self.sum_metric += float(self._function(asked, answer))
            self.num_inst += 1


class MAE(_ByElement):
    def __init__(self, name: str = "mae", **_: Any) -> None:
        super().__init__(lambda y, p: numpy.abs(y - p).mean(), name)


class MSE(_ByElement):
    def __init__(self, name: str = "mse", **_: Any) -> None:
        super().__init__(lambda y, p: numpy.square(y - p).mean(), name)


class RMSE(_ByElement):
    def __init__(self, name: str = "rmse", **_: Any) -> None:
        super().__init__(lambda y, p: numpy.sqrt(numpy.square(y - p).mean()), name)


class CrossEntropy(EvalMetric):
    """The mean of -log of the probabilities that the labels have."""

    def __init__(self, eps: float = 1e-12, name: str = "cross-entropy", **_: Any) -> None:
        self.eps = eps
        super().__init__(name)

    def update(self, labels: Any, preds: Any) -> None:
        for label, pred in zip(_list(labels), _list(preds), strict=True):
            asked, answer = _numpy(label).reshape(-1).astype(numpy.int64), _numpy(pred)
            picked = answer.reshape(len(asked), -1)[numpy.arange(len(asked)), asked]
            self.sum_metric += float(-numpy.log(picked + self.eps).sum())
            self.num_inst += len(asked)


class NegativeLogLikelihood(CrossEntropy):
    def __init__(self, eps: float = 1e-12, name: str = "nll-loss", **_: Any) -> None:
        super().__init__(eps, name)


class Perplexity(EvalMetric):
    """exp of the mean of -log of the probabilities, without the labels that are ignored."""

    def __init__(self, ignore_label: int | None = None, axis: int = -1, name: str = "perplexity", **_: Any) -> None:
        self.ignore_label = ignore_label
        super().__init__(name)

    def update(self, labels: Any, preds: Any) -> None:
        for label, pred in zip(_list(labels), _list(preds), strict=True):
            asked, answer = _numpy(label).reshape(-1).astype(numpy.int64), _numpy(pred)
            picked = answer.reshape(len(asked), -1)[numpy.arange(len(asked)), asked]
            kept = picked if self.ignore_label is None else picked[asked != self.ignore_label]
            self.sum_metric -= float(numpy.log(numpy.maximum(kept, 1e-10)).sum())
            self.num_inst += len(kept)

    def get(self) -> tuple[Any, Any]:
        return self.name, float(numpy.exp(self.sum_metric / self.num_inst)) if self.num_inst else float("nan")


class _Averaged(_Counted):
    """A metric of ours: its mean over batches (`macro`), or that of all of them (`micro`)."""

    def __init__(self, metric: ours.Metric, name: str, average: str) -> None:
        if average not in ("macro", "micro"):
            raise InputError(f"average={average!r}", where=name, hint="macro or micro")
        self._average = average
        super().__init__(metric, name)

    def reset(self) -> None:
        self.sum_metric, self.num_inst = 0.0, 0
        super().reset()

    def update(self, labels: Any, preds: Any) -> None:
        super().update(labels, preds)
        if self._average == "macro":
            self.sum_metric, self.num_inst = self.sum_metric + float(self.metric.value), self.num_inst + 1
            self.metric.reset()

    def get(self) -> tuple[Any, Any]:
        return EvalMetric.get(self) if self._average == "macro" else super().get()


class F1(_Averaged):
    def __init__(self, name: str = "f1", average: str = "macro", **_: Any) -> None:
        super().__init__(ours.F1(), name, average)


class MCC(_Averaged):
    def __init__(self, name: str = "mcc", average: str = "macro", **_: Any) -> None:
        super().__init__(ours.MCC(), name, average)


class PearsonCorrelation(_Averaged):
    def __init__(self, name: str = "pearsonr", average: str = "macro", **_: Any) -> None:
        super().__init__(ours.Correlation(), name, average)


class Loss(EvalMetric):
    """The mean of the predictions, which are losses."""

    def __init__(self, name: str = "loss", **_: Any) -> None:
        super().__init__(name)

    def update(self, labels: Any, preds: Any) -> None:
        for pred in _list(preds):
            values = _numpy(pred)
            self.sum_metric += float(values.sum())
            self.num_inst += values.size


class CustomMetric(EvalMetric):
    """A function of label and prediction as NumPy's arrays: its number counts once, or (sum, count)."""

    def __init__(self, feval: Pair, name: str | None = None, allow_extra_outputs: bool = False, **_: Any) -> None:
        self._feval, self._extra = feval, allow_extra_outputs
        called = getattr(feval, "__name__", "lambda")
        super().__init__(name or (f"custom({called})" if "<" in called else called))

    def update(self, labels: Any, preds: Any) -> None:
        for label, pred in zip(_list(labels), _list(preds), strict=not self._extra):
            value = self._feval(_numpy(label), _numpy(pred))
            total, count = value if isinstance(value, tuple) else (value, 1)
            self.sum_metric += float(total)
            self.num_inst += int(count)


class CompositeEvalMetric(EvalMetric):
    """Several metrics as one."""

    def __init__(self, metrics: Sequence[Any] | None = None, name: str = "composite", **_: Any) -> None:
        self.metrics = [create(m) for m in metrics or ()]
        super().__init__(name)

    def add(self, metric: Any) -> None:
        self.metrics.append(create(metric))

    def get_metric(self, index: int) -> EvalMetric:
        return self.metrics[index]

    def reset(self) -> None:
        for metric in self.metrics:
            metric.reset()

    def update(self, labels: Any, preds: Any) -> None:
        for metric in self.metrics:
            metric.update(labels, preds)

    def get(self) -> tuple[Any, Any]:
        pairs = [pair for m in self.metrics for pair in m.get_name_value()]
        return [n for n, _ in pairs], [v for _, v in pairs]


def np(numpy_feval: Pair, name: str | None = None, allow_extra_outputs: bool = False) -> CustomMetric:
    """A metric of a function over NumPy's arrays: `mx.metric.np`."""
    return CustomMetric(numpy_feval, name, allow_extra_outputs)


KINDS: dict[str, Callable[..., EvalMetric]] = {
    "acc": Accuracy, "accuracy": Accuracy, "top_k_accuracy": TopKAccuracy, "top_k_acc": TopKAccuracy, "mae": MAE,
    "mse": MSE, "rmse": RMSE, "ce": CrossEntropy, "cross-entropy": CrossEntropy, "nll_loss": NegativeLogLikelihood,
    "perplexity": Perplexity, "f1": F1,
    "mcc": MCC, "pearsonr": PearsonCorrelation, "loss": Loss, "composite": CompositeEvalMetric,
}  # fmt: skip


def create(metric: Any, *args: Any, **settings: Any) -> EvalMetric:
    """A metric by its name, of a function, or of a list of such."""
    if isinstance(metric, EvalMetric):
        return metric
    if isinstance(metric, list | tuple):
        return CompositeEvalMetric(metric)
    if callable(metric):
        return CustomMetric(metric, *args, **settings)
    if metric not in KINDS:
        raise InputError(f"there is no metric {metric!r}", where="mx.metric", hint=", ".join(KINDS))
    return KINDS[metric](*args, **settings)


def register(kind: type[EvalMetric]) -> type[EvalMetric]:
    """Enter a metric of yours under its name in lower case."""
    KINDS[kind.__name__.lower()] = kind
    return kind
