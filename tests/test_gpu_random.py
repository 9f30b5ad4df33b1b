"""Random numbers on a GPU are those of the references, bit for bit: kernels through the shim, programs through the
stand-in for CuPy. What only a device can show: that CUDA's float64 exp of Multinomial's shares rounds as NumPy's does
where a number falls between two of its values; nothing else here is rounded by a library."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import mezzo as mz
from mezzo.ops import OPS, Context, DType, Tensor
from mezzo.ops.types import f32
from mezzo.runtime.backends.cuda.host import HostSteps, on_host
from mezzo.runtime.backends.cuda.nvrtc import OPTIONS, headers, joined
from mezzo.runtime.backends.cuda.nvrtc import _binding as nvrtc_binding
from mezzo.runtime.backends.cuda.random import WRITERS, Random
from mezzo.runtime.ir.graph import Graph, GraphBuilder

from .cuda_shim import missing, run_all
from .cupy_standin import Standin
from .test_gpu_kernels import by_nvrtc, cases, reference, runs

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "runs")


def test_every_kernel_draws_the_numbers_of_its_reference() -> None:
    found = runs(Random(), list(cases(Random())))
    assert {case.op for case, _ in found} == {*WRITERS}
    for (case, run), ys in zip(found, run_all([run for _, run in found]), strict=True):
        want = reference(OPS["", case.op], run.inputs, case, wide=False)
        for y, like in zip(ys, want, strict=False):
            assert y.dtype == like.dtype
            assert y.tobytes() == np.ascontiguousarray(like).tobytes(), f"{case}"


@by_nvrtc
def test_nothing_is_rounded_once_where_the_reference_rounds_twice() -> None:
    """NVRTC contracts products and sums where it may: in PTX there is no `fma`, and what says `.rn` stays as it is."""
    found = [(case, run) for case, run in runs(Random(), list(cases(Random()))) if case.op != "Multinomial"]
    sources = {s.name: s for _, run in found for s in (launch.source for launch in run.written.launches)}
    nvrtc: Any = nvrtc_binding()
    program = nvrtc.createProgram(joined(list(sources.values())), "mezzo.cu", (), ())
    options = ["--gpu-architecture=compute_90", *OPTIONS, *(f"-I{p}" for p in headers()[:1])]
    nvrtc.compileProgram(program, tuple(options))
    text = nvrtc.getPTX(program)
    text = text.decode() if isinstance(text, bytes) else text
    assert "mul.rn.f64" in text
    assert "fma" not in text


def random_graph() -> Graph:
    """Two steps of one sort, one with a seed of its own, and one that has no seed."""
    g = GraphBuilder()
    x = g.input("x", f32(4, 6))
    drawn = [g.RandomUniformLike(x, low=-1.0, seed=5.0), g.RandomUniformLike(x, low=-1.0), g.RandomNormalLike(x)]
    dropped = g.op("Dropout", x, g.const(np.float32(0.4)), g.const(np.array(True)), outputs=2)
    return g.graph([*drawn, dropped[0]])


def runs_of(graph: Graph, count: int, **options: Any) -> list[list[bytes]]:
    """The bits of several runs, which draw anew."""
    session = mz.Session(graph, seed=11, **options)
    feeds = {"x": np.linspace(-1, 1, 24, dtype=np.float32).reshape(4, 6)}
    found = [[a.tobytes() for a in session.run(feeds).values()] for _ in range(count)]
    if options.get("device"):
        assert not any(on_host(step) for step in session.program.steps), "the device draws"
        assert session.uncaptured() == ()
    return found


def test_runs_of_a_captured_program_draw_what_the_cpu_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first run launches, the second captures, the others replay one graph: each has numbers of its own."""
    graph = random_graph()
    want = runs_of(graph, 5)
    assert len({str(w) for w in want}) == 5
    standin = Standin(computes=True)
    standin.install(monkeypatch)
    assert runs_of(graph, 5, device="gpu:0") == want
    assert runs_of(graph, 2, onednn=False) == want[:2]
    assert standin.count("capture") == 1
    assert standin.races == []


def test_seeds_of_numpy_stay_with_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """ONNX's suite compares seeded operators with NumPy's numbers."""
    Standin(computes=True).install(monkeypatch)
    g = GraphBuilder()
    x = g.input("x", Tensor(DType.FLOAT, (64,)))
    graph = g.graph([g.Bernoulli(x, seed=3.0)])
    feeds = {"x": np.full(64, 0.5, np.float32)}
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        session = mz.Session(graph, random="numpy", device="gpu:0")
        (got,) = session.run(feeds).values()
    assert [w.category for w in told] == [HostSteps]
    (want,) = mz.Session(graph, random="numpy").run(feeds).values()
    np.testing.assert_array_equal(got, want)
    assert not np.array_equal(got, OPS["", "Bernoulli"].run(Context(), [feeds["x"]], {"seed": 3.0})[0])
