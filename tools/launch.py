"""`mezzo launch`: starts the processes of a job on one machine: a scheduler, servers, and workers that run a script.

Each process is told who it is by the environment (kvstore/environment.py) and has a process group of its own, so that
what it starts ends with it. Nothing is forked from a process that has run a program: this one runs none.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from time import monotonic
from typing import IO, Any

from ..kvstore.environment import LOOPBACK, Environment, Role
from ..ops.dataclasses import dataclass, field
from ..ops.errors import InputError, MissingPackage
from ..runtime.environment import processors
from .prefix import Printer

GRACE = 5.0  # seconds between asking a process to end and ending it
SETTLE = 1.0  # seconds in which a worker's failure may be told by others before the worker itself has ended
TUNED = ("MEZZO_BIND", "MEZZO_KV_DEADLINE", "MEZZO_KV_MEMORY", "MEZZO_JOB_KEY")  # as whoever launches has set them
ROLE = (sys.executable, "-m", "mezzo.kvstore.role")  # a scheduler or server needs no script


@dataclass(frozen=True, slots=True, eq=False)
class Member:
    """One process of a job."""

    role: Role
    rank: int
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(repr=False)

    @property
    def name(self) -> str:
        return self.role if self.role == "scheduler" else f"{self.role} {self.rank}"


@dataclass(frozen=True, slots=True)
class Ended:
    """Event: a process has ended, with an exit code as in a shell: 128 plus the signal where one ended it."""

    member: Member
    code: int

    def __str__(self) -> str:
        how = f"with exit code {self.code}" if self.code < 128 else f"by {_signal_name(self.code - 128)}"
        return f"{self.member.name} ended {how}"


@dataclass(frozen=True, slots=True)
class Asked:
    """Event: the launcher itself received a signal, or (0) its output was closed."""

    signal: int


def members(command: Sequence[str], workers: int, servers: int, hosts: int = 1) -> tuple[Member, ...]:
    """The processes of a job whose workers run `command`, at a port that is free now.

    `hosts` splits the workers into so many groups that take each other for other machines. Processors are shared out
    among workers, unless OMP_NUM_THREADS is set. Raises InputError for numbers that make no job.

    >>> [m.name for m in members(["true"], workers=2, servers=1)]
    ['scheduler', 'server 0', 'worker 0', 'worker 1']
    """
    if workers < 1 or servers < 0 or not 1 <= hosts <= workers:
        raise InputError(f"{workers} workers on {hosts} hosts with {servers} servers", where="launch")
    if hosts > 1 and not servers:
        raise InputError(f"{hosts} hosts without a server", where="launch", hint="hosts meet at servers: give -s 1")
    here = socket.gethostname()
    job = Environment("scheduler", (LOOPBACK, _free_port()), workers, servers, here)
    inherited = {**os.environ, "PYTHONUNBUFFERED": "1"}
    inherited.setdefault("OMP_NUM_THREADS", str(max(1, processors() // workers)))
    if sys.stdout.isatty():  # what they write goes through a pipe, which has no width
        inherited.setdefault("COLUMNS", str(shutil.get_terminal_size().columns - len("[worker 00] ")))

    def member(role: Role, rank: int, host: str, command: Sequence[str]) -> Member:
        given = job.as_role(role, None if role == "scheduler" else rank, host).variables()
        mine = {n: v for n, v in given.items() if n not in TUNED or n not in os.environ}
        return Member(role, rank, tuple(command), {**inherited, **mine})

    names = [f"{here}/{i}" if hosts > 1 else here for i in range(hosts)]
    return (
        member("scheduler", 0, here, ROLE),
        *(member("server", i, here, ROLE) for i in range(servers)),
        *(member("worker", i, names[i * hosts // workers], command) for i in range(workers)),
    )


def command_of(script: str, args: Sequence[str]) -> tuple[str, ...]:
    """Return the command line of a worker: a .py file is run by this Python, anything else is a program. Raises
    InputError if there is none."""
    if script.endswith(".py"):
        if not os.path.isfile(script):
            raise InputError("there is no such file", where=script, hint="give a Python file or a program")
        return (sys.executable, script, *args)
    found = shutil.which(script)
    if found is None:
        raise InputError("there is no such program", where=script, hint="give a Python file, or a program on the PATH")
    return (found, *args)


def launch(job: Sequence[Member], *, grace: float = GRACE, bare: Collection[str] = ()) -> int:
    """Run a job to its end; returns 0, or the exit code of the process that failed first, which is named.

    Everything ends when one process ends badly, or when Ctrl-C (130) or SIGTERM (143) arrives: processes are asked
    to, and ended after `grace` seconds. Lines of output come out whole, behind the name of who wrote them, unless that
    is in `bare`.
    """
    if not hasattr(os, "killpg"):
        raise MissingPackage("this system has no process groups", where="launch", hint="it needs Linux or macOS")
    events: SimpleQueue[Ended | Asked] = SimpleQueue()
    with Printer([m.name for m in job], lambda: events.put(Asked(0)), bare) as printer, _heard(events):
        crew = Crew(events, printer)
        try:
            for member in job:
                crew.start(member)
            return crew.follow(grace)
        finally:
            crew.close()


class Crew:
    """The processes of a job while they run."""

    def __init__(self, events: SimpleQueue[Ended | Asked], printer: Printer) -> None:
        self._events, self._printer = events, printer
        self._processes: dict[Member, subprocess.Popen[bytes]] = {}
        self._running: set[Member] = set()
        self._readers: list[threading.Thread] = []
        self._waiters: list[threading.Thread] = []

    def start(self, member: Member) -> None:
        """Start a process, and threads that read what it writes and wait for its end."""
        process = subprocess.Popen(
            member.command,
            env=member.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self._processes[member] = process
        self._running.add(member)
        assert process.stdout is not None and process.stderr is not None
        for stream, error in ((process.stdout, False), (process.stderr, True)):
            self._readers.append(_threaded(self._read, member, stream, error))
        self._waiters.append(_threaded(self._wait, member, process.pid))

    def _read(self, member: Member, stream: IO[bytes], error: bool) -> None:
        with stream:
            for line in stream:
                self._printer.line(member.name, line, error=error)

    def _wait(self, member: Member, pid: int) -> None:
        # it is not reaped yet: its number stays that of its group until `close`
        info = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert info is not None
        self._events.put(Ended(member, info.si_status + (0 if info.si_code == os.CLD_EXITED else 128)))

    def follow(self, grace: float) -> int:
        """Wait until all have ended; the job's exit code."""
        while any(m.role == "worker" for m in self._running):
            event = self._next(None)
            if isinstance(event, Asked):
                self._end_all(grace, event.signal)
                return 128 + event.signal if event.signal else 1
            if event is not None and event.code:
                first = self._first(event)
                self._printer.note(f"{first}; {'the others are ended' if self._running else 'all have ended'}")
                self._end_all(grace)
                return first.code
        return self._ends_well(grace)

    def _ends_well(self, grace: float) -> int:
        """End the job after all workers: the other processes end by themselves if the workers have met them, and are
        asked to otherwise."""
        until, code = monotonic() + min(grace, 3.0), 0
        while self._running and (event := self._next(until)) is not None:
            if isinstance(event, Ended) and event.code:
                self._printer.note(str(event))
                code = code or event.code
        self._end_all(grace)
        return code

    def _first(self, event: Ended) -> Ended:
        """Return the failure that came first: other processes may notice a worker's failure, and end, before that
        worker has ended."""
        until = monotonic() + SETTLE
        while event.member.role != "worker":
            later = self._next(until)
            if not isinstance(later, Ended):
                break
            if later.code and later.member.role == "worker":
                event = later
        return event

    def _next(self, until: float | None) -> Ended | Asked | None:
        """The next event, or None when the clock shows `until`."""
        try:
            event = self._events.get(timeout=None if until is None else max(0.0, until - monotonic()))
        except Empty:
            return None
        if isinstance(event, Ended):
            self._running.discard(event.member)
        return event

    def _end_all(self, grace: float, asked: int = 0) -> None:
        """Ask everybody to end, then end them. Workers that Ctrl-C reached may first write what they have."""
        if asked == signal.SIGINT:
            self._signal(signal.SIGINT, [m for m in self._running if m.role == "worker"])
            self._until_ended(grace, lambda: any(m.role == "worker" for m in self._running))
        self._signal(signal.SIGTERM, self._running)
        self._until_ended(grace, lambda: bool(self._running))

    def _until_ended(self, grace: float, more: Callable[[], bool]) -> None:
        until = monotonic() + grace
        while more() and not isinstance(self._next(until), Asked | None):
            pass

    def _signal(self, number: int, those: Iterable[Member]) -> None:
        for member in list(those):
            with suppress(ProcessLookupError):
                os.killpg(self._processes[member].pid, number)

    def close(self) -> None:
        """End what is left of every group, and pass on what was written until then."""
        self._signal(signal.SIGKILL, self._processes)
        for waiter in self._waiters:
            waiter.join()
        for process in self._processes.values():
            process.wait()
        for reader in self._readers:
            reader.join(GRACE)


@contextmanager
def _heard(events: SimpleQueue[Ended | Asked]) -> Iterator[None]:
    """Signals as events; outside of the main thread they are left alone."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    former = {s: signal.signal(s, lambda s, _: events.put(Asked(s))) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for s, handler in former.items():
            signal.signal(s, handler)


def _threaded(call: Callable[..., None], *args: Any) -> threading.Thread:
    made = threading.Thread(target=call, args=args, daemon=True)
    made.start()
    return made


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
