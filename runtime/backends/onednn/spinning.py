"""Spinning of OpenMP's threads, which look for work before they sleep: long while the processors are this process's
own, briefly while others want them.

A thread that sleeps takes 50 µs to wake, at each of the hundreds of steps of a run; one that looks takes a processor
from whoever wants it, which may be the thread that it waits for. GNU's OpenMP reads its bound (`GOMP_SPINCOUNT`) once,
but looks a thousand times at most while it has more threads than there are processors (libgomp's manual; a hundred
times without `OMP_WAIT_POLICY=active`): a team that does nothing makes it so, and when it goes the bound holds again.
"""

from __future__ import annotations

import ctypes
import os
import threading
from functools import cache
from time import thread_time
from typing import Any

from .contention import Policy, times, watchable
from .library import library

PERIOD = 0.05  # seconds between two looks at the processors


class IdleTeam:
    """As many threads of OpenMP as there are processors, which do nothing: with those that compute, there are more."""

    def __init__(self, openmp: Any) -> None:
        self._openmp, self._threads = openmp, max(2, int(openmp.omp_get_num_procs()))
        self._ends: threading.Lock | None = None
        self._thread: threading.Thread | None = None

    def keep(self, wanted: bool) -> None:
        """Have the team from now on, or no longer."""
        if wanted and self._ends is None:
            self._ends = threading.Lock()
            self._ends.acquire()
            self._thread = threading.Thread(target=self._hold, args=(self._ends,), name="mezzo-idle-team", daemon=True)
            self._thread.start()
        elif not wanted and self._ends is not None:
            self._ends.release()
            self._ends = None

    def end(self) -> None:
        """End the team, and wait until it is gone."""
        thread, self._thread = self._thread, None
        self.keep(False)
        if thread is not None:
            thread.join()

    def _hold(self, ends: threading.Lock) -> None:
        # a region of the number of threads, in each of which OpenMP only tells which one it is
        openmp = self._openmp
        openmp.GOMP_parallel(openmp.omp_get_thread_num, None, self._threads, 0)
        ends.acquire()  # the team ends with the thread that made it


class SpinWatch:
    """A look at the processors, which runs take from `next` on, and which comes every 50 ms."""

    def __init__(self, team: IdleTeam) -> None:
        start = times(False)
        self._policy = Policy(start, len(os.sched_getaffinity(0)))
        self._team, self.next = team, start.at + PERIOD
        self._looking = threading.Lock()
        if hasattr(os, "register_at_fork"):  # a child would count threads that it does not have
            os.register_at_fork(before=self._pause, after_in_parent=self._go_on, after_in_child=self._go_on)

    def look(self) -> None:
        """Let OpenMP's threads look long or briefly, as the processors are wanted now; any thread may call."""
        if not self._looking.acquire(blocking=False):
            return
        try:
            began = thread_time()
            now = times(self._policy.brief)
            took = thread_time() - began
            self.next = now.at + max(PERIOD, 100 * took)  # of a process of many threads, 1 % of its time
            self._team.keep(self._policy.decide(now))
        finally:
            self._looking.release()

    def _pause(self) -> None:
        self._looking.acquire()
        self._team.end()

    def _go_on(self) -> None:
        self._looking.release()


@cache
def watch() -> SpinWatch | None:
    """Return what looks at the processors before runs on several threads; None where there is nothing to decide."""
    onednn = library()
    openmp = None if onednn is None else onednn.handle
    if openmp is None or not hasattr(openmp, "GOMP_parallel") or not watchable():
        return None
    openmp.GOMP_parallel.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
    openmp.GOMP_parallel.restype = None
    return SpinWatch(IdleTeam(openmp))
