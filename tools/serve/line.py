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
    kind: Any = field(init=False)  # properties that jobs which run together have in common
    firsts: Any = field(init=False)  # first axes: what `kind` lacks to tell all shapes

    def __post_init__(self) -> None:
        each = sorted(self.feeds.items()) if len(self.feeds) > 1 else [*self.feeds.items()]
        self.kind = (self.names, *((n, a.dtype, a.shape[1:]) for n, a in each))
        self.firsts = tuple([a.shape[:1] for _, a in each])
        self.rows = max((first[0] for first in self.firsts if first), default=1)


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
        jobs, late = self.jobs, list[Job]()
        if any(job.gone or job.until <= now for job in jobs):
            late += (job for job in jobs if not job.gone and job.until <= now)
            jobs = self.jobs = deque(job for job in jobs if not job.gone and job.until > now)
        if not jobs:
            return Next(late=tuple(late))
        if self.rows == 1:
            return Next((jobs.popleft(),), tuple(late))
        first, chosen, count = jobs[0], list[Job](), 0
        for job in jobs:
            if job.kind != first.kind:
                continue
            if chosen and count + job.rows > self.rows:
                break  # in order: none of its kind goes before it
            chosen.append(job)
            count += job.rows
        left = first.came + self.wait - now
        if count < self.rows and left > 1e-9:
            return Next(late=tuple(late), after=min(left, *(job.until - now for job in jobs)))
        taken = set(map(id, chosen))
        self.jobs = deque(job for job in jobs if id(job) not in taken)
        return Next(tuple(chosen), tuple(late))

    def soonest(self) -> float:
        """The earliest time by which a job must be answered."""
        return min((job.until for job in self.jobs), default=math.inf)
