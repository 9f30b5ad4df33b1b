"""Embedding tables on a GPU: gradients that are sorted and summed by rows, and optimizer steps of these rows alone; on
the stand-in, beside the same steps on the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mezzo as mz
from mezzo.ops.types import f32, i64
from mezzo.runtime.backends.cuda import indexing
from mezzo.runtime.backends.cuda.host import host_fallbacks
from mezzo.runtime.backends.cuda.indexing import CudaScatter
from mezzo.runtime.backends.cuda.segments import bearable
from mezzo.runtime.compile.kernel import Declined

from .cuda_shim import ask, missing
from .cupy_standin import Standin
from .test_gpu_device import close
from .test_gpu_kernels import assert_answers, cases, runs
from .test_sparse import batch, network, states_of

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "runs")


@pytest.fixture
def standin(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Standin]:
    monkeypatch.setenv("MEZZO_CACHE", str(tmp_path))
    device = Standin(computes=True)
    device.install(monkeypatch)
    yield device
    assert device.races == []


OPTIMIZERS = [
    mz.optimizer.SGD(rate=0.5),
    mz.optimizer.Adagrad(rate=0.1),
    mz.optimizer.Adam(rate=0.1, lazy_update=True),
]


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: o.kind)
def test_steps_of_rows_beside_the_cpu(optimizer: Any, standin: Standin) -> None:
    """All of the step is on the device, as one graph; rows that no text shows keep their bits."""
    here, there = (mz.Trainer(network("float32"), optimizer=optimizer, device=d) for d in ("cpu", "gpu:0"))
    before = states_of(there)["table"]
    for number in range(4):
        np.testing.assert_allclose(there.step(batch(number)), here.step(batch(number)), rtol=1e-5)
    close(states_of(there), states_of(here))
    program = there._update.program
    assert {"UpdateRows", "GatherGradRows"} <= {s.node.op for s in program.steps}
    assert not host_fallbacks(program)
    shown = {int(w) % len(before) for number in range(4) for w in batch(number)["text"].ravel()}
    others = [i for i in range(len(before)) if i not in shown]
    np.testing.assert_array_equal(states_of(there)["table"][others], before[others])


def test_elements_that_are_scattered_by_sorting(monkeypatch: pytest.MonkeyPatch) -> None:
    """As those of long lines are, which would be looked through for each element."""
    kernel = CudaScatter()
    given = [case for case in cases(kernel) if case.op == "ScatterElements"]
    monkeypatch.setattr(indexing, "PATIENCE", 0)
    sorted_too = runs(kernel, given)
    assert len(sorted_too) == len(given)
    assert {len(run.written.launches) for _, run in sorted_too} >= {3}
    assert_answers(sorted_too)


def test_tables_of_real_size_stay_on_the_device() -> None:
    """Those of BERT, GPT-2 and Llama with the tokens of large batches: the cost does not count rows times tokens."""
    for vocabulary, width, tokens in ((30522, 768, 32 * 128), (50257, 768, 8 * 1024), (128256, 4096, 8 * 4096)):
        asked = ask("GatherGrad", [f32(tokens, width), i64(tokens), np.array([vocabulary, width])])
        written = CudaScatter().written(asked)
        assert not isinstance(written, Declined)
        threads = [launch.grid[0] * launch.block[0] for launch in written.launches]
        assert sum(threads) <= 1.1 * vocabulary * width + 2048 * len(threads)
        assert written.workspace <= 24 * tokens + 5 * vocabulary + 4 * tokens * width / 32 + 1024
    assert not bearable(1 << 26, 10)
    many = ask("ScatterND", [f32(1 << 27), i64(1 << 26, 1), f32(1 << 26)])  # the last of each place: nothing is sorted
    assert not isinstance(CudaScatter().written(many), Declined)
    elements = ask("ScatterElements", [f32(64, 1 << 20), i64(64, 1 << 10), f32(64, 1 << 10)], {"axis": 1})
    assert not isinstance(CudaScatter().written(elements), Declined)
