"""A worker for `bench/failures.py`: pushes, or calls a communicator, until it hears of a failure, and prints when that
was (seconds of the clock that all processes of a machine share), and why. A signal makes it slow (SIGUSR1), or takes
its memory (SIGUSR2)."""

from __future__ import annotations

import json
import resource
import signal
import sys
import time
from typing import Any

import numpy as np

import mezzo as mz
from mezzo.kvstore.collective.opening import beside
from mezzo.ops.errors import MezzoError
from mezzo.ops.types import f32
from mezzo.runtime.ir.graph import GraphBuilder


def call(kv: mz.kv.KVStore, deadline: float) -> None:
    """Add up a megabyte with the other ranks, for ever."""
    troubles: list[int] = []
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, lambda told, _: troubles.append(told))
    with beside(kv, deadline) as ranks:
        given: Any = ranks.empty(1 << 18, np.float32)
        for step in range(1 << 30):
            if signal.SIGUSR1 in troubles:
                time.sleep(3 * deadline)
            if signal.SIGUSR2 in troubles:
                resource.setrlimit(resource.RLIMIT_AS, (1 << 20, resource.RLIM_INFINITY))
                np.ones(1 << 28)
            ranks.all_reduce(given, name="gradients").wait()
            if step == 3:
                print(json.dumps(["ready", time.monotonic()]), flush=True)


def main() -> None:
    how, deadline = sys.argv[1], float(sys.argv[2])
    try:
        with mz.kv.create("dist_sync", deadline=60.0 if how.startswith("ranks") else deadline) as kv:
            if how.startswith("ranks"):
                call(kv, deadline)
            if how == "configuration":
                g = GraphBuilder("net")
                weights = g.const(np.ones((4, 2), np.float32))
                rate = 0.1 if kv.rank else 0.2
                net = g.graph([g.MatMul(g.input("x", f32("n", 4)), weights)])
                trainer = mz.Trainer(net, loss="mse", optimizer=mz.optimizer.SGD(rate=rate), kvstore=kv)
                kv.barrier()
                print(json.dumps(["ready", time.monotonic()]), flush=True)
                trainer.step({"x": np.ones((2, 4), np.float32), "target": np.ones((2, 2), np.float32)})
            given = np.ones(1 << 18, np.float32)
            kv.init("w", given)
            for step in range(1 << 30):
                kv.pushpull("w", given, out=given)
                given[...] = 1
                if step == 3:
                    print(json.dumps(["ready", time.monotonic()]), flush=True)
    except MezzoError as error:
        print(json.dumps(["failed", time.monotonic(), error.message]), flush=True)


if __name__ == "__main__":
    main()
