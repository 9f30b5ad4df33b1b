"""What oneDNN's kernels have answered wrongly beside a neighbour: post-ops, axes of size 1, layouts, bytes shared."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mezzo.ops import Tensor
from mezzo.ops.types import f32
from mezzo.runtime.ir.graph import Graph, GraphBuilder

from ..random_graphs import search
from ..random_graphs.printed import numbers


def check(graph: Graph) -> None:
    """The graph answers as its operators do one by one."""
    types = ((n, graph.types[n]) for n in graph.inputs)
    search.check(graph, {n: numbers(*t.sizes) for n, t in types if isinstance(t, Tensor)})


UNIT = [(2, 8, 1, 1), (3, 8, 1), (2, 16, 1, 1), (1, 8, 1, 1), (3, 1, 1, 1)]


@pytest.mark.parametrize(("dims", "perm"), [((8, 50, 64), (1, 2, 0)), ((1, 16, 64), (0, 2, 1)), ((1, 4, 6), (1, 0, 2))])
@pytest.mark.parametrize("columns", [1, 16])
def test_a_product_that_is_turned(dims: tuple[int, ...], perm: tuple[int, ...], columns: int) -> None:
    """It was asked for in the order behind the Transpose, and made as one product of two matrices."""
    g = GraphBuilder()
    y = g.Add(g.MatMul(g.input("x", f32(*dims)), numbers(dims[-1], columns)), numbers(columns))
    check(g.graph([g.Transpose(y, perm=perm)]))


@pytest.mark.parametrize("dims", UNIT)
@pytest.mark.parametrize("op", ["BatchNormalization", "InstanceNormalization", "Mul and Add", "twice and Add"])
def test_channels_of_single_pixels(op: str, dims: tuple[int, ...]) -> None:
    """oneDNN took the numbers of other channels."""
    g = GraphBuilder()
    x, channels = g.input("x", f32(*dims)), dims[1]
    spread = (channels, *[1] * (len(dims) - 2))
    match op:
        case "BatchNormalization":
            y = g.BatchNormalization(x, *(numbers(channels) for _ in range(3)), abs(numbers(channels)))
        case "InstanceNormalization":
            y = g.InstanceNormalization(x, numbers(channels), numbers(channels))
        case "Mul and Add":
            y = g.Add(g.Mul(x, numbers(*spread)), numbers(*spread))
        case _:
            y = g.Add(g.Add(x, x), numbers(*spread))
    check(g.graph([y]))


@pytest.mark.parametrize("dims", [(2, 8, 1, 5), (2, 8, 5, 1), (1, 8, 1, 5), (2, 8, 4, 5), (2, 8, 5)])
@pytest.mark.parametrize("axis", [-1, 1, 0])
def test_a_softmax_and_channels(dims: tuple[int, ...], axis: int) -> None:
    """1e34, or the end of the process: what followed was read outside of its bytes."""
    g = GraphBuilder()
    y = g.Softmax(g.input("x", f32(*dims)), axis=axis)
    check(g.graph([g.Mul(y, numbers(8, *[1] * (len(dims) - 2)))]))


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax"])
def test_a_softmax_over_its_operand(op: str) -> None:
    """Its result was written over an operand that it adds at the end, and before that numbers on the way."""
    g = GraphBuilder()
    x, other = (g.input(n, f32(1, 6, 1)) for n in "xy")
    y = g.Add(g.op(op, x, axis=-1), g.Abs(other))
    check(g.graph([g.Transpose(y, perm=(0, 2, 1))]))


@pytest.mark.parametrize("axis", [0, 1, 2, 3])
@pytest.mark.parametrize("filters", [6, 16])
def test_a_mean_of_an_image_along_one_axis(axis: int, filters: int) -> None:
    g = GraphBuilder()
    y = g.Relu(g.Conv(g.input("x", f32(2, 3, 8, 9)), numbers(filters, 3, 3, 3)))
    check(g.graph([g.ReduceMean(y, np.array([axis]), keepdims=1)]))


@pytest.mark.parametrize("op", ["ReduceMean", "ReduceSum", "ReduceL2"])
@pytest.mark.parametrize("perm", [(0, 3, 1, 2), (0, 2, 3, 1), (0, 2, 1, 3), (1, 0, 2, 3)])
@pytest.mark.parametrize("axes", [(-1,), (1,), (0,), (2, 3)])
def test_a_reduction_of_what_is_turned(op: str, perm: tuple[int, ...], axes: tuple[int, ...]) -> None:
    """A result of four axes was taken for the primitive's own four."""
    g = GraphBuilder()
    x = g.input("x", f32(2, 5, 6, 7))
    outputs = [g.op(op, g.Transpose(g.Abs(x), perm=perm), np.array(axes), keepdims=kept) for kept in (0, 1)]
    check(g.graph(outputs))


@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div"])
@pytest.mark.parametrize(
    ("dims", "other"), [((1,), (1, 1)), ((5,), (1, 1)), ((4, 7, 4), (1, 1, 1, 1)), ((3,), (1, 1, 1))]
)
def test_a_number_of_more_axes(op: str, dims: tuple[int, ...], other: tuple[int, ...]) -> None:
    """A constant of the result's size was taken for the operand: the answer was the constant and itself."""
    for turned in (False, True):
        g = GraphBuilder()
        operands: list[Any] = [g.input("x", f32(*dims)), numbers(*other)]
        check(g.graph([g.op(op, *(reversed(operands) if turned else operands))]))


def test_a_row_beside_a_turned_operand() -> None:
    g = GraphBuilder()
    a, b = g.input("a", f32(3, 12)), g.input("b", f32(12, 3))
    turned = g.Transpose(b, perm=(1, 0))
    check(g.graph([g.Add(g.Add(a, turned), numbers(1, 12)), g.Sum(a, turned, numbers(1, 12))]))


@pytest.mark.parametrize("op", ["AveragePool", "MaxPool", "GlobalMaxPool"])
def test_a_pooling_and_what_dies_with_it(op: str) -> None:
    """A sum behind a pooling is taken by oneDNN, and left out."""
    g = GraphBuilder()
    window: dict[str, Any] = {} if op.startswith("Global") else {"kernel_shape": [1], "strides": [1]}
    x, other = (g.input(n, f32(3, 8, 1)) for n in "xy")
    check(g.graph([g.Transpose(g.Add(g.op(op, x, **window), g.Abs(other)), perm=(0, 2, 1))]))


def test_a_mean_by_pooling_and_what_dies_with_it() -> None:
    g = GraphBuilder()
    x, other = g.input("x", f32(2, 6, 5, 1)), g.input("y", f32(2, 5, 1))
    y = g.Add(g.ReduceMean(x, np.array([1]), keepdims=0), g.Abs(other))
    check(g.graph([g.Transpose(y, perm=(0, 2, 1))]))


@pytest.mark.parametrize("wanted", [0, 1, 2])
def test_one_result_of_several(wanted: int) -> None:
    """The first result was made, whichever was wanted."""
    g = GraphBuilder()
    made = g.op("LayerNormalization", g.input("x", f32(3, 5)), numbers(5), outputs=3, axis=-1)
    check(g.graph([made[wanted]]))


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax", "LayerNormalization"])
@pytest.mark.parametrize("then", ["Add", "Mul"])
@pytest.mark.parametrize("dims", [(1, 1, 1, 1), (2, 3, 1)])
def test_rows_beside_what_they_were_made_of(dims: tuple[int, ...], then: str, op: str) -> None:
    """The result was written over the operand of its post-op, which is what the rows were made of."""
    for axis in range(len(dims)) if op != "LayerNormalization" else [len(dims) - 1]:
        g = GraphBuilder()
        x = g.Exp(g.input("x", f32(*dims)))
        rows = g.op(op, x, *(() if "Soft" in op else (np.ones(dims[-1], np.float32),)), axis=axis)
        y = g.Tanh(g.op(then, x, rows))
        check(g.graph([g.MatMul(y, np.eye(dims[-1], dtype=np.float32))]))


@pytest.mark.parametrize("op", ["Mul", "Add", "Max"])
@pytest.mark.parametrize("dims", [(2, 32, 2, 3), (1, 16, 5, 7)])
def test_groups_of_four_channels_and_what_follows(dims: tuple[int, ...], op: str) -> None:
    """In bfloat16 oneDNN wrote eight numbers to blocks of four: over the next ones, and beyond the arena."""
    g = GraphBuilder()
    y = g.Conv(g.input("x", f32(*dims)), numbers(dims[1], 4, 1, 3), group=dims[1] // 4)
    check(g.graph([g.op(op, g.Relu(y), y)]))


@pytest.mark.parametrize("op", ["Conv", "ConvTranspose"])
def test_a_known_column_of_pixels(op: str) -> None:
    """Images one pixel wide are asked for as rows; one that is known was packed for a column."""
    g = GraphBuilder()
    check(g.graph([g.op(op, numbers(2, 3, 8, 1), g.input("w", f32(3, 3, 2, 1)))]))


@pytest.mark.parametrize("pixels", [(2,), (4, 3)])
@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("dims", ["channels", "all"])
def test_an_image_resized_to_one_pixel(dims: str, mode: str, pixels: tuple[int, ...]) -> None:
    """The first channel's number was taken for all channels."""
    g = GraphBuilder()
    ones = (1,) * len(pixels)
    sizes = g.const(np.array([1, 3, *ones]))
    y = g.Resize(g.input("x", f32(1, 3, *pixels)), None, None, sizes, mode=mode, nearest_mode="ceil")
    check(g.graph([g.Mul(y, numbers(1, 3, *ones) if dims == "channels" else g.input("c", f32(1, 3, *ones)))]))


@pytest.mark.parametrize("perm", [(0, 2, 3, 1), (1, 2, 3, 0)])
def test_slopes_of_channels_of_turned_images(perm: tuple[int, ...]) -> None:
    """Other channels' slopes were taken where the channels came neither second nor last in memory."""
    dims = [0] * 4
    for i, p in enumerate(perm):
        dims[p] = (2, 6, 3, 4)[i]
    g = GraphBuilder()
    check(g.graph([g.PRelu(g.Transpose(g.input("x", f32(*dims)), perm=perm), numbers(6, 1, 1))]))
