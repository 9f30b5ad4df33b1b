"""`mezzo doctor --gpu` on a GPU that is not there: what is right passes, and what breaks is named in the report."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest
from click.testing import CliRunner

from mezzo.ops.errors import MissingPackage
from mezzo.runtime.backends.cuda.kernels import GPU_KERNELS
from mezzo.runtime.backends.cuda.softmax import Softmax
from mezzo.tools import gpu_selftest
from mezzo.tools.cli import cli
from mezzo.tools.gpu_selftest import by_family, self_test
from mezzo.tools.report import Report

from . import cupy_parts
from .cupy_standin import Standin

FEW = ("gpu.softmax", "gpu.gather", "gpu.copy", "gpu.top_k")


@pytest.fixture(autouse=True)
def planned_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which kernels serve which samples is asked once: it takes seconds."""
    monkeypatch.setattr(gpu_selftest, "by_family", cached)


cached = cache(by_family)


def states(report: Report) -> dict[str, str]:
    return {name: state for name, state, _ in report.tables[0].rows}


def test_what_is_right_passes(standin: Standin) -> None:
    report, code = self_test(only=FEW)
    assert code == 0, report.tables[0].rows
    found = states(report)
    assert set(found) == {"compilation", *FEW, "two threads at once", "memory"}
    assert set(found.values()) == {"passed"}
    assert report.facts["seconds"] < 600


def test_what_is_wrong_is_named(standin: Standin, monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers of one family that are wrong, those of another that change from run to run, and memory that forgets."""
    plain, count = cupy_parts.run, [0]

    def spoilt(source: Any, *given: Any) -> None:
        plain(source, *given)
        if source.name.startswith(("softmax", "gather")):
            count[0] += 1
            address = next(int(a) for a in reversed(given[2]) if a.dtype == "u8")
            if source.name.startswith("softmax") or count[0] % 5 == 0:
                standin.block_of(address)[address - standin.block_of(address).ctypes.data] ^= 0x40

    monkeypatch.setattr(cupy_parts, "run", spoilt)
    monkeypatch.setattr("mezzo.tools.gpu_selftest.np.array_equal", lambda *a, **k: False)
    report, code = self_test(only=("gpu.softmax", "gpu.gather"))
    assert code == 3
    found = states(report)
    assert (found["gpu.softmax"], found["gpu.gather"], found["memory"]) == ("failed", "failed", "failed")
    notes = {name: note for name, _, note in report.tables[0].rows}
    assert "from the CPU" in notes["gpu.softmax"] or "infinities" in notes["gpu.softmax"]


def test_time_that_is_up(standin: Standin) -> None:
    report, code = self_test(only=("gpu.softmax",), seconds=0.0)
    assert (code, states(report)["gpu.softmax"]) == (0, "not run")


def test_the_command(standin: Standin, monkeypatch: pytest.MonkeyPatch) -> None:
    one = {"host": [], "gpu.softmax": cached("gpu:0", 90)["gpu.softmax"][:1]}
    monkeypatch.setattr(gpu_selftest, "by_family", lambda *_: one)
    ran = CliRunner().invoke(cli, ["doctor", "--gpu", "--json"])
    assert ran.exit_code == 0, ran.output
    said = json.loads(ran.output)
    assert (said["failed"], said["architecture"]) == (0, "sm_90")
    assert {row["check"] for row in said["checks"]} >= {"gpu.softmax", "memory"}


def test_a_machine_without_a_gpu() -> None:
    with pytest.raises(MissingPackage):
        self_test("gpu:0")


def test_every_family_has_samples() -> None:
    found = cached("gpu:0", 90)
    missing = {k.name for k in GPU_KERNELS} - set(found)
    assert Softmax.name in found
    assert missing <= {"copy", "gpu.exchange", "gpu.random"}, missing  # of several devices, the store's, and what draws


@pytest.mark.soak
def test_all_families(standin: Standin) -> None:
    report, code = self_test(seconds=3000)
    assert code == 0, report.tables[0].rows
