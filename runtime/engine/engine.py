"""The engine's public interface."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from time import monotonic
from typing import Any, Self
from weakref import WeakSet

from ...ops.errors import InputError
from ..environment import processors
from .check import AccessGuard
from .lanes import parked
from .scheduler import Scheduler
from .trace import Trace
from .work import RESOURCES, RUNNING, Variable, Workload, WorkloadWatcher, this_thread

THREADS = {"copy": 2, "io": 4, "network": 2}  # and `compute` as many as there are processors
BOUND = 4096
alive: WeakSet[Engine] = WeakSet()


class Engine(Scheduler):
    """Run workloads on threads, as soon as the variables that they declare allow it.

    A workload that reads a variable runs after those pushed before that write it; one that writes it runs after those
    pushed before that read or write it. So a program has the results that it has when every workload runs where it is
    pushed, which is what `mode="naive"` does.

    `threads` is how many workloads of each resource run at once; a thread that waits for one may run it itself, so that
    what must never run twice at a time has to be said by a variable that is written. `bound` is how many workloads may
    be under way: `push` waits beyond it, unless it is called by a workload.

    An error is kept by the variables that its workload writes. Workloads that read them do not run and have the same
    error, `wait` raises it, and a workload that only writes such a variable makes it sound again (one that changes what
    is there declares that it reads and writes).

    `check=True` finds workloads that touch what they did not declare, of variables with a value (`Guard`); they run
    where they are pushed then. Finalizers (`__del__`) must not push: they may run in the middle of a push.

    >>> engine = Engine()
    >>> box, sums = [1, 2, 3], engine.variable("sums")
    >>> work = engine.push(box.append, writes=(sums,), args=(4,))
    >>> engine.wait(sums)
    >>> box, sums.version
    ([1, 2, 3, 4], 1)
    >>> engine.close()
    """

    def __init__(
        self,
        mode: str = "threaded",
        *,
        threads: Mapping[str, int] | None = None,
        bound: int = BOUND,
        check: bool = False,
    ) -> None:
        if mode not in ("threaded", "naive"):
            raise InputError(f"mode {mode!r} is unknown", where="Engine", hint="give 'threaded' or 'naive'")
        counts = {"compute": processors(), **THREADS, **(threads or {})}
        if set(counts) != set(RESOURCES) or min(counts.values()) < 1 or bound < 1:
            raise InputError(
                f"threads={threads}, bound={bound}",
                where="Engine",
                hint=f"the resources are {', '.join(RESOURCES)}, and each has at least one thread",
            )
        super().__init__(counts, bound, check or mode == "naive")
        self._guard = AccessGuard() if check else None
        if self._guard is not None:
            self._watchers = (self._guard,)
        alive.add(self)

    @property
    def mode(self) -> str:
        """`threaded` or `naive`."""
        return "naive" if self._naive else "threaded"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def variable(self, name: str = "", value: Any = None) -> Variable:
        """A new variable; `value` is what it stands for, if the engine shall keep that (see `Variable.value`)."""
        var = Variable(self, name, value)
        if self._guard is not None:
            self._guard.add(var)
        return var

    # -- pushing ----------------------------------------------------------------------------------------------------

    def push(
        self,
        fn: Callable[..., Any],
        reads: Iterable[Variable] = (),
        writes: Iterable[Variable] = (),
        *,
        resource: str = "compute",
        priority: int = 0,
        name: str = "",
        args: tuple[Any, ...] = (),
        brief: bool = False,
    ) -> Workload:
        """Have `fn(*args)` called when the variables allow it; returns at once.

        Of workloads that are ready those of highest `priority` run first. One that is `brief` (it takes no longer than
        handing it over would) is called right here if nothing has to be waited for. Raises InputError for variables of
        another engine and unknown resources, ForkedProcess in a child that was forked since.
        """
        work = Workload(self, fn, args, priority, name, sys._getframe(1), False)
        self._push(work, reads, writes, resource, brief)
        return work

    def push_async(
        self,
        start: Callable[..., Any],
        reads: Iterable[Variable] = (),
        writes: Iterable[Variable] = (),
        *,
        resource: str = "network",
        priority: int = 0,
        name: str = "",
        args: tuple[Any, ...] = (),
    ) -> Workload:
        """Have `start(*args, done)` called when the variables allow it: the workload ends when anybody, from any
        thread, calls `done()`, or `done(error)`. Otherwise as `push`."""
        work = Workload(self, start, args, priority, name, sys._getframe(1), True)
        self._push(work, reads, writes, resource)
        return work

    # -- waiting ----------------------------------------------------------------------------------------------------

    def wait(self, var: Variable, deadline: float | None = None) -> None:
        """Wait until every workload pushed so far that writes the variable has ended. Raises its error.

        Raises DeadlineError after so many seconds. What is ready and waited for runs in this thread, unless there is a
        deadline.
        """
        self._check()
        writer = var._writer
        if writer is not None:
            self._until(writer, deadline)
        if var._failure is not None:
            var._failure.throw()

    def wait_all(self, deadline: float | None = None) -> None:
        """Wait until no workload is in flight. Raises the first error that no `wait` has raised yet, and drops the
        others."""
        self._check()
        self._check_outside()
        until = None if deadline is None else monotonic() + deadline
        names = RESOURCES if self._naive else ("compute",) if deadline is None else ()
        helped = [self._lanes[name] for name in names]
        while True:
            with self._lock:
                if not self._under_way:
                    break
                work = next(filter(None, (lane.take() for lane in helped)), None)
                if work is None:
                    sleeper = parked()
                    self._not_idle.append(sleeper)
                else:
                    work._state = RUNNING
            if work is not None:
                self._run(work)
            else:
                self._sleep(sleeper, until, None)
        with self._lock:
            failures, self._failures = self._failures, []
        for failure in failures:
            if not failure.told:
                failure.throw()

    # -- looking on -------------------------------------------------------------------------------------------------

    @contextmanager
    def watched(self, watcher: WorkloadWatcher) -> Iterator[None]:
        """Tell somebody of what is pushed and run meanwhile."""
        with self._lock:
            self._watchers = (*self._watchers, watcher)
        try:
            yield
        finally:
            with self._lock:
                self._watchers = tuple(w for w in self._watchers if w is not watcher)

    @contextmanager
    def trace(self) -> Iterator[Trace]:
        """A trace of what runs where meanwhile; what is to be in it whole has to be waited for inside.

        >>> with Engine() as engine:
        ...     with engine.trace() as trace:
        ...         engine.push(print, args=("hello",)).wait()
        hello
        >>> [event["name"] for event in trace.events() if event["ph"] == "X"]
        ['print']
        """
        trace = Trace()
        with self.watched(trace):
            yield trace

    # -- the end ----------------------------------------------------------------------------------------------------

    def close(self, deadline: float | None = None) -> None:
        """Wait for everything, as `wait_all` does, and let the threads go; a closed engine refuses what is pushed."""
        if self._refusal is not None:
            return
        self._check_outside()
        try:
            self.wait_all(deadline)
        finally:
            with self._lock:
                self._refusal = (InputError, "the engine is closed", "make another one")
                for lane in self._lanes.values():
                    lane.close()

    def _check_outside(self) -> None:
        """Raise InputError if this is called by a workload."""
        if this_thread.work is not None and this_thread.work._engine is self:
            raise InputError("a workload waits for all, and so for itself", where=this_thread.work.where)
