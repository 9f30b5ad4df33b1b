"""Do two independent branches of a network run at the same time, and a copy beside them? A training step in eager code.

Two towers of convolutions read one batch of pictures and meet in the classifier; the pictures of the next steps are
copied to another device meanwhile (`cpu(1)`: a place of its own in the same memory). Nothing here says what runs beside
what: the engine finds it by what is read and written. One thread for each kernel, so that the overlap is the engine's.

    OMP_NUM_THREADS=1 python bench/branches.py --trace trace.json --picture docs/trace.svg

It prints, of the recorded step, the milliseconds in which two workloads of the resource `compute` ran, and in which a
copy ran beside one. `--trace` is for chrome://tracing or ui.perfetto.dev. The picture in docs/gluon.md is made so.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import numpy as np

import mezzo as mz
from mezzo.gluon import Trainer, loss, nn
from mezzo.gluon.block import Block


class Towers(Block):
    """Two towers over one picture, and a classifier over both."""

    def __init__(self, wide: int) -> None:
        super().__init__()
        self.near = nn.HybridSequential(nn.Conv2D(wide, 3, padding=1, activation="relu"), nn.MaxPool2D(2, 2))
        self.far = nn.HybridSequential(nn.Conv2D(wide, 7, padding=3, activation="relu"), nn.MaxPool2D(2, 2))
        self.both = nn.Dense(10)

    def forward(self, x: Any) -> Any:
        return self.both(mz.nd.concat([self.near(x), self.far(x)], axis=1))


def recorded(side: int, wide: int, batch: int) -> None:
    """Train a few steps, and leave the recording of the last one with the profiler."""
    rng = np.random.default_rng(1)
    net, measure = Towers(wide), loss.SoftmaxCrossEntropyLoss()
    net.initialize("xavier")
    pictures = mz.nd.asarray(rng.standard_normal((batch, 8, side, side)).astype(np.float32))
    next_ones = mz.nd.zeros((8 * batch, 8, side, side))
    label = mz.nd.asarray(rng.integers(0, 10, batch))
    trainer = Trainer(net.collect_params(), "sgd", {"learning_rate": 0.01})
    for last in (False, False, True):
        mz.nd.waitall()
        if last:
            mz.profiler.set_state(True)
        with mz.autograd.record():
            found = measure(net(pictures), label)
        coming = next_ones.copyto(mz.cpu(1))
        found.backward()
        trainer.step(batch)
        mz.nd.waitall()
        del coming
    mz.profiler.set_state(False)


Stretch = tuple[float, float]


def overlap(events: list[dict[str, Any]], first: str, second: str) -> float:
    """Milliseconds in which a workload of one resource ran beside another of the second, on different threads."""
    spans = [e for e in events if e["ph"] == "X" and e["cat"] in (first, second)]
    shared: list[Stretch] = []
    for i, a in enumerate(spans):
        for b in spans[i + 1 :]:
            begin, end = max(a["ts"], b["ts"]), min(a["ts"] + a["dur"], b["ts"] + b["dur"])
            if a["tid"] != b["tid"] and {a["cat"], b["cat"]} == {first, second} and begin < end:
                shared.append((begin, end))
    total, until = 0.0, 0.0
    for begin, end in sorted(shared):
        total += max(end - max(begin, until), 0.0)
        until = max(until, end)
    return total / 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", type=Path, help="Write the trace here.")
    parser.add_argument("--picture", type=Path, help="Draw it here.")
    parser.add_argument("--side", type=int, default=48)
    parser.add_argument("--wide", type=int, default=16)
    parser.add_argument("--batch", type=int, default=32)
    given = parser.parse_args()
    if os.environ.get("OMP_NUM_THREADS") != "1":
        parser.error("set OMP_NUM_THREADS=1: kernels of several threads leave nothing to run beside")
    recorded(given.side, given.wide, given.batch)
    events = mz.profiler.events()
    if given.trace:
        mz.profiler.dump(filename=given.trace)
    if given.picture:
        mz.profiler.picture(
            given.picture, "A training step in eager code: two towers, and a copy of what the next steps read"
        )
    for first, second in (("compute", "compute"), ("compute", "copy")):
        print(f"{first} beside {second}: {overlap(events, first, second):.2f} ms")


if __name__ == "__main__":
    main()
