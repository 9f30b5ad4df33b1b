"""What the search over random graphs has found, beside what has a place of its own here."""

from __future__ import annotations

from mezzo.ops.types import f32
from mezzo.runtime.graph import GraphBuilder

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
