"""`mz.profiler`: a record of what ran where and when, as a trace for Perfetto and as a table. The verbs are MXNet's.

>>> import numpy as np, mezzo as mz
>>> from mezzo.models.digits import digits_model
>>> session = mz.load(digits_model())
>>> set_state(True)
>>> _ = session(np.zeros((1, 1, 8, 8), np.float32))
>>> set_state(False)
>>> "Conv" in dumps()
True
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from time import perf_counter_ns
from typing import Any, Self

from ..ops.dataclasses import dataclass
from ..ops.errors import InputError
from ..runtime.compile.kernel import anchor
from ..runtime.engine import engine
from ..runtime.engine.trace import Event, Span, Trace
from ..runtime.execution.observers import PROFILING
from ..runtime.files import replace_file
from .trace_picture import draw

ON: dict[str | bool, bool] = {"run": True, "stop": False, True: True, False: False}
SETTINGS = {"filename", "aggregate_stats", "profile_all", "profile_symbolic", "profile_imperative", "profile_memory",
            "profile_api", "continuous_dump"}  # fmt: skip


@dataclass(slots=True)
class Sample:
    """The value of a counter at a moment."""

    name: str
    at: int
    value: float


class Profile:
    """One recording: the engine's workloads, the steps of programs, scopes of the user's, counters."""

    def __init__(self) -> None:
        self.trace = Trace()
        self.samples: list[Sample] = []
        self.instants: list[Sample] = []
        self._begun = threading.local()

    def __call__(self, phase: str, index: int, step: Any, instance: Any) -> None:
        """Told by programs before and after each step (runtime.instance.Observer)."""
        if phase == "before":
            self._begun.at = perf_counter_ns()
            return
        ended = perf_counter_ns()
        node = step.node
        op = f"{anchor(node)[1]}+" if node.op == "Fused" else node.op  # a chain, by its first operator
        span = Span(f"{op} {node.name}".strip(), "step", threading.current_thread().name, self._begun.at, ended)
        span.about = {"kernel": step.choice.kernel, "implementation": step.choice.implementation, "where": node.place}
        self.trace._spans.append(span)
        if not index:
            self.samples.append(Sample("arena bytes", self._begun.at, float(instance.program.arena_bytes)))

    def events(self) -> list[Event]:
        """The events of the trace, with counters and markers."""
        trace_events = self.trace.events()
        spans = self.trace._spans
        origin = min((s.begun for s in spans), default=min((s.at for s in self.samples), default=0))
        process = os.getpid()
        for sample in self.samples:
            at = (sample.at - origin) / 1e3
            trace_events.append(
                {"ph": "C", "name": sample.name, "ts": at, "pid": process, "args": {"value": sample.value}}
            )
        for mark in self.instants:
            at = (mark.at - origin) / 1e3
            trace_events.append({"ph": "i", "s": "p", "name": mark.name, "ts": at, "pid": process, "tid": 0})
        return trace_events


class State:
    """The profiler of this process."""

    def __init__(self) -> None:
        self.profile: Profile | None = None
        self.latest = Profile()
        self.stack = ExitStack()
        self.filename = "profile.json"


STATE = State()


def set_config(**settings: Any) -> None:
    """`filename` is where `dump` writes. The other settings of MXNet are taken: everything is always recorded. Raises
    InputError for settings that there are not."""
    unknown = settings.keys() - SETTINGS
    if unknown:
        raise InputError(f"there is no setting {', '.join(sorted(unknown))}", where="profiler.set_config",
                         hint=f"they are {', '.join(sorted(SETTINGS))}")  # fmt: skip
    STATE.filename = os.fspath(settings.get("filename", STATE.filename))


def set_state(state: str | bool = "stop") -> None:
    """ "run" or True begins a recording, "stop" or False ends it. Raises InputError for anything else."""
    if state not in ON:
        raise InputError(f"state {state!r}", where="profiler.set_state", hint="give 'run' or 'stop', True or False")
    if ON[state] and STATE.profile is None:
        STATE.profile = STATE.latest = Profile()
        STATE.stack.enter_context(engine().watched(STATE.profile.trace))
        PROFILING.observer = STATE.profile
    elif not ON[state] and STATE.profile is not None:
        engine().wait_all()
        PROFILING.observer, STATE.profile = None, None
        STATE.stack.close()


def pause() -> None:
    """Look away from programs until `resume`; the recording goes on."""
    PROFILING.observer = None


def resume() -> None:
    """Look at programs again."""
    PROFILING.observer = STATE.profile


def dump(finished: bool = True, filename: str | os.PathLike[str] | None = None) -> None:
    """Write the recording to a file for ui.perfetto.dev or chrome://tracing; `finished` ends it."""
    if finished:
        set_state(False)
    text = json.dumps({"traceEvents": events(), "displayTimeUnit": "ns"})
    replace_file(STATE.filename if filename is None else filename, [text.encode()])


def events() -> list[Event]:
    """Return the recorded events in the Trace Event Format (see runtime/engine/trace.py)."""
    return STATE.latest.events()


def picture(filename: str | os.PathLike[str], title: str = "") -> None:
    """Draw the recording as a self-contained SVG file: a row for each thread, steps of programs within workloads."""
    draw([e for e in events() if e["ph"] in "XM"], title, Path(filename))


def dumps(reset: bool = False) -> str:
    """Return a table of operators and workloads: their counts, and the sum, minimum, median and maximum of their times
    in milliseconds. `reset` clears the record."""
    times: dict[tuple[str, str], list[float]] = {}
    for span in list(STATE.latest.trace._spans):
        name = span.name.partition(" ")[0] if span.kind == "step" else span.name
        times.setdefault((span.kind, name), []).append((span.ended - span.begun) / 1e6)
    rows = sorted(times.items(), key=lambda item: -sum(item[1]))
    heads = ("kind", "name", "count", "sum ms", "least", "median", "most")
    lines = [f"{heads[0]:<10}{heads[1]:<28}" + "".join(f"{h:>10}" for h in heads[2:])]
    for (kind, name), took in rows:
        figures = (sum(took), min(took), median(took), max(took))
        lines.append(f"{kind:<10}{name[:27]:<28}{len(took):>10}" + "".join(f"{v:>10.3f}" for v in figures))
    if reset:
        running = STATE.profile is not None
        set_state(False)
        STATE.latest = Profile()
        set_state(running)
    return "\n".join(lines)


@contextmanager
def scope(name: str, kind: str = "caller") -> Iterator[None]:
    """Show what the calling thread does inside, under this name."""
    if STATE.profile is None:
        yield
        return
    with STATE.profile.trace.span(name, kind):
        yield


class Task:
    """A stretch of time that the user names: `start()`, `stop()`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._stack = ExitStack()

    def start(self) -> None:
        self._stack.enter_context(scope(self.name, type(self).__name__.lower()))

    def stop(self) -> None:
        self._stack.close()


class Frame(Task):
    """A Task that repeats: one round of a loop."""


class Counter:
    """A number over time.

    >>> seen = Counter("examples")
    >>> seen += 3
    >>> seen.value
    3.0
    """

    def __init__(self, name: str, value: float = 0) -> None:
        self.name, self.value = name, float(value)

    def set_value(self, value: float) -> None:
        self.value = float(value)
        if STATE.profile is not None:
            STATE.profile.samples.append(Sample(self.name, perf_counter_ns(), self.value))

    def increment(self, by: float = 1) -> None:
        self.set_value(self.value + by)

    def decrement(self, by: float = 1) -> None:
        self.set_value(self.value - by)

    def __iadd__(self, by: float) -> Self:
        self.increment(by)
        return self

    def __isub__(self, by: float) -> Self:
        self.decrement(by)
        return self


class Marker:
    """A moment that the user names."""

    def __init__(self, name: str) -> None:
        self.name = name

    def mark(self) -> None:
        if STATE.profile is not None:
            STATE.profile.instants.append(Sample(self.name, perf_counter_ns(), 0.0))
