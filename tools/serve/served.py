"""One version of a model that answers: its session, the line before it, and the threads that run it."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any, Final

import numpy as np

from ...ops import DType, Tensor
from ...ops.dataclasses import dataclass
from ...ops.errors import BudgetError, Cancelled, DeadlineError, InputError, MezzoError, OutOfRange
from ...ops.types import Array
from ...runtime.compile.program import Program
from ...runtime.execution.session import Session
from ..feeds import parse_sizes
from ..fills import first_that_runs
from ..load import load
from .line import Job, Line
from .metrics import Metrics
from .protocol import Inquiry, tensors
from .rows import ROWS, leaking
from .threads import Threads

LONG: Final = 0.05  # seconds of a run from which on it can be ended by whoever asked for it
# Seconds of a run up to which it is made on the thread of the event loop. To hand a run to another thread and its
# results back takes about a hundred microseconds, and more where the loop is busy: both want Python's lock.
BRIEF: Final = 0.0002
KINDS: Final = 1000  # of runs whose time is remembered
ALIKE: Final = 1e-3  # how far a row's answer may be apart alone and beside another, of the largest magnitude


@dataclass(frozen=True, slots=True)
class Serving:
    """Serving of each version: rows that may run together and the seconds that they wait for each other, runs at once,
    requests in line, and what `mz.load` takes."""

    rows: int = 1
    wait: float = 0.0
    instances: int = 1
    line: int = 1000
    device: str = "cpu"
    precision: str = "auto"
    threads: int | None = None
    max_memory: int | None = None
    dims: tuple[str, ...] = ()


class Overloaded(MezzoError):
    """There is no room for one more request now; `after` is in how many seconds there should be."""

    def __init__(self, message: str, after: int) -> None:
        super().__init__(message, where="server", hint=f"try again in {after} s")
        self.after = after


class Served:
    """A loaded and warm version. Made on any thread; all other calls come from the thread of the event loop, where
    brief runs are made as well, if shapes tell their time. The others are made on threads, and so is the first of each
    kind, which may be planned.

    Raises as mz.load does, and InputError for a model whose tensors cannot be sent, or whose rows cannot run together.
    """

    def __init__(self, name: str, version: str, path: Path, settings: Serving, metrics: Metrics) -> None:
        self.name, self.version, self.settings, self.metrics = name, version, settings, metrics
        self.labels = {"model": name, "version": version}
        self.session: Session = load(
            path, device=settings.device, precision=settings.precision, threads=settings.threads,
            max_memory=settings.max_memory, instances=settings.instances,
        )  # fmt: skip
        self._sizes = sizes(settings.rows) if settings.rows > 1 else ()
        self.ports = self.session.inputs, self.session.outputs
        self.inputs, self.outputs = map(tensors, self.ports)
        self.warm = self._warmed(self._batchable() if settings.rows > 1 else None)
        self._by_shapes = timed_by_shapes(self.session.program)
        self.line = Line(settings.rows, settings.wait)
        self.running, self.seconds = 0, 0.0
        self.took: dict[Any, float] = {}  # seconds of a run, by what ran
        self.users = 0  # requests that may still come into the line
        self.closed = False
        self._timer: asyncio.TimerHandle | None = None
        self._gathering = False
        self._threads = Threads(settings.instances, f"mezzo {name}")

    # -- before the first request -----------------------------------------------------------------------------------

    def _batchable(self) -> str:
        """The open dim in front of all inputs and outputs, and nowhere else in inputs; InputError otherwise."""
        dims = [list(p.type.dims or ()) if isinstance(p.type, Tensor) else [] for p in self.session.inputs]
        ends = [(p.type.dims or (0,))[0] if isinstance(p.type, Tensor) else 0 for p in self.session.outputs]
        first, more = {d[0] if d else None for d in dims}, {n for d in dims for n in d[1:]}
        row = next(iter(first), None)
        if len(first) != 1 or not isinstance(row, str) or row in more or any(type(d) is int for d in ends):
            ports = ", ".join(map(str, (*self.session.inputs, *self.session.outputs)))
            hint = "serve it with --batch 1, or export it with an open dim in front"
            raise InputError(f"requests cannot run together: {ports}", where=self.name, hint=hint)
        return row

    def _warmed(self, row: str | None) -> str:
        """Run each size that runs together once; the sizes that were chosen for open dims. Raises InputError where a
        row's answer depends on the rows beside it."""
        given = parse_sizes(self.settings.dims)
        if row is None:
            return first_that_runs(self.session, given, 0, lambda f: (self.session.run(f), f)[1])[0]
        given[row] = str(ROWS)
        chosen, (feeds, whole) = first_that_runs(self.session, given, 0, lambda f: (f, self.session.run(f)))
        ones = [{n: a[i : i + 1] for n, a in feeds.items()} for i in range(ROWS)]
        alone = [self.session.run(one) for one in ones]
        uneven = next((n for n, w in whole.items() if any(np.shape(a[n])[:1] != (1,) for a in alone)), None)
        for name, together in whole.items():
            if uneven == name or len(together) != ROWS:
                raise self._refused(f"output {name!r} has not one row for each row of the inputs")
            rows = np.concatenate([a[name] for a in alone])
            if rows.shape != together.shape or not _alike(rows, together):
                raise self._refused(f"output {name!r} of a row depends on the rows beside it")
        leaks = leaking(self.session.graph, feeds)
        if leaks is not None:
            raise self._refused(f"output {leaks!r} of a row depends on the rows beside it")
        for size in self._sizes:
            self.session.run({n: np.concatenate([a] * size) for n, a in ones[0].items()})
        return chosen

    def _refused(self, why: str) -> InputError:
        return InputError(why, where=self.name, hint="serve it with --batch 1")

    # -- requests ---------------------------------------------------------------------------------------------------

    def submit(self, asked: Inquiry, deadline: float | None) -> Job:
        """A request in line. Its ticket is a future of the results, DeadlineError, Cancelled (never to be told: whoever
        waits has gone), or what Session.run raises; where the run is brief, it is done now, or one turn of the loop
        later. Raises Overloaded where the line is full, and InputError."""
        if len(self.line) >= self.settings.line:
            raise Overloaded(f"{len(self.line)} requests wait for {self.name}", self.patience())
        if self.settings.rows > 1:
            counts = {a.shape[0] if a.ndim else None for a in asked.feeds.values()}
            if len(counts) > 1 or None in counts:
                raise InputError(f"inputs have {counts} rows", where="request", hint="give each the same number")
        limit = min(asked.seconds or math.inf, deadline or math.inf)
        now = monotonic()
        names = None if asked.wanted is None else tuple(asked.wanted)
        job = Job(asked.feeds, names, now, now + limit)
        job.ticket = asyncio.get_running_loop().create_future()
        self.line.add(job)
        if self.settings.rows == 1:
            self._pump()
        elif not self._gathering:  # what comes in this turn of the loop may run with it
            self._gathering = True
            asyncio.get_running_loop().call_soon(self._gathered)
        return job

    def patience(self) -> int:
        """Seconds after which the line should be gone, 1 to 60."""
        batches = math.ceil((len(self.line) + 1) / self.settings.rows) / self.settings.instances
        return min(60, max(1, math.ceil(batches * self.seconds)))

    def _gathered(self) -> None:
        self._gathering = False
        self._pump()

    def _pump(self) -> None:
        """Begin what may begin now."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        loop, now, after = asyncio.get_running_loop(), monotonic(), math.inf
        while self.running < self.settings.instances:
            following = self.line.take(now)
            self._late(following.late)
            if not following.jobs:
                after = following.after
                break
            self._begin(following.jobs, now, loop)
        else:
            after = self.line.soonest() - now
        if after < math.inf:
            self._timer = loop.call_later(max(0.0, after), self._look)
        self.metrics.waiting.set(len(self.line), **self.labels)

    def _begin(self, jobs: tuple[Job, ...], now: float, loop: asyncio.AbstractEventLoop) -> None:
        """Run these jobs: here where that is brief, on a thread otherwise."""
        for job in jobs:
            job.began = now
            self.metrics.waited.see(now - job.came, **self.labels)
        if self.settings.rows > 1:
            self.metrics.rows.see(sum(job.rows for job in jobs), **self.labels)
        if self._by_shapes and self.took.get(self._ran(jobs), math.inf) <= BRIEF:
            self._told(jobs, *self._run(jobs, math.inf, None))
            return
        self.running += 1
        cancel = threading.Event() if self.seconds > LONG else None
        for job in jobs:
            if cancel is not None:
                job.ticket.add_done_callback(lambda _: self._forsaken(jobs, cancel))
            if job.until < math.inf:  # those that run with it may have longer
                timer = loop.call_later(max(0.0, job.until - now), self._told_late, job)
                job.ticket.add_done_callback(lambda _, timer=timer: timer.cancel())
        until = max(job.until for job in jobs)
        running = loop.run_in_executor(self._threads, self._run, jobs, until, cancel)
        running.add_done_callback(partial(self._done, jobs))

    def _look(self) -> None:
        """Tell those that are late, if no run is free for others."""
        self._timer = None
        if self.running >= self.settings.instances:
            now = monotonic()
            self._late(tuple(job for job in self.line.jobs if job.until <= now))
        self._pump()

    def _late(self, jobs: tuple[Job, ...]) -> None:
        for job in jobs:
            job.gone = True
            job.until = math.inf
            self._told_late(job)

    def _told_late(self, job: Job) -> None:
        if not job.ticket.done():
            job.ticket.set_exception(DeadlineError("the request was not answered by its deadline", where=self.name))

    @staticmethod
    def _forsaken(jobs: tuple[Job, ...], cancel: threading.Event) -> None:
        """End a run that nobody waits for any more."""
        if all(job.ticket.done() for job in jobs):
            cancel.set()

    def _padded(self, jobs: tuple[Job, ...]) -> int:
        """The number of rows that these run as."""
        count = sum(job.rows for job in jobs)
        return next((s for s in self._sizes if s >= count), count)

    def _ran(self, jobs: tuple[Job, ...]) -> Any:
        """Properties that runs of the same time have in common."""
        return jobs[0].kind, jobs[0].firsts if self.settings.rows == 1 else self._padded(jobs)

    def _run(self, jobs: tuple[Job, ...], until: float, cancel: threading.Event | None) -> tuple[list[Any], float]:
        """Answers to the jobs, results or an error, and the seconds that they took (inf: no run ended)."""
        began = monotonic()
        deadline = None if until == math.inf else max(0.0, until - began)
        try:
            answers = self._together(jobs, deadline, cancel)
            return answers, monotonic() - began
        except MezzoError as error:
            if len(jobs) == 1 or isinstance(error, DeadlineError | Cancelled):
                return [error] * len(jobs), math.inf
        except Exception as error:  # ours, and told as such
            return [error] * len(jobs), math.inf
        # one of them is at fault: each has its own answer
        return [self._run((job,), until, cancel)[0][0] for job in jobs], math.inf

    def _together(self, jobs: tuple[Job, ...], deadline: float | None, cancel: threading.Event | None) -> list[Any]:
        names, padded = jobs[0].names, self._padded(jobs)
        alone = len(jobs) == 1 and padded == jobs[0].rows
        feeds = jobs[0].feeds if alone else _stacked(jobs, padded - sum(job.rows for job in jobs))
        if deadline is None and cancel is None:
            results = self.session.run(feeds, names=names)
        else:
            results = self.session.run(feeds, names=names, deadline=deadline, cancel=cancel)
        if alone:
            return [results]
        answers, at = list[Any](), 0
        for job in jobs:
            answers.append({n: r[at : at + job.rows] for n, r in results.items()})
            at += job.rows
        return answers

    def _done(self, jobs: tuple[Job, ...], done: asyncio.Future[tuple[list[Any], float]]) -> None:
        self.running -= 1
        self._told(jobs, *done.result())
        self._pump()
        self._end()

    def _told(self, jobs: tuple[Job, ...], answers: list[Any], took: float) -> None:
        """Tell each job its answer, and remember how long a run took. A shorter time counts at once; a longer one may
        be that of whoever took the processor, and counts as twice the former at most."""
        if took < math.inf:
            if len(self.took) >= KINDS:
                self.took.clear()
            ran = self._ran(jobs)
            self.took[ran] = min(took, 2 * self.took.get(ran, took))
        since = monotonic() - jobs[0].began
        self.seconds = since if not self.seconds else 0.9 * self.seconds + 0.1 * since
        for job, answer in zip(jobs, answers, strict=True):
            if job.ticket.done():
                continue
            if isinstance(answer, BaseException):
                job.ticket.set_exception(answer)
            else:
                job.ticket.set_result(answer)

    @contextmanager
    def used(self) -> Iterator[None]:
        """Keep the version as long as a request for it is under way."""
        self.users += 1
        try:
            yield
        finally:
            self.users -= 1
            self._end()

    def close(self) -> None:
        """Take no part any more: what is in line is answered, then the threads end."""
        self.closed = True
        self._end()

    def _end(self) -> None:
        if self.closed and not (self.users or self.running or len(self.line)):
            self._threads.shutdown(wait=False)


def timed_by_shapes(program: Program) -> bool:
    """Return True if the time of a run follows from the shapes of its inputs, so that one run tells how long the next
    takes: without loops and branches, sizes that values decide, and texts."""
    tensors = all(isinstance(t, Tensor) and t.dtype is not DType.STRING for t in program.types.values())
    return tensors and not program.dynamic and not any(step.bodies for step in program.steps)


def sizes(rows: int) -> tuple[int, ...]:
    """Numbers of rows that are planned: powers of two, and `rows`.

    >>> sizes(12)
    (1, 2, 4, 8, 12)
    """
    return (*(1 << i for i in range(rows.bit_length()) if 1 << i < rows), rows)


def _stacked(jobs: tuple[Job, ...], more: int) -> dict[str, Array]:
    """The rows of all jobs, and behind them the last row again, so often that a planned number is reached."""
    stacked = {}
    for name, array in jobs[-1].feeds.items():
        filler = [np.repeat(array[-1:], more, 0)] if more else []
        stacked[name] = np.concatenate([*(job.feeds[name] for job in jobs), *filler])
    return stacked


def _alike(one: Array, other: Array) -> bool:
    if one.dtype.kind in "OUSb":
        return bool((one == other).all())
    a, b = one.astype(np.float64), other.astype(np.float64)
    largest = np.max(np.abs(a), initial=0, where=np.isfinite(a))
    return bool(np.allclose(a, b, rtol=0, atol=ALIKE * max(float(largest), 1e-12), equal_nan=True))


def refusal(error: BaseException) -> tuple[int, Mapping[str, str]]:
    """The status code of an error, and headers that go with it."""
    match error:
        case Overloaded():
            return 503, {"retry-after": str(error.after)}
        case DeadlineError():
            return 504, {}
        case BudgetError():
            return 413, {}
        case InputError() | OutOfRange():
            return 400, {}
        case MezzoError() if type(error).__name__ == "ShapeError":
            return 400, {}
        case _:
            return 500, {}
