"""Barriers of stores whose workers do not wait for each other: pulls behind them find what was pushed before, in any
way; and trainers on a store that has an optimizer."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from mezzo import gluon, nd
from mezzo.gluon import nn
from mezzo.kvstore.create import create
from mezzo.nd import autograd
from mezzo.ops.errors import InputError
from mezzo.runtime.optimizer import SGD
from mezzo.tools.launch import launch, members
from mezzo.train.trainer import Trainer

from .networks import batch_for, mlp

PUSHES, SIZE = 20, 100_000


def main(folder: str) -> None:
    found = dict[str, float]()
    with create("dist_async") as kv:
        kv.init({"later": np.zeros(SIZE, np.float32), "engine": nd.zeros((3,))})
        kv.set_optimizer(SGD(rate=0.5))
        kv.barrier()
        for _ in range(PUSHES):
            kv.push("later", np.ones(SIZE, np.float32), wait=False)
            kv.push("engine", nd.ones((3,)))
        kv.barrier()
        found["later"] = float(kv.pull("later").max())
        pulled = nd.zeros((3,))
        kv.pull("engine", pulled)
        found["engine"] = float(pulled.asnumpy().max())
        kv.barrier()
        rank = kv.rank
    np.savez(Path(folder) / f"{rank}.npz", allow_pickle=False, **{n: np.array(x) for n, x in found.items()})


@pytest.mark.parametrize("servers", [0, 1])
def test_what_is_pushed_before_a_barrier_is_found_behind_it(
    servers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(__file__).parents[1])
    assert launch(members((sys.executable, "-m", "tests.test_kv_barrier", str(tmp_path)), 2, servers, 1)) == 0
    for rank in range(2):
        with np.load(tmp_path / f"{rank}.npz") as found:
            assert {n: float(found[n]) for n in found} == {"later": -PUSHES, "engine": -PUSHES}


@pytest.mark.parametrize("first", [True, False])
def test_sums_are_not_asked_of_a_store_that_steps(first: bool) -> None:
    """It took them for gradients, and gave parameters for sums."""
    net = nn.Dense(1, use_bias=False, in_units=2).initialize("ones")
    with create("local") as kv, create("local") as other:
        if first:
            kv.set_optimizer(SGD(rate=0.5))
            other.set_optimizer(SGD(rate=0.5))
            with pytest.raises(InputError, match="steps by all that it gets, and this trainer needs sums"):
                gluon.Trainer(net.collect_params(), "sgd", kvstore=kv)
        else:
            trainer = gluon.Trainer(net.collect_params(), "sgd", kvstore=kv)
            kv.set_optimizer(SGD(rate=0.5))
            with autograd.record():
                loss = net(nd.ones((4, 2)))
            loss.backward()
            with pytest.raises(InputError, match="this trainer needs sums"):
                trainer.step(4)
        assert net.weight.data().tolist() == [[1, 1]]
        graphs = Trainer(mlp(), kvstore=other)
        batch = batch_for(graphs.source, 0)
        if not first:
            graphs.step(batch)
            other.set_optimizer(SGD(rate=0.5))
        with pytest.raises(InputError, match="this trainer needs sums"):
            graphs.step(batch)


if __name__ == "__main__":
    main(*sys.argv[1:])
