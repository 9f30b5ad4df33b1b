"""Products with weights of few bits by machine code, against the record's own meaning in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mezzo.ops.contrib.weights import dense_weights
from mezzo.ops.types import Array, f32
from mezzo.runtime.backends.machine.blobs import loaded
from mezzo.runtime.backends.machine.n_bits import MOST
from mezzo.runtime.backends.onednn.library import library
from mezzo.runtime.execution.session import Session
from mezzo.runtime.ir.graph import GraphBuilder

F32 = np.float32
pytestmark = pytest.mark.skipif(isinstance(loaded(), str), reason=f"no machine code here: {loaded()}")
GRID = [
    (bits, block, zeros, rows, N, K)
    for bits, block in ((4, 16), (4, 32), (4, 64), (4, 256), (8, 16), (8, 32), (8, 128))
    for zeros in (False, True)
    for rows, N, K in ((1, 5, 96), (7, 67, 256), (2, 1, 40), (9, 33, 4096), (4, 6, 1000), (3, 3, 7))
]


def product(
    bits: int, block: int, zeros: bool, N: int, K: int, threads: int = 1, seed: int = 0
) -> tuple[Session, Array, Array]:
    """A session of one product of "x", and the weights (N, K) and bias that it stands for."""
    rng, blocks = np.random.default_rng(seed), -(-K // block)
    packed = rng.integers(0, 256, (N, blocks, block * bits // 8), dtype=np.uint8)
    scales, bias = rng.standard_normal((N, blocks)).astype(F32), rng.standard_normal(N).astype(F32)
    points = rng.integers(0, 256, (N, -(-blocks * bits // 8)), dtype=np.uint8) if zeros else None
    g = GraphBuilder()
    operands = [g.const(packed), g.const(scales), None if points is None else g.const(points), None, g.const(bias)]
    attrs = {"K": K, "N": N, "bits": bits, "block_size": block}
    y = g.op("MatMulNBits", g.input("x", f32("rows", K)), *operands, domain="com.microsoft", **attrs)
    dense = dense_weights(packed, scales, points, None, **attrs)
    return Session(g.graph([y]), threads=threads), dense, bias


def run(session: Session, x: Array) -> Array:
    (y,) = session.run({"x": x}).values()
    assert [s.choice.kernel for s in session.program.steps] == ["machine.matmul_n_bits"]
    return np.asarray(y)


@pytest.mark.parametrize(("bits", "block", "zeros", "rows", "N", "K"), GRID)
def test_every_packing_and_size(bits: int, block: int, zeros: bool, rows: int, N: int, K: int) -> None:
    session, dense, bias = product(bits, block, zeros, N, K)
    x = np.random.default_rng(1).standard_normal((rows, K)).astype(F32)
    want = x.astype(float) @ dense.T.astype(float) + bias
    assert np.abs(run(session, x) - want).max() <= 2e-6 * np.abs(want).max()


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("bits", [4, 8])
def test_rows_that_are_not_finite_or_near_the_ends_of_float32(bits: int, zeros: bool) -> None:
    """Each row is alone: the others are as they were."""
    session, dense, bias = product(bits, 32, zeros, 24, 160)
    x = np.random.default_rng(2).standard_normal((6, 160)).astype(F32)
    usual = run(session, x)
    x[0, 3], x[1, 5], x[2, 7] = np.inf, np.nan, -np.inf
    x[3] *= F32(1e-36)
    x[4] *= F32(1e34)
    with np.errstate(all="ignore"):
        want = (x @ dense.T + bias).astype(F32)
        found = run(session, x)
    np.testing.assert_array_equal(np.isnan(found[:3]), np.isnan(want[:3]))
    np.testing.assert_array_equal(found[:3][~np.isnan(want[:3])], want[:3][~np.isnan(want[:3])])
    for row in (3, 4):
        assert np.abs(found[row] - want[row]).max() <= 2e-6 * np.abs(want[row]).max()
    np.testing.assert_array_equal(found[5], usual[5])
    with np.errstate(all="ignore"):
        tiny = run(session, x[3:4] * 0 + F32(1e-37)) - bias
        alone = (x[3:4] * 0 + F32(1e-37)).astype(float) @ dense.T.astype(float)
    assert np.abs(tiny - alone).max() <= 1e-6 * np.abs(bias).max()


def test_threads_change_nothing() -> None:
    """The same bits with any number of threads, with rows that come and go, at the places of each run."""
    sessions: list[Any] = [product(4, 32, True, 700, 1056, threads)[0] for threads in (1, 2, 3)]
    rng = np.random.default_rng(3)
    for rows in (1, 6, 2, 1):
        x = rng.standard_normal((rows, 1056)).astype(F32)
        one, *others = [run(s, x) for s in sessions]
        for other in others:
            np.testing.assert_array_equal(one, other)


def test_a_chain_of_products_is_one_call() -> None:
    """Small ones join the batches that run without a return to Python."""
    g = GraphBuilder()
    x = g.input("x", f32(1, 64))
    rng = np.random.default_rng(4)
    for _ in range(3):
        packed, scales = rng.integers(0, 256, (64, 2, 16), dtype=np.uint8), rng.random((64, 2)).astype(F32) / 64
        attrs = {"K": 64, "N": 64, "block_size": 32}
        x = g.op("MatMulNBits", x, g.const(packed), g.const(scales), domain="com.microsoft", **attrs)
    graph = g.graph([x])
    feeds = {"x": rng.standard_normal((1, 64)).astype(F32)}
    (found,), (want,) = (s.run(feeds).values() for s in (Session(graph), Session(graph, onednn=False)))
    np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-6 * np.abs(want).max())


def test_many_rows_are_left_to_onednn_where_it_is() -> None:
    session, dense, bias = product(4, 32, False, 40, 64)
    x = np.random.default_rng(5).standard_normal((MOST + 1, 64)).astype(F32)
    (found,) = session.run({"x": x}).values()
    assert np.abs(found - (x @ dense.T + bias)).max() <= 1e-5 * np.abs(found).max()
    (step,) = session.program.steps
    assert (step.choice.kernel == "machine.matmul_n_bits") is (library() is None)
    assert run(session, x[:MOST]).shape == (MOST, 40)
