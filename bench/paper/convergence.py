"""Fig. 8 of the MXNet paper (arXiv 1512.01274): convergence of Inception with batch normalisation, narrow, with 1, 4
and 8 workers of the KVStore, by epoch and by second.

    python bench/paper/convergence.py --json bench/results/DATE-fig8.json --svg docs/fig8.svg

Images are synthetic and can be learnt: waves of a class' own direction, length and colours, shifted, under noise. Each
worker learns from its share of every batch of the store (`dist_sync`), with the same batch for a worker whatever their
number, as the paper has it. Workers share the cores of one machine, so seconds are virtual: of a step, the processor
time of the slowest worker, and the bytes of gradients and parameters over the link that is asked for (`--gbit`).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from argparse import ArgumentParser
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from paper.picture import lines
from rows import Row, arguments, show

WORKERS = (1, 4, 8)
CLASSES = 10


def images(count: int, side: int, seed: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Images float32 [count, 3, side, side] and their classes."""
    kinds, rng = np.random.default_rng(99), np.random.default_rng(seed)
    turns, waves = kinds.uniform(0, np.pi, CLASSES), kinds.uniform(2, 7, CLASSES)
    colours = kinds.uniform(0.2, 1, (CLASSES, 3))
    labels = rng.integers(0, CLASSES, count)
    y, x = np.meshgrid(*[np.linspace(0, 2 * np.pi, side)] * 2, indexing="ij")
    made = np.empty((count, 3, side, side), np.float32)
    for i, label in enumerate(labels):
        along = waves[label] * (np.cos(turns[label]) * x + np.sin(turns[label]) * y) + rng.uniform(0, 2 * np.pi)
        made[i] = colours[label][:, None, None] * np.sin(along) + rng.normal(0, 1.5, (3, side, side))
    return made, labels


def worker(settings: dict[str, Any]) -> None:
    """One worker of a job; rank 0 writes accuracy, and the processor time and bytes of each step, after every epoch."""
    import mezzo as mz
    from mezzo.gluon import Trainer, loss
    from mezzo.models.zoo.registry import count, get
    from mezzo.train.shares import Share

    side, batch = settings["side"], settings["batch"]
    learned, held = images(settings["images"], side, 1), images(256, side, 2)
    with mz.kv.create("dist_sync") as kv:
        mz.random.seed(0)
        net = get("inception_bn", width=settings["width"], classes=CLASSES).initialize("xavier").hybridize()
        measure, share = loss.SoftmaxCrossEntropyLoss().hybridize(), Share(kv.rank, kv.num_workers)
        trainer = Trainer(net.collect_params(), "sgd", {"learning_rate": settings["rate"], "momentum": 0.9}, kvstore=kv)
        accuracies, seconds = [], []
        for epoch in range(settings["epochs"]):
            order, spent = np.random.default_rng(epoch).permutation(len(learned[0])), []
            for number in range(share.steps(len(order), batch, whole=True)):
                rows, begin = share.rows(order, batch, number, whole=True), process_time()
                with mz.autograd.record():
                    found = measure(net(mz.nd.asarray(learned[0][rows])), mz.nd.asarray(learned[1][rows]))
                found.backward()
                found.asnumpy()
                spent.append(process_time() - begin)
                trainer.step(batch * kv.num_workers)
            seconds.append(sorted(spent))
            answers = [net(mz.nd.asarray(held[0][i : i + 32])).asnumpy().argmax(1) for i in range(0, 256, 32)]
            accuracies.append(float((np.concatenate(answers) == held[1]).mean()))
        told = {"accuracies": accuracies, "seconds": seconds, "bytes": 4 * count(net), "rank": kv.rank}
        Path(f"{settings['out']}/{kv.rank}.json").write_text(json.dumps(told))


def converged(workers: int, settings: dict[str, Any], gbit: float) -> list[tuple[float, float]]:
    """The virtual second and the accuracy at the end of each epoch."""
    with tempfile.TemporaryDirectory() as folder:
        given = json.dumps({**settings, "out": folder})
        job = [sys.executable, "-m", "mezzo", "launch", "-n", str(workers), "-s", "0", __file__, given]
        subprocess.run(job, check=True, stdout=sys.stderr, env={**os.environ, "OMP_NUM_THREADS": "1"})
        told = [json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(workers)]
    # gradients go and parameters come; a store of as many servers as workers has no narrow place
    travelling = 0.0 if workers == 1 else 2 * 8 * told[0]["bytes"] / (gbit * 1e9)
    made, now = [], 0.0
    for epoch, accuracy in enumerate(told[0]["accuracies"]):
        steps = len(told[0]["seconds"][epoch])
        typical = max(t["seconds"][epoch][steps // 2] for t in told)  # the median step of the slowest worker
        now += steps * (typical + travelling)
        made.append((now, accuracy))
    return made


def main() -> None:
    def more(parser: ArgumentParser) -> None:
        parser.add_argument("--svg", type=Path, help="draw the figure into this file")
        parser.add_argument("--side", type=int, default=224, help="pixels of an image (default: 224)")
        parser.add_argument("--width", type=float, default=0.125, help="of the network (default: 1/8)")
        parser.add_argument("--images", type=int, default=1024, help="of an epoch (default: 1024)")
        parser.add_argument("--batch", type=int, default=8, help="of a worker (default: 8)")
        parser.add_argument("--epochs", type=int, default=10)
        parser.add_argument("--rate", type=float, default=0.05)
        parser.add_argument("--gbit", type=float, default=10, help="of each worker's link (default: 10)")

    args = arguments(__doc__, more)
    settings = {n: getattr(args, n) for n in ("side", "width", "images", "batch", "epochs", "rate")}
    if args.quick:
        settings |= {"side": 64, "images": 256, "epochs": 3}
    rows, by_epoch, by_second = list[Row](), {}, {}
    for workers in WORKERS:
        points = converged(workers, settings, args.gbit)
        name = f"{workers} worker{'s' * (workers > 1)}"
        by_second[name] = [(round(s, 3), 100 * a) for s, a in points]
        by_epoch[name] = [(float(i), 100 * a) for i, (_, a) in enumerate(points, 1)]
        for epoch, (second, accuracy) in enumerate(points, 1):
            rows += [
                Row(f"{workers}/epoch{epoch}/seconds", "s", second),
                Row(f"{workers}/epoch{epoch}", "%", 100 * accuracy),
            ]
    show(rows, args, [str(settings)])
    if args.svg:
        panels = {"accuracy by epoch": by_epoch, "accuracy by virtual second": by_second}
        args.svg.write_text(lines(panels, "%", "epochs, seconds"), "utf8")


if __name__ == "__main__":
    if len(sys.argv) == 2 and sys.argv[1].startswith("{"):
        worker(json.loads(sys.argv[1]))
    else:
        main()
