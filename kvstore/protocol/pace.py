"""The pace of a job: what a step of each rank is made of, and which rank holds the others up, and by what.

Every worker reports sums since its first step: seconds in all, those in which it waited for data, those in which it
waited for the store, and of these the ones in which it waited for workers of its host that had not begun. A server
reports for how long it has kept the pushes of a rank complete, for want of others. All are lengths of time on one
clock each, so that no clocks need to agree: what a worker has waited for the store and nobody has kept it waiting is
what moving bytes takes, and what is left of a step is computation.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, isfinite
from statistics import median

CAUSES = ("compute", "data", "network")  # that are a rank's own
PARTS = (*CAUSES, "others")
EVERY = 1.0  # seconds between reports of a process
KEPT = 6  # reports of a process, which a window spans
SHARE, LEAST = 0.25, 0.002  # more of a step than the others take, and seconds: what is less is no straggler
PATIENCE = 3.0  # seconds for which a rank has to be slow by one cause before that is told
HELD = "held "  # before the rank at level 2, in what a server reports
RATES = ("inside", "between")  # reports of bytes, which are shown by the second

Counts = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Split:
    """The mean step of a rank in the last seconds, in seconds: `compute`, `data` (waiting for a batch), `network`
    (bytes that move, within the host, too) and `others` (waiting for ranks that come later). `steps` counts all since
    the first, `rate` is steps by the second, `loss` the last that was told."""

    rank: int
    steps: int
    rate: float
    compute: float
    data: float
    network: float
    others: float
    loss: float | None = None

    @property
    def own(self) -> float:
        """Seconds of a step in which it does not wait for others."""
        return self.compute + self.data + self.network

    def counts(self) -> dict[str, float]:
        """The numbers by name, as they travel."""
        made = {"steps": float(self.steps), "rate": self.rate, **{part: getattr(self, part) for part in PARTS}}
        return made if self.loss is None else {**made, "loss": self.loss}

    @classmethod
    def of(cls, rank: int, counts: Counts) -> Split | None:
        """The split that `counts` told of; None of a rank that has told of no step."""
        if not {"steps", "rate", *PARTS} <= counts.keys() or not isfinite(counts["steps"]):
            return None
        parts = {part: counts[part] for part in PARTS}
        return cls(rank, int(counts["steps"]), counts["rate"], **parts, loss=counts.get("loss"))


@dataclass(frozen=True, slots=True)
class Straggler:
    """The rank for which the others wait: `seconds` more of a step than the median of the others, most by `cause`,
    whose part is `by` seconds longer."""

    rank: int
    cause: str
    seconds: float
    by: float

    def __str__(self) -> str:
        return (
            f"rank {self.rank} is slow: {self.seconds:.3g} s of a step more than the others, "
            f"most of it {SAID[self.cause]} ({self.by:.3g} s)"
        )


SAID = {"compute": "computing", "data": "waiting for data", "network": "on the network"}


def straggler(splits: Iterable[Split]) -> Straggler | None:
    """The slowest rank, where it is clearly slower than the others.

    >>> fast, slow = (Split(r, 9, 10.0, 0.01, wait, 0.001, 0.089 - wait) for r, wait in enumerate((0.0, 0.08)))
    >>> print(straggler([fast, slow]))
    rank 1 is slow: 0.08 s of a step more than the others, most of it waiting for data (0.08 s)
    >>> straggler([fast]) is None
    True
    """
    all_ = list(splits)
    if len(all_) < 2:
        return None
    slow = max(all_, key=lambda split: split.own)
    rest = [split for split in all_ if split is not slow]
    usual = median(split.own for split in rest)
    longer = slow.own - usual
    if longer < max(LEAST, SHARE * usual):
        return None
    more = {cause: getattr(slow, cause) - median(getattr(split, cause) for split in rest) for cause in CAUSES}
    cause = max(more, key=lambda name: more[name])
    return Straggler(slow.rank, cause, longer, more[cause])


@dataclass(slots=True)
class History:
    """The last reports of a process, with the times at which they came."""

    reports: deque[tuple[float, Counts]] = field(default_factory=lambda: deque[tuple[float, Counts]](maxlen=KEPT))

    def add(self, now: float, counts: Counts) -> None:
        if self.reports and counts.get("steps", 0) < self.reports[-1][1].get("steps", 0):
            self.reports.clear()  # it began again
        self.reports.append((now, counts))

    @property
    def window(self) -> tuple[tuple[float, Counts], tuple[float, Counts]] | None:
        """The first and the last report that are kept."""
        return (self.reports[0], self.reports[-1]) if len(self.reports) > 1 else None

    def at(self, now: float, name: str) -> float:
        """A sum at a time, in a straight line between reports."""
        before = after = (0.0, 0.0)
        for i, (time, counts) in enumerate(self.reports):
            before, after = after if i else (time, counts.get(name, 0.0)), (time, counts.get(name, 0.0))
            if time >= now:
                break
        (t0, v0), (t1, v1) = before, after
        return v1 if t1 <= t0 or now >= t1 else v0 if now <= t0 else v0 + (v1 - v0) * (now - t0) / (t1 - t0)

    def rates(self) -> dict[str, float]:
        """Bytes by the second of what moves."""
        if self.window is None:
            return {}
        (begin, first), (end, last) = self.window
        return {n: (last[n] - first.get(n, 0.0)) / (end - begin) for n in RATES if n in last and end > begin}


def split_of(rank: int, history: History, servers: Sequence[History], speaker: int) -> Split | None:
    """The split of a worker whose pushes servers know as those of `speaker`; None before it has told of two reports
    with steps between them."""
    if history.window is None:
        return None
    (begin, first), (end, last) = history.window
    passed: Callable[[str], float] = lambda name: last.get(name, 0.0) - first.get(name, 0.0)  # noqa: E731
    steps, seconds, waited, here, data = map(passed, ("steps", "seconds", "waited", "here", "data"))
    if not (
        steps >= 1 and seconds > 0 and all(map(isfinite, (steps, seconds, waited, here, data, last.get("steps", inf))))
    ):
        return None
    name = f"{HELD}{speaker}"
    held = max((server.at(end, name) - server.at(begin, name) for server in servers), default=0.0)
    others = min(waited, here + min(held if isfinite(held) else 0.0, waited - here))
    return Split(
        rank,
        int(last["steps"]),
        steps / seconds,
        compute=max(0.0, seconds - data - waited) / steps,
        data=data / steps,
        network=(waited - others) / steps,
        others=others / steps,
        loss=last.get("loss"),
    )
