"""Sizes that are rounded up where that changes nothing: `buckets="auto"`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

import mezzo as mz
from mezzo.ops import DType, Tensor
from mezzo.ops.types import f32
from mezzo.runtime.compile import padded_program
from mezzo.runtime.compile.padding import rounded_up
from mezzo.runtime.execution.session import Session
from mezzo.runtime.ir.graph import Graph, GraphBuilder

from .processor import native_bfloat16

RNG = np.random.default_rng(5)
W = RNG.standard_normal((6, 6)).astype(np.float32)
Build = Callable[[GraphBuilder, str], Any]


def graph_of(build: Build, *dims: Any, dtype: DType = DType.FLOAT) -> Graph:
    g = GraphBuilder("net")
    result = build(g, g.input("x", Tensor(dtype, dims)))
    return g.graph([*result] if isinstance(result, tuple) else [result])


def equal(ours: Sequence[Any], exact: Sequence[Any], tol: float = 1e-6) -> None:
    for a, b in zip(ours, exact, strict=True):
        assert a.shape == b.shape
        assert a.dtype == b.dtype
        odd = ~np.isfinite(b) if b.dtype.kind == "f" else np.zeros(b.shape, bool)
        np.testing.assert_array_equal(a[odd], b[odd])
        assert np.abs(np.where(odd, 0, a - b if b.dtype != bool else a ^ b)).max(initial=0) <= tol * (
            np.abs(np.where(odd, 0, b)).max(initial=0) + 1e-30
        )


def attention(g: GraphBuilder, x: str) -> Any:
    """One head of attention over (batch, length, 6), with a causal mask made of the length."""
    shape = g.Shape(x)
    n = g.Gather(shape, g.const(1))
    places = g.Range(g.const(0), n, g.const(1))
    hidden = g.LessOrEqual(g.Unsqueeze(places, g.const([0])), g.Unsqueeze(places, g.const([1])))
    keys = g.Transpose(g.MatMul(x, g.const(W)), perm=(0, 2, 1))
    scores = g.Where(hidden, g.MatMul(x, keys), g.const(np.float32(-np.inf)))
    return g.LayerNormalization(
        g.Add(x, g.MatMul(g.Softmax(scores, axis=-1), x)), g.const(np.ones(6, np.float32)), outputs=1
    )


def heads(g: GraphBuilder, x: str) -> Any:
    """Two heads: the last axis is divided, and put together again."""
    parts = g.Transpose(g.Reshape(x, g.const([0, 0, 2, 3])), perm=(0, 2, 1, 3))
    mixed = g.MatMul(g.Softmax(g.MatMul(parts, g.Transpose(parts, perm=(0, 1, 3, 2)))), parts)
    return g.Reshape(g.Transpose(mixed, perm=(0, 2, 1, 3)), g.const([0, -1, 6]))


def last(g: GraphBuilder, x: str) -> tuple[str, ...]:
    """The first row, the last, and the last two."""
    big = g.const([1 << 40])
    return (
        g.Gather(x, g.const(0), axis=1),
        g.Gather(x, g.const(-1), axis=1),
        g.Slice(x, g.const([-2]), big, g.const([1])),
        g.Slice(x, g.const([0]), g.const([2]), g.const([1])),
    )


def rows(g: GraphBuilder, x: str) -> Any:
    """All rows of all batches in one axis, through a Gemm."""
    flat = g.Reshape(x, g.const([-1, 6]))
    return g.Reshape(g.Gemm(flat, g.const(W), g.const(W[0])), g.Shape(x))


def backwards(g: GraphBuilder, x: str) -> Any:
    """All rows by their places from the end, which follow from the length."""
    n = g.Gather(g.Shape(x), g.const(1))
    places = g.Range(g.const(-1), g.Neg(g.Add(n, g.const(1))), g.const(-1))
    return g.GatherElements(x, g.Expand(g.Unsqueeze(places, g.const([0, 2])), g.Shape(x)), axis=1)


SERVED: dict[str, Build] = {
    "attention": attention,
    "heads": heads,
    "last": last,
    "rows": rows,
    "elementwise": lambda g, x: g.Exp(g.Mul(g.Add(x, x), g.const(np.float32(0.1)))),
    "sum": lambda g, x: g.ReduceSum(g.Exp(x), g.const([1])),
    "mean": lambda g, x: g.ReduceMean(g.Exp(x), g.const([1]), keepdims=0),
    "mean of all": lambda g, x: g.ReduceMean(g.Cos(x)),
    "max": lambda g, x: g.ReduceMax(g.Neg(g.Exp(x)), g.const([1])),
    "min": lambda g, x: g.ReduceMin(g.Exp(x), g.const([1, 2])),
    "prod": lambda g, x: g.ReduceProd(g.Cos(x), g.const([1])),
    "log of a sum": lambda g, x: g.ReduceLogSumExp(x, g.const([1])),
    "softmax along": lambda g, x: g.LogSoftmax(g.Exp(x), axis=1),
    "with itself": lambda g, x: g.Concat(x, g.Exp(x), axis=1),
    "in halves": lambda g, x: g.Split(x, axis=2, num_outputs=2, outputs=2),
    "running sum": lambda g, x: g.CumSum(g.Cos(x), g.const(1)),
    "largest along": lambda g, x: g.TopK(g.Cos(x), g.const([2]), axis=1, outputs=2),
    "smallest of each": lambda g, x: g.TopK(g.Exp(x), g.const([1]), largest=0, outputs=2),
    "triangle": lambda g, x: g.Trilu(g.MatMul(x, g.Transpose(x, perm=(0, 2, 1)))),
    "whole numbers": lambda g, x: g.ReduceMax(g.Cast(g.Neg(g.Exp(x)), to=DType.INT32.onnx), g.const([1])),
    "truth": lambda g, x: g.ReduceMin(g.Cast(g.Greater(x, g.const(np.float32(-9))), to=DType.INT64.onnx), g.const([1])),
    "of its length": lambda g, x: g.Div(x, g.Cast(g.Gather(g.Shape(x), g.const(1)), to=DType.FLOAT.onnx)),
    "elements": lambda g, x: g.GatherElements(g.Exp(x), g.Cast(g.Greater(x, g.const(np.float32(0))), to=7), axis=2),
    "places of its length": backwards,
    "its shape": lambda g, x: (g.Shape(x), g.Exp(x)),
    "places": lambda g, x: g.ArgMax(x, axis=2),
    "expanded": lambda g, x: g.Mul(x, g.Expand(g.const(W[0]), g.Shape(x))),
}  # fmt: skip


@pytest.mark.parametrize("name", SERVED)
def test_results_are_those_of_the_sizes_as_they_are(name: str) -> None:
    graph = graph_of(SERVED[name], "batch", "length", 6)
    exact, auto = Session(graph), Session(graph, buckets="auto")
    for batch, length in ((1, 9), (1, 11), (2, 9), (3, 21), (1, 2), (2, 33), (1, 9)):
        x = RNG.standard_normal((batch, length, 6)).astype(np.float32)
        kept = x.copy()
        equal([*auto.run({"x": x}).values()], [*exact.run({"x": x}).values()])
        np.testing.assert_array_equal(x, kept)
    stats = auto.stats()  # lengths 9 and 11 have one program, and each batch its own
    expected = {"last": (4, 1), "with itself": (6, 0)}  # two rows are all of two; twice 9 is planned as 20, 22 as 24
    assert (stats.rounded, stats.programs) == expected.get(name, (5, 0))


def test_the_largest_of_what_counts_stand_before_the_padding() -> None:
    graph = graph_of(lambda g, x: g.TopK(x, g.const([5]), axis=1, outputs=2), "batch", "length", 6)
    exact, auto = Session(graph), Session(graph, buckets="auto")
    for length in (5, 6, 9, 11, 17):
        x = RNG.choice(np.array([-np.inf, -np.inf, np.nan, 1, np.inf], np.float32), (2, length, 6))
        for ours, theirs in zip(auto.run({"x": x}).values(), exact.run({"x": x}).values(), strict=True):
            np.testing.assert_array_equal(ours, theirs)
    assert auto.stats().rounded > 1
    with pytest.raises(mz.ShapeError, match="largest 5 of 3"):
        auto.run({"x": np.zeros((2, 3, 6), np.float32)})


def test_a_slice_that_begins_before_the_axis() -> None:
    """Begins 11 from the end: at lengths up to 11 at the beginning, beyond within the axis."""
    graph = graph_of(lambda g, x: g.Slice(x, g.const([-11]), g.const([5]), g.const([1])), "batch", "length", 6)
    exact, auto = Session(graph), Session(graph, buckets="auto")
    for length in (6, 7, 9, 11, 12, 13, 14, 17, 30):
        x = RNG.standard_normal((2, length, 6)).astype(np.float32)
        equal([*auto.run({"x": x}).values()], [*exact.run({"x": x}).values()])


def test_an_input_of_one_row_that_is_joined_with_others() -> None:
    g = GraphBuilder("net")
    one, x = g.input("one", f32(2, 1, 6)), g.input("x", f32(2, "length", 6))
    auto = Session(g.graph([g.Concat(one, x, one, axis=1)]), buckets="auto")
    for length in (6, 7, 9):
        rows = RNG.standard_normal((2, length, 6)).astype(np.float32)
        result = auto(rows[:, :1], rows)
        np.testing.assert_array_equal(result, np.concatenate([rows[:, :1], rows, rows[:, :1]], 1))
    assert auto.stats().rounded == 3, "6 and 8, 7 and 9, 9 and 11"


def test_a_view_of_nothing_is_planned_as_it_is() -> None:
    def nothing(g: GraphBuilder, x: str) -> tuple[str, ...]:
        none = g.Slice(g.Gather(x, g.const(0), axis=1), g.const([0]), g.const([0]), g.const([1]))
        return g.Reshape(none, g.const([0, 0, 3])), g.Exp(x)

    auto = Session(graph_of(nothing, 2, "length", 6), buckets="auto")
    for length in (6, 9):
        empty, ones = auto.run({"x": np.zeros((2, length, 6), np.float32)}).values()
        assert (empty.shape, ones.shape) == ((2, 0, 3), (2, length, 6))


@pytest.mark.parametrize("name", SERVED)
def test_what_lies_in_the_padding_changes_nothing(name: str) -> None:
    """Inputs are padded with NaN in place of zeros, and not told to be padded with zeros."""

    def grown(array: Any, type: Tensor, *, room: bool = False) -> Any:
        odd = np.full(type.sizes, np.nan if array.dtype.kind == "f" else 1, array.dtype)
        odd[tuple(map(slice, array.shape))] = array
        return odd

    graph = graph_of(SERVED[name], "batch", "length", 6)
    exact = Session(graph)
    with (
        patch.object(padded_program, "_grown", grown),
        patch("mezzo.runtime.compile.padding_rules.INPUT_PADDING", None),
    ):
        auto = Session(graph, buckets="auto")
        for length in (9, 10, 21):
            x = RNG.standard_normal((2, length, 6)).astype(np.float32)
            equal([*auto.run({"x": x}).values()], [*exact.run({"x": x}).values()])
    assert auto.stats().rounded == 2


REFUSED: dict[str, Build] = {
    "as many as data tell": lambda g, x: g.TopK(x, g.Cast(g.ReduceMin(g.Ceil(x), g.const([0, 1, 2]), keepdims=0),
                                                         to=7), axis=2, outputs=2),
    "frequencies of its length": lambda g, x: g.DFT(g.Unsqueeze(x, g.const([3])), None, g.const(2)),
    "places by data": lambda g, x: g.Gather(x, g.Cast(g.ReduceMax(x), to=DType.INT64.onnx), axis=2),
    "a part in between": lambda g, x: g.Slice(x, g.const([1]), g.const([-1]), g.const([2])),
    "lines between elements": lambda g, x: g.Resize(x, None, g.const(np.array([1, 1, 2], np.float32)), mode="linear"),
    "whole numbers that fail": lambda g, x: g.Mod(
        g.Cast(x, to=DType.INT32.onnx), g.Cast(g.Add(g.Abs(x), g.const(np.float32(1))), to=DType.INT32.onnx)),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_read_the_padding_is_planned_as_it_is(name: str) -> None:
    graph = graph_of(REFUSED[name], "batch", 6, "length")
    exact, auto = Session(graph), Session(graph, buckets="auto")
    for length in (9, 11, 21):
        x = np.abs(RNG.standard_normal((2, 6, length)).astype(np.float32))
        equal([*auto.run({"x": x}).values()], [*exact.run({"x": x}).values()])
    assert auto.stats().rounded == 0
    assert auto.stats().programs == 3


def past(g: GraphBuilder, new: Any = 1) -> Graph:
    """A step of a decoder: what was seen before, and new rows, are attended to under a mask."""
    old = g.input("past", f32("batch", "seen", 6))
    x = g.input("new", f32("batch", new, 6))
    mask = g.input("mask", Tensor(DType.INT64, ("batch", "seen + new")))
    both = g.Concat(old, x, axis=1)
    scores = g.MatMul(x, g.Transpose(both, perm=(0, 2, 1)))
    hidden = g.Unsqueeze(g.Equal(mask, g.const(0)), g.const([1]))
    seen = g.Softmax(g.Where(hidden, g.const(np.float32(-np.inf)), scores))
    return g.graph([g.MatMul(seen, both), both])


def test_a_cache_that_grows_by_a_row_is_planned_once_for_many() -> None:
    graph = past(GraphBuilder("decoder"))
    exact, auto = Session(graph), Session(graph, buckets="auto")
    for n in range(5, 29):
        feeds = {
            "past": RNG.standard_normal((2, n, 6)).astype(np.float32),
            "new": RNG.standard_normal((2, 1, 6)).astype(np.float32),
            "mask": (np.arange(n + 1) % 5 > 0).astype(np.int64)[None].repeat(2, 0),
        }
        ours, theirs = auto.run(feeds), exact.run(feeds)
        equal([*ours.values()], [*theirs.values()])
        np.testing.assert_array_equal([*ours.values()][1], np.concatenate([feeds["past"], feeds["new"]], 1))
    assert auto.stats().rounded == 1
    assert auto.stats().programs == 0


def test_prompts_before_an_empty_cache_are_rounded() -> None:
    graph = past(GraphBuilder("decoder"), new="length")
    exact, auto = Session(graph), Session(graph, buckets="auto")
    for seen, length in [(0, 9), (0, 11), (0, 12), (5, 9), (0, 10), (6, 10)]:
        feeds = {
            "past": RNG.standard_normal((2, seen, 6)).astype(np.float32),
            "new": RNG.standard_normal((2, length, 6)).astype(np.float32),
            "mask": (np.arange(seen + length) % 5 > 0).astype(np.int64)[None].repeat(2, 0),
        }
        equal([*auto.run(feeds).values()], [*exact.run(feeds).values()])
    assert (auto.stats().rounded, auto.stats().programs) == (2, 0)


def test_what_is_refused_for_some_sizes_is_not_for_others() -> None:
    """Neither sizes of 0 and 1, for which nothing is left to round, nor feeds that do not fit use up the attempts."""
    graph = past(GraphBuilder("decoder"), new="length")
    auto = Session(graph, buckets="auto")

    def feeds(batch: int, seen: int, length: int, masked: int | None = None) -> dict[str, Any]:
        return {
            "past": RNG.standard_normal((batch, seen, 6)).astype(np.float32),
            "new": RNG.standard_normal((batch, length, 6)).astype(np.float32),
            "mask": np.ones((batch, seen + length if masked is None else masked), np.int64),
        }

    for batch in range(1, 12):
        auto.run(feeds(batch, 0, 1))
        with pytest.raises(mz.MezzoError):
            auto.run(feeds(batch, 7, 5, 9))
    planned = auto.stats().planned
    for seen in range(5, 30):
        auto.run(feeds(1, seen, 1))
        auto.run(feeds(3, seen, 9))
    assert auto.stats().planned == planned


def test_a_ceiling_that_holds_the_sizes_as_they_are() -> None:
    graph = graph_of(attention, 1, "length", 6)
    arenas = [Session(graph).warmup({"x": (1, n, 6)}).arena_bytes for n in (33, 36)]
    auto, x = Session(graph, buckets="auto", max_memory=sum(arenas) // 2), RNG.standard_normal((1, 33, 6))
    auto(x.astype(np.float32))
    assert auto.stats().programs == 1
    assert auto.program.inputs[0].type == f32(1, 33, 6), "the rounded program has no room"


@pytest.mark.parametrize("options", [pytest.param({"precision": "bf16"}, marks=native_bfloat16), {"onednn": False}])
def test_bfloat16_and_numpy_alone(options: dict[str, Any]) -> None:
    graph = graph_of(attention, 1, "length", 6)
    exact, auto = Session(graph, **options), Session(graph, buckets="auto", **options)
    for length in (9, 10, 30):
        x = RNG.standard_normal((1, length, 6)).astype(np.float32)
        equal([*auto.run({"x": x}).values()], [*exact.run({"x": x}).values()], 2**-6)
    assert auto.stats().rounded == 2


def test_a_nan_among_what_counts_comes_out_where_it_does_otherwise() -> None:
    graph = graph_of(rows, 1, "length", 6)
    exact, auto = Session(graph), Session(graph, buckets="auto")
    for length in (9, 10):
        x = RNG.standard_normal((1, length, 6)).astype(np.float32)
        x[0, 4, 2] = np.nan
        (ours,), (theirs,) = auto.run({"x": x}).values(), exact.run({"x": x}).values()
        np.testing.assert_array_equal(np.isnan(ours), np.isnan(theirs))
        assert np.isnan(ours).any()
        assert not np.isnan(ours).all()


def test_an_index_outside_of_what_counts_is_the_error_that_it_is_otherwise() -> None:
    graph = graph_of(lambda g, x: g.Gather(x, g.const(10), axis=1), 1, "length", 6)
    auto = Session(graph, buckets="auto")
    assert auto(np.zeros((1, 11, 6), np.float32)).shape == (1, 6)
    with pytest.raises(mz.MezzoError, match="10"):
        auto(np.zeros((1, 10, 6), np.float32))  # planned for 12, as 11 was


def test_buffers_and_names_of_outputs_warmup_and_threads() -> None:
    graph = graph_of(lambda g, x: (g.Exp(x), g.ReduceSum(x, g.const([1]))), "batch", "length", 6)
    auto, x = Session(graph, buckets="auto"), RNG.standard_normal((2, 9, 6)).astype(np.float32)
    auto.warmup({"x": (2, 12, 6)})
    assert auto.stats().rounded == 1
    first, second = auto.run({"x": x})
    assert auto.stats().rounded == 1
    assert [*auto.run({"x": x}, names=[second])] == [second]
    buffer = np.empty((2, 9, 6), np.float32)
    auto.run({"x": x}, outputs={first: buffer})
    np.testing.assert_allclose(buffer, np.exp(x), rtol=1e-5)
    wrong: list[int] = []

    def run(length: int) -> None:
        mine = np.full((1, length, 6), length, np.float32)
        wrong.extend(length for _ in range(20) if not np.allclose(auto.run({"x": mine})[second], length * length))

    threads = [threading.Thread(target=run, args=(n,)) for n in (5, 6, 7, 8, 9, 30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_sizes_are_rounded_to_few_and_never_down() -> None:
    sizes = [rounded_up(n) for n in range(1, 5000)]
    assert sizes == sorted(sizes)
    assert all(n <= r <= max(n * 1.125, n + 3) for n, r in enumerate(sizes, 1))
    assert len(set(sizes[:512])) < 50


def test_another_word_than_auto_is_refused() -> None:
    with pytest.raises(mz.InputError, match="auto"):
        Session(graph_of(attention, 1, "length", 6), buckets="all")  # type: ignore[arg-type]
