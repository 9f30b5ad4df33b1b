"""The course of a training: epochs over shuffled batches, validation, checkpoints, and resuming from one."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from math import isfinite
from pathlib import Path
from time import perf_counter
from typing import Any

from ..ops.dataclasses import dataclass, field
from ..ops.errors import ExecutionError, InputError
from ..train.metrics import Metrics
from ..train.shares import Share
from ..train.trainer import Trainer
from ..train.waits import Waits
from .batches import ALL, Data
from .curve import Epoch, History


@dataclass(frozen=True, slots=True)
class Every:
    """Interval between checkpoints, in epochs or steps."""

    count: int = 1
    steps: bool = False  # instead of epochs

    @staticmethod
    def parse(text: str) -> Every:
        """`2` or `2epochs` or `500steps`.

        >>> Every.parse("500steps")
        Every(count=500, steps=True)
        """
        match = re.fullmatch(r"([1-9]\d*)\s*(epochs?|steps?)?", text.strip())
        if match is None:
            raise InputError(f"{text!r} is no interval", where="--every", hint="write 2epochs or 500steps")
        return Every(int(match[1]), (match[2] or "").startswith("step"))


@dataclass(slots=True)
class Course:
    """A Trainer on its way through data, `batch` samples at a time.

    `whole` leaves out a last batch that is smaller. `stop` is asked after every step; `on_step(course, metrics of the
    epoch so far)` and `on_epoch(numbers)` are told. Every worker of a job runs the same course, and learns from its
    `share` of each batch; numbers of epochs are those of all workers, what `on_step` and the points of the history tell
    is the worker's own.
    """

    trainer: Trainer
    data: Data
    validation: Data | None
    batch: int
    epochs: int
    seed: int = 0
    whole: bool = False
    share: Share = ALL
    checkpoint: Path | None = None
    every: Every = Every()
    stop: Callable[[], bool] = lambda: False
    on_step: Callable[[Course, Metrics], Any] = lambda course, metrics: None
    on_epoch: Callable[[Epoch], Any] = lambda epoch: None
    history: History = field(default_factory=History)
    epoch: int = 0  # that are over
    position: int = 0  # batches of the epoch that are over
    seconds: float = 0.0  # that the epoch has taken
    waits: Waits = field(default_factory=Waits)

    @property
    def batches(self) -> int:
        """Number of batches in an epoch."""
        return self.share.steps(len(self.data), self.batch, whole=self.whole)

    @property
    def steps(self) -> int:
        """Number of steps done so far."""
        return self.epoch * self.batches + self.position

    def run(self) -> bool:
        """Train to the end, or until `stop` says so: then False. Raises ExecutionError where the loss is no number."""
        if self.history.before is None and self.validation is not None:
            first = self.validate()
            self.history.before = first.loss, first.accuracy
        while self.epoch < self.epochs:
            if not self._one_epoch():
                self._save()
                return False
            if self._due(self.epoch, steps=False) or self.epoch == self.epochs:
                self._save()
        return True

    def validate(self) -> Metrics:
        """The metrics of the model as it is now, on the data for validation or else on all."""
        share, data = self.share, self.validation or self.data
        mine = data.batches(self.batch, whole=self.whole, first=share.rank, step=share.count)
        return self.trainer.evaluate(mine, everywhere=True)

    def _one_epoch(self) -> bool:
        began = perf_counter() - self.seconds
        if not self.position:
            self.trainer.reset_metrics()
        former = self.trainer.metrics()
        how: dict[str, Any] = {"first": self.position, "whole": self.whole, "share": self.share}
        for feeds in self.waits.timed(self.data.shuffled(self.batch, self.seed, self.epoch, **how)):
            loss = self.trainer.step(feeds)
            self.position += 1
            self.seconds = perf_counter() - began
            if not isfinite(loss) and self.trainer.loss_scale is None:
                raise ExecutionError(
                    f"the loss is {loss} at step {self.steps}",
                    where=f"epoch {self.epoch + 1}, batch {self.position}",
                    hint="a lower --rate, --warm-up or --clip-norm helps; Trainer.overflow tells where it comes from",
                )
            now = self.trainer.metrics()
            self.history.add(self.steps, loss, _between(former, now))
            former = now
            self.on_step(self, now)
            if self._stopped():
                return False
            if self._due(self.steps, steps=True):
                self._save()
        held = self.validate() if self.validation is not None else None
        all_in_all = self.trainer.metrics(everywhere=True)
        done = Epoch(
            self.epoch + 1,
            self.steps,
            all_in_all.loss,
            all_in_all.accuracy,
            None if held is None else held.loss,
            None if held is None else held.accuracy,
            round(perf_counter() - began, 3),
        )
        self.epoch, self.position, self.seconds = self.epoch + 1, 0, 0.0
        self.history.epochs.append(done)
        self.on_epoch(done)
        return True

    def _stopped(self) -> bool:
        """True if any worker is asked to stop; all of them stop after the same step."""
        asked, exchange = self.stop(), self.trainer.exchange
        return asked if exchange is None else exchange.any(asked)

    # -- checkpoints ------------------------------------------------------------------------------------------------

    def _due(self, count: int, *, steps: bool) -> bool:
        return self.every.steps is steps and count % self.every.count == 0

    def _save(self) -> None:
        if self.checkpoint is not None:
            self.trainer.notes = {
                "position": [self.epoch, self.position, self.seconds],
                "history": self.history.to_dict(),
                "data": self._digest(),
            }
            self.trainer.save(self.checkpoint)

    def resume(self) -> None:
        """Go on from the checkpoint. InputError where it was written with other data or batches."""
        assert self.checkpoint is not None
        notes = self.trainer.resume(self.checkpoint)
        if notes.get("data") != self._digest():
            raise InputError(
                "the checkpoint was written with other data, another batch or another seed",
                where=str(self.checkpoint),
                hint="give the options of the training that wrote it, or train from the start in another folder",
            )
        self.epoch, self.position, self.seconds = notes["position"]
        self.history = History.from_dict(notes["history"])

    def _digest(self) -> str:
        """Return a digest of all that decides which samples a batch has."""
        asked = hashlib.blake2b(self.data.target.tobytes(), digest_size=16).hexdigest()
        text = f"{len(self.data)} samples {asked}, batch {self.batch}, seed {self.seed}"
        workers = f", {self.share.count} workers{', padded' * self.share.pad}" if self.share.count > 1 else ""
        return text + workers


def _between(former: Metrics, now: Metrics) -> float | None:
    """The accuracy of what was seen between two times."""
    if former.accuracy is None or now.accuracy is None or now.samples <= former.samples:
        return None
    return (now.accuracy * now.samples - former.accuracy * former.samples) / (now.samples - former.samples)
