"""Arenas of a session: how many threads run at once, and in what."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import mezzo as mz
from mezzo.models.digits import digits_model, held_out
from mezzo.ops.types import f32
from mezzo.runtime.compile.program import ProgramStep
from mezzo.runtime.environment import processors
from mezzo.runtime.execution.instance import Instance
from mezzo.runtime.execution.session import SMALL_ARENAS, Session
from mezzo.runtime.ir.graph import GraphBuilder


def test_eight_threads_answer_bit_equal() -> None:
    session, digits = mz.load(digits_model(), instances=3), held_out().inputs
    want = [session(digits[i : i + 1 + i % 3]) for i in range(20)]

    def work(_: int) -> bool:
        return all(np.array_equal(session(digits[i % 20 : i % 20 + 1 + i % 20 % 3]), want[i % 20]) for i in range(200))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))
    assert session.stats().arenas <= 3
    assert session.stats().runs == 1620
    assert session.stats().planned == 3


@pytest.mark.parametrize("ceiling", [None, 1 << 20])
def test_arenas_are_given_back_while_other_threads_run(ceiling: int | None) -> None:
    session, digits = mz.load(digits_model(), instances=2, max_memory=ceiling), held_out().inputs
    want, done = [session(digits[i : i + 1]) for i in range(8)], threading.Event()

    def work(of: int) -> bool:
        return all(np.array_equal(session(digits[of : of + 1]), want[of]) for _ in range(150))

    def trim() -> int:
        times = 0
        while not done.is_set():
            session.trim()
            times += 1
        return times

    with ThreadPoolExecutor(9) as pool:
        trimming = pool.submit(trim)
        try:
            assert all(pool.map(work, range(8)))
        finally:
            done.set()
        assert trimming.result(60) > 0
    found = session.stats()
    assert (found.arenas, found.runs) == (min(found.arenas, 2), 8 + 8 * 150)


def test_small_runs_do_not_wait_for_each_other() -> None:
    session, image = mz.load(digits_model()), held_out().inputs[:1]
    want, together = session(image), threading.Barrier(8)

    def meet(phase: str, index: int, step: ProgramStep, instance: Instance) -> None:
        if (phase, index) == ("before", 0):
            together.wait(30)  # a run that had no arena would not come

    with ThreadPoolExecutor(8) as pool:
        runs = [pool.submit(session.run, {"image": image}, observe=meet) for _ in range(8)]
        assert all(np.array_equal(r.result(120)["logits"], want) for r in runs)
    assert session.stats().arenas == 8


def test_large_runs_are_as_many_as_processors() -> None:
    g = GraphBuilder()
    x = g.input("x", f32(3 << 20))
    session = Session(g.graph([g.Add(g.Exp(x), g.Sin(x))]), onednn=False)
    assert session.plan.size > SMALL_ARENAS / 2
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(session, [np.zeros(3 << 20, np.float32)] * 16))
    assert session.stats().arenas <= max(processors(), 1)
