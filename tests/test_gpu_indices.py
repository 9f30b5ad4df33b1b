"""Indices outside of their axis, in every kernel that looks places up: a kernel cannot raise, so it reads zeros and
writes nothing. What NVRTC emits is interpreted, where a byte beside an operand is a fault."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mezzo.runtime.backends.cuda.launch import Written

from .cuda_shim import Run, ask, missing, relaid, run_all
from .ptx.run import compiled, interpreted
from .test_gpu_kernels import GENERATED, by_nvrtc

_RNG = np.random.default_rng(3)
BAD = np.array([0, 4, -5, 5, -6, 9, -(2**40), 2**40, 2**31, -1], np.int64)  # of an axis of 5; four are inside
IN = (BAD >= -5) & (BAD < 5)
X = _RNG.standard_normal((5, 3)).astype(np.float32)
NEWS = _RNG.standard_normal((10, 3)).astype(np.float32)


def made(op: str, inputs: list[Any], outputs: int = 1, domain: str | None = None, **attrs: Any) -> Run:
    """The launches of a step whose indices are not known beforehand."""
    asked = ask(op, inputs, attrs, domain=domain, outputs=outputs, known=[False] * len(inputs))
    kernel = next(k for k in GENERATED if k.serves(asked.node))
    written = kernel.written(asked)
    assert isinstance(written, Written), written
    return Run(written, relaid(asked, written.layouts), inputs)


def gathered() -> np.ndarray[Any, Any]:
    return np.where(IN[:, None], X[np.where(IN, BAD, 0)], 0)


def scattered(add: bool) -> np.ndarray[Any, Any]:
    y = X.copy()
    for k, inside, row in zip(BAD, IN, NEWS, strict=True):
        if inside:
            y[k] = y[k] + row if add else row
    return y


def lost(labels: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Losses of samples; 0 where a label names no class. A negative label names none."""
    inside = (labels >= 0) & (labels < 3)
    shifted = NEWS - NEWS.max(1, keepdims=True)
    logs = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    return np.where(inside, -logs[np.arange(10), np.where(inside, labels, 0)], 0)


LABELS = BAD % 7 - 3
COLUMNS = np.repeat(BAD[:, None], 3, 1)
WIDE = np.tile(X, (2, 1))
CASES: dict[str, tuple[Run, np.ndarray[Any, Any] | None]] = {
    "Gather": (made("Gather", [X, BAD]), gathered()),
    "Gather of 16 bytes": (
        made("Gather", [np.repeat(X[:, :1], 4, 1), BAD]),
        np.repeat(gathered()[:, :1], 4, 1),
    ),
    "GatherElements": (made("GatherElements", [X, COLUMNS], axis=0), gathered()),
    "GatherND": (made("GatherND", [X, BAD[:, None]]), gathered()),
    "GatherND by two": (
        made("GatherND", [X, np.stack([BAD, np.zeros(10, np.int64)], 1)]),
        gathered()[:, 0],
    ),
    "ScatterND": (made("ScatterND", [X, BAD[:, None], NEWS]), scattered(False)),
    "ScatterND adds": (made("ScatterND", [X, BAD[:, None], NEWS], reduction="add"), scattered(True)),
    "ScatterElements": (made("ScatterElements", [WIDE, COLUMNS[:5] * 2, NEWS[:5]], axis=0), None),
    "ScatterElements adds": (made("ScatterElements", [X, COLUMNS[:5], NEWS[:5]], axis=0, reduction="add"), None),
    "SoftmaxCrossEntropyLoss": (made("SoftmaxCrossEntropyLoss", [NEWS, LABELS], 2, reduction="none"), lost(LABELS)),
    "NegativeLogLikelihoodLoss": (made("NegativeLogLikelihoodLoss", [NEWS, BAD], reduction="sum"), None),
}


@by_nvrtc
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_out_of_range_index_on_a_device(arch: str) -> None:
    kernels = compiled([launch.source for run, _ in CASES.values() for launch in run.written.launches], arch)
    for name, (run, want) in CASES.items():
        (y, *_) = interpreted(run, kernels)
        assert np.isfinite(y).all(), name
        if want is not None:
            np.testing.assert_allclose(y, want, 1e-6, err_msg=name)


@pytest.mark.skipif(bool(missing()), reason=missing() or "runs")
def test_out_of_range_index_on_the_processor() -> None:
    for (name, (_, want)), ys in zip(CASES.items(), run_all([run for run, _ in CASES.values()]), strict=True):
        if want is not None:
            np.testing.assert_allclose(ys[0], want, 1e-6, err_msg=name)


def test_index_cases_cover_the_kernels() -> None:
    """Every operator of the families that look places up by an operand."""
    served = {run.request.node.op for run, _ in CASES.values()}
    assert served >= {"Gather", "GatherElements", "GatherND", "ScatterND", "ScatterElements"}
