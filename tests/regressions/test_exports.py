"""What architectures exported from PyTorch got wrong (tests/test_exported_architectures.py), as few nodes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import mezzo as mz
from mezzo.exporters import to_onnx
from mezzo.importers import load_onnx
from mezzo.ops import DType, Tensor
from mezzo.ops.nn.windows import Window, window
from mezzo.ops.types import f32
from mezzo.runtime.execution.session import Session
from mezzo.runtime.ir.graph import GraphBuilder

from ..peers import peer
from .cases import check, fed, numbers


def test_the_channels_of_a_segformer_go_first_for_a_convolution() -> None:
    g = GraphBuilder()
    x = g.Add(numbers(32), g.MatMul(g.input("x", f32("n", 256, 16)), numbers(16, 32)))
    graph = g.graph([g.Transpose(x, perm=[0, 2, 1])])
    check(graph, fed(graph, n=1), fed(graph, n=3))


def test_the_scaled_residual_of_a_convnext() -> None:
    g = GraphBuilder()
    x = g.Add(g.MatMul(g.input("x", f32("n", 8, 8, 64)), numbers(64, 16)), numbers(16))
    graph = g.graph([g.Transpose(g.Mul(numbers(16), x), perm=[0, 3, 1, 2])])
    check(graph, fed(graph, n=1), fed(graph, n=3))


@pytest.mark.parametrize("heads", [1, 2])
def test_keys_and_values_of_one_head_are_split_apart(heads: int) -> None:
    g = GraphBuilder()
    q, kv = g.input("q", f32("n", heads, 64, 16)), g.input("kv", f32("n", 4, 2, heads, 16))
    both = g.op("Split", g.Transpose(kv, perm=[2, 0, 3, 1, 4]), np.array([1, 1]), axis=0, outputs=2)
    k, v = (g.Squeeze(part, np.array([0])) for part in both)
    scores = g.Softmax(g.Mul(g.MatMul(q, g.Transpose(k, perm=[0, 1, 3, 2])), np.float32(0.25)))
    graph = g.graph([g.MatMul(scores, v)])
    check(graph, fed(graph, n=1), fed(graph, n=3))


@pytest.mark.parametrize("channels", [6, 16])
def test_a_poolformer_takes_the_pixel_from_the_average_around_it(channels: int) -> None:
    g = GraphBuilder()
    x = g.input("x", f32("n", channels, 16, 16))
    graph = g.graph([g.Sub(g.AveragePool(x, kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[1, 1]), x)])
    check(graph, fed(graph, n=1), fed(graph, n=3))


def test_a_tagger_has_its_tags_before_its_words() -> None:
    g = GraphBuilder()
    x = g.Transpose(g.input("x", f32("n", "length", 12)), perm=[1, 0, 2])
    y = g.op("LSTM", x, numbers(2, 64, 12) / 4, numbers(2, 64, 16) / 4, hidden_size=16, direction="bidirectional")
    read = g.Reshape(g.Transpose(y, perm=[2, 0, 1, 3]), np.array([0, 0, -1]))
    graph = g.graph([g.Transpose(g.Add(g.MatMul(read, numbers(32, 7)), numbers(7)), perm=[0, 2, 1])])
    check(graph, *(fed(graph, n=n, length=length) for n, length in ((1, 5), (2, 5), (3, 1), (5, 17))))


@pytest.mark.parametrize("include", [0, 1])
def test_a_window_that_is_larger_than_the_image_costs_no_more_than_the_image(include: int) -> None:
    """EfficientNet's last pooling, 320 times 320 over 2 times 2: it went over 102,400 places of padding."""
    g = GraphBuilder()
    x = g.input("x", f32("n", 6, 2, 3))
    y = g.AveragePool(x, kernel_shape=[320, 320], strides=[320, 320], ceil_mode=1, count_include_pad=include)
    graph = g.graph([y, g.MaxPool(x, kernel_shape=[320, 320], strides=[640, 320], ceil_mode=1, dilations=[2, 1])])
    check(graph, fed(graph, n=2))
    feeds = fed(graph, n=2)
    average, largest = Session(graph).run(feeds).values()
    np.testing.assert_allclose(average[..., 0, 0], feeds["x"].mean((2, 3)), rtol=1e-5)
    np.testing.assert_array_equal(largest[..., 0, 0], feeds["x"][:, :, 0].max(2))
    assert window(3, 320, 640, 2, (1, 1), "NOTSET", 1) == Window(3, 640, 2, 1, 1, 1)


def test_an_output_of_unknown_rank_is_read_back() -> None:
    """onnx.checker refused the file; ONNX Runtime takes it."""
    g = GraphBuilder()
    y = g.Squeeze(g.Reshape(g.input("x", f32(1, 2)), g.input("shape", Tensor(DType.INT64, ("n",)))))
    graph = load_onnx(to_onnx(g.graph([y])).SerializeToString())
    feeds = {"x": np.ones((1, 2), np.float32), "shape": np.array([1, 2, 1])}
    assert Session(graph).run(feeds)[graph.outputs[0]].shape == (2,)


@pytest.mark.parametrize("op", ["Relu", "Reshape"])
def test_outputs_without_a_rank_are_saved(op: str, tmp_path: Path) -> None:
    """The checker of onnx wants a shape, which files do not always have; it is told where it follows."""
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3])]
    if op == "Reshape":
        inputs.append(helper.make_tensor_value_info("s", TensorProto.INT64, [None]))
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    node = helper.make_node(op, [i.name for i in inputs], ["y"])
    model = helper.make_model(helper.make_graph([node], "g", inputs, [output]))
    mz.onnx.save(mz.onnx.load(model.SerializeToString()), tmp_path / "m.onnx")
    written = onnx.load(tmp_path / "m.onnx").graph.output[0].type.tensor_type
    assert [d.dim_value for d in written.shape.dim] == ([1, 3] if op == "Relu" else [])
    assert written.HasField("shape") == (op == "Relu")
    feeds = {"x": np.ones((1, 3), np.float32), "s": np.array([3, 1, 1])}
    found = mz.load(tmp_path / "m.onnx").run({i.name: feeds[i.name] for i in inputs})["y"]
    assert found.shape == ((1, 3) if op == "Relu" else (3, 1, 1))


@pytest.mark.parametrize(("op", "shape"), [("Conv", (2, 3, 1, 1)), ("MatMul", (3, 2)), ("Gemm", (3, 2))])
def test_floats_of_two_widths_are_written_with_casts(op: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    peer("onnxruntime")
    rng = np.random.default_rng(0)
    g = GraphBuilder()
    x = g.input("x", f32(2, 3, 1, 1) if op == "Conv" else f32(2, 3))
    weight = rng.standard_normal(shape).astype(np.float32)
    graph = g.graph([g.Cast(g.op(op, g.Cast(x, to=DType.BFLOAT16.onnx), g.const(weight)), to=DType.FLOAT.onnx)])
    mz.onnx.save(graph, tmp_path / "m.onnx")
    onnx.checker.check_model(str(tmp_path / "m.onnx"), full_check=True)
    feeds = {"x": rng.standard_normal((2, 3, 1, 1) if op == "Conv" else (2, 3)).astype(np.float32)}
    (want,), (found,) = mz.Session(graph).run(feeds).values(), mz.load(tmp_path / "m.onnx").run(feeds).values()
    assert np.abs(want - found).max() <= 0.01 * np.abs(want).max()


def test_scales_of_resize_in_float64_are_written_as_float32(tmp_path: Path) -> None:
    """The older exporter of PyTorch writes them so where float64 is the default, and no runtime takes them."""
    onnxruntime = peer("onnxruntime")
    g = GraphBuilder()
    scales = g.Concat(g.const(np.ones(2)), g.const(np.array([2.0, 1.5])), axis=0)
    y = g.Resize(g.input("x", f32(1, 1, 2, 4)), None, scales, mode="linear")
    graph = g.graph([y])
    mz.onnx.save(graph, tmp_path / "m.onnx")
    x = np.random.default_rng(0).standard_normal((1, 1, 2, 4)).astype(np.float32)
    (found,) = onnxruntime.InferenceSession(str(tmp_path / "m.onnx")).run(None, {"x": x})
    assert found.shape == (1, 1, 4, 6)
    assert np.abs(found - mz.Session(graph)(x)).max() < 1e-5
