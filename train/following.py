"""The loop of every fit, and what is told of it to callbacks."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Protocol

from ..ops.errors import InputError
from ..runtime.engine.waited import timed
from .metrics import Metrics, StepMetrics
from .waits import Waits

PARTS = ("data", "steps", "validation", "callbacks")


class Trains(Protocol):
    """The trainer as callbacks see it."""

    @property
    def rate(self) -> float: ...
    @rate.setter
    def rate(self, value: float) -> None: ...
    def snapshot(self) -> Any:
        """A copy of all that learns."""

    def restore(self, snapshot: Any) -> None:
        """Go back to a copy."""

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write a checkpoint."""


@dataclass(slots=True)
class Run:
    """A fit as callbacks see it. `epoch` counts from 0, `step` from 1 over the whole fit; `batch` is the current batch,
    `last` the result of the last step. At the end of an epoch `metrics` are those of its training and `validation`
    those of the validation data, or None. `history` has a pair of both for each epoch, `seconds` the time that parts of
    the fit took: waiting for data, steps, validation, callbacks."""

    trainer: Trains
    epochs: int
    epoch: int = 0
    step: int = 0
    batch: Any = None
    last: StepMetrics | None = None
    metrics: Metrics | None = None
    validation: Metrics | None = None
    history: list[tuple[Metrics, Metrics | None]] = field(default_factory=list[tuple[Metrics, Metrics | None]])
    reason: str = ""
    losses: Any = None  # of each sample of the last step, where the loss tells them
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))

    def stop(self, reason: str = "asked to") -> None:
        """End the training after this step, or this epoch."""
        self.reason = reason or "asked to"

    @property
    def stopping(self) -> bool:
        return bool(self.reason)

    def value(self, watch: str) -> float:
        """A number of this epoch: of the validation, if there is one. `train/` before the name asks for the other."""
        name = watch.removeprefix("train/")
        metrics = self.metrics if name != watch or self.validation is None else self.validation
        if metrics is None:
            raise InputError(f"there is no {watch!r} before an epoch has ended", where="Run.value")
        return metrics.value(name)


# What Keras, Lightning and MXNet's estimator call them.
OTHER_NAMES = {
    "on_train_begin": "fit_begin", "on_train_start": "fit_begin", "on_fit_start": "fit_begin",
    "train_begin": "fit_begin", "on_train_end": "fit_end", "on_fit_end": "fit_end", "train_end": "fit_end",
    "on_epoch_begin": "epoch_begin", "on_epoch_start": "epoch_begin", "on_train_epoch_start": "epoch_begin",
    "on_epoch_end": "epoch_end", "on_train_epoch_end": "epoch_end", "on_validation_epoch_end": "epoch_end",
    "on_batch_begin": "step_begin", "on_train_batch_begin": "step_begin", "on_train_batch_start": "step_begin",
    "batch_begin": "step_begin", "on_batch_end": "step_end", "on_train_batch_end": "step_end", "batch_end": "step_end",
}  # fmt: skip


class Callback:
    """Base of callbacks: does nothing at any point of a fit; subclasses override the methods they need.

    One that counts tells its counts in `state_dict`, a dict of what JSON has and of NumPy's arrays, and takes them from
    `load_state_dict`: checkpoints of a Trainer have them, and the first fit after `resume` gives them back once it has
    begun.
    """

    def __init_subclass__(cls) -> None:
        """Raises InputError for methods under the names of other libraries, which nobody would call."""
        super().__init_subclass__()
        for name in vars(cls):
            if name in OTHER_NAMES:
                raise InputError(
                    f"nobody calls {name}", where=cls.__name__, hint=f"it is {OTHER_NAMES[name]}(run) here"
                )

    def fit_begin(self, run: Run) -> None: ...
    def epoch_begin(self, run: Run) -> None: ...
    def step_begin(self, run: Run) -> None: ...
    def step_end(self, run: Run) -> None: ...
    def epoch_end(self, run: Run) -> None: ...
    def fit_end(self, run: Run) -> None: ...
    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


@dataclass(frozen=True, slots=True)
class Functions(Callback):
    """Functions as a callback; a truthy result ends the training."""

    on_step: Callable[[int, float], Any] | None
    on_epoch: Callable[[int, Metrics], Any] | None

    def step_end(self, run: Run) -> None:
        if self.on_step is not None and run.last is not None and self.on_step(run.last.number, run.last.loss):
            run.stop()

    def epoch_end(self, run: Run) -> None:
        if self.on_epoch is not None and run.metrics is not None and self.on_epoch(run.epoch, run.metrics):
            run.stop()


@dataclass(frozen=True, slots=True)
class Resumed(Callback):
    """The states that a checkpoint has of callbacks, which are given back to them; it is told of the begin last."""

    callbacks: Sequence[Callback]
    states: Mapping[str, Any]

    def fit_begin(self, run: Run) -> None:
        named = _named(self.callbacks)
        for name, state in self.states.items():
            if name in named:
                named[name].load_state_dict(state)
        if lost := [n for n in self.states if n not in named]:
            warnings.warn(
                f"the checkpoint has the counts of {', '.join(lost)}, and this fit has no such callback", stacklevel=5
            )


def states_of(callbacks: Sequence[Callback]) -> dict[str, Any]:
    """The states of callbacks that have one, by the name of their class, and what they watch (and a number, from the
    second on)."""
    return {name: state for name, c in _named(callbacks).items() if (state := c.state_dict())}


def _named(callbacks: Sequence[Callback]) -> dict[str, Callback]:
    by_name: dict[str, Callback] = {}
    for callback in callbacks:
        if not hasattr(callback, "state_dict"):
            continue  # it has all methods that are told something, and is no subclass
        kind = type(callback).__name__
        name = kind = f"{kind} of {callback.watch}" if hasattr(callback, "watch") else kind
        number = 1
        while name in by_name:
            number += 1
            name = f"{kind} {number}"
        by_name[name] = callback
    return by_name


NO_BATCHES = "are they iterated a second time, or larger than the data, the last one being left out?"


def check_repeatable(batches: Any, validate: Any, epochs: int) -> None:
    """Raise InputError for data that are gone after one pass and would be asked for again: a later epoch, or validation
    of it, would find nothing, and a loss of 0."""
    for data, name, again in ((batches, "batches", epochs > 1), (validate, "validate=", True)):
        if again and isinstance(data, Iterator):
            hint = "give a list, a DataLoader" + (", or a function that makes them for an epoch" * (name == "batches"))
            raise InputError("batches that can be iterated only once", where=name, hint=hint)


def follow(
    run: Run,
    batches: Callable[[int], Iterable[Any]],
    callbacks: Sequence[Callback],
    *,
    begin: Callable[[], Any],
    step: Callable[[Any], StepMetrics],
    ended: Callable[[], Metrics],
    validated: Callable[[], Metrics | None],
) -> Run:
    """Go through all epochs: the loop of every fit. `begin` starts the metrics of an epoch, `step` learns from a batch,
    `ended` tells the metrics of the epoch and `validated` those of other data.

    A stop in the middle of an epoch ends it there: its metrics count, `epoch_end` is not called. Batches that hold the
    training back are warned of at the end, with the remedy.
    """

    def tell(what: str) -> None:
        with _timed(run, "callbacks"):
            for callback in callbacks:
                getattr(callback, what)(run)

    for callback in callbacks:
        if lacking := [name for name in dict.fromkeys(OTHER_NAMES.values()) if not hasattr(callback, name)]:
            raise InputError(
                f"{type(callback).__name__} has no {lacking[0]}", where="callbacks=", hint="inherit from Callback"
            )
    waits, source = Waits(), None
    tell("fit_begin")
    try:
        for epoch in range(run.epochs):
            run.epoch, run.validation = epoch, None
            begin()
            tell("epoch_begin")
            source, done = batches(epoch), run.step
            for batch in _until(run, waits.timed(source)):
                run.batch = batch
                run.step += 1
                tell("step_begin")
                with _timed(run, "steps"):
                    run.last = step(run.batch)
                tell("step_end")
            if run.step == done and not run.stopping:
                raise InputError("an epoch without a batch", where="batches", hint=NO_BATCHES)
            run.metrics = ended()
            if not run.stopping:
                with _timed(run, "validation"):
                    run.validation = validated()
            run.history.append((run.metrics, run.validation))
            if not run.stopping:
                tell("epoch_end")
            if run.stopping:
                break
    finally:
        tell("fit_end")
    waits.warn(source)
    return run


@contextmanager
def _timed(run: Run, part: str) -> Iterator[None]:
    """Count the time within as this part's."""
    begin = perf_counter()
    try:
        yield
    finally:
        run.seconds[part] += perf_counter() - begin


def _until(run: Run, batches: Iterable[Any]) -> Iterator[Any]:
    """Batches until somebody stops the run: the next one is not fetched then."""
    waiting = timed(batches)
    while not run.stopping:
        with _timed(run, "data"):
            batch = next(waiting, END)
        if batch is END:
            return
        yield batch


END = object()
