"""A job with a slow worker, for tests/test_kv_pace.py: `python -m tests.kv_slow CAUSE SEED SERVERS` forks a scheduler,
servers and workers, each worker a host of its own where there are servers, and prints what each worker's `stats` tell.
Computing and loading are waits, since all of them share two processors; the network is slowed by a relay."""

from __future__ import annotations

import json
import os
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np

from mezzo.kvstore import pace, server, uplink
from mezzo.kvstore.address import parse_address
from mezzo.kvstore.create import create
from mezzo.kvstore.environment import Environment
from mezzo.kvstore.protocol import pace as judging
from mezzo.kvstore.scheduler import Scheduler
from mezzo.runtime.engine import engine

from .forked import print_answers
from .test_kv_network import free_port

SIZE, LONG, LONGEST = 50_000, 1.5, 40.0  # elements of the one key; seconds of training, at least and at most
CHUNK = 8 << 10


def relay(target: tuple[str, int], seconds: float) -> tuple[str, int]:
    """An address at which everything passes to another, so slowly that all of the key takes so long each way."""
    door = socket.create_server(("127.0.0.1", 0))

    def pump(read: socket.socket, write: socket.socket) -> None:
        due = 0.0
        while data := read.recv(CHUNK):
            due = max(due, time.monotonic()) + seconds * len(data) / (4 * SIZE)
            time.sleep(max(0.0, due - time.monotonic()))
            write.sendall(data)
        write.shutdown(socket.SHUT_WR)

    def serve() -> None:
        while True:
            near, _ = door.accept()
            far = socket.create_connection(target)
            for pair in ((near, far), (far, near)):
                Thread(target=pump, args=pair, daemon=True).start()

    Thread(target=serve, daemon=True).start()
    name = door.getsockname()
    return name[0], name[1]


def work(rank: int, slow: int, cause: str, base: float, more: float, said: Path) -> Any:
    """Train until the scheduler has warned of somebody; who is slow, as this worker hears it, and all splits."""
    mine = {name: base + more * (rank == slow and name == cause) for name in ("compute", "data")}
    if rank == slow and cause == "network":
        vars(uplink)["parse_address"] = lambda text: relay(parse_address(text), more / 2)  # type: ignore[arg-type]

    def loaded() -> Iterator[int]:
        while True:
            time.sleep(mine["data"])
            yield 0

    with create("dist_sync") as kv:
        kv.init("w", np.zeros(SIZE, np.float32))
        batches, began, over = kv.batches(loaded()), time.monotonic(), False
        while not over:
            next(batches)
            time.sleep(mine["compute"])
            took = time.monotonic() - began
            ends = (took > LONG and said.stat().st_size > 0) or took > LONGEST
            over = kv.pushpull("w", np.full(SIZE, ends, np.float32))[0] > 0
            kv.stepped(0.5)
        found = kv.stats()
        kv.barrier()
    named = found.straggler
    splits = {r: {part: getattr(split, part) for part in judging.PARTS} for r, split in found.ranks.items()}
    return [None if named is None else [named.rank, named.cause], splits]


def main(cause: str, seed: int, servers: int, workers: int = 2) -> int:
    chance = np.random.default_rng(seed)
    slow, base, more = int(chance.integers(workers)), chance.uniform(0.004, 0.012), chance.uniform(0.06, 0.12)
    for module in (pace, server, judging):
        module.EVERY = 0.15  # type: ignore[attr-defined]
    judging.PATIENCE = 0.5
    job = Environment("worker", ("127.0.0.1", free_port()), workers, servers, "h", deadline=60.0)

    said = Path(tempfile.mkstemp()[1])  # by the scheduler

    def run(me: int) -> Any:
        if me < workers:
            os.environ.update(job.as_role("worker", me, f"h{me}" if servers else "h").variables())
            told = work(me, slow, cause, base, more, said)
            engine().wait_all()
            return [slow, *told]
        mine = job.as_role("scheduler" if me == workers else "server", None if me == workers else me - workers - 1)
        if me == workers:
            with said.open("w") as file:
                os.dup2(file.fileno(), 2)
            assert Scheduler(mine).run() is None
        else:
            server.Server(mine).run()
        return "served"

    code = print_answers(workers + 1 + servers, run)
    print(json.dumps({"scheduler": said.read_text()}))
    said.unlink()
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
