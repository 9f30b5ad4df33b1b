"""A worker of a job whose values travel packed, for tests/test_kv_packing.py: `python -m tests.kv_packing FOLDER`."""

from __future__ import annotations

import hashlib
import json
import sys
from functools import cache
from pathlib import Path

import numpy as np

import mezzo as mz
from mezzo.ops.types import Array

SIZE, ROUNDS = 540_000, 3  # two frames on each of two servers
SCHEMES: list[str | dict[str, int] | None] = [None, "2bit", {"fp16": 1 << 20, "1bit": 1 << 21}, "powersgd 2"]


@cache
def gradient(rank: int, step: int) -> Array:
    return np.random.default_rng((rank, step)).standard_normal(SIZE).astype(np.float32)


def main(folder: Path) -> None:
    said = {}
    with mz.kv.create("dist_sync") as kv:
        before = 0
        for number, scheme in enumerate(SCHEMES):
            kv.set_compression(scheme)
            key, small = f"w{number}", f"small{number}"
            kv.init([key, small], [np.zeros(SIZE, np.float32), np.zeros(5, np.float32)])
            bits, total, exact = hashlib.sha256(), np.zeros(SIZE), np.zeros(SIZE)
            for step in range(ROUNDS):
                found = kv.pushpull(key, gradient(kv.rank, step))
                bits.update(found.tobytes())
                total += found
                exact += sum(gradient(rank, step).astype(np.float64) for rank in range(kv.num_workers))
                assert (kv.pushpull(small, np.ones(5, np.float32)) == kv.num_workers).all()
            again = np.empty(SIZE, np.float32)
            kv.pull(key, again)
            assert (again == found).all()
            now = kv.stats().between
            kv.drop_losses()  # from here on the key is like a fresh one
            kv.init(f"fresh{number}", np.zeros(SIZE, np.float32))
            after = [kv.pushpull(name, gradient(kv.rank, ROUNDS)).tobytes() for name in (key, f"fresh{number}")]
            assert after[0] == after[1]
            assert scheme is None or kv.pushpull(key, gradient(kv.rank, ROUNDS)).tobytes() != after[1]
            said[str(scheme)] = [bits.hexdigest(), now - before, float(np.abs(total - exact).max())]
            before = kv.stats().between
    (folder / f"rank {kv.rank}").write_text(json.dumps(said))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
