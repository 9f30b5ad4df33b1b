"""A worker of a job that trains over a communicator: `python -m tests.collective_job FOLDER COURSE...`, each course as
OPTIMIZER/ZERO/GATHER/BUCKETS; `killed` and `frozen` are trainings of which rank 1 is, `verbs` calls each verb, and
`bytes` counts those of four sums."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import mezzo as mz
from mezzo.kvstore.collective.communicator import SUMMED, Communicator
from mezzo.kvstore.collective.opening import beside
from mezzo.ops import DType
from mezzo.ops.errors import InputError, MezzoError

from .collective_lessons import Course, learned
from .collective_ranks import operand

SIGNALS = {"killed": signal.SIGKILL, "frozen": signal.SIGSTOP}
STEPS = 4  # before the signal, of which two are in the checkpoint


def course_of(text: str, ranks: int) -> Course:
    optimizer, zero, gather, buckets = text.split("/")
    return Course(optimizer, ranks, int(zero), int(gather), int(buckets) or True)


def main(folder: Path, *what: str) -> None:
    kv = mz.kv.create("dist_sync")
    if what[0] in SIGNALS:
        dies(folder, kv, SIGNALS[what[0]])
        return
    if what[0] == "verbs":
        verbs(beside(kv))
        kv.close()
        return
    if what[0] == "bytes":
        c, x = beside(kv), np.ones(250_000, np.float32)
        c.all_reduce(x).wait()
        c.barrier()
        before = kv.stats().between
        for _ in range(4):
            c.all_reduce(x).wait()
        c.barrier()
        (folder / f"{kv.rank}.bytes").write_text(str(kv.stats().between - before))
        kv.close()
        return
    found = {}
    for text in what:
        course = course_of(text, kv.num_workers)
        trainer = course.trainer(kv)
        for n, a in learned(trainer, [b[kv.rank] for b in course.batches()]).items():
            found[f"{text}:{n}"] = a
        if not trainer.exchange.communicator.failure:
            trainer.save(folder / text.replace("/", "-"))
        trainer.exchange.communicator.close()
    np.savez(folder / f"{kv.rank}.npz", allow_pickle=False, **found)
    kv.close()


def verbs(c: Communicator) -> None:
    """Each verb with each element type, against NumPy; sums are of the ranks of a host, and then of hosts."""
    for dtype in (np.float32, np.float64, np.float16, np.int32, np.int64, DType.BFLOAT16.numpy, np.uint8, np.bool_):
        for count in (12, 0, 6000):
            every = [operand(r, count, dtype) for r in range(c.size)]
            if str(np.dtype(dtype)) in SUMMED:
                total = (every[0] + every[1]) + every[2]
                found = c.all_reduce(every[c.rank].copy(), name="sum").wait()
                assert found.tobytes() == total.tobytes(), dtype
                part = c.reduce_scatter(every[c.rank].copy(), np.empty(count // 3, dtype)).wait()
                assert part.tobytes() == np.split(total, 3)[c.rank].tobytes(), dtype
            for _ in range(2):
                whole = c.all_gather(every[c.rank], np.empty(3 * count, dtype)).wait()
                assert whole.tobytes() == np.concatenate(every).tobytes(), dtype
                assert c.broadcast(every[c.rank].copy(), 2).wait().tobytes() == every[2].tobytes(), dtype
    several = [c.all_reduce(np.full(8, float(c.rank + i)), name=f"number {i}") for i in range(5)]
    assert [float(work.wait()[0]) for work in several] == [3.0 + 3 * i for i in range(5)]
    twice = [c.all_gather(np.full(2, float(c.rank + i)), np.empty(6), name="same") for i in range(3)]
    assert [work.wait().tolist() for work in twice] == [[i, i, i + 1, i + 1, i + 2, i + 2] for i in range(3)]
    with pytest.raises(InputError, match="send each other nothing"):
        c.send(np.ones(2), (c.rank + 1) % c.size)
    c.barrier()
    c.close()


def dies(folder: Path, kv: mz.kv.KVStore, how: int) -> None:
    """Train with zero=2 until rank 1 gets the signal; the others write what they hear, and when."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # whoever launched it is not to be quicker than what is measured
    course = Course("adamw", kv.num_workers, 2)
    trainer = course.trainer(kv)
    trainer.exchange.communicator.deadline = 1.5
    shares = [b[kv.rank] for b in course.batches()]
    for share in shares[:2]:
        trainer.step(share)
    trainer.save(folder / "kept")
    for share in shares[2:STEPS]:
        trainer.step(share)
    (folder / f"{kv.rank}.pid").write_text(str(os.getpid()))
    if kv.rank == 1:
        if how == signal.SIGSTOP and not os.fork():  # a child ends it with the job, when the others have heard
            until = time.monotonic() + 20
            while not all((folder / f"{n}.heard").exists() for n in (0, 2)) and time.monotonic() < until:
                time.sleep(0.05)
            time.sleep(0.2)
            os.kill(os.getppid(), signal.SIGKILL)
            os._exit(0)
        os.kill(os.getpid(), how)
    began = time.monotonic()
    try:
        for share in shares[STEPS:]:
            trainer.step(share)
    except MezzoError as error:
        (folder / f"{kv.rank}.heard").write_text(f"{time.monotonic() - began}\n{error.message}")
        time.sleep(1.0)  # the others hear of the culprit, not of this one
        raise


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
