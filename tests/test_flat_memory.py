"""Loops of arrays and of training steps keep memory flat, though nobody waits for all that was asked."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mezzo import nd
from mezzo.gluon import Trainer, loss, nn
from mezzo.nd import autograd
from mezzo.runtime.memory import usage as memory

from .array_modes import Using

MIB = 1 << 20


@pytest.fixture(autouse=True)
def _usual() -> Iterator[None]:
    memory.set_pool()
    yield
    memory.set_pool()


def resident() -> float:
    """MiB that this process holds."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / MIB


def lenet(hybrid: bool) -> Callable[[], Any]:
    """A step of training LeNet on 8 images, as a call that returns the loss before it is computed."""
    net = nn.HybridSequential(
        nn.Conv2D(6, 5, activation="tanh"), nn.MaxPool2D(2, 2), nn.Conv2D(16, 5, activation="tanh"),
        nn.MaxPool2D(2, 2), nn.Dense(32, "tanh"), nn.Dense(10),
    )  # fmt: skip
    net.initialize("xavier").hybridize(hybrid)
    rng = np.random.default_rng(0)
    images, labels = rng.standard_normal((64, 1, 28, 28)).astype(np.float32), rng.integers(0, 10, 64)
    measure = loss.SoftmaxCrossEntropyLoss()
    trainer = Trainer(net.collect_params(), "sgd", {"learning_rate": 0.01, "momentum": 0.9})
    done = 0

    def step() -> Any:
        nonlocal done
        at = done * 8 % 64
        x, label = nd.asarray(images[at : at + 8]), nd.asarray(labels[at : at + 8])
        with autograd.record():
            found = measure(net(x), label)
        found.backward()
        trainer.step(8)
        done += 1
        return found

    return step


@pytest.mark.parametrize("hybrid", [False, True], ids=["eager", "hybridized"])
def test_training_leaves_nothing_behind(hybrid: bool) -> None:
    """No object and no block is left of a step, without Python looking for circles and without a waitall."""
    with Using("threaded") as engine:
        step = lenet(hybrid)
        for _ in range(40):
            found = step()
        gc.collect()
        gc.disable()
        try:
            found.wait_to_read()
            engine.wait_all()
            objects, blocks = len(gc.get_objects()), memory.stats().in_use
            for _ in range(200):
                found = step()
            found.wait_to_read()
            engine.wait_all()
            left = len(gc.get_objects()) - objects
        finally:
            gc.enable()
        assert memory.stats().in_use <= blocks
        assert left < 100, f"{left / 200:.1f} objects of a step are left"
        assert gc.collect() < 100


@pytest.mark.parametrize("mode", ["threaded", "naive", "in place"])
def test_temporaries_take_the_blocks_of_those_before(mode: str) -> None:
    with Using(mode) as engine:
        x, total = nd.ones(1 << 16), nd.zeros(1 << 16)  # 256 KiB each
        x.wait_to_read()
        gc.collect()  # what other tests have left in circles
        memory.set_pool()
        before = memory.stats().in_use
        for i in range(1000):
            x = x * 0.5 + 1
            total += x * i
        total.wait_to_read()
        found = memory.stats()
        engine.wait_all()
        assert abs(x[0].item() - 2) < 1e-6
    # 750 MiB are made; a thread that is held up lets others run ahead
    assert found.peak_reserved - before < (750 / 4 if mode == "threaded" else 3) * MIB
    assert found.hits + found.misses >= 3000
    assert found.misses < (1000 if mode == "threaded" else 10)


@pytest.mark.soak
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="this system does not tell what a process holds")
@pytest.mark.parametrize("hybrid", [False, True], ids=["eager", "hybridized"])
def test_ten_thousand_steps(hybrid: bool) -> None:
    step, held = lenet(hybrid), []
    for i in range(1, 10_001):
        found = step()
        if i % 1000 == 0:
            held.append(resident())
    print("MiB after each 1,000 steps:", *(f"{h:.1f}" for h in held))
    assert np.isfinite(found.asnumpy()).all()
    assert max(held) - held[0] < 6  # a leak of 1 KiB of each step is more
