"""A worker of a job whose values travel packed, for tests/test_kv_packing.py: `python -m tests.kv_packing FOLDER`."""

from __future__ import annotations

import hashlib
import json
import sys
from functools import cache
from pathlib import Path

import numpy as np

import mezzo as mz
from mezzo.models.digits import digits_model, held_out
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
            lost = kv.take_losses()  # from here on the key is like a fresh one
            assert np.abs(total + lost[key] - exact).max() < 1e-3 if scheme else not lost
            kv.give_losses(lost)
            kv.init(f"fresh{number}", np.zeros(SIZE, np.float32))
            mine = gradient(kv.rank, ROUNDS)
            more = mine + lost[key] if lost and not kv.rank else mine
            after = [kv.pushpull(name, x).tobytes() for name, x in ((key, mine), (f"fresh{number}", more))]
            assert after[0] == after[1]
            kv.drop_losses()
            kv.init(f"dropped{number}", np.zeros(SIZE, np.float32))
            assert kv.pushpull(key, mine).tobytes() == kv.pushpull(f"dropped{number}", mine).tobytes()
            assert scheme is None or kv.pushpull(key, mine).tobytes() != kv.pull(f"dropped{number}").tobytes()
            said[str(scheme)] = [bits.hexdigest(), now - before, float(np.abs(total - exact).max())]
            before = kv.stats().between
    (folder / f"rank {kv.rank}").write_text(json.dumps(said))


def lesson(folder: Path, name: str) -> None:
    """A training of six steps whose gradients travel packed; a checkpoint is written, or read, behind the third."""
    digits = held_out()
    with mz.kv.create("dist_sync") as kv:
        kv.set_compression({"2bit": 0})
        trainer = mz.Trainer(digits_model(), optimizer=mz.optimizer.SGD(rate=0.05, momentum=0.9), kvstore=kv, threads=1)
        if name != "went on":
            trainer.resume(folder / "kept")
        for step in range(trainer.notes.get("at", 0), 6):
            rows = slice(step * 32 + kv.rank * 8, step * 32 + kv.rank * 8 + 8)
            trainer.step({"image": digits.inputs[rows], "target": digits.labels[rows]})
            if step == 2:
                trainer.notes = {"at": 3}
                trainer.save(folder / "kept")
        np.savez(folder / f"{name} {kv.rank}.npz", **trainer.parameters)


if __name__ == "__main__":
    main(Path(sys.argv[1])) if len(sys.argv) == 2 else lesson(Path(sys.argv[1]), sys.argv[2])
