"""Environment variables that a launcher sets for each process of a job, as one frozen dataclass.

The names are those of MXNet's parameter server (https://mxnet.apache.org/versions/1.9.1/api/faq/distributed_training),
so that its launchers start ours; those with MEZZO_ are our own and may be absent. Where none of MXNet's is there, what
torchrun, Open MPI and Slurm tell stands for them (`schedulers.py`).

| variable | means | default |
|---|---|---|
| DMLC_ROLE | worker, server or scheduler | required |
| DMLC_PS_ROOT_URI | address of the scheduler | required |
| DMLC_PS_ROOT_PORT | its port | required |
| DMLC_NUM_WORKER | how many workers the job has | required |
| DMLC_NUM_SERVER | how many servers; 0: the workers of one host serve each other | required |
| MEZZO_HOST | workers with one name share memory, and so do servers with it | name of the machine |
| MEZZO_RANK | the rank that a worker or server asks for | in order of arrival |
| MEZZO_BIND | address at which this process listens | 127.0.0.1 |
| MEZZO_KV_DEADLINE | seconds after which a wait is an error | 120 |
| MEZZO_KV_MEMORY | MiB that a server or agent may take for values | half of the machine's |
| MEZZO_KV_GRACE | seconds for which a server that is started again may be away | 0: its end is that of the job |
| MEZZO_KV_REJOIN | seconds in which all meet again, another in the place of a worker that died | 0: that ends the job |
| MEZZO_KV_KEPT | descriptor of a file without a name, in which a server keeps what must outlive it | none |
| MEZZO_KV_LASTS | descriptor that the agent of a host holds open: who has the other end learns when it is gone | none |
| MEZZO_INCARNATION | how often this process was started again in its place | 0 |
| MEZZO_JOB_KEY | the secret of the job: where one process has it, every connection proves it at both ends | none |
| MEZZO_JOB_KEY_FILE | a file with that secret, which nobody but its owner may read | none |
| MEZZO_TLS | 1: connections within this machine are encrypted, as all others are | those that leave the machine |
| MEZZO_TLS_CERT, MEZZO_TLS_KEY | files (PEM): the certificate of this process, its private key | made when it listens |
| MEZZO_TLS_CA | a file (PEM): both ends of a connection demand certificates of this authority | none |
"""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeVar, get_args

from ..ops.errors import InputError, MezzoError
from ..runtime.environment import switch
from . import schedulers, secret

Role = Literal["worker", "server", "scheduler"]
ROLES: tuple[str, ...] = get_args(Role)
LOOPBACK = schedulers.LOOPBACK
DEADLINE = 120.0
TICK = 0.025  # seconds between looks at the clock, at most
ATTEMPT = "MEZZO_ATTEMPT"  # variable of a launcher: how many times the job was begun before
INCARNATION = "MEZZO_INCARNATION"  # variable of a launcher
LASTS = "MEZZO_KV_LASTS"  # variable of a launcher
MOST = 1 << 16  # workers or servers of one job
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Environment:
    """One process of a job.

    >>> given = {"DMLC_ROLE": "worker", "DMLC_PS_ROOT_URI": "127.0.0.1", "DMLC_PS_ROOT_PORT": "9091",
    ...          "DMLC_NUM_WORKER": "2", "DMLC_NUM_SERVER": "1", "MEZZO_HOST": "a"}
    >>> mine = Environment.read(given)
    >>> mine.role, mine.root, mine.workers, mine.host
    ('worker', ('127.0.0.1', 9091), 2, 'a')
    >>> Environment.read(mine.variables()) == mine
    True
    """

    role: Role
    root: tuple[str, int]  # the scheduler's address and port
    workers: int
    servers: int
    host: str
    rank: int | None = None
    bind: str = LOOPBACK
    deadline: float = DEADLINE  # seconds
    memory: int = 0  # bytes for values; 0: half of the machine's
    grace: float = 0.0  # seconds
    rejoin: float = 0.0  # seconds
    kept: int | None = None  # a descriptor
    incarnation: int = 0
    key: str = field(default="", repr=False)
    key_file: str = ""  # where the key was read, if it was
    tls: bool = False  # within the machine, too
    tls_cert: str = ""
    tls_key: str = ""
    tls_ca: str = ""

    @classmethod
    def read(cls, given: Mapping[str, str] | None = None) -> Environment:
        """The contract in these variables, by default those of this process.

        Raises InputError that names every variable that is missing or wrong.
        """
        found = _Reader(schedulers.told(os.environ if given is None else given))
        key_file = found.take(secret.FILE, _text, "")
        made = cls(
            role=found.take("DMLC_ROLE", _role),
            root=(found.take("DMLC_PS_ROOT_URI", _text), found.take("DMLC_PS_ROOT_PORT", _between(1, 65535))),
            workers=found.take("DMLC_NUM_WORKER", _between(1, MOST)),
            servers=found.take("DMLC_NUM_SERVER", _between(0, MOST)),
            host=found.take("MEZZO_HOST", _text, socket.gethostname()),
            rank=found.take("MEZZO_RANK", _between(0, MOST - 1), None),
            bind=found.take("MEZZO_BIND", _text, LOOPBACK),
            deadline=found.take("MEZZO_KV_DEADLINE", _seconds, DEADLINE),
            memory=found.take("MEZZO_KV_MEMORY", _between(1, 1 << 30), 0) << 20,
            grace=found.take("MEZZO_KV_GRACE", _seconds, 0.0),
            rejoin=found.take("MEZZO_KV_REJOIN", _seconds, 0.0),
            kept=found.take("MEZZO_KV_KEPT", _between(0, MOST), None),
            incarnation=found.take(INCARNATION, _between(0, MOST), 0),
            key=found.take("MEZZO_JOB_KEY", _text, ""),
            key_file=key_file,
            tls=found.take("MEZZO_TLS", _one, False),
            tls_cert=found.take("MEZZO_TLS_CERT", _text, ""),
            tls_key=found.take("MEZZO_TLS_KEY", _text, ""),
            tls_ca=found.take("MEZZO_TLS_CA", _text, ""),
        )
        if made.key and key_file:
            found.wrong.append(f"{secret.FILE} and MEZZO_JOB_KEY both give a key")
        if made.tls and not made.key and not key_file:
            found.wrong.append("MEZZO_TLS=1 protects nothing without MEZZO_JOB_KEY: anybody could be at the other end")
        if bool(made.tls_cert) != bool(made.tls_key) or (made.tls_ca and not made.tls_cert):
            found.wrong.append("MEZZO_TLS_CERT and MEZZO_TLS_KEY belong together, and MEZZO_TLS_CA needs them")
        found.check()
        return replace(made, key=secret.read_key(key_file)) if key_file else made

    def variables(self) -> dict[str, str]:
        """The variables that say this, for a process to be started."""
        made = {
            "DMLC_ROLE": self.role,
            "DMLC_PS_ROOT_URI": self.root[0],
            "DMLC_PS_ROOT_PORT": str(self.root[1]),
            "DMLC_NUM_WORKER": str(self.workers),
            "DMLC_NUM_SERVER": str(self.servers),
            "MEZZO_HOST": self.host,
            "MEZZO_BIND": self.bind,
            "MEZZO_KV_DEADLINE": f"{self.deadline:g}",
        }
        made |= {"MEZZO_RANK": str(self.rank)} if self.rank is not None else {}
        made |= {"MEZZO_KV_MEMORY": str(self.memory >> 20)} if self.memory else {}
        made |= {"MEZZO_KV_GRACE": f"{self.grace:g}"} if self.grace else {}
        made |= {"MEZZO_KV_REJOIN": f"{self.rejoin:g}"} if self.rejoin else {}
        made |= {"MEZZO_KV_KEPT": str(self.kept)} if self.kept is not None else {}
        made |= {INCARNATION: str(self.incarnation)} if self.incarnation else {}
        made |= {"MEZZO_TLS": "1"} if self.tls else {}
        files = {"MEZZO_TLS_CERT": self.tls_cert, "MEZZO_TLS_KEY": self.tls_key, "MEZZO_TLS_CA": self.tls_ca}
        made |= {name: path for name, path in files.items() if path}
        if self.key_file:
            return made | {secret.FILE: self.key_file}
        return made | ({"MEZZO_JOB_KEY": self.key} if self.key else {})

    def as_role(self, role: Role, rank: int | None = None, host: str | None = None) -> Environment:
        """The same job, for another of its processes."""
        return replace(self, role=role, rank=rank, host=self.host if host is None else host)

    def check_address(self, address: str) -> str:
        """The address, unless it leaves this machine and the job has no key. Raises InputError."""
        if not local(address) and not self.key:
            raise InputError(
                f"{address} is outside of this machine, and the job has no key: anybody could read and write",
                where="MEZZO_BIND" if address == self.bind else "DMLC_PS_ROOT_URI",
                hint=f"bind {LOOPBACK}, or give every process the same secret as MEZZO_JOB_KEY or {secret.FILE}",
            )
        return address

    @property
    def most_bytes(self) -> int:
        """Limit on the memory of a process for values, in bytes."""
        return self.memory or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def present(given: Mapping[str, str] | None = None) -> bool:
    """True if a launcher has set any variable of the contract, or told the same in its own."""
    return any(name.startswith("DMLC_") for name in schedulers.told(os.environ if given is None else given))


def deadline() -> float:
    """The longest wait for others, in seconds, in a process with or without a job. Raises InputError for what is no
    time."""
    found = _Reader(os.environ)
    seconds = found.take("MEZZO_KV_DEADLINE", _seconds, DEADLINE)
    found.check()
    return seconds


def attempt() -> int:
    """Number of times that a launcher has begun this job before, from the environment; 0 where it does not say."""
    return int(switch(ATTEMPT) or 0)


def local(address: str) -> bool:
    """True if an address is local to this machine."""
    if address == "localhost":
        return True
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return False
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None  # who listens on :: sees these
    return (mapped or found).is_loopback


class _Reader:
    """Reader of variables one by one that collects their errors, to report them together."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self.given = given
        self.missing: list[str] = []
        self.wrong: list[str] = []

    def take(self, name: str, parse: Callable[[str], _T], *default: _T) -> _T:
        text = self.given.get(name, "").strip()
        if not text:
            if not default:
                self.missing.append(name)
            return default[0] if default else parse("")
        try:
            return parse(text)
        except ValueError as error:
            self.wrong.append(f"{name}={text!r} is not {error}")
            return default[0] if default else parse("")

    def check(self) -> None:
        problems = [*(f"{name} is missing" for name in self.missing), *self.wrong]
        if problems:
            raise InputError(
                "; ".join(problems),
                where="the environment of this process",
                hint="start it with `mezzo launch -n WORKERS -s SERVERS script.py`, torchrun, mpirun or srun",
                parts=[MezzoError(p) for p in problems],
            )


def _text(text: str) -> str:
    return text


def _one(text: str) -> bool:
    if text != "1":
        raise ValueError("1")
    return True


def _role(text: str) -> Role:
    for role in get_args(Role):
        if text.lower() in ("", role):
            return role  # type: ignore[no-any-return]
    raise ValueError(f"one of {', '.join(ROLES)}")


def _between(low: int, high: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not text:
            return low
        if not text.isascii() or not text.isdigit() or not low <= int(text) <= high:
            raise ValueError(f"an integer from {low} to {high}")
        return int(text)

    return parse


def _seconds(text: str) -> float:
    try:
        value = float(text or DEADLINE)
    except ValueError:
        value = -1.0
    if not 0 < value < 1e9:
        raise ValueError("a number of seconds above 0")
    return value
