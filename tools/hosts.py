"""The processes of a job on several hosts, which a shell (ssh) starts there."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..kvstore.address import ReservedPort
from ..kvstore.environment import ATTEMPT, Environment, Role
from ..kvstore.schedulers import reaches
from ..ops.errors import InputError
from .crew import Member
from .launch import ROLE, TUNED, key_of_job
from .remote import asked, through

CARRIED = ("MEZZO_", "OMP_")  # variables that hosts are told besides those of the job


def members_on(
    hosts: Sequence[str],
    command: Sequence[str],
    workers: int,
    attempt: int,
    told: Mapping[str, str],
    shell: str,
    address: str | None,
) -> tuple[Member, ...]:
    """The processes of a job whose workers are shared out among hosts in their order, each with a server; the scheduler
    is here, at an address that they reach. All have the same Python and files at the same places.

    Raises InputError for fewer workers than hosts, a host that is there twice, and where no address is known.
    """
    count = len(hosts)
    if len({*hosts}) < count or workers < count:
        raise InputError(f"{workers} workers on hosts {', '.join(hosts)}", where="launch", hint="name each once")
    root = address or _seen_from(hosts[0])
    key, key_file = key_of_job()
    port = _reserved(root)
    job = Environment("scheduler", (root, port.number), workers, count, socket.gethostname(), bind=root, key=key)
    job = replace(job, key_file=key_file)
    carried = {n: v for n, v in os.environ.items() if n.startswith(CARRIED)}
    carried |= {"PYTHONUNBUFFERED": "1", ATTEMPT: str(attempt)}

    def member(role: Role, rank: int, at: int, command: Sequence[str]) -> Member:
        mine = job.as_role(role, rank, hosts[at]).variables()
        given = {n: v for n, v in mine.items() if n not in TUNED or n in os.environ}
        given = {**carried, **given, **(told if role == "worker" else {})}
        line = asked(command, given, root, max(1, workers // count))
        return Member(role, rank, through(shell, hosts[at]), os.environ, told=line)

    here = {**os.environ, **carried, **job.variables()}
    return (
        Member("scheduler", 0, ROLE, here, port=port),
        *(member("server", i, i, ROLE) for i in range(count)),
        *(member("worker", i, i * count // workers, command) for i in range(workers)),
    )


def _seen_from(host: str) -> str:
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
