"""Lanes: the threads of one resource, and the workloads that are ready for them."""

from __future__ import annotations

from _thread import LockType, allocate_lock
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from threading import Thread

from .work import READY, Workload

STALE = 64  # entries of workloads that a waiting thread took for itself, before they are looked for


def parked() -> LockType:
    """A lock to sleep on: who acquires it a second time sleeps until somebody releases it."""
    lock = allocate_lock()
    lock.acquire()
    return lock


class Lane:
    """Ready workloads, highest priority first, equal ones in the order of their pushes.

    All methods are called under the engine's lock. Threads start when there is something to do, at most `most`.
    """

    __slots__ = ("closed", "count", "heap", "idle", "most", "name", "serve", "stale", "threads")

    def __init__(self, name: str, most: int, serve: Callable[[Lane, LockType], None]) -> None:
        self.name, self.most, self.serve = name, most, serve
        self.heap: list[tuple[int, int, Workload]] = []
        self.idle: list[LockType] = []
        self.threads: list[Thread] = []
        self.count = self.stale = 0
        self.closed = False

    def put(self, work: Workload, *, wake: bool = True) -> None:
        """A workload has become ready; `wake` a thread for it, unless the caller is one that takes the next."""
        work._state = READY
        work._after = ()
        heappush(self.heap, (-work.priority, work.number, work))
        if wake:
            if self.idle:
                self.idle.pop().release()
            elif self.count < self.most:
                self._start()

    def take(self) -> Workload | None:
        """The next workload, if there is one; it is the caller's to run."""
        heap = self.heap
        while heap:
            work = heappop(heap)[2]
            if work._state == READY:
                return work
            self.stale -= 1
        return None

    def took(self, work: Workload) -> None:
        """A waiting thread has taken a workload out of turn: its entry is of no use."""
        heap = self.heap
        if heap[-1][2] is work:  # usually it was just pushed, and the last leaf of a heap may go
            heap.pop()
            return
        self.stale += 1
        if self.stale > STALE and 2 * self.stale > len(heap):
            heap[:] = [entry for entry in heap if entry[2]._state == READY]
            heapify(heap)
            self.stale = 0

    def _start(self) -> None:
        lock = parked()
        thread = Thread(target=self.serve, args=(self, lock), name=f"mezzo {self.name} {self.count}", daemon=True)
        self.count += 1
        try:
            thread.start()
        except RuntimeError:
            self.count -= 1
            if not self.count:
                raise
            self.most = self.count  # the system gives no more
        else:
            self.threads.append(thread)

    def close(self) -> None:
        """Let the threads go."""
        self.closed = True
        while self.idle:
            self.idle.pop().release()
