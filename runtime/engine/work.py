"""Workloads and variables; only their engine changes them, under its lock."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, Protocol

from ...ops.errors import MezzoError

if TYPE_CHECKING:
    import numpy as np

    from .engine import Engine
    from .lanes import Lane

RESOURCES = ("compute", "copy", "io", "network")
PENDING, READY, RUNNING, ENDED = range(4)
_TOLD = "_mezzo_told"  # attribute of an error that has been reported
OURS = f"{Path(__file__).parents[2]}"  # code below is ours: the line that a user wrote is the one above it


class ThreadState(threading.local):
    """State of a thread: the workload that it runs, and those pushed from it, for naive engines."""

    work: Workload | None = None
    later: list[Workload] | None = None
    ends_others = False  # whether it has ended an asynchronous workload


this_thread = ThreadState()


def current() -> Workload | None:
    """The workload that this thread runs, of whichever engine."""
    return this_thread.work


class Failure:
    """An error and its origin; `told` once it has been reported, of this workload or of another that has the same one:
    all that wait for a process that is gone have one error."""

    __slots__ = ("error", "traceback")

    def __init__(self, error: BaseException) -> None:
        self.error, self.traceback = error, error.__traceback__

    @property
    def told(self) -> bool:
        return getattr(self.error, _TOLD, False)

    def tell(self) -> BaseException:
        """The error, which is reported by this."""
        setattr(self.error, _TOLD, True)
        return self.error

    @property
    def interrupts(self) -> bool:
        """True if the error ends more than a workload: an interrupt, or an exit."""
        return not isinstance(self.error, Exception)

    def throw(self) -> None:
        """Raise it as it was raised first: a traceback would grow with each time."""
        raise self.tell().with_traceback(self.traceback)


class Variable:
    """A name for what workloads read and write; made by `Engine.variable`.

    `version` counts the writes that have ended well. `edition` belongs to whoever writes it: arrays count there the
    writes in place that they have asked for.
    """

    __slots__ = ("__weakref__", "_engine", "_failure", "_readers", "_value", "_writer", "edition", "name", "version")

    def __init__(self, engine: Engine, name: str, value: Any) -> None:
        self.name, self.version, self.edition = name, 0, 0
        self._engine, self._value = engine, value
        self._writer: Workload | None = None  # the last workload that writes it, while it has not ended
        self._readers: set[Workload] = set()  # pushed since then, that have not ended
        self._failure: Failure | None = None

    def __repr__(self) -> str:
        return f"<Variable {self.name!r}, version {self.version}>"

    @property
    def value(self) -> Any:
        """Value of the variable. A workload gets it at once, any other caller once it is written."""
        work = this_thread.work
        if work is None or work._engine is not self._engine:
            self._engine.wait(self)
        elif self._engine._guard is not None:
            return self._engine._guard.reading(work, self)
        return self._value

    @value.setter
    def value(self, value: Any) -> None:
        work = this_thread.work
        if work is None or work._engine is not self._engine:
            self._engine.push(self._set, writes=(self,), args=(value,), name=f"set {self.name}").wait()
        else:
            if self._engine._guard is not None:
                self._engine._guard.writing(work, self)
            self._value = value

    def _set(self, value: Any) -> None:
        self._value = value


class Ordered:
    """An array whose accesses the engine orders: a workload pushed with `variable` may touch its memory, `lying`."""

    __slots__ = ()

    @property
    def variable(self) -> Variable:
        raise NotImplementedError

    @property
    def lying(self) -> np.ndarray[Any, Any]:
        raise NotImplementedError

    @property
    def shape(self) -> tuple[int, ...]:
        raise NotImplementedError

    @property
    def dtype(self) -> np.dtype[Any]:
        raise NotImplementedError

    @property
    def device(self) -> Any:
        raise NotImplementedError


class Workload:
    """A pushed workload; returned by `Engine.push`.

    `number` is its place in the order of pushes, from 1; `name` the one given, or that of its function.
    """

    __slots__ = (
        *("_after", "_args", "_asynchronous", "_at", "_blocked", "_code", "_engine", "_failure", "_fn", "_lane"),
        *("_outer", "_pending", "_reads", "_sleepers", "_state", "_then", "_writes", "name", "number", "priority"),
    )
    _lane: Lane
    _outer: Workload | None
    _blocked: Workload | None
    number: int

    def __init__(
        self,
        engine: Engine,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        priority: int,
        name: str,
        frame: FrameType,
        asynchronous: bool,
    ) -> None:
        self._engine, self._fn, self._args = engine, fn, args
        self._reads: tuple[Variable, ...] = ()
        self._writes: tuple[Variable, ...] = ()
        self.priority, self._asynchronous = priority, asynchronous
        self.name = name or getattr(fn, "__name__", "workload")
        self._state = PENDING
        self._pending = 0
        self._then: list[Workload] = []  # those that wait for it
        self._after: list[Workload] | tuple[()] = ()  # those that it waits for
        self._failure: Failure | None = None
        self._sleepers: list[Any] | None = None
        self._blocked = self._outer = None
        outside: FrameType | None = frame
        while outside is not None and outside.f_code.co_filename.startswith(OURS):
            outside = outside.f_back
        at = outside or frame
        self._code: CodeType = at.f_code
        self._at = at.f_lasti  # a line is looked up when it is asked for: that takes longer than all the rest here

    def __repr__(self) -> str:
        return f"<Work {self.name!r}, {('waits', 'ready', 'runs', 'ended')[self._state]}, {self.where}>"

    @property
    def line(self) -> str:
        """File, line and function that pushed it; the innermost outside of this package."""
        code = self._code
        number = next((n for a, b, n in code.co_lines() if a <= self._at < b and n), code.co_firstlineno)
        return f"{code.co_filename}:{number} in {code.co_name}"

    @property
    def where(self) -> str:
        """Description of the workload in error messages."""
        return f"workload {self.name!r}, pushed at {self.line}"

    @property
    def reads(self) -> tuple[Variable, ...]:
        """The variables that it reads; empty once it has ended."""
        return self._reads

    @property
    def writes(self) -> tuple[Variable, ...]:
        """The variables that it writes; empty once it has ended."""
        return self._writes

    @property
    def resource(self) -> str:
        """Resource that the workload occupies."""
        return self._lane.name

    @property
    def done(self) -> bool:
        """True if the workload has ended, well or not."""
        return self._state == ENDED

    @property
    def error(self) -> BaseException | None:
        """Error of the workload, or the reason why it did not run; None while it has not ended."""
        failure = self._failure
        if failure is None or self._state != ENDED:
            return None
        return failure.tell()

    def wait(self, deadline: float | None = None) -> None:
        """Wait until the workload has ended. Raises its error, or DeadlineError after `deadline` seconds."""
        self._engine._check()
        if self._state != ENDED:
            self._engine._until(self, deadline)
        if self._failure is not None:
            self._failure.throw()

    def cancel(self) -> bool:
        """Keep it from running, unless it has begun: whether that came in time.

        It ends when its turn comes, with Cancelled as its error, and so does what depends on it.
        """
        return self._engine._cancel(self)

    def blame(self, error: BaseException) -> Failure:
        """An error that it raised, which from now on says where it was pushed, unless it came from another one."""
        if not any(note.startswith("in workload ") for note in getattr(error, "__notes__", ())):
            if isinstance(error, MezzoError):
                error.at(self.where)
            error.add_note(f"in {self.where}")
        return Failure(error)


class WorkloadWatcher(Protocol):
    """Observer of an engine's workloads."""

    def pushed(self, work: Workload) -> None:
        """Under the engine's lock, in the order of pushes, in the thread that pushes."""

    def begins(self, work: Workload) -> None:
        """Handle a begin, in the thread that runs the workload; not called for a cancelled one."""

    def ends(self, work: Workload, error: BaseException | None) -> None:
        """Handle an end, in the thread that ends the workload, before any dependent one begins; a raised MezzoError
        becomes the workload's."""
