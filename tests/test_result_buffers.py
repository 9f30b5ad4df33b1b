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
