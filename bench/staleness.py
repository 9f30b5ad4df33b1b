"""Rates that follow the staleness on digits: accuracy and loss of asynchronous trainings with and without them.

Eight workers and a server train the network of `bench/packing.py` in `dist_async`, whose optimizer (SGD with momentum)
runs on the server, and each reads the parameters of every eighth update at best: 30 epochs, another split for each
seed. The figure is the mean accuracy on held-out digits in percent with `by_staleness=True`, the peer that without;
notes have the last losses. Which push comes first differs from run to run, and so do the last digits.
"""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import sys
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve()
sys.path += [str(HERE.parent), str(HERE.parent / "peers")]

from packing_worker import BATCH, HELD, network  # noqa: E402
from rows import Row, arguments, machine, show, users_environment  # noqa: E402

import mezzo as mz  # noqa: E402
from mezzo.models.digits import held_out  # noqa: E402

WORKERS, EPOCHS = 8, 30
RATES = (0.005, 0.02, 0.05, 0.1, 0.2)
FAILED = 10.0  # percent: the accuracy of a guess, where the parameters are no numbers any more


def worker(by_staleness: bool, seeds: int) -> None:
    """One of eight: rank 0 prints what has come of each rate."""
    data = held_out()
    made: dict[float, list[tuple[float, float]]] = {rate: [] for rate in RATES}
    images = data.inputs.reshape(len(data.labels), -1)
    with mz.kv.create("dist_async", by_staleness=by_staleness) as kv:
        for seed in range(seeds):
            order = np.random.default_rng(seed).permutation(len(data.labels))
            test, learn = order[:HELD], order[HELD:]
            for rate in RATES:
                trainer = mz.Trainer(
                    network(seed), optimizer=mz.optimizer.SGD(rate=rate, momentum=0.9), threads=1, kvstore=kv
                )
                loss = math.nan
                with np.errstate(all="ignore"):
                    for epoch in range(EPOCHS):
                        mine = np.random.default_rng((seed, epoch)).permutation(learn)[kv.rank :: kv.num_workers]
                        for low in range(0, len(mine) - BATCH + 1, BATCH):
                            rows = mine[low : low + BATCH]
                            batch = {"image": images[rows], "target": data.labels[rows].astype(np.int64)}
                            loss = float(trainer.step(batch))
                    kv.barrier()
                    trainer.step(batch)  # reads the parameters after all updates of the others
                    held = {"image": images[test], "target": data.labels[test].astype(np.int64)}
                    accuracy = 100 * trainer.evaluate([held]).accuracy if math.isfinite(loss) else FAILED
                made[rate].append((accuracy, loss))
                del trainer
                kv.barrier()
        if kv.rank == 0:
            print(json.dumps(made), flush=True)


def trained(by_staleness: bool, seeds: int) -> dict[str, list[list[float]]]:
    """Accuracy and loss by rate, for each seed."""
    command = [sys.executable, "-m", "mezzo", "launch", "-n", str(WORKERS), "-s", "1", str(HERE), "worker"]
    command += [str(int(by_staleness)), str(seeds)]
    said = subprocess.run(command, env=users_environment(), check=True, stdout=subprocess.PIPE, text=True).stdout
    found: dict[str, list[list[float]]] = json.loads(said[said.index("{") :])
    return found


def main() -> None:
    if sys.argv[1:2] == ["worker"]:
        worker(sys.argv[2] == "1", int(sys.argv[3]))
        return
    args = arguments(__doc__)
    seeds = 1 if args.quick else 5
    plain, scaled = trained(False, seeds), trained(True, seeds)
    rows, notes = list[Row](), [machine()]
    for rate in map(str, RATES):
        ours, theirs = (statistics.mean(a for a, _ in found[rate]) for found in (scaled, plain))
        rows.append(Row(f"rate {rate}", "%", ours, {"as it is": theirs}))
        losses = [statistics.mean(loss for _, loss in found[rate]) for found in (scaled, plain)]
        notes.append(f"rate {rate}: loss {losses[0]:.4f}, {losses[1]:.4f} as it is")
    show(rows, args, notes)


if __name__ == "__main__":
    main()
