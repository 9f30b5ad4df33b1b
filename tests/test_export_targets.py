"""Whole networks at one opset after another, and operators of ours as functions: what leaves is what runs elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import onnx
import pytest

from mezzo import Trainer, grad
from mezzo.exporters import to_onnx
from mezzo.exporters.lower import is_composed
from mezzo.importers import load_onnx
from mezzo.models.convnets import random_weights, resnet50
from mezzo.models.digits import digits_model, held_out
from mezzo.ops import OPS, DType, Op, Tensor
from mezzo.ops.errors import UnsupportedModel
from mezzo.ops.types import f32
from mezzo.runtime.execution.session import Session
from mezzo.runtime.ir.graph import Graph, GraphBuilder, Node
from mezzo.runtime.ir.interpreter import evaluate
from mezzo.runtime.optimizer import SGD, Adam

from .graphs import hosted, sample_graph
from .models import ort_run
from .networks import batch_for, encoder, lstm, mlp
from .test_bodies import ORT_DIFFERS, close

Array = np.ndarray[Any, Any]


def near(found: dict[str, Array], wanted: dict[str, Array], tolerance: float = 1e-4) -> None:
    """Equal within a part of the largest element."""
    assert list(found) == list(wanted)
    for name, want in wanted.items():
        assert found[name].shape == want.shape
        got = np.asarray(found[name], np.float64)
        assert np.abs(got - want).max(initial=0) <= tolerance * np.abs(want).max(initial=0), name


# Networks


def tuned_digits() -> Graph:
    """The model that reads digits, after some more lessons."""
    found = held_out()
    trainer = Trainer(digits_model(), optimizer=SGD(rate=0.01, momentum=0.9))
    for i in range(0, 96, 32):
        trainer.step({"image": found.inputs[i : i + 32], "target": found.labels[i : i + 32]})
    learned: Graph = trainer.graph()
    return learned


NETWORKS: dict[str, Callable[[], Graph]] = {
    "resnet50": lambda: resnet50("n", random_weights(), side=32),
    "encoder": encoder,
    "lstm": lstm,
    "digits": tuned_digits,
}


@cache
def network(name: str) -> tuple[Graph, dict[str, Array], dict[str, Array]]:
    """A network, a batch of two, and our answers."""
    graph = NETWORKS[name]()
    return graph, *asked(graph)


def asked(graph: Graph) -> tuple[dict[str, Array], dict[str, Array]]:
    rng = np.random.default_rng(5)
    (x,) = graph.inputs
    kind = graph.types[x]
    assert isinstance(kind, Tensor)
    assert isinstance(kind.shape[0], str), "an open batch"
    feeds = {x: rng.standard_normal((2, *(int(d or 0) for d in kind.shape[1:]))).astype(np.float32)}
    return feeds, Session(graph).run(feeds)


def kept(model: onnx.ModelProto, graph: Graph) -> None:
    """Names of inputs, outputs and weights are those of the graph; open dims have kept their names."""
    stored = {t.name for t in model.graph.initializer}
    assert tuple(i.name for i in model.graph.input if i.name not in stored) == graph.inputs
    assert tuple(o.name for o in model.graph.output) == graph.outputs
    floats = {n for n, a in graph.initializers.items() if a.ndim and a.dtype.kind == "f"}
    assert floats <= stored
    first = graph.types[graph.inputs[0]]
    assert isinstance(first, Tensor)
    assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_param == first.shape[0]


@pytest.mark.parametrize("opset", [13, 17, 21, 26])
@pytest.mark.parametrize("name", NETWORKS)
def test_networks_at_older_opsets(name: str, opset: int) -> None:
    graph, feeds, answers = network(name)
    made = to_onnx(graph, opset=opset)
    assert made.opset_import[0].version == opset
    assert {n.domain for n in made.graph.node} == {""}
    onnx.checker.check_model(made, full_check=True)
    kept(made, graph)
    near(ort_run(made, feeds), answers)


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_at_the_newest_opset(name: str) -> None:
    from onnx.reference import ReferenceEvaluator

    graph, feeds, answers = network(name)
    made = to_onnx(graph, opset=28)
    onnx.checker.check_model(made, full_check=True)
    kept(made, graph)
    near(Session(load_onnx(made)).run(feeds), answers)
    found = ReferenceEvaluator(made).run(None, feeds)
    assert isinstance(found, list)
    near(dict(zip(graph.outputs, found, strict=True)), answers)


@pytest.mark.soak
@pytest.mark.parametrize("opset", [13, 17, 21, 26])
def test_resnet50_at_its_size(opset: int) -> None:
    graph = resnet50("n", random_weights())
    feeds, answers = asked(graph)
    made = to_onnx(graph, opset=opset)
    onnx.checker.check_model(made, full_check=True)
    near(ort_run(made, feeds), answers)


def test_every_opset_in_between() -> None:
    graph, feeds, answers = network("encoder")
    for opset in range(9, 27):  # below, there is no Erf
        made = to_onnx(graph, opset=opset)
        assert made.opset_import[0].version == opset
        near(ort_run(made, feeds), answers)


# The version of the IR


def relu() -> Graph:
    g = GraphBuilder("net")
    return g.graph([g.Relu(g.input("x", f32(2)))])


def floats_of_eight_bits() -> Graph:
    g = GraphBuilder("net")
    return g.graph([g.Cast(g.input("x", f32(2)), to=DType.FLOAT8E4M3FN.onnx)])


@pytest.mark.parametrize("ir", range(3, 15))
def test_the_ir_version_is_the_one_that_was_asked_for(ir: int) -> None:
    made = to_onnx(relu(), ir_version=ir)
    onnx.checker.check_model(made)
    assert (made.ir_version, made.opset_import[0].version) == (ir, 7)


@pytest.mark.parametrize(
    ("graph", "opset", "ir", "reason"),
    [
        (relu, 21, 9, r"IR version 9 cannot hold the model, because of opset 21 \(10\)"),
        (relu, 28, 13, r"because of opset 28 \(14\)"),
        (floats_of_eight_bits, None, 8, r"because of .*elements of type float8_e4m3fn \(9\)"),
        (relu, None, 2, "IR version 2 is not written"),
        (relu, None, 15, "IR version 15 is not written"),
        (relu, 29, None, "opset 29 is not written"),
        (relu, 6, None, "opset 6 is not written"),
    ],
)
def test_versions_that_do_not_go_together(
    graph: Callable[[], Graph], opset: int | None, ir: int | None, reason: str
) -> None:
    with pytest.raises(UnsupportedModel, match=reason) as caught:
        to_onnx(graph(), opset=opset, ir_version=ir)
    assert caught.value.hint


def test_states_need_an_ir_in_which_first_values_may_be_given() -> None:
    g = GraphBuilder("net")
    count = g.state("count", np.float32(5))
    g.update("count", g.Add(count, g.input("x", f32())))
    with pytest.raises(UnsupportedModel, match=r"states, whose first values may be given \(4\)"):
        to_onnx(g.graph([g.Neg(count)]), ir_version=3)


# Functions


def derivative() -> tuple[Graph, dict[str, Array]]:
    """The gradients of three convolutions, two of which differ in sizes only."""
    g = GraphBuilder("net")
    x = g.input("x", f32("n", 2, 9, 9))
    weights = [g.input(f"w{i}", f32(*shape)) for i, shape in enumerate([(3, 2, 3, 3), (4, 3, 2, 2), (2, 4, 3, 3)])]
    y = g.Conv(x, weights[0])
    y = g.Conv(g.Conv(y, weights[1]), weights[2], strides=[2, 2])
    loss = g.ReduceSum(g.Mul(y, y), keepdims=0)
    made = grad(g.graph([loss]), loss, ["x", *weights])
    rng = np.random.default_rng(3)
    sizes = {"x": (2, 2, 9, 9), "w0": (3, 2, 3, 3), "w1": (4, 3, 2, 2), "w2": (2, 4, 3, 3)}
    return made, {n: rng.standard_normal(s).astype(np.float32) for n, s in sizes.items()}


def words(graph: Graph) -> list[Any]:
    return [(n.op, n.domain, n.inputs, n.outputs, {a: v for a, v in n.attrs.items() if v is not None})
            for n in graph.nodes]  # fmt: skip


def test_one_function_for_equal_attributes_ranks_and_types() -> None:
    graph, feeds = derivative()
    made = to_onnx(graph)
    onnx.checker.check_model(made, full_check=True)
    assert made.ir_version == 8
    calls = [n.op_type for n in made.graph.node if n.domain == "mezzo"]
    assert calls == ["ConvGradInput", "ConvGradWeights", *["ConvGradInput_2", "ConvGradWeights_2"] * 2]
    assert sorted(f.name for f in made.functions) == sorted(set(calls))
    assert all(f.doc_string for f in made.functions)
    answers = evaluate(graph, feeds)
    near(ort_run(made, feeds), answers)
    again = load_onnx(made)
    assert words(again) == words(graph)
    near(Session(again).run(feeds), answers)
    assert to_onnx(again).functions == made.functions


@pytest.mark.parametrize(
    ("how", "functions"),
    [
        ({}, True),
        ({"opset": 18}, True),
        ({"opset": 18, "ir_version": 8}, True),
        ({"standard": True}, False),
        ({"opset": 14, "ir_version": 8}, True),
        ({"opset": 14}, False),
        ({"ir_version": 7, "opset": 14}, False),
    ],
    ids=str,
)
def test_bodies_stand_in_place_where_the_target_has_no_functions(how: dict[str, Any], functions: bool) -> None:
    """Of one loss, so that the bodies need no more than opset 14."""
    g = GraphBuilder("net")
    x = g.input("x", f32("n", 4))
    loss = g.ReduceSum(g.Mul(g.Gelu(x), g.Softmax(x)), keepdims=0)
    graph = grad(g.graph([loss]), loss, ["x"])
    assert any(n.domain == "mezzo" for n in graph.nodes)
    made, feeds = to_onnx(graph, **how), {"x": np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)}
    onnx.checker.check_model(made, full_check=True)
    assert bool(made.functions) == functions == ("mezzo" in {o.domain for o in made.opset_import})
    near(ort_run(made, feeds), evaluate(graph, feeds))


@pytest.mark.parametrize("name", ["mlp", "lstm"])
def test_a_training_step_both_ways(name: str) -> None:
    """As functions and written out, the step says what ours says; read again, it has our operators."""
    made = Trainer({"mlp": mlp, "lstm": lstm}[name](), optimizer=Adam(rate=0.01), clip_norm=1.0).graph_of_step
    feeds = batch_for({"mlp": mlp, "lstm": lstm}[name](), 0)
    wanted = evaluate(made, feeds)
    names = [*wanted, *(s.output for s in made.states)]
    called, inlined = to_onnx(made), to_onnx(made, standard=True)
    assert {"Update"} <= {f.name for f in called.functions}
    assert not inlined.functions
    again = load_onnx(called)
    assert [(n.op, n.domain) for n in again.nodes] == [(n.op, n.domain) for n in made.nodes]
    theirs = ort_run(called, feeds)
    for other in (ort_run(inlined, feeds), evaluate(again, feeds)):
        for n in names:
            np.testing.assert_allclose(other[n], theirs[n], rtol=1e-4, atol=1e-5, err_msg=n)
    for n, want in wanted.items():
        np.testing.assert_allclose(theirs[n], want, rtol=1e-4, atol=1e-5, err_msg=n)


def complex_(o: Op) -> bool:
    return any(isinstance(x, np.ndarray) and x.dtype.kind == "c" for x in o.samples[0].inputs)


def composed() -> list[Any]:
    """The first sample of each operator that ONNX never had."""
    found = [o for o in OPS.values() if o.body_rule and is_composed(Node(o.name, (), (), domain=o.domain))]
    ours = [o for o in found if o.domain == "mezzo" and not hosted(o, o.samples[0])]
    # no operator of ONNX takes complex numbers apart
    return [pytest.param(o, id=o.name) for o in ours if not complex_(o)]


@pytest.mark.parametrize("o", composed())
def test_each_operator_of_ours_comes_back_from_its_function(o: Op) -> None:
    assert "_" not in o.name, "what stands behind one is the number of a function"
    graph, feeds = sample_graph(o, o.samples[0], fed="types")
    made = to_onnx(graph)
    onnx.checker.check_model(made)
    assert o.name in [f.name for f in made.functions]  # beside those that its body calls
    again, wanted = load_onnx(made), evaluate(graph, feeds)
    if o.name == "Fused":  # a chain of operators is no attribute that ONNX has: its links come back
        assert [n.op for n in again.nodes] == [link[1] for link in graph.nodes[0].attrs["chain"]]
    elif o.name == "Recurrence":
        assert [n.op for n in again.nodes] == ["Scan"]
    else:
        assert [(n.op, n.domain) for n in again.nodes] == [(o.name, "mezzo")]
    close(evaluate(again, feeds), wanted, "read again")
    if (o.name, 0) not in ORT_DIFFERS:
        close(ort_run(made, feeds), wanted, "in ONNX Runtime")


def test_a_function_of_an_unknown_name_is_read_by_its_body() -> None:
    graph, feeds = derivative()
    made = to_onnx(graph)
    for holder in (made.graph.node, *(f.node for f in made.functions)):
        for n in holder:
            n.op_type = n.op_type.replace("ConvGrad", "Other")
    for f in made.functions:
        f.name = f.name.replace("ConvGrad", "Other")
    again = load_onnx(made)
    assert {n.domain for n in again.nodes} == {""}
    near(Session(again).run(feeds), evaluate(graph, feeds))


def test_a_function_that_does_not_say_what_its_operator_needs_is_read_by_its_body() -> None:
    g = GraphBuilder("net")
    sample = OPS["mezzo", "ConvReluPool"].samples[0]
    x, w, b = (g.input(n, t) for n, t in zip("xwb", sample.inputs, strict=True) if isinstance(t, Tensor))
    made = to_onnx(g.graph([g.ConvReluPool(x, w, b, domain="mezzo", **sample.attrs)]))
    assert [n.op for n in load_onnx(made).nodes] == ["ConvReluPool"]
    del made.functions[0].attribute[:]
    del made.graph.node[0].attribute[:]
    assert [n.op for n in load_onnx(made).nodes] == ["Conv", "Relu", "MaxPool"]


def test_functions_inside_of_subgraphs_and_of_functions() -> None:
    """The body of an If calls a function; one of another domain keeps its own."""
    graph, feeds = derivative()
    g = GraphBuilder("net")
    taken = g.input("taken", Tensor(DType.BOOL, ()))
    dy, w = g.input("dy", f32(1, 3, 4, 4)), g.input("w", f32(3, 2, 3, 3))
    shape = g.const(np.array([1, 2, 6, 6]))
    inner = g.ConvGradInput(dy, w, shape, domain="mezzo")
    graph = g.graph([inner])
    (call,) = graph.nodes
    branch = Graph((), ("t",), (Node("ConvGradInput", call.inputs, ("t",), {}, "mezzo"),))
    other = Graph((), ("e",), (Node("Neg", ("t0",), ("e",)),), {"t0": np.zeros((1, 2, 6, 6), np.float32)})
    whole = graph.but(
        nodes=(Node("If", (taken,), ("y",), {"then_branch": branch, "else_branch": other}),),
        outputs=("y",),
        types={**graph.types, "y": f32(1, 2, 6, 6)},
    )
    made = to_onnx(whole)
    onnx.checker.check_model(made, full_check=True)
    assert [f.name for f in made.functions] == ["ConvGradInput"]
    rng = np.random.default_rng(0)
    feeds = {"taken": np.array(True), "dy": rng.standard_normal((1, 3, 4, 4)).astype(np.float32),
             "w": rng.standard_normal((3, 2, 3, 3)).astype(np.float32)}  # fmt: skip
    near(ort_run(made, feeds), evaluate(whole, feeds))
