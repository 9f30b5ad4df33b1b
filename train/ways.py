"""Choice between two orders of one step by the time that each takes: gradients that travel while the rest of the
backward part runs, or after it. Which is quicker depends on links, processors and the network (bench/overlap.py)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from time import perf_counter
from typing import TypeVar

from ..runtime.execution.session import Session

T = TypeVar("T")
WARM, TIMED = 2, 4  # runs of each way that are not counted, and that are


class Ways:
    """Sessions of one step, of the same results, in turn for the first runs; then the quickest.

    >>> ways = Ways(["a", "b"])
    >>> for seconds in (9, 9, 9, 9, 2, 1, 2, 1, 2, 1, 2, 1):
    ...     way = ways.next()
    ...     ways.took(seconds)
    >>> ways.measured, ways.medians, ways.quickest(ways.medians)
    (True, [2.0, 1.0], 'b')
    """

    def __init__(self, sessions: Sequence[Session]) -> None:
        self._sessions = tuple(sessions)
        self._times: list[list[float]] = [[] for _ in sessions]
        self._runs = 0

    def next(self) -> Session:
        """The session of the next run."""
        return self._sessions[self._runs % len(self._sessions)]

    def took(self, seconds: float) -> None:
        """Count the time of a run."""
        self._times[self._runs % len(self._sessions)].append(seconds)
        self._runs += 1

    def run(self, call: Callable[[Session], T]) -> T:
        """Call something of the next session, and count its time."""
        way, began = self.next(), perf_counter()
        result = call(way)
        self.took(perf_counter() - began)
        return result

    @property
    def measured(self) -> bool:
        """True if each way has had its runs."""
        return self._runs == len(self._sessions) * (WARM + TIMED)

    @property
    def medians(self) -> list[float]:
        """The median time of each way, in seconds."""
        return [float(median(times[WARM:])) for times in self._times]

    def quickest(self, times: Sequence[float]) -> Session:
        """The way with the least of these times, which all workers have added up."""
        return self._sessions[min(range(len(times)), key=times.__getitem__)]
