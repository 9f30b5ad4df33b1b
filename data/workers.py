"""The worker processes of a DataLoader as the trainer sees them: who makes which batch, and what becomes of it when a
worker dies.

A worker that dies is replaced, and makes its batches again: each answer arrives whole or not at all, so that no batch
is lost and none comes twice. A sample in which workers died `DEATHS` times before
it came is bad.
"""

from __future__ import annotations

import mmap
import multiprocessing
import os
import selectors
import signal
import socket
import weakref
from collections import Counter, deque
from contextlib import suppress
from time import monotonic
from typing import Any

import numpy as np

from ..kvstore.host.memory import create
from ..ops.dataclasses import dataclass, field, replace
from ..ops.errors import DeadlineError, ExecutionError, ForkedProcess, InputError, MezzoError
from ..ops.types import Array
from . import channel
from .making import BadSample, Made, Maker, Task, bad_sample
from .segments import Borrowed, view
from .tree import unpacked
from .worker import CELLS, described, run

DEATHS = 3  # in one sample
KILLED_STARTS = 20  # in a row, of workers that were killed before they began
STARTING = 120.0  # seconds that a worker has to begin
ENDING = 5.0  # seconds that one has to end


@dataclass(slots=True, eq=False)
class _Member:
    """One worker process: its tasks in the order in which it makes them."""

    number: int
    process: Any
    sock: socket.socket
    page: Array
    borrowed: Borrowed = field(default_factory=Borrowed)
    tasks: dict[int, Task] = field(default_factory=dict[int, Task])
    ready: bool = False


class Workers:
    """Some processes that make batches. Not for several threads at once.

    Raises InputError for a dataset that cannot be sent to another process.
    """

    def __init__(self, maker: Maker, count: int, start: str, depth: int) -> None:
        if not hasattr(os, "memfd_create"):
            raise MezzoError(
                "this system has no anonymous shared memory", where="DataLoader", hint="threads=True needs none"
            )
        self._maker, self._depth, self._owner = maker, depth, os.getpid()
        self._context = _context(start)
        self._members: list[_Member] = []
        self._selector = selectors.DefaultSelector()
        self._end = weakref.finalize(self, _end, self._members, self._selector, os.getpid())
        self._waiting: deque[Task] = deque()
        self._done: dict[int, Made | MezzoError] = {}
        self._dropped: set[int] = set()
        self._deaths: Counter[int] = Counter()
        self._failed_starts = 0
        self.died = 0
        try:
            for number in range(count):
                self._members.append(self._begun(number))
        except BaseException:
            self.close()
            raise

    def _begun(self, number: int) -> _Member:
        ours, theirs = socket.socketpair()
        fd = create(mmap.PAGESIZE, "DataLoader")
        try:
            page = np.frombuffer(mmap.mmap(fd, mmap.PAGESIZE), np.int64, CELLS)
            page[:] = -1
            process = self._context.Process(target=run, args=(theirs, self._maker), name=f"data {number}", daemon=True)
            try:
                process.start()
            except (AttributeError, TypeError, ValueError, AssertionError) as error:  # of the standard library's copy
                ours.close()
                raise InputError(
                    f"the dataset cannot be sent to another process: {error}",
                    where="DataLoader",
                    hint="functions stand in modules that can be imported, and no lambda is among them; threads=True "
                    "needs no copy",
                ) from error
            member = _Member(number, process, ours, page)
            ours.settimeout(STARTING)
            self._selector.register(ours, selectors.EVENT_READ, member)
            with suppress(channel.Closed):  # it has died, which the next read tells
                channel.send(ours, {"worker": number}, [fd])
        finally:
            theirs.close()
            os.close(fd)
        return member

    # -- tasks ------------------------------------------------------------------------------------------------------

    def push(self, task: Task) -> None:
        """Have a batch made."""
        self._ours()
        self._waiting.append(task)
        self._hand_out()

    def drop(self, number: int) -> None:
        """Nobody wants this batch any more."""
        for task in [t for t in self._waiting if t.number == number]:
            self._waiting.remove(task)
            return
        if self._done.pop(number, None) is None:
            self._dropped.add(number)

    def take(self, number: int, timeout: float) -> Made:
        """Wait for a batch. Raises its error, BadSample, and DeadlineError where nothing came for `timeout` seconds."""
        self._ours()
        began = monotonic()
        while number not in self._done:
            starting = any(not m.ready for m in self._members)
            left = began + (max(timeout, STARTING) if starting else timeout) - monotonic()
            if left <= 0:
                raise self._too_late(number, timeout)
            if self._collect(left):
                began = monotonic()
        result = self._done.pop(number)
        if isinstance(result, MezzoError):
            raise result
        return result

    def _hand_out(self) -> None:
        """Give waiting tasks to the workers that have least to do."""
        while self._waiting:
            member = min(self._members, key=lambda m: len(m.tasks))
            if len(member.tasks) >= self._depth:
                return
            task = self._waiting.popleft()
            member.tasks[task.number] = task
            self._tell(member, {"task": described(task)})

    def _tell(self, member: _Member, message: dict[str, Any]) -> None:
        with suppress(channel.Closed):  # it has died: reading tells, and its tasks are handed out again
            channel.send(member.sock, {**message, "free": member.borrowed.returned()})

    def _collect(self, timeout: float) -> bool:
        """Wait for messages and take them in; true if there were any."""
        ready = self._selector.select(timeout)
        for key, _ in ready:
            member: _Member = key.data
            try:
                message, descriptors = channel.receive(member.sock)
            except channel.Closed:
                self._died(member)
            else:
                self._heard(member, message, descriptors)
        self._hand_out()
        return bool(ready)

    def _heard(self, member: _Member, message: dict[str, Any], descriptors: list[int]) -> None:
        if "ready" in message:
            member.ready, self._failed_starts = True, 0
            return
        for number, fd in zip(message["fresh"], descriptors, strict=True):
            member.borrowed.add(number, fd)
            os.close(fd)
        for number in message["dropped"]:
            member.borrowed.segments.pop(number, None)
        if "number" not in message:
            return
        number = message["number"]
        task = member.tasks.pop(number)
        if "error" in message:
            result: Made | MezzoError = _error(message["error"])
        else:
            if self._deaths:  # whoever died in a sample that has come was killed by something else
                for sample in np.delete(task.numbers, list(task.without)).tolist():
                    self._deaths.pop(sample, None)
            leased = member.borrowed.lease(message["segments"])

            def find(segment: int, offset: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
                return np.empty(shape, dtype) if segment < 0 else view(leased[segment], offset, shape, dtype)

            batch = unpacked(message["tree"], find)
            skipped = [(str(n), str(w)) for n, w in message["skipped"]]
            skipped += [(self._maker.dataset.name(int(task.numbers[at])), "workers died in it") for at in task.without]
            result = Made(batch, message["samples"], message["times"], skipped)
        if number in self._dropped:
            self._dropped.discard(number)
        else:
            self._done[number] = result

    # -- deaths -----------------------------------------------------------------------------------------------------

    def _died(self, member: _Member) -> None:
        """Replace a worker, and have its batches made again."""
        self.died += 1
        self._selector.unregister(member.sock)
        member.sock.close()
        member.process.join(ENDING)
        how = _ending(member.process)
        member.process.kill()
        if not member.ready:
            self._failed_starts += 1  # whoever ends by itself will do so again, a signal may be somebody's
            if (member.process.exitcode or 0) >= 0 or self._failed_starts >= KILLED_STARTS:
                raise ExecutionError(
                    f"workers end while they begin ({how})",
                    where="DataLoader",
                    hint="does the script start under `if __name__ == '__main__':`, and can its modules be imported? "
                    "What they print tells more",
                )
        tasks = list(member.tasks.values())
        at, place, number = map(int, member.page)
        for i, task in enumerate(tasks):
            if task.number == at and number >= 0:
                tasks[i] = self._blamed(task, place, number, how)
        again = [t for t in tasks if t.number not in self._dropped and t.number not in self._done]
        self._dropped -= {t.number for t in tasks}
        self._waiting.extendleft(reversed(again))
        self._members[self._members.index(member)] = self._begun(member.number)

    def _blamed(self, task: Task, place: int, number: int, how: str) -> Task:
        """The task without a sample that has killed workers before, or as it was."""
        self._deaths[number] += 1
        if self._deaths[number] < DEATHS:
            return task
        if self._maker.bad == "skip":
            return replace(task, without=(*task.without, place))
        name = self._maker.dataset.name(number)
        self._done[task.number] = bad_sample(name, f"{DEATHS} workers died in it ({how})")
        del self._deaths[number]
        return task

    def _too_late(self, number: int, timeout: float) -> DeadlineError:
        busy = [m for m in self._members if number in m.tasks]
        now = next((m for m in busy if int(m.page[0]) >= 0), None)
        sample = int(now.page[2]) if now is not None else -1
        doing = f", busy with {self._maker.dataset.name(sample)}" if sample >= 0 else ""
        return DeadlineError(
            f"no batch came for {timeout:g} seconds{doing}", where="DataLoader", hint="timeout= gives more time"
        )

    def _ours(self) -> None:
        if os.getpid() != self._owner:
            raise ForkedProcess(
                "the workers belong to the process that this one was forked from",
                where="DataLoader",
                hint="make a loader in the child",
            )
        if not self._end.alive:
            raise InputError("the loader is closed", where="DataLoader", hint="make a new one")

    @property
    def pids(self) -> list[int]:
        """The processes that run now."""
        return [m.process.pid for m in self._members]

    def close(self) -> None:
        """End the processes. Batches that somebody holds stay valid."""
        self._end()


def _end(members: list[_Member], selector: selectors.BaseSelector, owner: int) -> None:
    if os.getpid() != owner:
        return
    selector.close()
    for member in members:
        member.sock.close()
    until = monotonic() + ENDING
    for member in members:
        member.process.join(max(until - monotonic(), 0.1))
        if member.process.exitcode is None:
            member.process.kill()
            member.process.join(ENDING)
    members.clear()


def _error(told: dict[str, Any]) -> MezzoError:
    """An error of a worker, with its trace as a note."""
    kind = BadSample if told["name"] else ExecutionError
    error = kind(told["message"], where=told["where"] or "DataLoader", hint=told["hint"])
    if isinstance(error, BadSample):
        error.name = told["name"]
    error.add_note("in a worker process:\n" + told["trace"])
    return error


def _ending(process: Any) -> str:
    """The end of a process in words."""
    code = process.exitcode
    if code is None:
        return "it does not answer"
    if code < 0:
        return signal.Signals(-code).name if -code in iter(signal.Signals) else f"signal {-code}"
    return f"exit code {code}"


def _context(start: str) -> Any:
    """The way to start processes; never a plain fork."""
    known = ("forkserver", "spawn")
    if start not in known:
        raise InputError(
            f"start={start!r}", where="DataLoader", hint="'forkserver' or 'spawn': threads do not survive a fork"
        )
    context = multiprocessing.get_context(start)
    if start == "forkserver":
        from multiprocessing import forkserver

        server: Any = getattr(forkserver, "_forkserver", None)
        listed = list(getattr(server, "_preload_modules", ["__main__"]))
        if __package__ + ".worker" not in listed:  # once there, each worker begins in milliseconds
            context.set_forkserver_preload([*listed, __package__ + ".worker"])
    return context
