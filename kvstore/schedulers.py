"""Jobs that other launchers begin: what torchrun, Open MPI and Slurm tell a process, as the variables of
`environment.py`. Pure functions of a mapping; `start` alone does something.

Such a launcher starts workers alone. Rank 0 starts the scheduler, and where there are several hosts the first worker of
each starts a server; both end with the job.

| launcher | rank, workers | on this host: number, workers | address and port of rank 0 |
|---|---|---|---|
| torchrun | RANK, WORLD_SIZE | LOCAL_RANK, LOCAL_WORLD_SIZE | MASTER_ADDR, MASTER_PORT |
| Open MPI | OMPI_COMM_WORLD_RANK, _SIZE | OMPI_COMM_WORLD_LOCAL_RANK, _LOCAL_SIZE | the same, or loopback |
| Slurm (srun) | SLURM_PROCID, SLURM_STEP_NUM_TASKS | SLURM_LOCALID, SLURM_STEP_TASKS_PER_NODE | SLURM_STEP_NODELIST |
"""

from __future__ import annotations

import os
import re
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from ..ops.errors import InputError
from ..runtime.digests import blake2b

LOOPBACK = "127.0.0.1"
FIRST, PORTS = 20_000, 12_000  # ports that are told by nobody lie here, below those that kernels give out
CONTRACT = "DMLC_"  # who has set a variable of these needs nothing of this


@dataclass(frozen=True, slots=True)
class Scheduled:
    """A worker as its launcher describes it.

    >>> Scheduled("torchrun", 1, 4, 1, 2, 2, "10.0.0.7", 29500).starts
    ()
    >>> Scheduled("torchrun", 2, 4, 0, 2, 2, "10.0.0.7", 29500).starts
    ('server',)
    >>> Scheduled("slurm", 0, 2, 0, 2, 1, "a", 20001).variables()["DMLC_PS_ROOT_URI"]
    '127.0.0.1'
    """

    launcher: str
    rank: int
    workers: int
    local_rank: int
    local_workers: int
    hosts: int
    address: str
    port: int

    @property
    def starts(self) -> tuple[str, ...]:
        """Roles of the processes that this worker starts."""
        scheduler = () if self.rank else ("scheduler",)
        return scheduler + (("server",) if self.hosts > 1 and not self.local_rank else ())

    def variables(self) -> dict[str, str]:
        """The variables of `environment.py` that say this."""
        return {
            "DMLC_ROLE": "worker",
            "DMLC_PS_ROOT_URI": self.address if self.hosts > 1 else LOOPBACK,
            "DMLC_PS_ROOT_PORT": str(self.port),
            "DMLC_NUM_WORKER": str(self.workers),
            "DMLC_NUM_SERVER": str(self.hosts if self.hosts > 1 else 0),
            "MEZZO_RANK": str(self.rank),
        }


def scheduled(given: Mapping[str, str]) -> Scheduled | None:
    """Return the worker that a launcher has described in these variables; None where none has, or the contract is
    there. The innermost counts: torchrun before Open MPI before Slurm. Raises InputError for what is missing or no
    number."""
    if any(name.startswith(CONTRACT) for name in given):
        return None
    for there, read in ((("RANK", "WORLD_SIZE"), _torchrun), (("OMPI_COMM_WORLD_RANK",), _mpi), (_SRUN, _slurm)):
        if all(given.get(name, "") for name in there):
            return _checked(read(given))
    return None


def told(given: Mapping[str, str]) -> Mapping[str, str]:
    """These variables, and those of `environment.py` where another launcher has told what they say."""
    found = scheduled(given)
    return given if found is None else {**found.variables(), **given}


def _torchrun(given: Mapping[str, str]) -> Scheduled:
    workers = _number(given, "WORLD_SIZE")
    local = _number(given, "LOCAL_WORLD_SIZE", workers)
    rank = _number(given, "RANK")
    # torchrun itself listens at its port where the agent has the store
    port = _number(given, "MASTER_PORT", 29_500) + (given.get("TORCHELASTIC_USE_AGENT_STORE", "") == "True")
    hosts = _hosts("torchrun", workers, local)
    address, local_rank = _address(given, "torchrun", hosts), _number(given, "LOCAL_RANK", rank % max(1, local))
    return Scheduled("torchrun", rank, workers, local_rank, local, hosts, address, port)


def _mpi(given: Mapping[str, str]) -> Scheduled:
    name = "OMPI_COMM_WORLD"
    rank, workers = _number(given, f"{name}_RANK"), _number(given, f"{name}_SIZE")
    local = _number(given, f"{name}_LOCAL_SIZE", workers)
    hosts = _hosts("Open MPI", workers, local)
    address = _address(given, "Open MPI", hosts)
    port = _port(given, given.get("PMIX_NAMESPACE", "") or given.get("OMPI_MCA_ess_base_jobid", ""))
    local_rank = _number(given, f"{name}_LOCAL_RANK", rank % max(1, local))
    return Scheduled("Open MPI", rank, workers, local_rank, local, hosts, address, port)


_SRUN = "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"  # the second is not there in a batch script, which is one process


def _slurm(given: Mapping[str, str]) -> Scheduled:
    rank, workers = _number(given, "SLURM_PROCID"), _number(given, "SLURM_STEP_NUM_TASKS")
    hosts = _number(given, "SLURM_STEP_NUM_NODES", 1)
    node = _number(given, "SLURM_NODEID", 0)
    local = tasks_of(given.get("SLURM_STEP_TASKS_PER_NODE", ""), node) or -(-workers // max(1, hosts))
    job = f"{given.get('SLURM_JOB_ID', '')}.{given.get('SLURM_STEP_ID', '')}"
    address = given.get("MASTER_ADDR", "") or first_host(given.get("SLURM_STEP_NODELIST", ""))
    if hosts > 1 and not address:
        raise _missing("SLURM_STEP_NODELIST", "Slurm")
    local_rank = _number(given, "SLURM_LOCALID", 0)
    return Scheduled("Slurm", rank, workers, local_rank, local, hosts, address or LOOPBACK, _port(given, job))


def first_host(nodes: str) -> str:
    """The first of a list of nodes as Slurm writes it.

    >>> first_host("gpu[07-09,12],cpu1"), first_host("rack[2,3]-n[1-4]"), first_host("login")
    ('gpu07', 'rack2-n1', 'login')
    """
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])*", nodes)
    return re.sub(r"\[(\d+)[^\]]*\]", r"\1", first[0]) if first else ""


def tasks_of(counts: str, node: int) -> int:
    """The number of tasks on a node, of counts as Slurm writes them; 0 where they do not say.

    >>> [tasks_of("4(x2),3", node) for node in range(4)]
    [4, 4, 3, 0]
    """
    for text in counts.split(",") if counts else ():
        found = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", text.strip())
        if found is None:
            return 0
        node -= int(found[2] or 1)
        if node < 0:
            return int(found[1])
    return 0


def _hosts(launcher: str, workers: int, local: int) -> int:
    """The number of hosts, each of which has so many of the workers."""
    if not local or workers % local:
        raise InputError(
            f"{launcher} tells of {workers} workers, {local} of them on this host",
            where="the environment of this process",
            hint="start as many workers on each host",
        )
    return workers // local


def _address(given: Mapping[str, str], launcher: str, hosts: int) -> str:
    address = given.get("MASTER_ADDR", "").strip()
    if hosts > 1 and not address:
        raise _missing("MASTER_ADDR", launcher)
    return address or LOOPBACK


def _port(given: Mapping[str, str], job: str) -> int:
    """The port that is told, or one that follows from what names the job."""
    digest = int.from_bytes(blake2b(job.encode(), digest_size=4).digest(), "little")
    return _number(given, "MASTER_PORT", FIRST + digest % PORTS)


def _number(given: Mapping[str, str], name: str, *default: int) -> int:
    text = given.get(name, "").strip()
    if not text:
        if not default:
            raise _missing(name, "the launcher")
        return default[0]
    if not (text.isascii() and text.isdigit()):
        raise InputError(f"{name}={text!r} is not an integer", where="the environment of this process")
    return int(text)


def _missing(name: str, launcher: str) -> InputError:
    return InputError(
        f"{name} is missing, beside other variables of {launcher}",
        where="the environment of this process",
        hint="set it in every process, or start the job with `mezzo launch -n WORKERS script.py`",
    )


def _checked(found: Scheduled) -> Scheduled:
    wrong = ""
    if not 0 <= found.rank < found.workers:
        wrong = f"rank {found.rank} of {found.workers} workers"
    elif not 0 <= found.local_rank < max(1, found.local_workers):
        wrong = f"worker {found.local_rank} of {found.local_workers} on its host"
    elif not 1 <= found.port <= 65535:
        wrong = f"port {found.port}"
    if wrong:
        raise InputError(f"{found.launcher} tells of {wrong}", where="the environment of this process")
    return found


def start(variables: Mapping[str, str], found: Scheduled) -> list[int]:
    """Start what this worker starts, with the variables of its environment; the process numbers."""
    pids = []
    for role in found.starts:
        given = {**os.environ, **variables, "DMLC_ROLE": role}
        del given["MEZZO_RANK"]
        if role == "server" and "MEZZO_BIND" not in os.environ:
            given["MEZZO_BIND"] = reaches(found.address)
        pids.append(os.posix_spawn(sys.executable, [sys.executable, "-m", "mezzo.kvstore.role"], given))
    return pids


def reaches(address: str) -> str:
    """The address of this machine that others see who are where `address` is."""
    family, *_, place = socket.getaddrinfo(address, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        sock.connect(place)  # nothing is sent
        return str(sock.getsockname()[0])
