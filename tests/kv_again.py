"""A worker of a job whose server begins again, for tests/test_kv_again.py: `python -m tests.kv_again FOLDER`."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import numpy as np

import mezzo as mz

SIZE, STEPS = 300_000, 6


def server() -> int:
    """The process of the newest server of this job."""
    parent = os.getppid()
    pids = [int(pid) for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]
    servers = [pid for pid in pids if b"DMLC_ROLE=server" in Path(f"/proc/{pid}/environ").read_bytes()]
    return servers[-1]


def lent(folder: Path) -> None:
    """Bytes between worker and server by round, and the sums; the server is killed after the third."""
    with mz.kv.create("dist_sync") as kv:
        gradient = kv.empty(SIZE)
        kv.init("w", np.zeros(SIZE, np.float32))
        counts, before = list[int](), 0
        for step in range(STEPS):
            gradient[...] = kv.rank + step
            total = kv.pushpull("w", gradient)
            assert (total == sum(rank + step for rank in range(kv.num_workers))).all()
            kv.barrier()
            now = kv.stats().between
            counts.append(now - before)
            before = now
            kv.barrier()
            if step == 2 and kv.rank == 0:
                os.kill(server(), signal.SIGKILL)
        if kv.rank == 0:
            (folder / "counts").write_text(json.dumps(counts))


if __name__ == "__main__":
    lent(Path(sys.argv[1]))
