"""Sessions: ceilings of memory, turns, buckets, arrays without copies."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import mezzo as mz
from mezzo.models.digits import digits_model, held_out
from mezzo.ops import DType, Tensor
from mezzo.ops.types import f32
from mezzo.runtime.compile.program import STAGED
from mezzo.runtime.execution.session import Session
from mezzo.runtime.ir.graph import GraphBuilder

from .peers import peer


def test_runs_that_change_states_follow_one_another() -> None:
    g = GraphBuilder("counter")
    total = g.state("total", np.float32(0))
    doubled = g.Add(g.Mul(total, g.const(np.float32(2))), g.input("x", f32()))
    g.update("total", doubled)
    session = Session(g.graph([doubled]))
    futures = [session.run_async({"x": np.float32(i % 2)}) for i in range(10)]
    assert [int(next(iter(f.result().values()))) for f in futures] == [0, 1, 2, 5, 10, 21, 42, 85, 170, 341]


def test_memory_stays_under_its_ceiling_and_is_given_back() -> None:
    free = mz.load(digits_model())
    arenas = {n: free.warmup({"image": (n, 1, 8, 8)}).arena_bytes for n in (1, 8, 64)}
    session = mz.load(digits_model(), max_memory=arenas[8] + arenas[1], instances=4)
    digits = held_out().inputs
    want = {n: free(digits[:n]) for n in (1, 8)}

    def work(i: int) -> bool:
        n = (1, 8)[i % 2]
        return np.array_equal(session(digits[:n]), want[n]) and session.stats().arena_bytes <= arenas[8] + arenas[1]

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(200)))
    with pytest.raises(mz.BudgetError, match=f"{arenas[64]} bytes, max_memory is"):
        session(digits[:64])
    assert session(digits[:1]).shape == (1, 10)
    assert session.trim() > 0
    assert session.stats().arena_bytes == 0
    assert session(digits[:8]).shape == (8, 10)


def test_the_ceiling_counts_values_of_data_dependent_size() -> None:
    g = GraphBuilder("dynamic")
    rows = g.NonZero(g.input("mask", Tensor(DType.BOOL, ("n",))))
    graph = g.graph([g.ReduceSum(g.Mul(rows, rows), keepdims=0)])
    assert Session(graph, max_memory=1 << 20).run({"mask": np.ones(100, bool)})
    with pytest.raises(mz.BudgetError, match="data-dependent size"):
        Session(graph, max_memory=1 << 12).run({"mask": np.ones(1000, bool)})


def test_arrays_come_and_go_without_copies() -> None:
    torch = peer("torch")
    g, n = GraphBuilder(), 2 * STAGED  # smaller ones are copied to a place of their own
    session = Session(g.graph([g.Neg(g.input("x", f32(n)))]))
    fed, seen = torch.arange(n, dtype=torch.float32), []
    result = session.run({"x": fed}, observe=lambda phase, i, step, instance: seen.append(instance.arrays["x"]))
    assert seen[0].ctypes.data == fed.data_ptr()
    assert torch.from_dlpack(result["Neg_0"]).data_ptr() == result["Neg_0"].ctypes.data
    buffer = torch.empty(n)
    session.run({"x": np.arange(n, dtype=np.float32).data}, outputs={"Neg_0": buffer})
    assert buffer[:3].tolist() == [0, -1, -2]


def test_buckets_plan_a_few_sizes_and_answer_for_all() -> None:
    plain, session, digits = mz.load(digits_model()), mz.load(digits_model(), buckets={"batch": (16, 4)}), held_out()
    for n in (1, 3, 4, 5, 16, 2, 20):
        got, want = session(digits.inputs[:n]), plain(digits.inputs[:n])
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    assert session.stats().planned == 3  # 4, 16, and 20 above the largest
    with pytest.raises(mz.InputError, match="no input has a dim 'length'"):
        mz.load(digits_model(), buckets={"length": (1,)})
    with pytest.raises(mz.InputError, match="not sizes"):
        mz.load(digits_model(), buckets={"batch": ()})


def test_runs_that_give_up_waiting_leave_their_turn_to_others() -> None:
    session, digits = mz.load(digits_model(), instances=1), held_out().inputs[:8]
    want = session(digits)

    def impatient(turn: int) -> bool:
        try:
            session.run({"image": digits}, deadline=1e-5 * (turn % 7))
        except mz.DeadlineError:
            return False
        return bool(np.array_equal(session(digits), want))

    with ThreadPoolExecutor(8) as pool:
        assert len(list(pool.map(impatient, range(400)))) == 400
    assert np.array_equal(session.run({"image": digits}, deadline=60)["logits"], want)
    assert session.stats().arenas == 1
