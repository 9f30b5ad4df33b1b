"""Operators of several outputs of which only some are wanted: each alone, and each left out."""

from __future__ import annotations

import numpy as np
import pytest

from mezzo.ops import OPS, Op
from mezzo.ops.errors import MezzoError
from mezzo.runtime.execution.session import Session

from .graphs import hosted, sample_graph

SEVERAL = [op for op in OPS.values() if any(s.outputs > 1 for s in op.samples) and op.deterministic]


@pytest.mark.parametrize("op", SEVERAL, ids=[f"{op.domain}:{op.name}" for op in SEVERAL])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_some_outputs(op: Op, precision: str) -> None:
    """What is asked for does not depend on what else is."""
    for sample in (s for s in op.samples if s.outputs > 1 and not hosted(op, s)):
        graph, feeds = sample_graph(op, sample, fed="types")
        outputs = [o for o in graph.outputs if o]
        try:
            session = Session(graph, precision=precision)
            whole = session.run(feeds)
        except MezzoError as error:
            pytest.xfail(f"refused as a whole: {error.message}")
        for out in outputs:
            for some in ([out], [o for o in outputs if o != out]):
                for name, y in session.run(feeds, names=some).items():
                    _same(y, whole[name], precision)


def _same(y: np.ndarray, want: np.ndarray, precision: str) -> None:
    assert (y.shape, y.dtype) == (want.shape, want.dtype)
    if y.dtype.kind in "biuUSO":
        np.testing.assert_array_equal(y, want)
        return
    a, b = y.astype(np.float64), want.astype(np.float64)
    largest = abs(b[np.isfinite(b)]).max(initial=0)
    tolerance = (1e-5 if precision == "fp32" else 2e-2) * largest
    np.testing.assert_allclose(a, b, rtol=0, atol=tolerance)
