"""Progress of a training: a bar on a terminal, plain lines elsewhere; and handling of Ctrl-C."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

from ..train.metrics import Metrics
from .curve import Epoch
from .fit import Course


@contextmanager
def interruptible() -> Iterator[threading.Event]:
    """An event that the first Ctrl-C sets, so that a step can end; the second one interrupts as usual."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():  # signals are for the main thread alone
        yield asked
        return

    def heard(*_: Any) -> None:
        asked.set()
        signal.signal(signal.SIGINT, former)

    former = signal.signal(signal.SIGINT, heard)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, former)


class Watch:
    """A context that shows the progress of a course: a line for each epoch, and a bar for its steps that vanishes at
    the end."""

    def __init__(self, *, quiet: bool) -> None:
        self.quiet = quiet
        self._bar: Any = None
        self._task: Any = None

    def __call__(self, course: Course) -> None:
        """Begin to follow."""
        if self.quiet:
            return
        course.on_epoch = self._epoch
        if self._bar is not None:
            course.on_step = self._step
            self._bar.start()
            self._task = self._bar.add_task("", total=course.epochs * course.batches, completed=course.steps)

    def __enter__(self) -> Self:
        from rich.console import Console

        if not self.quiet and Console().is_terminal:
            from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

            self._bar = Progress(BarColumn(), TextColumn("{task.description}"), TimeRemainingColumn(), transient=True)
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def _step(self, course: Course, now: Metrics) -> None:
        speed = now.samples / max(course.seconds, 1e-9)
        self._bar.update(
            self._task,
            completed=course.steps,
            description=f"epoch {course.epoch + 1} of {course.epochs}: {now}, {speed:.0f} samples/s",
        )

    def _epoch(self, done: Epoch) -> None:
        line = f"epoch {done.epoch}: {Metrics(0, done.loss, done.accuracy)}"
        if done.validation_loss is not None:
            line += f"; validation: {Metrics(0, done.validation_loss, done.validation_accuracy)}"
        line += f"; {done.seconds:.1f} s"
        if self._bar is not None:
            self._bar.console.print(line, highlight=False, soft_wrap=True)
        else:
            print(line, flush=True)
