"""The engine itself."""

from __future__ import annotations

import os
import sys
from _thread import LockType, allocate_lock
from collections.abc import Callable, Iterable, Mapping
from time import monotonic
from typing import Any, Self
from weakref import WeakSet

from ...ops.errors import Cancelled, DeadlineError, ForkedProcess, InputError, MezzoError
from ..environment import switch
from ..seats import processors
from .lanes import Lane, parked
from .work import ENDED, LIVELY, PENDING, READY, RESOURCES, RUNNING, Failure, Variable, Work, here

THREADS = {"copy": 2, "io": 4, "network": 2}  # and `compute` as many as there are processors
BOUND = 4096


class Engine:
    """Runs workloads on threads, as soon as the variables that they declare allow it.

    A workload that reads a variable runs after those pushed before that write it; one that writes it runs after those
    pushed before that read or write it. So a program has the results that it has when every workload runs where it is
    pushed, which is what `mode="naive"` does.

    `threads` is how many workloads of each resource run at once; a thread that waits for one may run it itself, so that
    what must never run twice at a time has to be said by a variable that is written. `bound` is how many workloads may
    be under way: `push` waits beyond it, unless it is called by a workload.

    An error is kept by the variables that its workload writes. Workloads that read them do not run and have the same
    error, `wait` raises it, and a workload that only writes such a variable makes it sound again (one that changes what
    is there declares that it reads and writes).

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
        self.mode, self._bound, self._naive = mode, bound, mode == "naive"
        self._lock = allocate_lock()
        self._lanes = {name: Lane(name, 0 if self._naive else counts[name], self._serve) for name in RESOURCES}
        self._pushed = self._under_way = 0
        self._no_room: list[LockType] = []  # threads that wait until there is room
        self._not_idle: list[LockType] = []  # threads that wait for everything
        self._failure: Failure | None = None  # the first since the last `wait_all`
        self._refusal: tuple[type[MezzoError], str, str] | None = None
        _engines.add(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def variable(self, name: str = "", value: Any = None) -> Variable:
        """A new variable; `value` is what it stands for, if the engine shall keep that (see `Variable.value`)."""
        return Variable(self, name, value)

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
    ) -> Work:
        """Have `fn(*args)` called when the variables allow it; returns at once.

        Of workloads that are ready those of highest `priority` run first. Raises InputError for variables of another
        engine and unknown resources, ForkedProcess in a child that was forked since.
        """
        reads, writes = tuple(reads), tuple(writes)
        work = Work(self, fn, args, reads, writes, priority, name, sys._getframe(1), False)
        self._push(work, resource)
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
    ) -> Work:
        """Have `start(*args, done)` called when the variables allow it: the workload ends when anybody, from any
        thread, calls `done()`, or `done(error)`. Otherwise as `push`."""
        reads, writes = tuple(reads), tuple(writes)
        work = Work(self, start, args, reads, writes, priority, name, sys._getframe(1), True)
        self._push(work, resource)
        return work

    def _push(self, work: Work, resource: str) -> None:
        try:
            work._lane = lane = self._lanes[resource]
            for var in work._reads:
                if var._engine is not self:
                    raise self._foreign(work, var)
            for var in work._writes:
                if var._engine is not self:
                    raise self._foreign(work, var)
        except (KeyError, AttributeError) as error:
            raise InputError(
                f"resource={resource!r}, reads={work._reads}, writes={work._writes}",
                where=work.where,
                hint=f"the resources are {', '.join(RESOURCES)}; reads and writes are variables of this engine",
            ) from error
        if self._under_way >= self._bound and here.work is None and not here.unbounded:
            self._make_room()
        with self._lock:
            if self._refusal is not None:
                self._check()
            self._pushed = work.number = self._pushed + 1
            self._under_way += 1
            after: list[Work] = []
            for var in work._reads:
                writer = var._writer
                if writer is not None:
                    after.append(writer)
                    writer._then.append(work)
                readers = var._readers
                if len(readers) >= var._lively:
                    readers[:] = [r for r in readers if r._state != ENDED]
                    var._lively = 2 * len(readers) + LIVELY
                readers.append(work)
            for var in work._writes:
                readers = var._readers
                if readers:
                    for reader in readers:
                        if reader._state != ENDED and reader is not work:
                            after.append(reader)
                            reader._then.append(work)
                    var._readers = []
                else:
                    writer = var._writer
                    if writer is not None and writer is not work:
                        after.append(writer)
                        writer._then.append(work)
                var._writer = work
            if after:
                work._after = after
                work._pending = len(after)
            else:
                lane.put(work)
        if self._naive:
            self._at_once(work)

    def _foreign(self, work: Work, var: Variable) -> InputError:
        return InputError(f"{var} is of another engine", where=work.where, hint="make it with this engine's variable()")

    def _at_once(self, work: Work) -> None:
        """Run a workload that was just pushed; one that was pushed by a workload runs when that has ended."""
        if here.later is not None:
            here.later.append(work)
            return
        here.later = [work]
        try:
            for one in here.later:  # grows while it is gone through
                self._until(one, None)
        finally:
            here.later = None

    def _make_room(self) -> None:
        with self._lock:
            self._check()
            if self._under_way < self._bound:
                return
            sleeper = parked()
            self._no_room.append(sleeper)
        sleeper.acquire()

    # -- running ----------------------------------------------------------------------------------------------------

    def _serve(self, lane: Lane, sleeper: LockType) -> None:
        """What a thread of a lane does all its life."""
        lock, ended = self._lock, None
        while True:
            with lock:
                if ended is not None:
                    self._end(ended, lane)
                work = lane.take()
                if work is not None:
                    work._state = RUNNING
                elif lane.closed:
                    return
                else:
                    lane.idle.append(sleeper)
            if work is None:
                ended = None
                sleeper.acquire()
            else:
                ended = work if self._call(work) else None

    def _call(self, work: Work) -> bool:
        """Run a workload, which is this thread's now; whether it has ended with that."""
        failure = work._failure
        if failure is None:
            for var in work._reads:
                if var._failure is not None:
                    failure = work._failure = var._failure
        ended = True
        if failure is None:
            work._outer, here.work = here.work, work
            try:
                if work._asynchronous:
                    ended = False
                    work._fn(*work._args, self._done(work))
                else:
                    work._fn(*work._args)
            except BaseException as error:
                if work._asynchronous:
                    self._finish(work, error)
                else:
                    work._failure = work._blame(error)
            here.work = work._outer
        work._fn, work._args = _nothing, ()  # not under the lock: what goes with them may run code of its own
        return ended

    def _done(self, work: Work) -> Callable[[BaseException | None], None]:
        def done(error: BaseException | None = None) -> None:
            here.unbounded = True
            if not self._finish(work, error):
                raise InputError(f"done() was called before for {work.where}", where="Engine.push_async")

        return done

    def _finish(self, work: Work, error: BaseException | None) -> bool:
        """End an asynchronous workload; whether it had not ended before."""
        failure = None if error is None else work._blame(error)
        with self._lock:
            if work._state == ENDED:
                return False
            work._failure = failure
            self._end(work, None)
        return True

    def _end(self, work: Work, mine: Lane | None) -> None:
        """Under the lock: a workload has ended, in a thread of the lane `mine` that takes another one next."""
        work._state = ENDED
        failure = work._failure
        for var in work._writes:
            var._failure = failure
            if failure is None:
                var.version += 1
            if var._writer is work:
                var._writer = None
        for then in work._then:
            then._pending -= 1
            if not then._pending:
                lane = then._lane
                if lane is mine:
                    mine = None
                    lane.put(then, wake=False)
                else:
                    lane.put(then)
        work._then = []
        work._reads = work._writes = ()
        if work._sleepers is not None:
            for sleeper in work._sleepers:
                sleeper.release()
            work._sleepers = None
        if failure is not None and self._failure is None:
            self._failure = failure
        self._under_way = left = self._under_way - 1
        if self._no_room and 2 * left <= self._bound:
            while self._no_room:
                self._no_room.pop().release()
        if not left:
            while self._not_idle:
                self._not_idle.pop().release()

    # -- waiting ----------------------------------------------------------------------------------------------------

    def wait(self, var: Variable, deadline: float | None = None) -> None:
        """Until every workload pushed so far that writes the variable has ended; raises the error that it has.

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
        """Until nothing is under way; raises the first error since the last `wait_all`, read by then or not."""
        self._check()
        if here.work is not None and here.work._engine is self:
            raise InputError("a workload waits for all, and so for itself", where=here.work.where)
        until = None if deadline is None else monotonic() + deadline
        lane = self._lanes["compute"]
        while True:
            with self._lock:
                if not self._under_way:
                    break
                work = lane.take() if deadline is None else None
                if work is None:
                    sleeper = parked()
                    self._not_idle.append(sleeper)
                else:
                    work._state = RUNNING
            if work is not None:
                self._run(work)
            else:
                self._sleep(sleeper, until, None)
        failure, self._failure = self._failure, None
        if failure is not None:
            failure.throw()

    def _run(self, work: Work) -> None:
        """Run a workload in a thread that waits; an interrupt goes through."""
        if self._call(work):
            with self._lock:
                self._end(work, None)
        if work._failure is not None and not isinstance(work._failure.error, Exception):
            work._failure.throw()

    def _until(self, target: Work, deadline: float | None) -> None:
        """Until a workload has ended; what it waits for and is ready runs here, unless there is a deadline."""
        until = None if deadline is None else monotonic() + deadline
        inside = here.work
        path = [target]  # each waits for the next
        while path:
            work, sleeper = path[-1], None
            with self._lock:
                while work._state == PENDING:
                    work = next(w for w in work._after if w._state != ENDED)
                    path.append(work)
                if work._state == ENDED:
                    path.pop()
                    continue
                if inside is not None:
                    self._check_cycle(inside, work)
                    inside._blocked = work
                if work._state == READY and (until is None or self._naive):
                    work._state = RUNNING
                    work._lane.took(work)
                else:
                    work = target if until is not None else work
                    sleeper = parked()
                    work._sleepers = [*(work._sleepers or ()), sleeper]
            try:
                if sleeper is None:
                    self._run(work)
                else:
                    self._sleep(sleeper, until, work)
            finally:
                if inside is not None:
                    inside._blocked = None

    def _sleep(self, sleeper: LockType, until: float | None, work: Work | None) -> None:
        if until is None:
            sleeper.acquire()
        elif not sleeper.acquire(timeout=max(0.0, until - monotonic())):
            with self._lock:
                kept = self._not_idle if work is None else work._sleepers
                if kept is None or sleeper not in kept:
                    return  # woken just now
                kept.remove(sleeper)
                left = self._under_way
            raise DeadlineError(
                f"{left} workloads had not ended before the deadline",
                where="Engine.wait_all" if work is None else work.where,
                hint="a longer deadline, or find out what they wait for with Engine.trace",
            )

    def _check_cycle(self, inside: Work, work: Work) -> None:
        """InputError where a workload would wait for itself: what it waits for waits for it."""
        mine = set()
        outer: Work | None = inside
        while outer is not None:
            mine.add(outer)
            outer = outer._outer
        blocked: Work | None = work
        while blocked is not None:
            if blocked in mine:
                raise InputError(
                    "a workload waits for what waits for it",
                    where=inside.where,
                    hint="let it end, and push what comes after it as a workload of its own",
                )
            blocked = blocked._blocked

    def _cancel(self, work: Work) -> bool:
        with self._lock:
            if work._state > READY:
                return False
            if work._failure is None:
                error = Cancelled("cancelled before it ran", where=work.where)
                work._failure = Failure(error, None)
            return True

    # -- the end ----------------------------------------------------------------------------------------------------

    def close(self, deadline: float | None = None) -> None:
        """Wait for everything, as `wait_all` does, and let the threads go; a closed engine refuses what is pushed."""
        if self._refusal is not None:
            return
        try:
            self.wait_all(deadline)
        finally:
            with self._lock:
                self._refusal = (InputError, "the engine is closed", "make another one")
                for lane in self._lanes.values():
                    lane.close()

    def _check(self) -> None:
        if self._refusal is not None:
            kind, message, hint = self._refusal
            raise kind(message, where="Engine", hint=hint)

    # -- variables with a value -------------------------------------------------------------------------------------

    def _read(self, work: Work, var: Variable) -> Any:
        return var._value

    def _written(self, work: Work, var: Variable) -> None:
        pass


def _nothing(*_: Any) -> None:
    """Stands where the function of a workload was that has run."""


_engines: WeakSet[Engine] = WeakSet()
_one: Engine | None = None
_making = allocate_lock()


def engine() -> Engine:
    """The engine of this process, made when it is first asked for.

    `MEZZO_ENGINE=naive` runs each workload where it is pushed; `MEZZO_ENGINE_THREADS` is how many compute at once.
    Raises InputError for environment variables that are unknown or wrong.
    """
    global _one
    if _one is None:
        with _making:
            if _one is None:
                _one = _from_environment()
    return _one


def _from_environment() -> Engine:
    count = switch("MEZZO_ENGINE_THREADS")
    if count and not (count.isdecimal() and int(count)):
        raise InputError(f"MEZZO_ENGINE_THREADS={count}", where="environment", hint="give a number above 0")
    return Engine(switch("MEZZO_ENGINE") or "threaded", threads={"compute": int(count)} if count else None)


def _forked() -> None:
    for one in _engines:
        one._refusal = (
            ForkedProcess,
            f"process {os.getpid()} was forked from one that has an engine, whose threads it lacks",
            "start workers with multiprocessing's 'spawn' or 'forkserver'",
        )


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
