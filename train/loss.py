"""`mz.loss`: losses that are added to a model. Each takes one output or several, and a target.

>>> import mezzo as mz
>>> sorted(LOSSES)
['binary_cross_entropy', 'cross_entropy', 'huber', 'l1', 'mse']
>>> loss = cross_entropy(ignore_index=-100, label_smoothing=0.1)
>>> own = custom(lambda y, target: abs(y - target))

`register` gives a function a name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from typing import Any, TypeVar

import numpy as np

from ..ops import DType, Tensor
from ..ops.errors import InputError
from ..ops.op import Builder, Value
from ..runtime.ir.typed import TypedBuilder

Build = Callable[..., Value]
Each = Callable[..., "tuple[Value, Value | None]"]
Target = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Loss:
    """A loss. `build(g, output, target)` adds it, a scalar; `target` returns the type of the target for that of the
    output, None if the loss has no target.

    `each(g, output, target)` adds the loss of each element and what each counts for in their mean (None: all alike),
    axis 0 being the samples: what weights of samples need. `counts(g, output, target)` adds what the loss of a batch
    counts for beside other batches', where that is not the number of its samples. A loss of `classes` has its classes
    on axis 1 of the output; labels that are `ignored` count for nothing. `anew()` returns the loss without what it has
    kept of a trace: a Trainer keeps the constants that it began with.
    """

    build: Build
    target: Target | None
    each: Each | None = None
    classes: bool = False
    ignored: int | None = None
    counts: Build | None = None
    anew: Callable[[], Loss] | None = None


def _classes(output: Tensor) -> Tensor:
    dims = None if output.dims is None else (*output.dims[:1], *output.dims[2:])
    return Tensor(DType.INT64, dims)


def _same(output: Tensor) -> Tensor:
    return output.forget()


def _mean(g: Builder, x: Value) -> Value:
    return g.ReduceMean(x, keepdims=0)


def _of_means(each: Callable[[Builder, Value, Value], Value]) -> Loss:
    """The loss that is the mean of a loss of each element."""
    return Loss(lambda g, y, t: _mean(g, each(g, y, t)), _same, lambda g, y, t: (each(g, y, t), None))


def _squared(g: Builder, y: Value, target: Value) -> Value:
    off = g.Sub(y, target)
    return g.Mul(off, off)


def _absolute(g: Builder, y: Value, target: Value) -> Value:
    return g.Abs(g.Sub(y, target))


def _huber(g: Builder, y: Value, target: Value) -> Value:
    """Huber 1964, with the turn at 1: squares near zero, lines further out."""
    off = g.Abs(g.Sub(y, target))
    near = g.Min(off, g.scalar(1, y))
    return g.Mul(near, g.Sub(off, g.Mul(near, g.scalar(0.5, y))))


def _binary(g: Builder, y: Value, target: Value) -> Value:
    """Cross-entropy of the sigmoid of y, in the form that does not overflow."""
    return g.Sub(g.Softplus(y), g.Mul(y, target))


def cross_entropy(
    *, ignore_index: int | None = None, class_weights: Sequence[float] | None = None, label_smoothing: float = 0.0
) -> Loss:
    """The cross-entropy of numbers of classes with axis 1 of the output, as PyTorch's `nn.CrossEntropyLoss`.

    Labels equal to `ignore_index` count for nothing; a class counts for its number of `class_weights`; a share of
    `label_smoothing` is asked of all classes alike. Raises InputError for a share that is none.
    """
    if not 0 <= label_smoothing < 1:
        raise InputError(f"label_smoothing {label_smoothing}", where="cross_entropy", hint="a share: 0 to below 1")
    weights = None if class_weights is None else np.asarray(class_weights, np.float64)
    if weights is not None and (weights.ndim != 1 or not np.isfinite(weights).all() or (weights < 0).any()):
        raise InputError("class_weights are numbers from 0 on, one for each class", where="cross_entropy")
    attrs = {} if ignore_index is None else {"ignore_index": ignore_index}

    def weighing(g: Any, y: Value) -> list[Value]:
        return [] if weights is None else [g.const(weights, g.type_of(y).dtype)]

    def valid(g: Any, y: Value, target: Value) -> Value | None:
        """1 where a label counts, 0 where it is ignored."""
        if ignore_index is None:
            return None
        return g.Cast(g.Not(g.Equal(target, g.const(ignore_index))), to=g.type_of(y).dtype.onnx)

    def plain(g: Any, y: Value, target: Value) -> Value:
        return g.SoftmaxCrossEntropyLoss(y, target, *weighing(g, y), **attrs)

    def counting(g: Any, y: Value, target: Value) -> Value | None:
        """Return the weight of each label; None if all are equal."""
        own, counts = weighing(g, y), valid(g, y, target)
        if not own:
            return counts
        known = target if counts is None else g.Where(g.Equal(counts, g.scalar(0, y)), g.const(0), target)
        of_class = g.Gather(own[0], known, axis=0)
        return of_class if counts is None else g.Mul(counts, of_class)

    def summed(g: Any, y: Value, target: Value) -> Value:
        return g.ReduceSum(counting(g, y, target), keepdims=0)

    def each(g: Any, y: Value, target: Value) -> tuple[Value, Value | None]:
        own = weighing(g, y)
        losses = g.SoftmaxCrossEntropyLoss(y, target, *own, reduction="none", **attrs)
        if label_smoothing:
            logs = g.LogSoftmax(y, axis=1)
            if own:
                rank = g.rank_of(y)
                logs = g.Mul(logs, g.Unsqueeze(own[0], g.const([i for i in range(rank) if i != 1])))
            uniform = g.Neg(g.ReduceMean(logs, g.const([1]), keepdims=0))
            if (mask := valid(g, y, target)) is not None:
                uniform = g.Mul(uniform, mask)
            losses = g.Add(
                g.Mul(losses, g.scalar(1 - label_smoothing, y)), g.Mul(uniform, g.scalar(label_smoothing, y))
            )
        return losses, counting(g, y, target)

    def smoothed(g: Any, y: Value, target: Value) -> Value:
        return mean_of(g, *each(g, y, target))

    whole = not label_smoothing and ignore_index is None
    counts = None if weights is None and ignore_index is None else summed
    return Loss(plain if whole else smoothed, _classes, each, classes=True, ignored=ignore_index, counts=counts)


def mean_of(g: Builder, losses: Value, counts: Value | None, weights: Value | None = None) -> Value:
    """The mean of losses where each counts for something, and samples (axis 0) may have weights. Weights multiply the
    losses alone: a weight of 2 is as good as a sample that is there twice, in a batch that is as large as before."""
    if weights is not None:
        more = g.rank_of(losses) - 1
        losses = g.Mul(losses, g.Unsqueeze(weights, g.const(np.arange(1, 1 + more))) if more else weights)
    if counts is None:
        return _mean(g, losses)
    many = g.ReduceSum(counts, keepdims=0)
    nothing = g.Equal(many, g.scalar(0, many))  # counts: the mean is NaN then, but its gradient is none
    mean = g.Div(g.ReduceSum(losses, keepdims=0), g.Where(nothing, g.scalar(1, many), many))
    return g.Where(nothing, g.scalar(np.nan, many), mean)


def custom(function: Callable[..., Any], target: str | Tensor | Target | None = "same") -> Loss:
    """A function of arrays as a loss: of the output, or several, and of the target behind them.

    It is written with arithmetic, methods and the functions of `mz.nd` (or with those of `mz.sym` alone, which take
    symbols), and returns the loss, or that of each sample or element, whose mean counts. `target` is "same" (the type
    of the first output), "classes" (numbers of classes, which lie on axis 1 of it), a type, or None for a function that
    takes none.
    """
    known: dict[str, Target] = {"same": _same, "classes": _classes}
    if isinstance(target, str) and target not in known:
        raise InputError(f"target {target!r}", where="custom", hint=f"one of {', '.join(known)}, a type, or None")
    kind: Target | None
    if isinstance(target, Tensor):
        kind = partial(_always, target)
    else:
        kind = known[target] if isinstance(target, str) else target

    traced: dict[Any, Any] = {}

    def each(g: TypedBuilder, *values: str) -> tuple[Value, None]:
        from .written import written

        return written(g, function, values, traced), None

    def build(g: TypedBuilder, *values: str) -> Value:
        losses, _ = each(g, *values)
        return _mean(g, losses) if g.rank_of(losses) else losses

    return Loss(build, kind, each, anew=lambda: custom(function, kind))


def _always(kind: Tensor, output: Tensor) -> Tensor:
    return kind


Own = TypeVar("Own", bound=Callable[..., Any])


def register(function: Own | None = None, *, target: str | Tensor | Target | None = "same") -> Any:
    """Let a function of arrays (see `custom`) be a loss under its name, wherever a loss is named: in Trainer, and in
    `mezzo train --import MODULE --loss NAME`. A decorator; one that is written again takes the place of the former.
    Raises InputError for the names of Mezzo.

    >>> @register
    ... def log_cosh(y, target):
    ...     return (y - target).cosh().log()
    >>> loss_named("log_cosh") is LOSSES.pop("log_cosh")
    True
    """
    if function is None:
        return partial(register, target=target)
    name = function.__name__
    if name in OURS:
        raise InputError(f"{name} is a name of Mezzo", where="loss.register", hint="rename yours")
    LOSSES[name] = custom(function, target)
    return function


LOSSES: dict[str, Loss] = {
    "cross_entropy": cross_entropy(),
    "mse": _of_means(_squared),
    "l1": _of_means(_absolute),
    "huber": _of_means(_huber),
    "binary_cross_entropy": _of_means(_binary),
}
OURS = frozenset(LOSSES)
# What MXNet and PyTorch call them.
OTHER_NAMES = {
    "crossentropyloss": "cross_entropy", "softmaxcrossentropyloss": "cross_entropy", "ce": "cross_entropy",
    "mseloss": "mse", "l2loss": "mse", "l2": "mse", "mse_loss": "mse", "l1loss": "l1", "l1_loss": "l1", "mae": "l1",
    "huberloss": "huber", "smoothl1loss": "huber", "smooth_l1_loss": "huber", "huber_loss": "huber",
    "bcewithlogitsloss": "binary_cross_entropy", "sigmoidbceloss": "binary_cross_entropy",
    "bce": "binary_cross_entropy", "binary_cross_entropy_with_logits": "binary_cross_entropy",
}  # fmt: skip


def loss_named(loss: str | Loss | Callable[..., Any]) -> Loss:
    """The loss of this name, or of a function (see `custom`); InputError lists the names.

    >>> loss_named("mse").target(Tensor(DType.FLOAT, ("n", 3)))
    Tensor(dtype=DType.FLOAT, dims=('n', 3), layout='')
    """
    if isinstance(loss, Loss):
        return loss
    if callable(loss):
        return custom(loss)
    loss_class = LOSSES.get(loss)
    if loss_class is None:
        near = get_close_matches(str(loss).lower(), LOSSES, 1)
        meant = OTHER_NAMES.get(str(loss).lower()) or (near[0] if near else "")
        hint = f"it is {meant!r} here" if meant else f"one of {', '.join(LOSSES)}, a Loss, or a function"
        raise InputError(f"there is no loss {loss!r}", where="loss", hint=hint)
    return loss_class
