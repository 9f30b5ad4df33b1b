"""Products of one row with a large constant, as in each step of a decoder: read as they lie."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mezzo as mz
from mezzo.ops.types import Array, f32
from mezzo.runtime.backends.onednn.library import library
from mezzo.runtime.backends.onednn.postops import ELTWISE
from mezzo.runtime.execution import kept_programs
from mezzo.runtime.execution.cached_session import CachedSession
from mezzo.runtime.execution.session import Session
from mezzo.runtime.ir.graph import Graph, GraphBuilder, Node

pytestmark = pytest.mark.skipif(library() is None, reason="oneDNN is not installed")
RNG = np.random.default_rng(0)
WIDE, TALL, SQUARE = (701, 1003), (1003, 701), (768, 768)


def weights(inner: int, columns: int) -> Array:
    return RNG.standard_normal((inner, columns)).astype(np.float32)


def product(how: str, w: Array, rows: Any = 1) -> Graph:
    """A product in one of the ways in which exporters write it."""
    g = GraphBuilder("net")
    inner, columns = w.shape
    bias = np.arange(columns, dtype=np.float32)
    if how.startswith("gemm"):
        x = g.input("x", f32(rows, inner))
        given = [g.const(w.T.copy() if "turned" in how else w)] + ([g.const(bias)] if "bias" in how else [])
        return g.graph([g.Gemm(x, *given, transB=int("turned" in how))])
    x = g.input("x", f32(*(1,) * how.count("1"), rows, inner))
    y = g.MatMul(x, g.const(w))
    if "bias" in how:
        y = g.Add(y, g.const(bias))
    y = g.Add(y, x) if "residual" in how else y
    return g.graph([g.Relu(y) if "relu" in how else y])


def kernels(session: Session) -> list[str]:
    return [s.choice.implementation for s in session.program.steps if s.choice.implementation]


HOWS = {
    "matmul": WIDE, "matmul 1": WIDE, "matmul 1 1": SQUARE, "matmul 1 bias": WIDE, "gemm": WIDE, "gemm bias": WIDE,
    "gemm turned": TALL, "gemm turned bias": TALL, "gemm turned bias square": SQUARE, "matmul 1 bias relu": WIDE,
    "matmul relu": SQUARE,
}  # fmt: skip


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("how", HOWS)
def test_one_row(how: str, threads: int) -> None:
    w = weights(*HOWS[how])
    bias = np.arange(w.shape[1]) if "bias" in how else 0
    session = Session(product(how, w), threads=threads)
    for _ in range(3):
        x = RNG.standard_normal((*(1,) * how.count("1"), 1, len(w))).astype(np.float32)
        want = x.astype(np.float64) @ w + bias
        want = np.maximum(want, 0) if "relu" in how else want
        result = session(x)
        assert result.shape == want.shape
        assert np.abs(result - want).max() <= 1e-5 * np.abs(want).max()
        np.testing.assert_array_equal(session(x), result)
    if "avx512" in str(library()):  # elsewhere oneDNN's products are computed like that in any case
        assert kernels(session) == ["x64:gemm:jit"]


@pytest.mark.parametrize(
    ("how", "sizes", "rows"),
    [("matmul", TALL, 1), ("gemm turned", WIDE, 1), ("matmul", WIDE, 2), ("matmul bias residual", SQUARE, 1),
     ("matmul", (64, 64), 1)],
)  # fmt: skip
def test_others_are_laid_out_for_products(how: str, sizes: tuple[int, int], rows: int) -> None:
    """The longer axis is not the inner one, there are more rows, an array is added, or the weight is small."""
    w = weights(*sizes)
    session = Session(product(how, w, rows), threads=1)
    x = RNG.standard_normal((rows, len(w))).astype(np.float32)
    want = x.astype(np.float64) @ w + (np.arange(w.shape[1]) if "bias" in how else 0)
    want = want + x if "residual" in how else want
    assert np.abs(session(x) - want).max() <= 1e-5 * np.abs(want).max()
    assert "x64:gemm:jit" not in kernels(session)


@pytest.mark.parametrize("how", ["matmul", "gemm turned bias"])
def test_nan_and_infinity(how: str) -> None:
    """Zero times what is no number is none: nothing is left out."""
    w = weights(*HOWS[how])
    w[3, 5], w[7, 6], w[9, 9] = np.nan, np.inf, -np.inf
    session = Session(product(how, w), threads=2)
    for odd in (0.0, 1.0, np.nan, np.inf):
        x = np.zeros((1, len(w)), np.float32)
        x[0, 100] = odd
        with np.errstate(all="ignore"):
            want = x @ w + (np.arange(w.shape[1]) if "bias" in how else 0)
        result = session(x)
        np.testing.assert_array_equal(np.isnan(result), np.isnan(want))
        np.testing.assert_allclose(result, want, rtol=1e-5)


def test_one_row_and_many_in_turn(tmp_path: Any) -> None:
    """Both ways in one session, and in what is read from a file."""
    w = weights(*WIDE)
    session = Session(product("gemm bias", w, "rows"), threads=2)
    for read in (False, True):
        if read:
            session.save(tmp_path / "net.mezzo")
            session = mz.load(tmp_path / "net.mezzo", threads=2)
        for rows in (1, 5, 1, 2, 1):
            x = RNG.standard_normal((rows, len(w))).astype(np.float32)
            want = x.astype(np.float64) @ w + np.arange(w.shape[1])
            assert np.abs(session(x) - want).max() <= 1e-5 * np.abs(want).max()
            assert not read or session.bound_from == "variant"


def test_sizes_that_read_weights_differently_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one size alone has of packed weights pushes no other size out, whatever the weights take."""
    monkeypatch.setattr(kept_programs, "USUAL_BYTES", 1 << 20)
    w = weights(*WIDE)
    session = Session(product("gemm bias", w, "rows"), threads=1)
    for rows in (1, 5) * 3:
        session(RNG.standard_normal((rows, len(w))).astype(np.float32))
    assert (session.stats().planned, session.stats().evicted) == (2, 0)


@pytest.mark.parametrize(("kind", "layouts"), [(Session, 2), (CachedSession, 1)])
def test_prompts_and_tokens_read_one_layout(kind: type[Session], layouts: int) -> None:
    """A session with caches holds each weight once: many rows and single ones take turns in it."""
    w = weights(*WIDE)
    g = GraphBuilder("decoder")
    x = g.input("x", f32(1, "new", len(w)))
    past = g.input("past_0", f32(1, "past", len(w)))
    g.add(Node("Concat", (past, x), ("present_0",), {"axis": 1}))
    session = kind(g.graph([g.MatMul(x, g.const(w)), "present_0"]), threads=1)
    for new in (5, 1):
        fed = RNG.standard_normal((1, new, len(w))).astype(np.float32)
        y, _ = session.run({"x": fed, "past_0": np.zeros((1, 0, len(w)), np.float32)}).values()
        want = fed.astype(np.float64) @ w
        assert np.abs(y - want).max() <= 1e-5 * np.abs(want).max()
    constants = [a for executable in session._kept._kept for a in executable.constants.values()]
    assert len({id(a) for a in constants if a.nbytes >= w.nbytes}) == layouts


@pytest.mark.parametrize("sizes", [SQUARE, WIDE])
@pytest.mark.parametrize("op", sorted(ELTWISE))
def test_what_follows_keeps_every_value(op: str, sizes: tuple[int, int]) -> None:
    """Functions of the result, also of NaN and infinities, are those of the operators one by one."""
    w = weights(*sizes)
    w[0, [5, -1]] = np.nan
    g = GraphBuilder("net")
    x = g.input("x", f32(1, len(w)))
    y = getattr(g, op)(g.Gemm(x, g.const(w), g.const(np.linspace(-3, 3, sizes[1], dtype=np.float32))))
    one, plain = (Session(g.graph([y]), threads=1, onednn=on) for on in (True, False))
    for odd in (0.0, 1e-3, 1.0, np.nan, np.inf):
        fed = np.zeros((1, len(w)), np.float32)
        fed[0, :2] = odd
        want, result = plain(fed), one(fed)
        np.testing.assert_array_equal(np.isnan(result), np.isnan(want))
        finite = np.abs(want[np.isfinite(want)])
        np.testing.assert_allclose(result, want, rtol=1e-5, atol=1e-5 * finite.max() if finite.size else 0)
