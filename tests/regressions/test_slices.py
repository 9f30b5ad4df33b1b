"""Starts and ends far outside of the axis: ONNX moves them to it, which Python does not do for every start."""

from __future__ import annotations

import numpy as np
import pytest

from mezzo.ops.types import f32
from mezzo.runtime.ir.graph import Graph, GraphBuilder

from ..random_graphs.properties import differentiated
from .cases import check

FAR = 2**63 - 1
WHERE = [
    (-10, -20, -1), (-6, -10, -1), (-6, 10, -1), (4, -20, -2), (-7, 0, -1), (-5, -9, -1), (9, -2, -1), (-9, 3, 1),
    (-9, -9, 1), (7, 9, 1), (2, 2, 1), (3, 1, 1), (-FAR, FAR, 1), (FAR, -FAR, -1), (-FAR, -FAR, -1), (2, -1, -1),
    (0, -6, -1),
]  # fmt: skip


def sliced(start: int, end: int, step: int, *, twice: bool = False) -> Graph:
    g = GraphBuilder()
    y = g.Slice(g.input("x", f32(5, 2)), *(np.array([v]) for v in (start, end, 0, step)))
    return g.graph([g.Mul(y, y) if twice else y])


@pytest.mark.parametrize("where", WHERE)
def test_a_slice_as_the_standard_has_it(where: tuple[int, int, int]) -> None:
    check(sliced(*where))


@pytest.mark.parametrize("where", [(-6, -10, -1), (-10, -20, -1), (9, -2, -1), (-9, 3, 1)])
def test_its_gradient(where: tuple[int, int, int]) -> None:
    check(sliced(*where, twice=True), also=[differentiated])
