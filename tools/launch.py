"""`mezzo launch`: starts the processes of a job on one machine: a scheduler, servers, and workers that run a script.

Each process is told who it is by the environment (kvstore/environment.py) and has a process group of its own, so that
what it starts ends with it. Nothing is forked from a process that has run a program: this one runs none.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from ..kvstore import secret
from ..kvstore.address import ReservedPort
from ..kvstore.environment import ATTEMPT, INCARNATION, LOOPBACK, Environment, Role
from ..kvstore.onlooker import told_of
from ..ops.dataclasses import dataclass
from ..ops.errors import InputError, MissingPackage
from ..runtime.backends.cuda.driver import count
from ..runtime.backends.cuda.nvml import topology_here
from ..runtime.backends.cuda.topology import choose
from ..runtime.devices import MINE
from ..runtime.environment import processors
from ..runtime.files import replace_file
from .crew import Asked, Crew, Ended, Events, Member, Outcome
from .prefix import Printer

AWAY = 30.0  # seconds for which a process that is started again may be away
GRACE = 5.0  # seconds between asking a process to end and ending it
USAGE = 2  # the exit code of a program that was called wrongly, which would be so again
SCALES: dict[int, int] = {signal.SIGUSR1: -1, signal.SIGUSR2: 1}  # signals that ask for fewer or more workers
TUNED = (
    "MEZZO_BIND",
    "MEZZO_KV_DEADLINE",
    "MEZZO_KV_MEMORY",
    "MEZZO_KV_GRACE",
    "MEZZO_KV_REJOIN",
)  # as whoever launches has set them
NOTHING: Mapping[str, str] = MappingProxyType({})
ROLE = (sys.executable, "-m", "mezzo.kvstore.role")  # a scheduler or server needs no script


@dataclass(frozen=True, slots=True)
class Scale:
    """One attempt at a job: its number, from 0, and how many workers it has."""

    attempt: int
    workers: int


def members(
    command: Sequence[str],
    workers: int,
    servers: int,
    hosts: int = 1,
    attempt: int = 0,
    kept: bool = False,
    gpus: Sequence[int] = (),
    rejoin: bool = False,
    variables: Mapping[str, str] = NOTHING,
) -> tuple[Member, ...]:
    """The processes of a job whose workers run `command`, at a port that is kept free for them.

    `hosts` splits the workers into so many groups that take each other for other machines. Processors are shared out
    among workers, unless OMP_NUM_THREADS is set. The job has a fresh key unless one is given. `attempt` counts how
    often the job was begun before. `kept`: what servers hold outlives them in memory without a name: `launch` can then
    start one again alone, and closes it at the end. `gpus`: the GPU of each worker. `rejoin`: another worker may take
    the place of one that is killed. `variables` are those of workers besides. Raises InputError for numbers that make
    no job, and for a file that holds no key.

    >>> [m.name for m in members(["true"], workers=2, servers=1)]
    ['scheduler', 'server 0', 'worker 0', 'worker 1']
    """
    if workers < 1 or servers < 0 or not 1 <= hosts <= workers:
        raise InputError(f"{workers} workers on {hosts} hosts with {servers} servers", where="launch")
    if hosts > 1 and not servers:
        raise InputError(f"{hosts} hosts without a server", where="launch", hint="hosts meet at servers: give -s 1")
    here = socket.gethostname()
    key, key_file = key_of_job()
    port = ReservedPort()  # others start jobs, and connect, before the scheduler listens
    job = Environment("scheduler", (LOOPBACK, port.number), workers, servers, here, key=key, key_file=key_file)
    job = replace(job, grace=AWAY if kept and servers else 0.0, rejoin=AWAY if rejoin else 0.0)
    inherited = {**os.environ, "PYTHONUNBUFFERED": "1", ATTEMPT: str(attempt)}
    inherited.setdefault("OMP_NUM_THREADS", str(max(1, processors() // workers)))
    if sys.stdout.isatty():  # what they write goes through a pipe, which has no width
        inherited.setdefault("COLUMNS", str(shutil.get_terminal_size().columns - len("[worker 00] ")))

    def member(role: Role, rank: int, host: str, command: Sequence[str]) -> Member:
        mine = job.as_role(role, None if role == "scheduler" else rank, host)
        if kept and role == "server":
            mine = replace(mine, kept=os.memfd_create("mezzo server", os.MFD_CLOEXEC))
        given = {n: v for n, v in mine.variables().items() if n not in TUNED or n not in os.environ}
        if role == "worker":
            given |= variables
        if role == "worker" and gpus:
            given[MINE] = str(gpus[rank])
        listens = port if role == "scheduler" else None
        replaced = rejoin and role == "worker"
        return Member(role, rank, tuple(command), {**inherited, **given}, mine.kept, listens, replaced)

    names = [f"{here}/{i}" if hosts > 1 else here for i in range(hosts)]
    return (
        member("scheduler", 0, here, ROLE),
        *(member("server", i, here, ROLE) for i in range(servers)),
        *(member("worker", i, names[i * hosts // workers], command) for i in range(workers)),
    )


def key_of_job() -> tuple[str, str]:
    """The key of a job, and the file that it is in, if it is in one; a fresh one unless one is given. Raises InputError
    for a file that holds none."""
    key, key_file = (os.environ.get(name, "").strip() for name in ("MEZZO_JOB_KEY", secret.FILE))
    if key_file:
        secret.read_key(key_file)  # one error, not one of each process
    elif not key:
        key = secret.fresh()  # no other process of this machine can join the job, or end it
    return key, key_file


def gpus_for(workers: int) -> tuple[int, ...]:
    """A GPU of this machine for each worker, in the order of the fastest ring as far as NVML tells the paths.

    Raises MissingPackage without CuPy or a driver, InputError where there are fewer GPUs.
    """
    there = count()
    if workers > there:
        raise InputError(
            f"{workers} GPUs are asked for, and CUDA shows {there}",
            where="launch",
            hint="CUDA_VISIBLE_DEVICES may hide some; without --gpus several workers share one",
        )
    try:
        return choose(topology_here(there), workers).gpus
    except MissingPackage:  # their order is a matter of speed alone
        return tuple(range(workers))


@contextmanager
def shown(job: Callable[[Scale], Sequence[Member]], path: Path | None) -> Iterator[Callable[[Scale], Sequence[Member]]]:
    """The same, which writes for each attempt where the job is, with its key, to a file that nobody else may read; it
    is gone afterwards. Without a path nothing is written. Raises ModelError where it cannot be."""

    def begin(scale: Scale) -> Sequence[Member]:
        started = job(scale)
        if path is not None:
            replace_file(path, [told_of(Environment.read(started[0].environment))], private=True)
        return started

    try:
        yield begin
    finally:
        if path is not None:
            path.unlink(missing_ok=True)


def command_of(script: str, args: Sequence[str]) -> tuple[str, ...]:
    """Return the command line of a worker: a .py file is run by this Python, anything else is a program. Raises
    InputError if there is none."""
    if script.endswith(".py"):
        if not os.path.isfile(script):
            raise InputError("there is no such file", where=script, hint="give a Python file or a program")
        return (sys.executable, script, *args)
    program = shutil.which(script)
    if program is None:
        raise InputError("there is no such program", where=script, hint="give a Python file, or a program on the PATH")
    return (program, *args)


def launch(
    job: Sequence[Member] | Callable[[Scale], Sequence[Member]],
    *,
    grace: float = GRACE,
    bare: Collection[str] = (),
    restarts: int = 0,
    workers: int = 1,
) -> int:
    """Run a job to its end; returns 0, or the exit code of the process that failed first, which is named.

    Everything ends when one process ends badly, or when Ctrl-C (130) or SIGTERM (143) arrives: processes are asked
    to, and ended after `grace` seconds. Lines of output come out whole, behind the name of who wrote them, unless that
    is in `bare`.

    Where `job` is a function, it makes the processes anew for each attempt: after a failure (but not exit code 2, which
    programs have for wrong arguments), at most `restarts` times, and with one worker fewer or more, beginning with
    `workers`, when SIGUSR1 or SIGUSR2 asks for it. A server that a signal has ended, and whose memory is kept, is
    started again alone, and so is a worker that may rejoin; either counts as a restart.
    """
    if not hasattr(os, "killpg"):
        raise MissingPackage("this system has no process groups", where="launch", hint="it needs Linux or macOS")
    scale, events = Scale(0, workers), Events()

    def again(ended: Ended) -> Member | None:
        """A server that has not failed by itself goes on where it was, a worker where the others are."""
        nonlocal restarts
        member = ended.member
        if not ended.killed or (member.kept is None and not member.replaced) or not restarts:
            return None
        restarts -= 1
        how = "another takes its place" if member.replaced else "it starts again with what it had"
        _say(f"{ended}; {how}; {_further(restarts)}")
        times = str(int(member.environment.get(INCARNATION, "0")) + 1)
        return replace(member, environment={**member.environment, INCARNATION: times})

    with _heard(events, (signal.SIGINT, signal.SIGTERM, *(SCALES if callable(job) else ()))):
        while True:
            ended = _attempt(job(scale) if callable(job) else job, events, grace, bare, again)
            if ended.asked is not None and ended.asked.signal in SCALES:
                wanted = max(1, scale.workers + SCALES[ended.asked.signal])
                scale = Scale(scale.attempt + 1, wanted)
                _say(f"all start again, with {wanted} worker{'s' * (wanted > 1)}")
            elif ended.first is not None and ended.code != USAGE and restarts > 0:
                restarts, scale = restarts - 1, Scale(scale.attempt + 1, scale.workers)
                _say(f"all start again; {_further(restarts)}")
            else:
                return ended.code


def _further(restarts: int) -> str:
    return f"{restarts} more restart{'s' * (restarts != 1)} would follow"


def _attempt(
    job: Sequence[Member],
    events: Events,
    grace: float,
    bare: Collection[str],
    again: Callable[[Ended], Member | None],
) -> Outcome:
    """Run the processes of a job to their end."""
    with Printer([m.name for m in job], lambda: events.put(Asked(0)), bare) as printer:
        crew = Crew(events, printer)
        try:
            for member in job:
                crew.start(member)
            return crew.follow(grace, again)
        finally:
            crew.close(grace)
            for member in job:
                if member.kept is not None:
                    os.close(member.kept)
                if member.port is not None:
                    member.port.close()


def _say(text: str) -> None:
    print(f"[launch] {text}", file=sys.stderr, flush=True)


@contextmanager
def _heard(events: Events, signals: Iterable[int]) -> Iterator[None]:
    """Signals as events; outside of the main thread they are left alone."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    former = {s: signal.signal(s, lambda s, _: events.put(Asked(s))) for s in signals}
    try:
        yield
    finally:
        for s, handler in former.items():
            signal.signal(s, handler)
