"""Einstein sums as products of matrices: every shape of equation, planned, beside NumPy's sums in float64."""

from __future__ import annotations

import numpy as np
import pytest

from mezzo.exporters import to_onnx
from mezzo.importers import load_onnx
from mezzo.ops.types import f32
from mezzo.runtime.execution.session import Session
from mezzo.runtime.ir.graph import Graph, GraphBuilder

from .models import ort_run

SIZES = {"a": 3, "b": 2, "c": 4, "d": 5, "e": 1, "h": 3, "i": 6, "j": 7, "k": 4, "q": 8, "z": 0}
PRODUCTS = [
    "ij,jk->ik", "ij,kj->ik", "ji,jk->ki", "bij,bkj->bik", "bhqd,bhkd->bhqk", "bqhd,bkhd->bhqk", "bhqk,bkhd->bqhd",
    "bij,kij->kb", "abcd,cijd->iajb", "ab,bcd->dac", "abc,cd->abd", "bij,bj->bi", "bj,bij->ib", "i,i->", "bi,bi->b",
    "bcij,ik->bckj", "aij,j->ia", "hij,j->", "abij,hj->abih", "eij,ejk->eik",
]  # fmt: skip
OTHERS = [
    "ij->ji", "ij->i", "abc->", "ii->i", "ii", "ij,jk,ki->", "ij,jk,kd->id", "iij,jk->ik", "ij,kd->ikjd", "zi,ij->zj",
]  # fmt: skip


def graph_of(equation: str, dims: list[tuple[int | str, ...]]) -> Graph:
    g = GraphBuilder("sums")
    xs = [g.input(f"x{i}", f32(*d)) for i, d in enumerate(dims)]
    return g.graph([g.Einsum(*xs, equation=equation)])


def operands(equation: str, sizes: dict[str, int]) -> list[np.ndarray]:
    rng = np.random.default_rng(len(equation))
    terms = equation.partition("->")[0].split(",")
    return [rng.standard_normal([sizes[c] for c in t]).astype(np.float32) for t in terms]


def answer(session: Session, xs: list[np.ndarray]) -> np.ndarray:
    (y,) = session.run({f"x{i}": x for i, x in enumerate(xs)}).values()
    return np.asarray(y)


@pytest.mark.parametrize("equation", [*PRODUCTS, *OTHERS])
def test_sums_are_products(equation: str) -> None:
    xs = operands(equation, SIZES)
    session = Session(graph_of(equation, [x.shape for x in xs]))
    y = answer(session, xs)
    want = np.einsum(equation, *[x.astype(np.float64) for x in xs])
    assert y.shape == want.shape
    assert y.dtype == np.float32
    assert np.abs(y - want).max(initial=0) <= 1e-5 * np.abs(want).max(initial=1)
    if equation in PRODUCTS:
        assert "Einsum" not in {s.node.op for s in session.program.steps}


@pytest.mark.parametrize("equation", PRODUCTS)
def test_sizes_that_are_open(equation: str) -> None:
    """One session, fed with one size after another, an empty batch and axes of one element among them."""
    terms = equation.partition("->")[0].split(",")
    session = Session(graph_of(equation, [tuple(t) for t in terms]))
    for change in ({}, {"b": 0}, {"i": 1, "k": 1}, {"j": 0}, {}):
        xs = operands(equation, {**SIZES, **change})
        y = answer(session, xs)
        want = np.einsum(equation, *[x.astype(np.float64) for x in xs])
        assert y.shape == want.shape, change
        assert np.abs(y - want).max(initial=0) <= 1e-5 * np.abs(want).max(initial=1), change


@pytest.mark.parametrize(("equation", "shapes"), [
    ("bij,bjk->bik", ((1, 3, 4), (5, 4, 2))), ("...ij,...jk->...ik", ((2, 1, 3, 4), (6, 4, 5))),
    ("ij,jk->ik", ((3, 1), (4, 5))), ("i...,i...->...", ((3, 2, 1), (3, 5))), ("...i->...", ((2, 3, 4),)),
])  # fmt: skip
def test_axes_of_one_element_are_repeated(equation: str, shapes: tuple[tuple[int, ...], ...]) -> None:
    rng = np.random.default_rng(0)
    xs = [rng.standard_normal(s).astype(np.float32) for s in shapes]
    session = Session(graph_of(equation, [*shapes]))
    y = answer(session, xs)
    want = np.einsum(equation, *xs)
    np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("equation", PRODUCTS)
def test_opsets_without_the_operator(equation: str) -> None:
    """Written for opset 11, which has no Einsum, and read again, by ONNX Runtime too."""
    xs = operands(equation, SIZES)
    proto = to_onnx(graph_of(equation, [x.shape for x in xs]), opset=11)
    assert "Einsum" not in {n.op_type for n in proto.graph.node}
    feeds = {f"x{i}": x for i, x in enumerate(xs)}
    want = np.einsum(equation, *[x.astype(np.float64) for x in xs])
    (y,) = Session(load_onnx(proto)).run(feeds).values()
    np.testing.assert_allclose(y, want, rtol=1e-4, atol=1e-4)
    (y,) = ort_run(proto, feeds).values()
    np.testing.assert_allclose(y, want, rtol=1e-4, atol=1e-4)
