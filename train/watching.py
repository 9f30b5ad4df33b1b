"""Callbacks that show a fit while it goes on: speed, a bar, TensorBoard's files."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any

from ..ops.errors import InputError, MissingPackage
from .following import Callback, Run
from .metrics import Metrics


def size_of(batch: Any) -> int:
    """The samples of a batch: the length of its labels, or of its first array where it has none."""
    if isinstance(batch, Mapping):
        return len(batch["target"] if "target" in batch else next(iter(batch.values())))
    return len(batch[-1])


class Speedometer(Callback):
    """Print the samples per second of every `every` steps, with the loss of the last."""

    def __init__(self, every: int = 50, *, write: Callable[[str], Any] = print) -> None:
        if every < 1:
            raise InputError(f"every {every} steps", where="Speedometer")
        self.every, self.write = every, write

    def fit_begin(self, run: Run) -> None:
        self._samples, self._begin = 0, perf_counter()

    def step_end(self, run: Run) -> None:
        self._samples += size_of(run.batch)
        if run.step % self.every or run.last is None:
            return
        now = perf_counter()
        speed = self._samples / max(now - self._begin, 1e-9)
        self.write(f"epoch {run.epoch}, step {run.step}: {speed:.1f} samples/s, loss {run.last.loss:.4f}")
        self._samples, self._begin = 0, now


class Progress(Callback):
    """A bar on the terminal for each epoch, with the loss so far; `steps` is how many an epoch has, where that is known
    (the second epoch knows it of the first). Nothing is shown where there is no terminal."""

    def __init__(self, steps: int | None = None) -> None:
        self.steps = steps

    def epoch_begin(self, run: Run) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        self._close()
        shown = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
        self._bar: Any = Bar(*shown, transient=True)
        self._bar.disable = not self._bar.console.is_terminal
        self._bar.start()
        self._task, self._first = self._bar.add_task(f"epoch {run.epoch}", total=self.steps), run.step

    def step_end(self, run: Run) -> None:
        suffix = "" if run.last is None else f", loss {run.last.loss:.4f}"
        self._bar.update(self._task, advance=1, description=f"epoch {run.epoch}{suffix}")

    def epoch_end(self, run: Run) -> None:
        self.steps = run.step - self._first
        self._close()

    def fit_end(self, run: Run) -> None:
        self._close()

    def _close(self) -> None:
        if getattr(self, "_bar", None) is not None:
            self._bar.stop()
        self._bar = None


class TensorBoard(Callback):
    """Write TensorBoard's event files into a folder: loss, rate and norm of each step, metrics of each epoch. Raises
    MissingPackage where tensorboardX is not installed (`pip install 'mezzo[tensorboard]'`)."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        try:
            import tensorboardX  # noqa: F401 (said here, and not after an hour)
        except ImportError as error:
            raise MissingPackage(
                "TensorBoard's files need tensorboardX", where="TensorBoard", hint="pip install 'mezzo[tensorboard]'"
            ) from error
        self.folder = folder

    def fit_begin(self, run: Run) -> None:
        from tensorboardX import SummaryWriter

        self._writer = SummaryWriter(str(self.folder))

    def step_end(self, run: Run) -> None:
        if run.last is not None:
            for name, value in (("loss", run.last.loss), ("rate", run.last.rate), ("norm", run.last.norm)):
                if value is not None:
                    self._writer.add_scalar(f"step/{name}", value, run.step)

    def epoch_end(self, run: Run) -> None:
        for where, metrics in (("training", run.metrics), ("validation", run.validation)):
            for name, value in numbers_of(metrics).items():
                self._writer.add_scalar(f"{where}/{name}", value, run.epoch)

    def fit_end(self, run: Run) -> None:
        self._writer.close()


def numbers_of(metrics: Metrics | None) -> dict[str, float]:
    """The single numbers among the metrics of an epoch, by name."""
    if metrics is None:
        return {}
    accuracy = {} if metrics.accuracy is None else {"accuracy": float(metrics.accuracy)}
    others = {
        n: float(v) for n, v in metrics.values.items() if isinstance(v, int | float) or getattr(v, "ndim", 1) == 0
    }
    return {"loss": float(metrics.loss), **accuracy, **others}
