"""A worker of bench/overlap.py: `overlap_worker.py SETTINGS`, as JSON: `net`, a name of mezzo.models.training, `batch`,
`rounds`, `out` (where rank 0 writes its times) and `trace` (where it writes a step, or empty)."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from time import perf_counter

from mezzo.kvstore.create import create
from mezzo.models.training import LESSONS
from mezzo.train.trace import traced


def main(net: str, batch: int, rounds: int, out: str, trace: str) -> None:
    lesson = LESSONS[net]
    feeds = lesson.feeds(batch)
    with create("dist_sync") as kv:
        trainers = {
            "overlap": lesson.trainer(batch, kvstore=kv, overlap=True),
            "after": lesson.trainer(batch, kvstore=kv, overlap=False),
            "alone": lesson.trainer(batch),
        }
        times: dict[str, list[float]] = {way: [] for way in trainers}

        def step(way: str) -> float:
            kv.barrier()
            begin = perf_counter()
            trainers[way].step(feeds)
            kv.barrier()
            return (perf_counter() - begin) * 1e3

        for way in trainers:
            step(way)
            step(way)
        ways = [*trainers]
        for number in range(rounds):
            for way in ways[number % 3 :] + ways[: number % 3]:
                times[way].append(step(way))
        kv.barrier()
        if trace:  # every worker looks on, so that none is slower for it
            made = traced(trainers["overlap"], feeds)
            if kv.rank == 0:
                made.save(trace)
        if kv.rank == 0:
            Path(out).write_text(json.dumps(times))
            print({way: round(sorted(t)[len(t) // 2], 1) for way, t in times.items()}, "bytes", kv.stats())


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
