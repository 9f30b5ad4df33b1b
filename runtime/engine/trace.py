"""Traces of workloads in time, in the Trace Event Format of Chrome's tracing and Perfetto.

The format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU. A workload is a complete
event ("X") of its thread, an asynchronous one of a row of its own, and an arrow ("s" to "f") leads to it from each
workload that it had to wait for. Times are microseconds.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter_ns
from typing import Any

from ...ops.dataclasses import dataclass, field
from ..files import replace_file
from .work import Variable, Workload

Event = dict[str, Any]


@dataclass(slots=True)
class Span:
    """One span of time in a row, in nanoseconds of `perf_counter_ns`."""

    name: str
    kind: str  # the resource
    row: str = ""
    begun: int = 0
    ended: int = 0
    about: dict[str, Any] = field(default_factory=dict[str, Any])
    after: list[Span] = field(default_factory=list["Span"])  # those that it had to wait for


@dataclass(slots=True)
class Uses:
    """Last uses of a variable."""

    writer: Span | None = None
    readers: list[Span] = field(default_factory=list[Span])


class Trace:
    """Recorder of workloads (`Engine.trace`); it grows with each of them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[Workload, Span] = {}
        self._spans: list[Span] = []
        self._uses: dict[Variable, Uses] = {}
        self._rows: dict[str, int] = {}  # rows of asynchronous workloads that are taken

    # -- looking on -------------------------------------------------------------------------------------------------

    def pushed(self, work: Workload) -> None:
        """Note what it has to wait for."""
        span = Span(work.name, work.resource)
        span.about = {
            "pushed at": work.line,
            "reads": [v.name for v in work.reads],
            "writes": [v.name for v in work.writes],
        }
        after: dict[int, Span] = {}
        for var in work.reads:
            uses = self._uses.setdefault(var, Uses())
            if uses.writer is not None:
                after[id(uses.writer)] = uses.writer
            uses.readers.append(span)
        for var in work.writes:
            uses = self._uses.setdefault(var, Uses())
            others = [s for s in uses.readers if s is not span]
            if not others and uses.writer is not None:
                others = [uses.writer]
            after |= {id(s): s for s in others}
            uses.writer, uses.readers = span, []
        after.pop(id(span), None)
        span.after = [*after.values()]
        with self._lock:
            self._waiting[work] = span

    def begins(self, work: Workload) -> None:
        """The clock starts."""
        with self._lock:
            span = self._waiting.setdefault(work, Span(work.name, work.resource))
            span.row = self._free_row(work.resource) if work._asynchronous else threading.current_thread().name
        span.begun = perf_counter_ns()

    def ends(self, work: Workload, error: BaseException | None) -> None:
        """The clock stops."""
        at = perf_counter_ns()
        with self._lock:
            span = self._waiting.pop(work, None)
            if span is not None and span.begun:
                span.ended = at
                if error is not None:
                    span.about["error"] = f"{type(error).__name__}: {error}"
                self._spans.append(span)
                self._rows.pop(span.row, None)

    def _free_row(self, resource: str) -> str:
        """Asynchronous workloads overlap: each that is under way has a row."""
        number = 0
        while (row := f"{resource}, under way {number}") in self._rows:
            number += 1
        self._rows[row] = number
        return row

    @contextmanager
    def span(self, name: str, kind: str = "caller") -> Iterator[None]:
        """Show what the calling thread does inside, beside the workloads."""
        span = Span(name, kind, threading.current_thread().name, perf_counter_ns())
        try:
            yield
        finally:
            span.ended = perf_counter_ns()
            self._spans.append(span)

    # -- what came of it --------------------------------------------------------------------------------------------

    def events(self) -> list[Event]:
        """The events of all that has ended: rows, spans, and arrows between spans."""
        spans = sorted(self._spans, key=lambda s: s.begun)
        process = os.getpid()
        rows = {row: number for number, row in enumerate(dict.fromkeys(s.row for s in spans), 1)}
        origin = spans[0].begun if spans else 0
        events: list[Event] = [
            {"ph": "M", "name": "process_name", "pid": process, "tid": 0, "args": {"name": "mezzo"}},
            *(
                {"ph": "M", "name": "thread_name", "pid": process, "tid": number, "args": {"name": row}}
                for row, number in rows.items()
            ),
        ]
        arrows = 0
        for span in spans:
            place = {"pid": process, "tid": rows[span.row]}
            begun = (span.begun - origin) / 1e3
            took = (span.ended - span.begun) / 1e3
            events.append({
                "ph": "X", "name": span.name, "cat": span.kind, "ts": begun, "dur": took, **place, "args": span.about,
            })  # fmt: skip
            for before in span.after:
                if not before.ended:
                    continue  # it did not run, or runs still
                arrows += 1
                arrow = {"name": "then", "cat": "dependency", "id": arrows}
                last = max(before.begun, before.ended - 1)  # within its span
                events.append({
                    "ph": "s", **arrow, "ts": (last - origin) / 1e3, "pid": process, "tid": rows[before.row],
                })  # fmt: skip
                events.append({"ph": "f", "bp": "e", **arrow, "ts": begun, **place})
        return events

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a file for chrome://tracing or ui.perfetto.dev; it is replaced as a whole."""
        text = json.dumps({"traceEvents": self.events(), "displayTimeUnit": "ns"})
        replace_file(path, [text.encode()])
