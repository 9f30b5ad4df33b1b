"""The processes of a job while they run: started, listened to, and ended together, whatever becomes of them."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from queue import Empty, SimpleQueue
from time import monotonic
from typing import IO, Any

from ..kvstore.address import ReservedPort
from ..kvstore.environment import INCARNATION, Role
from ..ops.dataclasses import dataclass, field
from .prefix import Printer

# Seconds in which somebody else may turn out to have failed first: others tell of a process before it has ended itself.
SETTLE, AFTER_WORKER = 1.0, 0.2
LAST_WORDS = 0.3  # seconds in which servers may still tell workers that do not end at once who has failed
MARK = "LAUNCHED_BY_MEZZO"  # variable that all processes of one launcher have alike
# Ends the process groups whose numbers it reads once its input is closed without a last empty line, as it is when the
# launcher is killed; and what the launcher had started without the time to tell of it, by the mark.
GUARD = """
import glob, os, signal, sys
mark, groups = sys.argv[1].encode(), []
for line in sys.stdin:
    if not line.strip():
        sys.exit()
    groups.append(int(line))
def end(call, number):
    try:
        call(number, signal.SIGKILL)
    except OSError:
        pass
for group in groups:
    end(os.killpg, group)
for path in glob.glob("/proc/[0-9]*/environ"):
    try:
        with open(path, "rb") as file:
            marked = mark in file.read().split(b"\\0")
    except OSError:
        continue
    if marked:
        end(os.kill, int(path.split("/")[2]))
"""


@dataclass(frozen=True, slots=True, eq=False)
class Member:
    """One process of a job."""

    role: Role
    rank: int
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(repr=False)
    kept: int | None = None  # descriptor of what outlives a server, so that it can be started again alone
    port: ReservedPort | None = field(default=None, repr=False)  # where the scheduler listens, until the job has ended
    replaced: bool = False  # another worker may take its place, and the others meet it
    told: bytes = field(default=b"", repr=False)  # its standard input begins with that, and ends with the launcher

    @property
    def name(self) -> str:
        return self.role if self.role == "scheduler" else f"{self.role} {self.rank}"


@dataclass(frozen=True, slots=True)
class Ended:
    """Event: a process has ended, with an exit code as in a shell: 128 plus the signal where one ended it."""

    member: Member
    code: int
    killed: bool = False  # by a signal

    def __str__(self) -> str:
        how = f"by {_signal_name(self.code - 128)}" if self.killed else f"with exit code {self.code}"
        return f"{self.member.name} ended {how}"


@dataclass(frozen=True, slots=True)
class Asked:
    """Event: the launcher itself received a signal, or (0) its output was closed."""

    signal: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """End of a job: its exit code, the process that failed first, and what the launcher was asked."""

    code: int
    first: Ended | None = None
    asked: Asked | None = None


Events = SimpleQueue[Ended | Asked]


class Crew:
    """The processes of a job while they run. `events` may be those of an earlier crew."""

    def __init__(self, events: Events, printer: Printer) -> None:
        self._events, self._printer = events, printer
        self._processes: dict[Member, subprocess.Popen[bytes]] = {}
        self._running: set[Member] = set()
        self._readers: list[threading.Thread] = []
        self._waiters: list[threading.Thread] = []
        self._mark = secrets.token_hex(8)
        command = [sys.executable, "-I", "-S", "-c", GUARD, f"{MARK}={self._mark}"]
        self._guard = subprocess.Popen(command, stdin=subprocess.PIPE, bufsize=0, start_new_session=True)

    def start(self, member: Member) -> None:
        """Start a process, and threads that read what it writes and wait for its end."""
        process = subprocess.Popen(
            member.command,
            env={**member.environment, MARK: self._mark},
            stdin=subprocess.PIPE if member.told else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            pass_fds=() if member.kept is None else (member.kept,),
        )
        self._processes[member] = process
        self._running.add(member)
        self._tell_guard(f"{process.pid}\n")
        if process.stdin is not None:
            with suppress(BrokenPipeError):  # its end is told by its exit code
                process.stdin.write(member.told)
                process.stdin.flush()
        assert process.stdout is not None and process.stderr is not None
        for stream, error in ((process.stdout, False), (process.stderr, True)):
            self._readers.append(_threaded(self._read, member, stream, error))
        self._waiters.append(_threaded(self._wait, member, process.pid))

    def _tell_guard(self, line: str) -> None:
        assert self._guard.stdin is not None
        with suppress(BrokenPipeError):  # somebody has ended it, and the job goes on without
            self._guard.stdin.write(line.encode())

    def _read(self, member: Member, stream: IO[bytes], error: bool) -> None:
        with stream:
            for line in stream:
                self._printer.line(member.name, line, error=error)

    def _wait(self, member: Member, pid: int) -> None:
        # it is not reaped yet: its number stays that of its group until `close`
        info = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert info is not None
        killed = info.si_code != os.CLD_EXITED
        self._events.put(Ended(member, info.si_status + 128 * killed, killed))

    def follow(self, grace: float, again: Callable[[Ended], Member | None] = lambda ended: None) -> Outcome:
        """Wait until all have ended. `again` may give a process to be started in the place of one that ended badly."""
        while any(m.role == "worker" for m in self._running):
            event = self._next(None)
            if isinstance(event, Asked):
                self._end_all(grace, event.signal)
                return Outcome(128 + event.signal if event.signal else 1, asked=event)
            if event is not None and event.code:
                if another := again(event):
                    self.start(another)
                    continue
                first = self._first(event)
                if isinstance(first, Asked):
                    self._end_all(grace, first.signal)
                    return Outcome(128 + first.signal if first.signal else 1, asked=first)
                self._printer.note(f"{first}; {'the others are ended' if self._running else 'all have ended'}")
                self._end_all(grace)
                return Outcome(first.code, first)
        return self._ends_well(grace)

    def _ends_well(self, grace: float) -> Outcome:
        """End the job after all workers: the other processes end by themselves if the workers have met them, and are
        asked to otherwise. Nobody needs them any more: who is ended by a signal, or was started again and finds nobody
        to join, is no failure of the job, and no other failure begins it again."""
        until, code = monotonic() + min(grace, 3.0), 0
        while self._running and (event := self._next(until)) is not None:
            if isinstance(event, Ended) and event.code:
                self._printer.note(f"{event}, after all workers had ended well")
                code = code or (0 if event.killed or INCARNATION in event.member.environment else event.code)
        self._end_all(grace)
        return Outcome(code)

    def _first(self, event: Ended) -> Ended | Asked:
        """Return the failure that came first, since other processes may notice one, and end, before the one that failed
        has ended: a signal is nobody else's doing, and a worker fails before those that serve it."""
        until = monotonic() + (AFTER_WORKER if event.member.role == "worker" else SETTLE)
        while not event.killed and self._running:
            later = self._next(until)
            if later is None or isinstance(later, Asked):
                return later or event
            if later.killed or (later.code and later.member.role == "worker" != event.member.role):
                event, until = later, min(until, monotonic() + AFTER_WORKER)
        return event

    def _next(self, until: float | None) -> Ended | Asked | None:
        """The next event, or None when the clock shows `until`."""
        while True:
            try:
                event = self._events.get(timeout=None if until is None else max(0.0, until - monotonic()))
            except Empty:
                return None
            if isinstance(event, Asked):
                return event
            if event.member in self._processes:
                self._running.discard(event.member)
                return event

    def _end_all(self, grace: float, asked: int = 0) -> None:
        """Ask everybody to end, then end them: workers first, since who serves them has to tell them which one failed.
        Workers that Ctrl-C reached may write what they have before."""
        if asked == signal.SIGINT:
            self._signal(signal.SIGINT, [m for m in self._running if m.role == "worker"])
            self._until_ended(grace, lambda: any(m.role == "worker" for m in self._running))
        workers = [m for m in self._running if m.role == "worker"]
        self._signal(signal.SIGTERM, workers)
        self._until_ended(min(grace, LAST_WORDS), lambda: any(m.role == "worker" for m in self._running))
        self._signal(signal.SIGTERM, [m for m in self._running if m not in workers])
        self._until_ended(grace, lambda: bool(self._running))

    def _until_ended(self, grace: float, more: Callable[[], bool]) -> None:
        until = monotonic() + grace
        while more() and not isinstance(self._next(until), Asked | None):
            pass

    def _signal(self, number: int, those: Iterable[Member]) -> None:
        for member in list(those):
            with suppress(ProcessLookupError):
                os.killpg(self._processes[member].pid, number)

    def close(self, grace: float) -> None:
        """End what is left of every group, and pass on what was written until then."""
        self._signal(signal.SIGKILL, self._processes)
        for waiter in self._waiters:
            waiter.join()
        self._tell_guard("\n")  # before the numbers of groups become free
        assert self._guard.stdin is not None
        self._guard.stdin.close()
        for process in (*self._processes.values(), self._guard):
            process.wait()
            if process.stdin is not None:
                with suppress(BrokenPipeError):
                    process.stdin.close()
        for reader in self._readers:
            reader.join(grace)


def _threaded(call: Callable[..., None], *args: Any) -> threading.Thread:
    thread = threading.Thread(target=call, args=args, daemon=True)
    thread.start()
    return thread


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
