"""A training whose processes are killed, for tests/test_kv_recovery.py: every process of the job runs this file.

`python -m tests.kv_recovery FOLDER ON_STORE`. What each process is doing stands in `FOLDER/board`, int64 numbers: the
phase that is to be met, the process that has met it, whether all kills have happened, after how many steps the training
ends (0: worker 0 says it when they have), and for each process its number and its phase. Who enters the phase that is
to be met says so and waits a moment, so that it can be killed there.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from mezzo.kvstore.create import create
from mezzo.kvstore.environment import Environment

PHASES = ("none", "handshake", "push", "commit", "pull", "snapshot")
WANTED, MET, OVER, END, FIRST = range(5)  # places on the board
SLOTS = 8  # processes at most
SIZE, EVERY, STALL = 4, 3, 0.2  # samples of a share; steps between snapshots; seconds
MORE = 10  # steps after all kills: no worker is further than the next one when worker 0 says so
SIDES = {"scheduler": 0, "server": 1, "worker": 4}  # the first slot of a role
Board = np.ndarray[Any, Any]


def board(folder: Path, mode: Any = "r+") -> Board:
    return np.memmap(folder / "board", np.int64, mode, shape=(FIRST + 2 * SLOTS,))


class Here:
    """This process on the board."""

    def __init__(self, made: Board, slot: int) -> None:
        self._board, self._at = made, FIRST + 2 * slot
        made[self._at] = os.getpid()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        number = PHASES.index(name)
        former, self._board[self._at + 1] = self._board[self._at + 1], number
        if self._board[WANTED] == number:
            self._board[MET] = self._board[self._at]
            time.sleep(STALL)
        try:
            yield
        finally:
            self._board[self._at + 1] = former

    def ended(self, number: int, rank: int) -> bool:
        """True if the training ends before the step of this number."""
        if not rank and self._board[OVER] and not self._board[END]:
            self._board[END] = number + MORE
        return bool(0 < self._board[END] <= number)

    def during(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """A function that runs in a phase."""

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            with self.phase(name):
                return call(*args, **kwargs)

        return wrapped


def serve(here: Here) -> None:
    """Be the scheduler or a server, and tell of what it does."""
    from mezzo.kvstore.gate import Gate
    from mezzo.kvstore.server import Server
    from mezzo.kvstore.shards import Shards

    Gate._knocked = here.during("handshake", Gate._knocked)  # type: ignore[method-assign]
    Server._pushed = here.during("push", Server._pushed)  # type: ignore[method-assign]
    Server._send = here.during("pull", Server._send)  # type: ignore[method-assign]
    Shards.apply = here.during("commit", Shards.apply)  # type: ignore[method-assign]
    create("dist_sync")


def learn(here: Here, folder: Path, on_store: bool) -> None:
    """Train, from the last snapshot on."""
    from mezzo.kvstore import states
    from mezzo.ops import DType
    from mezzo.runtime.files import replace_file
    from mezzo.runtime.optimizer import Adam
    from mezzo.train import checkpoint
    from mezzo.train.shares import Share
    from mezzo.train.trainer import Trainer

    from .networks import Layers, batch_for

    g = Layers(DType.FLOAT, 24)  # of its weights one goes by the agent of the host, the others by the workers
    net = g.done(g.linear("1", g.Relu(g.linear("0", g.x, 24, 1024)), 1024, 5))
    for module in (checkpoint, states):
        module.replace_file = here.during("snapshot", replace_file)  # type: ignore[attr-defined]
    with here.phase("handshake"):
        kv = create("dist_sync")
    with kv:
        share = Share(kv.rank, kv.num_workers)
        optimizer, plain = Adam(rate=0.003), dict[str, Any](threads=1, onednn=False)
        trainer = Trainer(net, optimizer=optimizer, kvstore=kv, update_on_kvstore=on_store, **plain)
        kept = folder / "kept"
        if checkpoint.exists(kept):
            trainer.resume(kept)
        number = int(trainer.notes.get("position", 0))
        while not here.ended(number, kv.rank):
            batch = batch_for(trainer.source, number, SIZE * share.count)
            rows = share.rows(np.arange(SIZE * share.count), SIZE, 0)
            trainer.step({name: array[rows] for name, array in batch.items()})
            number += 1
            trainer.notes = {"position": number}
            if not number % EVERY:
                trainer.save(kept, keep=2)
        if kv.rank == 0:
            np.savez(folder / "end.npz", **trainer.parameters)


def main(folder: Path, on_store: bool) -> None:
    environment = Environment.read()
    here = Here(board(folder), SIDES[environment.role] + (environment.rank or 0))
    if environment.role == "worker":
        learn(here, folder, on_store)
    else:
        serve(here)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2] == "1")
