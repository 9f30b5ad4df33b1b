"""A worker for `bench/packing.py`: `time SCHEMES ROUNDS` prints the seconds of one push and pull of 64 MB by scheme and
round; `digits SCHEMES SEEDS` the held-out accuracy, the last loss and the bytes on the wire of trainings; `training
SCHEMES ROUNDS` the seconds of trainings, and their accuracy."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import numpy as np

import mezzo as mz
from mezzo.models.digits import held_out
from mezzo.ops.types import f32
from mezzo.runtime.ir.graph import Graph, GraphBuilder

SIZE = 16 << 20  # numbers: 64 MB
EPOCHS, BATCH, HELD, RATE = 60, 15, 90, 0.02
WIDE = 2048  # units of the trainings whose time is measured: 0.6 MB of parameters


def timed(kv: mz.kv.KVStore, schemes: list[str], rounds: int) -> dict[str, Any]:
    gradient = np.random.default_rng(kv.rank).standard_normal(SIZE).astype(np.float32)
    times: dict[str, list[float]] = {scheme: [] for scheme in schemes}
    wire: dict[str, int] = {}
    for scheme in schemes:
        kv.set_compression(scheme or None)
        kv.init(f"w {scheme}", np.zeros(SIZE, np.float32))
    print("ready", flush=True)
    sys.stdin.readline()  # the link is slow from now on
    for number in range(rounds + 1):
        for scheme in schemes:
            if not number and not scheme:
                continue  # its memory is not made by the first round
            kv.barrier()
            before, began = kv.stats().between, time.perf_counter()
            kv.pushpull(f"w {scheme}", gradient)
            seconds = time.perf_counter() - began
            wire[scheme] = kv.stats().between - before
            if number:
                times[scheme].append(seconds)
    return {"times": times, "wire": wire}


def network(seed: int, units: int = 256) -> Graph:
    """64 pixels, hidden units, 10 digits, from fresh weights."""
    g, rng = GraphBuilder("digits"), np.random.default_rng(seed)
    first = g.const((rng.standard_normal((64, units)) / 8).astype(np.float32))
    second = g.const((rng.standard_normal((units, 10)) / 16).astype(np.float32))
    bias = g.const(np.zeros(10, np.float32))
    hidden = g.Relu(g.MatMul(g.input("image", f32("n", 64)), first))
    return g.graph([g.Add(g.MatMul(hidden, second), bias)])


def digits(kv: mz.kv.KVStore, schemes: list[str], seeds: int) -> dict[str, Any]:
    data = held_out()
    images = data.inputs.reshape(len(data.labels), -1)
    made: dict[str, Any] = {scheme: {"accuracy": [], "loss": [], "wire": []} for scheme in schemes}
    for seed in range(seeds):
        order = np.random.default_rng(seed).permutation(len(data.labels))
        test, learn = order[:HELD], order[HELD:]
        for scheme in schemes:
            kv.set_compression({scheme: 0} if scheme else None)
            sgd = mz.optimizer.SGD(rate=RATE, momentum=0.9)
            trainer = mz.Trainer(network(seed), optimizer=sgd, kvstore=kv, threads=1)
            before, loss = kv.stats().between, 0.0
            for epoch in range(EPOCHS):
                shuffled = np.random.default_rng((seed, epoch)).permutation(learn)
                mine = shuffled[kv.rank :: kv.num_workers]
                for low in range(0, len(mine) - BATCH + 1, BATCH):
                    rows = mine[low : low + BATCH]
                    loss = trainer.step({"image": images[rows], "target": data.labels[rows].astype(np.int64)})
            held = {"image": images[test], "target": data.labels[test].astype(np.int64)}
            made[scheme]["accuracy"].append(trainer.evaluate([held]).accuracy)
            made[scheme]["loss"].append(float(loss))
            made[scheme]["wire"].append(kv.stats().between - before)
    return made


def training(kv: mz.kv.KVStore, schemes: list[str], rounds: int) -> dict[str, Any]:
    data = held_out()
    images = data.inputs.reshape(len(data.labels), -1)
    made: dict[str, Any] = {scheme: {"seconds": [], "accuracy": []} for scheme in schemes}
    print("ready", flush=True)
    sys.stdin.readline()  # the link is slow from now on
    for number in range(rounds):
        order = np.random.default_rng(number).permutation(len(data.labels))
        test, learn = order[:HELD], order[HELD:]
        for scheme in schemes:
            kv.set_compression({scheme: 0} if scheme else None)
            began = time.perf_counter()
            sgd = mz.optimizer.SGD(rate=RATE, momentum=0.9)
            trainer = mz.Trainer(network(number, WIDE), optimizer=sgd, kvstore=kv, threads=1)
            for epoch in range(EPOCHS // 3):
                shuffled = np.random.default_rng((number, epoch)).permutation(learn)
                for low in range(0, len(shuffled) - BATCH + 1, BATCH):
                    rows = shuffled[low : low + BATCH]
                    trainer.step({"image": images[rows], "target": data.labels[rows].astype(np.int64)})
            made[scheme]["seconds"].append(time.perf_counter() - began)
            held = {"image": images[test], "target": data.labels[test].astype(np.int64)}
            made[scheme]["accuracy"].append(trainer.evaluate([held]).accuracy)
    return made


def main() -> None:
    how, schemes, count = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3])
    with mz.kv.create("dist_sync") as kv:
        said = {"time": timed, "digits": digits, "training": training}[how](kv, schemes, count)
        if kv.rank == 0:
            print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main()
