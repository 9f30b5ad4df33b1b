"""Outer steps on digits: accuracy, loss and bytes of trainings whose workers meet seldom (train/outer.py).

Two workers on two hosts and a server train the network of `bench/packing.py` for 540 steps, 5 seeds each of which draws
another split: as usual (a round of gradients in each step), and by themselves with a meeting after 10, 30 and 60 steps,
at which parameters are averaged (local SGD) or an outer step is made (DiLoCo). The figure is the mean accuracy on
held-out digits in percent, the peer the usual way; notes have the last loss and the bytes on the wire.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve()
sys.path += [str(HERE.parent), str(HERE.parent / "peers")]

from packing_worker import BATCH, EPOCHS, HELD, RATE, network  # noqa: E402
from rows import Row, arguments, machine, show, users_environment  # noqa: E402

import mezzo as mz  # noqa: E402
from mezzo.models.digits import held_out  # noqa: E402

WAYS: dict[str, dict[str, Any] | None] = {"every step": None}
WAYS |= {f"local SGD {n}": {"every": n, "rate": 1.0, "momentum": 0.0} for n in (10, 30, 60)}
WAYS |= {f"DiLoCo {n}": {"every": n} for n in (10, 30, 60)}


def worker(seeds: int) -> None:
    """One of two: rank 0 prints what has come of each way."""
    data = held_out()
    made: dict[str, Any] = {way: {"accuracy": [], "loss": [], "wire": []} for way in WAYS}
    images = data.inputs.reshape(len(data.labels), -1)
    with mz.kv.create("dist_sync") as kv:
        for seed in range(seeds):
            order = np.random.default_rng(seed).permutation(len(data.labels))
            test, learn = order[:HELD], order[HELD:]
            for way, how in WAYS.items():
                before, loss = kv.stats().between, 0.0
                sgd = mz.optimizer.SGD(rate=RATE, momentum=0.9)
                trainer = mz.Trainer(network(seed), optimizer=sgd, threads=1, kvstore=kv if how is None else None)
                outer = None if how is None else mz.callbacks.Outer(kv, **how)
                if outer is not None:
                    outer.begin(trainer)
                for epoch in range(EPOCHS):
                    mine = np.random.default_rng((seed, epoch)).permutation(learn)[kv.rank :: kv.num_workers]
                    for low in range(0, len(mine) - BATCH + 1, BATCH):
                        rows = mine[low : low + BATCH]
                        loss = trainer.step({"image": images[rows], "target": data.labels[rows].astype(np.int64)})
                        if outer is not None:
                            outer.stepped(trainer, loss)
                held = {"image": images[test], "target": data.labels[test].astype(np.int64)}
                made[way]["accuracy"].append(100 * trainer.evaluate([held]).accuracy)
                made[way]["loss"].append(float(loss))
                made[way]["wire"].append(kv.stats().between - before)
        if kv.rank == 0:
            print(json.dumps(made), flush=True)


def main() -> None:
    if sys.argv[1:2] == ["worker"]:
        worker(int(sys.argv[2]))
        return
    args = arguments(__doc__)
    command = [sys.executable, "-m", "mezzo", "launch", "-n", "2", "-s", "1", "--hosts", "2", str(HERE), "worker"]
    command += ["1" if args.quick else "5"]
    said = subprocess.run(command, env=users_environment(), check=True, stdout=subprocess.PIPE, text=True).stdout
    found = json.loads(said[said.index("{") :])
    rows, notes = list[Row](), [machine()]
    plain = statistics.mean(found["every step"]["accuracy"])
    for way, numbers in found.items():
        mean = {name: statistics.mean(values) for name, values in numbers.items()}
        rows.append(Row(way, "%", mean["accuracy"], {} if way == "every step" else {"every step": plain}))
        notes.append(f"{way}: loss {mean['loss']:.4f}, {mean['wire'] / 1e6:.2f} MB")
    show(rows, args, notes)


if __name__ == "__main__":
    main()
