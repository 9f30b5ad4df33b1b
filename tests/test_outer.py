"""Workers that learn by themselves and meet after many steps (train/outer.py)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mezzo as mz
from mezzo.models.digits import digits_model, held_out
from mezzo.train.callbacks import Callback

DATA = held_out()
FEEDS = [(DATA.inputs[i : i + 16], DATA.labels[i : i + 16]) for i in range(0, 128, 16)]


def learned(*callbacks: Any, epochs: int = 1, resume: Path | None = None) -> dict[str, np.ndarray[Any, Any]]:
    trainer = mz.Trainer(digits_model(), optimizer=mz.optimizer.SGD(rate=0.05, momentum=0.9))
    if resume is not None:
        trainer.resume(resume)
    trainer.fit(FEEDS, epochs=epochs, callbacks=callbacks)
    return {name: np.array(array) for name, array in trainer.parameters.items()}


def test_one_worker_that_averages_learns_as_without() -> None:
    plain = learned()
    with mz.kv.create("local") as kv:
        found = learned(mz.callbacks.Outer(kv, every=3, rate=1.0, momentum=0.0))
    for name, array in plain.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-6)


def test_a_meeting_is_a_step_of_nesterov() -> None:
    trainer = mz.Trainer(digits_model())
    name = next(iter(trainer.parameters))
    begun = np.array(trainer.parameters[name])
    with mz.kv.create("local") as kv:
        outer = mz.callbacks.Outer(kv, every=2, rate=0.5, momentum=0.9)
        outer.begin(trainer)
        wanted, velocity, met = begun.astype(np.float64), 0.0, []
        for number in range(4):
            trainer.parameters[name][...] -= 1.0
            met.append(outer.stepped(trainer))
            if number % 2:
                velocity = 0.9 * velocity + 2.0
                wanted -= 0.5 * (2.0 + 0.9 * velocity)
        assert met == [False, True, False, True]
        np.testing.assert_allclose(trainer.parameters[name], wanted, rtol=1e-5, atol=1e-5)


def test_a_fit_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    """Between two meetings, to the same bits."""

    def outer() -> Any:
        return mz.callbacks.Outer(mz.kv.create("local"), every=7)

    class Stop(Callback):
        def epoch_end(self, run: Any) -> None:
            run.trainer.save(tmp_path)
            run.stop()

    whole = learned(outer(), epochs=2)
    learned(outer(), Stop(), epochs=2)
    rest = learned(outer(), resume=tmp_path)
    assert all((rest[name] == array).all() for name, array in whole.items())


def test_what_does_not_go_together() -> None:
    with mz.kv.create("local") as kv:
        with pytest.raises(mz.InputError, match="every=0"):
            mz.callbacks.Outer(kv, every=0)
        with pytest.raises(mz.InputError, match="every gradient itself"):
            mz.callbacks.Outer(kv, every=2).begin(mz.Trainer(digits_model(), kvstore=kv))
        kv.set_optimizer(mz.optimizer.SGD(rate=0.5))
        with pytest.raises(mz.InputError, match="has an optimizer"):
            mz.callbacks.Outer(kv, every=2)


SCRIPT = """
import json
import numpy as np
import mezzo as mz
from mezzo.models.digits import digits_model, held_out
from mezzo.runtime.manifest import digest

data = held_out()

class Stop(mz.callbacks.Callback):
    def epoch_end(self, run):
        run.trainer.save(f"kept-{kv.rank}")
        run.stop()

def learned(epochs, *callbacks, resume=False):
    trainer = mz.Trainer(digits_model(), optimizer=mz.optimizer.SGD(rate=0.05), seed=kv.rank, threads=1)
    if resume:
        trainer.resume(f"kept-{kv.rank}")
    elif kv.rank:  # those of rank 0 count
        for array in trainer.parameters.values():
            array[...] = 0
    feeds = [(data.inputs[i : i + 16], data.labels[i : i + 16]) for i in range(16 * kv.rank, 128, 32)]
    trainer.fit(feeds, epochs=epochs, callbacks=[mz.callbacks.Outer(kv, every=3), *callbacks])
    told = {name: np.array(array) for name, array in trainer.parameters.items()}
    return digest(told), trainer.evaluate(feeds).accuracy

with mz.kv.create("dist_sync") as kv:
    whole, accuracy = learned(2)
    stopped, _ = learned(2, Stop())
    rest, _ = learned(1, resume=True)
    print(json.dumps([whole, stopped, rest, accuracy]))
"""


def test_two_workers_end_alike_and_go_on_between_two_meetings(tmp_path: Path) -> None:
    """Four steps, of which a checkpoint of each worker has one behind a meeting; then the other four."""
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "mezzo", "launch", "-n", "2", "-s", "0", "script.py"]
    said = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True, timeout=100).stdout
    first, second = (json.loads(line.partition("]")[2]) for line in said.splitlines())
    assert first[0] == second[0] == first[2] == second[2]
    assert first[1] != second[1]  # each has gone a step of its own
    assert min(first[3], second[3]) > 0.8
