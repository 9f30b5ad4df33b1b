"""A forecast of a job at other numbers of workers, from the parts of steps that a small one has measured.

What a rank does alone (it computes, it waits for a batch) is as long with any number of ranks, but a round waits for
the slowest: the mean of the largest of n draws from the steps that were measured. Bytes travel between hosts and
servers: what a server moves grows with the hosts that it serves. As much of that as was hidden behind computing stays
hidden.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from ..kvstore.watching import FOLDER
from ..ops.errors import InputError
from .job import PULLS, PUSHES, Interval, TracedJob, common, seconds_of, united
from .report import Report, Table, show, size

WALK = (8, 64, 512)  # numbers of workers
FIRST = 1  # steps of a trace that are left out: they plan, and fill caches
COLUMNS = ("workers", "hosts", "servers", "step ms", "of it network ms", "of it others ms", "efficiency %",
           "same servers %", "no overlap %", "one level %", "half the bytes %")  # fmt: skip


@dataclass(frozen=True, slots=True)
class MeasuredSteps:
    """Parts of the steps of a job. `alone`: seconds of each step of each rank without the others and without
    the network. `network`: mean seconds of a step in which bytes moved; `exposed`: those that a step took beyond what
    the slowest of its ranks did alone."""

    workers: int
    hosts: int
    servers: int
    alone: Sequence[float]
    network: float
    exposed: float
    nbytes: float  # of a step and worker between hosts

    @classmethod
    def of(cls, job: TracedJob, servers: int) -> MeasuredSteps:
        """The parts of a traced job with so many servers. Raises InputError for one without two steps of each worker,
        or whose workers do not go by rounds."""
        if job.missing or not job.rounds:
            why = "its workers do not wait for each other in rounds, or some have left no trace"
            raise InputError(why, where="a dry run")
        short = [one.name for one in job.workers if len(one.steps) <= FIRST]
        if short:
            raise InputError(
                f"{', '.join(short)} told of no more than {FIRST} step",
                where="a dry run",
                hint="a Trainer tells of each of its steps; loops of your own do it by kv.stepped(loss)",
            )
        alone, network, whole = list[float](), 0.0, 0.0
        for i, one in enumerate(job.workers):
            moving = _moving(job, i)
            for step in one.steps[FIRST:]:
                parts = job.parts(i, step.began, step.ended)
                alone.append(parts["compute"] + parts["data"])
                whole += step.ended - step.began
                network += seconds_of(common(moving, [(step.began, step.ended)]))
        about, count = [one.about for one in job.workers], len(alone)
        hosts, between = len({each["host"] for each in about}), sum(each["between"] for each in about)
        nbytes = between / sum(len(one.steps) + 1 for one in job.workers)  # the first step begins the count
        measured = cls(len(about), hosts, servers, sorted(alone), network / count, 0.0, nbytes)
        exposed = max(0.0, whole / count - measured.slowest(measured.workers))
        return replace(measured, network=max(measured.network, exposed), exposed=exposed)

    def slowest(self, ranks: int) -> float:
        """The mean of the slowest of so many ranks.

        >>> MeasuredSteps(2, 1, 0, [1.0, 2.0], 0, 0, 0).slowest(2)
        1.75
        """
        n = len(self.alone)
        return sum(x * (((i + 1) / n) ** ranks - (i / n) ** ranks) for i, x in enumerate(self.alone))

    def travels(self, hosts: float, servers: float, share: float = 1.0) -> float:
        """Seconds in which bytes move, where each server serves so many hosts and values have this share of bytes."""
        if not self.servers or not servers:
            return self.network
        load = max(1.0, hosts / servers) / max(1.0, self.hosts / self.servers)
        return self.network * load * share

    def step(
        self, ranks: int, hosts: float, servers: float, share: float = 1.0, overlap: bool = True
    ) -> tuple[float, float]:
        """Expected seconds of a step of so many ranks, and of the network in it."""
        moves = self.travels(hosts, servers, share)
        hidden = (self.network - self.exposed) if overlap else 0.0
        exposed = max(0.0, moves - hidden)
        return self.slowest(ranks) + exposed, exposed

    @property
    def rate(self) -> float:
        """Bytes by the second of a worker's share of what goes between hosts, both ways; 0 where none does."""
        return self.nbytes / self.network if self.network else 0.0


def _moving(job: TracedJob, i: int) -> list[Interval]:
    """Times at which bytes of a worker moved: its operations, from when the last worker has begun the round."""
    number: dict[str, int] = {}
    intervals = list[Interval]()
    for o in sorted(job.workers[i].operations, key=lambda o: o.began):
        number[o.key] = number.get(o.key, 0) + (o.verb in PUSHES)
        rounds, at = job.last.get(o.key, ()), number[o.key] - 1
        began = max(o.began, rounds[at][0]) if o.verb in PULLS and 0 <= at < len(rounds) else o.began
        if began < o.ended:
            intervals.append((began, o.ended))
    return united(intervals)


def forecast(measured: MeasuredSteps, walk: Iterable[int] = WALK) -> Table:
    """Table of steps of more workers, with as many of them on each host, and hosts on each server, as were measured.

    Efficiency is what a rank does alone as a share of the step. Beside it, what it would be with the servers that were
    measured; where nothing is hidden behind computing; where each worker speaks for itself (`one level`); and where
    values travel in half the bytes."""
    m = measured
    mean = sum(m.alone) / len(m.alone)
    rows = list[tuple[object, ...]]()
    for ranks in sorted({m.workers, *(n for n in walk if n > m.workers)}):
        hosts = max(m.hosts, -(-ranks * m.hosts // m.workers))
        servers = -(-hosts * m.servers // m.hosts)
        seconds, network = m.step(ranks, hosts, servers)
        others = m.slowest(ranks) - mean
        other = (
            m.step(ranks, hosts, m.servers),
            m.step(ranks, hosts, servers, overlap=False),
            m.step(ranks, ranks, servers),
            m.step(ranks, hosts, servers, 0.5),
        )
        shares = (100 * mean / each for each, _ in ((seconds, network), *other))
        times = (f"{1e3 * each:.2f}" for each in (seconds, network, others))
        rows.append((ranks, hosts, servers, *times, *(f"{share:.1f}" for share in shares)))
    return Table("Expected steps of more workers (a model)", COLUMNS, rows)


@contextmanager
def dry_run(variables: MutableMapping[str, str], servers: int) -> Iterator[Callable[[int], int]]:
    """A dry run, whose workers leave traces in the folder that `variables` name, or in one that is gone afterwards.
    Gives what to call with the job's exit code: where that is 0, it prints the parts of steps and the forecast."""
    with TemporaryDirectory() as folder:
        variables.setdefault(FOLDER, folder)

        def ended(code: int) -> int:
            if code == 0:
                job = TracedJob.read(Path(variables[FOLDER]))
                measured = MeasuredSteps.of(job, servers)
                facts = {"servers": servers, "between hosts": f"{size(int(measured.nbytes))} for each worker and step"}
                if measured.rate:
                    facts["rate"] = f"{size(int(measured.rate))} by the second of each worker"
                parts = job.report()
                tables = [*parts.tables[:1], forecast(measured)]
                show(Report("A dry run", {**parts.facts, **facts}, tables), as_json=False, width=160)
            return code

        yield ended
