"""`mz.gluon.fit`: the usual loop over batches and epochs, with the callbacks of `mz.callbacks`."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from pathlib import Path
from typing import Any

import numpy as np

from ..nd import autograd
from ..nd.array import Array
from ..nd.running import as_array
from ..nd.sparse import RowSparse
from ..ops.errors import InputError, ModelError
from ..train import checkpoint
from ..train.following import NO_BATCHES, Callback, Resumed, Run, check_repeatable, follow, states_of
from ..train.metrics import Asked, Metric, Metrics, StepMetrics, metrics_named
from ..train.names import FIT, refuse
from .block import Block
from .trainer import Trainer

Batch = tuple[Any, Any]
NET, STATES, COUNTS = "net.safetensors", "trainer.safetensors", "callbacks"  # of a folder; the last is one itself


class _Fit:
    """A block in training, as callbacks see it."""

    def __init__(self, net: Block, trainer: Trainer, callbacks: Sequence[Callback]) -> None:
        self.net, self.trainer, self.callbacks = net, trainer, callbacks

    @property
    def rate(self) -> float:
        return self.trainer.learning_rate

    @rate.setter
    def rate(self, value: float) -> None:
        self.trainer.set_learning_rate(value)

    def snapshot(self) -> dict[str, Any]:
        """Copies of all parameters, running statistics too."""
        return {n: p.data().asnumpy().copy() for n, p in self.net.collect_params().items()}

    def restore(self, snapshot: dict[str, Any]) -> None:
        params = self.net.collect_params()
        for name, value in snapshot.items():
            params[name].set_data(value)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Parameters and the optimizer's states, as two files of a folder; beside them the rate, where it is a number,
        and what callbacks count."""
        where, rate = Path(folder), self.trainer.optimizer.rate
        where.mkdir(parents=True, exist_ok=True)
        self.net.save_parameters(where / NET)
        self.trainer.save_states(where / STATES)
        notes = {"rate": rate} if isinstance(rate, int | float) else {}
        counts = checkpoint.Checkpoint({}, self.trainer.updates, "", notes=notes, callbacks=states_of(self.callbacks))
        checkpoint.save(where / COUNTS, counts)

    @property
    def workers(self) -> int:
        """Number of workers that learn together."""
        return 1 if self.trainer._kv is None else self.trainer._kv.num_workers

    def resume(self, folder: str | os.PathLike[str]) -> Resumed:
        """Go on from what `save` wrote; returns what gives the callbacks their counts. Raises ModelError where the
        files are of several saves."""
        where = Path(folder)
        counts = checkpoint.load(where / COUNTS)
        self.net.load_parameters(where / NET)
        self.trainer.load_states(where / STATES)
        if self.trainer.updates != counts.run:
            raise ModelError(
                f"the states have had {self.trainer.updates} updates, and the counts {counts.run}",
                where=str(where),
                hint="a save was interrupted: begin from an older one, or load the parameters and states by themselves",
            )
        if "rate" in counts.notes and counts.notes["rate"] != self.trainer.optimizer.rate:
            self.trainer.set_learning_rate(counts.notes["rate"])
        return Resumed(self.callbacks, counts.callbacks)


class _Told:
    """The metrics of an epoch: the loss and the requested ones."""

    def __init__(self, metrics: Sequence[Metric]) -> None:
        self.metrics, self.samples, self.total = metrics, 0, 0.0
        for metric in metrics:
            metric.reset()

    def add(self, loss: Array, outputs: Array, label: Array) -> float:
        """Count a batch in; its mean loss."""
        losses = loss.asnumpy().astype(np.float64)
        size = len(label)
        mean = float(losses.mean())
        self.samples, self.total = self.samples + size, self.total + mean * size
        if self.metrics:
            preds, labels = outputs.asnumpy(), label.asnumpy()
            for metric in self.metrics:
                metric.update(preds=preds, labels=labels)
        return mean

    def metrics_now(self) -> Metrics:
        values = {m.name: m.value for m in self.metrics}
        accuracy = values.get("accuracy")
        mean = self.total / self.samples if self.samples else float("nan")
        return Metrics(self.samples, mean, accuracy, values=values)


def _norm(net: Block) -> float:
    """The norm of all gradients together."""
    squares = 0.0
    for p in net.collect_params().values():
        if p.grad_req != "null":
            found = p.grad()
            values = (found.data if isinstance(found, RowSparse) else found).asnumpy().astype(np.float64)
            squares += float(np.vdot(values, values))
    return math.sqrt(squares)


def fit(
    net: Block,
    loss: Callable[..., Array],
    trainer: Trainer,
    batches: Iterable[Batch] | Callable[[int], Iterable[Batch]],
    *,
    epochs: int = 1,
    validate: Iterable[Batch] | None = None,
    metrics: Sequence[Asked] | Asked = (),
    callbacks: Sequence[Callback] = (),
    resume: str | os.PathLike[str] | None = None,
    **others: Any,
) -> list[tuple[Metrics, Metrics | None]]:
    """Learn from all batches, `epochs` times; returns the metrics of each epoch and those of `validate`.

    `batches` is a sequence of pairs (data, label) of arrays, or a function that makes them for an epoch's number.
    `loss(net(data), label)` has a number for each sample, or is one for all. Callbacks are those of `mz.callbacks`.
    The norm of the gradients is computed for callbacks that ask for it (`norm = True`, as Report does).
    `resume` is a folder that `Save` of an earlier fit has written: its parameters, the optimizer's states and rate, and
    the counts of callbacks go on from there. Raises InputError for a batch without samples, and for options that there
    are none of, ModelError for a folder that cannot be resumed.
    """
    refuse(others, "fit", FIT, fit.__annotations__)
    check_repeatable(batches, validate, epochs)
    asked = metrics_named(metrics) if metrics else []
    wants_norm = any(getattr(c, "norm", False) for c in callbacks)
    told, state = [_Told(asked)], _Fit(net, trainer, callbacks)
    back = [] if resume is None else [state.resume(resume)]

    def given(batch: Batch) -> tuple[Array, Array]:
        data, label = (as_array(x) for x in batch)
        if not len(label):
            raise InputError("a batch without samples", where="fit", hint="leave it out: its mean loss is NaN")
        return data, label

    def begin() -> None:
        told[0] = _Told(asked)

    def step(batch: Batch) -> StepMetrics:
        data, label = given(batch)
        with autograd.record():
            preds = net(data)
            losses = loss(preds, label)
        losses.backward()
        rate, size = trainer.learning_rate, len(label) if losses.ndim else 1
        norm = _norm(net) / size if wants_norm else None
        trainer.step(size)
        run.losses = losses.asnumpy() if losses.ndim else None
        return StepMetrics(run.step, told[0].add(losses, preds, label), rate, norm)

    def validated() -> Metrics | None:
        if validate is None:
            return None
        other = _Told([copy(m) for m in asked])
        for batch in validate:
            data, label = given(batch)
            preds = net(data)
            other.add(loss(preds, label), preds, label)
        if not other.samples:
            raise InputError("nothing to evaluate: no batches", where="validate=", hint=NO_BATCHES)
        return other.metrics_now()

    run = Run(state, epochs)
    follow(
        run,
        batches if callable(batches) else lambda epoch: batches,
        [*callbacks, *back],
        begin=begin,
        step=step,
        ended=lambda: told[0].metrics_now(),
        validated=validated,
    )
    return run.history
