"""Axes of size 1, which may stand anywhere in a layout: the bytes are the same, the names are not."""

from __future__ import annotations

import numpy as np
import pytest

from mezzo.ops.types import f32
from mezzo.runtime.graph import GraphBuilder

from .cases import check


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
