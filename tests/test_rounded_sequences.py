"""Sizes that are rounded up along sequences: recurrent layers, sorts, running sums and transforms answer as they do at
the sizes as they are."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

import mezzo as mz
from mezzo.ops import DType, Tensor
from mezzo.ops.types import f32
from mezzo.runtime.compile import padded_program
from mezzo.runtime.execution.ready import not_rounded
from mezzo.runtime.execution.session import Session
from mezzo.runtime.ir.graph import Graph, GraphBuilder

RNG = np.random.default_rng(11)
INPUTS, HIDDEN = 6, 4
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
LENGTHS = (9, 11, 5, 21, 2)


def weights(op: str, directions: int) -> list[Any]:
    rows = GATES[op] * HIDDEN
    sizes = ((directions, rows, INPUTS), (directions, rows, HIDDEN), (directions, 2 * rows))
    return [RNG.standard_normal(s).astype(np.float32) * 0.4 for s in sizes]


def layer(
    op: str,
    direction: str,
    *,
    layout: int = 0,
    wanted: Sequence[int] = (0, 1),
    states: bool = False,
    lengths: bool = False,
    peepholes: bool = False,
    first: bool = True,
    **attrs: Any,
) -> Graph:
    """A recurrent layer over (batch, length, INPUTS), or `first` along the length; `wanted` of its results."""
    g, directions = GraphBuilder("net"), 1 + (direction == "bidirectional")
    dims = ("batch", "length", INPUTS) if layout or not first else ("length", "batch", INPUTS)
    x = g.input("x", f32(*dims))
    steps = x if layout or first else g.Transpose(x, perm=(1, 0, 2))
    held = [g.const(w) for w in weights(op, directions)]
    more: list[Any] = [g.input("lengths", Tensor(DType.INT32, ("batch",))) if lengths else None]
    count = 2 if op == "LSTM" else 1
    order = ("batch", directions, HIDDEN) if layout else (directions, "batch", HIDDEN)
    more += [g.input(f"state{i}", f32(*order)) if states else None for i in range(count)]
    if peepholes:
        more.append(g.const(RNG.standard_normal((directions, 3 * HIDDEN)).astype(np.float32)))
    while more and more[-1] is None:
        more.pop()
    attrs = {"direction": direction, "hidden_size": HIDDEN, "layout": layout, **attrs}
    made = getattr(g, op)(steps, *held, *more, outputs=1 + count, **attrs)
    return g.graph([g.Identity(made[i]) for i in wanted])


def fed(graph: Graph, batch: int, length: int, rng: np.random.Generator) -> dict[str, Any]:
    sizes: dict[Any, int] = {"batch": batch, "length": length}
    feeds = dict[str, Any]()
    for name in graph.inputs:
        known = graph.types[name]
        assert isinstance(known, Tensor)
        shape: list[Any] = [sizes.get(d, d) for d in known.shape]
        feeds[name] = rng.standard_normal(shape).astype(known.dtype.numpy)
        if known.dtype is DType.INT32:
            feeds[name] = rng.integers(1, length + 1, shape).astype(np.int32)
    return feeds


def alike(ours: Any, theirs: Any, tol: float = 2e-6) -> None:
    for a, b in zip(ours, theirs, strict=True):
        assert a.shape == b.shape
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(np.isnan(a), np.isnan(b))
        np.testing.assert_allclose(a, b, tol, tol)


def walked(graph: Graph, rounded: int, lengths: Sequence[int] = LENGTHS, batch: int = 2, **options: Any) -> Session:
    exact, auto = Session(graph, **options), Session(graph, buckets="auto", **options)
    for length in lengths:
        feeds = fed(graph, batch, length, RNG)
        kept = {name: x.copy() for name, x in feeds.items()}
        alike(auto.run(feeds).values(), exact.run(feeds).values())
        for name, before in kept.items():
            np.testing.assert_array_equal(feeds[name], before)
    stats = auto.stats()
    assert (stats.rounded, stats.programs) == (rounded, 0), not_rounded(auto)
    return auto


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("op", GATES)
def test_layers_in_all_directions(op: str, direction: str) -> None:
    walked(layer(op, direction), 4)


FORMS: dict[str, dict[str, Any]] = {
    "batches first": {"layout": 1},
    "turned": {"first": False},
    "states": {"states": True},
    "states of batches first": {"states": True, "layout": 1},
    "lengths": {"lengths": True},
    "lengths and states": {"lengths": True, "states": True},
    "all results": {"wanted": (0, 1, 2)},
    "cells alone": {"wanted": (2,)},
    "last alone": {"wanted": (1,)},
    "peepholes": {"peepholes": True, "wanted": (0, 2)},
    "coupled": {"input_forget": 1, "wanted": (1, 2)},
    "cells of states": {"states": True, "wanted": (0, 1, 2), "layout": 1},
    "functions": {"activations": ["Sigmoid", "Tanh", "Relu"], "wanted": (0, 1)},
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_forms_of_lstms(form: str, direction: str) -> None:
    more = dict(FORMS[form])
    if "activations" in more and direction == "bidirectional":
        more["activations"] = [*more["activations"], "Sigmoid", "Relu", "Tanh"]
    walked(layer("LSTM", direction, **more), 4)


def test_large_cells_behind_peepholes_open_no_gate() -> None:
    graph = layer("LSTM", "forward", peepholes=True, states=True, wanted=(0, 1, 2))
    exact, auto = Session(graph), Session(graph, buckets="auto")
    for length in LENGTHS:
        feeds = fed(graph, 2, length, RNG)
        feeds["state1"] *= 1e5
        alike(auto.run(feeds).values(), exact.run(feeds).values())
    assert auto.stats().rounded


@pytest.mark.parametrize("more", [{"linear_before_reset": 1}, {"lengths": True}, {"states": True, "layout": 1}])
def test_forms_of_grus(more: dict[str, Any]) -> None:
    walked(layer("GRU", "bidirectional", **more), 4)


@pytest.mark.parametrize("batch", [1, 3])
def test_batches(batch: int) -> None:
    """A batch in front is as it is; one behind the steps is rounded too."""
    walked(layer("LSTM", "bidirectional", first=False), 2, (9, 11, 17), batch)
    walked(layer("LSTM", "bidirectional"), 2, (9, 11, 17), batch)


@pytest.mark.parametrize("options", [{"onednn": False}, {"threads": 1}])
def test_without_one_dnn_and_on_one_thread(options: dict[str, Any]) -> None:
    walked(layer("LSTM", "bidirectional", wanted=(0, 1, 2)), 2, (9, 12, 21), **options)


def tagger(layers: int = 2) -> Graph:
    """Tokens to labels through a table and layers in both directions, as PyTorch exports them."""
    g = GraphBuilder("tagger")
    tokens = g.input("tokens", Tensor(DType.INT64, ("batch", "length")))
    x = g.Transpose(g.Gather(g.const(RNG.standard_normal((50, INPUTS)).astype(np.float32)), tokens), perm=(1, 0, 2))
    size = INPUTS
    for _ in range(layers):
        rows = 4 * HIDDEN
        held = [
            RNG.standard_normal(s).astype(np.float32) * 0.3 for s in ((2, rows, size), (2, rows, HIDDEN), (2, 2 * rows))
        ]
        y, *_ = g.LSTM(x, *map(g.const, held), hidden_size=HIDDEN, direction="bidirectional", outputs=3)
        x = g.Reshape(g.Transpose(y, perm=(0, 2, 1, 3)), g.const([0, 0, -1]))
        size = 2 * HIDDEN
    x = g.Transpose(g.MatMul(x, g.const(RNG.standard_normal((size, 5)).astype(np.float32))), perm=(1, 0, 2))
    return g.graph([x, g.ArgMax(x, axis=2)])


def test_a_tagger_plans_few_programs_for_many_lengths() -> None:
    graph = tagger()
    exact, auto = Session(graph), Session(graph, buckets="auto")
    for length in RNG.permutation(np.arange(1, 41)).tolist():
        tokens = RNG.integers(0, 50, (2, length))
        alike(auto.run({"tokens": tokens}).values(), exact.run({"tokens": tokens}).values())
    assert auto.stats().rounded <= 14
    assert auto.stats().programs <= 1, "of one token, for which nothing is left to round"


def test_what_lies_in_the_padding_changes_nothing() -> None:
    def grown(array: Any, type: Tensor, *, room: bool = False) -> Any:
        odd = np.full(type.sizes, np.nan if array.dtype.kind == "f" else 1, array.dtype)
        odd[tuple(map(slice, array.shape))] = array
        return odd

    with (
        patch.object(padded_program, "_grown", grown),
        patch("mezzo.runtime.compile.padding_rules.INPUT_PADDING", None),
    ):
        for direction, wanted in itertools.product(("forward", "bidirectional"), ((0, 1), (0, 1, 2))):
            walked(layer("LSTM", direction, first=False, wanted=wanted), 2, (9, 10, 21))
        walked(layer("GRU", "reverse", first=False), 2, (9, 10, 21))
        for build in (sorts, sums, spectrum):
            walked(along(build), 2, (21, 22, 33))


def test_a_stored_tagger_plans_nothing(tmp_path: Path) -> None:
    graph, path = tagger(), tmp_path / "tagger.mezzo"
    auto, exact = Session(graph, buckets="auto"), Session(graph)
    for length in (9, 20, 33):
        auto.run({"tokens": np.zeros((1, length), np.int64)})
    auto.save(path)
    for threads in (None, 1):
        kept = mz.load(path, threads=threads)
        for length in (10, 12, 17, 19, 35):
            tokens = RNG.integers(0, 50, (1, length))
            alike(kept.run({"tokens": tokens}).values(), exact.run({"tokens": tokens}).values())
        if threads is None:
            assert kept.stats().planned == 0


def test_threads() -> None:
    graph = tagger(1)
    exact, auto = Session(graph), Session(graph, buckets="auto")
    asked = {n: RNG.integers(0, 50, (1, n)) for n in (5, 6, 7, 8, 9, 30)}
    answers = {n: exact.run({"tokens": x}) for n, x in asked.items()}
    wrong: list[int] = []

    def run(length: int) -> None:
        for _ in range(15):
            made = auto.run({"tokens": asked[length]})
            wrong.extend(length for a, b in zip(made.values(), answers[length].values(), strict=True)
                         if not np.allclose(a, b, 1e-5, 1e-6))  # fmt: skip

    threads = [threading.Thread(target=run, args=(n,)) for n in asked]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# -- sorts, sums, transforms -------------------------------------------------------------------------------------------

Build = Callable[[GraphBuilder, str], Any]


def along(build: Build, dtype: DType = DType.FLOAT) -> Graph:
    g = GraphBuilder("net")
    made = build(g, g.input("x", Tensor(dtype, ("batch", "length", INPUTS))))
    return g.graph([g.Identity(y) for y in (made if isinstance(made, tuple) else (made,))])


def sorts(g: GraphBuilder, x: str) -> Any:
    """All in order, from either end, and the smallest."""
    all_ = g.Gather(g.Shape(x), g.const([1]))
    asked = ((all_, 1), (all_, 0), (g.const([2]), 0))
    return tuple(y for many, largest in asked for y in g.TopK(x, many, axis=1, largest=largest, outputs=2))


def sums(g: GraphBuilder, x: str) -> Any:
    along = g.const(1)
    return (
        g.CumSum(x, along, reverse=1),
        g.CumSum(x, along, reverse=1, exclusive=1),
        g.CumProd(g.Cos(x), along, reverse=1),
        g.CumProd(g.Cos(x), along),
    )


def spectrum(g: GraphBuilder, x: str) -> Any:
    signal = g.Unsqueeze(g.ReduceSum(x, g.const([2]), keepdims=0), g.const([2]))
    window = g.const(np.hanning(4).astype(np.float32))
    return (
        g.DFT(signal, g.const(16), g.const(1), onesided=1),
        g.DFT(signal, g.const(40), g.const(1)),
        g.STFT(signal, g.const(3), window),
        g.STFT(signal, g.const(2), None, g.const(5)),
    )


BUILT: dict[str, tuple[Build, DType]] = {
    "sorts": (sorts, DType.FLOAT),
    "sorts of whole numbers": (sorts, DType.INT32),
    "the fewer half": (
        lambda g, x: g.TopK(x, g.Div(g.Gather(g.Shape(x), g.const([1])), g.const([2])), axis=1, largest=0, outputs=2),
        DType.FLOAT,
    ),
    "in any order": (lambda g, x: g.TopK(x, g.const([2]), axis=1, sorted=0, outputs=2), DType.INT64),
    "sums": (sums, DType.FLOAT),
    "sums of whole numbers": (lambda g, x: g.CumSum(x, g.const(1), reverse=1), DType.INT32),
    "spectrum": (spectrum, DType.FLOAT),
}


@pytest.mark.parametrize("name", BUILT)
def test_sorts_sums_and_transforms(name: str) -> None:
    build, dtype = BUILT[name]
    graph = along(build, dtype)
    exact, auto = Session(graph), Session(graph, buckets="auto")
    for length in (9, 11, 6, 21, 33, 12, 10, 16, 17):
        x = RNG.integers(-3, 4, (2, length, INPUTS)).astype(dtype.numpy)  # many are equal
        if name in ("sums", "spectrum"):
            x = RNG.standard_normal(x.shape).astype(np.float32)
        tol = 2e-6 if name in ("sums", "spectrum") else 0
        alike(auto.run({"x": x}).values(), exact.run({"x": x}).values(), tol)
    assert auto.stats().programs == 0, not_rounded(auto)
    assert auto.stats().rounded <= 8


def test_sorts_of_odd_numbers() -> None:
    """NaN is the greatest: behind infinity where the smallest are asked for, and padding behind it."""
    graph = along(sorts)
    exact, auto = Session(graph), Session(graph, buckets="auto")
    for length in (5, 6, 9, 11):
        x = RNG.choice(np.array([np.nan, np.nan, np.inf, -np.inf, 1, -0.0, 0], np.float32), (2, length, INPUTS))
        for ours, theirs in zip(auto.run({"x": x}).values(), exact.run({"x": x}).values(), strict=True):
            np.testing.assert_array_equal(ours, theirs)
    assert auto.stats().rounded == 2


REFUSED: dict[str, tuple[Callable[[], Graph], str]] = {
    "a transform over all": (
        lambda: along(lambda g, x: g.DFT(g.Unsqueeze(x, g.const([3])), None, g.const(1))), "other frequencies"),
    "a frame of all": (
        lambda: along(lambda g, x: g.STFT(g.Unsqueeze(g.ReduceMax(x, g.const([2]), keepdims=0), g.const([2])),
                                          g.const(1))), "frames follow"),
    "cells behind clipped gates": (lambda: layer("LSTM", "forward", wanted=(0, 2), layout=1, clip=3.0), "do not shut"),
    "numbers of both directions": (
        lambda: layer("RNN", "bidirectional", layout=1, activations=["LeakyRelu"] * 2, activation_alpha=[0.1, 0.2]),
        "both directions together"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_rounded_says_why(name: str) -> None:
    build, why = REFUSED[name]
    graph = build()
    exact, auto = Session(graph), Session(graph, buckets="auto")
    for length in (9, 11):
        feeds = fed(graph, 1, length, RNG)
        alike(auto.run(feeds).values(), exact.run(feeds).values())
    assert auto.stats().rounded == 0
    assert any(why in reason for reason in not_rounded(auto)), not_rounded(auto)
