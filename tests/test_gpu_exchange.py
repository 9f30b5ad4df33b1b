"""Training on a GPU together with a KVStore: through the stand-in for CuPy, with real stores."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mezzo as mz
from mezzo.ops.errors import ExecutionError
from mezzo.runtime.backends.cuda.host import host_fallbacks

from .cupy_standin import Standin
from .networks import batch_for, mlp


def learned(trainer: mz.Trainer, steps: int = 4) -> dict[str, Any]:
    losses = [trainer.step(batch_for(trainer.source, number)) for number in range(steps)]
    return {**{n: np.array(a) for n, a in trainer.states.items()}, "losses": np.array(losses)}


@pytest.mark.parametrize("on_store", [False, True])
def test_a_training_with_a_store(standin: Standin, on_store: bool) -> None:
    """The states of a GPU become what those of the CPU become, with the optimizer on either side. Each gradient goes
    down once and one value comes back for it; the host waits for each that goes, and for the step."""
    how: dict[str, Any] = {"kvstore": "local", "update_on_kvstore": on_store}
    found = []
    for device in ("cpu", "gpu:0"):
        trainer = mz.Trainer(mlp(), optimizer=mz.optimizer.SGD(rate=0.1, momentum=0.9), device=device, **how)
        found.append(learned(trainer))
    cpu, gpu = found
    assert cpu.keys() == gpu.keys()
    for name, want in cpu.items():
        assert np.abs(gpu[name] - want).max() <= 1e-4 * np.abs(want).max(), name
    session = trainer._update
    many = len(trainer.trained)
    assert not host_fallbacks(session.program)
    refused = [(session.program.steps[i].node.op, why) for i, why in session.uncaptured()]
    assert [op for op, _ in refused] == ["Emit"] * many + ["Await"] * many
    assert all("KVStore" in why for _, why in refused)
    standin.log.clear()
    trainer.step(batch_for(trainer.source, 9))
    ways = [e.detail for e in standin.log if e.what == "copy"]
    assert ways.count("memcpyDeviceToHost") == many + 1  # and the loss
    assert ways.count("memcpyHostToDevice") == many + 1  # and the batch
    assert standin.count("alloc") == standin.count("pinned") == 0


def test_a_step_that_fails_hands_nothing_over_later(standin: Standin, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that loses a peer ends the step with its words, and so does the next one."""
    trainer = mz.Trainer(mlp(), optimizer=mz.optimizer.SGD(rate=0.1), kvstore="local", device="gpu:0")
    learned(trainer, 1)
    exchange = trainer.exchange
    assert exchange is not None

    def lost(key: str) -> Any:
        raise mz.PeerError("worker 1 is gone", where=key)

    with monkeypatch.context() as broken:
        broken.setattr(exchange, "wait", lost)
        with pytest.raises(mz.PeerError, match="worker 1 is gone"):
            learned(trainer, 1)
    with pytest.raises(ExecutionError, match="before the store had answered"):
        learned(trainer, 1)


def test_without_a_store_nothing_is_copied(standin: Standin) -> None:
    """A step that was made for a job and runs alone."""
    trainer = mz.Trainer(mlp(), optimizer=mz.optimizer.SGD(rate=0.1), kvstore="local", norm=False)
    alone = mz.Session(trainer.graph_of_step, device="gpu:0")
    want = mz.Session(trainer.graph_of_step)
    for number in range(3):
        batch = batch_for(trainer.source, number)
        (got,), (expected,) = alone.run(batch).values(), want.run(batch).values()
        assert got == pytest.approx(expected, rel=1e-5)
    assert alone.uncaptured() == ()
    steps = [s.node.op for s in alone.program.steps]
    assert "Emit" in steps
