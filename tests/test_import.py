"""ONNX files as graphs: names, functions, subgraphs, tensors of every element type, opsets."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper
import pytest

from mezzo.importers import load_onnx, operators_of
from mezzo.importers.build import Build
from mezzo.importers.tensors import TensorReader
from mezzo.importers.types import type_from
from mezzo.ops import OPS, OPSETS, DType, Map, Optional, Sequence, Tensor, op
from mezzo.ops.budget import Budget
from mezzo.ops.errors import BudgetError, ModelError, UnsupportedModel
from mezzo.runtime.ir.graph import Graph
from mezzo.runtime.ir.interpreter import evaluate

from .models import BOOL, FLOAT, INT64, Real, model, node, ort_run, real_models, referee, subgraph, value

Array = np.ndarray[Any, Any]


def agrees(proto: onnx.ModelProto, feeds: dict[str, Array]) -> Graph:
    """The graph of a model, after its answers were found equal to those of ONNX Runtime."""
    graph = load_onnx(proto).verify()
    ours, theirs = evaluate(graph, feeds), ort_run(proto, feeds)
    assert ours.keys() == theirs.keys()
    for name, array in theirs.items():
        np.testing.assert_allclose(ours[name], array, rtol=1e-5, atol=1e-6)
    return graph


def names_of(graph: Graph) -> list[str]:
    """Every name that the graph and its subgraphs define."""
    inner = [n for _, made in graph.walk() for body in made.bodies.values() for n in body.defined()]
    return [*graph.defined(), *inner]


@real_models
def test_real_models_keep_their_nodes_and_names(real: Real) -> None:
    proto, graph = onnx.load(str(real.path())), load_onnx(real.path()).verify()
    assert [(n.name, list(n.outputs)) for n in graph.nodes] == [(n.name, list(n.output)) for n in proto.graph.node]
    assert list(graph.outputs) == [o.name for o in proto.graph.output]
    stored = {t.name: onnx.numpy_helper.to_array(t) for t in proto.graph.initializer}
    assert list(graph.inputs) == [i.name for i in proto.graph.input if i.name not in stored]
    for name, array in stored.items():
        np.testing.assert_array_equal(graph.initializers[name], array)
    assert graph.opsets == {o.domain: o.version for o in proto.opset_import}
    assert graph.nodes[0].where.startswith(f"{real.path().name}: node 0 {graph.nodes[0].name!r} (")
    assert len(names_of(graph)) == len(set(names_of(graph)))


def test_onnx_is_imported_only_when_a_file_is_opened() -> None:
    line = "import sys, mezzo, mezzo.importers, mezzo.exporters; sys.exit('onnx' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", line], check=False).returncode == 0


def test_sources(tmp_path: Path) -> None:
    proto = model([node("Relu", "x", "y")], [value("x", 2)], [value("y", 2)])
    path = tmp_path / "m.onnx"
    onnx.save(proto, str(path))
    for source in (path, str(path), path.read_bytes(), proto):
        assert load_onnx(source).outputs == ("y",)
    assert load_onnx(path).nodes[0].where == "m.onnx: node 0 '' (Relu)"


def test_words_of_the_file_are_kept() -> None:
    proto = model([node("Relu", "x", "y", name="r")], [value("x", "n", None, 3)], [value("y", "n", None, 3)])
    proto.doc_string = "what it does"
    proto.metadata_props.add(key="author", value="somebody")
    graph = load_onnx(proto)
    assert (graph.doc, graph.metadata, graph.ir_version) == ("what it does", {"author": "somebody"}, 8)
    assert graph.types["x"] == Tensor(DType.FLOAT, ("n", None, 3))


@pytest.mark.parametrize("dim", ["", "?", "-1", -1])
def test_dims_that_mean_unknown(dim: str | int) -> None:
    graph = load_onnx(model([node("Relu", "x", "y")], [value("x", dim)], [value("y", None)]))
    assert graph.types["x"] == Tensor(DType.FLOAT, (None,))


def test_types_that_are_no_tensors() -> None:
    tensor = onnx.helper.make_tensor_type_proto(FLOAT, [2])
    assert type_from(onnx.helper.make_sequence_type_proto(tensor), "") == Sequence(Tensor(DType.FLOAT, (2,)))
    assert type_from(onnx.helper.make_optional_type_proto(tensor), "") == Optional(Tensor(DType.FLOAT, (2,)))
    assert type_from(onnx.helper.make_map_type_proto(INT64, tensor), "") == Map(DType.INT64, Tensor(DType.FLOAT, (2,)))
    assert type_from(onnx.TypeProto(), "") is None


# Attributes


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An operator of a domain of its own that keeps whatever attributes it gets."""

    def keep(k: Any, x: Any) -> Any:
        return x

    monkeypatch.setitem(OPSETS, "test", 1)
    op("Keep", domain="test", since=1)(keep)
    yield
    del OPS["test", "Keep"]


@pytest.mark.usefixtures("recorded")
def test_attributes_by_kind() -> None:
    given: dict[str, Any] = {
        "f": 1.5,
        "i": 3,
        "s": "text",
        "raw": b"\xff",
        "fs": [1.0, 2.0],
        "is_": [1, 2],
        "ss": ["a", "b"],
    }
    kept = node("Keep", "x", "y", domain="test", **given, t=onnx.numpy_helper.from_array(np.arange(3)))
    graph = load_onnx(model([kept], [value("x", 1)], [value("y", 1)], domains={"test": 1}))
    attrs = dict(graph.nodes[0].attrs)
    assert attrs.pop("t").tolist() == [0, 1, 2]
    assert attrs == {**given, "fs": (1.0, 2.0), "is_": (1, 2), "ss": ("a", "b")}


# Tensors

ELEMENTS = [d for d in DType if d is not DType.STRING]


@pytest.mark.parametrize("dtype", ELEMENTS, ids=str)
@pytest.mark.parametrize("raw", [True, False], ids=["raw", "fields"])
@pytest.mark.parametrize("count", [0, 1, 5])
def test_every_element_type(dtype: DType, raw: bool, count: int) -> None:
    least = 2 if dtype is DType.FLOAT8E8M0 else 0  # which has no zero
    kind, flat = dtype.onnx, [least, 1, 1, least, 1][:count]
    array = np.array(flat, np.int64).astype(dtype.numpy)
    made = onnx.numpy_helper.from_array(array) if raw else onnx.helper.make_tensor("", kind, [count], flat)
    assert made.HasField("raw_data") is raw
    read = TensorReader("m", None, Budget()).read(made)
    assert read.dtype == array.dtype
    assert read.tobytes() == array.tobytes()
    assert not read.flags.writeable


def test_narrow_integers_keep_their_sign() -> None:
    for kind in (ml_dtypes.int4, ml_dtypes.int2):
        least = -8 if kind is ml_dtypes.int4 else -2
        array = np.array([least, -1, 0, 1, -1]).astype(kind)
        read = TensorReader("m", None, Budget()).read(onnx.numpy_helper.from_array(array))
        assert read.astype(int).tolist() == [least, -1, 0, 1, -1]


def test_strings_and_raw_bytes_without_copies() -> None:
    reader = TensorReader("m", None, Budget())
    words = reader.read(onnx.numpy_helper.from_array(np.array([["a", "ä"]], object)))
    assert words.tolist() == [["a", "ä"]]
    assert words.dtype == object
    floats = reader.read(onnx.numpy_helper.from_array(np.arange(4, dtype=np.float32)))
    assert floats.base is not None


@pytest.mark.parametrize("flat", [True, False])
def test_sparse_initialisers_become_dense(flat: bool) -> None:
    values = onnx.numpy_helper.from_array(np.array([5, 7], np.float32), "w")
    at = np.array([1, 5]) if flat else np.array([[0, 1], [1, 2]])
    proto = model([node("Add", "x w", "y")], [value("x", 2, 3)], [value("y", 2, 3)])
    proto.graph.sparse_initializer.append(
        onnx.helper.make_sparse_tensor(values, onnx.numpy_helper.from_array(at, "at"), [2, 3])
    )
    assert load_onnx(proto).initializers["w"].tolist() == [[0, 5, 0], [0, 0, 7]]


# Initialisers and inputs


@pytest.mark.parametrize(("ir", "inputs"), [(3, ("x",)), (4, ("x", "w")), (8, ("x", "w"))])
def test_initialisers_that_are_inputs(ir: int, inputs: tuple[str, ...]) -> None:
    weights = {"w": np.ones(2, np.float32)}
    proto = model([node("Add", "x w", "y")], [value("x", 2), value("w", 2)], [value("y", 2)], opset=8, ir=ir,
                  initializers=weights)  # fmt: skip
    graph = load_onnx(proto)
    assert graph.inputs == inputs
    assert set(graph.initializers) == {"w"}


def test_external_data_are_mapped_not_copied(tmp_path: Path) -> None:
    weights: dict[str, Array] = {"w": np.arange(300, dtype=np.float32), "b": np.arange(300, dtype=np.int64)}
    proto = model([node("Add", "x w", "y")], [value("x", 300)], [value("y", 300)], initializers=weights)
    onnx.save(proto, str(tmp_path / "m.onnx"), save_as_external_data=True, location="w.bin", size_threshold=0)
    graph = load_onnx(tmp_path / "m.onnx")
    for name, array in weights.items():
        read = graph.initializers[name]
        np.testing.assert_array_equal(read, array)
        base: Any = read
        while isinstance(base.base, np.ndarray):
            base = base.base
        assert isinstance(base, np.memmap)
        with pytest.raises(ValueError, match="read-only"):
            read[0] = 1


def test_external_data_in_a_folder_below_and_with_odd_offsets(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    packed = onnx.numpy_helper.from_array(np.arange(-3, 4).astype(ml_dtypes.int4), "w")
    (tmp_path / "data" / "w.bin").write_bytes(b"abc" + packed.raw_data)
    proto = model([node("Cast", "w", "y", to=FLOAT)], [], [value("y", 7)], opset=21, ir=10)
    proto.graph.initializer.append(external("w", "data/w.bin", [7], offset=3, length=4, kind=onnx.TensorProto.INT4))
    onnx.save(proto, str(tmp_path / "m.onnx"))
    assert load_onnx(tmp_path / "m.onnx").initializers["w"].astype(int).tolist() == list(range(-3, 4))


def external(name: str, location: str, dims: list[int], *, kind: int = FLOAT, **entries: int) -> onnx.TensorProto:
    """A tensor whose data lie in another file."""
    made = onnx.TensorProto(name=name, data_type=kind, dims=dims, data_location=onnx.TensorProto.EXTERNAL)
    for key, entry in {"location": location, **entries}.items():
        made.external_data.add(key=key, value=str(entry))
    return made


# Subgraphs


def branches(then: list[onnx.NodeProto], other: list[onnx.NodeProto], outputs: str) -> dict[str, onnx.GraphProto]:
    named = [value(n, None) for n in outputs.split()]
    return {"then_branch": subgraph(then, [], named), "else_branch": subgraph(other, [], named)}


def choice(bodies: dict[str, onnx.GraphProto], before: list[onnx.NodeProto], **extra: Any) -> onnx.ModelProto:
    inputs = [value("c", kind=BOOL), value("x", 2)]
    return model([*before, node("If", "c", "y", name="pick", **bodies)], inputs, [value("y", None)], **extra)


FEEDS = {"x": np.array([-1, 2], np.float32)}


@pytest.mark.parametrize("picked", [True, False])
def test_branches_read_outer_values_and_may_repeat_names(picked: bool) -> None:
    bodies = branches([node("Neg", "h", "r")], [node("Add", "h x", "r")], "r")
    graph = agrees(choice(bodies, [node("Relu", "x", "h")]), {"c": np.array(picked), **FEEDS})
    made = graph.nodes[1].bodies
    assert [b.outputs[0] for b in made.values()] == ["r", "r.1"]
    assert made["else_branch"].captures() == ("h", "x")
    assert made["then_branch"].nodes[0].where == "made: node 1 'pick' (If) then_branch: node 0 '' (Neg)"


def test_outputs_taken_directly_from_the_outer_scope() -> None:
    bodies = {"then_branch": subgraph([], [], [value("x", 2)]), "else_branch": subgraph([], [], [value("h", 2)])}
    graph = load_onnx(choice(bodies, [node("Relu", "x", "h")]))
    assert {a: b.outputs for a, b in graph.nodes[1].bodies.items()} == {"then_branch": ("x",), "else_branch": ("h",)}
    for picked, answer in ((True, [-1, 2]), (False, [0, 2])):
        assert evaluate(graph, {"c": np.array(picked), **FEEDS})["y"].tolist() == answer


def test_shadowed_names_are_told_apart() -> None:
    """The inputs of a body may have names of outer values; nodes in it may not define those again."""
    inner = [node("Add", "h x", "k"), node("Identity", "c", "d")]
    inputs = [value("i", kind=INT64), value("c", kind=BOOL), value("h", 2)]
    body = subgraph(inner, inputs, [value("d", kind=BOOL), value("k", 2)])
    nodes = [node("Neg", "x", "h"), node("Loop", "n c h", "y", body=body)]
    given = [value("n", kind=INT64), value("c", kind=BOOL), value("x", 2)]
    feeds = {"n": np.array(3), "c": np.array(True), **FEEDS}
    graph = agrees(model(nodes, given, [value("y", 2)]), feeds)
    made = graph.nodes[1].bodies["body"]
    assert made.inputs == ("i", "c.1", "h.1")
    assert made.nodes[0].inputs == ("h.1", "x")
    twice = {"then_branch": subgraph([node("Neg", "x", "h")], [], [value("h", 2)])}
    twice["else_branch"] = twice["then_branch"]
    with pytest.raises(ModelError, match="'h' has been used as output names multiple times"):
        load_onnx(choice(twice, [node("Relu", "x", "h")]))


def test_names_used_later_at_the_top_stay() -> None:
    bodies = branches([node("Neg", "x", "late")], [node("Relu", "x", "late")], "late")
    proto = choice(bodies, [])
    proto.graph.node.append(node("Neg", "y", "late"))
    proto.graph.output[0].name = "late"
    graph = load_onnx(proto).verify()
    assert graph.outputs == ("late",)
    assert [b.outputs for b in graph.nodes[0].bodies.values()] == [("late.1",), ("late.2",)]


def test_subgraphs_have_initialisers_of_their_own() -> None:
    body = subgraph([node("Add", "x w", "r")], [], [value("r", None)])
    body.initializer.append(onnx.numpy_helper.from_array(np.ones(2, np.float32), "w"))
    graph = agrees(choice({"then_branch": body, "else_branch": body}, []), {"c": np.array(True), **FEEDS})
    assert [list(b.initializers) for b in graph.nodes[0].bodies.values()] == [["w"], ["w.1"]]


# Local functions


def function(
    name: str, inputs: str, outputs: str, nodes: list[onnx.NodeProto], *, opset: int = 17, **extra: Any
) -> onnx.FunctionProto:
    opsets = [onnx.helper.make_opsetid("", opset), onnx.helper.make_opsetid("own", 1)]
    return onnx.helper.make_function("own", name, inputs.split(), outputs.split(), nodes, opsets, **extra)


def calling(functions: list[onnx.FunctionProto], nodes: list[onnx.NodeProto], **extra: Any) -> onnx.ModelProto:
    return model(nodes, [value("x", 2)], [value("y", None)], domains={"own": 1}, functions=functions, **extra)


def test_functions_are_expanded_with_names_of_their_own() -> None:
    twice = function("Twice", "a", "b", [node("Add", "a a", "t"), node("Relu", "t", "b")])
    calls = [node("Twice", "x", "h", name="one", domain="own"), node("Twice", "h", "y", name="two", domain="own")]
    graph = agrees(calling([twice], calls), FEEDS)
    assert [(n.op, n.inputs, n.outputs) for n in graph.nodes] == [
        ("Add", ("x", "x"), ("one/t",)),
        ("Relu", ("one/t",), ("h",)),
        ("Add", ("h", "h"), ("two/t",)),
        ("Relu", ("two/t",), ("y",)),
    ]
    assert graph.nodes[0].where == "made: node 0 'one' (own::Twice): node 0 '' (Add)"


def test_functions_call_functions_and_stand_in_subgraphs() -> None:
    double = function("Double", "a", "b", [node("Add", "a a", "b")])
    quad = function("Quad", "a", "b", [node("Double", "a", "t", domain="own"), node("Double", "t", "b", domain="own")])
    bodies = branches([node("Quad", "x", "r", domain="own")], [node("Double", "x", "r", domain="own")], "r")
    proto = model([node("If", "c", "y", **bodies)], [value("c", kind=BOOL), value("x", 2)], [value("y", None)],
                  domains={"own": 1}, functions=[double, quad])  # fmt: skip
    for picked, answer in ((True, [-4, 8]), (False, [-2, 4])):
        graph = load_onnx(proto).verify()
        assert evaluate(graph, {"c": np.array(picked), **FEEDS})["y"].tolist() == answer


def test_function_attributes_by_reference_with_and_without_defaults() -> None:
    def leaky(name: str, ref: str) -> onnx.NodeProto:
        made = node("LeakyRelu", "a", "b")
        made.attribute.append(onnx.AttributeProto(name=name, ref_attr_name=ref, type=onnx.AttributeProto.FLOAT))
        return made

    default = onnx.helper.make_attribute("slope", 0.5)
    with_default = function("D", "a", "b", [leaky("alpha", "slope")], attribute_protos=[default])
    without = function("W", "a", "b", [leaky("alpha", "slope")], attributes=["slope"])
    outer = node("D", "a", "b", domain="own")  # passes its own attribute on
    outer.attribute.append(onnx.AttributeProto(name="slope", ref_attr_name="s", type=onnx.AttributeProto.FLOAT))
    passing = function("P", "a", "b", [outer], attributes=["s"])
    for call, alpha in (
        (node("D", "x", "y", domain="own"), 0.5),
        (node("D", "x", "y", domain="own", slope=0.25), 0.25),
        (node("W", "x", "y", domain="own", slope=0.25), 0.25),
        (node("W", "x", "y", domain="own"), None),
        (node("P", "x", "y", domain="own", s=0.75), 0.75),
    ):
        graph = agrees(calling([with_default, without, passing], [call]), FEEDS)
        assert graph.nodes[0].attrs.get("alpha") == alpha


def test_functions_have_opsets_of_their_own() -> None:
    old = function("Old", "a", "b", [node("ReduceSum", "a", "b", axes=[0], keepdims=0)], opset=11)
    proto = calling([old], [node("Old", "x", "y", domain="own")], opset=17)
    graph = Build(proto, "m", TensorReader("m", None, Budget())).build().verify()
    assert evaluate(graph, FEEDS)["y"] == 1
    assert "axes" not in graph.nodes[0].attrs
    with pytest.raises(ModelError, match="FunctionOp imports version 11"):  # ONNX wants its operators unchanged
        load_onnx(proto)
    same = function("Old", "a", "b", [node("Relu", "a", "b")], opset=15)
    agrees(calling([same], [node("Old", "x", "y", domain="own")], opset=17), FEEDS)


def test_functions_that_hand_an_input_through_or_get_none() -> None:
    handed = function("Hand", "a b", "c d", [node("Identity", "a", "d")])
    handed.output[0] = "a"
    graph = load_onnx(calling([handed], [node("Hand", "x -", "h y", domain="own")])).verify()
    assert [(n.op, n.inputs, n.outputs) for n in graph.nodes] == [
        ("Identity", ("x",), ("y",)),
        ("Identity", ("x",), ("h",)),
    ]
    clip = function("Limit", "a low", "b", [node("Clip", "a low", "b")])
    graph = agrees(calling([clip], [node("Limit", "x", "y", domain="own")]), FEEDS)
    assert graph.nodes[0].inputs == ("x", "")


# Opsets


def test_a_newer_opset_is_taken_if_its_operators_did_not_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OPSETS, "", 20)
    relu = model([node("Relu", "x", "y")], [value("x", 2)], [value("y", 2)], opset=21, ir=10)
    assert load_onnx(relu).opsets == {"": 21}
    flat = model([node("Flatten", "x", "y")], [value("x", 2)], [value("y", None, None)], opset=21, ir=10)
    with pytest.raises(UnsupportedModel, match=r"Flatten of opset 21 changed at opset 21.*as of opset 20"):
        load_onnx(flat)


def test_both_spellings_of_the_default_domain() -> None:
    proto = model([node("Relu", "x", "y")], [value("x", 2)], [value("y", 2)])
    proto.opset_import[0].domain = "ai.onnx"
    graph = load_onnx(proto)
    assert (graph.nodes[0].domain, graph.opsets) == ("", {"": 17})


def test_the_weights_may_exceed_what_a_protobuf_holds(tmp_path: Path) -> None:
    """A sparse file stands for 3 GiB of weights; nothing of it is read."""
    count = 3 << 28
    proto = model([node("Gather", "w i", "y")], [value("i", 2, kind=INT64)], [value("y", 2)])
    proto.graph.initializer.append(external("w", "w.bin", [count], length=4 * count))
    onnx.save(proto, str(tmp_path / "m.onnx"))
    with (tmp_path / "w.bin").open("wb") as file:
        file.truncate(4 * count)
    graph = load_onnx(tmp_path / "m.onnx")
    assert graph.initializers["w"].shape == (count,)


def test_budgets_name_value_limit_and_remedy() -> None:
    body: onnx.GraphProto = subgraph([node("Relu", "x", "r")], [], [value("r", None)])
    for depth in range(4):
        inner = [node("If", "c", f"r{depth}", then_branch=body, else_branch=body)]
        body = subgraph(inner, [], [value(f"r{depth}", None)])
    proto = choice({"then_branch": body, "else_branch": body}, [])
    load_onnx(proto)
    with pytest.raises(BudgetError, match="5 is more than the limit of 4") as caught:
        load_onnx(proto, budget=Budget(nesting=4))
    assert "Budget(nesting=5)" in caught.value.hint


def test_functions_that_double_at_each_level_are_counted_not_expanded() -> None:
    def level(n: int) -> onnx.FunctionProto:
        inner = f"F{n - 1}"
        calls = [node(inner, "a", "t", domain="own"), node(inner, "t", "b", domain="own")]
        return function(f"F{n}", "a", "b", calls if n else [node("Relu", "a", "b")])

    bomb = calling([level(n) for n in range(40)], [node("F39", "x", "y", domain="own")])
    with pytest.raises(BudgetError, match="nodes, functions expanded: 549755813888 is more"):
        load_onnx(bomb)


def test_recursive_functions_are_refused() -> None:
    one = function("One", "a", "b", [node("Two", "a", "b", domain="own")])
    two = function("Two", "a", "b", [node("One", "a", "b", domain="own")])
    with pytest.raises(ModelError, match="functions call themselves: One -> Two -> One"):
        load_onnx(calling([one, two], [node("One", "x", "y", domain="own")]))


def test_operators_of_a_model() -> None:
    nodes = [node("Relu", "x", "a"), node("Relu", "a", "b", name="r"), node("Relo", "b", "y")]
    used = operators_of(model(nodes, [value("x", 2)], [value("y", 2)]))
    assert [(u.domain, u.op, u.opset, u.count, bool(u.problem)) for u in used] == [
        ("", "Relu", 17, 2, False),
        ("", "Relo", 17, 1, True),
    ]
    assert used[1].first == "made: node 2 '' (Relo)"
    assert "Relu" in used[1].hint


def test_referee_is_there() -> None:
    """The comparisons above mean something only with ONNX Runtime; this is the place where its absence shows."""
    assert referee()
