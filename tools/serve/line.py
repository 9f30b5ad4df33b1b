"""Jobs that wait for a model, and which of them run together next: a state machine without I/O or clock."""

from __future__ import annotations

import math
from collections import deque
from typing import Any

from ...ops.dataclasses import dataclass, field
from ...ops.types import Array


@dataclass(slots=True, eq=False)
class Job:
    """A request in line: its arrays, the outputs it wants, when it came and by when it must be answered (seconds of any
    clock), and what is told to whoever waits."""

    feeds: dict[str, Array]
    names: tuple[str, ...] | None
    came: float
    until: float = math.inf
    gone: bool = False  # nobody waits for it any more
    ticket: Any = None
    began: float = math.nan
    rows: int = field(init=False)

    def __post_init__(self) -> None:
        self.rows = max((len(a) for a in self.feeds.values() if a.ndim), default=1)

    @property
    def kind(self) -> Any:
        """Properties that jobs which run together have in common."""
        return (self.names, *((n, a.dtype, a.shape[1:]) for n, a in sorted(self.feeds.items())))


@dataclass(frozen=True, slots=True)
class Next:
    """The work to do: run `jobs` together, tell those that are `late`, and look again `after` so many seconds (inf:
    not before something happens)."""

    jobs: tuple[Job, ...] = ()
    late: tuple[Job, ...] = ()
    after: float = math.inf


class Line:
    """Jobs in the order in which they came. Together run those of one kind, of at most `rows` rows; where there are
    fewer, until the first of them has waited `wait` seconds.

    >>> import numpy as np
    >>> line = Line(rows=2, wait=0.1)
    >>> for came in (0.0, 0.05):
    ...     line.add(Job({"x": np.zeros((1, 3))}, None, came))
    >>> [job.came for job in line.take(0.06).jobs]
    [0.0, 0.05]
    """

    def __init__(self, rows: int = 1, wait: float = 0.0) -> None:
        self.rows, self.wait = rows, wait if rows > 1 else 0.0
        self.jobs: deque[Job] = deque()

    def __len__(self) -> int:
        return len(self.jobs)

    def add(self, job: Job) -> None:
        self.jobs.append(job)

    def take(self, now: float) -> Next:
        """Take out what is to be done now."""
        late = tuple(job for job in self.jobs if not job.gone and job.until <= now)
        self.jobs = deque(job for job in self.jobs if not job.gone and job.until > now)
        if not self.jobs:
            return Next(late=late)
        first, chosen, count = self.jobs[0], list[Job](), 0
        for job in self.jobs:
            if job is not first and (job.kind != first.kind or self.rows == 1):
                continue
            if chosen and count + job.rows > self.rows:
                break  # in order: none of its kind goes before it
            chosen.append(job)
            count += job.rows
        left = first.came + self.wait - now
        if count < self.rows and left > 1e-9:
            return Next(late=late, after=min(left, *(job.until - now for job in self.jobs)))
        taken = set(map(id, chosen))
        self.jobs = deque(job for job in self.jobs if id(job) not in taken)
        return Next(tuple(chosen), late)

    def soonest(self) -> float:
        """The earliest time by which a job must be answered."""
        return min((job.until for job in self.jobs), default=math.inf)
