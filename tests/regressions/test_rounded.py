"""Sizes that are rounded up: what lies in the padding is read by nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mezzo.ops.types import f32
from mezzo.runtime.execution.session import Session
from mezzo.runtime.ir.graph import Graph, GraphBuilder

ROWS = {"LSTM": 8, "GRU": 6, "RNN": 2}


def layer(op: str, x: str, g: GraphBuilder, lengths: list[int]) -> Graph:
    """A layer of two units over sequences of one feature, whose lengths are constant."""
    rng = np.random.default_rng(1)
    held = [g.const(rng.standard_normal((1, ROWS[op], n)).astype(np.float32)) for n in (1, 2)]
    bias = g.const(rng.standard_normal((1, 2 * ROWS[op])).astype(np.float32))
    many: Any = g.const(np.array(lengths, np.int32))
    return g.graph([*g.op(op, x, *held, bias, many, hidden_size=2, outputs=2)])


@pytest.mark.parametrize("op", ROWS)
def test_lengths_beyond_the_steps_end_with_them(op: str) -> None:
    """The search with NaN as padding found it (seed 1301): layers went on in the padding."""
    g = GraphBuilder()
    graph = layer(op, g.input("x", f32("steps", 3, 1)), g, [9, 2, 30])
    exact, auto = Session(graph), Session(graph, buckets="auto")
    for steps in (5, 7, 11):
        x = np.random.default_rng(steps).standard_normal((steps, 3, 1)).astype(np.float32)
        for a, b in zip(auto.run({"x": x}).values(), exact.run({"x": x}).values(), strict=True):
            np.testing.assert_allclose(a, b, 2e-6, 2e-6)
    assert auto.stats().rounded


@pytest.mark.parametrize("op", ROWS)
def test_lengths_of_steps_of_two_sizes(op: str) -> None:
    """Padding lies between such steps, and lengths counted it."""
    g = GraphBuilder()
    x = g.Reshape(g.input("x", f32(2, "steps", 3, 1)), g.const([-1, 3, 1]))
    graph = layer(op, x, g, [9, 2, 7])
    exact, auto = Session(graph), Session(graph, buckets="auto")
    for steps in (5, 7, 11):
        x = np.random.default_rng(steps).standard_normal((2, steps, 3, 1)).astype(np.float32)
        for a, b in zip(auto.run({"x": x}).values(), exact.run({"x": x}).values(), strict=True):
            np.testing.assert_allclose(a, b, 2e-6, 2e-6)
