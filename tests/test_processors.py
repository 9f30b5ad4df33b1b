"""Processors that others use too: what control groups allow, of either version, and how long idle threads spin."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mezzo.runtime import environment
from mezzo.runtime.backends.onednn.library import SPINNING, spins_bounded
from mezzo.runtime.environment import processors, quota

V2, V1 = "0::/pods/mine\n", "5:cpu,cpuacct:/docker/a\n4:memory:/docker/a\n"


def system(root: Path, groups: str, files: dict[str, str]) -> float | None:
    """The quota in a file system with these control groups."""
    for name, text in {"proc/self/cgroup": groups, **{f"sys/fs/cgroup/{n}": t for n, t in files.items()}}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return quota(str(root))


@pytest.mark.parametrize(
    ("groups", "files", "limit"),
    [
        (V2, {"pods/mine/cpu.max": "150000 100000\n"}, 1.5),
        (V2, {"pods/mine/cpu.max": "max 100000\n"}, None),
        (V2, {"pods/mine/cpu.max": "max 100000\n", "pods/cpu.max": "50000 100000\n"}, 0.5),
        (V2, {"pods/mine/cpu.max": "400000 100000\n", "pods/cpu.max": "300000 100000\n"}, 3.0),
        (V2, {"cpu.max": "200000 100000\n"}, 2.0),  # a container that sees its own group as the root
        (V2, {}, None),
        (V1, {"cpu/docker/a/cpu.cfs_quota_us": "50000\n", "cpu/docker/a/cpu.cfs_period_us": "100000\n"}, 0.5),
        (V1, {"cpu,cpuacct/cpu.cfs_quota_us": "250000", "cpu,cpuacct/cpu.cfs_period_us": "100000"}, 2.5),
        (V1, {"cpu/docker/a/cpu.cfs_quota_us": "-1\n", "cpu/docker/a/cpu.cfs_period_us": "100000\n"}, None),
        (V1 + V2, {"unified/pods/mine/cpu.max": "100000 100000\n"}, 1.0),
        (V2, {"pods/mine/cpu.max": "what is this\n"}, None),
    ],
)
def test_the_least_limit_counts(tmp_path: Path, groups: str, files: dict[str, str], limit: float | None) -> None:
    assert system(tmp_path, groups, files) == limit


def test_without_control_groups_there_is_no_limit(tmp_path: Path) -> None:
    assert quota(str(tmp_path)) is None


@pytest.mark.parametrize(("limit", "count"), [(0.5, 1), (1.9, 1), (2.0, 2), (64.0, 3), (None, 3)])
def test_threads_are_whole_processors_of_the_quota(
    monkeypatch: pytest.MonkeyPatch, limit: float | None, count: int
) -> None:
    monkeypatch.setattr(environment, "_quota", lambda: limit)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2}, raising=False)
    assert processors() == count


def test_openmp_spins_for_a_bounded_time() -> None:
    """Asked of the library itself, in a process that has set nothing; what the user has set stands."""
    told = "from mezzo.runtime.backends.onednn.library import library; library().handle.omp_display_env(1)"
    for given, count in (({}, "5000"), ({"GOMP_SPINCOUNT": "7"}, "7")):
        clean = {k: v for k, v in os.environ.items() if k not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
        done = subprocess.run([sys.executable, "-c", told], env={**clean, **given}, capture_output=True, text=True)
        if "GOMP_SPINCOUNT" not in done.stderr:
            pytest.skip("no GNU OpenMP that tells its settings here")
        assert f"GOMP_SPINCOUNT = '{count}'" in done.stderr


def test_the_bound_is_set_while_the_library_is_loaded_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SPINNING:
        monkeypatch.delenv(name, raising=False)
    with spins_bounded():
        assert os.environ["GOMP_SPINCOUNT"] == "5000"
    assert "GOMP_SPINCOUNT" not in os.environ
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    with spins_bounded():
        assert "GOMP_SPINCOUNT" not in os.environ
