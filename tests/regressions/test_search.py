"""What the search over random graphs has found, beside what has a place of its own here."""

from __future__ import annotations

import numpy as np
import pytest

from mezzo.ops import DType, Tensor
from mezzo.ops.errors import ShapeError
from mezzo.ops.types import f32
from mezzo.runtime.execution.session import Session
from mezzo.runtime.ir.graph import GraphBuilder

from ..random_graphs.printed import numbers
from ..random_graphs.search import check


def test_a_constant_beside_a_permuted_tensor_lies_as_it_does() -> None:
    """Packed by the axes of the primitive, which are in the order of memory already, it stayed row-major."""
    g = GraphBuilder()
    x = g.input("x", f32(2, 1, 1, 2))
    y = g.Add(g.Transpose(x, perm=[2, 1, 3, 0]), numbers(1, 1, 2, 2))
    check(g.graph([y]), {"x": numbers(2, 1, 1, 2)})


def test_several_constants_of_other_ranks_beside_permuted_tensors() -> None:
    g = GraphBuilder()
    x = g.input("x", f32(3, 4, 5))
    y = g.Mul(g.Add(g.Transpose(x, perm=[2, 0, 1]), numbers(5, 3, 4)), numbers(3, 4))
    check(g.graph([g.Sub(numbers(1, 5, 3, 4), y)]), {"x": numbers(3, 4, 5)})


@pytest.mark.parametrize(("batch", "inputs", "hidden"), [(2, 2, 4), (16, 1, 2), (1, 2, 1), (3, 1, 1)])
@pytest.mark.parametrize(("op", "gates"), [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
def test_weights_of_few_units_are_packed(op: str, gates: int, batch: int, inputs: int, hidden: int) -> None:
    """Strides of axes of size 1 were such that oneDNN took the weights for another layout, which it reorders not."""
    g = GraphBuilder()
    x = g.input("x", f32(2, batch, inputs))
    w, r = numbers(1, gates * hidden, inputs), numbers(1, gates * hidden, hidden)
    check(g.graph([g.op(op, x, w, r, hidden_size=hidden)]), {"x": numbers(2, batch, inputs)})


def test_a_sum_is_not_left_out_where_pooling_gives_a_pixel() -> None:
    """oneDNN's plain pooling has no sum among its post-ops, and left it out without a word."""
    g = GraphBuilder()
    x = g.input("x", f32(1, 2, 1, 1))
    y = g.AveragePool(x, kernel_shape=(1, 1), ceil_mode=1, count_include_pad=1)
    check(g.graph([g.Sum(x, abs(numbers(1, 1)), g.const(np.float32(0.33)), y)]), {"x": numbers(1, 2, 1, 1)})


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_a_constant_among_parts_that_lie_otherwise(axis: int) -> None:
    """Where the parts are copied, no primitive was there to tell how a constant is packed."""
    g = GraphBuilder()
    x = g.input("x", f32(1, 1, 1, 24))
    y = g.ConvTranspose(x, numbers(1, 1, 1, 4))
    check(g.graph([g.Concat(y, y, numbers(1, 1, 1, 27), y, axis=axis)]), {"x": numbers(1, 1, 1, 24)})


def test_nothing_follows_a_convolution_of_whole_numbers() -> None:
    """What followed was taken into the step, and left out of the primitive."""
    g = GraphBuilder()
    x = g.input("x", Tensor(DType.INT8, (1, 1, 1, 1)))
    y = g.ConvInteger(x, g.const([[[[-1]]], [[[-31]]], [[[47]]]], DType.INT8))
    check(g.graph([g.Min(y, g.const(2, DType.INT32))]), {"x": np.array([[[[11]]]], np.int8)})


@pytest.mark.parametrize("op", ["LayerNormalization", "RMSNormalization"])
def test_a_scale_that_would_widen_is_refused_before_it_runs(op: str) -> None:
    """The reference widened the result, of which nothing was planned; ONNX spreads the scale over the tensor alone."""
    g = GraphBuilder()
    y = g.op(op, g.input("x", f32("n", 1, 2)), g.const(numbers(2, 1, 2)), axis=0, epsilon=1e-3)
    session = Session(g.graph([y]))
    assert session(numbers(2, 1, 2)).shape == (2, 1, 2)
    with pytest.raises(ShapeError, match="does not broadcast"):
        session(numbers(1, 1, 2))
