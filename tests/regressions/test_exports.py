"""What architectures exported from PyTorch got wrong (tests/test_exported_architectures.py), as few nodes."""

from __future__ import annotations

import numpy as np
import pytest

from mezzo.exporters import to_onnx
from mezzo.importers import load_onnx
from mezzo.ops import DType, Tensor
from mezzo.ops.nn.windows import Window, window
from mezzo.ops.types import f32
from mezzo.runtime.execution.session import Session
from mezzo.runtime.ir.graph import GraphBuilder

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
