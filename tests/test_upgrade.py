"""Old opsets: the table knows every change, and old nodes mean what ONNX Runtime says they mean."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnx.defs
import onnx.helper
import onnx.numpy_helper
import pytest

from mezzo.exporters import to_onnx
from mezzo.exporters.lower import LOWEST
from mezzo.importers import load_onnx
from mezzo.importers.operators import missing_changes
from mezzo.ops import OPS, OPSETS
from mezzo.ops.errors import UnsupportedModel
from mezzo.ops.upgrade import CHANGES, Form, before, changes
from mezzo.ops.upgrade.form import not_written
from mezzo.runtime.ir.interpreter import evaluate

from .models import INT64, model, node, ort_run, subgraph, value

Array = np.ndarray[Any, Any]
WITH_SCHEMA = {s.domain for s in onnx.defs.get_all_schemas()}
CARRIED = [
    pytest.param(domain, name, id=f"{domain}{'::' * bool(domain)}{name}")
    for domain, name in sorted({*OPS, *((d, o) for d, o, _ in CHANGES)})
    if domain in WITH_SCHEMA
]


@pytest.mark.parametrize(("domain", "name"), CARRIED)
def test_every_change_since_opset_1_is_known(domain: str, name: str) -> None:
    assert missing_changes(domain, name, 1) == []


def test_the_table_has_only_changes_that_happened() -> None:
    happened = {(s.domain, s.name, s.since_version) for s in onnx.defs.get_all_schemas_with_history()}
    assert not CHANGES.keys() - happened
    assert all(opset <= OPSETS[domain] for domain, _, opset in CHANGES)


def test_every_rewriting_change_is_reached_from_its_result() -> None:
    for (domain, name, opset), change in CHANGES.items():
        made = Form(change.made[1] if change.made else name, (), (), {}, change.made[0] if change.made else domain)
        assert before(made, opset) is change
        assert opset in changes(domain, name)


def test_every_change_that_an_export_may_cross_has_its_way_down() -> None:
    assert not [key for key, change in CHANGES.items() if key[2] > LOWEST and change.down is not_written]
    assert any(change.down is not_written for change in CHANGES.values())  # or nothing is asserted


@dataclass(frozen=True)
class Old:
    """One node as an old opset wrote it. Inputs are arrays, None (absent), or a tuple of one array: a constant."""

    op: str
    opset: int
    inputs: list[Any]
    attrs: dict[str, Any] = field(default_factory=dict[str, Any])
    outputs: int = 1

    def __str__(self) -> str:
        return f"{self.op}-{self.opset}-{','.join(self.attrs)}"

    def model(self) -> tuple[onnx.ModelProto, dict[str, Array]]:
        """The model of one node, and its feeds."""
        names = ["-" if x is None else f"x{i}" for i, x in enumerate(self.inputs)]
        feeds = {n: x for n, x in zip(names, self.inputs, strict=True) if isinstance(x, np.ndarray)}
        constants = {n: x[0] for n, x in zip(names, self.inputs, strict=True) if isinstance(x, tuple)}
        outputs = [f"y{i}" for i in range(self.outputs)]
        made = node(self.op, " ".join(names), " ".join(outputs), name="it", **self.attrs)
        ir = 3 if self.opset < 9 else 4
        listed = [_info(n, a) for n, a in (feeds if ir > 3 else {**feeds, **constants}).items()]
        unknown = [onnx.helper.make_empty_tensor_value_info(o) for o in outputs]  # inference fills them in
        proto = model([made], listed, unknown, opset=self.opset, ir=ir, initializers=constants)
        typed = onnx.shape_inference.infer_shapes(proto)
        for info, output in zip(typed.graph.output, proto.graph.output, strict=True):
            output.CopyFrom(info if info.type.WhichOneof("value") else _info(output.name, f(1)))
        return proto, feeds


def _info(name: str, array: Array) -> onnx.ValueInfoProto:
    kind = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
    return onnx.helper.make_tensor_value_info(name, kind, array.shape)


def f(*dims: int) -> Array:
    return np.random.default_rng(sum(dims)).standard_normal(dims).astype(np.float32)


def ints(*values: int) -> Array:
    return np.array(values, np.int64)


IMAGE, KERNEL = f(1, 2, 4, 4), f(3, 2, 3, 3)
NORM = [f(1, 2, 4, 4), *([np.array([0.5, 2], np.float32)] * 4)]
RNN_SIZES = {"RNN": 1, "GRU": 3, "LSTM": 4}

CASES = [
    Old("Add", 7, [f(2, 3), f(3)]),
    Old("Sub", 7, [f(2, 3), f(2, 1)]),
    Old("Pow", 7, [np.abs(f(2, 3)), f(3)]),
    Old("Sum", 8, [f(2, 3), f(3), f(1)]),
    Old("Max", 8, [f(2, 3), f(3)]),
    Old("Min", 7, [f(2, 3), f(2, 3)]),
    Old("Relu", 7, [f(2, 3)]),
    Old("LeakyRelu", 7, [f(2, 3)], {"alpha": 0.2}),
    Old("HardSigmoid", 7, [f(2, 3)]),
    Old("Clip", 7, [f(2, 3)], {"min": -0.5, "max": 0.5}),
    Old("Clip", 7, [f(2, 3)], {"max": 0.25}),
    Old("Clip", 7, [f(2, 3)]),
    Old("Clip", 11, [f(2, 3), None, (np.array(0.5, np.float32),)]),
    Old("Equal", 7, [ints(1, 2), ints(1, 3)]),
    Old("Less", 7, [f(2, 3), f(3)]),
    Old("Where", 9, [f(2, 3) > 0, f(2, 3), f(3)]),
    Old("Reshape", 7, [f(2, 6), (ints(0, 3, -1),)]),
    Old("Flatten", 7, [f(2, 3, 2)], {"axis": 2}),
    Old("Flatten", 11, [f(2, 3, 2)], {"axis": -1}),
    Old("Squeeze", 7, [f(1, 3, 1)], {"axes": [0, 2]}),
    Old("Squeeze", 7, [f(1, 3, 1)]),
    Old("Squeeze", 11, [f(1, 3, 1)], {"axes": [-1]}),
    Old("Unsqueeze", 7, [f(3, 2)], {"axes": [0, 2]}),
    Old("Unsqueeze", 11, [f(3, 2)], {"axes": [-1]}),
    Old("Transpose", 7, [f(3, 2)]),
    Old("Concat", 7, [f(3, 2), f(1, 2)], {"axis": 0}),
    Old("Split", 7, [f(4, 3)], {"axis": 0}, 2),
    Old("Split", 7, [f(4, 3)], {"axis": 1, "split": [1, 2]}, 2),
    Old("Split", 11, [f(4, 3)], {"axis": -1, "split": [2, 1]}, 2),
    Old("Split", 13, [f(4, 3), (ints(1, 3),)], {}, 2),
    Old("Split", 13, [f(4, 3)], {}, 2),
    Old("Slice", 7, [f(4, 3)], {"starts": [1, 0], "ends": [3, -1]}),
    Old("Slice", 7, [f(4, 3)], {"starts": [1], "ends": [1000], "axes": [1]}),
    Old("Slice", 10, [f(4, 3), (ints(0),), (ints(3),), (ints(1),), (ints(2),)]),
    Old("Gather", 7, [f(4, 3), ints(0, 2)], {"axis": 1}),
    Old("Scatter", 9, [f(3, 3), ints(1, 0, 2).reshape(1, 3), f(1, 3)]),
    Old("GatherND", 11, [f(3, 3), np.array([[0, 1], [2, 2]])]),
    Old("Pad", 7, [f(2, 3)], {"pads": [0, 1, 1, 0], "value": 2.0}),
    Old("Pad", 7, [f(2, 3)], {"pads": [0, 1, 0, 1], "mode": "reflect"}),
    Old("Pad", 11, [f(2, 3), (ints(0, 1, 1, 0),)]),
    Old("Expand", 8, [f(3), (ints(2, 3),)]),
    Old("Tile", 7, [f(2, 3), (ints(2, 1),)]),
    Old("Identity", 7, [f(2)]),
    Old("Cast", 7, [f(2, 3)], {"to": onnx.TensorProto.INT32}),
    Old("DepthToSpace", 7, [f(1, 8, 2, 2)], {"blocksize": 2}),
    Old("SpaceToDepth", 7, [f(1, 2, 4, 4)], {"blocksize": 2}),
    Old("ConstantOfShape", 9, [ints(2, 3)]),
    Old("Shape", 7, [f(2, 3)]),
    Old("OneHot", 9, [ints(0, 2), (np.array(3),), (np.array([0, 5], np.float32),)]),
    Old("ReduceSum", 7, [f(2, 3, 4)], {"axes": [0, 2], "keepdims": 0}),
    Old("ReduceSum", 11, [f(2, 3)], {"axes": [-1]}),
    Old("ReduceSum", 7, [f(2, 3)]),
    *(Old(f"Reduce{r}", 7, [f(2, 3, 4)], {"axes": [1]}) for r in ("Mean", "Max", "Min", "Prod", "L2")),
    *(Old(f"Reduce{r}", 13, [f(2, 3, 4)], {"axes": [-1], "keepdims": 0}) for r in ("Mean", "Max", "Min", "Prod")),
    Old("ArgMax", 7, [f(2, 3)], {"axis": 1}),
    Old("ArgMin", 11, [f(2, 3)], {"axis": -1, "keepdims": 0}),
    Old("TopK", 7, [f(2, 5)], {"k": 2}, 2),
    Old("TopK", 10, [f(2, 5), (ints(3),)], {"axis": 1}, 2),
    Old("MatMul", 7, [f(2, 3), f(3, 2)]),
    Old("Gemm", 7, [f(2, 3), f(4, 3), f(4)], {"transB": 1, "alpha": 0.5}),
    Old("Gemm", 9, [f(2, 3), f(3, 4), f(4)]),
    Old("Gemm", 11, [f(2, 3), f(3, 4)]),
    Old("Conv", 7, [IMAGE, KERNEL], {"pads": [1, 1, 1, 1]}),
    Old("ConvTranspose", 7, [IMAGE, f(2, 3, 3, 3)], {"strides": [2, 2]}),
    Old("MaxPool", 7, [IMAGE], {"kernel_shape": [2, 2], "strides": [2, 2]}),
    Old("MaxPool", 8, [IMAGE], {"kernel_shape": [2, 2]}, 2),
    Old("MaxPool", 10, [IMAGE], {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}),
    Old("AveragePool", 7, [IMAGE], {"kernel_shape": [2, 2], "pads": [1, 1, 0, 0]}),
    Old("AveragePool", 10, [IMAGE], {"kernel_shape": [2, 2], "pads": [1, 1, 0, 0], "count_include_pad": 1}),
    Old("GlobalAveragePool", 7, [IMAGE]),
    Old("GlobalMaxPool", 7, [IMAGE]),
    Old("BatchNormalization", 7, NORM, {"epsilon": 1e-3}),
    Old("BatchNormalization", 9, NORM),
    Old("LRN", 7, [IMAGE], {"size": 3}),
    Old("InstanceNormalization", 7, NORM[:3]),
    Old("Dropout", 7, [f(2, 3)], {"ratio": 0.3}),
    Old("Dropout", 10, [f(2, 3)]),
    *(Old(s, v, [f(2, 3)]) for s in ("Softmax", "LogSoftmax") for v in (7, 11)),
    *(Old(s, v, [f(2, 3, 4)]) for s in ("Softmax", "LogSoftmax") for v in (7, 11)),
    *(Old(s, 11, [f(2, 3, 4)], {"axis": a}) for s in ("Softmax", "LogSoftmax") for a in (0, 2, -1, -2)),
    *(
        Old(r, 7, [f(3, 2, 4), f(1, 5 * n, 4), f(1, 5 * n, 5)], {"hidden_size": 5}, 2 + (r == "LSTM"))
        for r, n in RNN_SIZES.items()
    ),
    Old("Upsample", 7, [IMAGE], {"scales": [1.0, 1.0, 2.0, 2.0]}),
    Old("Upsample", 9, [IMAGE, (np.array([1, 1, 2, 2], np.float32),)], {"mode": "linear"}),
    Old("Resize", 10, [IMAGE, (np.array([1, 1, 0.5, 0.6], np.float32),)]),
    Old("Resize", 10, [IMAGE, (np.array([1, 1, 3, 1.5], np.float32),)]),
    Old("Resize", 10, [IMAGE, (np.array([1, 1, 2, 2], np.float32),)], {"mode": "linear"}),
    Old("Resize", 10, [IMAGE, (np.array([1, 1, 0.5, 2], np.float32),)], {"mode": "linear"}),
    Old("Resize", 11, [IMAGE, (np.zeros(0, np.float32),), (np.array([1, 1, 2, 2], np.float32),)]),
    Old("Compress", 9, [f(3, 2), np.array([True, False, True])], {"axis": 0}),
    Old("Compress", 11, [f(3, 2), np.array([True, False])], {"axis": -1}),
    *(Old("Hardmax", 7, [f(2, 3, 4)], {"axis": a}) for a in (0, 1, 2)),
    Old("Hardmax", 11, [f(2, 3)]),
    Old("GridSample", 16, [IMAGE, np.tanh(f(1, 2, 3, 2))]),
    Old("GridSample", 16, [IMAGE, np.tanh(f(1, 2, 3, 2))], {"mode": "bicubic", "align_corners": 1}),
    Old("RoiAlign", 10, [IMAGE, np.array([[0, 0, 3, 3]], np.float32), ints(0)], {"output_height": 2}),
    Old("DFT", 17, [f(2, 5, 1)]),
    Old("DFT", 17, [f(4, 5, 2), (np.array(6),)], {"axis": 0, "inverse": 1}),
    Old("BatchNormalization", 7, [f(2, 3, 4), f(3, 4), f(3, 4), f(3, 4), np.full((3, 4), 0.5, np.float32)],
        {"spatial": 0, "epsilon": 1e-3}),
]  # fmt: skip


def described(proto: onnx.ModelProto) -> list[Any]:
    def plain(value: Any) -> Any:
        return value if isinstance(value, (int, float, bytes)) else list(value)

    return [
        (n.op_type, n.name, list(n.input), list(n.output),
         {a.name: plain(onnx.helper.get_attribute_value(a)) for a in n.attribute})
        for n in proto.graph.node
    ]  # fmt: skip


@pytest.mark.parametrize("old", CASES, ids=str)
def test_old_nodes_mean_what_they_meant(old: Old) -> None:
    proto, feeds = old.model()
    onnx.checker.check_model(proto)
    graph = load_onnx(proto).verify()
    theirs, ours = ort_run(proto, feeds), evaluate(graph, feeds)
    for name, array in theirs.items():
        assert ours[name].dtype == array.dtype
        np.testing.assert_allclose(ours[name], array, rtol=1e-5, atol=1e-5)
    again = to_onnx(graph)
    assert again.opset_import[0].version <= old.opset
    assert described(again) == described(proto)
    assert {t.name for t in again.graph.initializer} == {t.name for t in proto.graph.initializer}
    for name, array in ort_run(again, feeds).items():
        np.testing.assert_allclose(array, theirs[name], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("old", CASES, ids=str)
def test_old_nodes_can_leave_at_a_new_opset(old: Old) -> None:
    proto, feeds = old.model()
    newer = to_onnx(load_onnx(proto), opset=21)
    onnx.checker.check_model(newer)
    theirs = ort_run(proto, feeds)
    for name, array in ort_run(newer, feeds).items():
        np.testing.assert_allclose(array, theirs[name], rtol=1e-5, atol=1e-5)


DECLINED = [
    (Old("Resize", 10, [IMAGE, np.array([1, 1, 2, 2], np.float32)]), "its scales are computed"),
    (Old("Resize", 10, [IMAGE, (np.array([1, 1, 0.5, 2], np.float32),)]), "shrinks along another"),
    (Old("BatchNormalization", 7, NORM, {"spatial": 0}, 5), "spatial=0"),
    (Old("Dropout", 7, [f(2, 3)], {}, 2), "the mask changed its element type"),
    (
        Old("Resize", 11, [IMAGE, (np.zeros(0, np.float32),), (np.array([1, 1, 2, 2], np.float32),)],
            {"coordinate_transformation_mode": "tf_half_pixel_for_nn", "nearest_mode": "round_prefer_ceil"}),
        "tf_half_pixel_for_nn",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("old", "reason"), DECLINED, ids=str)
def test_what_cannot_be_said_today_is_refused_with_its_reason(old: Old, reason: str) -> None:
    proto, _ = old.model()
    with pytest.raises(UnsupportedModel, match=reason) as caught:
        load_onnx(proto)
    assert f"node 0 'it' ({old.op})" in str(caught.value)
    assert caught.value.hint


@pytest.mark.parametrize("mode", ["floor", "round_prefer_floor"])
@pytest.mark.parametrize("scales", [(2.0, 2.0), (0.5, 0.75), (1.5, 0.3)])
def test_coordinates_for_the_nearest_point_under_their_new_name(mode: str, scales: tuple[float, float]) -> None:
    attrs = {"coordinate_transformation_mode": "tf_half_pixel_for_nn", "nearest_mode": mode}
    inputs = [IMAGE, (np.zeros(0, np.float32),), (np.array([1, 1, *scales], np.float32),)]
    proto, feeds = Old("Resize", 11, inputs, attrs).model()
    theirs, ours = ort_run(proto, feeds), evaluate(load_onnx(proto), feeds)
    np.testing.assert_array_equal(ours["y0"], theirs["y0"])


def scan_8(*lengths: int) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """A running sum over each row of a batch."""
    sums = [node("Add", "total next", "sum"), node("Identity", "sum", "out")]
    body = subgraph(sums, [value("total", 2), value("next", 2)], [value("sum", 2), value("out", 2)])
    scan = node("Scan", f"{'lengths' if lengths else '-'} start x", "last all", num_scan_inputs=1, body=body)
    declared = [value("start", 2, 2), value("x", 2, 3, 2)]
    feeds = {"start": f(2, 2), "x": f(2, 3, 2)}
    if lengths:
        declared.append(value("lengths", 2, kind=INT64))
        feeds["lengths"] = ints(*lengths)
    return model([scan], declared, [value("last", 2, 2), value("all", 2, 3, 2)], opset=8, ir=3), feeds


@pytest.mark.parametrize("lengths", [(), (3, 1)], ids=["whole", "lengths"])
def test_scan_ran_over_the_rows_of_a_batch(lengths: tuple[int, ...]) -> None:
    proto, feeds = scan_8(*lengths)
    theirs, ours = ort_run(proto, feeds), evaluate(load_onnx(proto), feeds)
    for name, array in theirs.items():
        np.testing.assert_allclose(ours[name], array, rtol=1e-6)
    again = to_onnx(load_onnx(proto))
    assert [(n.op_type, list(n.input)) for n in again.graph.node] == [("Scan", list(proto.graph.node[0].input))]
    assert again.opset_import[0].version == 8
    if lengths:
        with pytest.raises(UnsupportedModel, match="ScanRows has no form at this opset"):
            to_onnx(load_onnx(proto), opset=21)
        return
    newer = to_onnx(load_onnx(proto), opset=21)
    onnx.checker.check_model(newer, full_check=True)
    for name, array in ort_run(newer, feeds).items():
        np.testing.assert_allclose(ours[name], array, rtol=1e-6)


def test_upsample_had_a_scale_for_each_axis_of_an_image() -> None:
    attrs: dict[str, Any] = {"height_scale": 2.0, "width_scale": 3.0, "mode": "bilinear"}
    graph = load_onnx(model([node("Upsample", "x", "y", **attrs)], [value("x", 1, 2, 4, 4)], [value("y", 1, 2, 8, 12)],
                            opset=1, ir=3))  # fmt: skip
    assert graph.nodes[0].attrs["mode"] == "linear"
    assert evaluate(graph, {"x": IMAGE})["y"].shape == (1, 2, 8, 12)


def test_tile_had_an_axis() -> None:
    once = {"times": np.array([3], np.float32), "axis": np.array([1], np.float32)}
    listed = [value("x", 2, 2), value("times", 1), value("axis", 1)]
    graph = load_onnx(
        model([node("Tile", "x times axis", "y")], listed, [value("y", 2, 6)], opset=1, ir=3, initializers=once)
    )
    np.testing.assert_array_equal(evaluate(graph, {"x": f(2, 2)})["y"], np.tile(f(2, 2), (1, 3)))


def test_group_normalization_had_a_scale_per_group() -> None:
    """onnx calls it deprecated at the opset that brought it; files have it all the same."""
    x, scale, bias = f(2, 4, 3), f(2), np.array([0.5, -1], np.float32)
    listed = [value("x", 2, 4, 3), value("s", 2), value("b", 2)]
    proto = model([node("GroupNormalization", "x s b", "y", num_groups=2)], listed, [value("y", 2, 4, 3)], opset=18)
    graph, feeds = load_onnx(proto), {"x": x, "s": scale, "b": bias}
    theirs = ort_run(proto, feeds)["y"]
    np.testing.assert_allclose(evaluate(graph, feeds)["y"], theirs, rtol=1e-5, atol=1e-5)
    newer = to_onnx(graph)
    assert newer.opset_import[0].version == 21
    np.testing.assert_allclose(ort_run(newer, feeds)["y"], theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("slope", [f(3), f(1)], ids=["per channel", "shared"])
def test_prelu_had_a_slope_per_channel(slope: Array) -> None:
    x = f(2, 3, 4)
    proto = model([node("PRelu", "x s", "y")], [value("x", 2, 3, 4), value("s", *slope.shape)], [value("y", 2, 3, 4)],
                  opset=6, ir=3)  # fmt: skip
    graph = load_onnx(proto)
    expected = np.where(x < 0, x * slope.reshape(-1, 1), x)
    np.testing.assert_allclose(evaluate(graph, {"x": x, "s": slope})["y"], expected)
    newer = ort_run(to_onnx(graph, opset=17), {"x": x, "s": slope})
    np.testing.assert_allclose(newer["y"], expected)


def test_initialisers_for_former_attributes_have_names_of_their_own() -> None:
    proto, _ = Old("Pad", 7, [f(2, 3)], {"pads": [0, 1, 1, 0], "value": 2.0}).model()
    proto.graph.node.append(node("Neg", "y0", "y0.pads"))
    graph = load_onnx(proto)
    assert graph.nodes[0].inputs == ("x0", "y0.pads.1", "y0.value")
    assert graph.nodes[1].outputs == ("y0.pads",)
