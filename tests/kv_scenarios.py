"""What workers of the jobs in test_kv_network.py do: `python -m tests.kv_scenarios NAME`, printing JSON at the end.

The same command in the role of a scheduler or server serves inside of `create`, as a user's script does.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from mezzo.kvstore.create import create
from mezzo.kvstore.rule import rule
from mezzo.kvstore.store import KVStore
from mezzo.kvstore.updater import UpdateRule
from mezzo.ops.errors import MezzoError
from mezzo.ops.types import f32
from mezzo.runtime.optimizer import LARS, SGD, Adam
from mezzo.runtime.optimizer.schedule import Cosine

Result = dict[str, Any]
LARGE = 400_000  # elements: more than a megabyte, so that two servers share them
KEYS = {"small": 1000, "middle": 50_000, "large": LARGE}
TENSORS = {"w": 3000, "v": LARGE}


def gradient(key: str, rank: int, step: int) -> Any:
    """What a rank pushes: of very different sizes, so that another order of summing would be seen."""
    rng = np.random.default_rng([len(key), rank, step])
    size = (KEYS | TENSORS)[key]
    return (rng.standard_normal(size) * 10.0 ** rng.integers(-3, 4, size)).astype(np.float32)


def sync(kv: KVStore) -> Result:
    """Sums by value and by bits, in different orders of keys; then an optimizer on the servers."""
    made: Result = {"rank": kv.rank, "workers": kv.num_workers, "sums": {}}
    before = _between(kv)
    for key, size in KEYS.items():
        kv.init(key, np.full(size, 7, np.float32))
    names = list(KEYS) if kv.rank % 2 == 0 else list(reversed(KEYS))
    arrays = {key: kv.empty(size) if key == "middle" else np.empty(size, np.float32) for key, size in KEYS.items()}
    for key in KEYS:
        made["sums"][f"{key} 0"] = float(kv.pull(key)[-1])
    for step in range(1, 4):
        handles = []
        for priority, key in enumerate(names):
            arrays[key][...] = gradient(key, kv.rank, step)
            handles.append(kv.pushpull(key, arrays[key], priority=priority, wait=False))
        for key, handle in zip(names, handles, strict=True):
            (value,) = handle.wait()
            made["sums"][f"{key} {step}"] = value.tobytes().hex()[:64] + str(_digest(value))
    kv.barrier()
    made["bytes"] = _between(kv) - before
    kv.init("cancel", np.zeros(1, np.float32))
    mine, found = np.array([[1e8, -1e8, 1, 0][kv.rank % 4]], np.float32), set[float]()
    for _ in range(1000):
        found.add(float(kv.pushpull("cancel", mine)[0]))
    made["cancelled"] = sorted(found)
    try:
        kv.push("small", np.zeros(3, np.float32))
    except MezzoError as error:
        made["refused"] = str(error)
    return made


def _declared(kv: KVStore, **sizes: int) -> list[Any]:
    """Keys of zeros; for each an array of ones to push."""
    for key, size in sizes.items():
        kv.init(key, np.zeros(size, np.float32))
    return [np.ones(size, np.float32) for size in sizes.values()]


def _between(kv: KVStore) -> int:
    return kv.stats().between


def _digest(value: Any) -> int:
    return int(np.bitwise_xor.reduce(value.view(np.uint32)))


def optimizer() -> Adam:
    return Adam(rate=Cosine(0.01, 20), weight_decay=0.01)


def learn(kv: KVStore) -> Result:
    """An optimizer on the servers, whose states are saved half-way, changed, and loaded again."""
    folder = Path(os.environ["KV_FOLDER"])
    for key, size in TENSORS.items():
        kv.init(key, np.linspace(-1, 1, size, dtype=np.float32))
    kv.set_optimizer(optimizer())
    made: Result = {"rank": kv.rank, "values": {}}

    def steps(first: int, last: int) -> None:
        for step in range(first, last):
            for key in TENSORS:
                made["values"][f"{key} {step}"] = _digest(kv.pushpull(key, gradient(key, kv.rank, step)))

    steps(1, 4)
    kv.save_optimizer_states(folder / "states")
    steps(4, 6)
    half = {key: np.array(kv.pull(key)) for key in TENSORS}
    kv.set_optimizer(SGD(rate=0.5))
    kv.load_optimizer_states(folder / "states")
    for key in TENSORS:  # the same states give the same difference
        kv.pushpull(key, gradient(key, kv.rank, 6))
        made[key] = float(np.abs(kv.pull(key) - half[key]).max())
    kv.save_optimizer_states(folder / "again")
    return made


def counted(kv: KVStore) -> Result:
    """Every push counts once, whoever is slow."""
    one, ones = _declared(kv, n=4, large=LARGE)
    ahead = Path(os.environ["KV_FOLDER"]) / "ahead"
    for step in range(40):
        if step == 5 and kv.consistency[1] == "eventual":  # however the machine shares its time out
            while kv.rank == 0 and not ahead.exists():
                time.sleep(0.005)
        if step == 20 and kv.rank == 1:
            ahead.touch()
        kv.push("n", one)
        if step % 10 == 0:
            kv.push("large", ones)
        if kv.rank == 0:
            time.sleep(0.005)
        kv.pull("n")
    kv.barrier()
    n, large = kv.pull("n"), kv.pull("large")
    return {
        "n": sorted(set(n.tolist())),
        "large": sorted(set(large.tolist())),
        "staleness": {str(k): v for k, v in kv.stats().staleness.items()},
    }


def ordered(kv: KVStore) -> Result:
    """What a rank pushes before a barrier, the others pull behind it."""
    one, ones = _declared(kv, n=4, large=LARGE)
    late = 0
    for step in range(100):
        if step % kv.num_workers == kv.rank:
            kv.push("large", ones)
            kv.push("n", one)
        kv.barrier()
        late += sum(float(kv.pull(key)[-1]) != step + 1 for key in ("n", "large"))
        kv.barrier()
    return {"late": late}


def rows(kv: KVStore) -> Result:
    """Some rows of keys that servers share, which cut rows, and of rows longer than a frame; and what travels."""
    made: Result = {"rank": kv.rank, "bytes": {}}
    for key, shape in {"small": (10, 3), "shared": (1001, 333), "long": (3, 200_001)}.items():
        value = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
        kv.init(key, value)
        kv.push(key, np.ones(shape, np.float32))
        kv.pull(key)  # behind it the push has travelled
        kv.barrier()
        last = shape[0] - 1
        asked = [np.array(ids) for ids in ([last, 0, last // 2, 0], [], range(last, -1, -1))]
        before = _between(kv)
        for ids in asked:
            out, other = np.full((len(ids), shape[1]), np.nan, np.float32), np.empty((len(ids), shape[1]), np.float32)
            kv.row_sparse_pull(key, [out, other], ids)
            assert (out == value[ids.astype(int)] + kv.num_workers).all(), key
            assert (other == out).all()
        made["bytes"][key] = (_between(kv) - before, sum(len(ids) for ids in asked) * shape[1] * 4)
        kv.barrier()
    return made


def whole(kv: KVStore) -> Result:
    """An optimizer that measures whole tensors, on one server."""
    rule, step = UpdateRule(LARS(rate=0.1).to_dict()), 0
    kv.set_optimizer(LARS(rate=0.1))
    for key, size in TENSORS.items():
        value = np.linspace(-1, 1, size, dtype=np.float32)
        states = rule.states(key, value)
        kv.init(key, value)
        for step in range(3):
            pushes = [gradient(key, rank, step) for rank in range(kv.num_workers)]
            found = kv.pushpull(key, pushes[kv.rank])
            kv.barrier()
            if kv.consistency[1] == "sequential":
                rule.step(key, step, value, sum(pushes[1:], pushes[0]), states)
                assert found.tobytes() == value.tobytes()
    return {"moved": bool((kv.pull(key) != np.linspace(-1, 1, size, dtype=np.float32)).any())}


@rule
def leaky(e: Any, stored: Any, received: Any, total: Any) -> Any:
    """An updater of a user, with a state."""
    total = total * 0.5 + e.abs(received)
    return stored - received / (1 + total), total


def ruled(kv: KVStore) -> Result:
    """How far values are from what an updater makes of them."""
    far = 0.0
    kv.set_updater(leaky)
    for key, size in TENSORS.items():
        value, state = np.linspace(-1, 1, size, dtype=np.float32), np.zeros(size, np.float32)
        kv.init(key, value)
        for step in range(3):
            pushes = [gradient(key, rank, step) for rank in range(kv.num_workers)]
            found, received = kv.pushpull(key, pushes[kv.rank]), np.sum(pushes, 0)
            state = state * 0.5 + np.abs(received)
            value = value - received / (1 + state)
            far = max(far, float(np.abs(found - value).max()))
    return {"far": far}


def wait_for_ever(kv: KVStore) -> Result:
    """Rounds without an end; the test kills somebody once everybody has had some."""
    one, ones = _declared(kv, a=100, b=LARGE)
    for step in range(100_000):
        kv.pushpull("a", one)
        kv.pushpull("b", ones)
        if step == 3:
            (Path(os.environ["KV_FOLDER"]) / f"runs-{kv.rank}").write_text(str(os.getpid()))
    return {}


def freezes_in_a_round(kv: KVStore) -> Result:
    """Rank 1 stops when it has begun a round and before it has summed its part; only then do the others begin."""
    (large,) = _declared(kv, a=LARGE)
    folder = Path(os.environ["KV_FOLDER"])
    if kv.rank == 1:
        kv.pushpull("a", large, wait=False)
        (folder / "begun").write_text(str(os.getpid()))
        os.kill(os.getpid(), signal.SIGSTOP)
    while not (folder / "begun").exists():
        time.sleep(0.01)
    time.sleep(0.1)
    return {"value": float(kv.pushpull("a", large)[0])}


def _freezes_before_a_round(kv: KVStore, size: int) -> Result:
    """Rank 1 stops before a round, and rank 0 begins it long after rank 2."""
    (array,) = _declared(kv, a=size)
    if kv.rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    if kv.rank == 0:
        time.sleep(2)
    return {"value": float(kv.pushpull("a", array)[0])}


def freezes_before_a_small_round(kv: KVStore) -> Result:
    """A worker speaks for the host."""
    return _freezes_before_a_round(kv, 100)


def freezes_before_a_large_round(kv: KVStore) -> Result:
    """The agent speaks for the host."""
    return _freezes_before_a_round(kv, LARGE)


def _trainer(kv: KVStore, **how: Any) -> tuple[Any, Result]:
    """A Trainer of two dense layers, and a batch for it."""
    import mezzo as mz
    from mezzo.runtime.ir.graph import GraphBuilder

    g, rng = GraphBuilder("net"), np.random.default_rng(0)
    x = g.input("x", f32("n", 16))
    hidden = g.Relu(g.MatMul(x, g.const(rng.standard_normal((16, 32)).astype(np.float32))))
    y = g.MatMul(hidden, g.const(rng.standard_normal((32, 4)).astype(np.float32)))
    trainer = mz.Trainer(g.graph([y]), loss="mse", optimizer=SGD(rate=1e-6), kvstore=kv, **how)
    return trainer, {"x": np.ones((8, 16), np.float32), "target": np.ones((8, 4), np.float32)}


def train_for_ever(kv: KVStore) -> Result:
    """The same by steps of a Trainer, whose gradients are awaited inside of its program."""
    trainer, batch = _trainer(kv)
    for step in range(100_000):
        trainer.step(batch)
        if step == 3:
            (Path(os.environ["KV_FOLDER"]) / f"runs-{kv.rank}").write_text(str(os.getpid()))
    return {}


def two_ways(kv: KVStore) -> Result:
    """The first steps of a Trainer measure two orders; all of them have the bits of a Trainer with one. What is given
    out: before how many steps it has decided, and whether all agree."""
    (trainer, batch), (plain, _) = _trainer(kv), _trainer(kv, overlap=True)
    first, steps = trainer._update, 0
    used = set()
    for step in range(14):
        used.add(trainer._ways.next() if trainer._ways else trainer._update)
        steps += trainer._ways is not None
        trainer.step(batch)
        plain.step(batch)
        for name, array in plain.parameters.items():
            assert array.tobytes() == trainer.parameters[name].tobytes(), (step, name)
    early = np.zeros(kv.num_workers)
    early[kv.rank] = trainer._update is first
    kv.init("early", np.zeros(kv.num_workers))
    return {"steps": steps, "ways": len(used), "early": kv.pushpull("early", early).tolist()}


def drifts(kv: KVStore) -> Result:
    """One bit of a parameter of rank 1 changes after step 7: the comparison after step 10 finds it, or a checkpoint."""
    trainer, batch = _trainer(kv, compare_every=5)
    saves = os.environ.get("KV_HOW") == "save"
    for step in range(1, 13):
        trainer.step(batch)
        if step == 7 and kv.rank == 1:
            (*_, last) = trainer.parameters.values()
            last.reshape(-1).view(np.uint32)[5] ^= 1
        if step == 8 and saves:
            trainer.save(Path(os.environ["KV_FOLDER"]) / "kept")
    return {}


def blocks_drift(kv: KVStore) -> Result:
    """The same with blocks."""
    from mezzo import gluon, nd
    from mezzo.gluon import nn
    from mezzo.nd import autograd

    net = nn.Dense(3, in_units=4).initialize()
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1}, kvstore=kv, compare_every=5)
    for step in range(1, 13):
        with autograd.record():
            loss = net(nd.ones((2, 4))).sum()
        loss.backward()
        trainer.step(2)
        if step == 7 and kv.rank == 1:
            net.weight.set_data(net.weight.data() * np.float32(1 + 1e-6))
    return {}


def until_told(kv: KVStore) -> Result:
    """Rounds until the test has seen enough. What `runs-0` says is where the servers listen."""
    one, enough = _declared(kv, a=100, enough=1)
    folder, steps = Path(os.environ["KV_FOLDER"]), 0
    while not kv.pushpull("enough", enough * (folder / "enough").exists())[0]:
        assert kv.pushpull("a", one)[0] == kv.num_workers
        steps += 1
        if steps == 3:
            (folder / f"runs-{kv.rank}").write_text(" ".join(kv._backend._member.welcome.servers))  # type: ignore[attr-defined]
    return {"steps": steps}


def one_fewer(kv: KVStore) -> Result:
    """Rank 1 has one batch less than the others."""
    (one,) = _declared(kv, a=100)
    for _ in range(5 - (kv.rank == 1)):
        kv.pushpull("a", one)
    return {}


def outlasts(kv: KVStore) -> Result:
    """Stays until another worker has said how it ended, as long as that may take."""
    folder, end = Path(os.environ["KV_FOLDER"]), time.monotonic() + 30
    while not any(f.stat().st_size for f in folder.glob("worker*.out")) and time.monotonic() < end:
        time.sleep(0.05)
    return {}


def other_shape(kv: KVStore) -> Result:
    kv.init("a", np.zeros((2, 50 + kv.rank), np.float32))
    return {}


def other_optimizer(kv: KVStore) -> Result:
    _declared(kv, a=3)
    kv.set_optimizer(SGD(rate=0.5 + kv.rank))
    return {}


def other_compression(kv: KVStore) -> Result:
    kv.set_compression("fp16" if kv.rank else "bf16")
    return {}


def nothing(kv: KVStore) -> Result:
    return {}


SCENARIOS: dict[str, Callable[[KVStore], Result]] = {
    f.__name__: f
    for f in (
        sync,
        learn,
        counted,
        ordered,
        rows,
        whole,
        ruled,
        wait_for_ever,
        train_for_ever,
        freezes_in_a_round,
        freezes_before_a_small_round,
        freezes_before_a_large_round,
        two_ways,
        drifts,
        blocks_drift,
        until_told,
        one_fewer,
        outlasts,
        other_shape,
        other_optimizer,
        other_compression,
        nothing,
    )
}


def main() -> None:
    begin = time.monotonic()
    kind, _, staleness = os.environ.get("KV_KIND", "dist_sync").partition(" ")
    made: Result = {}
    try:
        own = float(os.environ["KV_DEADLINE"]) if "KV_DEADLINE" in os.environ else None
        with create(kind, staleness=int(staleness) if staleness else None, deadline=own) as kv:
            made = SCENARIOS[sys.argv[1]](kv)
    except MezzoError as error:
        made = {"error": f"{type(error).__name__}: {error}", "seconds": time.monotonic() - begin}
    print(json.dumps(made), flush=True)


if __name__ == "__main__":
    main()
