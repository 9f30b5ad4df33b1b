"""Looking on: how long the operations of a store take, as percentiles, lines of JSON, Prometheus text, and a trace.

`KVStore.watch` puts `WatchedBackend` between the verbs and the backend. Times are counted in buckets that are two
hundredths apart, so that percentiles are as near, a watch takes the same memory however long it lasts, and those of
several workers can be added. The traces of several workers have one clock: each begins where all passed a barrier.
"""

from __future__ import annotations

import json
import math
import os
import socket
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import product
from os import PathLike
from pathlib import Path
from threading import Lock
from typing import Any, Self, TextIO

from ..ops.errors import InputError
from ..ops.types import Array
from ..runtime.environment import switch
from ..runtime.files import replace_file
from .backend import Backend
from .local import OF_ONE
from .pace import Pace
from .protocol.pace import PARTS, Split
from .rows import Sum
from .ticket import Ticket

STEP = math.log(1.02)  # between buckets
ROUNDED = 2e-7  # seconds that the numbers of a trace may be off
MOST_EVENTS = 1 << 20  # of a trace: later ones are counted, and not kept
FOLDER, TRACE = "MEZZO_KV_TRACE", "trace-{}.json"  # of a job's traces, and their names by rank
QUANTILES = (0.5, 0.95, 0.99)


@dataclass(slots=True)
class Timing:
    """Times of one verb on one key, in seconds."""

    count: int = 0
    total: float = 0.0
    most: float = 0.0
    nbytes: int = 0  # of all values together
    buckets: Counter[int] = field(default_factory=Counter[int])

    def add(self, seconds: float, nbytes: int = 0) -> None:
        self.count += 1
        self.total += seconds
        self.most = max(self.most, seconds)
        self.nbytes += nbytes
        self.buckets[math.ceil(math.log(max(seconds, 1e-9)) / STEP)] += 1

    def percentile(self, share: float) -> float:
        """The time within which this share of the operations ended; 0 where there were none.

        >>> timing = Timing()
        >>> for millisecond in range(1, 101):
        ...     timing.add(millisecond / 1000)
        >>> [round(timing.percentile(share), 3) for share in (0.5, 0.95, 1)]
        [0.05, 0.097, 0.1]
        """
        left = math.ceil(share * self.count)
        for bucket in sorted(self.buckets):
            left -= self.buckets[bucket]
            if left <= 0:
                return min(math.exp(bucket * STEP), self.most)
        return 0.0

    def quantiles(self) -> list[float]:
        """The percentiles of `QUANTILES`."""
        return [self.percentile(share) for share in QUANTILES]

    def __str__(self) -> str:
        p50, p95, p99 = (1e3 * seconds for seconds in self.quantiles())
        return f"{self.count} x, p50 {p50:.3g} ms, p95 {p95:.3g} ms, p99 {p99:.3g} ms"


@dataclass(frozen=True, slots=True)
class Span:
    """An event of a trace: its kind ("kv", "wait" or "step"), the row that it is shown in, seconds since the clock of
    all workers began, and what else is known of it."""

    name: str
    kind: str
    row: str
    began: float
    took: float
    more: Mapping[str, Any]


class Watch:
    """Times and events of a store since `watch` was called: `timings` by verb and key, and those of a trace."""

    def __init__(self, backend: Backend, events: TextIO | None, traced: bool, *, rounds: bool) -> None:
        self.rank, self.backend, self._events, self._traced = backend.rank, backend, events, traced
        self._rounds = rounds  # the workers wait for each other in rounds
        self.timings: dict[tuple[str, str], Timing] = defaultdict(Timing)
        self.began = time.perf_counter()
        self._spans: list[Span] = []
        self._lock = Lock()  # operations end in threads of the engine, too

    @property
    def verbose(self) -> bool:
        return self._events is not None

    def ended(self, verb: str, key: str, began: float, nbytes: int, error: BaseException | None) -> None:
        """An operation has ended."""
        now = time.perf_counter()
        with self._lock:
            self.timings[verb, key].add(now - began, nbytes)
            self._keep(f"{verb} {key}", "kv", key, began, now, verb=verb, key=key, bytes=nbytes)
        self.tell(verb, key=key, ms=round(1e3 * (now - began), 4), bytes=nbytes, error=error)

    def waited(self, seconds: float) -> None:
        """The worker has waited for so long, until now, with nothing else to do."""
        if self._traced:
            now = time.perf_counter()
            with self._lock:
                self._keep("waits", "wait", "waits", now - seconds, now)

    def stepped(self, seconds: float, data: float, loss: float | None) -> None:
        """A step of so many seconds has ended, of which it waited for data for `data`."""
        if self._traced:
            now = time.perf_counter()
            more = {} if loss is None or not math.isfinite(loss) else {"loss": loss}
            with self._lock:
                self._keep("step", "step", "steps", now - seconds, now, data=round(data, 7), **more)

    def _keep(self, name: str, kind: str, row: str, began: float, ended: float, **more: Any) -> None:
        if self._traced and len(self._spans) < MOST_EVENTS:
            self._spans.append(Span(name, kind, row, began - self.began, ended - began, more))

    def tell(self, event: str, *, error: BaseException | None = None, **more: Any) -> None:
        """Write a line of JSON, if that is asked for."""
        if self._events is None:
            return
        said = {"time": round(time.time(), 6), "rank": self.rank, "event": event, **more}
        if error is not None:
            said["error"] = f"{type(error).__name__}: {error}"
        line = json.dumps(said) + "\n"
        with self._lock, suppress(OSError, ValueError):  # whoever read it may be gone, which ends no training
            self._events.write(line)  # as a whole, since operations end in several threads
            self._events.flush()

    def prometheus(self) -> str:
        """The counters as text in the format of Prometheus
        (https://prometheus.io/docs/instrumenting/exposition_formats/)."""
        lines = _metric("mezzo_kv_seconds", "summary", "Time of an operation, until its arrays are final.")
        with self._lock:
            for (verb, key), timing in sorted(self.timings.items()):
                labels = {"verb": verb, "key": key, "rank": self.rank}
                for share in QUANTILES:
                    quantile = {**labels, "quantile": share}
                    lines.append(_sample("mezzo_kv_seconds", quantile, timing.percentile(share)))
                lines.append(_sample("mezzo_kv_seconds_sum", labels, timing.total))
                lines.append(_sample("mezzo_kv_seconds_count", labels, timing.count))
            lines += _metric("mezzo_kv_value_bytes_total", "counter", "Bytes of the values of operations.")
            for (verb, key), timing in sorted(self.timings.items()):
                labels = {"verb": verb, "key": key, "rank": self.rank}
                lines.append(_sample("mezzo_kv_value_bytes_total", labels, timing.nbytes))
        stats, mine = self.backend.stats(), self._steps()
        lines += _metric("mezzo_kv_moved_bytes_total", "counter", "Bytes within the host, and between hosts.")
        for level, moved in (("inside", stats.inside), ("between", stats.between)):
            lines.append(_sample("mezzo_kv_moved_bytes_total", {"level": level, "rank": self.rank}, moved))
        lines += _metric("mezzo_kv_pulls_total", "counter", "Pulls by the number of steps that they were behind.")
        for steps, count in sorted(stats.staleness.items()):
            lines.append(_sample("mezzo_kv_pulls_total", {"behind": steps, "rank": self.rank}, count))
        lines += _metric("mezzo_kv_steps_total", "counter", "Steps of the training that were told of.")
        lines += [_sample("mezzo_kv_steps_total", {"rank": self.rank}, step.steps) for step in mine]
        lines += _metric("mezzo_kv_step_seconds", "gauge", "The mean step of the last seconds, by what it is made of.")
        for part, step in product(PARTS, mine):
            lines.append(_sample("mezzo_kv_step_seconds", {"part": part, "rank": self.rank}, getattr(step, part)))
        return "\n".join(lines) + "\n"

    def _steps(self) -> list[Split]:
        """Return what the steps of this worker are made of, as the scheduler knows; none where none was told of."""
        seen = {seen[1]: seen[4] for seen in self.backend.overview().members if seen[0] == "worker"}
        found = Split.of(self.rank, seen.get(self.rank, {}))
        return [] if found is None else [found]

    def write_prometheus(self, path: str | PathLike[str]) -> None:
        """Replace a file by that text, as node_exporter's collector of text files takes it."""
        replace_file(path, [self.prometheus().encode()])

    def write_trace(self, path: str | PathLike[str]) -> None:
        """Write what happened when as a trace that Chrome and Perfetto show. Raises InputError where the watch was not
        asked for one."""
        if not self._traced:
            raise InputError("this watch keeps no trace", where="write_trace", hint="kv.watch(trace=True)")
        with self._lock:
            spans = list(self._spans)
        events: list[dict[str, Any]] = [
            {"ph": "M", "name": "process_name", "pid": self.rank, "args": {"name": f"worker {self.rank}"}}
        ]
        rows: list[tuple[str, float]] = []  # of the picture: its name, and until when something happens there
        for span in sorted(spans, key=lambda span: span.began):
            free = (i for i, (name, end) in enumerate(rows) if name == span.row and end + ROUNDED <= span.began)
            row = next(free, len(rows))
            if row == len(rows):  # operations on a key may overlap, and those of one row must not
                rows.append((span.row, 0.0))
                named = {"ph": "M", "name": "thread_name", "pid": self.rank, "tid": row, "args": {"name": span.row}}
                events.append(named)
            rows[row] = span.row, span.began + span.took
            at = {"pid": self.rank, "tid": row, "ts": round(1e6 * span.began, 1), "dur": round(1e6 * span.took, 1)}
            events.append({"ph": "X", "name": span.name, "cat": span.kind, **at, "args": span.more})
        stats = self.backend.stats()
        about = {"rank": self.rank, "workers": self.backend.num_workers, "kind": self.backend.kind}
        about |= {"host": os.environ.get("MEZZO_HOST") or socket.gethostname()}
        about |= {"inside": stats.inside, "between": stats.between, "cut": len(spans) >= MOST_EVENTS}
        about |= {"rounds": self._rounds}
        replace_file(path, [json.dumps({"traceEvents": events, "otherData": about}).encode()])


def merge_traces(paths: Iterable[str | PathLike[str]], out: str | PathLike[str]) -> None:
    """One trace of those that the workers of a job have written. Raises InputError for a file that is none."""
    events = []
    for path in paths:
        try:
            events += json.loads(Path(path).read_bytes())["traceEvents"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(f"this is no trace: {error}", where=str(path)) from error
    replace_file(out, [json.dumps({"traceEvents": events}).encode()])


def _metric(name: str, kind: str, help: str) -> list[str]:
    return [f"# HELP {name} {help}", f"# TYPE {name} {kind}"]


def _sample(name: str, labels: Mapping[str, Any], value: float) -> str:
    said = ",".join(f'{label}="{_escaped(str(each))}"' for label, each in labels.items())
    return f"{name}{{{said}}} {value!r}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


class _TimedTicket:
    """The ticket of an operation whose end is told to a watch, once."""

    __slots__ = ("_ended", "_ticket")

    def __init__(self, ticket: Ticket, ended: Callable[[BaseException | None], None]) -> None:
        self._ticket, self._ended = ticket, ended

    def _end(self, error: BaseException | None) -> None:
        ended, self._ended = self._ended, _ignore
        ended(error)

    def wait(self) -> Array:
        try:
            found = self._ticket.wait()
        except BaseException as error:
            self._end(error)
            raise
        self._end(None)
        return found

    @property
    def late(self) -> float:
        return self._ticket.late

    def then(self, call: Callable[[BaseException | None], None]) -> None:
        def told(error: BaseException | None) -> None:
            self._end(error)
            call(error)

        self._ticket.then(told)


def _ignore(error: BaseException | None) -> None:
    pass


class WatchedBackend:
    """A backend whose operations are timed; everything else is that of the one below. Closing it writes the trace into
    the folder that is given, if one is."""

    def __init__(self, backend: Backend, watch: Watch, folder: str = "") -> None:
        self._backend, self.watch, self._folder = backend, watch, folder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def _timed(self, verb: str, key: str, arrays: Sequence[Array], start: Callable[[], Ticket]) -> Ticket:
        began, nbytes = time.perf_counter(), sum(array.nbytes for array in arrays)

        def ended(error: BaseException | None) -> None:
            self.watch.ended(verb, key, began, nbytes, error)

        try:
            return _TimedTicket(start(), ended)
        except BaseException as error:
            ended(error)
            raise

    def push(self, key: str, values: Sequence[Array], priority: int) -> Ticket:
        return self._timed("push", key, values, lambda: self._backend.push(key, values, priority))

    def pull(self, key: str, outs: Sequence[Array], priority: int) -> Ticket:
        return self._timed("pull", key, outs, lambda: self._backend.pull(key, outs, priority))

    def pushpull(self, key: str, values: Sequence[Array], outs: Sequence[Array], priority: int) -> Ticket:
        return self._timed("pushpull", key, values, lambda: self._backend.pushpull(key, values, outs, priority))

    def push_rows(self, key: str, ids: Array, rows: Array, sum: Sum) -> Ticket:
        return self._timed("push_rows", key, (ids, rows), lambda: self._backend.push_rows(key, ids, rows, sum))

    def pull_rows(self, key: str, rows: Array, outs: Sequence[Array], priority: int) -> Ticket:
        return self._timed("pull_rows", key, outs, lambda: self._backend.pull_rows(key, rows, outs, priority))

    def init(self, key: str, value: Array) -> None:
        began = time.perf_counter()
        self._backend.init(key, value)
        self.watch.tell("init", key=key, ms=round(1e3 * (time.perf_counter() - began), 4), bytes=value.nbytes)

    def barrier(self) -> None:
        began = time.perf_counter()
        self._backend.barrier()
        self.watch.ended("barrier", "", began, 0, None)

    def again(self) -> Self:
        self._backend = self._backend.again()
        self.watch.backend = self._backend
        self.watch.tell("rejoin", workers=self._backend.num_workers)
        return self

    def close(self, error: BaseException | None = None) -> None:
        self.watch.tell("close", error=error)
        folder, self._folder = self._folder, ""  # closing again does nothing
        try:
            if folder:
                os.makedirs(folder, exist_ok=True)
                self.watch.write_trace(Path(folder) / TRACE.format(self.watch.rank))
        finally:
            self._backend.close(error)


def watched(backend: Backend, pace: Pace, consistency: Iterable[str], trace: bool, verbose: bool) -> WatchedBackend:
    """A backend that is looked upon. With `trace` every worker calls it: its clock begins when all have. With
    MEZZO_KV_TRACE that is so anyway, and the trace is written at the end; who comes later in the place of a worker that
    has died writes none."""
    folder = switch(FOLDER) if backend.kind not in OF_ONE and not backend.gathering else ""
    if isinstance(backend, WatchedBackend):
        verbose |= backend.watch.verbose
        backend = backend._backend
    trace |= bool(folder)
    if trace:
        backend.barrier()
    watch = Watch(backend, sys.stderr if verbose else None, trace, rounds={*consistency} == {"sequential"})
    watch.tell("join", kind=backend.kind, workers=backend.num_workers)
    pace.watch = watch
    return WatchedBackend(backend, watch, folder)
