"""The making of one batch: samples read by number, each with its own draws, and joined. Trainer, threads and worker
processes all do it with this."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from ..ops.dataclasses import dataclass, field
from ..ops.errors import ExecutionError, MezzoError
from ..ops.types import Array
from .arena import allocating
from .batchify import Batchify, default
from .clock import clocked, stage
from .dataset import Dataset
from .draws import drawing

Bad = Literal["error", "skip"]


class BadSample(ExecutionError):
    """A sample cannot be made. `name` is what its dataset calls it."""

    name: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """A batch to make: the number of the task, the epoch, places in its order, and samples. `without` are places in the
    batch that are left out."""

    number: int
    epoch: int
    places: Array
    numbers: Array
    without: tuple[int, ...] = ()


@dataclass(slots=True, eq=False)
class Made:
    """A batch that was made; None where all of its samples were skipped. `skipped` has names and reasons."""

    batch: Any
    samples: int
    times: dict[str, float]
    skipped: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])


@dataclass(frozen=True, slots=True, eq=False)
class Maker:
    """A dataset, a batchify rule (None: stack), a seed, and what becomes of bad samples."""

    dataset: Dataset
    batchify: Batchify | None
    seed: int
    bad: Bad

    def make(self, task: Task, begin_sample: Callable[[int, int], object] = lambda place, number: None) -> Made:
        """Make a batch. `begin_sample` is told the place in the batch and the number of each sample before it is made.

        Raises BadSample where a sample cannot be made, and none is skipped.
        """
        with clocked() as times:
            if self.batchify is None and not task.without and (whole := getattr(self.dataset, "batch", None)):
                begin_sample(0, int(task.numbers[0]))
                with stage("read"):
                    batch = whole(task.numbers)
                if batch is not None:
                    return Made(batch, len(task.numbers), times)
            samples, skipped = [], list[tuple[str, str]]()
            for at, (place, number) in enumerate(zip(task.places.tolist(), task.numbers.tolist(), strict=True)):
                if at in task.without:
                    continue
                begin_sample(at, number)
                try:
                    # in memory of their own: a dataset may keep what it returns
                    with drawing(self.seed, task.epoch, place), stage("read"), allocating(None):
                        samples.append(self.dataset[number])
                except Exception as error:
                    if self.bad == "error":
                        raise bad_sample(self.dataset.name(number), error) from error
                    skipped.append((self.dataset.name(number), told(error)))
            if not samples:
                return Made(None, 0, times, skipped)
            begin_sample(-1, -1)
            with drawing(self.seed, task.epoch, int(task.places[0]), 1), stage("batch"):
                batch = (self.batchify or default)(samples)
            return Made(batch, len(samples), times, skipped)


def told(error: BaseException) -> str:
    """An error in one line: its kind unless it is one of ours, and what it says."""
    if isinstance(error, MezzoError):
        return f"{error.where}: {error.message}" if error.where else error.message
    return f"{type(error).__name__}: {error}"


def bad_sample(name: str, error: BaseException | str) -> BadSample:
    """The error of a sample that cannot be made."""
    why = error if isinstance(error, str) else told(error)
    hint = getattr(error, "hint", "") or "mend or remove it"
    refusal = BadSample(
        f"the sample cannot be made: {why}", where=name, hint=f'{hint}; bad="skip" leaves such samples out'
    )
    refusal.name = name
    return refusal
