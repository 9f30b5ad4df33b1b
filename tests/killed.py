"""A training that tests/test_checkpoint.py kills: `python -m tests.killed FOLDER STALL`.

It goes on from the folder's checkpoint, writes one every few steps, and says on standard output what it does. Each
flush to the disk takes a while; the one of number STALL (none for 0) takes until somebody ends the process. Each step
takes a letter from standard input, so that it is never far ahead of who listens.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from mezzo.runtime.optimizer import Adam
from mezzo.runtime.optimizer.schedule import Cosine
from mezzo.train import checkpoint
from mezzo.train.trainer import Trainer

from .networks import batch_for, noisy

STEPS, EVERY = 120, 4


def trainer() -> Trainer:
    """With all that has to be remembered: dropout, gathered gradients, a schedule, moments, running statistics."""
    return Trainer(noisy(), optimizer=Adam(rate=Cosine(0.01, STEPS)), gather=3, seed=5, threads=1, onednn=False)


def say(what: str) -> None:
    print(what, flush=True)


def slow(stall: int) -> None:
    """Make flushes to the disk slow, and tell of them."""
    number, real = 0, os.fsync

    def fsync(fd: Any) -> None:
        nonlocal number
        number += 1
        say("writing")
        time.sleep(600 if number == stall else 0.002)
        real(fd)

    os.fsync = fsync


def main(folder: Path, stall: int) -> None:
    training = trainer()
    if checkpoint.exists(folder):
        training.resume(folder)
    slow(stall)
    for i in range(int(training.notes.get("position", 0)), STEPS):
        training.step(batch_for(training.source, i))
        say("step")
        sys.stdin.read(1)
        training.notes["position"] = i + 1
        if i % EVERY == EVERY - 1:
            training.save(folder)
            say("saved")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
