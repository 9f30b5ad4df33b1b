"""Axes of size 1, which may stand anywhere in a layout: the bytes are the same, the names are not."""

from __future__ import annotations

import numpy as np
import pytest

from mezzo.ops.types import f32
from mezzo.runtime.ir.graph import GraphBuilder

from .cases import check, numbers


@pytest.mark.parametrize("dims", [(2, 3, 1), (1, 3, 2), (2, 1, 3), (4, 2, 1)])
@pytest.mark.parametrize("perm", [(1, 2, 0), (2, 0, 1), (0, 2, 1), (2, 1, 0), (1, 0, 2)])
def test_a_transpose_and_a_split(dims: tuple[int, ...], perm: tuple[int, ...]) -> None:
    turned = [dims[p] for p in perm]
    axis = turned.index(2)
    g = GraphBuilder()
    y = g.Transpose(g.input("x", f32(*dims)), perm=perm)
    check(g.graph(list(g.Split(y, np.array([1, 1]), axis=axis, outputs=2))))


def test_a_transpose_a_concat_and_a_sum() -> None:
    g = GraphBuilder()
    y = g.Transpose(g.input("x", f32(2, 3, 4)), perm=(0, 2, 1))
    check(g.graph([g.ReduceL1(g.Concat(y, g.input("z", f32(2, 4, 3)), axis=1), np.array([1]))]))


@pytest.mark.parametrize("dims", [(2, 6, 1, 12), (2, 6, 12, 1), (1, 6, 1, 1), (3, 1, 1, 5)])
def test_a_transpose_and_an_average_of_images(dims: tuple[int, ...]) -> None:
    g = GraphBuilder()
    check(g.graph([g.GlobalAveragePool(g.Transpose(g.input("x", f32(*dims)), perm=(0, 2, 3, 1)))]))


def test_a_transpose_of_unit_axes_and_a_rectifier() -> None:
    g = GraphBuilder()
    check(g.graph([g.Relu(g.Transpose(g.input("x", f32(1, 8, 1, 1)), perm=(0, 2, 3, 1)))]))


@pytest.mark.parametrize(
    ("dims", "perm", "axis"), [((1, 7, 12, 16), (0, 2, 3, 1), 3), ((1, 17, 1, 2), (3, 2, 1, 0), 2)]
)
def test_a_part_of_one_entry(dims: tuple[int, ...], perm: tuple[int, ...], axis: int) -> None:
    g = GraphBuilder()
    y = g.Transpose(g.input("x", f32(*dims)), perm=perm)
    size = dims[perm[axis]]
    parts = g.Split(y, np.array([2, size - 3, 1]), axis=axis, outputs=3)
    check(g.graph([parts[0], g.ReduceProd(parts[2], np.array([axis]))]))


def test_columns_of_images() -> None:
    g = GraphBuilder()
    y = g.Conv(g.input("x", f32(1, 17, 1, 6)), numbers(3, 17, 1, 1), strides=(2, 1))
    check(g.graph(list(g.Split(y, np.array([2, 3, 1]), axis=3, outputs=3))))


def test_a_softmax_of_averages_and_its_parts() -> None:
    g = GraphBuilder()
    y = g.Softmax(g.GlobalAveragePool(g.input("x", f32(16, 3, 5, 1))), axis=0)
    check(g.graph(list(g.Split(y, np.array([1, 2]), axis=1, outputs=2))))


@pytest.mark.parametrize("op", ["Add", "Mul", "Sub"])
@pytest.mark.parametrize("dims", [(16, 5, 5), (1, 16, 5, 5), (16, 1, 1), (5, 5), (1, 5, 1)], ids=str)
@pytest.mark.parametrize("constant", [False, True])
def test_images_in_blocks_and_an_operand_without_a_batch(op: str, dims: tuple[int, ...], constant: bool) -> None:
    g = GraphBuilder()
    y = g.Conv(g.input("x", f32(1, 16, 5, 5)), numbers(16, 16, 3, 3) / 8, pads=(1, 1, 1, 1))
    check(g.graph([g.op(op, y, numbers(*dims) if constant else g.input("z", f32(*dims)))]))
