"""`mz.callbacks`: hooks of a training. The same objects serve `mz.Trainer.fit` and `mz.gluon.fit`.

>>> class Patient(Callback):
...     def epoch_end(self, run):
...         if run.epoch == 2:
...             run.stop("three epochs are enough")
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..ops.errors import InputError
from .metrics import Metrics, StepMetrics
from .waits import Waits


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
    those of the validation data, or None. `history` has a pair of both for each epoch."""

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


class _Watching(Callback):
    """Base of callbacks that watch whether a number improves from epoch to epoch."""

    def __init__(self, watch: str, patience: int, mode: str, threshold: float, *, relative: bool) -> None:
        if mode not in ("min", "max"):
            raise InputError(f"mode {mode!r}", where=type(self).__name__, hint="min or max")
        if patience < 0:
            raise InputError(f"a patience of {patience} epochs", where=type(self).__name__)
        self.watch, self.patience, self.mode = watch, patience, mode
        self.threshold, self.relative = threshold, relative
        self._begin()

    def _begin(self) -> None:
        self.best = math.inf if self.mode == "min" else -math.inf
        self.waited = 0

    def fit_begin(self, run: Run) -> None:
        self._begin()

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "waited": self.waited}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.best, self.waited = float(state["best"]), int(state["waited"])

    def _better(self, value: float) -> bool:
        """True if a number is the best so far by more than the threshold, in which case it is kept. NaN never is."""
        by = abs(self.best) * self.threshold if self.relative and math.isfinite(self.best) else self.threshold
        by = by if math.isfinite(self.best) else 0.0
        better = value < self.best - by if self.mode == "min" else value > self.best + by
        if better:
            self.best, self.waited = value, 0
        else:
            self.waited += 1
        return better


class Plateau(_Watching):
    """Multiply the rate by `factor` when a number has not improved for more than `patience` epochs, as PyTorch's
    ReduceLROnPlateau does: `threshold` is relative, `cooldown` epochs are left out after each reduction, and the rate
    stays above `least`."""

    def __init__(
        self,
        watch: str = "loss",
        *,
        factor: float = 0.1,
        patience: int = 10,
        mode: str = "min",
        threshold: float = 1e-4,
        cooldown: int = 0,
        least: float = 0.0,
    ) -> None:
        if not 0 < factor < 1:
            raise InputError(f"a factor of {factor}", where="Plateau", hint="a share between 0 and 1")
        self.factor, self.cooldown, self.least, self._resting = factor, cooldown, least, 0
        super().__init__(watch, patience, mode, threshold, relative=True)

    def epoch_end(self, run: Run) -> None:
        self._better(run.value(self.watch))
        if self._resting:
            self._resting -= 1
            self.waited = 0
        if self.waited > self.patience:
            self.waited, self._resting = 0, self.cooldown
            now = run.trainer.rate
            after = max(now * self.factor, self.least)
            if now - after > 1e-8:  # less than this is nothing, in PyTorch too
                run.trainer.rate = after

    def fit_begin(self, run: Run) -> None:
        super().fit_begin(run)
        self._resting = 0

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "resting": self._resting}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._resting = int(state["resting"])


class EarlyStopping(_Watching):
    """End the training when a number has not improved by `threshold` for `patience` epochs in a row, and return to the
    best parameters (`restore`)."""

    def __init__(
        self, watch: str = "loss", *, patience: int = 3, mode: str = "min", threshold: float = 0.0, restore: bool = True
    ) -> None:
        super().__init__(watch, patience, mode, threshold, relative=False)
        self.restore, self.epoch = restore, -1
        self._kept: Any = None
        self._restored = False  # the trainer has the best parameters

    def fit_begin(self, run: Run) -> None:
        super().fit_begin(run)
        self.epoch, self._kept, self._restored = -1, None, False

    def epoch_begin(self, run: Run) -> None:
        if self._restored:  # it goes on from them
            self._kept, self._restored = run.trainer.snapshot(), False

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "epoch": self.epoch, "kept": self._kept, "restored": self._restored}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.epoch = int(state["epoch"])
        if self.restore:
            self._kept, self._restored = state["kept"], bool(state["restored"])

    def epoch_end(self, run: Run) -> None:
        if self._better(run.value(self.watch)):
            self.epoch = run.epoch
            self._kept = run.trainer.snapshot() if self.restore else None
        elif self.waited >= max(self.patience, 1):
            run.stop(f"{self.watch} is not better than in epoch {self.epoch}: {self.best:.6g}")

    def fit_end(self, run: Run) -> None:
        if self._kept is not None:
            run.trainer.restore(self._kept)
            self._kept, self._restored = None, True


class Save(Callback):
    """Write a checkpoint into a folder after every `every` epochs, and at the end."""

    def __init__(self, folder: str | os.PathLike[str], *, every: int = 1) -> None:
        self.folder, self.every = folder, every

    def epoch_end(self, run: Run) -> None:
        if (run.epoch + 1) % self.every == 0:
            run.trainer.save(self.folder)

    def fit_end(self, run: Run) -> None:
        run.trainer.save(self.folder)


class Log(Callback):
    """Print a line for each epoch, and for every `every` steps."""

    def __init__(self, *, every: int = 0, write: Callable[[str], Any] = print) -> None:
        self.every, self.write = every, write

    def step_end(self, run: Run) -> None:
        if self.every and run.step % self.every == 0 and run.last is not None:
            norm = "" if run.last.norm is None else f", norm {run.last.norm:.4g}"
            self.write(f"step {run.step}: loss {run.last.loss:.4f}, rate {run.last.rate:.3g}{norm}")

    def epoch_end(self, run: Run) -> None:
        beside = "" if run.validation is None else f"; validation {run.validation}"
        self.write(f"epoch {run.epoch}: {run.metrics}{beside}")


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
        name = kind = f"{kind} of {callback.watch}" if isinstance(callback, _Watching) else kind
        number = 1
        while name in by_name:
            number += 1
            name = f"{kind} {number}"
        by_name[name] = callback
    return by_name


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
            run.epoch = epoch
            begin()
            tell("epoch_begin")
            source = batches(epoch)
            for batch in _until(run, waits.timed(source)):
                run.batch = batch
                run.step += 1
                tell("step_begin")
                run.last = step(run.batch)
                tell("step_end")
            run.metrics = ended()
            if not run.stopping:
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


def _until(run: Run, batches: Iterable[Any]) -> Iterator[Any]:
    """Batches until somebody stops the run: the next one is not fetched then."""
    for batch in batches:
        yield batch
        if run.stopping:
            return
