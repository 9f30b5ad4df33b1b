"""What torchrun, Open MPI and Slurm tell a process, as roles of a job; and a job that one of them has begun."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import pytest

from mezzo.kvstore.address import ReservedPort
from mezzo.kvstore.environment import Environment, present
from mezzo.kvstore.schedulers import Scheduled, first_host, scheduled, tasks_of, told
from mezzo.ops.errors import InputError

TORCHRUN = {
    "RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.7",
    "MASTER_PORT": "29500", "GROUP_RANK": "1",
}  # fmt: skip
MPI = {
    "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "PMIX_NAMESPACE": "12@1",
}  # fmt: skip
SLURM = {
    "SLURM_PROCID": "4", "SLURM_STEP_NUM_TASKS": "7", "SLURM_LOCALID": "0", "SLURM_NODEID": "1",
    "SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_TASKS_PER_NODE": "4,3", "SLURM_STEP_NODELIST": "gpu[07-09]",
    "SLURM_JOB_ID": "99", "SLURM_STEP_ID": "0",
}  # fmt: skip


def test_each_launcher_tells_who_this_is() -> None:
    assert scheduled(TORCHRUN) == Scheduled("torchrun", 3, 4, 1, 2, 2, "10.0.0.7", 29500)
    assert scheduled({**TORCHRUN, "TORCHELASTIC_USE_AGENT_STORE": "True"}).port == 29501  # type: ignore[union-attr]
    mpi, slurm = scheduled(MPI), scheduled(SLURM)
    assert mpi is not None
    assert slurm is not None
    assert mpi == Scheduled("Open MPI", 0, 2, 0, 2, 1, "127.0.0.1", mpi.port)
    assert mpi.starts == ("scheduler",)
    assert slurm == Scheduled("Slurm", 4, 7, 0, 4 - 1, 2, "gpu07", slurm.port)
    assert slurm.starts == ("server",)
    assert slurm.port != scheduled({**SLURM, "SLURM_STEP_ID": "1"}).port  # type: ignore[union-attr]
    assert scheduled({**SLURM, "MASTER_ADDR": "h", "MASTER_PORT": "7"}) == Scheduled("Slurm", 4, 7, 0, 3, 2, "h", 7)


def test_the_innermost_launcher_counts() -> None:
    assert scheduled({**SLURM, **MPI, **TORCHRUN}) == scheduled(TORCHRUN)
    assert scheduled({**SLURM, **MPI}) == scheduled(MPI)
    for nobody in ({}, {"RANK": "1"}, {**TORCHRUN, "DMLC_ROLE": "worker"}, {"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}):
        assert scheduled(nobody) is None
        assert told(nobody) is nobody
    assert present(MPI)
    assert not present({"SLURM_PROCID": "0"})


@pytest.mark.parametrize("given", [TORCHRUN, MPI, SLURM], ids=["torchrun", "mpi", "slurm"])
def test_it_is_read_as_the_contract(given: Mapping[str, str]) -> None:
    found, mine = scheduled(given), Environment.read(given)
    assert found is not None
    assert (mine.role, mine.rank, mine.workers) == ("worker", found.rank, found.workers)
    assert mine.servers == (found.hosts if found.hosts > 1 else 0)
    assert mine.root == (found.address, found.port)
    assert Environment.read({**given, "MEZZO_KV_DEADLINE": "7"}).deadline == 7


def test_all_ranks_agree_on_the_rest() -> None:
    """Over two hosts of two: one scheduler, a server on each host, and one address."""
    ranks = [
        scheduled({**TORCHRUN, "RANK": str(r), "LOCAL_RANK": str(r % 2), "GROUP_RANK": str(r // 2)}) for r in range(4)
    ]
    assert [one.starts for one in ranks if one] == [("scheduler", "server"), (), ("server",), ()]
    said = [{n: v for n, v in one.variables().items() if n != "MEZZO_RANK"} for one in ranks if one]
    assert said == said[:1] * 4


def test_nodes_as_slurm_writes_them() -> None:
    assert [first_host(text) for text in ("a[1,3],b", "a,b", "r[01-02]c[5-9]x", "")] == ["a1", "a", "r01c5x", ""]
    assert [tasks_of(text, 2) for text in ("4(x3)", "1,2,3", "4", "x", "")] == [4, 3, 0, 0, 0]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({**TORCHRUN, "WORLD_SIZE": "many"}, "WORLD_SIZE='many'"),
        ({**TORCHRUN, "RANK": "4"}, "rank 4 of 4"),
        ({**TORCHRUN, "LOCAL_WORLD_SIZE": "3"}, "4 workers, 3 of them on this host"),
        ({**TORCHRUN, "MASTER_PORT": "99999"}, "port 99999"),
        ({**TORCHRUN, "MASTER_ADDR": ""}, "MASTER_ADDR is missing"),
        ({**MPI, "OMPI_COMM_WORLD_SIZE": ""}, "OMPI_COMM_WORLD_SIZE is missing"),
        ({**SLURM, "SLURM_STEP_NODELIST": ""}, "SLURM_STEP_NODELIST is missing"),
    ],
)
def test_what_does_not_fit_is_named(given: Mapping[str, str], said: str) -> None:
    with pytest.raises(InputError, match=said):
        scheduled(given)


WORKER = """
import numpy as np
import mezzo as mz
with mz.kv.create("dist_sync") as kv:
    kv.init("w", np.zeros(3))
    print(kv.rank, kv.num_workers, kv.pushpull("w", np.full(3, kv.rank + 1.0)).tolist())
"""


def test_a_job_of_another_launcher_comes_together_and_leaves_nothing() -> None:
    port = ReservedPort()
    root = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port.number), "MEZZO_KV_DEADLINE": "60"}
    clean = {n: v for n, v in os.environ.items() if not n.startswith(("DMLC_", "MEZZO_"))} | {"OMP_NUM_THREADS": "1"}
    job = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER], stdout=subprocess.PIPE, text=True, process_group=0,
            env={**clean, **root, "RANK": str(r), "WORLD_SIZE": "2", "LOCAL_RANK": str(r), "LOCAL_WORLD_SIZE": "2"},
        )
        for r in range(2)
    ]  # fmt: skip
    said = [process.communicate(timeout=100)[0] for process in job]  # which the scheduler has too
    port.close()
    assert said == [f"{rank} 2 [3.0, 3.0, 3.0]\n" for rank in range(2)]
    until = time.monotonic() + 20
    while _alive({process.pid for process in job}) and time.monotonic() < until:
        time.sleep(0.01)
    assert not _alive({process.pid for process in job}), "an orphan"


def _alive(groups: set[int]) -> list[Path]:
    """Processes of these groups that run."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, group, *_ = path.read_text().rpartition(")")[2].split()
            found += [path] if int(group) in groups and state not in "ZX" else []
    return found
