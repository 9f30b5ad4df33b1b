"""Sums of products of bytes in float32 are those of the references, to the bit, whatever the processor adds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mezzo.ops import DType, Tensor
from mezzo.runtime.execution.session import Session
from mezzo.runtime.ir.graph import Graph, GraphBuilder
from mezzo.runtime.ir.infer import infer
from mezzo.runtime.passes.byte_sums import in_floats
from mezzo.runtime.passes.precision import narrowed

RNG = np.random.default_rng(0)
SHAPES: dict[str, list[Any]] = {  # of an operand and of weights, and attributes
    "MatMulInteger": [((3, 5), (5, 4), {}), ((2, 3, 7), (7, 1), {}), ((4, 3000), (3000, 2), {})],
    "ConvInteger": [
        ((2, 3, 6, 5), (4, 3, 3, 2), {"pads": [1, 0, 2, 1], "strides": [2, 1]}),
        ((1, 4, 9), (6, 2, 3), {"group": 2, "dilations": [2], "auto_pad": "SAME_UPPER"}),
        ((1, 1500, 2, 2), (2, 1500, 1, 1), {}),
    ],
}


def numbers(dtype: Any, *shape: int) -> np.ndarray[Any, Any]:
    """Bytes of the whole range, its ends among them."""
    info = np.iinfo(dtype)
    return RNG.choice([info.min, info.max, *RNG.integers(info.min, info.max, 5)], shape).astype(dtype)


def model(op: str, x: Any, w: Any, attrs: dict[str, Any], zero: str, points: str, cast: bool) -> tuple[Graph, Any]:
    """A graph of one product, and its feeds."""
    g = GraphBuilder()
    operand, feeds = g.input("x", Tensor(DType.of(x.dtype), x.shape)), {"x": x}
    point: Any = {"none": None, "known": g.const(numbers(x.dtype)), "fed": None}[zero]
    if zero == "fed":
        point, feeds["zero"] = g.input("zero", Tensor(DType.of(x.dtype), (1,))), numbers(x.dtype, 1)
    results = w.shape[0 if "Conv" in op else 1]
    count = {"none": (), "one": (), "each": (results,)}[points]
    at = None if points == "none" else g.const(numbers(w.dtype, *count))
    if op.startswith("QLinear"):
        scales = g.const(np.float32(0.03)), g.const(RNG.random(count or 1, np.float32) + 0.5)
        bias = (g.const(RNG.integers(-9999, 9999, results).astype(np.int32)),) if "Conv" in op else ()
        to = g.const(np.float32(300)), g.const(numbers(x.dtype))
        y: Any = g.op(op, operand, scales[0], point, g.const(w), scales[1], at, *to, *bias, **attrs)
    else:
        y = g.op(op, operand, g.const(w), point, at, **attrs)
    return g.graph([g.Cast(y, to=DType.FLOAT.onnx) if cast else y]), feeds


CASES = [
    (op, shape, x, w, zero, points, cast)
    for n, (op, shape) in enumerate((op, shape) for op, shapes in SHAPES.items() for shape in shapes)
    for m, (x, w) in enumerate([(np.uint8, np.int8), (np.uint8, np.uint8), (np.int8, np.int8)])
    for k, zero in enumerate(["none", "known", "fed"])
    for points, cast in [[("none", False), ("one", True), ("each", False)][(n + m + k) % 3]]
]


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c[0]}-{c[1][1]}-{c[2].__name__}-{c[3].__name__}-{c[4]}-{c[5]}")
@pytest.mark.parametrize("rounded", [False, True])
def test_sums_are_exact(case: Any, rounded: bool) -> None:
    op, (shape, weights, attrs), x, w, zero, points, cast = case
    if rounded:
        zero, points = zero.replace("none", "known"), points.replace("none", "one")
        op = {"MatMulInteger": "QLinearMatMul", "ConvInteger": "QLinearConv"}[op]
    graph, feeds = model(op, numbers(x, *shape), numbers(w, *weights), attrs, zero, points, cast)
    graph = infer(graph, {})
    floats = in_floats(graph, lambda around, node: "none does")
    assert op not in {n.op for n in floats.nodes}
    (exact,) = Session(graph, onednn=False).run(feeds).values()
    for fast in (Session(floats), Session(graph)):
        (got,) = fast.run(feeds).values()
        assert got.dtype == exact.dtype
        np.testing.assert_array_equal(got, exact)


def test_weights_with_two_zero_points() -> None:
    """Two products of one array, whose distances differ, and whose nodes have no names."""
    g, w = GraphBuilder(), numbers(np.int8, 6, 4)
    x, b = g.input("x", Tensor(DType.UINT8, (3, 6))), g.const(w)
    points = [g.const(np.int8(n)) for n in (3, -100)]
    graph = g.graph([g.MatMulInteger(x, b, None, p) for p in points])
    graph = infer(graph.but(nodes=tuple(replace(n, name="") for n in graph.nodes)), {})
    feeds = {"x": numbers(np.uint8, 3, 6)}
    exact = Session(graph, onednn=False).run(feeds).values()
    for got, right in zip(
        Session(in_floats(graph, lambda around, node: "none does")).run(feeds).values(), exact, strict=True
    ):
        np.testing.assert_array_equal(got, right)


@pytest.mark.parametrize("op", ["MatMulInteger", "QLinearMatMul"])
@pytest.mark.parametrize("depth", [5, 3000])
def test_exact_products_are_not_narrowed(op: str, depth: int) -> None:
    x, w = numbers(np.uint8, 2, depth), numbers(np.int8, depth, 3)
    floats = infer(in_floats(infer(model(op, x, w, {}, "known", "one", False)[0], {}), lambda around, node: "none"), {})
    for to in (DType.BFLOAT16, DType.FLOAT16):
        assert narrowed(floats, lambda around, node: None, to) is floats


def test_what_is_not_taken() -> None:
    taken = infer(
        model("MatMulInteger", numbers(np.uint8, 3, 5), numbers(np.int8, 5, 4), {}, "fed", "one", False)[0], {}
    )
    assert in_floats(taken, lambda around, node: None) is taken  # a kernel adds bytes
    grouped = ((1, 600, 12, 12), (2, 300, 12, 12), {"group": 2})
    large = model(
        "ConvInteger",
        numbers(np.uint8, *grouped[0]),
        np.full(grouped[1], -128, np.int8),
        grouped[2],
        "none",
        "none",
        False,
    )
    declined: list[Any] = []
    graph = infer(large[0], {})
    assert in_floats(graph, lambda around, node: "none does", declined) is graph
    assert "larger than float32 holds" in declined[-1].reason
