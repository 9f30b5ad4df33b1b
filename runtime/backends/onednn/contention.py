"""Contention for processors: how long threads of this process wait for one, and what other processes take."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Mapping
from functools import cache
from time import monotonic
from typing import Any

from ....ops.dataclasses import dataclass
from ...environment import quota

SPINNING = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")  # set by the user: it stands
# Of the seconds in which threads computed or waited for a processor, the share in which they may wait: where two of a
# process meet on one processor by chance it is a quarter, and they part soon; beside others it is a third or more.
WAITED = 0.27
LEAST = 0.01  # seconds of computing and waiting that tell anything
SHARE = 0.2  # of the time, that a thread which wants a processor computes or waits for one
UNSURE = 0.25  # of a processor, by which what the processors' clocks tell may be off
REST, LONGEST_REST = 0.1, 4.0  # seconds before threads spin long again: the first time, and after many relapses
SOON = 0.5  # seconds after which it is no relapse that threads wait for processors again
TASKS = b"/proc/self/task"


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds until the moment `at`: for each thread of this process those in which it computed, and in which it waited
    for a processor; and those in which the processors that it may use were busy, whoever computed, None if not asked
    for."""

    at: float
    threads: Mapping[str, tuple[float, float]]
    busy: float | None = None


class Policy:
    """State machine that decides whether threads without work spin only briefly; it is told times, and does nothing.

    They spin briefly as soon as threads of this process wait for processors, since a spinning one may take what another
    waits for. That they wait no longer then tells nothing: they spin long again after a rest in which no more threads,
    of whatever process, wanted processors than there are, and after twice that rest if they had to stop soon.
    """

    def __init__(self, start: Times, processors: int) -> None:
        self.brief = False
        self._last, self._processors = start, processors
        self._rest, self._changed = REST, -SOON

    def decide(self, now: Times) -> bool:
        """Return whether threads are to spin briefly from now on."""
        last = self._last
        began = [last.threads.get(thread, (0.0, 0.0)) for thread in now.threads]
        computed = [end[0] - begin[0] for end, begin in zip(now.threads.values(), began, strict=True)]
        waited = [end[1] - begin[1] for end, begin in zip(now.threads.values(), began, strict=True)]
        if self.brief:
            passed = now.at - last.at
            if now.busy is None or last.busy is None:
                self._last = now
            elif passed >= self._rest:
                wanting = sum(ran + wait > SHARE * passed for ran, wait in zip(computed, waited, strict=True))
                foreign = (now.busy - last.busy - sum(computed)) / passed
                if wanting + foreign <= self._processors + UNSURE:
                    self.brief, self._changed = False, now.at
                self._last = now
        elif sum(computed) + sum(waited) >= LEAST:
            if sum(waited) > WAITED * (sum(computed) + sum(waited)):
                soon = now.at - self._changed < SOON
                self._rest = min(2 * self._rest, LONGEST_REST) if soon else REST
                self.brief, self._changed = True, now.at
            self._last = now
        return self.brief


def times(busy: bool) -> Times:
    """Return the times of this process, and how long its processors were busy if that is asked for, as Linux counts
    them (docs.kernel.org/scheduler/sched-stats.html, proc(5)). Raises OSError or AttributeError where it does not."""
    at, threads = monotonic(), dict[str, tuple[float, float]]()
    for task in re.findall(rb"(\d+)\0", _read(TASKS, 1 << 16, directory=True)):
        try:
            computed, waited, _ = map(int, _read(b"%b/%b/schedstat" % (TASKS, task), 128).split())
        except OSError:
            continue  # the thread has ended
        threads[task.decode()] = computed / 1e9, waited / 1e9
    return Times(at, threads, _busy() / os.sysconf("SC_CLK_TCK") if busy else None)


def _busy() -> int:
    """Return the ticks for which the processors of this process were busy: idle and iowait are not."""
    mine = {b"cpu%d" % number for number in os.sched_getaffinity(0)}
    lines = [line.split() for line in _read(b"/proc/stat", 1 << 16).split(b"\n") if line.startswith(b"cpu")]
    return sum(int(ticks) for name, *counts in lines if name in mine for ticks in (*counts[:3], *counts[5:7]))


def _read(path: bytes, most: int, directory: bool = False) -> bytes:
    """Return the first bytes of a file of the kernel, or the entries of a directory as getdents64(2) gives them.

    Python's lock is kept: beside a computing thread each call of `os` lets go of it for 5 ms.
    """
    libc, buffer = _libc(), ctypes.create_string_buffer(most)
    file = libc.open(path, os.O_RDONLY)
    size = (libc.getdents64 if directory else libc.read)(file, buffer, most)
    libc.close(file)
    if size < 0:
        raise OSError(f"{os.fsdecode(path)} cannot be read")
    return buffer.raw[:size]


@cache
def _libc() -> Any:
    return ctypes.PyDLL(None)


@cache
def watchable() -> bool:
    """Return True if it is known here who waits for processors: on Linux, where the user has set no bound himself, and
    no quota is used up by threads that spin."""
    if any(name in os.environ for name in SPINNING) or quota() is not None:
        return False
    try:
        return bool(times(True).threads)
    except (OSError, ValueError, AttributeError):
        return False
