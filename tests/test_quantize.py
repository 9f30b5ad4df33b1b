"""Post-training quantisation: accuracy kept, saved as ONNX that ONNX Runtime answers alike, on whole numbers here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mezzo.exporters import save_onnx
from mezzo.importers import load_onnx
from mezzo.models.convnets import random_weights, resnet50
from mezzo.models.digits import digits_model, held_out
from mezzo.ops import DType, Tensor
from mezzo.ops.errors import InputError
from mezzo.ops.types import f32
from mezzo.runtime.execution.session import Session
from mezzo.runtime.ir.graph import Graph, GraphBuilder, Node
from mezzo.runtime.ir.infer import infer
from mezzo.train.quantize import quantize
from mezzo.train.ranges import Histogram, Method, ranges

from .models import ort_run, referee
from .test_quantised_kernels import VNNI

Array = np.ndarray[Any, Any]
F32 = np.float32


def in_onnx_runtime(graph: Graph, path: Path, feeds: dict[str, Array]) -> dict[str, Array]:
    save_onnx(graph, path)
    return ort_run(path, feeds)


METHODS: list[Method] = ["minmax", "percentile", "entropy"]
methods = pytest.mark.parametrize("method", METHODS)
both = pytest.mark.parametrize("activations", ["uint8", "int8"])


def digits_in_8_bits(method: Method, activations: Any) -> Graph:
    data = np.split(held_out().inputs[:64], 8)
    return quantize(load_onnx(digits_model()), data, method=method, activations=activations)


@methods
@both
def test_digits_are_read_as_well_in_8_bits(method: Method, activations: Any) -> None:
    digits = held_out()
    made = digits_in_8_bits(method, activations)
    floats, whole = Session(load_onnx(digits_model()), threads=1), Session(made, threads=1)
    want, found = floats(digits.inputs), whole(digits.inputs)
    right = [(y.argmax(1) == digits.labels).mean() for y in (want, found)]
    assert right[0] - right[1] <= 0.005
    assert 0 < np.abs(want - found).mean() < 0.01 * np.abs(want).max(), "8 bits, and no more lost than that"
    if VNNI:
        steps = {s.node.op for s in whole.program.steps}
        assert steps == {"QuantizeLinear", "Reorder", "QLinearConv", "MaxPool", "QLinearAveragePool", "Reshape",
                         "QGemm", "DequantizeLinear"}  # fmt: skip


@methods
@both
def test_digits_in_8_bits_are_read_alike_in_onnx_runtime(method: Method, activations: Any, tmp_path: Path) -> None:
    referee()
    made, feeds = digits_in_8_bits(method, activations), {"image": held_out().inputs}
    found = Session(made, threads=1).run(feeds)["logits"]
    theirs = in_onnx_runtime(made, tmp_path / "digits.onnx", feeds)["logits"]
    (step,) = (float(made.initializers[n.inputs[1]]) for n in made.nodes if n.outputs == ("logits",))
    assert np.abs(found - theirs).max() <= 1.01 * step


def cut(graph: Graph) -> tuple[Graph, dict[str, str]]:
    """The layers side by side: each reads its quantised operands from outside, and gives its quantised result.

    A network of random weights makes much of a little: where one result falls on the other side of a tie, a
    hundredth of the next layer moves, and after fifty layers nothing is alike. What a convolution adds to a sum stays
    inside, since the two run as one.
    """
    readers: dict[str, list[Node]] = {}
    for node in graph.nodes:
        for name in node.inputs:
            readers.setdefault(name, []).append(node)
    inside = {
        n.outputs[0]
        for n in graph.nodes
        if n.op == "QuantizeLinear"
        and [r.op for d in readers[n.outputs[0]] for r in readers.get(d.outputs[0], [])] == ["Add"]
    }
    results = [n.outputs[0] for n in graph.nodes if n.op == "QuantizeLinear" and n.outputs[0] not in inside]
    given = {name: f"{name}:given" for name in results}
    nodes = [
        Node(n.op, (given.get(n.inputs[0], n.inputs[0]), *n.inputs[1:]), n.outputs, n.attrs, name=n.name)
        if n.op == "DequantizeLinear" else n
        for n in graph.nodes
    ]  # fmt: skip
    types = {**graph.types, **{g: graph.types[n] for n, g in given.items()}}
    inputs = (*graph.inputs, *given.values())
    return infer(graph.but(inputs=inputs, outputs=tuple(results), nodes=tuple(nodes), types=types)), given


@both
def test_every_layer_of_resnet50_is_equal_in_onnx_runtime_to_one_step(activations: Any, tmp_path: Path) -> None:
    referee()
    image = np.random.default_rng(1).standard_normal((1, 3, 224, 224)).astype(F32)
    graph = quantize(resnet50(1, random_weights()), [image], activations=activations)
    assert len([n for n in graph.nodes if n.op == "QuantizeLinear"]) > 70
    layers, given = cut(graph)
    path = graph.but(outputs=tuple(given))
    values = Session(path, threads=1).run({"data": image})
    feeds = {"data": image, **{g: values[n] for n, g in given.items()}}
    session = Session(layers, threads=1)
    found, theirs = session.run(feeds), in_onnx_runtime(layers, tmp_path / "layers.onnx", feeds)
    for name, want in theirs.items():
        apart = np.abs(found[name].astype(np.int64) - want)
        assert (apart > 0).mean() < 1e-4, name
        # what one step of a convolution is to the sum that it goes into may be two
        assert apart.max() <= (1 if activations == "uint8" else 2), name
    if VNNI:
        ops = [s.node.op for s in session.program.steps if s.node.op != "Reorder"]
        if activations == "uint8":  # ONNX Runtime computes on whole numbers too, and neither meets another tie
            whole = in_onnx_runtime(graph.but(outputs=(list(given)[-1],)), tmp_path / "whole.onnx", {"data": image})
            np.testing.assert_array_equal(whole[list(given)[-1]], values[list(given)[-1]])
        assert (ops.count("QLinearConv"), ops.count("Fused")) == (37, 16)
        assert not {"Conv", "Add", "Gemm"} & set(ops)


def operands_of_every_kind() -> tuple[Graph, list[dict[str, Array]]]:
    """Constants on either side, shared weights, joined and moved values, outputs in the middle, floats."""
    g, rng = GraphBuilder(), np.random.default_rng(2)
    x = g.input("x", f32(2, 4, 6, 6))
    w = g.const(rng.standard_normal((4, 4, 1, 1)).astype(F32))
    a, b = g.Relu(g.Conv(x, w)), g.Clip(g.Conv(x, w, g.const(rng.random(4).astype(F32))), None, g.const(F32(6)))
    joined = g.Concat(a, g.Add(b, g.const(rng.random((4, 1, 1)).astype(F32))), axis=1)
    mean = g.Flatten(g.AveragePool(joined, kernel_shape=[3, 3], strides=[3, 3]))
    rows = g.MatMul(g.Mul(mean, g.Sigmoid(mean)), g.const(rng.standard_normal((32, 5)).astype(F32)))
    left = g.MatMul(g.const(rng.standard_normal((3, 2)).astype(F32)), rows)
    y = g.Gemm(left, g.const(rng.standard_normal((5, 7)).astype(F32)), g.const(np.full(7, 1e-3, F32)), alpha=0.5)
    data = [{"x": rng.standard_normal((2, 4, 6, 6)).astype(F32)} for _ in range(4)]
    return g.graph([g.Neg(y), joined, g.Exp(x)]), data


def test_operands_of_every_kind() -> None:
    graph, data = operands_of_every_kind()
    made = quantize(graph, data)
    assert made.outputs == graph.outputs
    counted = {n.outputs[0] for n in made.nodes if n.op == "QuantizeLinear"}
    assert len(counted) >= 12
    want, found = (Session(g, threads=1).run(data[0]) for g in (graph, made))
    for name in graph.outputs:
        assert np.abs(found[name] - want[name]).mean() < 0.03 * np.abs(want[name]).max()


def test_operands_of_every_kind_in_onnx_runtime(tmp_path: Path) -> None:
    referee()
    graph, data = operands_of_every_kind()
    made = quantize(graph, data)
    found, theirs = Session(made, threads=1).run(data[0]), in_onnx_runtime(made, tmp_path / "made.onnx", data[0])
    for name in graph.outputs:
        assert np.abs(found[name] - theirs[name]).max() < 0.02 * np.abs(theirs[name]).max()


def test_what_is_skipped_stays_as_it_was() -> None:
    g = GraphBuilder()
    x = g.input("x", f32("n", 3))
    graph = g.graph([g.Add(g.MatMul(x, g.const(np.eye(3, dtype=F32))), g.Mul(x, x))])
    x_data = [np.arange(6, dtype=F32).reshape(2, 3)]
    assert "MatMul_1" in {n.name for n in graph.nodes}
    made = quantize(graph, x_data, skip=["MatMul", "Add", "Mul"])
    assert [n.op for n in made.nodes] == ["MatMul", "Mul", "Add"]
    by_name = quantize(graph, x_data, skip=[n.name for n in graph.nodes if n.op != "MatMul"])
    real = {n.op: n.inputs for n in by_name.nodes}
    assert real["Add"][0] == next(n.outputs[0] for n in by_name.nodes if n.op == "DequantizeLinear" and
                                  n.inputs[0].startswith("MatMul"))  # fmt: skip


def test_scales_leave_room_for_the_bias() -> None:
    """A filter of tiny weights and a large bias: the bias is counted in steps of the sums, in 32 bits."""
    g = GraphBuilder()
    x = g.input("x", f32(1, 1, 4, 4))
    w = np.array([1, 1e-12], F32).reshape(2, 1, 1, 1)
    graph = g.graph([g.Conv(x, g.const(w), g.const(np.array([0, 1000], F32)))])
    image = np.linspace(0, 1, 16, dtype=F32).reshape(1, 1, 4, 4)
    made = quantize(graph, [image])
    assert np.abs(Session(made, threads=1)(image) - Session(graph, threads=1)(image)).max() <= 1000 / 255


def test_ranges() -> None:
    g = GraphBuilder()
    graph = infer(g.graph([g.Abs(g.input("x", f32("n")))]))
    name = graph.outputs[0]
    bulk = np.random.default_rng(3).standard_normal(100_000).astype(F32)
    data = [{"x": bulk}, {"x": np.array([-50], F32)}]
    assert ranges(graph, [name], data)[name] == (0.0, 50.0)
    low, high = ranges(graph, [name], data, "percentile", 99.9)[name]
    assert low <= 0.01
    assert 3 < high < 4
    _, high = ranges(graph, [name], data, "entropy")[name]
    assert 3 < high < 25
    flat = Histogram(-1.0, 1.0, np.ones(8192, np.int64))
    assert flat.entropy() == pytest.approx((-1.0, 1.0))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"data": []}, "there is no data"),
        ({"method": "mean"}, "'mean' is unknown"),
        ({"activations": "int5"}, "'int5' is unknown"),
        ({"weights": "uint8"}, "'uint8' is unknown"),
        ({"method": "percentile", "percentile": 3}, "percentile=3"),
        ({"data": [np.array([np.nan, 1], F32)]}, "is not finite on the data"),
        ({"data": [[np.ones(2, F32)] * 3]}, "3 arrays for 1 inputs"),
    ],
)
def test_what_cannot_be_calibrated_is_refused(given: dict[str, Any], message: str) -> None:
    g = GraphBuilder()
    x = g.input("x", Tensor(DType.FLOAT, ("n",)))
    with pytest.raises(InputError, match=message):
        quantize(g.graph([g.Mul(x, x)]), **{"data": [np.ones(2, F32)], **given})
