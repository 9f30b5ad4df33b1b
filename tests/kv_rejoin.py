"""A training whose workers die and are replaced, for tests/test_kv_rejoin.py.

`python -m tests.kv_rejoin FOLDER DEATHS`: a death is RANK:STEP:MOMENT, several with commas between. The first process
of a rank dies in that step: `begun` before anything of it was exchanged, `amid` when some of it was, `behind` when all
was, and `told` after that; who is `deaf` lives on without the last answers of the step. At the end rank 0 writes
`FOLDER/end.npz`.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mezzo.kvstore.create import create
from mezzo.kvstore.environment import INCARNATION
from mezzo.ops import DType
from mezzo.ops.errors import PeerError
from mezzo.runtime.optimizer import Adam
from mezzo.train.exchange import Exchange
from mezzo.train.rejoin import Rejoining
from mezzo.train.trainer import Trainer

from .networks import Layers, batch_for

STEPS, SIZE = 12, 4


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def main(folder: Path, deaths: dict[int, tuple[int, str]]) -> None:
    g = Layers(DType.FLOAT, 24)  # of its weights one is too large to go without the agent of a host
    net = g.done(g.linear("1", g.Relu(g.linear("0", g.x, 24, 1024)), 1024, 5))
    with create("dist_sync") as kv:
        end, moment = deaths.get(kv.rank, (0, "")) if os.environ.get(INCARNATION, "0") == "0" else (0, "")
        trainer = Trainer(net, optimizer=Adam(rate=0.003), kvstore=kv, threads=1, onednn=False)
        number, waited = int(trainer.join().get("position", 0)), 0
        print(f"rank {kv.rank} goes on from {number} in gathering {kv.gathering}", flush=True)
        wait, catch_up = Exchange.wait, Rejoining._caught_up

        def waits(self: Exchange, key: str) -> Any:
            nonlocal waited, moment
            found = wait(self, key)
            waited += 1
            if moment == "amid" and number + 1 == end and not waited % 2:
                die()
            if moment == "deaf" and number + 1 == end and not waited % len(trainer.trained):
                moment = ""
                time.sleep(1.0)  # the others have all answers meanwhile, and one of them dies
                kv._backend.group.fail(PeerError("nothing is heard"))  # type: ignore[attr-defined]
                raise PeerError("nothing is heard")
            return found

        def catches_up(self: Rejoining, once: Callable[[], float], theirs: Mapping[str, Any]) -> float:
            print(f"rank {kv.rank} catches up", flush=True)
            return catch_up(self, once, theirs)

        Exchange.wait, Rejoining._caught_up = waits, catches_up  # type: ignore[method-assign]
        while number < STEPS:
            if moment == "begun" and number + 1 == end:
                die()
            batch = batch_for(trainer.source, number, SIZE * kv.num_workers)
            loss = trainer.step({n: a[SIZE * kv.rank : SIZE * (kv.rank + 1)] for n, a in batch.items()})
            number += 1
            if moment == "behind" and number == end:
                die()
            trainer.notes = {"position": number, "losses": [*trainer.notes.get("losses", []), loss]}
            if moment == "told" and number == end:
                die()
        assert trainer.updates == STEPS
        assert len(trainer.notes["losses"]) == STEPS
        if kv.rank == 0:
            np.savez(folder / "end.npz", **trainer.parameters)


if __name__ == "__main__":
    said = [death.split(":") for death in sys.argv[2].split(",") if death]
    main(Path(sys.argv[1]), {int(rank): (int(step), moment) for rank, step, moment in said})
