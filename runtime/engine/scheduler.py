"""The scheduler of an engine: one lock, and queues of workloads on each variable.

A workload waits for those that it finds when it is pushed: the last writer of what it reads, and the readers since then
of what it writes, or else the last writer (the queues of MXNet's engine, arXiv 1512.01274, section 3.2, as edges).
"""

from __future__ import annotations

from _thread import LockType, allocate_lock
from _thread import _count as other_threads
from collections.abc import Callable, Iterable, Mapping
from time import monotonic
from typing import Any

from ...ops.errors import Cancelled, DeadlineError, InputError, MezzoError
from .. import idle
from .lanes import Lane, parked
from .work import ENDED, PENDING, READY, RESOURCES, RUNNING, Failure, Variable, Workload, WorkloadWatcher, this_thread

REMEMBERED = 16  # errors that nobody has seen yet
BRIEFLY = 0.1  # seconds


class Scheduler:
    """The internal part of an engine."""

    def __init__(self, counts: Mapping[str, int], bound: int, naive: bool) -> None:
        self._naive, self._bound = naive, bound
        self._lock = allocate_lock()
        self._lanes = {name: Lane(name, 0 if naive else counts[name], self._serve) for name in RESOURCES}
        self._pushed = self._under_way = 0
        self._no_room: list[LockType] = []  # threads that wait until there is room
        self._not_idle: list[LockType] = []  # threads that wait for everything
        self._failures: list[Failure] = []  # for those who wait for everything
        self._watchers: tuple[WorkloadWatcher, ...] = ()
        self._refusal: tuple[type[MezzoError], str, str] | None = None

    def _check(self) -> None:
        """Raise why nothing can be done any more, if so."""
        if self._refusal is not None:
            kind, message, hint = self._refusal
            raise kind(message, where="Engine", hint=hint)

    def only_calls(self) -> bool:
        """True if a push would only call its function, so that the caller may do it directly: the engine is naive, no
        workload is in flight, there are no watchers and no other threads."""
        return (
            self._naive
            and not self._under_way
            and not self._watchers
            and not other_threads()
            and this_thread.work is None
            and self._refusal is None
        )

    # -- pushing ----------------------------------------------------------------------------------------------------

    def _push(
        self, work: Workload, reads: Iterable[Variable], writes: Iterable[Variable], resource: str, brief: bool = False
    ) -> None:
        try:
            work._lane = lane = self._lanes[resource]
            work._reads, work._writes = reads, writes = tuple(reads), tuple(writes)
            for var in reads:
                if var._engine is not self:
                    raise self._foreign(work, var)
            for var in writes:
                if var._engine is not self:
                    raise self._foreign(work, var)
        except (KeyError, TypeError, AttributeError) as error:
            raise InputError(
                f"resource={resource!r}, reads={reads}, writes={writes}",
                where=work.where,
                hint=f"the resources are {', '.join(RESOURCES)}; reads and writes are tuples of variables",
            ) from error
        if self._under_way >= self._bound and this_thread.work is None:
            self._await_room()
        with self._lock:
            if self._refusal is not None:
                self._check()
            self._pushed = work.number = self._pushed + 1
            self._under_way += 1
            for watcher in self._watchers:
                watcher.pushed(work)
            after: list[Workload] = []
            for var in reads:
                writer = var._writer
                if writer is not None:
                    after.append(writer)
                    writer._then.append(work)
                var._readers.add(work)
            for var in writes:
                readers = var._readers
                if readers:
                    for reader in readers:
                        if reader is not work:
                            after.append(reader)
                            reader._then.append(work)
                    var._readers = set()
                else:
                    writer = var._writer
                    if writer is not None and writer is not work:
                        after.append(writer)
                        writer._then.append(work)
                var._writer = work
            mine = brief and not after and not self._naive
            if after:
                work._after = after
                work._pending = len(after)
            elif mine:
                work._state = RUNNING
            else:
                lane.put(work)
        if mine:
            self._run(work)
        elif self._naive:
            self._at_once(work)

    def _foreign(self, work: Workload, var: Variable) -> InputError:
        return InputError(f"{var} is of another engine", where=work.where, hint="make it with this engine's variable()")

    def _at_once(self, work: Workload) -> None:
        """Run a workload that was just pushed; one that was pushed by a workload runs when that has ended."""
        if this_thread.later is not None:
            this_thread.later.append(work)
            return
        this_thread.later = [work]
        try:
            for pushed in this_thread.later:  # grows while it is gone through
                pushed._engine._until(pushed, None)
        finally:
            this_thread.later = None

    def _await_room(self) -> None:
        """Wait until half of what may be under way has ended; workloads never do, and not for long threads that end
        asynchronous ones, since others may need them to go on."""
        with self._lock:
            self._check()
            if self._under_way < self._bound:
                return
            sleeper = parked()
            self._no_room.append(sleeper)
        if not sleeper.acquire(timeout=BRIEFLY if this_thread.ends_others else -1):
            with self._lock:
                if sleeper in self._no_room:
                    self._no_room.remove(sleeper)

    # -- running ----------------------------------------------------------------------------------------------------

    def _serve(self, lane: Lane, sleeper: LockType) -> None:
        """Run the loop of a lane's thread."""
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
                if not sleeper.acquire(timeout=idle.AFTER):
                    for call in idle.CALLS:
                        call()
                    sleeper.acquire()
            else:
                ended = work if self._call(work) else None

    def _call(self, work: Workload) -> bool:
        """Run a workload, which is this thread's now; whether it has ended with that."""
        failure = work._failure
        if failure is None:
            for var in work._reads:
                if var._failure is not None:
                    failure = work._failure = var._failure
                    break
        ended = True
        if failure is None:
            watchers = self._watchers
            work._outer, this_thread.work = this_thread.work, work
            try:
                for watcher in watchers:
                    watcher.begins(work)
                if work._asynchronous:
                    ended = False
                    work._fn(*work._args, self._done(work))
                else:
                    work._fn(*work._args)
            except BaseException as error:
                if ended:
                    work._failure = work.blame(error)
                elif not self._finish(work, error):  # it said that it had ended
                    with self._lock:
                        self._remember(work.blame(error))
            this_thread.work, work._outer = work._outer, None
            if ended and watchers:
                work._failure = self._watched(work, work._failure)
        work._fn, work._args = _nothing, ()  # not under the lock: what goes with them may run code of its own
        return ended

    def _watched(self, work: Workload, failure: Failure | None) -> Failure | None:
        """Tell the watchers that a workload is about to end; what they find wrong comes before what it raised."""
        for watcher in self._watchers:
            try:
                watcher.ends(work, None if failure is None else failure.error)
            except MezzoError as error:
                failure = work.blame(error)
        return failure

    def _done(self, work: Workload) -> Callable[[BaseException | None], None]:
        def done(error: BaseException | None = None) -> None:
            this_thread.ends_others = True
            if not self._finish(work, error):
                raise InputError(f"done() was called before for {work.where}", where="Engine.push_async")

        return done

    def _finish(self, work: Workload, error: BaseException | None) -> bool:
        """End an asynchronous workload; whether it had not ended before."""
        failure = None if error is None else work.blame(error)
        if self._watchers and work._state != ENDED:
            failure = self._watched(work, failure)
        with self._lock:
            if work._state == ENDED:
                return False
            work._failure = failure
            self._end(work, None)
        return True

    def _end(self, work: Workload, mine: Lane | None) -> None:
        """Under the lock: a workload has ended, in a thread of the lane `mine` that takes another one next."""
        work._state = ENDED
        failure = work._failure
        for var in work._reads:
            var._readers.discard(work)
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
        if failure is not None:
            self._remember(failure)
        self._under_way = left = self._under_way - 1
        if self._no_room and 2 * left <= self._bound:
            while self._no_room:
                self._no_room.pop().release()
        if not left:
            while self._not_idle:
                self._not_idle.pop().release()

    def _remember(self, failure: Failure) -> None:
        """Keep an error for whoever waits for everything."""
        if failure not in self._failures:
            self._failures = [*[f for f in self._failures if not f.told][: REMEMBERED - 1], failure]

    # -- waiting ----------------------------------------------------------------------------------------------------

    def _run(self, work: Workload) -> None:
        """Run a workload in a thread that waits; an interrupt goes through."""
        if self._call(work):
            with self._lock:
                self._end(work, None)
        if work._failure is not None and work._failure.interrupts:
            work._failure.throw()

    def _until(self, target: Workload, deadline: float | None) -> None:
        """Wait until a workload has ended; its dependencies that are ready run here, unless there is a deadline."""
        until = None if deadline is None else monotonic() + deadline
        inside = this_thread.work
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

    def _sleep(self, sleeper: LockType, until: float | None, work: Workload | None) -> None:
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

    def _check_cycle(self, inside: Workload, work: Workload) -> None:
        """InputError where a workload would wait for itself: what it waits for waits for it."""
        mine = set()
        outer: Workload | None = inside
        while outer is not None:
            mine.add(outer)
            outer = outer._outer
        blocked: Workload | None = work
        while blocked is not None:
            if blocked in mine:
                raise InputError(
                    "a workload waits for what waits for it",
                    where=inside.where,
                    hint="let it end, and push what comes after it as a workload of its own",
                )
            blocked = blocked._blocked

    def _cancel(self, work: Workload) -> bool:
        with self._lock:
            if work._state > READY:
                return False
            if work._failure is None:
                work._failure = Failure(Cancelled("cancelled before it ran", where=work.where))
            return True


def _nothing(*_: Any) -> None:
    """Stands where the function of a workload was that has run."""
