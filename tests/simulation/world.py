"""Virtual time, a queue of events, and processes that run one at a time.

A process is a thread that has the turn or waits for it, so that code which waits in the middle of a call can be run as
it is. Whatever is decided by chance is decided by the seed: two runs of one seed do the same in the same order.
"""

from __future__ import annotations

import _thread
import heapq
import os
import random
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from mezzo.ops.errors import MezzoError

NEVER = 1e5  # seconds
MOST = 60_000  # events of a run; more are a run that never ends


class Killed(BaseException):
    """Ends the thread of a process that was killed."""


class Violation(AssertionError):
    """Something does not hold that must."""


class Process:
    """One process of a job."""

    def __init__(self, world: World, name: str, machine: str, main: Callable[[], None]) -> None:
        self.world, self.name, self.machine, self._main = world, name, machine, main
        self.error: MezzoError | None = None
        self.over = self.dead = self.frozen = False
        self.ended_at = 0.0
        self.frozen_at: list[tuple[float, float]] = []  # from, until
        self.closings: list[Callable[[], None]] = []  # what the kernel does when it ends
        self.errands: list[Callable[[], None]] = []  # what it is to do as soon as it looks
        self.fuse = 0  # how many words it writes to memory that outlives it before it dies, if at all
        self._turn = _thread.allocate_lock()
        self._turn.acquire()
        self._waits = 0  # number of the wait in progress, or 0
        self._number = 0
        self._owed = False  # a turn that came while it was frozen

    def start(self) -> None:
        self._waits = self._number = 1
        _thread.start_new_thread(self._run, ())
        self.poke()

    def _run(self) -> None:
        self._turn.acquire()
        try:
            if not self.dead:
                self._main()
        except Killed:
            pass
        except MezzoError as error:
            self.error = error
        except Violation as violation:
            self.world.violate(str(violation))
        except BaseException:
            if not self.dead:
                self.world.violate(f"{self.name} has crashed:\n{traceback.format_exc()}")
        try:
            if not self.dead:
                self._end(self.error.message if self.error else "well")
        finally:  # also where it has crashed amid something that cannot be closed
            self.world.give_back()

    def _end(self, how: str) -> None:
        self.over, self.ended_at = True, self.world.now
        self.world.note(f"{self.name} ends: {how}")
        for close in self.closings:
            close()

    # --- called by the process itself

    def wait(self, seconds: float | None) -> None:
        """Let others run until something is there for this process, or so many seconds have passed."""
        if self.dead:
            raise Killed
        self._number += 1
        self._waits = self._number
        if seconds is not None:
            self.world.after(max(seconds, 0.0), partial(self._resume, self._number))
        self.world.give_back()
        self._turn.acquire()
        if self.dead:
            raise Killed

    # --- called by anybody

    def poke(self) -> None:
        """Something is there for this process: it gets the turn soon."""
        if self._waits:
            self.world.after(self.world.chance.random() * 2e-5, partial(self._resume, self._waits))

    def _resume(self, number: int) -> None:
        if self._waits != number:
            return
        if self.frozen:
            self._owed = True
            return
        self._waits = 0
        self.world.switch(self, self._turn)

    def freeze(self, seconds: float) -> None:
        """Stop it, for so many seconds."""
        if self.over or self.frozen:
            return
        self.frozen = True
        self.frozen_at.append((self.world.now, self.world.now + seconds))
        self.world.note(f"{self.name} is frozen for {seconds:.3g} s")
        self.world.after(seconds, self._thaw)

    def _thaw(self) -> None:
        if not self.over:
            self.world.note(f"{self.name} goes on")
            self.frozen = False
            if self._owed:
                self._owed = False
                self.poke()

    def kill(self) -> None:
        """End it at once: it says nothing more, and the kernel closes what it had open."""
        if not self.over:
            self.dead = True
            self._end("killed")

    def unwind(self) -> None:
        """Let the thread of a killed process end."""
        if self._waits:
            self._waits = 0
            self.world.switch(self, self._turn)


class World:
    """All that happens."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.now = 0.0
        self.trace: list[str] = []
        self.violations: list[str] = []
        self.processes: list[Process] = []
        self.events = 0
        self._current: Process | None = None
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = 0
        self._back = _thread.allocate_lock()
        self._back.acquire()

    @property
    def current(self) -> Process:
        assert self._current is not None
        return self._current

    def number(self) -> int:
        """A number that nothing else has."""
        self._numbers += 1
        return self._numbers

    def note(self, text: str) -> None:
        self.trace.append(f"{self.now:10.6f} {text}")

    def violate(self, what: str) -> None:
        self.violations.append(f"at {self.now:.6f}: {what}")

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        self._numbers += 1
        heapq.heappush(self._queue, (self.now + seconds, self._numbers, call))

    def start(self, name: str, machine: str, main: Callable[[], None], delay: float = 0.0) -> Process:
        """Start a process, a little later."""
        process = Process(self, name, machine, main)
        self.processes.append(process)
        self.after(delay, process.start)
        return process

    def switch(self, process: Process, turn: _thread.LockType) -> None:
        """Give a process the turn until it waits again."""
        before, self._current = self._current, process
        turn.release()
        self._back.acquire()
        self._current = before

    def give_back(self) -> None:
        self._back.release()

    def run(self, until: float) -> None:
        """Until every process has ended, something does not hold, or the time is over."""
        queue = self._queue
        while queue and not self.violations:
            if self._ended():
                return
            if queue[0][0] > until:
                self.now = until
                return
            self.now, _, call = heapq.heappop(queue)
            call()
            self.events += 1
            if self.events > MOST:
                self.violate("it never ends")

    def _ended(self) -> bool:
        return all(p.over or (p.frozen and p.frozen_at[-1][1] > NEVER) for p in self.processes)

    def clear(self) -> None:
        """End the threads that are left."""
        for process in self.processes:
            if not process.over:
                process.dead = process.over = True
            process.unwind()

    # --- the clock, as the module `time` has it

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.current.wait(seconds)


@contextmanager
def one_core() -> Iterator[None]:
    """Keep the threads of this one on one core: they take turns, and a turn costs a fifth there."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {sorted(before)[os.getpid() % len(before)]})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
