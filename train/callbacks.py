"""`mz.callbacks`: hooks of a training. The same objects serve `mz.Trainer.fit` and `mz.gluon.fit`.

>>> class Patient(Callback):
...     def epoch_end(self, run):
...         if run.epoch == 2:
...             run.stop("three epochs are enough")
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from typing import Any

from ..ops.errors import InputError
from .following import OTHER_NAMES, Callback, Functions, Resumed, Run, Trains, follow, states_of
from .outer import Outer
from .recorded import Record
from .reported import Report
from .watching import Progress, Speedometer, TensorBoard


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


__all__ = [
    "OTHER_NAMES", "Callback", "EarlyStopping", "Functions", "Log", "Outer", "Plateau", "Progress", "Record",
    "Report", "Resumed", "Run", "Save", "Speedometer", "TensorBoard", "Trains", "follow", "states_of",
]  # fmt: skip
