"""Programs count: what a session keeps of the sizes that it has met stays under its ceiling."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mezzo.models.transformer import encoder
from mezzo.ops import DType, Tensor
from mezzo.ops.types import f32
from mezzo.runtime.backends.onednn.library import library
from mezzo.runtime.compile.executable import Executable
from mezzo.runtime.execution.kept_programs import STEP_BYTES, USUAL_BYTES, KeptPrograms
from mezzo.runtime.execution.session import Session
from mezzo.runtime.ir.graph import GraphBuilder

pytestmark = pytest.mark.skipif(library() is None, reason="bytes of oneDNN's primitives")
MIB = 1 << 20
SMALL = encoder(1, 32, 2)


def fed(length: int) -> dict[str, np.ndarray[Any, Any]]:
    return {"x": np.random.default_rng(length).standard_normal((1, length, 32)).astype(np.float32)}


def held(session: Session) -> int:
    stats = session.stats()
    return stats.arena_bytes + stats.pool.reserved + stats.program_bytes


def resident() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.parametrize("buckets", [None, "auto"])
def test_a_walk_over_sizes_stays_under_the_ceiling(buckets: Any) -> None:
    ceiling = 3 * MIB
    exact, session = Session(SMALL), Session(SMALL, max_memory=ceiling, buckets=buckets)
    for length in np.random.default_rng(0).permutation(np.arange(1, 129))[:60]:
        feeds = fed(int(length))
        (y,), (expected,) = session.run(feeds).values(), exact.run(feeds).values()
        np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)
        assert held(session) <= ceiling
    stats = session.stats()
    assert stats.evicted > 5
    assert stats.programs + stats.rounded > 1


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="Linux tells what is resident")
def test_the_process_stays_as_small_as_the_counts_say() -> None:
    ceiling = 4 * MIB
    session, graph = Session(encoder(2, 64, 2), max_memory=ceiling), encoder(2, 64, 2)
    free = Session(graph)
    feeds = [{"x": np.zeros((1, n, 64), np.float32)} for n in (128, *range(1, 101))]
    session.run(feeds[0])
    before = resident()
    for x in feeds:
        session.run(x)
    assert resident() - before < 10 * ceiling
    before, counted = resident(), free.stats().program_bytes
    for x in feeds:
        free.run(x)
    grown, counted = resident() - before, free.stats().program_bytes - counted
    assert counted > 10 * ceiling  # what the first session would hold
    assert counted / 3 < grown < 3 * counted


def test_more_sizes_than_ever_stay_planned() -> None:
    g = GraphBuilder()
    session = Session(g.graph([g.Relu(g.input("x", f32("n")))]))
    for _ in range(2):
        for n in range(1, 101):
            session.run({"x": np.zeros(n, np.float32)})
    assert (session.stats().planned, session.stats().evicted) == (100, 0)
    assert session.stats().program_bytes < USUAL_BYTES


def test_a_size_that_is_used_on_and_on_stays() -> None:
    session = Session(SMALL, max_memory=6 * MIB)
    often = fed(7)
    for n in range(20, 50):
        session.run(often)
        session.run(fed(n))
    stats = session.stats()
    assert stats.planned == 31
    assert stats.evicted == stats.planned - stats.programs > 5


def test_what_runs_is_not_dropped() -> None:
    session = Session(SMALL, max_memory=2 * MIB, instances=2)
    walked = iter(range(20, 50))

    def observe(phase: str, index: int, step: Any, instance: Any) -> None:
        for n in walked:  # while the first step is under way
            session.run(fed(n))

    session.run(fed(7))
    session.run(fed(7), observe=observe)
    planned = session.stats().planned
    assert session.stats().evicted > 5
    session.run(fed(7))
    assert session.stats().planned == planned


def test_values_that_data_decide_push_programs_out() -> None:
    g = GraphBuilder("dynamic")
    rows = g.NonZero(g.input("mask", Tensor(DType.BOOL, ("n",))))
    session = Session(g.graph([g.ReduceSum(g.Mul(rows, rows), keepdims=0)]), max_memory=MIB)
    most = 0

    def observe(phase: str, index: int, step: Any, instance: Any) -> None:
        nonlocal most
        most = max(most, held(session))

    for n in range(1, 101):
        session.run({"mask": np.ones(n, bool)})
    before = session.stats()
    assert before.evicted == 0
    assert MIB - held(session) < 30_000 * 8 * 2
    session.run({"mask": np.ones(30_000, bool)}, observe=observe)
    assert session.stats().evicted > 5
    assert most <= MIB


def test_many_threads_walk_under_one_ceiling() -> None:
    ceiling = 3 * MIB
    exact, session = Session(SMALL, instances=1), Session(SMALL, max_memory=ceiling, instances=3)
    answers = {n: next(iter(exact.run(fed(n)).values())) for n in range(8, 28)}

    def work(n: int) -> bool:
        return bool(np.allclose(next(iter(session.run(fed(n)).values())), answers[n], 1e-4, 1e-5))

    with ThreadPoolExecutor(4) as pool:
        lengths = np.random.default_rng(3).integers(8, 28, 200).tolist()
        assert all(pool.map(work, lengths))
    session.run(fed(8))
    assert held(session) <= ceiling
    assert session.stats().evicted > 0


def test_a_session_ends_with_its_last_reference() -> None:
    session = Session(SMALL, max_memory=64 * MIB)
    session.run(fed(5))
    gone = weakref.ref(session)
    gc.collect()
    gc.disable()
    try:
        del session
        assert gone() is None
    finally:
        gc.enable()


def kept_of(
    parts: Mapping[Executable, Mapping[Any, int]], most: int | None = None
) -> tuple[KeptPrograms, Callable[[Executable], bool], list[Executable]]:
    """Programs whose primitives are these parts."""
    by_program = {bound.program: found for bound, found in parts.items()}
    gone: list[Executable] = []
    kept = KeptPrograms(most, by_program.__getitem__, dict[Executable, int])
    return kept, lambda bound: kept.use(bound, lambda: gone.append(bound)), gone


def test_what_programs_share_counts_once() -> None:
    session = Session(SMALL)
    bounds = []
    for n in (4, 5, 6):
        session.warmup({"x": (1, n, 32)})
        bounds.append(session.executable)
    own = {b: STEP_BYTES * len(b.program.steps) for b in bounds}
    kept, use, gone = kept_of(dict(zip(bounds, ({"a": 10, "b": 5}, {"a": 10}, {"c": 7}), strict=True)))
    assert use(bounds[0])
    assert not use(bounds[0])
    assert kept.nbytes == own[bounds[0]] + 15
    assert use(bounds[1])
    assert use(bounds[2])
    shared = kept.nbytes - sum(own.values()) - 22  # constants of one program alone
    assert 0 <= shared < 100_000  # no packed weights: all have those
    kept.use(bounds[0], lambda: None)
    assert kept.evict({bounds[1]}) is bounds[2]
    assert kept.evict({bounds[0]}) is bounds[1]
    assert kept.nbytes == own[bounds[0]] + 15
    assert kept.evict({bounds[0]}) is None
    assert gone == [bounds[2], bounds[1]]
