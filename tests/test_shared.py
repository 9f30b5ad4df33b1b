"""Sessions of one model hold its weights once, and what is folded from them too."""

from __future__ import annotations

import gc
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from mezzo.exporters import to_onnx
from mezzo.importers import load_onnx
from mezzo.ops.types import f32
from mezzo.runtime.execution.session import Session
from mezzo.runtime.ir.graph import Graph, GraphBuilder
from mezzo.runtime.memory import shared_constants as shared

SIDE = 512  # of a weight of 1 MiB


def model(scale: float = 2) -> Graph:
    """A product with a weight, and with one that is folded from it."""
    g = GraphBuilder()
    w = g.const(np.random.default_rng(0).random((SIDE, SIDE), np.float32))
    folded = g.Mul(w, g.const(np.float32(scale)))
    return g.graph([g.MatMul(g.MatMul(g.input("x", f32("n", SIDE)), w), folded)])


def test_sessions_share_what_is_folded() -> None:
    graph, x = model(), np.ones((2, SIDE), np.float32)
    first, second = Session(graph), Session(graph)
    again = Session(load_onnx(to_onnx(graph).SerializeToString()))  # the same file, loaded once more
    other = Session(model(3))
    answers = [s(x) for s in (first, second, again, other)]
    assert np.array_equal(answers[0], answers[1])
    assert np.array_equal(answers[0], answers[2])
    assert not np.array_equal(answers[0], answers[3])
    made = [{n: a for n, a in s.executable.constants.items() if not any(a is i for i in s.graph.initializers.values())}
            for s in (first, second, again, other)]  # fmt: skip
    assert made[0]
    assert all(made[1][n] is a and made[2][n] is a and not a.flags.writeable for n, a in made[0].items())


def test_a_second_session_takes_no_second_weight() -> None:
    graph, x = model(), np.ones((2, SIDE), np.float32)
    first = Session(graph)
    first(x)
    gc.collect()
    tracemalloc.start()
    second = Session(graph)
    second(x)
    gc.collect()
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert held < SIDE * SIDE * 4 / 2


def test_what_no_session_uses_is_given_back() -> None:
    gc.collect()
    before = {*shared._kept}  # what others keep may go meanwhile
    session = Session(model(5))
    session(np.ones((1, SIDE), np.float32))
    assert {*shared._kept} - before
    del session
    gc.collect()
    assert not {*shared._kept} - before


def test_small_arrays_views_and_texts_are_left_alone() -> None:
    large = np.zeros(shared.SMALL, np.uint8)
    assert shared.shared(large[:8], []).flags.writeable
    assert shared.shared(large.reshape(2, -1), [large]).base is large
    assert shared.shared(large.copy(), [large]) is shared.shared(large.copy(), [large])
    words = np.full(shared.SMALL, "a", object)
    assert shared.shared(words, []) is words
    assert shared.shared(large.astype(np.int8), []).dtype == np.int8


@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells what is resident")
def test_a_mapped_weight_is_resident_once(tmp_path: Path) -> None:
    """Its packed form is; the file's bytes are given back, and are there when they are read again."""

    def resident() -> int:
        status = Path("/proc/self/status").read_text()
        return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("RssFile")) * 1024

    size = 32 << 20
    np.arange(size // 4, dtype=np.float32).tofile(tmp_path / "weights")
    with open(tmp_path / "weights", "rb") as file:
        mapped = np.memmap(file, np.uint8, "r").view(np.ndarray)
    weight = mapped[4000:].view(np.float32)
    first = float(weight.sum())
    before = resident()
    packed = shared.derived(weight, "twice", lambda: weight * 2)
    assert resident() < before - size // 2
    assert float(weight.sum()) == first
    assert packed[3] == 2006.0
