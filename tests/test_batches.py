"""Consecutive calls of the library run as one foreign call, with the same results, errors and checks."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from mezzo.ops.errors import ExecutionError
from mezzo.ops.types import f32
from mezzo.runtime.backends.machine.routines import Routine, row
from mezzo.runtime.backends.onednn.batches import MOST_HELD, Batch, batched, is_native
from mezzo.runtime.backends.onednn.invalid import Look, LookAtAll
from mezzo.runtime.backends.onednn.kernel import Calls
from mezzo.runtime.backends.onednn.library import library
from mezzo.runtime.compile.kernel import answered
from mezzo.runtime.execution.alarm import muted, readable
from mezzo.runtime.execution.session import Session
from mezzo.runtime.ir.graph import Graph, GraphBuilder
from mezzo.runtime.ir.interpreter import InvalidOperation


@pytest.fixture(autouse=True)
def has_machine_code() -> None:
    if library() is None or not readable():
        pytest.skip("no library, or no machine code, here")


def answers(number: int) -> Routine:
    """A native call that answers with a number."""
    made = Routine(lambda: number)
    made.rows = (row(ctypes.cast(ctypes.CDLL(None).abs, ctypes.c_void_p).value or 0, number, mask=0xFFFFFFFF),)
    return made


def chain(width: int, steps: int) -> Graph:
    """Products that no chain of post-ops swallows, and a step of NumPy's in the middle."""
    rng = np.random.default_rng(0)
    g = GraphBuilder()
    y = g.input("x", f32("n", width))
    for i in range(steps):
        y = g.MatMul(y, g.const(rng.standard_normal((width, width)).astype(np.float32) / width))
        if i == steps // 2:
            y = g.Tan(y)
    return g.graph([y])


def working(session: Session) -> list[Any]:
    instance = session._arenas.instance(session.executable)
    assert instance is not None
    return [call for _, call in instance.order.working(instance.calls)]


def test_the_step_that_fails_is_named() -> None:
    assert Batch([("a", answers(0)), ("b", answers(0))])() == 0
    batch = Batch([("a", answers(0)), ("b", answers(7)), ("c", answers(3))])
    with pytest.raises(ExecutionError, match="status 7") as told:
        answered(batch, batch())
    assert told.value.where == "b"


def up(look: Look) -> Routine:
    """A native call that leaves the flag up for a look: it writes where the look collects them."""
    raised = Routine(lambda: 0)
    memset = ctypes.cast(ctypes.CDLL(None).memset, ctypes.c_void_p).value or 0
    raised.rows = (row(memset, ctypes.addressof(look.flags), 1, 1),)
    return raised


def test_a_look_ends_a_batch_and_a_muted_one_does_not() -> None:
    collected = LookAtAll(1)
    number = ctypes.c_int()
    last = Routine(lambda: 0)
    memset = ctypes.cast(ctypes.CDLL(None).memset, ctypes.c_void_p).value or 0
    last.rows = (row(memset, ctypes.addressof(number), 5, 1),)
    batch = Batch([("a", up(collected)), ("a", collected), ("b", last), ("c", answers(0))])
    answer = batch()
    assert answer
    assert number.value == 0
    with pytest.raises(InvalidOperation):
        answered(batch, answer)
    with muted():
        answered(batch, batch())
    assert number.value == 5
    assert collected.flags.value == 0
    failing = Batch([("a", up(collected)), ("a", collected), ("b", last), ("c", answers(9))])
    with muted(), pytest.raises(ExecutionError, match="status 9") as told:
        answered(failing, failing())
    assert told.value.where == "c"


@pytest.mark.parametrize("width", [8, 700], ids=["at fixed places", "bound for each run"])
def test_a_step_of_numpy_stands_between_two_batches(width: int) -> None:
    session = Session(chain(width, 6), threads=1)
    x = np.random.default_rng(1).standard_normal((40, width)).astype(np.float32)
    want = {n: session.run({"x": x[:n]}) for n in (40, 3)}
    for n in (40, 3, 40):
        for _ in range(3):
            again = session.run({"x": x[:n].copy()})
            assert all((again[name] == want[n][name]).all() for name in again)
    calls = working(session)
    assert [isinstance(call, Batch) for call in calls].count(True) == 2
    assert len(calls) <= 4


def test_steps_that_do_more_than_their_primitives_are_in_no_batch() -> None:
    class More(Calls):
        """A call with something of its own beside its primitives."""

    plain = answers(0)
    assert is_native(plain)
    assert is_native(Calls([plain, plain]))
    assert not is_native(More([plain, plain]))
    assert not is_native(Calls([plain, lambda: 0]))


def test_long_and_many_calls_release_the_lock() -> None:
    long = answers(0)
    long.short = False  # type: ignore[attr-defined]
    held = Batch([("a", answers(0))] * 2).func
    assert Batch([("a", answers(0)), ("b", long)]).func is not held
    assert Batch([("a", answers(0))] * (MOST_HELD + 1)).func is not held


def test_one_call_alone_stays_as_it_is() -> None:
    plain, other = answers(0), lambda: 0
    entries = batched([(0, None), (1, None), (1, plain), (2, plain)], [plain, other, plain], ["a", "b", "c"])
    assert [i for i, _ in entries] == [0, 1, 1]
    assert entries[0][1] is None
    assert isinstance(entries[2][1], Batch)


def test_a_step_that_is_looked_at_stands_in_a_batch() -> None:
    """What a pool would mistake is computed by its reference; the steps behind it go on."""
    g = GraphBuilder()
    x = g.input("x", f32(1, 4, 8, 8))
    y = g.MaxPool(g.Neg(x), kernel_shape=[2, 2], strides=[2, 2])
    session = Session(g.graph([g.AveragePool(y, kernel_shape=[2, 2])]), threads=1)
    plain = np.random.default_rng(2).standard_normal((1, 4, 8, 8)).astype(np.float32)
    odd = plain.copy()
    odd[0, 1, 2:4, 4:6] = np.inf
    for x_now in (plain, odd, plain, odd):
        (y_now,) = session.run({"x": x_now}).values()
        largest = (-x_now).reshape(1, 4, 4, 2, 4, 2).max((3, 5))
        want = np.stack([largest[..., i : i + 3, j : j + 3] for i in (0, 1) for j in (0, 1)]).mean(0)
        np.testing.assert_allclose(y_now, want, rtol=1e-5)
    (call,) = working(session)
    assert isinstance(call, Batch)
    assert not session.stats().alarms
