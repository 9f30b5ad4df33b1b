"""Sizes of images that are rounded up where windows slide over them: `buckets="auto"`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

import mezzo as mz
from mezzo.ops import DType, Tensor
from mezzo.ops.symbolic import SizeTrace
from mezzo.runtime.compile import padding_rules
from mezzo.runtime.compile.sizes import NormalSizes
from mezzo.runtime.execution.session import Session
from mezzo.runtime.ir.graph import Graph, GraphBuilder

RNG = np.random.default_rng(7)
Build = Callable[[GraphBuilder, str], Any]
TWICE = np.array([1, 1, 2, 2], np.float32)
AROUND = (1, 1, 1, 1)


def weights(*sizes: int) -> Any:
    return (RNG.standard_normal(sizes) / np.sqrt(np.prod(sizes[1:]))).astype(np.float32)


def graph_of(build: Build, *dims: Any) -> Graph:
    g = GraphBuilder("net")
    result = build(g, g.input("x", Tensor(DType.FLOAT, dims)))
    return g.graph([*result] if isinstance(result, tuple) else [result])


def conv(g: GraphBuilder, x: str, inputs: int, filters: int, size: int = 3, **how: Any) -> Any:
    return g.Conv(x, g.const(weights(filters, inputs, size, size)), g.const(weights(filters, 1)[:, 0]), **how)


def residual(g: GraphBuilder, x: str, inputs: int, filters: int, stride: int = 1) -> Any:
    y = g.Relu(conv(g, x, inputs, filters, pads=AROUND, strides=(stride, stride)))
    y = conv(g, y, filters, filters, pads=AROUND)
    beside = x if inputs == filters else conv(g, x, inputs, filters, 1, strides=(stride, stride))
    return g.Relu(g.Add(y, beside))


def unet(g: GraphBuilder, x: str) -> Any:
    """Down by two and up again, beside what was there: sizes that have to be even."""
    low = g.MaxPool(g.Relu(conv(g, x, 3, 8, pads=AROUND)), kernel_shape=(2, 2), strides=(2, 2))
    up = g.ConvTranspose(conv(g, low, 8, 8, pads=AROUND), g.const(weights(8, 8, 2, 2)), strides=(2, 2))
    return conv(g, g.Concat(x, up, axis=1), 11, 4, pads=AROUND)


def pyramid(g: GraphBuilder, x: str) -> Any:
    """Two levels, the coarser one repeated and added to the finer one."""
    fine = g.Relu(conv(g, x, 3, 8, pads=AROUND, strides=(2, 2)))
    coarse = g.Relu(conv(g, fine, 8, 8, pads=AROUND, strides=(2, 2)))
    large = g.Resize(coarse, "", g.const(TWICE), coordinate_transformation_mode="asymmetric", nearest_mode="floor")
    return conv(g, g.Add(fine, large), 8, 4, pads=AROUND)


def columns(g: GraphBuilder, x: str) -> Any:
    """A reader of lines: columns become steps of a sequence, with attention over them."""
    y = g.Relu(conv(g, x, 3, 8, pads=AROUND, strides=(2, 2)))
    rows = g.Transpose(g.Squeeze(g.ReduceMean(y, g.const([2])), g.const([2])), perm=(0, 2, 1))
    scores = g.MatMul(rows, g.Transpose(rows, perm=(0, 2, 1)))
    return g.MatMul(g.Softmax(scores), g.MatMul(rows, g.const(weights(8, 5))))


def beside(g: GraphBuilder, x: str) -> Any:
    """What has no padding may be read in any way."""
    small = g.Slice(x, g.const([0, 0]), g.const([2, 2]), g.const([2, 3]))
    large = g.Resize(small, "", g.const(TWICE), mode="linear")
    places = g.MaxPool(large, kernel_shape=(2, 2), outputs=2)[1]
    return g.Add(conv(g, x, 3, 3, pads=AROUND), g.ReduceMean(g.Cast(places, to=DType.FLOAT.onnx), g.const([2, 3])))


def normalised(g: GraphBuilder, x: str) -> Any:
    numbers = [g.const(np.abs(weights(3, 1)[:, 0]) + 1) for _ in range(4)]
    return conv(g, g.BatchNormalization(g.Exp(x), *numbers), 3, 4, pads=AROUND)


SERVED: dict[str, Build] = {
    "same": lambda g, x: g.Relu(conv(g, g.Exp(x), 3, 8, pads=AROUND)),
    "valid": lambda g, x: conv(g, g.Exp(x), 3, 8),
    "even kernel": lambda g, x: conv(g, g.Exp(x), 3, 8, 4, auto_pad="SAME_LOWER"),
    "stride": lambda g, x: conv(g, g.Exp(x), 3, 8, pads=AROUND, strides=(2, 2)),
    "wide stride": lambda g, x: conv(g, g.Exp(x), 3, 8, pads=(0, 0, 2, 1), strides=(3, 4)),
    "dilated": lambda g, x: conv(g, g.Exp(x), 3, 8, pads=(2, 2, 2, 2), dilations=(2, 2)),
    "depthwise": lambda g, x: g.Conv(g.Exp(x), g.const(weights(3, 1, 3, 3)), group=3, pads=AROUND),
    "three strides": lambda g, x: conv(
        g, conv(g, conv(g, x, 3, 8, strides=(2, 2)), 8, 8, pads=AROUND, strides=(2, 2)), 8, 4, strides=(2, 2)
    ),
    "largest": lambda g, x: g.MaxPool(g.Neg(g.Exp(x)), kernel_shape=(3, 3), strides=(2, 2), pads=AROUND),
    "largest, rounded up": lambda g, x: g.MaxPool(g.Neg(g.Exp(x)), kernel_shape=(2, 2), strides=(2, 2), ceil_mode=1),
    "average": lambda g, x: g.AveragePool(g.Exp(x), kernel_shape=(2, 2), strides=(2, 2)),
    "average of all": lambda g, x: g.GlobalAveragePool(g.Exp(x)),
    "largest of all": lambda g, x: g.GlobalMaxPool(g.Neg(g.Exp(x))),
    "residual": lambda g, x: g.GlobalAveragePool(residual(g, residual(g, residual(g, x, 3, 16), 16, 16), 16, 32, 2)),
    "transposed": lambda g, x: g.ConvTranspose(
        g.Exp(x), g.const(weights(3, 8, 3, 3)), strides=(2, 2), pads=AROUND, output_padding=(1, 1)
    ),
    "twice": lambda g, x: g.Resize(conv(g, g.Exp(x), 3, 4, pads=AROUND), "", g.const(TWICE)),
    "normalised": normalised,
    "U-Net": unet,
    "pyramid": pyramid,
    "columns": columns,
    "beside an image of one size": beside,
}
SIZES = (
    (1, 34, 34),
    (1, 36, 40),
    (2, 18, 26),
    (1, 70, 66),
    (1, 68, 66),
    (1, 34, 34),
    (1, 64, 100),
    (1, 62, 98),
    (1, 6, 4),
)
ODD = ((1, 33, 41), (1, 35, 47), (3, 17, 9))
EVEN = ("U-Net", "pyramid")


def equal(ours: Any, exact: Any) -> None:
    for a, b in zip(ours, exact, strict=True):
        assert a.shape == b.shape
        assert np.abs(a - b).max(initial=0) <= 1e-5 * np.abs(b).max(initial=0)


@pytest.mark.parametrize("name", SERVED)
def test_results_are_those_of_the_sizes_as_they_are(name: str) -> None:
    graph = graph_of(SERVED[name], "batch", 3, "height", "width")
    exact, auto = Session(graph), Session(graph, buckets="auto")
    for batch, *sizes in SIZES if name in EVEN else (*SIZES, *ODD):
        if name == "pyramid":
            sizes = [n // 4 * 4 for n in sizes]
        x = RNG.standard_normal((batch, 3, *sizes)).astype(np.float32)
        kept = x.copy()
        equal(auto.run({"x": x}).values(), exact.run({"x": x}).values())
        np.testing.assert_array_equal(x, kept)
    stats = auto.stats()
    assert 0 < stats.rounded <= (8 if name in EVEN else 11)
    assert stats.programs <= 1  # those of a few elements may be planned as they are


@pytest.mark.parametrize("name", SERVED)
def test_padding_may_hold_anything(name: str) -> None:
    graph = graph_of(SERVED[name], 1, 3, "height", "width")
    x = RNG.standard_normal((1, 3, 36, 68)).astype(np.float32)
    room = np.full((1, 3, 36, 72), np.nan, np.float32)
    room[..., :68] = x
    with patch.object(padding_rules, "INPUT_PADDING", None):
        auto = Session(graph, buckets="auto")
        with patch("mezzo.runtime.compile.padded_program._grown", lambda array, known, room=False: _odd(array, known)):
            equal(auto.run({"x": x}).values(), Session(graph).run({"x": x}).values())
    assert auto.stats().rounded == 1


def _odd(array: Any, known: Any) -> Any:
    grown = np.full(known.sizes, np.nan if array.dtype.kind == "f" else 0, array.dtype)
    grown[tuple(map(slice, array.shape))] = array
    return grown


@pytest.mark.parametrize("name", ["same", "stride", "residual", "U-Net"])
def test_what_fills_padding_lies_as_convolutions_do(name: str) -> None:
    """No reordering comes with it."""
    graph = graph_of(SERVED[name], 1, 3, "height", "width")
    x = RNG.standard_normal((1, 3, 68, 68)).astype(np.float32)
    exact, auto = Session(graph), Session(graph, buckets="auto")
    exact.run({"x": x})
    auto.run({"x": x})
    (programs,) = auto._fitting.made.values()  # type: ignore[union-attr]
    (executable,) = programs.executables()
    counts = [Counter(s.choice.kernel for s in e.program.steps) for e in (executable, exact.executable)]
    assert counts[0]["onednn.reorder"] <= counts[1]["onednn.reorder"] + 1
    assert counts[0]["numpy.fill_tail"] > 0


REFUSED: dict[str, Build] = {
    "places of the largest": lambda g, x: g.MaxPool(x, kernel_shape=(2, 2), outputs=2),
    "an average as large as its operand": lambda g, x: g.AveragePool(x, kernel_shape=(3, 3), auto_pad="SAME_UPPER"),
    "an average at the end": lambda g, x: g.AveragePool(x, kernel_shape=(3, 3), pads=AROUND),
    "pads that follow from the size": lambda g, x: conv(g, x, 3, 4, strides=(2, 2), auto_pad="SAME_UPPER"),
    "lines between elements": lambda g, x: g.Resize(x, "", g.const(TWICE), mode="linear"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_others_are_planned_as_they_are(name: str) -> None:
    graph = graph_of(REFUSED[name], 1, 3, "height", "width")
    auto = Session(graph, buckets="auto")
    for size in (33, 38):
        x = RNG.standard_normal((1, 3, size, 33)).astype(np.float32)
        equal(auto.run({"x": x}).values(), Session(graph).run({"x": x}).values())
    assert (auto.stats().rounded, auto.stats().programs) == (0, 2)


def window(rng: np.random.Generator, op: str) -> dict[str, Any]:
    """Attributes of a window over one axis, drawn."""
    kernel, attrs = int(rng.integers(1, 6)), dict[str, Any]()
    attrs |= {"strides": (int(rng.integers(1, 4)),)} if rng.random() < 0.5 else {}
    attrs |= {"dilations": (int(rng.integers(1, 3)),)} if op != "AveragePool" and rng.random() < 0.3 else {}
    if rng.random() < 0.3:
        attrs["auto_pad"] = str(rng.choice(["SAME_UPPER", "SAME_LOWER", "VALID"]))
    elif rng.random() < 0.7:
        attrs["pads"] = tuple(int(n) for n in rng.integers(0, kernel, 2))
    if op.endswith("Pool"):
        attrs |= {"kernel_shape": (kernel,)} | ({"ceil_mode": 1} if rng.random() < 0.3 else {})
        attrs |= {"count_include_pad": 1} if op == "AveragePool" and rng.random() < 0.3 else {}
    return {"kernel": kernel, "attrs": attrs}


@pytest.mark.parametrize("op", ["Conv", "ConvTranspose", "MaxPool", "AveragePool"])
@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(n, marks=pytest.mark.soak) for n in range(4, 40))])
def test_windows_at_random(op: str, seed: int) -> None:
    """Ten windows of an operator, behind another operator and before one, at sizes of one step and of others."""
    rng = np.random.default_rng(seed)
    for _ in range(10):
        drawn = window(rng, op)

        def build(g: GraphBuilder, x: str, drawn: dict[str, Any] = drawn) -> Any:
            shape = (3, 2, drawn["kernel"]) if op == "ConvTranspose" else (2, 3, drawn["kernel"])
            more = () if op.endswith("Pool") else (g.const(weights(*shape)),)
            return g.Cos(g.op(op, g.Sub(x, g.Exp(x)), *more, **drawn["attrs"]))

        graph = graph_of(build, 2, 3, "length")
        exact, auto = Session(graph), Session(graph, buckets="auto")
        for length in (21, 24, 22, 37, 11):
            x = rng.standard_normal((2, 3, length)).astype(np.float32)
            equal(auto.run({"x": x}).values(), exact.run({"x": x}).values())


def test_a_new_size_within_a_step_plans_nothing() -> None:
    auto = Session(graph_of(SERVED["residual"], 1, 3, "height", "width"), buckets="auto")
    for size in range(65, 73):
        auto.run({"x": np.zeros((1, 3, size, 80), np.float32)})
    assert auto.stats().rounded == 1


def test_stored_programs_serve_images(tmp_path: Any) -> None:
    graph = graph_of(SERVED["pyramid"], 1, 3, "height", "width")
    session = Session(graph, buckets="auto")
    x = RNG.standard_normal((1, 3, 60, 68)).astype(np.float32)
    session.run({"x": x})
    session.save(tmp_path / "net.mezzo")
    stored = mz.load(tmp_path / "net.mezzo", buckets="auto")
    smaller = np.ascontiguousarray(x[:, :, :, :64])
    for part in (x, smaller):
        equal(stored.run({"x": part}).values(), Session(graph).run({"x": part}).values())


def test_multiples_of_quotients_are_known_from_guards() -> None:
    """An even size is twice its half."""
    trace = SizeTrace()
    n = trace.symbol(12)
    half = (n - 1) // 2 + 1
    assert half * 2 == n
    normal = NormalSizes(trace)
    assert normal.of(half * 2) == normal.of(n)
    assert normal.of(half * 4 + 1) == normal.of(n * 2 + 1)
    assert normal.of(half) != normal.of(n)
    assert normal.rises(half.terms)
    assert not normal.rises((-half).terms)
    assert not normal.rises((n // (half + 1)).terms)
