"""A seed gives the same numbers in arrays, symbols, blocks and sessions: with every engine and any number of its
threads, with and without oneDNN, in any order of the threads, and after a training is resumed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mezzo as mz
from mezzo.gluon import nn
from mezzo.ops.types import f32
from mezzo.runtime.ir.graph import GraphBuilder
from mezzo.runtime.manifest import digest

from .array_modes import MODES, Using

ROOT = Path(__file__).parents[1]
nd: Any = mz.nd


def drawn(seed: int = 5, runs: int = 12) -> dict[str, str]:
    """Digests of what is drawn by each; everything is asked for before anything is read."""
    found: dict[str, Any] = {}
    mz.random.seed(seed)
    found["arrays"] = [
        mz.random.normal((300,)), mz.random.uniform(shape=(300,)), mz.random.randint(0, 9, (300,)),
        mz.random.permutation(300), mz.random.bernoulli(nd.full((300,), 0.3)),
    ]  # fmt: skip
    x = nd.ones((8, 64))
    for name, hybrid in (("eager", False), ("hybridized", True)):
        mz.random.seed(seed)
        net = nn.HybridSequential()
        net.add(nn.Dropout(0.5), nn.Dropout(0.25))
        if hybrid:
            net.hybridize()
        with mz.autograd.train_mode():
            found[name] = [net(x) for _ in range(runs)]
    mz.random.seed(seed)
    executor = mz.sym.Dropout(mz.sym.Variable("x"), p=0.5, name="drop").simple_bind(mz.cpu(), x=(8, 64))
    found["symbols"] = [executor.forward(is_train=True, x=x)[0] for _ in range(runs)]
    g = GraphBuilder()
    y = g.input("y", f32(4, 40))
    session = mz.Session(g.graph([g.RandomNormalLike(y), g.Bernoulli(y), g.Multinomial(y, sample_size=50)]), seed=seed)
    found["session"] = [session.run({"y": np.full((4, 40), 0.5, np.float32)}) for _ in range(runs)]
    assert all(len({digest(one) for one in each}) == len(each) for each in found.values()), "each run draws anew"
    return {name: digest(each) for name, each in found.items()}


def test_every_engine_draws_the_same() -> None:
    want = drawn()
    for mode in MODES:
        with Using(mode):
            assert drawn() == want, mode
    other = drawn(seed=6)
    assert all(other[name] != one for name, one in want.items())
    assert want["eager"] == want["hybridized"]
    assert drawn() == want


@pytest.mark.parametrize("switches", [{"MEZZO_ONEDNN": "off", "MEZZO_ENGINE_THREADS": "7"}])
def test_other_processes_draw_the_same(switches: dict[str, str]) -> None:
    code = "import json; from tests.test_seeds import drawn; print(json.dumps(drawn()))"
    environment = {**os.environ, **switches}
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert not ran.returncode, ran.stderr
    assert json.loads(ran.stdout) == drawn()


def test_calls_of_a_block_that_overlap_draw_by_their_order() -> None:
    """Threads take calls of one program as they come; the numbers follow the order in which they were asked for."""
    net = nn.Dropout(0.5)
    net.hybridize()

    def masks() -> list[str]:
        mz.random.seed(3)
        wide = nd.ones((64, 512))
        with mz.autograd.train_mode():
            made = [net(wide) for _ in range(40)]
        return [digest(m) for m in made]

    with Using("naive"):
        want = masks()
    assert len({*want}) == 40
    for _ in range(3):
        with Using("threaded"):
            assert masks() == want


def training(hybrid: bool) -> tuple[Any, Any, Any]:
    net = nn.HybridSequential()
    net.add(nn.Dense(16, activation="relu", in_units=6), nn.Dropout(0.5), nn.Dense(3, in_units=16))
    net.initialize("xavier")
    if hybrid:
        net.hybridize()
    trainer = mz.gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.1})

    def step() -> None:
        x = mz.random.normal((4, 6))
        with mz.autograd.record():
            loss = nd.mean(net(x) ** 2)
        loss.backward()
        trainer.step(1)

    return net, trainer, step


@pytest.mark.parametrize("hybrid", [False, True])
def test_a_resumed_training_of_a_block_draws_on(hybrid: bool, tmp_path: Path) -> None:
    mz.random.seed(9)
    net, trainer, step = training(hybrid)
    for _ in range(3):
        step()
    net.save_parameters(tmp_path / "net.safetensors")
    trainer.save_states(tmp_path / "trainer.safetensors")
    kept = json.dumps(mz.random.state())
    for _ in range(3):
        step()
    want, after = digest(net), mz.random.normal((3,)).tolist()
    mz.random.seed(1)
    net, trainer, step = training(hybrid)
    net.load_parameters(tmp_path / "net.safetensors")
    trainer.load_states(tmp_path / "trainer.safetensors")
    mz.random.restore(json.loads(kept))
    for _ in range(3):
        step()
    assert digest(net) == want
    assert mz.random.normal((3,)).tolist() == after
    damaged: list[Any] = [
        {},
        {"seed": "x", "generators": {}},
        {"seed": 1, "generators": {"cpu(0)": 3}},
        [],
        {"seed": 1},
    ]
    for bad in damaged:
        with pytest.raises(mz.InputError, match="no state of generators"):
            mz.random.restore(bad)
