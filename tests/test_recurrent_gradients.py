"""Gradients of LSTM, GRU and RNN against PyTorch's, in either direction and twice."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mezzo.exporters import to_onnx
from mezzo.ops.types import f32
from mezzo.runtime.execution.session import Session
from mezzo.runtime.ir.autodiff import grad
from mezzo.runtime.ir.graph import Graph, GraphBuilder

from . import gradients as check
from .models import ort_run
from .peers import peer

STEPS, BATCH, INPUTS, HIDDEN = 5, 3, 4, 6
GATES = {"LSTM": [0, 2, 3, 1], "GRU": [1, 0, 2], "RNN": [0]}  # of PyTorch, by their numbers in ONNX


def layer(kind: str, **attrs: Any) -> tuple[Graph, dict[str, Any]]:
    """A layer in both directions, and numbers for its inputs."""
    g, n = GraphBuilder(), len(GATES[kind]) * HIDDEN
    shapes = {"x": (STEPS, BATCH, INPUTS), "w": (2, n, INPUTS), "r": (2, n, HIDDEN), "b": (2, 2 * n)}
    x, w, r, b = (g.input(name, f32(*shape)) for name, shape in shapes.items())
    y, last = g.op(kind, x, w, r, b, hidden_size=HIDDEN, direction="bidirectional", outputs=2, **attrs)
    loss = g.Add(g.ReduceSum(g.Mul(y, y), keepdims=0), g.ReduceSum(g.Sin(last), keepdims=0))
    rng = np.random.default_rng(0)
    return g.graph([loss]), {n: rng.uniform(-0.5, 0.5, s).astype(np.float32) for n, s in shapes.items()}


def by_torch(kind: str, feeds: dict[str, Any]) -> dict[str, Any]:
    """The gradients as PyTorch has them, in ONNX's order of gates."""
    torch = peer("torch")
    net = getattr(torch.nn, kind)(INPUTS, HIDDEN, bidirectional=True)
    order = GATES[kind]

    def turned(x: Any, back: bool) -> Any:
        parts = np.split(np.asarray(x), len(order))
        return np.concatenate([parts[order.index(i) if back else order[i]] for i in range(len(order))])

    def named(d: int) -> dict[str, tuple[str, int, slice]]:
        end, half = ("_reverse" if d else ""), feeds["b"].shape[1] // 2
        return {f"weight_ih_l0{end}": ("w", d, slice(None)), f"weight_hh_l0{end}": ("r", d, slice(None)),
                f"bias_ih_l0{end}": ("b", d, slice(half)), f"bias_hh_l0{end}": ("b", d, slice(half, None))}  # fmt: skip

    places = {**named(0), **named(1)}
    with torch.no_grad():
        for name, (key, d, part) in places.items():
            getattr(net, name).copy_(torch.tensor(turned(feeds[key][d][part], back=False)))
    x = torch.tensor(feeds["x"], requires_grad=True)
    y, last = net(x)
    ((y * y).sum() + torch.sin(last[0] if kind == "LSTM" else last).sum()).backward()
    found = {"x": x.grad.numpy(), **{k: np.zeros_like(feeds[k]) for k in "wrb"}}
    for name, (key, d, part) in places.items():
        found[key][d][part] = turned(getattr(net, name).grad, back=True)
    return found


KINDS = [("LSTM", {}), ("GRU", {"linear_before_reset": 1}), ("RNN", {})]


@pytest.mark.parametrize(("kind", "attrs"), KINDS)
def test_gradients_are_those_of_pytorch(kind: str, attrs: dict[str, Any]) -> None:
    """As a planned program, and as standard ONNX in another runtime."""
    graph, feeds = layer(kind, **attrs)
    made = grad(graph, graph.outputs[0], list(feeds))
    assert f"{kind}Grad" in {n.op for n in made.nodes}
    want = by_torch(kind, feeds)
    proto = to_onnx(made, standard=True)
    for found in (Session(made).run(feeds), ort_run(proto, feeds)):
        for name, dx in want.items():
            np.testing.assert_allclose(found[f"{name}_grad"], dx, rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize(
    ("kind", "attrs"), [*KINDS, ("GRU", {}), ("LSTM", {"input_forget": 1}), ("LSTM", {"clip": 0.3})]
)
def test_second_derivatives(kind: str, attrs: dict[str, Any]) -> None:
    """What is kept has gradients too, when the gradient is differentiated."""
    c = check.case_of(*layer(kind, **attrs))
    assert c is not None
    second = check.again(c)
    assert second is not None
    found = check.by_graph(second, second.graph)
    for name in second.wrt:
        differences = check.numeric(second.graph, second.feeds, second.dys, name)
        problem = check.disagreement(second, found, name, differences)
        assert not problem, problem
