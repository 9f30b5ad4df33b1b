"""Time that a training waits for its batches, and the warning where they hold it back."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from time import perf_counter
from typing import Any, TypeVar

T = TypeVar("T")
HELD_BACK = 0.1  # of the time: more than that is told
LEAST = 1.0  # seconds of waiting below which nothing is told


class Waits:
    """Seconds in which batches were waited for, and all seconds. The first batch of an epoch does not count, since
    whatever makes batches ahead begins with it."""

    def __init__(self) -> None:
        self.waited = self.whole = 0.0

    def timed(self, batches: Iterable[T]) -> Iterator[T]:
        """The batches, with the time that they take."""
        each = iter(batches)
        for batch in each:
            began = perf_counter()
            yield batch
            break
        else:
            return
        asked = perf_counter()
        for batch in each:
            self._count(began, asked)
            began = perf_counter()
            yield batch
            asked = perf_counter()
        self._count(began, asked)

    def _count(self, began: float, asked: float) -> None:
        got = perf_counter()
        self.waited += got - asked
        self.whole += got - began

    @property
    def share(self) -> float:
        """The share of the time."""
        return self.waited / self.whole if self.whole else 0.0

    def warn(self, batches: Any) -> None:
        """Warn where batches hold the training back, with the remedy that their loader knows."""
        if self.waited < LEAST or self.share < HELD_BACK:
            return
        advice = getattr(batches, "advice", None)
        message = advice() if callable(advice) else ""
        message = message or (
            f"{self.share:.0%} of the training's time went by in waiting for batches: mz.data.DataLoader(dataset, "
            "batch_size, workers=...) makes them beside it"
        )
        warnings.warn(message, stacklevel=4)
