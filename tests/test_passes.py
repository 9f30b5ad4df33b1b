"""Passes: each keeps the answers and the rules of a graph, and does what it is for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mezzo.importers import load_onnx
from mezzo.ops import Body, DType, Tensor
from mezzo.ops.budget import Budget
from mezzo.ops.errors import BudgetError, PlanError, ShapeError
from mezzo.ops.types import f32, i64
from mezzo.runtime.execution.session import Session
from mezzo.runtime.ir.graph import Graph, GraphBuilder, Node
from mezzo.runtime.ir.infer import infer
from mezzo.runtime.ir.interpreter import evaluate
from mezzo.runtime.ir.prune import prune
from mezzo.runtime.passes import PIPELINE, RULES, simplify
from mezzo.runtime.passes.batchnorm import BATCHNORM
from mezzo.runtime.passes.canonical import CANONICAL
from mezzo.runtime.passes.chains import Stopped, fuse_chains
from mezzo.runtime.passes.rewrite import Leaf, Pattern, Replacement, RewriteDeclined, Rule, rewrite

from .models import Real, real_models
from .test_session import chains

FLAG = Tensor(DType.BOOL, ())


def outputs_of(graph: Graph, feeds: dict[str, Any]) -> list[Any]:
    found = evaluate(graph, feeds)
    return [found[o] for o in graph.outputs]


def assert_each_pass_keeps(graph: Graph, feeds: dict[str, Any]) -> Graph:
    want, graph = outputs_of(graph, feeds), infer(graph)
    for _ in range(2):
        for step in PIPELINE:
            graph = step(graph)
            graph.verify()
            for a, b in zip(outputs_of(graph, feeds), want, strict=True):
                np.testing.assert_array_equal(a, b, step.__name__)
    return graph


@given(chains(), st.integers(0, 9))
def test_each_pass_keeps_the_answers(graph: Graph, seed: int) -> None:
    rng = np.random.default_rng(seed)
    feeds = {n: rng.standard_normal((2, 3)).astype(np.float32) for n in graph.inputs}
    done = assert_each_pass_keeps(graph, feeds)
    assert simplify(done) is done, "a fixpoint"


@real_models
def test_each_pass_keeps_the_rules_on_real_models(real: Real) -> None:
    graph = infer(load_onnx(real.path()))
    count = sum(1 for _ in graph.walk())
    for step in PIPELINE * 2:
        graph = step(graph).verify()
    assert sum(1 for _ in graph.walk()) <= count
    assert not {"Constant", "Identity", "Dropout"} & {n.op for _, n in graph.walk()}


def test_shape_arithmetic_disappears_when_sizes_are_known() -> None:
    g = GraphBuilder()
    x = g.input("x", f32("n", 4))
    rows = g.Gather(g.Shape(x), g.const(0))
    flat = g.Reshape(x, g.Unsqueeze(g.Mul(rows, g.const(4)), g.const([0])))
    graph = g.graph([flat])
    assert len(simplify(infer(graph)).nodes) > 1
    assert [n.op for n in simplify(infer(graph, {"x": f32(3, 4)})).nodes] == ["Reshape"]


def test_folding_stays_within_its_budget() -> None:
    g = GraphBuilder()
    g.input("x", f32(1))
    graph = g.graph([g.Neg(g.Expand(g.const(1.0, DType.FLOAT), g.const([1000])))])
    assert simplify(infer(graph)).nodes == ()
    assert len(simplify(infer(graph, budget=Budget(fold_elements=10))).nodes) == 2
    with pytest.raises(BudgetError, match="1000"):
        infer(graph, budget=Budget(tensor_elements=999))


def test_equal_nodes_become_one_and_unread_ones_none() -> None:
    g = GraphBuilder()
    x = g.input("x", f32(2))
    a, b = g.Add(x, g.const([1.0, 2.0], DType.FLOAT)), g.Add(x, g.const([1.0, 2.0], DType.FLOAT))
    g.Exp(x)
    graph = simplify(infer(g.graph([g.Mul(a, b)])))
    assert [n.op for n in graph.nodes] == ["Add", "Mul"]
    assert len(graph.initializers) == 1


def test_an_unread_output_is_not_asked_for() -> None:
    g = GraphBuilder()
    best, _ = g.op("TopK", g.input("x", f32(4)), g.const([2]), outputs=2)
    (node,) = simplify(infer(g.graph([best]))).nodes
    assert node.wanted == (True,)


def test_a_known_branch_replaces_its_if() -> None:
    g = GraphBuilder()
    x = g.input("x", f32("n"))
    small = g.Less(g.Gather(g.Shape(x), g.const(0)), g.const(3))
    y = g.If(
        small,
        then_branch=Body([], lambda g: (g.Neg(x),)),
        else_branch=Body([], lambda g: (g.Exp(x),)),
    )
    graph = g.graph([y])
    for n, op in ((2, "Neg"), (5, "Exp")):
        assert [m.op for m in simplify(infer(graph, {"x": f32(n)})).nodes] == [op]


def test_a_branch_for_other_sizes_fails_only_when_it_runs() -> None:
    g = GraphBuilder()
    flag, x = g.input("flag", FLAG), g.input("x", f32(2))
    y = g.If(
        flag,
        then_branch=Body([], lambda g: (g.Add(x, g.const([1.0, 2.0, 3.0], DType.FLOAT)),)),
        else_branch=Body([], lambda g: (g.Neg(x),)),
    )
    from mezzo.runtime.execution.session import Session

    session = Session(g.graph([y]))
    fed = np.ones(2, np.float32)
    assert session.run({"flag": np.array(False), "x": fed})["If_0"].tolist() == [-1, -1]
    with pytest.raises(ShapeError, match="cannot broadcast"):
        session.run({"flag": np.array(True), "x": fed})


def test_a_loop_widens_what_it_carries() -> None:
    g = GraphBuilder()
    body = Body([i64(), FLAG, f32(None)], lambda g, i, go, x: (go, g.Concat(x, x, axis=0)))
    y = g.Loop(g.const(3), None, g.input("x", f32(2)), body=body)
    assert infer(g.graph([y])).types[y] == f32(None)


def test_a_declining_rule_says_why() -> None:
    g = GraphBuilder()
    x = g.input("x", f32(2, 3))
    graph = infer(g.graph([g.Transpose(x, perm=[1, 0]), g.Dropout(x, None, g.const(True)), g.Cast(x, to=11)]))
    declined: list[RewriteDeclined] = []
    assert rewrite(graph, RULES, declined) is graph
    assert {(d.rule, d.reason) for d in declined} == {
        ("drop Transpose", "axes change places"),
        ("drop Dropout", "it is in training mode"),
        ("drop Cast", "float32[2,3] becomes float64[2,3]"),
    }


def test_patterns_see_structure_uses_attributes_and_constants() -> None:
    rule = Rule(
        "Mul of Exp",
        Pattern("Mul", (Pattern("Exp", (Leaf("x"),), uses=1), Leaf("scale", constant=True))),
        lambda m: None,
        lambda m: Replacement({}, (Node("Neg", (m.values["x"],), m.root.outputs),)),
    )

    def rewritten(build: Any) -> list[str]:
        g = GraphBuilder()
        graph = infer(g.graph(build(g, g.input("x", f32(2)))))
        return [n.op for n in rewrite(graph, (rule,)).nodes]

    def two(g: GraphBuilder) -> str:
        return g.const([2.0, 2.0], DType.FLOAT)

    assert rewritten(lambda g, x: [g.Mul(g.Exp(x), two(g))]) == ["Exp", "Neg"]
    assert rewritten(lambda g, x: [g.Mul(g.Exp(x), x)]) == ["Exp", "Mul"]
    assert rewritten(lambda g, x: [g.Mul(e := g.Exp(x), two(g)), e]) == ["Exp", "Mul"]
    assert rewritten(lambda g, x: [g.Mul(two(g), g.Exp(x))]) == ["Exp", "Mul"]


@pytest.mark.parametrize(
    ("nodes", "outputs", "said"),
    [
        ([Node("Neg", ("x",), ("x",))], ("x",), "defined twice"),
        ([Node("Neg", ("z",), ("y",))], ("y",), "read before"),
        ([Node("Neg", ("x",), ("y",))], ("z",), "never made"),
    ],
)
def test_a_broken_graph_is_told(nodes: list[Node], outputs: tuple[str, ...], said: str) -> None:
    with pytest.raises(PlanError, match=said):
        Graph(("x",), outputs, tuple(nodes)).verify()
    with pytest.raises(ShapeError, match="at most 1 inputs"):
        Graph(("x",), ("y",), (Node("Neg", ("x", "x"), ("y",)),)).verify()
    with pytest.raises(ShapeError, match="lacks its input B"):
        Graph(("x",), ("y",), (Node("Add", ("x",), ("y",)),)).verify()


def test_errors_of_inference_name_the_node() -> None:
    g = GraphBuilder()
    y = g.Add(g.input("a", f32(2)), g.input("b", f32(3)))
    with pytest.raises(ShapeError, match=r"cannot broadcast \[2\] with \[3\]") as caught:
        infer(g.graph([y]))
    assert "Add_0" in caught.value.where


def _gelu(g: GraphBuilder, x: str, order: int) -> str:
    one, half = g.const(np.float32(1)), g.const(np.float32(0.5))
    scaled = g.Mul(x, g.const(np.float32(0.5**0.5))) if order % 2 else g.Div(x, g.const(np.float32(2**0.5)))
    inner = g.Add(g.Erf(scaled), one) if order < 2 else g.Add(one, g.Erf(scaled))
    ways = (
        lambda: g.Mul(g.Mul(x, inner), half),
        lambda: g.Mul(g.Mul(half, x), inner),
        lambda: g.Mul(g.Mul(inner, half), x),
        lambda: g.Mul(half, g.Mul(inner, x)),
    )
    return str(ways[order]())


def _gelu_tanh(g: GraphBuilder, x: str, order: int) -> str:
    cube = g.Mul(g.Mul(x, x), x) if order % 2 else g.Pow(x, g.const(np.float32(3)))
    wave = g.Mul(g.const(np.float32((2 / np.pi) ** 0.5)), g.Add(x, g.Mul(cube, g.const(np.float32(0.044715)))))
    half = g.Mul(x, g.const(np.float32(0.5)))
    return str(g.Mul(half, g.Add(g.Tanh(wave), g.const(np.float32(1)))))


def _layer_norm(g: GraphBuilder, x: str, order: int) -> str:
    axes, scale, bias = g.const([-1]), g.const(np.linspace(1, 2, 6, dtype=np.float32)), g.const(np.ones(6, np.float32))
    centred = g.Sub(x, g.ReduceMean(x, axes))
    squares = g.Mul(centred, centred) if order % 2 else g.Pow(centred, g.const(np.float32(2)))
    deviation = g.Sqrt(g.Add(g.ReduceMean(squares, axes), g.const(np.float32(1e-5))))
    scaled = g.Mul(scale, g.Div(centred, deviation)) if order < 2 else g.Mul(g.Div(centred, deviation), scale)
    return str(g.Add(scaled, bias))


def _hard_swish(g: GraphBuilder, x: str, order: int) -> str:
    three, zero, six = (g.const(np.float32(v)) for v in (3, 0, 6))
    clipped = g.Clip(g.Add(x, three) if order % 2 else g.Add(three, x), zero, six)
    return str(g.Div(g.Mul(clipped, x), six) if order < 2 else g.Mul(x, g.Div(clipped, six)))


WRITTEN_OUT: dict[str, Callable[[Any, str, int], str]] = {
    "Gelu": _gelu,
    "Gelu with tanh": _gelu_tanh,
    "LayerNormalization": _layer_norm,
    "Swish": lambda g, x, order: g.Mul(*((x, g.Sigmoid(x)) if order % 2 else (g.Sigmoid(x), x))),
    "HardSwish": lambda g, x, order: g.Mul(*((x, g.HardSigmoid(x, alpha=1 / 6)) if order % 2 else
                                             (g.HardSigmoid(x, alpha=1 / 6), x))),
    "HardSwish of a clipped sum": _hard_swish,
    "Sum": lambda g, x, order: g.Sum(*[x] * (order + 2)),
}  # fmt: skip
ONE = {"Gelu with tanh": "Gelu", "HardSwish of a clipped sum": "HardSwish", "Sum": "Add"}


@pytest.mark.parametrize("order", range(4))
@pytest.mark.parametrize("kind", WRITTEN_OUT)
def test_what_exporters_write_out_becomes_one_operator(kind: str, order: int) -> None:
    g = GraphBuilder()
    x = g.input("x", f32(2, 3, 6))
    graph = g.graph([WRITTEN_OUT[kind](g, x, order)])
    feeds = {"x": np.random.default_rng(0).standard_normal((2, 3, 6)).astype(np.float32)}
    made = prune(rewrite(infer(graph), CANONICAL))
    assert {n.op for n in made.nodes} == {ONE.get(kind, kind)}
    assert len(made.nodes) == (order + 1 if kind == "Sum" else 1)
    (got,), (want,) = (evaluate(some, feeds).values() for some in (made, graph))
    assert np.abs(got - want).max() <= 1e-6 * np.abs(want).max()


def test_padding_goes_into_the_window() -> None:
    g = GraphBuilder()
    x, w = g.input("x", f32(1, 2, 5, 5)), g.const(np.ones((3, 2, 3, 3), np.float32))
    padded = g.Pad(x, g.const([0, 0, 1, 0, 0, 0, 2, 1]))
    graph = g.graph([g.Conv(padded, w, pads=(0, 1, 0, 1))])
    made = prune(rewrite(infer(graph), CANONICAL))
    assert [n.op for n in made.nodes] == ["Conv"]
    assert made.nodes[0].attrs["pads"] == (1, 1, 2, 2)
    for mode, filling in (("reflect", 0), ("constant", 1)):
        g = GraphBuilder()
        padded = g.Pad(
            g.input("x", f32(1, 2, 5, 5)), g.const([0, 0, 1, 0, 0, 0, 2, 1]), g.const(np.float32(filling)), mode=mode
        )
        declined: list[RewriteDeclined] = []
        kept = rewrite(
            infer(g.graph([g.Conv(padded, g.const(np.ones((3, 2, 3, 3), np.float32)))])), CANONICAL, declined
        )
        assert [n.op for n in kept.nodes] == ["Pad", "Conv"]
        assert any("not of zeros" in d.reason for d in declined)


@pytest.mark.parametrize("biased", [False, True])
def test_separate_patches_are_a_convolution_of_pixels(biased: bool) -> None:
    g, rng = GraphBuilder(), np.random.default_rng(0)
    x, w = g.input("x", f32(2, 5, 3, 4)), g.const(rng.random((5, 2, 3, 2), np.float32))
    bias = [g.const(rng.random(2, np.float32))] if biased else []
    graph = g.graph([g.ConvTranspose(x, w, *bias, strides=(3, 2)), g.ConvTranspose(x, w, *bias, strides=(2, 2))])
    made = prune(rewrite(infer(graph), CANONICAL))
    assert [n.op for n in made.nodes] == ["Conv", "Reshape", "Transpose", "Reshape", "ConvTranspose"]
    feeds = {"x": rng.random((2, 5, 3, 4), np.float32)}
    for got, want in zip(evaluate(made, feeds).values(), evaluate(graph, feeds).values(), strict=True):
        assert np.abs(got - want).max() <= 1e-6 * np.abs(want).max()


@pytest.mark.parametrize(
    ("size", "kernel", "attrs", "left"),
    [
        ((1, 4), (3, 3), {"pads": (1, 1, 1, 1)}, (1, 3)),
        ((2, 2), (3, 5), {"pads": (1, 2, 1, 2), "strides": (2, 2)}, (2, 2)),
        ((3, 1), (2, 3), {"pads": (0, 2, 0, 2), "dilations": (1, 2)}, (2, 1)),
        ((5, 5), (3, 3), {"pads": (1, 1, 1, 1)}, (3, 3)),
    ],
)
def test_taps_that_see_only_padding_go(size: Any, kernel: Any, attrs: dict[str, Any], left: Any) -> None:
    g, rng = GraphBuilder(), np.random.default_rng(0)
    w = g.const(rng.random((3, 2, *kernel), np.float32))
    graph = g.graph([g.Conv(g.input("x", f32(1, 2, *size)), w, **attrs)])
    made = infer(prune(rewrite(infer(graph), CANONICAL)))
    assert made.initializers[made.nodes[0].inputs[1]].shape == (3, 2, *left)
    feeds = {"x": rng.random((1, 2, *size), np.float32)}
    (got,), (want,) = evaluate(made, feeds).values(), evaluate(graph, feeds).values()
    assert got.shape == want.shape
    assert np.abs(got - want).max() <= 1e-6 * np.abs(want).max()


def test_constant_scales_and_shifts_go_into_the_convolution() -> None:
    g, rng = GraphBuilder(), np.random.default_rng(0)
    y = g.Conv(g.input("x", f32(1, 3, 5, 5)), g.const(rng.random((4, 3, 3, 3), np.float32)))
    y = g.Mul(g.const(rng.random((4, 1, 1), np.float32)), y)
    y = g.Div(g.Sub(y, g.const(np.float32(0.5))), g.const(rng.random((1, 4, 1, 1), np.float32) + np.float32(1)))
    graph = g.graph([g.Add(y, g.const(rng.random((1, 1, 1, 3), np.float32)))])  # the last is no number for a channel
    made = infer(graph)
    for _ in range(4):
        made = infer(prune(rewrite(made, BATCHNORM)))
    assert [n.op for n in made.nodes] == ["Conv", "Add"]
    feeds = {"x": rng.random((1, 3, 5, 5), np.float32)}
    for got, want in zip(evaluate(made, feeds).values(), evaluate(graph, feeds).values(), strict=True):
        assert np.abs(got - want).max() <= 1e-5 * np.abs(want).max()


@pytest.mark.parametrize("op", ["Conv", "ConvTranspose"])
@pytest.mark.parametrize("group", [1, 2])
def test_batch_normalisation_goes_into_the_convolution(op: str, group: int) -> None:
    rng = np.random.default_rng(0)

    def random(*shape: int) -> str:
        return g.const(rng.random(shape, np.float32) + np.float32(0.5))

    g = GraphBuilder()
    x = g.input("x", f32(1, 4, 5, 5))
    w = random(6, 4 // group, 3, 3) if op == "Conv" else random(4, 6 // group, 3, 3)
    y = g.op(op, x, w, *([random(6)] if group == 1 else []), group=group)
    alone = g.BatchNormalization(x, *(random(4) for _ in range(4)))
    graph = g.graph([g.BatchNormalization(y, *(random(6) for _ in range(4))), alone])
    made = prune(rewrite(infer(graph), BATCHNORM))
    assert {n.op for n in made.nodes} == {op, "Mul", "Add"}
    feeds = {"x": rng.standard_normal((1, 4, 5, 5)).astype(np.float32)}
    for got, want in zip(evaluate(made, feeds).values(), evaluate(graph, feeds).values(), strict=True):
        assert np.abs(got - want).max() <= 1e-5 * np.abs(want).max()


def test_values_that_somebody_else_reads_end_a_chain() -> None:
    g = GraphBuilder()
    x = g.input("x", f32(2, 3))
    a = g.Abs(x)
    b = g.Sqrt(a)
    c = g.Exp(b)
    graph = infer(g.graph([g.Neg(c), b]))
    ends: list[Stopped] = []
    fused = fuse_chains(graph, lambda around, node: "too long" if len(node.attrs["chain"]) > 2 else None, (), ends)
    assert [n.op for n in fused.nodes] == ["Fused", "Fused"]
    assert [[link[1] for link in n.attrs["chain"]] for n in fused.nodes] == [["Abs", "Sqrt"], ["Exp", "Neg"]]
    assert fuse_chains(graph, lambda around, node: None, {a, c}).nodes == graph.nodes
    assert not ends


def test_what_a_chain_reads_twice_is_not_overwritten() -> None:
    rng = np.random.default_rng(0)
    for own in (True, False):
        g = GraphBuilder()
        x, y = g.Relu(g.input("x", f32(1, 8, 5, 5))), g.Exp(g.input("y", f32(1, 8, 5, 5)))
        z = g.Add(g.Conv(x, g.const(rng.random((8, 8, 3, 3), np.float32)), pads=(1, 1, 1, 1)), x if own else y)
        graph = g.graph([z, g.Neg(y)] if own else [z])
        feeds = {n: rng.standard_normal((1, 8, 5, 5)).astype(np.float32) for n in graph.inputs}
        fused = fuse_chains(
            infer(graph), lambda _, node: None if node.attrs["chain"][0][1] == "Conv" else "another anchor"
        )
        (conv,) = (n for n in fused.nodes if n.op == "Fused" and n.attrs["chain"][0][1] == "Conv")
        assert ("overwrites" in conv.attrs) != own
        for name, want in evaluate(graph, feeds).items():
            got = Session(graph).run(feeds)[name]
            assert np.abs(got - want).max() <= 1e-5 * np.abs(want).max()


def test_names_of_new_values_are_their_own() -> None:
    """A model whose values are called as a rule calls its own keeps them."""

    def net(scale: str, scaled: str) -> Graph:
        g = GraphBuilder("net")
        x, s = g.input("x", f32(2, 3, 4, 4)), g.input(scale, f32(3, 1, 1))
        g.add(Node("Exp", (x,), (scaled,)))
        numbers = (g.const(np.array(a, np.float32)) for a in ([1, 2, 3], [0.5, 0, 1], [0, 1, 2], [1, 4, 9]))
        g.add(Node("BatchNormalization", (x, *numbers), ("y",)))
        return g.graph([g.Add(g.Mul("y", s), scaled)])

    rng = np.random.default_rng(0)
    x, s = rng.standard_normal((2, 3, 4, 4)).astype(np.float32), rng.standard_normal((3, 1, 1)).astype(np.float32)
    want = Session(net("s", "e"))(x, s)
    np.testing.assert_array_equal(Session(net("y:scale", "y:scaled"))(x, s), want)
