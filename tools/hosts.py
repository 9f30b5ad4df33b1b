"""The processes of a job on several hosts, which a shell (ssh) or a cluster's own means start there."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from ..kvstore.address import ReservedPort
from ..kvstore.environment import ATTEMPT, Environment, Role
from ..kvstore.schedulers import reaches
from ..ops.errors import InputError
from ..runtime.devices import MINE
from .crew import Member
from .launch import ROLE, TUNED, key_of_job
from .remote import asked, through

CARRIED = ("MEZZO_", "OMP_")  # variables that hosts are told besides those of the job
# Of a role on the host of a number, and the line that asks for it: the command that stands for it here, and the bytes
# with which that one's standard input begins.
Connect = Callable[[str, int, bytes], tuple[tuple[str, ...], bytes]]


def members_on(
    hosts: Sequence[str],
    shares: Sequence[int],
    command: Sequence[str],
    attempt: int,
    variables: Mapping[str, str],
    root: str,
    connect: Connect,
    *,
    gpus: int = 0,
) -> tuple[Member, ...]:
    """The processes of a job of so many workers on each host (`shares`), in the order of hosts, and a server on each;
    the scheduler is here, at an address (`root`) that they reach. All have the same Python and files at the same
    places. With `gpus` each worker sees its own alone.

    Raises InputError for a host without a worker, one that is there twice, and an address that is not of this machine.
    """
    count, workers = len(hosts), sum(shares)
    if len({*hosts}) < count or not all(shares):
        raise InputError(f"{workers} workers on hosts {', '.join(hosts)}", where="launch", hint="name each once")
    key, key_file = key_of_job()
    port = _reserved(root)
    job = Environment("scheduler", (root, port.number), workers, count, socket.gethostname(), bind=root, key=key)
    job = replace(job, key_file=key_file)
    carried = {n: v for n, v in os.environ.items() if n.startswith(CARRIED)}
    carried |= {"PYTHONUNBUFFERED": "1", ATTEMPT: str(attempt)}

    def member(role: Role, rank: int, at: int, command: Sequence[str]) -> Member:
        mine = job.as_role(role, rank, hosts[at]).variables()
        given = {n: v for n, v in mine.items() if n not in TUNED or n in os.environ}
        given = {**carried, **given, **(variables if role == "worker" else {})}
        given |= {MINE: "0"} if gpus and role == "worker" else {}
        line = asked(command, given, root, shares[at])
        here, told = connect(role, at, line)
        return Member(role, rank, here, os.environ, told=told)

    here = {**os.environ, **carried, **job.variables()}
    return (
        Member("scheduler", 0, ROLE, here, port=port),
        *(member("server", i, i, ROLE) for i in range(count)),
        *(member("worker", i, at, command) for i, at in enumerate(at for at, n in enumerate(shares) for _ in range(n))),
    )


def evenly(workers: int, hosts: int) -> list[int]:
    """The number of workers on each of so many hosts.

    >>> evenly(5, 3)
    [2, 2, 1]
    """
    return [(workers + hosts - 1 - at) // hosts for at in range(hosts)]


def by_shell(hosts: Sequence[str], shell: str) -> Connect:
    """Return how a shell such as ssh reaches hosts."""
    return lambda role, at, line: (through(shell, hosts[at]), line)


def seen_from(host: str) -> str:
    """The address at which a host reaches this machine. Raises InputError where none is known."""
    try:
        return reaches(host.rpartition("@")[2])
    except OSError as error:
        raise InputError(
            f"no address is known at which {host} reaches this machine: {error}", where="launch", hint="give --address"
        ) from error


def _reserved(address: str) -> ReservedPort:
    try:
        return ReservedPort(address)
    except OSError as error:
        raise InputError(f"{address} is no address of this machine: {error}", where="--address") from error
