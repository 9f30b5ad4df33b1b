"""Bodies inside of bodies: what reads a value of the body around it, where that one never ran."""

from __future__ import annotations

from typing import Any

import numpy as np

from mezzo.ops import DType, Tensor
from mezzo.ops.op import Body
from mezzo.ops.types import f32, i64
from mezzo.runtime.ir.graph import GraphBuilder

from .cases import check, numbers

FLAG = Tensor(DType.BOOL, ())


def test_no_turn_of_a_loop_around_another() -> None:
    """The types of what it would have stacked hang on what the inner body reads, of which there was no array yet, or
    that of an earlier run."""

    def outer(g: Any, i: str, go: str, held: str) -> tuple[str, ...]:
        inside = Body([i64(), FLAG, f32(None, 3)], lambda b, j, go, x: (b.Identity(go), b.Neg(x), b.Exp(held)))
        turned, rows = g.Loop(g.const(2), None, held, body=inside, outputs=2)
        return g.Identity(go), g.Concat(turned, turned, axis=0), g.ReduceSum(rows, g.const([0, 1]), keepdims=0)

    g = GraphBuilder()
    trips, x = g.input("trips", i64()), g.input("x", f32("n", 3))
    body = Body([i64(), FLAG, f32(None, 3)], outer)
    graph = g.graph([*g.Loop(trips, None, x, body=body, outputs=2)])
    runs = [{"trips": np.array(t), "x": numbers(n, 3)} for t, n in ((0, 2), (2, 1), (0, 4), (1, 3))]
    check(graph, *runs)
