"""What rewriting of graphs has got wrong."""

from __future__ import annotations

import numpy as np
import pytest

from mezzo.ops import DType, Tensor
from mezzo.ops.types import f32
from mezzo.runtime.ir.graph import GraphBuilder

from .cases import check, numbers


def test_equal_weights_of_two_convolutions_of_which_one_loses_taps() -> None:
    """Weights with a scale in them were merged, and then those of the small image cut for both."""
    g, ys = GraphBuilder(), []
    weights, scale = numbers(2, 2, 5, 5), numbers(2, 1, 1)
    for i in range(2):
        x = g.input(f"x{i}", Tensor(DType.FLOAT, (1, 2, f"n{i}", f"n{i}")))
        ys.append(g.Mul(g.Conv(x, weights, pads=(2, 2, 2, 2)), scale))
    ys.append(
        g.Reshape(ys[0], g.Concat(g.Shape(ys[0]), np.array([1]), axis=0))
    )  # known with the sizes: passes run again
    graph = g.graph(ys)
    check(graph, {"x0": numbers(1, 2, 1, 1), "x1": numbers(1, 2, 9, 9)})


@pytest.mark.parametrize("dims", [(1, 1, 1, 1, 1), (1, 3, 1, 1, 1), (3, 1, 1), (2, 1, 1, 1)], ids=str)
@pytest.mark.parametrize("filters", [1, 3])
@pytest.mark.parametrize("op", ["Add", "Mul", "Sub", "Div"])
def test_a_convolution_and_a_constant_that_widens_its_result(op: str, filters: int, dims: tuple[int, ...]) -> None:
    g = GraphBuilder()
    y = g.Conv(g.input("x", f32(1, 2, 4, 3)), numbers(filters, 2, 2, 2))
    check(g.graph([g.op(op, y, numbers(*dims))]))
