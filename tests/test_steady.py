"""Sessions in long service: nothing is allocated by steps that say so, and resident memory stays flat."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import mezzo as mz
from mezzo.models.convnets import no_weights
from mezzo.models.digits import digits_model, held_out
from mezzo.models.workloads import WORKLOADS
from mezzo.runtime.compile.program import ProgramStep
from mezzo.runtime.execution.instance import Instance
from mezzo.runtime.execution.session import Session

# A process of its own, so that nothing else moves its resident size. Prints the growth after warm-up, in per cent.
FLAT = """
import sys
from concurrent.futures import ThreadPoolExecutor
import mezzo as mz
from mezzo.models.digits import digits_model, held_out

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

runs, threads = int(sys.argv[1]), int(sys.argv[2])
session, digits = mz.load(digits_model()), held_out().inputs
def work(_):
    for i in range(runs):
        session(digits[i % 300 : i % 300 + 1 + i % 4])
with ThreadPoolExecutor(threads) as pool:
    list(pool.map(work, range(threads)))  # warm-up: as many threads and runs as are then measured
    before = resident()
    list(pool.map(work, range(threads)))
print(100 * (resident() - before) / before)
"""


def growth(runs: int, threads: int) -> float:
    done = subprocess.run(
        [sys.executable, "-c", FLAT, str(runs), str(threads)], capture_output=True, text=True, check=True, timeout=900
    )
    return float(done.stdout)


linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@linux
def test_resident_memory_is_flat() -> None:
    assert growth(200, 4) < 10  # tenfold slack for the short form


@linux
@pytest.mark.soak
@pytest.mark.parametrize(("runs", "threads"), [(10_000, 1), (1_000, 8)])
def test_resident_memory_is_flat_for_long(runs: int, threads: int) -> None:
    assert growth(runs, threads) < 1


def allocations(runs: int) -> int:
    """The most bytes of arrays that any step without `allocates` had alive at its end beyond its start."""
    session, digits, worst, before = mz.load(digits_model()), held_out().inputs, 0, 0

    def observe(phase: str, index: int, step: ProgramStep, instance: Instance) -> None:
        nonlocal worst, before
        if phase == "before":
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
        elif not step.choice.allocates:
            worst = max(worst, tracemalloc.get_traced_memory()[1] - before)

    feeds = {"image": digits}
    session.run(feeds)
    tracemalloc.start()
    try:
        for _ in range(runs):
            session.run(feeds, observe=observe)
    finally:
        tracemalloc.stop()
    return worst


def test_steps_allocate_nothing_run_after_run() -> None:
    values = 360 * 16 * 64 * 4  # bytes of the smallest array between the convolutions
    assert allocations(5) < values / 10


@pytest.mark.soak
def test_steps_allocate_nothing_for_long() -> None:
    assert allocations(2_000) < 360 * 16 * 64 * 4 / 10


def shapes_under_a_ceiling(runs: int, kinds: int) -> None:
    rng, digits = np.random.default_rng(0), np.resize(held_out().inputs, (600, 1, 8, 8))
    sizes = rng.permutation(np.arange(1, 601))[:kinds]
    largest = mz.load(digits_model()).warmup({"image": (int(sizes.max()), 1, 8, 8)}).arena_bytes
    session: Any = mz.load(digits_model(), max_memory=largest, max_programs=16, instances=4)

    def work(i: int) -> bool:
        n = int(sizes[i % kinds])
        return bool(session(digits[:n]).shape == (n, 10) and session.stats().arena_bytes <= largest)

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(runs)))
    stats = session.stats()
    assert stats.programs <= 16
    assert stats.evicted == stats.planned - stats.programs


def test_changing_shapes_stay_under_the_ceiling() -> None:
    shapes_under_a_ceiling(60, 40)


@pytest.mark.soak
def test_changing_shapes_stay_under_the_ceiling_for_long() -> None:
    shapes_under_a_ceiling(2_000, 500)


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_steady_run_allocates_next_to_nothing(name: str) -> None:
    """Results apart, which are written into buffers given here."""
    workload = WORKLOADS[name]
    small = name == "bert"
    session, feeds = Session(workload.build(1, no_weights, small=small)), workload.feeds(1, small=small)
    buffers = session.run(feeds)
    for _ in range(3):
        session.run(feeds, outputs=buffers)
    tracemalloc.start()
    try:
        session.run(feeds, outputs=buffers)
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        session.run(feeds, outputs=buffers)
        assert tracemalloc.get_traced_memory()[1] - before <= 64 << 10
    finally:
        tracemalloc.stop()
