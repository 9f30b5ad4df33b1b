"""Runs with the caller's buffers and with chosen outputs: as quick as others when they are repeated, and as careful."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mezzo as mz
from mezzo.ops.types import f32
from mezzo.runtime.execution.session import Session
from mezzo.runtime.ir.graph import GraphBuilder

SMALL, LARGE = (4, 8), (4096, 8)  # the first is staged, of the second the caller's memory is used


def model() -> Session:
    g = GraphBuilder("two")
    x = g.input("x", f32("n", 8))
    return Session(g.graph([g.Relu(x), g.Neg(x)]))


def fed(sizes: tuple[int, ...], seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal(sizes, np.float32)


def known(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on a run that is checked as a whole fails the test."""

    def checked(*_: Any) -> Any:
        raise AssertionError("the run was checked again")

    monkeypatch.setattr(session, "_unguarded", checked)


@pytest.mark.parametrize("sizes", [SMALL, LARGE])
@pytest.mark.parametrize("chosen", [None, (1,), (1, 0)])
def test_repeated_runs_take_the_short_way(sizes: Any, chosen: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    session = model()
    first, second = (p.name for p in session.outputs)
    names = None if chosen is None else [(first, second)[i] for i in chosen]
    session.run({"x": fed(sizes)}, names=names)
    known(session, monkeypatch)
    for seed in range(4):
        x, buffer = fed(sizes, seed), np.full(sizes, 7, np.float32)
        want = {first: np.maximum(x, 0), second: -x}
        made = session.run({"x": x}, names=names, outputs={second: buffer})
        assert made[second] is buffer
        assert list(made) == (names or [first, second])
        for name, got in (made | session.run({"x": x}, names=names)).items():
            assert (got == want[name]).all()


@pytest.mark.parametrize("sizes", [SMALL, LARGE])
def test_other_outputs_are_not_those_of_the_latest_run(sizes: Any) -> None:
    session, x = model(), fed(sizes)
    first, second = (p.name for p in session.outputs)
    for _ in range(3):
        for names in (None, [first], [second], [second, first]):
            assert list(session.run({"x": x}, names=names)) == (names or [first, second])
    with pytest.raises(mz.InputError, match="there is no output 'third'"):
        session.run({"x": x}, names=["third"])


@pytest.mark.parametrize("sizes", [SMALL, LARGE])
def test_a_known_run_checks_its_buffers(sizes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    session, x = model(), fed(sizes)
    first, second = (p.name for p in session.outputs)
    for _ in range(3):  # the third goes the shortest way
        session.run({"x": x}, outputs={first: np.empty_like(x)})
    known(session, monkeypatch)
    fixed = np.empty_like(x)
    fixed.flags.writeable = False
    for wrong in (x[:-1].copy(), x.astype(np.float64), np.empty((*sizes[::-1],), np.float32).T, fixed):
        with pytest.raises(mz.InputError, match="the buffer for"):
            session.run({"x": x}, outputs={first: wrong})
    both = np.empty((sizes[0] + 1, 8), np.float32)
    with pytest.raises(mz.InputError, match="share memory"):
        session.run({"x": x}, outputs={first: both[1:], second: both[:-1]})


@pytest.mark.parametrize("sizes", [SMALL, LARGE])
def test_a_buffer_may_be_what_is_fed(sizes: Any) -> None:
    session = model()
    first, second = (p.name for p in session.outputs)
    for seed in range(3):
        x = fed(sizes, seed)
        buffer = x.copy()
        made = session.run({"x": buffer}, outputs={first: buffer})
        assert made[first] is buffer
        assert (buffer == np.maximum(x, 0)).all()
        assert (made[second] == -x).all()


def test_a_run_that_meets_nan_is_made_again_into_the_same_buffer() -> None:
    session = model()
    first, _ = (p.name for p in session.outputs)
    for seed in range(8):
        x, buffer = fed(SMALL, seed), np.zeros(SMALL, np.float32)
        if seed > 3:  # the third run goes the shortest way
            x[1, 2] = np.nan
        want = np.maximum(x, 0)
        made = session.run({"x": x}, names=[first], outputs={first: buffer})
        assert list(made) == [first]
        assert made[first] is buffer
        assert np.array_equal(buffer, want, equal_nan=True)


def test_a_result_that_the_run_does_not_have_is_refused() -> None:
    session, x = model(), fed(SMALL)
    first, second = (p.name for p in session.outputs)
    for _ in range(3):  # planned, known, and on the shortest way
        with pytest.raises(
            mz.InputError, match=f"no output 'third', 'x' to write(.|\n)*its outputs are {first}, {second}"
        ):
            session.run({"x": x}, outputs={"third": x.copy(), first: x.copy(), "x": x})
        with pytest.raises(mz.InputError, match=f"no output '{first}' to write(.|\n)*its outputs are {second}"):
            session.run({"x": x}, names=[second], outputs={first: x.copy()})
        session.run({"x": x})
        session.run({"x": x}, names=[second])
    with pytest.raises(mz.InputError, match=r"there is no output 'third', 'fourth'(.|\n)*the outputs are "):
        session.run({"x": x}, names=["third", first, "fourth"])


class Copies:
    """What makes a new array each time that one is asked for."""

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray[Any, Any]:
        return np.zeros(SMALL, np.float32)


def test_what_is_no_memory_of_the_caller_is_refused() -> None:
    session, x = model(), fed(SMALL)
    first = session.outputs[0].name
    swapped, wide = np.zeros(SMALL, np.dtype(np.float32).newbyteorder()), np.zeros((4, 16), np.float32)
    for wrong in (
        Copies(),
        [[1.0] * 8] * 4,
        np.float32(1),
        None,
        "text",
        swapped,
        wide[:, ::2],
    ):
        for _ in range(3):
            with pytest.raises(mz.InputError, match="the buffer for"):
                session.run({"x": x}, outputs={first: wrong})
            session.run({"x": x})
    held = bytearray(x.nbytes)
    session.run({"x": x}, outputs={first: memoryview(held).cast("f", SMALL)})
    assert (np.frombuffer(held, np.float32).reshape(SMALL) == np.maximum(x, 0)).all()


def test_results_whose_size_data_decide_are_written_too() -> None:
    g = GraphBuilder("places")
    x = g.input("x", f32("n"))
    session = Session(g.graph([g.NonZero(x), g.Neg(x)]))
    places, turned = (p.name for p in session.outputs)
    for seed in range(3):
        x = np.maximum(fed((9,), seed), 0)
        want = np.stack(np.nonzero(x))
        buffer, other = np.full(want.shape, -7), np.empty_like(x)
        made = session.run({"x": x}, outputs={places: buffer, turned: other})
        assert made[places] is buffer
        assert made[turned] is other
        assert (buffer == want).all()
        assert (other == -x).all()
        for wrong in (np.empty((1, want.size + 1), np.int64), np.empty((2, want.size), np.int64)):
            with pytest.raises(mz.InputError, match="the buffer for"):
                session.run({"x": x}, outputs={places: wrong})
        for wrong in (buffer.astype(np.int32), buffer[0], np.empty((1, 2 * want.size), np.int64)[:, ::2]):
            with pytest.raises(mz.InputError, match="the buffer for"):
                session.run({"x": x}, outputs={places: wrong})
        both = np.empty((2, want.size), np.int64)
        with pytest.raises(mz.InputError, match="share memory"):
            session.run({"x": x}, outputs={places: both[:1], turned: both.view(np.float32).reshape(-1)[:9]})
