"""What a second run meets: inputs that nobody reads, of every size."""

from __future__ import annotations

import pytest

from mezzo.ops import DType, Tensor
from mezzo.ops.types import f32
from mezzo.runtime.ir.graph import GraphBuilder

from .cases import check, fed


@pytest.mark.parametrize("unread", [(), (3,), (100, 100), (0, 5), (5000,)], ids=str)
@pytest.mark.parametrize("read", [(2,), (5000,)], ids=str)
def test_an_input_that_nobody_reads(unread: tuple[int, ...], read: tuple[int, ...]) -> None:
    g = GraphBuilder()
    g.input("unread", f32(*unread))
    check(g.graph([g.Relu(g.input("x", f32(*read)))]))


def test_an_input_that_nobody_reads_at_other_sizes() -> None:
    g = GraphBuilder()
    g.input("unread", Tensor(DType.FLOAT, ("n", 100)))
    graph = g.graph([g.Relu(g.input("x", Tensor(DType.FLOAT, ("n", 2))))])
    check(graph, *(fed(graph, n=n) for n in (3, 100, 2000)))
