"""Kernels of 8-bit numbers against the references, and quantised graphs that become operators on whole numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from mezzo.exporters import to_onnx
from mezzo.ops import DType
from mezzo.ops.types import f32, type_of
from mezzo.runtime.backends.machine.blobs import loaded
from mezzo.runtime.backends.onednn.library import library
from mezzo.runtime.execution.session import Session
from mezzo.runtime.ir.graph import Graph, GraphBuilder
from mezzo.runtime.ir.infer import infer
from mezzo.runtime.passes.qdq import quantise
from mezzo.runtime.passes.rewrite import RewriteDeclined

from .models import ort_run

Array = np.ndarray[Any, Any]
FOUND = library()
VNNI = FOUND is not None and any(word in FOUND.isa for word in ("vnni", "bf16", "fp16", "amx"))
U8, S8, F32 = np.uint8, np.int8, np.float32
MICROSOFT = "com.microsoft"
RNG = np.random.default_rng(5)
BEGIN = RNG.bit_generator.state


@pytest.fixture(autouse=True)
def same_numbers_in_each_test() -> None:
    RNG.bit_generator.state = BEGIN


def eight(dtype: Any, *shape: int) -> Array:
    info = np.iinfo(dtype)
    return RNG.integers(info.min, info.max, shape, endpoint=True).astype(dtype)


def compared(op: str, x: Sequence[Array], constants: Sequence[Any], kernel: str = "", **attrs: Any) -> Array:
    """How far the kernel's results are from the reference's; it has to be that kernel where the machine has one."""
    g = GraphBuilder()
    given = [g.input(f"x{i}", type_of(a)) for i, a in enumerate(x)]
    # a number stands for the input of that position
    names = [given[c] if isinstance(c, int) else None if c is None else g.const(c) for c in constants]
    domain = MICROSOFT if op.startswith("QLinear") and op not in ("QLinearConv", "QLinearMatMul") else ""
    graph = g.graph(
        [
            g.op(
                op,
                *names,
                domain=MICROSOFT if op in ("QGemm", "MatMulNBits", "DynamicQuantizeMatMul") else domain,
                **attrs,
            )
        ]
    )
    feeds = dict(zip(given, x, strict=True))
    session = Session(graph, threads=1)
    if kernel and VNNI:
        assert kernel in {s.choice.kernel for s in session.program.steps}, session.program.steps[-1].declined
    (found,), (want,) = session.run(feeds).values(), Session(graph, onednn=False).run(feeds).values()
    assert (found.dtype, found.shape) == (want.dtype, want.shape)
    assert len(np.unique(want)) > 3, "the comparison says something"
    apart: Array = np.abs(found.astype(np.float64) - want.astype(np.float64))
    return apart


def within_a_step(apart: Array) -> bool:
    return bool(apart.max() <= 1 and (apart > 0).mean() < 0.005)


KINDS = [(U8, 0), (U8, 77), (S8, 0), (S8, -128), (S8, 13)]


@pytest.mark.parametrize(("dtype", "zero"), KINDS)
@pytest.mark.parametrize(("group", "channels", "filters"), [(1, 13, 24), (4, 16, 32), (24, 24, 24)])
def test_convolutions(dtype: Any, zero: int, group: int, channels: int, filters: int) -> None:
    x = eight(dtype, 2, channels, 9, 11)
    scales = (RNG.random(filters) * 0.01 + 0.001).astype(F32)
    for weights, middle, rows in ((S8, 0, 3), (U8, 128, 1)):
        w = eight(weights, filters, channels // group, rows, 3)
        tail: list[Any] = [RNG.integers(-5000, 5000, filters).astype(np.int32)] if weights is S8 else []
        constants = [0, F32(0.02), dtype(zero), w, scales, np.full(filters, middle, weights), F32(0.2), dtype(7), *tail]
        attrs: dict[str, Any] = {"pads": [1, 2, 0, 1], "strides": [2, 1], "group": group}
        assert within_a_step(compared("QLinearConv", [x], constants, "onednn.qlinear_conv", **attrs))
        if group == 1 and channels * rows * 3 < 150:
            found = compared("ConvInteger", [x], [0, w, dtype(zero), np.array(middle, weights)],
                             "onednn.conv_integer", **attrs)  # fmt: skip
            assert not found.any()


def test_convolutions_of_other_ranks_and_several_scales_for_weights() -> None:
    line, volume = eight(U8, 1, 8, 20), eight(S8, 1, 4, 5, 6, 7)
    for x, w in ((line, eight(S8, 8, 8, 3)), (volume, eight(S8, 6, 4, 2, 3, 3))):
        zero = x.dtype.type(3)
        constants = [0, F32(0.1), zero, w, F32(0.01), S8(0), F32(0.7), zero]
        assert within_a_step(compared("QLinearConv", [x], constants, "onednn.qlinear_conv"))


@pytest.mark.parametrize(("dtype", "zero"), KINDS)
def test_products(dtype: Any, zero: int) -> None:
    a, scales, y = eight(dtype, 3, 7, 33), (RNG.random(20) * 0.01 + 0.001).astype(F32), [F32(0.2), dtype(7)]
    bias = RNG.integers(-5000, 5000, 20).astype(np.int32)
    for weights, middle in ((S8, 0), (U8, 128), (S8, 5), (U8, 3)):
        b = eight(weights, 33, 20)
        right = [b, scales, weights(middle)]
        left = [0, F32(0.02), dtype(zero)]
        assert within_a_step(compared("QLinearMatMul", [a], [*left, *right, *y], "onednn.qlinear_matmul"))
        integers = [0, b, dtype(zero), weights(middle)]
        assert not compared("MatMulInteger", [a], integers, "onednn.matmul_integer").any()
        rows: list[Any] = [*left, *right, bias]
        assert within_a_step(compared("QGemm", [a[0]], [*rows, *y], "onednn.qgemm", alpha=0.5))
        turned: list[Any] = [*left, b.T.copy(), *right[1:], bias]
        found = compared("QGemm", [a[0].T.copy()], turned, "onednn.qgemm", transA=1, transB=1)
        assert found.max() < 1e-4
    several = [0, F32(0.02), dtype(zero), 1, F32(0.01), S8(3), *y]
    assert within_a_step(compared("QLinearMatMul", [a, eight(S8, 3, 33, 20)], several, "onednn.qlinear_matmul"))


def test_sums_that_float32_cannot_hold_are_left_to_the_reference() -> None:
    a = RNG.integers(200, 255, (2, 3000), endpoint=True).astype(U8)
    b = RNG.integers(100, 127, (3000, 8)).astype(S8)
    assert not compared("MatMulInteger", [a], [0, b, U8(3)]).any()
    image = a.reshape(2, 3000, 1, 1)
    assert not compared("ConvInteger", [image], [0, np.ascontiguousarray(b.T)[:, :, None, None], U8(3)]).any()


@pytest.mark.parametrize(("weights", "zero"), [(U8, None), (U8, 3), (S8, 127), (S8, -128)])
def test_zero_points_of_weights_may_make_sums_larger_than_float32_holds(weights: Any, zero: int | None) -> None:
    """The weights lie near what oneDNN counts from, and their zero point far away."""
    middle, tail = (128 if weights is U8 else 0), [] if zero is None else [weights(zero)]
    for count, kernel in ((400, "onednn.matmul_integer"), (601, ""), (1999, "")):
        a = RNG.integers(249, 255, (4, count), endpoint=True).astype(U8)
        b = RNG.integers(middle - 2, middle + 2, (count, 8), endpoint=True).astype(weights)
        assert not compared("MatMulInteger", [a], [0, b, U8(2), *tail], kernel).any()


@pytest.mark.parametrize("shape", [(3, 7, 33), (1, 33)])
def test_rows_quantised_as_they_come(shape: tuple[int, ...]) -> None:
    x = RNG.standard_normal(shape).astype(F32)
    for weights, zero in ((S8, 0), (U8, 128), (U8, 7)):
        right = [eight(weights, 33, 20), (RNG.random(20) + 0.1).astype(F32), np.full(20, zero, weights)]
        for bias in ([], [RNG.random(20).astype(F32)]):
            found = compared("DynamicQuantizeMatMul", [x], [0, *right, *bias], "onednn.dynamic_matmul")
            assert found.max() < 1e-4
    for lowest, highest in ((-1, 1), (0, 0), (0.5, 3), (-4, -2)):
        g = GraphBuilder()
        graph = g.graph(g.DynamicQuantizeLinear(g.input("x", f32(*shape)), outputs=3))
        feeds = {"x": RNG.uniform(lowest, highest, shape).astype(F32)}
        session = Session(graph, threads=1)
        assert FOUND is None or session.program.steps[0].choice.kernel == "onednn.dynamic_quantize"
        for found, want in zip(session.run(feeds).values(), Session(graph, onednn=False).run(feeds).values(),
                               strict=True):  # fmt: skip
            np.testing.assert_array_equal(found, want)


def test_what_quantisers_write_for_such_rows_is_one_step() -> None:
    g = GraphBuilder()
    x = g.Relu(g.input("x", f32("batch", 6, 32)))
    steps, scale, zero = g.DynamicQuantizeLinear(x, outputs=3)
    parts = []
    for i in range(2):
        sums = g.MatMulInteger(steps, g.const(eight(S8, 32, 16)), zero, g.const(np.zeros(16, S8)))
        factor = g.Mul(scale, g.const((RNG.random(16) + 0.1).astype(F32)))
        y = g.Mul(g.Cast(sums, to=DType.FLOAT.onnx), factor) if i else g.Mul(factor, g.Cast(sums, to=1))
        parts.append(g.Add(g.const(RNG.random(16).astype(F32)), y) if i else g.Neg(y))
    feeds = {"x": RNG.standard_normal((3, 6, 32)).astype(F32)}
    graph = g.graph(parts)
    session = Session(graph, threads=1)
    found, want = session.run(feeds), Session(graph, onednn=False).run(feeds)
    for name in graph.outputs:
        np.testing.assert_allclose(found[name], want[name], rtol=1e-5, atol=1e-4)
    if VNNI:
        steps_run = session.warmup({"x": (3, 6, 32)}).steps
        assert sorted(s.node.op for s in steps_run) == ["DynamicQuantizeMatMul", "DynamicQuantizeMatMul", "Neg",
                                                             "Relu"]  # fmt: skip


@pytest.mark.parametrize(("count", "bits", "block"), [(40, 4, 16), (64, 8, 32), (64, 2, 16)])
def test_weights_of_few_bits(count: int, bits: int, block: int) -> None:
    blocks = -(-count // block)
    a, b = RNG.standard_normal((2, 5, count)).astype(F32), eight(U8, 12, blocks, block * bits // 8)
    scales, zeros = RNG.random((12, blocks)).astype(F32), eight(U8, 12, -(-blocks * bits // 8))
    attrs = {"K": count, "N": 12, "bits": bits, "block_size": block}
    order = np.arange(count, dtype=np.int32)[::-1] // block
    for tail in ([], [zeros], [zeros, np.ascontiguousarray(order)], [None, None, RNG.random(12).astype(F32)]):
        ours = bits != 2 and len(tail) != 2 and not isinstance(loaded(), str)  # in the order that machine code reads
        kernel = "machine.matmul_n_bits" if ours else "onednn.matmul_n_bits"
        found = compared("MatMulNBits", [a], [0, b, scales, *tail], kernel, **attrs)
        assert found.max() < 1e-3


def test_the_same_bits_with_other_scales_are_other_weights() -> None:
    g, attrs = GraphBuilder(), {"K": 32, "N": 16, "bits": 4, "block_size": 32}
    x, bits = g.input("x", f32(3, 32)), g.const(eight(U8, 16, 1, 16))
    parts = [g.op("MatMulNBits", x, bits, g.const(np.full((16, 1), s, F32)), domain=MICROSOFT, **attrs) for s in (1, 2)]
    graph = g.graph(parts)
    one, two = Session(graph, threads=1).run({"x": RNG.standard_normal((3, 32)).astype(F32)}).values()
    np.testing.assert_allclose(two, 2 * one, rtol=1e-5)


@pytest.mark.parametrize(("dtype", "zero"), KINDS)
def test_between_floats_and_steps(dtype: Any, zero: int) -> None:
    for scale in map(F32, (0.1, 0.3, 1 / 3, 0.0217, 0.5)):
        ties = (np.arange(-400, 400) + 0.5).astype(F32) * scale
        near = [np.nextafter(ties, F32(s)) for s in (-np.inf, np.inf)]
        far = np.array([1e30, -1e30, np.inf, -np.inf, 3e9, -3e9], F32)
        x = np.concatenate([ties, *near, far])
        assert not compared("QuantizeLinear", [x], [0, scale, dtype(zero)], "onednn.quantize").any()
    images = (RNG.standard_normal((2, 5, 7, 9)) * 30).astype(F32)
    by_channel = (RNG.random(5) + 0.1).astype(F32)
    assert not compared("QuantizeLinear", [images], [0, by_channel, eight(dtype, 5)], "onednn.quantize").any()
    steps, zeros = eight(dtype, 2, 5, 7, 9), np.full(5, zero, dtype)
    assert not compared("DequantizeLinear", [steps], [0, F32(0.0217), dtype(zero)], "onednn.dequantize").any()
    assert not compared("DequantizeLinear", [steps], [0, by_channel, zeros], "onednn.dequantize").any()


@pytest.mark.skipif(FOUND is None, reason="the kernel is oneDNN's")
@pytest.mark.parametrize(("dtype", "zero"), KINDS)
def test_no_number_becomes_the_lowest_step_as_in_onnx_runtime(dtype: Any, zero: int) -> None:
    g = GraphBuilder()
    graph = g.graph([g.QuantizeLinear(g.input("x", f32(20)), g.const(F32(0.1)), g.const(dtype(zero)))])
    x = np.full(20, np.nan, F32)
    (theirs,) = ort_run(to_onnx(graph), {"x": x}).values()
    np.testing.assert_array_equal(Session(graph, threads=1)(x), theirs)


@pytest.mark.parametrize(("dtype", "zero"), KINDS)
def test_elements_and_windows(dtype: Any, zero: int) -> None:
    a, b, wide = eight(dtype, 2, 5, 7, 9), eight(dtype, 2, 5, 7, 9), eight(dtype, 5, 1, 1)
    left, y = [0, F32(0.02), dtype(zero)], [F32(0.047), dtype(11)]
    for op in ("QLinearAdd", "QLinearMul"):
        for right in ([1, F32(0.031), dtype(7)], [1, F32(0.031), dtype(0)]):
            assert within_a_step(compared(op, [a, b], [*left, *right, *y], "onednn.qlinear_binary"))
        assert within_a_step(compared(op, [a], [wide, F32(0.031), dtype(7), *left, *y], "onednn.qlinear_binary"))
    to = [F32(1 / 256), dtype(np.iinfo(dtype).min)]
    assert within_a_step(compared("QLinearSigmoid", [a], [*left, *to], "onednn.qlinear_sigmoid"))
    pool = "onednn.qlinear_pool"
    assert within_a_step(compared("QLinearGlobalAveragePool", [a], [*left, *y], pool))
    window: dict[str, Any] = {"kernel_shape": [2, 3], "pads": [1, 0, 0, 2]}
    assert within_a_step(compared("QLinearAveragePool", [a], [*left, *y], pool, **window))
    counted = compared("QLinearAveragePool", [a], [*left, *y], "" if zero else pool, **window, count_include_pad=1)
    assert within_a_step(counted)
    assert not compared("MaxPool", [a], [0], pool, **window, strides=[2, 1]).any()


# Quantised graphs


class Quantised:
    """A GraphBuilder whose values pass through QuantizeLinear and DequantizeLinear."""

    def __init__(self, dtype: Any = U8) -> None:
        self.g, self.dtype = GraphBuilder(), dtype

    def through(self, x: str, scale: float, zero: int) -> str:
        parts = [self.g.const(F32(scale)), self.g.const(self.dtype(zero))]
        made: str = self.g.DequantizeLinear(self.g.QuantizeLinear(x, *parts), *parts)
        return made

    def weights(self, *shape: int, axis: int = 0) -> str:
        scales = (RNG.random(shape[axis]) * 0.01 + 0.005).astype(F32)
        zeros = np.zeros(shape[axis], S8)
        parts = [self.g.const(a) for a in (eight(S8, *shape), scales, zeros)]
        made: str = self.g.DequantizeLinear(*parts, axis=axis)
        return made


def answers(graph: Graph, feeds: dict[str, Array]) -> tuple[list[str], Array, Array]:
    """The operators that run, the results, and those of the same graph as it stands."""
    session = Session(graph, threads=1)
    ops = [s.node.op if s.node.op != "Fused" else "+".join(n[1] for n in s.node.attrs["chain"]) for s in
           session.program.steps]  # fmt: skip
    (found,), (want,) = session.run(feeds).values(), Session(graph, onednn=False).run(feeds).values()
    assert len(np.unique(want)) > 3
    return ops, found, want


def network(q: Quantised, x: str, step: float) -> str:
    """Convolutions, a sum with a shortcut, pools, a product: all that a residual network has."""
    g, low = q.g, int(np.iinfo(q.dtype).min)
    middle = low + 128
    x = q.through(x, 0.03, middle)
    first = q.through(g.Relu(g.Conv(x, q.weights(16, 3, 3, 3), pads=[1] * 4)), 0.1, low)
    first = q.through(g.MaxPool(first, kernel_shape=[2, 2], strides=[2, 2]), 0.1, low)
    y = q.through(g.Clip(g.Conv(first, q.weights(16, 16, 1, 1), g.const(RNG.random(16).astype(F32)))), 0.5, middle)
    total = q.through(g.Relu(g.Add(y, first)), 0.4, low)
    gate = q.through(g.Sigmoid(total), 1 / 256, low)
    mean = q.through(g.GlobalAveragePool(q.through(g.Mul(total, gate), 0.4, low)), 0.2, low)
    flat = q.through(g.Flatten(mean), 0.2, low)
    made: str = g.Gemm(flat, q.weights(10, 16), g.const(RNG.random(10).astype(F32)), transB=1)
    return q.through(made, step, middle)


@pytest.mark.parametrize("dtype", [U8, S8])
def test_a_quantised_network_runs_on_whole_numbers(dtype: Any) -> None:
    q, step = Quantised(dtype), 0.5  # a step of the mean times a weight is less
    x = q.g.input("x", f32(2, 3, 12, 12))
    graph = q.g.graph([network(q, x, step)])
    ops, found, want = answers(graph, {"x": RNG.standard_normal((2, 3, 12, 12)).astype(F32)})
    assert np.abs(found - want).max() <= 1.01 * step
    if VNNI:
        assert [op for op in ops if op != "Reorder"] == [
            "QuantizeLinear", "QLinearConv", "MaxPool", "QLinearConv+QLinearAdd", "QLinearSigmoid", "QLinearMul",
            "QLinearGlobalAveragePool", "Flatten", "QGemm", "DequantizeLinear",
        ]  # fmt: skip


@pytest.mark.parametrize("count", [2, 5])
def test_parts_are_joined_as_whole_numbers(count: int) -> None:
    q = Quantised()
    x = q.through(q.g.input("x", f32(1, 8, 6, 6)), 0.03, 128)
    parts = [q.through(q.g.Conv(x, q.weights(8, 8, 1, 1)), 0.1, 128) for _ in range(count)]
    graph = q.g.graph([q.through(q.g.Concat(*parts, axis=1), 0.1, 128)])
    ops, found, want = answers(graph, {"x": RNG.standard_normal((1, 8, 6, 6)).astype(F32)})
    np.testing.assert_array_equal(found, want)
    if VNNI:
        assert [op for op in ops if op != "Reorder"] == [
            "QuantizeLinear", *["QLinearConv"] * count, "Concat", "DequantizeLinear"
        ]  # fmt: skip


Build = Callable[[Quantised, str], str]
DECLINES: list[tuple[str, Build]] = [
    ("Relu cuts off steps that the result has",
     lambda q, x: q.through(q.g.Relu(q.g.Conv(x, q.weights(4, 3, 1, 1))), 0.1, 100)),
    ("Clip cuts off steps that the result has",
     lambda q, x: q.through(q.g.Clip(q.g.Conv(x, q.weights(4, 3, 1, 1)), None, q.g.const(F32(6))), 0.1, 0)),
    ("the result is counted in other steps",
     lambda q, x: q.through(q.g.MaxPool(x, kernel_shape=[2, 2]), 0.1, 100)),
    ("the parts are counted in other steps",
     lambda q, x: q.through(q.g.Concat(x, q.through(x, 0.1, 128), axis=1), 0.03, 128)),
    ("weights are quantised along axis 1",
     lambda q, x: q.through(q.g.Conv(x, q.weights(4, 3, 1, 1, axis=1)), 0.1, 100)),
    ("the bias would be rounded too coarsely",
     lambda q, x: q.through(q.g.Conv(x, q.weights(4, 3, 1, 1), q.g.const(np.full(4, 0.1, F32))), 0.0005, 0)),
    ("the bias does not fit into 32 bits",
     lambda q, x: q.through(q.g.Conv(x, q.weights(4, 3, 1, 1), q.g.const(np.full(4, 1e9, F32))), 1e8, 0)),
]  # fmt: skip


@pytest.mark.parametrize(("reason", "build"), DECLINES, ids=[d[0] for d in DECLINES])
def test_rules_decline_with_their_reason(reason: str, build: Build) -> None:
    q = Quantised()
    x = q.through(q.g.input("x", f32(1, 3, 8, 8)), 0.03, 128)
    typed = infer(q.g.graph([build(q, x)]))
    declined: list[RewriteDeclined] = []
    assert quantise(typed, lambda around, node: None, declined).nodes == typed.nodes
    assert reason in {d.reason for d in declined}


def test_a_kernel_that_declines_leaves_the_floats() -> None:
    q = Quantised()
    x = q.through(q.g.input("x", f32(1, 3, 8, 8)), 0.03, 128)
    typed = infer(q.g.graph([q.through(q.g.Conv(x, q.weights(4, 3, 1, 1)), 0.1, 3)]))
    declined: list[RewriteDeclined] = []
    assert quantise(typed, lambda around, node: "not here", declined).nodes == typed.nodes
    assert [d.reason for d in declined] == ["not here"]
    (conv,) = [n for n in quantise(typed, lambda around, node: None).nodes if n.op == "QLinearConv"]
    assert conv.attrs == {}


def test_what_a_rule_must_not_touch_stays() -> None:
    """A result that is also read as floats, and weights that are shared with an operator of floats."""
    q = Quantised()
    g, dtype = q.g, DType.FLOAT
    x = q.through(g.input("x", f32(1, 3, 8, 8)), 0.03, 128)
    w = q.weights(4, 3, 1, 1)
    y = g.Conv(x, w)
    total = g.Add(q.through(y, 0.1, 128), g.Mul(y, g.const(0.5, dtype)))
    graph = g.graph([g.Mul(total, g.ReduceSum(w))])
    _, found, want = answers(graph, {"x": RNG.standard_normal((1, 3, 8, 8)).astype(F32)})
    np.testing.assert_allclose(found, want, atol=1e-3 * np.abs(want).max())
