"""Jobs that begin again, as their users see it: what was lent is lent again, gluon's trainers go on."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

import mezzo as mz
from mezzo import autograd, gluon
from mezzo.tools.crew import Member
from mezzo.tools.launch import Scale, launch, members

from .kv_again import SIZE, STEPS


def test_memory_is_lent_again(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A server that was started again maps what the one before had: values do not travel then either."""

    def job(scale: Scale) -> tuple[Member, ...]:
        return members((sys.executable, "-m", "tests.kv_again", str(tmp_path)), 2, 1, 1, scale.attempt, kept=True)

    assert launch(job, restarts=1, grace=1.0) == 0
    assert "it starts again with what it had" in capfd.readouterr().err
    counts = json.loads((tmp_path / "counts").read_text())
    assert len(counts) == STEPS
    assert counts[1] == counts[2] == counts[-1] == 0, counts
    assert sum(counts[1:]) <= 8 * SIZE, counts  # the round amid which it was away


class Training:
    """A gluon training whose optimizer runs on the store."""

    def __init__(self, rate: float = 0.1) -> None:
        self.kv = mz.kv.create("local")
        self.net = gluon.nn.Dense(3, in_units=4)
        self.net.initialize("ones")
        self.rate = rate

    def begin(self, name: str = "adam") -> Training:
        params, given = self.net.collect_params(), {"learning_rate": self.rate}
        self.trainer = gluon.Trainer(params, name, given, kvstore=self.kv, update_on_kvstore=True)
        return self

    def learn(self, steps: range) -> None:
        for step in steps:
            x = mz.nd.asarray(np.random.default_rng(step).standard_normal((2, 4)).astype(np.float32))
            with autograd.record():
                loss = (self.net(x) ** 2).sum()
            loss.backward()
            self.trainer.step(2)

    def bits(self) -> list[bytes]:
        return [p.data().asnumpy().tobytes() for p in self.net.collect_params().values()]


def test_a_trainer_of_gluon_goes_on(tmp_path: Path) -> None:
    """The optimizer's states are the store's: saved there, and taken up there, with the number of updates."""
    whole, states, net = Training().begin(), tmp_path / "states.safetensors", str(tmp_path / "net.safetensors")
    whole.learn(range(3))
    whole.trainer.save_states(states)
    whole.net.save_parameters(net)
    whole.learn(range(3, 6))
    rest = Training()
    rest.net.load_parameters(net)
    rest.begin().trainer.load_states(states)
    assert rest.trainer.updates == 3
    rest.learn(range(3, 6))
    assert rest.trainer.updates == 6
    assert rest.bits() == whole.bits()
    with pytest.raises(mz.MezzoError, match="states"):
        gluon.Trainer(Training().net.collect_params()).load_states(states)
