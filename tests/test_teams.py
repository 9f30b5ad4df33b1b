"""OpenMP's number of threads: one while small primitives run that ask for it, and afterwards what it was."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mezzo.ops.types import f32
from mezzo.runtime.backends.onednn.call_order import OneDnnCallOrder
from mezzo.runtime.backends.onednn.invalid import LookAtAll
from mezzo.runtime.backends.onednn.library import library, threads
from mezzo.runtime.backends.onednn.teams import Order, Team, _openmp, placed
from mezzo.runtime.execution.session import Session
from mezzo.runtime.ir.graph import Graph, GraphBuilder


@pytest.fixture(autouse=True)
def has_openmp() -> None:
    if _openmp() is None:
        pytest.skip("no library with OpenMP here")


def number() -> int:
    found = library()
    assert found is not None
    return int(found.held.omp_get_max_threads())


def test_one_and_back() -> None:
    with threads(2):
        team = Team()
        team.alone()
        assert number() == 1
        team.together()
        assert number() == 2
        team.together()  # as after a run that failed somewhere
        assert number() == 2


def told(order: Order, wants: list[bool | None]) -> str:
    """The order: steps as numbers, looks as they are called, + and - where the number changes."""
    team, made = Team(), ""
    for i, call in placed(order, wants.__getitem__, team):
        changes = {id(team.alone): "-", id(team.together): "+"}
        made += str(i) if call is None else changes.get(id(call), "?")
    return made


def test_as_few_changes_as_can_be() -> None:
    steps: Order = [(i, None) for i in range(5)]
    assert told(steps, [None] * 5) == "01234"
    assert told(steps, [False] * 5) == "01234"
    assert told(steps, [None, True, None, True, None]) == "0-1234+"
    assert told(steps, [True, False, None, True, False]) == "-0+12-3+4"
    assert told([(0, None), (1, LookAtAll(2)), (1, None)], [True, True]) == "-0+?-1+"
    assert told([], []) == ""


def graph(rows: int) -> Graph:
    """A small rectifier, and a NumPy step behind it, beside rows that are added up."""
    g = GraphBuilder()
    y = g.Relu(g.input("x", f32(4, 32)))
    return g.graph([g.Tan(y), g.ReduceSum(g.input("rows", f32(rows, 512)), g.const(np.array([1])))])


@pytest.mark.parametrize("rows", [1, 500], ids=["all at fixed places", "some bound for each run"])
def test_a_run_leaves_the_number_as_it_was(rows: int) -> None:
    session = Session(graph(rows), threads=2)
    with threads(2):
        for _ in range(2):
            for first in (1, np.nan):  # a run that meets NaN is broken off, and made again
                x = np.full((4, 32), first, np.float32)
                found = session.run({"x": x, "rows": np.ones((rows, 512), np.float32)})
                assert np.isnan(next(iter(found.values()))).all() == np.isnan(first)
                assert number() == 2
    assert session.stats().alarms


@pytest.mark.parametrize("how", ["deadline", "observed"])
def test_runs_that_are_watched_keep_to_the_number(how: str) -> None:
    """Steps that ask for the number of threads see one, whether or not somebody looks in between."""
    g = GraphBuilder()
    x = g.input("x", f32(4, 32))
    session, seen = Session(g.graph([g.Tan(g.Relu(x)), g.Sigmoid(x)]), threads=1), dict[str, int]()
    session.run({"x": np.ones((4, 32), np.float32)})
    (instance,) = session._arenas._all[0].instances.values()
    for i, step in enumerate(session.program.steps):
        if step.choice.implementation:
            call = instance.calls[i]

            def watched(call: Any = call, op: str = step.node.op) -> Any:
                seen[op] = number()
                return call()

            watched.threads, watched.asks = call.threads, call.asks  # type: ignore[attr-defined]
            instance.calls[i] = watched
    instance.order, instance.fixed = OneDnnCallOrder(session.program, instance.arrays, False), None
    options: dict[str, Any] = {"deadline": 60} if how == "deadline" else {"observe": lambda *_: None}
    with threads(2):
        session.run({"x": np.ones((4, 32), np.float32)}, **options)
        assert number() == 2
    assert seen == {"Relu": 1, "Sigmoid": 1}
