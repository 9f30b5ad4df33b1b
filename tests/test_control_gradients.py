"""Gradients through bodies: branches and loops in one another, captured values, shapes that change, random numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from mezzo.exporters import to_onnx
from mezzo.ops import Body, DType, Tensor
from mezzo.ops.errors import UnsupportedModel
from mezzo.ops.types import Sequence, differentiable, f32, i64
from mezzo.runtime.execution.session import Session
from mezzo.runtime.ir.autodiff import grad
from mezzo.runtime.ir.graph import Graph, GraphBuilder
from mezzo.runtime.ir.infer import infer
from mezzo.runtime.ir.interpreter import evaluate

from . import gradients as check
from .models import ort_run
from .peers import peer

BOOL = Tensor(DType.BOOL, ())
G = Any  # builders
Made = tuple[Graph, dict[str, Any]]


def drawn(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).uniform(-1, 1, shape).astype(np.float32)


def built(build: Callable[..., Any], **feeds: Any) -> Made:
    """A graph over these inputs, and their arrays."""
    g = GraphBuilder()
    arrays = {n: np.asarray(x) for n, x in feeds.items()}
    made = build(g, *(g.input(n, Tensor(DType.of(x.dtype), x.shape)) for n, x in arrays.items()))
    return g.graph(list(made) if isinstance(made, tuple) else [made]), arrays


def scan_with_captured_weights() -> Made:
    def build(g: G, h: str, x: str, w: str, r: str) -> Any:
        def step(b: G, h: str, x: str) -> Any:
            new = b.Tanh(b.Add(b.MatMul(x, w), b.MatMul(h, r)))
            return new, b.Identity(new)

        return g.Scan(h, x, body=Body([f32(2, 3), f32(2, 4)], step), num_scan_inputs=1, outputs=2)

    return built(build, h=drawn(2, 3), x=drawn(5, 2, 4), w=drawn(4, 3), r=drawn(3, 3))


def scan_without_states() -> Made:
    def build(g: G, x: str, w: str) -> Any:
        return g.Scan(
            x,
            body=Body([f32(2)], lambda b, x: (b.Mul(b.Exp(x), w),)),
            num_scan_inputs=1,
            scan_input_axes=[-1],
            scan_output_axes=[1],
            scan_output_directions=[1],
        )

    return built(build, x=drawn(2, 3), w=drawn(2))


def loop_with_captured_weights() -> Made:
    def build(g: G, h: str, x: str, w: str) -> Any:
        def step(b: G, i: str, go: str, h: str, c: str) -> Any:
            new = b.Tanh(b.Add(b.MatMul(h, w), b.Gather(x, i)))
            return go, new, c, b.Mul(new, c)  # c only passes through

        body = Body([i64(), BOOL, f32(2, 3), f32(3)], step)
        return g.Loop(g.const(4), None, h, g.const([1.0, 2, 3], DType.FLOAT), body=body, outputs=3)[::2]

    return built(build, h=drawn(2, 3), x=drawn(4, 2, 3), w=drawn(3, 3))


def while_loop() -> Made:
    def build(g: G, x: str, w: str) -> Any:
        def step(b: G, i: str, go: str, count: str, x: str) -> Any:
            new = b.Mul(x, w)
            small = b.Less(b.ReduceSum(b.Abs(new), keepdims=0), b.Cast(b.const(20), to=1))
            return small, b.Add(count, b.const(1)), new

        body = Body([i64(), BOOL, i64(), f32(2)], step)
        return g.Loop(None, g.const(True), g.const(0), x, body=body, outputs=2)

    return built(build, x=np.array([0.5, -1], np.float32), w=np.array([1.7, 1.3], np.float32))


def loop_that_never_runs() -> Made:
    def build(g: G, m: str, x: str, w: str) -> Any:
        body = Body([i64(), BOOL, f32(2)], lambda b, i, go, x: (go, b.Mul(x, w), b.Neg(x)))
        return g.Loop(m, None, x, body=body, outputs=2)

    return built(build, m=np.array(0), x=drawn(2), w=drawn(2))


def loop_that_grows() -> Made:
    def build(g: G, x: str, w: str) -> Any:
        def step(b: G, i: str, go: str, x: str) -> Any:
            more = b.Mul(b.ReduceSum(x, keepdims=1), w)
            return go, b.Concat(b.Tanh(x), more, axis=0), b.ReduceMean(x, keepdims=0)

        return g.Loop(g.const(4), None, x, body=Body([i64(), BOOL, f32(None)], step), outputs=2)

    return built(build, x=drawn(2), w=drawn(1))


def loop_over_a_sequence() -> Made:
    def build(g: G, x: str, w: str) -> Any:
        def step(b: G, i: str, go: str, rows: str, h: str) -> Any:
            new = b.Tanh(b.Add(b.Mul(h, w), b.SequenceAt(rows, b.Neg(b.Add(i, b.const(1))))))
            return go, b.SequenceInsert(rows, new, b.const(0)), new

        rows = g.SplitToSequence(x, axis=0, keepdims=0)
        body = Body([i64(), BOOL, Sequence(f32(2)), f32(2)], step)
        made, last = g.Loop(g.const(3), None, rows, g.Neg(w), body=body, outputs=2)
        return g.ConcatFromSequence(made, axis=0, new_axis=1), last

    return built(build, x=drawn(4, 2), w=drawn(2))


def branches(taken: bool) -> Callable[[], Made]:
    def build(g: G, cond: str, x: str, w: str) -> Any:
        def yes(b: G) -> Any:
            return b.Mul(x, w), x

        def no(b: G) -> Any:
            return b.Exp(x), b.Identity(b.const([[1.0, 2], [3, 4]], DType.FLOAT))

        return g.If(cond, then_branch=Body([], yes), else_branch=Body([], no), outputs=2)

    return lambda: built(build, cond=np.array(taken), x=drawn(2, 2), w=drawn(2))


def branch_in_a_loop() -> Made:
    def build(g: G, x: str, w: str, v: str) -> Any:
        def step(b: G, i: str, go: str, x: str) -> Any:
            odd = b.Equal(b.Mod(i, b.const(2)), b.const(1))
            return go, b.If(
                odd,
                then_branch=Body([], lambda c: (c.Mul(x, w),)),
                else_branch=Body([], lambda c: (c.Sin(c.Add(c.MatMul(x, v), x)),)),
            )

        return g.Loop(g.const(3), None, x, body=Body([i64(), BOOL, f32(2, 2)], step))

    return built(build, x=drawn(2, 2), w=drawn(2), v=drawn(2, 2))


def loop_in_a_branch() -> Made:
    def build(g: G, cond: str, n: str, x: str, w: str) -> Any:
        def step(b: G, i: str, go: str, x: str) -> Any:
            return go, b.Tanh(b.Mul(x, w))

        def yes(b: G) -> Any:
            return (b.Loop(n, None, b.Exp(x), body=Body([i64(), BOOL, f32(3)], step)),)

        return g.If(cond, then_branch=Body([], yes), else_branch=Body([], lambda b: (b.Neg(x),)))

    return built(build, cond=np.array(True), n=np.array(3), x=drawn(3), w=drawn(3))


def scan_in_a_loop() -> Made:
    def build(g: G, x: str, w: str) -> Any:
        def add(b: G, total: str, row: str) -> Any:
            new = b.Mul(b.Add(total, row), w)
            return new, b.Tanh(new)

        def step(b: G, i: str, go: str, x: str) -> Any:
            zero = b.Mul(b.Gather(x, b.const(0)), b.Cast(b.const(0), to=1))
            return go, b.Scan(zero, x, body=Body([f32(2), f32(2)], add), num_scan_inputs=1, outputs=2)[1]

        return g.Loop(g.const(2), None, x, body=Body([i64(), BOOL, f32(3, 2)], step))

    return built(build, x=drawn(3, 2), w=drawn(2))


def map_with_captured_values() -> Made:
    def build(g: G, x: str, w: str, v: str) -> Any:
        rows = g.SplitToSequence(x, g.const([1, 3]), axis=0)
        body = Body([f32(None, 2), f32(2)], lambda b, row, v: (b.Mul(b.Exp(row), b.Add(w, v)),))
        return g.ConcatFromSequence(g.SequenceMap(rows, v, body=body), axis=0)

    return built(build, x=drawn(4, 2), w=drawn(2), v=drawn(2))


GRAPHS: dict[str, Callable[[], Made]] = {
    f.__name__: f
    for f in (
        scan_with_captured_weights,
        scan_without_states,
        loop_with_captured_weights,
        while_loop,
        loop_that_never_runs,
        loop_that_grows,
        loop_over_a_sequence,
        branch_in_a_loop,
        loop_in_a_branch,
        scan_in_a_loop,
        map_with_captured_values,
    )
} | {"the first branch": branches(True), "the second branch": branches(False)}


def agree(c: check.Case, found: dict[str, dict[str, Any]]) -> None:
    for name in c.wrt:
        differences = check.numeric(c.graph, c.feeds, c.dys, name)
        for how, grads in found.items():
            problem = check.disagreement(c, grads, name, differences)
            assert not problem, f"{how}: {problem}"


@pytest.mark.parametrize("name", GRAPHS)
def test_gradients_of_bodies(name: str) -> None:
    c = check.case_of(*GRAPHS[name]())
    assert c is not None
    agree(
        c,
        {
            "in a graph": check.by_graph(c, infer(c.graph)),
            "without sizes": check.by_graph(c, check.ranks_only(c.graph)),
            "on the tape": check.by_tape(c),
        },
    )


@pytest.mark.parametrize("name", GRAPHS)
def test_second_derivatives_of_bodies(name: str) -> None:
    first = check.case_of(*GRAPHS[name]())
    assert first is not None
    made = infer(check.differentiated(first.graph, first.dys, first.wrt))
    feeds = {**first.feeds, **dict(zip(made.inputs[len(first.graph.inputs) :], first.dys.values(), strict=True))}
    c = check.case_of(made, feeds)
    assert c is not None
    agree(c, {"in a graph": check.by_graph(c, c.graph), "without sizes": check.by_graph(c, check.ranks_only(c.graph))})


def to_inputs(graph: Graph, loss: str) -> Graph:
    """The graph with the gradients of a sum of one of its values to its floating inputs."""
    typed = infer(graph)
    return grad(typed, loss, [n for n in typed.inputs if differentiable(typed.types[n])])


@pytest.mark.parametrize("name", GRAPHS)
def test_programs_and_other_runtimes_agree(name: str) -> None:
    """The derivative as a planned program, and as standard ONNX."""
    graph, feeds = GRAPHS[name]()
    made = to_inputs(graph, graph.outputs[-1] if name != "the second branch" else graph.outputs[0])
    want = evaluate(made, feeds)
    session = Session(made)
    proto = to_onnx(made, standard=True)
    found = [session.run(feeds), ort_run(proto, feeds)]
    for ys in found:
        for n, y in want.items():
            np.testing.assert_allclose(ys[n], y, rtol=1e-4, atol=1e-5, err_msg=n)


def test_a_scan_as_pytorch_unrolls_it() -> None:
    torch = peer("torch")
    graph, feeds = scan_with_captured_weights()
    made = to_inputs(graph, graph.outputs[1])
    ours = evaluate(made, feeds)
    h, x, w, r = leaves = [torch.tensor(feeds[n], requires_grad=True) for n in "hxwr"]
    ys = []
    for t in range(x.shape[0]):
        h = torch.tanh(x[t] @ w + h @ r)
        ys.append(h)
    torch.stack(ys).sum().backward()
    for n, leaf in zip("hxwr", leaves, strict=True):
        np.testing.assert_allclose(ours[f"{n}_grad"], leaf.grad.numpy(), rtol=1e-4, atol=1e-6)


def test_a_while_loop_as_pytorch_runs_it() -> None:
    torch = peer("torch")
    graph, feeds = while_loop()
    ours = evaluate(to_inputs(graph, graph.outputs[1]), feeds)
    x, w = (torch.tensor(feeds[n], requires_grad=True) for n in "xw")
    y, count = x, 0
    while count == 0 or y.abs().sum() < 20:
        y, count = y * w, count + 1
    y.sum().backward()
    assert ours[graph.outputs[0]] == count > 3
    for n, leaf in (("x", x), ("w", w)):
        np.testing.assert_allclose(ours[f"{n}_grad"], leaf.grad.numpy(), rtol=1e-5)


@pytest.mark.parametrize("where", ["Loop", "If", "If in Loop"])
def test_a_body_that_runs_again_draws_the_same_numbers(where: str) -> None:
    """y = x r for a random r: so y is x times its own derivative."""

    def times(b: G, x: str) -> str:
        made: str = b.Mul(x, b.RandomNormalLike(x))
        return made

    def branch(b: G, x: str) -> str:
        made: str = b.If(g.const(True), then_branch=Body([], lambda c: (times(c, x),)),
                         else_branch=Body([], lambda c: (c.Neg(x),)))  # fmt: skip
        return made

    g = GraphBuilder()
    x = g.input("x", f32(6))
    if where == "If":
        y = branch(g, x)
    else:
        step = times if where == "Loop" else branch
        body = Body([i64(), BOOL, f32(6)], lambda b, i, go, x: (go, step(b, x)))
        y = g.Loop(g.const(2), None, x, body=body)
    made, feeds = to_inputs(g.graph([y]), y), {"x": drawn(6)}
    session = Session(made)
    for found in (evaluate(made, feeds), session.run(feeds), session.run(feeds)):
        np.testing.assert_allclose(found[y], feeds["x"] * found["x_grad"], rtol=1e-5)
        assert len(set(found["x_grad"].tolist())) == 6


def test_what_leads_to_nothing_needs_no_derivative() -> None:
    """A float beside those that need gradients, carried through an operator that has none."""
    g = GraphBuilder()
    x, noise = g.input("x", f32(2)), g.input("noise", f32(3))

    def step(b: G, i: str, go: str, x: str, noise: str) -> Any:
        return go, b.Mul(x, x), b.Mul(noise, b.DynamicQuantizeLinear(noise, outputs=3)[1])

    body = Body([i64(), BOOL, f32(2), f32(3)], step)
    y, rest = g.Loop(g.const(2), None, x, noise, body=body, outputs=2)
    graph, feeds = g.graph([y, rest]), {"x": drawn(2), "noise": drawn(3)}
    found = evaluate(grad(graph, y, ["x"]), feeds)
    np.testing.assert_allclose(found["x_grad"], 4 * feeds["x"] ** 3, rtol=1e-5)
    with pytest.raises(UnsupportedModel, match="DynamicQuantizeLinear"):
        grad(graph, rest, ["noise"])
