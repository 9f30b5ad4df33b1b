"""TotalNorm on the CPU added its blocks up in float32: a small last block was lost."""

from __future__ import annotations

import numpy as np

from mezzo.ops.types import f32
from mezzo.runtime.execution.session import Session
from mezzo.runtime.ir.graph import GraphBuilder


def test_sums_of_blocks_are_added_in_float64() -> None:
    g = GraphBuilder()
    count = 64
    xs = [np.full(1, 4096.0, np.float32), *(np.full(1, 1.0, np.float32) for _ in range(count))]
    names = [g.input(f"x{i}", f32(1)) for i in range(len(xs))]
    session = Session(g.graph([g.op("TotalNorm", *names, domain="mezzo")]))
    assert [s.choice.kernel for s in session.program.steps] == ["numpy.total_norm"]
    (found,) = session.run(dict(zip(names, xs, strict=True))).values()
    assert found == np.float32(np.sqrt(4096.0**2 + count))
