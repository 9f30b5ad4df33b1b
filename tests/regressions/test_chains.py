"""What is computed together: a chain holds only what its kernel serves."""

from __future__ import annotations

import numpy as np
import pytest

from mezzo.ops.types import f32
from mezzo.runtime.ir.graph import GraphBuilder

from .cases import check, numbers

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


def recurrent(g: GraphBuilder, op: str, x: str, inputs: int, directions: int = 1, hidden: int = 4) -> str:
    """The sequence that a recurrent layer makes: steps, batch, directions times hidden units."""
    gates = GATES[op] * hidden
    weights = [numbers(directions, gates, inputs) / 4, numbers(directions, gates, hidden) / 4]
    weights.append(numbers(directions, 2 * gates) / 4)
    direction = "bidirectional" if directions == 2 else "forward"
    y = g.op(op, x, *weights, hidden_size=hidden, direction=direction)
    sequence: str = g.Reshape(g.Transpose(y, perm=(0, 2, 1, 3)), np.array([0, 0, -1]))
    return sequence


@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize("batch", [1, 2])
def test_two_layers_in_both_directions(op: str, batch: int) -> None:
    g = GraphBuilder()
    x = recurrent(g, op, g.input("x", f32(5, batch, 3)), 3, 2)
    check(g.graph([recurrent(g, op, x, 8, 2)]))


@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("then", ["Relu", "Tanh", "Neg"])
def test_a_recurrent_layer_and_an_elementwise_operator(op: str, batch: int, then: str) -> None:
    g = GraphBuilder()
    gates = GATES[op] * 4
    y = g.op(op, g.input("x", f32(5, batch, 3)), numbers(1, gates, 3) / 4, numbers(1, gates, 4) / 4, hidden_size=4)
    check(g.graph([g.op(then, y)]))


@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize("hidden", [1, 5])
@pytest.mark.parametrize("directions", [1, 2])
def test_a_recurrent_layer_of_one_step(op: str, hidden: int, directions: int) -> None:
    g = GraphBuilder()
    check(g.graph([recurrent(g, op, g.input("x", f32(1, 2, 17)), 17, directions, hidden)]))


def test_numpy_took_a_chain_for_its_first_operator() -> None:
    """Kernels of NumPy are asked for operators alone; a sum took the second operand of what followed it for axes."""
    g = GraphBuilder()
    y = g.Greater(g.ReduceSum(g.input("x", f32()), keepdims=0), g.const(np.float32(0.4)))
    check(g.graph([y]), {"x": np.array(-0.2, np.float32)})
