"""Names that a plan gives are none that the model has."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mezzo.ops.types import DType, f32
from mezzo.runtime.execution.session import Session
from mezzo.runtime.ir.graph import Graph, GraphBuilder
from mezzo.runtime.ir.infer import infer
from mezzo.runtime.passes.precision import narrowed

IMAGES = f32(2, 16, 8, 8)


def called(graph: Graph, value: str, name: str) -> Graph:
    """Return the graph with a value under another name."""
    nodes = graph.rename({value: name}).nodes
    return graph.rename({value: name}).but(
        nodes=tuple(replace(n, outputs=tuple(name if o == value else o for o in n.outputs)) for n in nodes),
        types={name if n == value else n: t for n, t in graph.types.items()},
    )


def network() -> tuple[Graph, str]:
    """Two convolutions, and beside them a value that has nothing to do with them; its name."""
    g, rng = GraphBuilder(), np.random.default_rng(0)
    x, other = g.input("x", IMAGES), g.input("other", IMAGES)
    w = g.const((rng.standard_normal((16, 16, 3, 3)) * 0.1).astype(np.float32))
    y = g.Conv(x, w, pads=[1, 1, 1, 1])
    value = g.Exp(g.Relu(other))
    return g.graph([y, g.Conv(y, w, pads=[1, 1, 1, 1]), g.Add(value, y)]), value


def test_a_value_called_like_another_in_its_layout() -> None:
    graph, value = network()
    rng = np.random.default_rng(1)
    feeds = {n: rng.standard_normal((2, 16, 8, 8)).astype(np.float32) for n in ("x", "other")}
    session = Session(graph)
    right = session.run(feeds)
    own = {*graph.inputs, *(o for n in graph.nodes for o in n.outputs)}
    assert session.program is not None
    planned = {o for step in session.program.steps for o in step.node.outputs} - own
    for name in sorted(planned) or ["x:acdb"]:
        wrong = Session(called(graph, value, name)).run(feeds)
        for a, b in zip(wrong.values(), right.values(), strict=True):
            np.testing.assert_array_equal(a, b, err_msg=name)


@pytest.mark.parametrize("name", ["x:bfloat16", "Conv_1:bfloat16"])
def test_a_value_called_like_another_in_bfloat16(name: str) -> None:
    graph, value = network()
    graph = infer(called(graph, value, name), {})
    lower = narrowed(graph, lambda around, node: None, DType.BFLOAT16)
    assert lower is not graph
    written = [o for n in lower.nodes for o in n.outputs]
    assert len(written) == len({*written})
    assert lower.types[name].dtype is DType.FLOAT if name in written else True  # type: ignore[union-attr]
