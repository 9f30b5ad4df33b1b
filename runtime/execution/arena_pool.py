"""The arenas that runs borrow: a bounded number, and together with the programs within a ceiling of bytes."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from time import monotonic
from typing import Any

from ...ops.errors import BudgetError, DeadlineError
from ..compile.executable import Executable
from ..memory.pool import Pool
from .executor import Executor
from .guards import Replay
from .instance import Instance
from .kept_programs import KeptPrograms, call_bytes, weakly


class Arena:
    """One arena and its instances; at most one of them runs at a time."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self.memory = executor.allocate(0)
        self.instances: dict[Executable, Instance] = {}
        self.replays: dict[Any, Replay] = {}  # by what was seen: Known, of GPUs Direct
        self.done = 0  # runs that have ended here
        self.running: Executable | None = None  # what runs here, or ran last

    def fit(self, nbytes: int) -> None:
        """Make the arena large enough; instances that point into a smaller one are dropped."""
        if nbytes > self.memory.nbytes:
            self.clear()
            self.memory = self._executor.allocate(nbytes)

    def clear(self) -> int:
        """Give the arena back; returns its bytes."""
        released = int(self.memory.nbytes)
        self.instances, self.replays = {}, {}
        self.memory = self._executor.allocate(0)
        return released

    def drop(self, executable: Executable) -> int:
        """Drop the instance of a program, which may also be done while another one runs; returns its bytes."""
        for key in [k for k in [*self.replays] if k.executable is executable]:
            self.replays.pop(key, None)
        return 0 if self.instances.pop(executable, None) is None else call_bytes(executable)

    def call_bytes(self) -> int:
        """Bytes of the calls of all instances."""
        return sum(map(call_bytes, [*self.instances]))


class Loan:
    """An arena that is given back at the end of the context."""

    __slots__ = ("_arena", "_pool")

    def __init__(self, pool: ArenaPool, arena: Arena) -> None:
        self._pool, self._arena = pool, arena

    def __enter__(self) -> Arena:
        return self._arena

    def __exit__(self, *error: object) -> None:
        self._pool.give(self._arena)


class ArenaPool:
    """The arenas of a session: at most `most`, or more while all arenas take at most `spare` bytes. `ceiling` bounds
    arenas, the pool and the programs of `kept` together, in bytes; errors name the `owner`. Programs give way: where
    there is no room, those that were not used for longest are dropped, but those that run. Without a ceiling they alone
    have one.

    Locking costs a small model a twentieth of its run. So a run that was seen before takes the free arena on top
    without the lock, which is safe since a list pops and appends as one operation, and since nobody looks into a free
    arena before having popped it: under the lock, `_drained` has them all.
    """

    def __init__(
        self,
        executor: Executor,
        pool: Pool,
        kept: KeptPrograms,
        most: int,
        ceiling: int | None,
        spare: int = 0,
        owner: str = "",
    ) -> None:
        self.most, self.ceiling, self._spare, self._owner = most, ceiling, spare, owner
        self._executor, self._pool, self._kept = executor, pool, kept
        self._all: list[Arena] = []
        self._free: list[Arena] = []
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._queue: deque[object] = deque()  # those who wait, in the order in which they came
        self._programs = 0  # bytes of programs when they were counted last
        if ceiling is not None:
            pool.before = weakly(self._before_values, None)

    def counts(self) -> tuple[int, int, int]:
        """Runs that have ended, arenas, and bytes of all arenas."""
        with self._changed:
            return sum(s.done for s in self._all), len(self._all), sum(s.memory.nbytes for s in self._all)

    def program_bytes(self) -> int:
        """Bytes of the programs and of what is made of them in the arenas."""
        with self._changed:
            return self._program_bytes()

    def _program_bytes(self) -> int:
        return self._kept.nbytes + sum(s.call_bytes() for s in self._all)

    def settle(self, executable: Executable) -> None:
        """Count what was planned or made for a program that is to run, and drop others where there is no room."""
        self._kept.weigh(executable)
        with self._changed:
            self._drop_programs({executable})

    def drop(self, executable: Executable) -> None:
        """Keep a program no longer."""
        self._kept.drop(executable)
        with self._changed:
            for arena in self._all:
                arena.drop(executable)

    def _before_values(self, nbytes: int) -> None:
        """Make room for values whose size data decide."""
        if self._programs + nbytes > self._room_for_programs():
            with self._changed:
                self._drop_programs(set(), nbytes)

    def _drop_programs(self, spared: set[Executable], more: int = 0, free: Iterable[Arena] = ()) -> None:
        """Drop programs until they, and `more` bytes, fit beside the arenas, or until only those are left that run or
        are spared; for the holder of the lock, which may have the `free` arenas."""
        held = self._programs = self._program_bytes()
        room = self._room_for_programs() - more
        if held <= room and not self._kept.too_many():
            return
        idle = {id(s) for s in (*self._free, *free)}
        spared = spared | {s.running for s in self._all if id(s) not in idle and s.running is not None}
        self._kept.refresh()
        while held > room or self._kept.too_many():
            before = self._kept.nbytes
            gone = self._kept.evict(spared)
            if gone is None:
                break
            held -= before - self._kept.nbytes + sum(s.drop(gone) for s in self._all)
        self._programs = held

    def _room_for_programs(self) -> int:
        if self.ceiling is None:
            return self._kept.usual_bytes
        return self.ceiling - sum(int(s.memory.nbytes) for s in self._all) - self._pool.held()

    def instance(self, executable: Executable) -> Instance | None:
        """An instance of a program, if there is one."""
        with self._changed:
            return next((s.instances[executable] for s in self._all if executable in s.instances), None)

    def forget_replays(self) -> None:
        """Let no run go the shortest way any more: the instances behind it are to be made anew."""
        with self._changed:
            for arena in self._all:
                arena.replays.clear()

    def trim(self) -> int:
        """Give back arenas that nobody uses and what the pool keeps; returns the bytes."""
        with self._changed, self._drained() as free:
            return sum(s.clear() for s in free) + self._pool.trim()

    def borrow(self, nbytes: int, until: float | None, executable: Executable) -> Loan:
        """An arena that has `nbytes` for a run of `executable`; waits for one until the clock shows `until`. At once if
        nobody waits and the free arena on top has an instance of it.

        Raises DeadlineError, or BudgetError if the ceiling has no room even when nothing else runs.
        """
        arena = self._on_top(executable) or self._take(nbytes, until, executable)
        arena.running = executable
        return Loan(self, arena)

    def replay(self, known: Any, feeds: Mapping[str, Any], outputs: Mapping[str, Any]) -> dict[str, Any] | None:
        """A run of a kind that was seen before, in the free arena on top, at once or not at all (None)."""
        if self._queue:
            return None
        try:
            arena = self._free.pop()
        except IndexError:
            return None
        replay = arena.replays.get(known)
        ran = replay is not None
        try:
            if replay is None:
                return None
            arena.running = known.executable
            answer = replay(feeds, outputs)
            ran = answer is not None
            return answer
        finally:
            arena.done += ran
            self._free.append(arena)
            if self._queue or self.ceiling is not None:
                self._tell()

    def _on_top(self, executable: Executable) -> Arena | None:
        """The free arena on top, if it has an instance of `executable`."""
        if self._queue:
            return None
        try:
            arena = self._free.pop()
        except IndexError:
            return None
        if executable in arena.instances:
            return arena
        self._back(arena)
        return None

    def give(self, arena: Arena) -> None:
        """Take an arena back, of a run that has ended."""
        arena.done += 1
        self._back(arena)

    def _back(self, arena: Arena) -> None:
        # Who waits has put a ticket into the queue before looking for arenas: either it finds this one, or its ticket
        # is seen here.
        self._free.append(arena)
        if self._queue or self.ceiling is not None:
            self._tell()

    def _tell(self) -> None:
        """Tell those who wait that an arena is free."""
        with self._changed:
            self._pool.room = self._room()
            self._changed.notify_all()

    @contextmanager
    def _drained(self) -> Iterator[list[Arena]]:
        """Yield all free arenas, for the holder of the lock; those left in the list are free again afterwards."""
        free: list[Arena] = []
        try:
            while True:
                free.append(self._free.pop())
        except IndexError:
            free.reverse()
        try:
            yield free
        finally:
            self._free.extend(free)

    def _take(self, nbytes: int, until: float | None, executable: Executable) -> Arena:
        ticket = object()
        with self._changed:
            self._queue.append(ticket)
            try:
                while True:
                    if self._queue[0] is ticket:  # whoever came first is served first
                        with self._drained() as free:
                            arena = self._claim(nbytes, free, executable) if free or self._may_grow(nbytes) else None
                        if arena is not None:
                            return arena
                    left = None if until is None else until - monotonic()
                    if left is not None and left <= 0:
                        most = max(self.most, len(self._all))
                        raise DeadlineError(
                            f"no instance was free before the deadline; {most} runs may go on at once",
                            where=self._owner,
                            hint="allow more with instances= or max_memory=, or a longer deadline",
                        )
                    self._changed.wait(left)
            finally:
                self._queue.remove(ticket)
                if self._queue:
                    self._changed.notify_all()

    def _may_grow(self, nbytes: int) -> bool:
        """Return True if there may be one more arena."""
        return len(self._all) < self.most or sum(int(s.memory.nbytes) for s in self._all) + nbytes <= self._spare

    def _claim(self, nbytes: int, free: list[Arena], executable: Executable) -> Arena | None:
        """The free arena that fits best, grown if the ceiling allows; None to wait for other runs to end."""
        fitting = [s for s in free if s.memory.nbytes >= nbytes]
        arena = min(fitting, key=lambda s: s.memory.nbytes, default=None)
        if arena is None:
            arena = free[-1] if free else Arena(self._executor)
            if not self._make_room(nbytes, arena, free):
                if len(free) < len(self._all):
                    return None
                raise BudgetError(
                    f"this run needs an arena of {nbytes} bytes, max_memory is {self.ceiling}",
                    where=self._owner,
                    hint="raise max_memory, or run smaller inputs (`mezzo explain --budget` tells the largest batch)",
                )
            arena.fit(self._with_slack(nbytes, arena))
            if self.ceiling is not None:
                self._drop_programs({executable}, free=free)
        if arena in free:
            free.remove(arena)
        else:
            self._all.append(arena)
        self._pool.room = self._room()
        return arena

    def _make_room(self, nbytes: int, arena: Arena, free: list[Arena]) -> bool:
        """Return True if an arena of `nbytes` fits under the ceiling, after idle memory is released."""
        if self.ceiling is None:
            return True
        taken = sum(int(s.memory.nbytes) for s in self._all if s is not arena)
        if taken + self._pool.held() + nbytes > self.ceiling:
            self._pool.trim()
            for other in free:
                if other is not arena:
                    taken -= other.clear()
        return taken + self._pool.held() + nbytes <= self.ceiling

    def _with_slack(self, nbytes: int, arena: Arena) -> int:
        """Return how large an arena becomes: half as large again as it was, if the ceiling allows. To outgrow it
        costs all its instances, and sizes that grow by one (a decoder's cache) would outgrow it in every run."""
        wanted = max(nbytes, int(arena.memory.nbytes) * 3 // 2)
        if self.ceiling is None:
            return wanted
        others = sum(int(s.memory.nbytes) for s in self._all if s is not arena)
        return max(nbytes, min(wanted, self.ceiling - others - self._pool.held() - self._program_bytes()))

    def _room(self) -> int | None:
        """Return the bytes that the ceiling leaves for the pool."""
        if self.ceiling is None:
            return None
        return self.ceiling - sum(int(s.memory.nbytes) for s in self._all)
