"""A GPU without a single kernel: every operator runs on the host between its copies, through the stand-in for CuPy."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest

import mezzo as mz
from mezzo.ops import OPS
from mezzo.runtime.backends.cuda.host import HostSteps
from mezzo.runtime.execution.session import Session
from mezzo.runtime.ir.interpreter import evaluate

from .cupy_standin import Standin
from .graphs import sample_graph
from .test_program import assert_same


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> Iterator[Standin]:
    monkeypatch.setattr("mezzo.runtime.backends.cuda.executor.GPU_KERNELS", ())
    made = Standin(computes=True)
    made.install(monkeypatch)
    yield made
    assert made.races == []


def test_operators_run_on_the_host(bare: Standin) -> None:
    """The first sample of each."""
    tried("all", 1)


@pytest.mark.soak
@pytest.mark.parametrize("fed", ["all", "types", "dynamic"])
def test_every_sample_runs_on_the_host(fed: str, bare: Standin) -> None:
    tried(fed, None)


def tried(fed: str, most: int | None) -> None:
    """Samples of all operators equal the interpreter, in the first run and in one that replays."""
    wrong = []
    for op in OPS.values():
        for i, sample in enumerate(op.samples[:most] if op.name != "Reorder" else ()):  # layouts of the device stay
            graph, feeds = sample_graph(op, sample, fed=fed)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", HostSteps)
                try:
                    session = Session(graph, device="gpu:0")
                    for run in range(2):
                        want = evaluate(graph, feeds, key=(0, run))
                        assert_same(session.run(feeds), want, parts=True)
                except (mz.MezzoError, AssertionError) as error:
                    wrong.append(f"{op.name}-{i}: {type(error).__name__}: {str(error)[:200]}")
    assert not wrong, "\n".join(wrong)
