"""A job that has ended, as the traces of its workers tell it: what their steps were made of, and who waited for whom.

A trace (`kvstore/watching.py`) has the operations of a worker's store, the times at which it waited for them, and its
steps; the clocks of all began together. Rounds are counted by key: the n-th push of a key is of one round on all
workers, and who waits in it before the last of them has begun waits for that one. What is left of its waits are bytes
that move.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import Any

from ..kvstore.protocol.pace import PARTS
from ..kvstore.watching import QUANTILES, TRACE, Timing
from ..ops.errors import InputError
from .report import Report, Table, size

MOST_KEYS = 20  # of the slowest, which are shown
PUSHES, PULLS = ("push", "pushpull", "barrier"), ("pushpull", "pull", "barrier")  # begin a round; wait for its end
ABOUT = ("rank", "workers", "kind", "host", "inside", "between", "rounds", "cut")  # what a trace says of its worker
Interval = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Operation:
    """A verb on a key, in seconds of the clock of all workers."""

    verb: str
    key: str
    began: float
    ended: float
    nbytes: int


@dataclass(frozen=True, slots=True)
class WorkerStep:
    """A step of a worker."""

    began: float
    ended: float
    data: float  # seconds in which it waited for its batch
    loss: float | None


@dataclass(frozen=True, slots=True)
class Traced:
    """The trace of one worker."""

    about: Mapping[str, Any]
    operations: Sequence[Operation]
    waits: Sequence[Interval]
    steps: Sequence[WorkerStep]

    @property
    def rank(self) -> int:
        return int(self.about["rank"])

    @property
    def name(self) -> str:
        return f"worker {self.rank}"


def traced(path: Path) -> Traced:
    """The trace in a file. Raises InputError for what is none."""
    try:
        content = json.loads(path.read_bytes())
        about = {name: content["otherData"][name] for name in ABOUT}
        operations, waits, steps = list[Operation](), list[Interval](), list[WorkerStep]()
        for event in content["traceEvents"]:
            if event["ph"] != "X":
                continue
            began, more = event["ts"] / 1e6, event.get("args", {})
            ended = began + event["dur"] / 1e6
            match event["cat"]:
                case "kv":
                    operations.append(Operation(more["verb"], more["key"], began, ended, more["bytes"]))
                case "wait":
                    waits.append((began, ended))
                case "step":
                    steps.append(WorkerStep(began, ended, more["data"], more.get("loss")))
        if not isinstance(about["rank"], int) or not isinstance(about["workers"], int):
            raise ValueError("it has no rank")
        return Traced(about, operations, united(waits), steps)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"this is no trace of a worker: {type(error).__name__}: {error}",
            where=str(path),
            hint="`mezzo launch --trace FOLDER` has each worker write one when it closes its store",
        ) from error


# -- intervals --------------------------------------------------------------------------------------------------------


def united(intervals: Sequence[Interval]) -> list[Interval]:
    """Intervals in order, those that touch as one.

    >>> united([(3, 4), (0, 2), (1, 2.5)])
    [(0, 2.5), (3, 4)]
    """
    merged: list[Interval] = []
    for low, high in sorted(intervals):
        if merged and low <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], high)
        elif high > low:
            merged.append((low, high))
    return merged


def common(first: Sequence[Interval], second: Sequence[Interval]) -> list[Interval]:
    """The times in both of two united lists.

    >>> common([(0, 2), (3, 5)], [(1, 4)])
    [(1, 2), (3, 4)]
    """
    overlaps, i, j = list[Interval](), 0, 0
    while i < len(first) and j < len(second):
        low, high = max(first[i][0], second[j][0]), min(first[i][1], second[j][1])
        if low < high:
            overlaps.append((low, high))
        if first[i][1] < second[j][1]:
            i += 1
        else:
            j += 1
    return overlaps


def between(intervals: Sequence[Interval], low: float, high: float) -> Sequence[Interval]:
    """Those of a united list that touch these times."""
    first = bisect_right(intervals, low, key=lambda each: each[1])
    return intervals[first : bisect_right(intervals, high, key=lambda each: each[0])]


def seconds_of(intervals: Sequence[Interval]) -> float:
    return sum(high - low for low, high in intervals)


# -- the job ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TracedJob:
    """The traces of all workers, in the order of ranks."""

    workers: Sequence[Traced]
    missing: Sequence[int] = field(default=())  # ranks that have written none

    @staticmethod
    def read(folder: Path) -> TracedJob:
        """The job whose workers have written their traces into a folder. Raises InputError."""
        workers = sorted((traced(path) for path in folder.glob(TRACE.format("*"))), key=lambda one: one.rank)
        if not workers:
            raise InputError(
                "there are no traces", where=str(folder),
                hint="`mezzo launch --trace FOLDER`, or MEZZO_KV_TRACE=FOLDER where another launcher begins the job; "
                "workers write when they close their stores (with ... as kv)",
            )  # fmt: skip
        ranks = [one.rank for one in workers]
        if len({*ranks}) < len(ranks) or len({one.about["workers"] for one in workers}) > 1:
            raise InputError("these are traces of several jobs", where=str(folder), hint="one folder for each")
        return TracedJob(workers, [rank for rank in range(workers[0].about["workers"]) if rank not in ranks])

    @property
    def rounds(self) -> bool:
        """True if the workers wait for each other in rounds: their stores are sequential."""
        return all(one.about["rounds"] for one in self.workers)

    @cached_property
    def end(self) -> float:
        """Seconds from the beginning to the end of the last event."""
        ends = (e for one in self.workers for e in (*(s.ended for s in one.steps), *(o.ended for o in one.operations)))
        return max(ends, default=0.0)

    @cached_property
    def begin(self) -> float:
        """Seconds from the beginning to the first step, or to the first operation where there are no steps."""
        return min((s.began for one in self.workers for s in one.steps), default=0.0)

    @cached_property
    def last(self) -> Mapping[str, Sequence[tuple[float, int]]]:
        """For each key and round when the last worker began it, and which one that was; rounds that all have begun."""
        begun: dict[str, list[list[float]]] = {}
        for i, one in enumerate(self.workers):
            for o in sorted(one.operations, key=lambda o: o.began):
                if o.verb in PUSHES:
                    begun.setdefault(o.key, [[] for _ in self.workers])[i].append(o.began)
        return {
            key: [max((began, i) for i, began in enumerate(each)) for each in zip(*times, strict=False)]
            for key, times in begun.items()
        }

    @cached_property
    def blamed(self) -> Sequence[Mapping[int, list[Interval]]]:
        """For each worker when it did nothing but wait for another one that had not begun, by its place in the list."""
        blame = []
        for i, one in enumerate(self.workers if self.rounds and not self.missing else ()):
            waiting, number = defaultdict[int, list[Interval]](list), Counter[str]()
            for o in sorted(one.operations, key=lambda o: o.began):
                number[o.key] += o.verb in PUSHES
                rounds, at = self.last.get(o.key, ()), number[o.key] - 1
                if o.verb in PULLS and 0 <= at < len(rounds):
                    latest, who = rounds[at]
                    if who != i and latest > o.began:
                        waiting[who].append((o.began, min(latest, o.ended)))
            blame.append({who: common(united(times), one.waits) for who, times in waiting.items()})
        return blame or [{} for _ in self.workers]

    @cached_property
    def others(self) -> Sequence[list[Interval]]:
        """For each worker when it waited for others."""
        return [united([t for times in by.values() for t in times]) for by in self.blamed]

    def parts(self, i: int, low: float = 0.0, high: float = float("inf")) -> dict[str, float]:
        """Seconds of each part of what a worker did between two times, as far as steps of it lie there."""
        one = self.workers[i]
        first = bisect_right(one.steps, low, key=lambda s: s.ended)
        steps = list(takewhile(lambda s: s.began < high, one.steps[first:]))
        inside = [(max(s.began, low), min(s.ended, high)) for s in steps]
        whole = seconds_of(inside)
        data = seconds_of(common([(s.began, s.began + s.data) for s in steps], [(low, high)]))
        inside = united(inside)
        waited = seconds_of(common(between(one.waits, low, high), inside))
        others = seconds_of(common(between(self.others[i], low, high), inside))
        return {"compute": max(0.0, whole - data - waited), "data": data, "network": waited - others, "others": others}

    def losses(self) -> list[float]:
        """The mean loss of each step that all workers tell of."""
        losses = [[s.loss for s in one.steps] for one in self.workers]
        return [sum(each) / len(each) for each in zip(*losses, strict=False) if None not in each]

    def timings(self) -> dict[tuple[str, str], tuple[Timing, int]]:
        """For each verb and key the times of all workers, and the rank of the one whose were longest together."""
        timings: dict[tuple[str, str], Timing] = defaultdict(Timing)
        by_rank: dict[tuple[str, str], dict[int, float]] = defaultdict(lambda: defaultdict(float))
        for one in self.workers:
            for o in one.operations:
                timings[o.verb, o.key].add(o.ended - o.began, o.nbytes)
                by_rank[o.verb, o.key][one.rank] += o.ended - o.began
        return {name: (timing, max(by_rank[name], key=lambda r: by_rank[name][r])) for name, timing in timings.items()}

    def report(self) -> Report:
        """The job as facts and tables."""
        facts: dict[str, Any] = {
            "kind": self.workers[0].about["kind"], "workers": self.workers[0].about["workers"],
            "hosts": len({one.about["host"] for one in self.workers}), "seconds": round(self.end, 3),
        }  # fmt: skip
        if self.missing:
            facts["no trace of"] = f"workers {', '.join(map(str, self.missing))}; nobody knows who waited for whom"
        elif not self.rounds:
            facts["rounds"] = "none: workers of a store of this consistency do not wait for each other"
        if cut := [one.name for one in self.workers if one.about["cut"]]:
            facts["cut"] = f"the traces of {', '.join(cut)} end early: they hold no more events"
        if losses := self.losses():
            facts["loss"] = f"{losses[0]:.4g} in the first step, {losses[-1]:.4g} in the last of {len(losses)}"
        return Report("A job", facts, [t for t in (self._of_workers(), self._of_waits(), self._of_keys()) if t.rows])

    def _of_workers(self) -> Table:
        rows = []
        for i, one in enumerate(self.workers):
            count = max(len(one.steps), 1)
            parts = self.parts(i)
            mean = [f"{1e3 * parts[part] / count:.2f}" for part in PARTS]
            whole = f"{1e3 * sum(parts.values()) / count:.2f}"
            moved = [size(int(one.about[level])) for level in ("inside", "between")]
            rows.append((one.rank, one.about["host"], len(one.steps), whole, *mean, *moved))
        columns = (
            "rank",
            "host",
            "steps",
            "step ms",
            *(f"{part} ms" for part in PARTS),
            "within host",
            "between hosts",
        )
        return Table("What a step is made of", columns, rows)

    def _of_waits(self) -> Table:
        if not any(self.blamed):
            return Table("Who waited for whom", (), [])
        names = [one.name for one in self.workers]
        rows = []
        for name, by in zip(names, self.blamed, strict=True):
            times = [seconds_of(by.get(j, ())) for j in range(len(names))]
            rows.append((name, *(f"{t:.3f}" if t else "" for t in times)))
        return Table("Who waited for whom", ("seconds of", *(f"for {name}" for name in names)), rows)

    def _of_keys(self) -> Table:
        slowest = sorted(self.timings().items(), key=lambda item: -item[1][0].total)[:MOST_KEYS]
        rows = [
            (key or "(all)", verb, timing.count, size(timing.nbytes), *(f"{1e3 * t:.2f}" for t in timing.quantiles()),
             f"{1e3 * timing.most:.2f}", f"{timing.total:.3f}", rank)
            for (verb, key), (timing, rank) in slowest
        ]  # fmt: skip
        columns = ("key", "verb", "times", "bytes", *(f"p{100 * q:.0f} ms" for q in QUANTILES), "most ms", "seconds")
        return Table("The slowest keys", (*columns, "longest on rank"), rows)
