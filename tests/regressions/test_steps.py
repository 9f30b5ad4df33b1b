"""Numbers of 8 bits between convolutions, other layouts and floats."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import numpy as np
import pytest

from mezzo.ops import DType, Tensor
from mezzo.ops.types import f32
from mezzo.runtime.execution.session import Session
from mezzo.runtime.ir.graph import Graph, GraphBuilder

SCALE = np.float32(0.03)


def apart(graph: Graph, feeds: dict[str, Any]) -> float:
    """How far the planned results are from the references'."""
    (planned,) = Session(graph, threads=1).run(feeds).values()
    (right,) = Session(graph, onednn=False).run(feeds).values()
    return float(np.abs(planned.astype(np.float64) - right).max())


@pytest.mark.parametrize("zero", [np.uint8(128), np.int8(5), np.int8(0)], ids=str)
@pytest.mark.parametrize("shape", [(1, 16, 5, 33), (2, 16, 5, 7), (1, 16, 8, 8)], ids=str)
def test_steps_become_floats_in_another_order_of_axes(shape: tuple[int, ...], zero: Any) -> None:
    """A search found them without their zero point (seed 900058)."""
    rng = np.random.default_rng(0)
    weights = (rng.standard_normal((16, 16, 1, 1)) * 0.1).astype(np.float32)
    feeds = {"x": rng.standard_normal(shape).astype(np.float32)}
    for perm in permutations(range(4)):
        g = GraphBuilder()
        y = g.QuantizeLinear(g.Conv(g.input("x", f32(*shape)), g.const(weights)), g.const(SCALE), g.const(zero))
        y = g.Transpose(g.DequantizeLinear(y, g.const(SCALE), g.const(zero)), perm=perm)
        assert apart(g.graph([y]), feeds) <= 1.01 * SCALE, perm  # a tie may fall to the next step


@pytest.mark.parametrize("sizes", [(1, 33), (33, 1), (5, 33), (8, 8), (1, 1)], ids=str)
@pytest.mark.parametrize("perm", [(0, 1, 2, 3), (0, 1, 3, 2), (0, 2, 3, 1)], ids=str)
@pytest.mark.parametrize("floats", [False, True])
def test_ties_of_a_quantised_convolution_fall_as_those_of_the_reference(
    sizes: tuple[int, int], perm: tuple[int, ...], floats: bool
) -> None:
    """Factors of 0.018 make sums that lie in the middle of two steps; processors that add bytes round within a step."""
    g, rng = GraphBuilder(), np.random.default_rng(0)
    x = g.input("x", Tensor(DType.UINT8, (1, 16, *sizes)))
    weights = g.const(rng.integers(-50, 50, (16, 16, 1, 1)).astype(np.int8))
    zero, point = g.const(np.int8(0)), g.const(np.uint8(128))
    y: Any = g.QLinearConv(
        x, g.const(np.float32(0.027)), point, weights, g.const(np.float32(0.02)), zero, g.const(SCALE), point
    )
    y = g.Transpose(g.DequantizeLinear(y, g.const(SCALE), point) if floats else y, perm=perm)
    graph = g.graph([y])
    feeds = {"x": rng.integers(60, 190, (1, 16, *sizes)).astype(np.uint8)}
    kernels = {s.choice.kernel for s in Session(graph, threads=1).program.steps}
    step = (1.01 * SCALE if floats else 1) if "onednn.qlinear_conv" in kernels else 0
    assert apart(graph, feeds) <= step
