"""Graphs as ONNX files: what came in goes out, at the lowest opset, in one piece or not at all."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.numpy_helper
import pytest
from google.protobuf.message import EncodeError  # type: ignore[import-untyped]

import mezzo
from mezzo.exporters import save_onnx, to_onnx
from mezzo.importers import load_onnx
from mezzo.importers.types import type_from
from mezzo.ops import OPS, Body, DType, Op, Sample, Tensor
from mezzo.ops.errors import InputError, ModelError, UnsupportedModel
from mezzo.ops.types import f32, i64
from mezzo.runtime.ir.graph import PRODUCER, SIGNATURE, Graph, GraphBuilder, Node
from mezzo.runtime.ir.interpreter import evaluate

from .graphs import sample_graph
from .models import LIGHT, Real, model, node, ort_run, real_models, value

Array = np.ndarray[Any, Any]


def attributes(made: onnx.NodeProto) -> dict[str, Any]:
    """Attributes as comparable values; subgraphs are compared node by node."""
    found: dict[str, Any] = {}
    for a in made.attribute:
        held = onnx.helper.get_attribute_value(a)
        if isinstance(held, onnx.GraphProto):
            found[a.name] = described(held)
        elif isinstance(held, onnx.TensorProto):
            array = onnx.numpy_helper.to_array(held)
            found[a.name] = (str(array.dtype), array.shape, array.tobytes())
        else:
            found[a.name] = list(held) if not isinstance(held, (int, float, bytes)) else held
    return found


def described(graph: onnx.GraphProto) -> list[tuple[Any, ...]]:
    """The nodes of a graph without the names of values, which may be made unique inside subgraphs."""
    return [(n.op_type, n.domain, n.name, len(n.input), len(n.output), attributes(n)) for n in graph.node]


def close(ours: dict[str, Array], theirs: dict[str, Array]) -> None:
    assert list(ours) == list(theirs)
    for name, array in theirs.items():
        np.testing.assert_allclose(ours[name], array, rtol=1e-3, atol=1e-3 * max(1.0, float(np.abs(array).max())))


@real_models
def test_real_models_leave_as_they_came(real: Real) -> None:
    before, after = onnx.load(str(real.path())), to_onnx(load_onnx(real.path()))
    onnx.checker.check_model(after)
    assert described(after.graph) == described(before.graph)
    assert [(list(n.input), list(n.output)) for n in after.graph.node] == [
        (list(n.input), list(n.output)) for n in before.graph.node
    ]
    assert [t.name for t in after.graph.initializer] == [t.name for t in before.graph.initializer]
    stored = {t.name for t in before.graph.initializer}
    for kind in ("input", "output"):
        then, now = (
            {i.name: type_from(i.type, "") for i in getattr(m.graph, kind) if i.name not in stored}
            for m in (before, after)
        )
        assert list(then) == list(now)
        assert then == now
    said, kept = ({p.key: p.value for p in m.metadata_props} for m in (before, after))
    assert kept.pop(PRODUCER, "") == f"{before.producer_name} {before.producer_version}".strip()
    kept.pop(SIGNATURE, "")  # what PyTorch's exporter says of the graph itself, for whoever trains the file again
    assert kept == said
    assert (after.producer_name, after.producer_version) == ("mezzo", mezzo.__version__)
    assert (after.domain, after.model_version) == (before.domain, before.model_version)
    assert after.doc_string == before.doc_string or before.graph.doc_string
    assert after.ir_version <= before.ir_version
    assert after.opset_import[0].version <= before.opset_import[0].version
    feeds = real.feeds()
    answers = ort_run(after, feeds)
    theirs = dict(zip(answers, real.expected(), strict=True)) if real in LIGHT else ort_run(real.path(), feeds)
    close(answers, theirs)


# The lowest opset


def built(name: str, *types: Tensor, outputs: int = 1, **attrs: Any) -> Graph:
    g = GraphBuilder()
    names = [g.input(f"x{i}", t) for i, t in enumerate(types)]
    made = g.op(name, *names, outputs=outputs, **attrs)
    return g.graph([made] if outputs == 1 else list(made))


def opset_of(graph: Graph) -> tuple[int, int]:
    made = to_onnx(graph)
    onnx.checker.check_model(made, full_check=True)
    return made.opset_import[0].version, made.ir_version


BF16, I32 = Tensor(DType.BFLOAT16, (2, 3)), Tensor(DType.INT32, (2, 3))


@pytest.mark.parametrize(
    ("graph", "lowest"),
    [
        (built("Relu", f32(2, 3)), (7, 3)),
        (built("Relu", BF16), (13, 7)),
        (built("Relu", I32), (14, 7)),
        (built("Add", f32(2, 3), f32(3)), (7, 3)),
        (built("Max", f32(2, 3), f32(2, 3)), (7, 3)),
        (built("Max", f32(2, 3), f32(3)), (8, 3)),
        (built("Softmax", f32(2, 3)), (7, 3)),
        (built("Softmax", f32(2, 3, 4)), (13, 7)),
        (built("Softmax", f32(2, 3, 4), axis=2), (7, 3)),
        (built("Softmax", f32(2, 3, 4), axis=0), (13, 7)),
        (built("Concat", f32(2, 3), f32(2, 3), axis=0), (7, 3)),
        (built("Concat", f32(2, 3), f32(2, 3), axis=-1), (11, 6)),
        (built("Gather", f32(2, 3), i64(2)), (7, 3)),
        (built("ReduceSum", f32(2, 3)), (13, 7)),
        (built("Split", f32(4, 3), outputs=2, num_outputs=2), (18, 8)),
        (built("Cast", f32(2), to=DType.INT4.onnx), (21, 10)),
        (built("Shape", f32(2, 3), start=1), (15, 8)),
    ],
    ids=lambda p: str(p.nodes[0]) if isinstance(p, Graph) else str(p),
)
def test_the_lowest_opset_and_ir(graph: Graph, lowest: tuple[int, int]) -> None:
    assert opset_of(graph) == lowest


def reduced() -> Graph:
    g = GraphBuilder()
    x = g.input("x", f32(2, 3))
    return g.graph([g.ReduceMean(x, g.const([1]), keepdims=0)])


def test_an_older_opset_on_demand() -> None:
    feeds = {"x": np.arange(6, dtype=np.float32).reshape(2, 3)}
    natural, older = to_onnx(reduced()), to_onnx(reduced(), opset=11)
    assert natural.opset_import[0].version == 18
    assert older.opset_import[0].version == 11
    assert list(older.graph.node[0].attribute[-1].ints or older.graph.node[0].attribute[0].ints) == [1]
    assert not older.graph.initializer
    for made in (natural, older):
        close(ort_run(made, feeds), evaluate(reduced(), feeds))


def test_what_an_opset_cannot_express_is_told_node_by_node() -> None:
    g = GraphBuilder("net")
    x = g.input("x", f32(1, 2, 5, 5))
    sampled = g.GridSample(x, g.input("grid", f32(1, 5, 5, 2)))
    y = g.AveragePool(sampled, kernel_shape=[2, 2], dilations=[2, 2])
    with pytest.raises(UnsupportedModel) as caught:
        to_onnx(g.graph([y]), opset=12)
    assert "opset 12 cannot express 2 of its nodes" in str(caught.value)
    assert "GridSample came with opset 16" in caught.value.message
    assert "opset 11 has no attribute dilations" in caught.value.message
    assert caught.value.where
    assert caught.value.hint


def test_old_softmax_among_newer_operators() -> None:
    """As a node of its own up to opset 12; above as a function of today's, or in its words."""
    nodes = [node("Softmax", "x", "h", axis=1, name="s"), node("Relu", "h", "y", name="r")]
    proto = model(nodes, [value("x", 2, 3, 4)], [value("y", 2, 3, 4)], opset=11, ir=6)
    feeds = {"x": np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)}
    graph = load_onnx(proto)
    assert graph.nodes[0].op == "SoftmaxFlattened"
    same, newer, inlined = to_onnx(graph), to_onnx(graph, opset=17), to_onnx(graph, opset=17, standard=True)
    assert [n.op_type for n in same.graph.node] == ["Softmax", "Relu"]
    assert [n.op_type for n in newer.graph.node] == ["SoftmaxFlattened", "Relu"]
    assert [n.op_type for n in inlined.graph.node] == ["Flatten", "Softmax", "Reshape", "Relu"]
    assert [n.op for n in load_onnx(newer).nodes] == [n.op for n in graph.nodes]
    for made in (same, newer, inlined):
        onnx.checker.check_model(made, full_check=True)
        close(ort_run(made, feeds), ort_run(proto, feeds))


# Operators: what goes out comes in again


def samples() -> list[Any]:
    found = [(o, s) for o in OPS.values() if o.domain == "" for s in o.samples]
    return [pytest.param(o, s, id=f"{o.name}-{i}") for i, (o, s) in enumerate(found) if not _bodies(s)]


def _bodies(sample: Sample) -> bool:
    return any(hasattr(v, "build") for v in sample.attrs.values())


@pytest.mark.parametrize(("o", "sample"), samples())
def test_export_then_import_is_the_identity(o: Op, sample: Sample) -> None:
    graph, _ = sample_graph(o, sample)
    again = load_onnx(to_onnx(graph))
    assert again.inputs == graph.inputs
    assert again.outputs == graph.outputs
    kept = [(n.op, n.domain, n.name, n.inputs, n.outputs) for n in again.nodes]
    assert kept == [(n.op, n.domain, n.name, n.inputs, n.outputs) for n in graph.nodes]
    for then, now in zip(graph.nodes, again.nodes, strict=True):
        np.testing.assert_equal(
            {a: _plain(v) for a, v in now.attrs.items()},
            {a: _plain(v) for a, v in then.attrs.items() if v is not None},
        )


def _plain(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return float(np.float32(value)) if isinstance(value, float) else value


# States, initialisers, types


def test_states_become_an_input_and_an_output() -> None:
    g = GraphBuilder()
    count = g.state("count", np.float32(5))
    after = g.Add(count, g.input("x", f32()))
    g.update("count", after)
    made = to_onnx(g.graph([g.Neg(after)]))
    onnx.checker.check_model(made)
    assert [i.name for i in made.graph.input] == ["x", "count"]
    assert [o.name for o in made.graph.output][1:] == [after]
    two, one = np.array(2, np.float32), np.array(1, np.float32)
    assert ort_run(made, {"x": two})[after] == 7
    assert ort_run(made, {"x": two, "count": one})[after] == 3


@pytest.mark.parametrize(("ir", "listed"), [(3, ["x", "w"]), (8, ["x"])])
def test_initialisers_are_listed_where_the_ir_asks_for_it(ir: int, listed: list[str]) -> None:
    inputs = [value("x", 2), value("w", 2)] if ir == 3 else [value("x", 2)]
    proto = model([node("Add", "x w", "y")], inputs, [value("y", 2)],
                  opset=9, ir=ir, initializers={"w": np.ones(2, np.float32)})  # fmt: skip
    graph = load_onnx(proto)
    made = to_onnx(graph.but(opsets={"": 9}))
    assert [i.name for i in made.graph.input] == (["x", "w"] if made.ir_version < 4 else listed)
    onnx.checker.check_model(made)


def test_overridable_initialisers_stay_so() -> None:
    proto = model([node("Add", "x w", "y")], [value("x", 2), value("w", 2)], [value("y", 2)],
                  initializers={"w": np.ones(2, np.float32)})  # fmt: skip
    made = to_onnx(load_onnx(proto))
    assert ([i.name for i in made.graph.input], made.ir_version) == (["x", "w"], 4)


@pytest.mark.parametrize("dtype", [d for d in DType if d is not DType.STRING], ids=str)
def test_every_element_type_survives(dtype: DType) -> None:
    array = np.array([1, 0, 1, 1, 2, 1, 1]).astype(np.int8 if dtype.integer else np.float32)
    array = (array % 2 if dtype in (DType.INT2, DType.BOOL) else array).astype(dtype.numpy)
    of_six_bits = dtype.bits == 6  # few operators take them, Identity not
    node_ = Node("OptionalHasElement" if of_six_bits else "Identity", ("w",), ("y",))
    types = {"y": Tensor(DType.BOOL, ()) if of_six_bits else Tensor(dtype, (7,))}
    graph = Graph((), ("y",), (node_,), {"w": array}, types)
    again = load_onnx(to_onnx(graph)).initializers["w"]
    assert again.dtype == array.dtype
    assert again.tobytes() == array.tobytes()


def test_an_output_without_a_type_is_told() -> None:
    graph = Graph(("x",), ("y",), (Node("Relu", ("x",), ("y",)),))
    with pytest.raises(ModelError, match="the type of 'x' is not known") as caught:
        to_onnx(graph)
    assert caught.value.hint


# Files


def weighty() -> Graph:
    g = GraphBuilder()
    x = g.input("x", f32("n", 64))
    h = g.MatMul(x, g.const(np.arange(64 * 64, dtype=np.float32).reshape(64, 64) / 4096))
    return g.graph([g.Add(h, g.const(np.ones(64, np.float32)))])


FEEDS = {"x": np.ones((2, 64), np.float32)}


def test_save_and_load(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    save_onnx(weighty(), path)
    assert [p.name for p in tmp_path.iterdir()] == ["m.onnx"]
    close(ort_run(path, FEEDS), evaluate(load_onnx(path), FEEDS))
    assert path.stat().st_mode & 0o777 == 0o666 & ~_umask()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_external_data_beside_the_model(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    save_onnx(weighty(), path, external_data="always")
    name, data = sorted((p.name for p in tmp_path.iterdir()), key=len)
    assert name == "m.onnx"
    assert re.fullmatch(r"m\.onnx\.[0-9a-f]{16}\.data", data)
    close(ort_run(path, FEEDS), evaluate(weighty(), FEEDS))
    loaded = load_onnx(path)
    close(evaluate(loaded, FEEDS), evaluate(weighty(), FEEDS))
    save_onnx(loaded, path)  # from the mapped file into the model itself: the data file goes
    assert [p.name for p in tmp_path.iterdir()] == ["m.onnx"]
    close(evaluate(loaded, FEEDS), evaluate(load_onnx(path), FEEDS))


def test_weights_too_large_for_a_protobuf_are_set_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mezzo.exporters.save.LARGEST_PROTOBUF", 1000)
    with pytest.raises(ModelError, match="16640 bytes of weights are more than a protobuf can hold"):
        save_onnx(weighty(), tmp_path / "m.onnx", external_data="never")
    save_onnx(weighty(), tmp_path / "m.onnx", threshold=0)
    assert len(list(tmp_path.iterdir())) == 2
    close(evaluate(load_onnx(tmp_path / "m.onnx"), FEEDS), evaluate(weighty(), FEEDS))


WRITE_2_GB = """
import resource, sys
import numpy as np
from mezzo.exporters import save_onnx
from mezzo.importers import load_onnx
from mezzo.ops.types import f32
from mezzo.runtime.ir.graph import GraphBuilder

def held():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10

g = GraphBuilder()
rows = int(sys.argv[2])
weights = np.arange(rows * 8, dtype=np.float32).reshape(rows, 8)
y = g.MatMul(g.const(weights), g.input("x", f32(8)))
before = held()
save_onnx(g.graph([y]), sys.argv[1])
(again,) = load_onnx(sys.argv[1]).initializers.values()
print(held() - before)  # pages of the mapped file that are looked at below count as held, and are not
assert again.shape == weights.shape
assert all(np.array_equal(again[i], weights[i]) for i in range(0, rows, rows // 1000))
"""


@pytest.mark.parametrize("rows", [1_000_000, pytest.param(69_000_000, marks=pytest.mark.soak)])
def test_large_weights_are_written_and_read_without_a_second_copy(rows: int, tmp_path: Path) -> None:
    """The small form is written beside the model too, by a lower limit: 32 MB; the other has 2.2 GB."""
    script = WRITE_2_GB if rows > 2**26 else "import mezzo.exporters.save as s; s.LARGEST_PROTOBUF = 1\n" + WRITE_2_GB
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "m.onnx"), str(rows)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    (data,) = tmp_path.glob("*.data")
    assert data.stat().st_size == rows * 32
    assert (tmp_path / "m.onnx").stat().st_size < 1000
    if rows > 2**26:
        assert int(done.stdout) < 300, "MB"


def test_what_no_protobuf_holds_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def too_large(*_: Any) -> None:
        raise EncodeError("Failed to serialize proto")

    monkeypatch.setattr(onnx.ModelProto, "SerializeToString", too_large, raising=False)
    with pytest.raises(ModelError, match="larger than a protobuf can be") as caught:
        save_onnx(weighty(), tmp_path / "m.onnx")
    assert "not in attributes" in caught.value.hint
    assert not list(tmp_path.iterdir())


def test_views_are_written_in_their_order(tmp_path: Path) -> None:
    """Transposed, stretched, and of elements of less than a byte; of no elements, and of one."""
    arrays: dict[str, Array] = {
        "turned": np.arange(6, dtype=np.float32).reshape(2, 3).T,
        "stretched": np.broadcast_to(np.array([1, 2], np.float32), (3, 2)),
        "every_second": np.arange(10, dtype=np.int64)[::2],
        "packed": np.arange(-7, 8).astype(DType.INT4.numpy).reshape(3, 5).T,
        "none": np.zeros((0, 2), np.float32),
        "one": np.array(3.0),
    }
    graph = Graph((), tuple(f"{n}_out" for n in arrays), tuple(Node("Identity", (n,), (f"{n}_out",)) for n in arrays),
                  arrays)  # fmt: skip
    save_onnx(graph, tmp_path / "m.onnx", external_data="always", threshold=0)
    again = load_onnx(tmp_path / "m.onnx").initializers
    for name, array in arrays.items():
        assert (again[name].shape, again[name].dtype) == (array.shape, array.dtype)
        assert again[name].tobytes() == array.tobytes(), name


def test_metadata_goes_round(tmp_path: Path) -> None:
    proto = model([node("Relu", "x", "y")], [value("x", 2)], [value("y", 2)])
    proto.producer_name, proto.producer_version, proto.domain, proto.model_version = "pytorch", "2.1", "org.example", 7
    proto.metadata_props.add(key="author", value="somebody")
    for _ in range(2):  # the second time, the file is ours
        graph = load_onnx(proto)
        assert graph.metadata[PRODUCER] == "pytorch 2.1"
        proto = to_onnx(graph)
        assert (proto.producer_name, proto.domain, proto.model_version) == ("mezzo", "org.example", 7)
        assert {p.key: p.value for p in proto.metadata_props} == {"author": "somebody", PRODUCER: "pytorch 2.1"}
    graph = load_onnx(proto)
    odd = graph.but(metadata={**graph.metadata, "mezzo.source.model_version": "x" * 30})  # of a file that is not ours
    assert to_onnx(odd).model_version == 0


def test_a_failed_save_leaves_the_former_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.onnx"
    save_onnx(weighty(), path)
    before = path.read_bytes()
    lost = weighty().but(outputs=("nothing",))
    lost = lost.but(types={**lost.types, "nothing": f32(2)})
    with pytest.raises(ModelError, match="onnx refuses the model") as caught:
        save_onnx(lost, path, external_data="always")
    assert caught.value.hint
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["m.onnx"]

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ModelError, match="No space left"):
        save_onnx(weighty(), path)
    assert path.read_bytes() == before
    assert not list(tmp_path.glob(".mezzo-*"))


def test_a_link_is_followed_and_a_missing_folder_told(tmp_path: Path) -> None:
    (tmp_path / "link.onnx").symlink_to(tmp_path / "m.onnx")
    save_onnx(weighty(), tmp_path / "link.onnx")
    assert (tmp_path / "link.onnx").is_symlink()
    assert (tmp_path / "m.onnx").is_file()
    with pytest.raises(ModelError, match="cannot be written"):
        save_onnx(weighty(), tmp_path / "absent" / "m.onnx")


def test_a_body_that_returns_one_value_twice_leaves_with_a_copy() -> None:
    """ONNX Runtime leaves the results of the other as they were before opset 16."""
    g = GraphBuilder()

    def summed(b: Any, total: str, x: str) -> tuple[str, str]:
        y = b.Add(total, x)
        return y, y

    last, sums = g.op("Scan", g.input("start", f32(2)), g.input("x", f32(3, 2)), outputs=2, num_scan_inputs=1,
                      body=Body([f32(2), f32(2)], summed))  # fmt: skip
    graph = g.graph([last, sums])
    made = to_onnx(graph, opset=9)
    (body,) = [a.g for a in made.graph.node[0].attribute if a.HasField("g")]
    assert len({o.name for o in body.output}) == 2
    feeds = {"start": np.ones(2, np.float32), "x": np.ones((3, 2), np.float32)}
    close(ort_run(made, feeds), evaluate(graph, feeds))


@pytest.mark.parametrize("other", [None, np.zeros(3, np.float32), Path("m.onnx"), onnx.ModelProto()], ids=str)
def test_what_is_no_graph_is_refused(tmp_path: Path, other: Any) -> None:
    with pytest.raises(InputError, match=r"is no graph[\s\S]*mz.load"):
        save_onnx(other, tmp_path / "m.onnx")
    assert not list(tmp_path.iterdir())
