"""Normalisation by the root mean square in machine code, against the records' references."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mezzo.ops.types import Array, f32
from mezzo.runtime.backends.machine.blobs import loaded
from mezzo.runtime.execution.session import Session
from mezzo.runtime.ir.graph import GraphBuilder

F32 = np.float32
KERNEL = "machine.rms_norm"
pytestmark = pytest.mark.skipif(isinstance(loaded(), str), reason=f"no machine code here: {loaded()}")
RNG = np.random.default_rng(0)


def compared(op: str, xs: list[Array], outputs: int = 1, domain: str = "", threads: int = 1, **attrs: Any) -> Session:
    """A session whose answers are the reference's, within a rounding of each row."""
    g = GraphBuilder()
    names = [g.input(f"x{i}", f32(*x.shape)) for i, x in enumerate(xs)]
    made = g.op(op, *names, domain=domain, outputs=outputs, **attrs)
    every = list(made) if isinstance(made, tuple | list) else [made]
    graph = g.graph([every[0], *every[3:]])
    feeds = dict(zip(names, xs, strict=True))
    session = Session(graph, threads=threads)
    with np.errstate(all="ignore"):
        found, want = session.run(feeds), Session(graph, onednn=False).run(feeds)
    for name, one in want.items():
        np.testing.assert_allclose(found[name], one, rtol=2e-6, atol=1e-30)
    return session


@pytest.mark.parametrize("width", [1, 7, 8, 31, 32, 100, 771, 4096])
@pytest.mark.parametrize("rows", [1, 5, 70])
def test_rows_of_every_width(rows: int, width: int) -> None:
    x = RNG.standard_normal((rows, width)).astype(F32) * 3
    for threads in (1, 2):
        session = compared("RMSNormalization", [x, RNG.random(width).astype(F32)], threads=threads, epsilon=1e-3)
        assert [s.choice.kernel for s in session.program.steps] == [KERNEL]


def test_several_axes_and_scales_that_are_spread() -> None:
    x = RNG.standard_normal((2, 3, 4, 5)).astype(F32)
    for axis, shape, ours in ((2, (4, 5), True), (-1, (5,), True), (2, (5,), False), (1, (3, 4, 5), True)):
        session = compared("RMSNormalization", [x, RNG.random(shape).astype(F32)], axis=axis)
        assert ({s.choice.kernel for s in session.program.steps} == {KERNEL}) is ours


@pytest.mark.parametrize("outputs", [1, 4])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(2, 3, 40), (1, 3, 40), (3, 40)])
def test_what_is_skipped_to(shape: tuple[int, ...], bias: bool, outputs: int) -> None:
    xs = [RNG.standard_normal(s).astype(F32) for s in ((2, 3, 40), shape, (40,), *([(40,)] if bias else []))]
    session = compared("SkipSimplifiedLayerNormalization", xs, outputs, "com.microsoft", epsilon=1e-5)
    assert {s.choice.kernel for s in session.program.steps} == {KERNEL}


def test_rows_that_are_not_finite_spoil_no_others() -> None:
    x = RNG.standard_normal((6, 50)).astype(F32)
    x[0, 3], x[1, 4], x[2, 5], x[3], x[4] = np.nan, np.inf, 1e30, 0, 1e-30
    session = compared("RMSNormalization", [x, np.ones(50, F32)])
    assert [s.choice.kernel for s in session.program.steps] == [KERNEL]
