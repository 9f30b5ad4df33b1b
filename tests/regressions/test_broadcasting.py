"""Constants of a higher rank than what they stand beside: they widen the result."""

from __future__ import annotations

import numpy as np
import pytest

from mezzo.ops import DType
from mezzo.ops.types import f32
from mezzo.runtime.ir.graph import GraphBuilder

from .cases import check, numbers

ARITHMETIC = ("Add", "Sub", "Mul", "Div", "Max", "Min", "Pow")


def two(*dims: int) -> np.ndarray:
    return np.full(dims, 2, np.float32)


@pytest.mark.parametrize("op", ARITHMETIC)
@pytest.mark.parametrize("size", [1, 3])
def test_a_number_of_higher_rank(op: str, size: int) -> None:
    g = GraphBuilder()
    check(g.graph([g.op(op, g.input("x", f32(size)), two(1, 1))]))


@pytest.mark.parametrize("op", ARITHMETIC)
@pytest.mark.parametrize("size", [1, 3])
def test_a_number_of_higher_rank_in_front(op: str, size: int) -> None:
    g = GraphBuilder()
    check(g.graph([g.op(op, two(1, 1), g.input("x", f32(size)))]))


@pytest.mark.parametrize("op", ARITHMETIC)
def test_a_constant_whose_elements_are_all_at_one_place(op: str) -> None:
    """It was read behind its bytes."""
    g = GraphBuilder()
    c = np.broadcast_to(np.float32(2), (8, 64))
    check(g.graph([g.op(op, g.Abs(g.input("x", f32(8, 64))), c), g.MatMul(g.input("y", f32(3, 8)), c)]))


@pytest.mark.parametrize("op", ARITHMETIC)
def test_a_number_of_higher_rank_behind_an_operator(op: str) -> None:
    g = GraphBuilder()
    check(g.graph([g.Relu(g.op(op, g.Abs(g.input("x", f32(3))), two(1, 1)))]))


@pytest.mark.parametrize("op", ARITHMETIC)
def test_a_number_of_rank_4_beside_a_product(op: str) -> None:
    g = GraphBuilder()
    y = g.MatMul(g.input("x", f32(4, 7, 4)), numbers(4, 5))
    check(g.graph([g.op(op, g.Abs(y), two(1, 1, 1, 1))]))


@pytest.mark.parametrize("place", range(3))
def test_gelu_written_out_with_a_number_of_higher_rank(place: int) -> None:
    g = GraphBuilder()
    root, one, half = (
        np.full((1, 1, 1) if i == place else (), v, np.float32) for i, v in enumerate((2**0.5, 1.0, 0.5))
    )
    x = g.input("x", f32(2, 5))
    check(g.graph([g.Mul(g.Mul(x, g.Add(g.Erf(g.Div(x, root)), one)), half)]))


def test_hard_swish_written_out_with_a_number_of_higher_rank() -> None:
    g = GraphBuilder()
    x = g.input("x", f32(2, 5))
    three, zero, six = (g.const(v, DType.FLOAT) for v in ([[[3.0]]], 0.0, 6.0))
    check(g.graph([g.Div(g.Mul(x, g.Clip(g.Add(x, three), zero, six)), six)]))


def test_layer_normalization_written_out_with_an_epsilon_of_higher_rank() -> None:
    g = GraphBuilder()
    x = g.input("x", f32(3, 4))
    axes = np.array([-1])
    centred = g.Sub(x, g.ReduceMean(x, axes))
    deviation = g.Sqrt(g.Add(g.ReduceMean(g.Mul(centred, centred), axes), np.full((1, 1, 1), 1e-5, np.float32)))
    check(g.graph([g.Add(g.Mul(g.Div(centred, deviation), numbers(4)), np.ones(4, np.float32))]))


def test_an_exponent_that_is_nearly_2() -> None:
    g = GraphBuilder()
    check(g.graph([g.Pow(g.Abs(g.input("x", f32(5))), g.const(2.001, DType.FLOAT))]))


def test_a_transposed_operand_and_a_row() -> None:
    g = GraphBuilder()
    a, b = g.input("a", f32(3, 12)), g.input("b", f32(12, 3))
    check(g.graph([g.Add(g.Add(a, g.Transpose(b)), numbers(1, 12))]))


def test_a_sum_of_a_transposed_operand_and_a_row() -> None:
    g = GraphBuilder()
    a, b = g.input("a", f32(3, 12)), g.input("b", f32(12, 3))
    check(g.graph([g.Sum(a, g.Transpose(b), numbers(1, 12))]))
