"""Operators of the domain com.microsoft: equal to ONNX Runtime, and to the standard operators they consist of."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.helper
import pytest

import mezzo as mz
from mezzo.exporters import to_onnx
from mezzo.importers import load_onnx
from mezzo.ops import OPS, DType, Op, Sample
from mezzo.ops.types import f32
from mezzo.runtime.ir.infer import infer
from mezzo.runtime.ir.interpreter import evaluate
from mezzo.runtime.passes.expand import expand

from .graphs import arrays, sample_graph
from .models import ort_run

Array = np.ndarray[Any, Any]
RECORDS = [o for o in OPS.values() if o.domain == "com.microsoft"]
WANTED = """FusedConv FusedMatMul Gelu FastGelu BiasGelu SkipLayerNormalization EmbedLayerNormalization Attention
MultiHeadAttention DynamicQuantizeLSTM QLinearAdd QLinearMul QLinearSigmoid QLinearAveragePool
QLinearGlobalAveragePool QLinearConcat QGemm MatMulNBits Tokenizer QuickGelu
DynamicQuantizeMatMul FusedGemm SkipSimplifiedLayerNormalization
QLinearLeakyRelu QLinearSoftmax QLinearWhere MatMulIntegerToFloat QuantizeLinear DequantizeLinear
QAttention QEmbedLayerNormalization NhwcMaxPool QLinearConv RotaryEmbedding GroupQueryAttention
MatMulBnb4 GatherBlockQuantized"""
# Those that only com.microsoft can say; all others have a body of standard operators.
WITHOUT_BODY = "DynamicQuantizeLSTM Tokenizer GroupQueryAttention".split()


def cases(records: list[Op]) -> list[Any]:
    return [pytest.param(o, s, id=f"{o.name}-{i}") for o in records for i, s in enumerate(o.samples)]


CASES = cases(RECORDS)
# Outputs that ONNX Runtime declares and does not fill on the CPU.
NOT_MADE = {"SkipLayerNormalization": {1, 2}, "SkipSimplifiedLayerNormalization": {1, 2}}


def one_node(o: Op, sample: Sample) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """A model of one node, and its feeds."""
    xs = arrays(sample)
    names = [f"x{i}" if x is not None else "" for i, x in enumerate(xs)]
    feeds = {n: x for n, x in zip(names, xs, strict=True) if n}
    results = o.run(mz.ops.Context(wanted=(True,) * sample.outputs), xs, sample.attrs)[: sample.outputs]
    skipped = NOT_MADE.get(o.name, set())
    outputs = ["" if i in skipped else f"y{i}" for i in range(len(results))]
    node = onnx.helper.make_node(o.name, names, outputs, name="it", domain=o.domain, **sample.attrs)
    listed = [onnx.helper.make_tensor_value_info(n, DType.of(x.dtype).onnx, x.shape) for n, x in feeds.items()]
    made = [
        onnx.helper.make_tensor_value_info(n, DType.of(y.dtype).onnx, [None] * y.ndim)
        for n, y in zip(outputs, results, strict=True)
        if n
    ]
    graph = onnx.helper.make_graph([node], "one", listed, made)
    opsets = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid(o.domain, 1)]
    return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=9), feeds


def agree(ours: dict[str, Array], theirs: dict[str, Array], *, quantised: bool) -> None:
    """Equal up to float32 rounding; of whole numbers one in a thousand may be one step away."""
    assert ours.keys() == theirs.keys()
    for name, y in theirs.items():
        assert ours[name].dtype == y.dtype
        assert ours[name].shape == y.shape
        if y.dtype.kind in "iu" and quantised:
            apart = np.abs(ours[name].astype(int) - y.astype(int))
            assert apart.max(initial=0) <= 1
            assert (apart > 0).mean() <= 1e-3 if apart.size else True
        elif y.dtype.kind == "f":
            np.testing.assert_allclose(ours[name], y, rtol=1e-5, atol=2e-5)
        else:
            np.testing.assert_array_equal(ours[name], y)


def test_all_that_exports_contain_are_here_with_three_samples_each() -> None:
    assert {o.name for o in RECORDS} == set(WANTED.split())
    assert all(len(o.samples) >= 3 for o in RECORDS)


@pytest.mark.parametrize(("o", "sample"), CASES)
def test_onnx_runtime_agrees(o: Op, sample: Sample) -> None:
    model, feeds = one_node(o, sample)
    ours = mz.load(model.SerializeToString()).run(feeds)
    agree(ours, ort_run(model, feeds), quantised=o.name.startswith("Q"))


@pytest.mark.parametrize(("o", "sample"), CASES)
def test_export_gives_the_node_back(o: Op, sample: Sample) -> None:
    model, _ = one_node(o, sample)
    again = to_onnx(load_onnx(model))
    assert again.graph.node == model.graph.node
    assert {i.domain: i.version for i in again.opset_import} == {"": 7, "com.microsoft": 1}


def test_those_without_a_body_are_known() -> None:
    assert [o.name for o in RECORDS if o.body_rule is None] == [
        n for n in (o.name for o in RECORDS) if n in WITHOUT_BODY
    ]


@pytest.mark.parametrize(("o", "sample"), cases([o for o in RECORDS if o.name not in WITHOUT_BODY]))
def test_the_standard_form_says_the_same(o: Op, sample: Sample) -> None:
    model, feeds = one_node(o, sample)
    if o.name == "MatMulNBits":  # its bits are taken apart by the exporter: they have to be known
        weights = {n: feeds.pop(n) for n in ("x1", "x3") if n in feeds}
        model.graph.initializer.extend(onnx.numpy_helper.from_array(a, n) for n, a in weights.items())
        for info in [i for i in model.graph.input if i.name in weights]:
            model.graph.input.remove(info)
    graph = load_onnx(model)
    standard = to_onnx(graph, standard=True)
    onnx.checker.check_model(standard, full_check=True)
    if o.name == "MatMulNBits" and sample.inputs[3:4] and getattr(sample.inputs[3], "dtype", None) == DType.FLOAT:
        assert {n.domain for n in standard.graph.node} == {"com.microsoft"}  # zero points that are no whole numbers
        return
    assert {n.domain for n in standard.graph.node} == {""}
    ours = mz.Session(graph).run(feeds)
    agree(ours, ort_run(standard, feeds), quantised=o.name.startswith("Q"))
    agree(ours, mz.Session(load_onnx(standard)).run(feeds), quantised=o.name.startswith("Q"))


@pytest.mark.parametrize(
    ("operands", "said"),
    [
        ([f32(2, 3, 8), f32(2, 4, 8)], "lacks its value"),
        ([f32(2, 3, 8), f32(2, 4, 2, 3, 4)], "does not hold what is packed"),
        ([f32(2, 3, 2, 2, 4)], "does not hold what is packed"),
        ([f32(2, 3, 8)], "lacks its key"),
    ],
)
def test_attention_without_all_of_its_operands(operands: list[Any], said: str) -> None:
    with pytest.raises(mz.ShapeError, match=said):
        OPS["com.microsoft", "MultiHeadAttention"].infer_types(operands, {"num_heads": 2})


def test_attention_of_what_is_packed() -> None:
    """In either way the same numbers as apart."""
    record, rng = OPS["com.microsoft", "MultiHeadAttention"], np.random.default_rng(0)
    q, k, v = (rng.standard_normal((2, 3, 8), np.float32) for _ in range(3))
    heads = [x.reshape(2, 3, 2, 4) for x in (q, k, v)]
    ways = {"apart": [q, k, v], "with keys": [q, np.stack(heads[1:], 3)], "all": [np.stack(heads, 3)]}
    found = {}
    for how, operands in ways.items():
        graph, feeds = sample_graph(record, Sample(operands, {"num_heads": 2}), fed="all")
        graph = infer(graph)
        whole = expand(graph, lambda n: n.op == record.name, graph.types)
        assert record.name not in {n.op for n in whole.nodes}
        found[how] = [evaluate(g, feeds) for g in (graph, whole)]
    want = next(iter(found["apart"][0].values()))
    for how, runs in found.items():
        for run in runs:
            np.testing.assert_allclose(next(iter(run.values())), want, atol=1e-6, err_msg=how)


@pytest.mark.parametrize(("name", "opset"), [("SimplifiedLayerNormalization", 17), ("LayerNormalization", 13)])
def test_what_the_optimiser_writes_into_the_standard_domain(name: str, opset: int) -> None:
    """ONNX Runtime knows these at every opset, and the first under no other name."""
    operands = {"x": np.random.default_rng(0).standard_normal((2, 3, 8), np.float32), "w": np.full(8, 1.5, np.float32)}
    node = onnx.helper.make_node(name, ["x", "w"], ["y"], axis=-1, epsilon=0.01)
    listed = [onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, a.shape) for n, a in operands.items()]
    made = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [2, 3, 8])
    graph = onnx.helper.make_graph([node], "one", listed, [made])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)], ir_version=8)
    ours = mz.load(model.SerializeToString()).run(operands)
    x = operands["x"] - (operands["x"].mean(-1, keepdims=True) if name == "LayerNormalization" else 0)
    np.testing.assert_allclose(ours["y"], 1.5 * x / np.sqrt((x * x).mean(-1, keepdims=True) + 0.01), rtol=1e-5)
    agree(ours, ort_run(model, operands), quantised=False)
    onnx.checker.check_model(to_onnx(load_onnx(model)), full_check=True)  # it leaves as the standard has it
