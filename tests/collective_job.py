"""A worker of a job that trains over a communicator: `python -m tests.collective_job FOLDER COURSE...`, each course as
OPTIMIZER/ZERO/GATHER/BUCKETS; `killed` and `frozen` are trainings of which rank 1 is, `hosts` says what is refused."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import mezzo as mz
from mezzo.ops.errors import InputError, MezzoError

from .collective_lessons import Course, learned

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
    if what[0] == "hosts":
        with pytest.raises(InputError) as refused:
            Course("adam", 2, 1).trainer(kv)
        (folder / f"{kv.rank}.heard").write_text(refused.value.message)
        kv.close()
        return
    found = {}
    for text in what:
        course = course_of(text, kv.num_workers)
        trainer = course.trainer(kv)
        for n, a in learned(trainer, [b[kv.rank] for b in course.batches()]).items():
            found[f"{text}:{n}"] = a
        trainer.exchange.communicator.close()
    np.savez(folder / f"{kv.rank}.npz", allow_pickle=False, **found)
    kv.close()


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
