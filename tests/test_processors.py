"""Processors that others use too: what control groups allow, of either version, and how long idle threads spin."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mezzo.runtime import environment
from mezzo.runtime.backends.onednn import contention, library
from mezzo.runtime.backends.onednn.contention import LONGEST_REST, REST, SPINNING, Policy, Times, watchable
from mezzo.runtime.backends.onednn.library import SPINS, UNWATCHED_SPINS
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
    usual = (SPINS if watchable() else UNWATCHED_SPINS)["GOMP_SPINCOUNT"]
    for given, count in (({}, usual), ({"GOMP_SPINCOUNT": "7"}, "7")):
        done = subprocess.run([sys.executable, "-c", told], env={**clean(), **given}, capture_output=True, text=True)
        if "GOMP_SPINCOUNT" not in done.stderr:
            pytest.skip("no GNU OpenMP that tells its settings here")
        assert f"GOMP_SPINCOUNT = '{count}'" in done.stderr


def clean() -> dict[str, str]:
    """The environment without what a user may have set."""
    return {k: v for k, v in os.environ.items() if k not in (*SPINNING, "OMP_NUM_THREADS")}


def test_the_bound_is_set_while_the_library_is_loaded_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SPINNING:
        monkeypatch.delenv(name, raising=False)
    for watched, spins in ((True, SPINS), (False, UNWATCHED_SPINS)):
        monkeypatch.setattr(library, "watchable", lambda watched=watched: watched)
        with library.spins_bounded():
            assert {name: os.environ[name] for name in SPINNING if name in os.environ} == spins
        assert not any(name in os.environ for name in SPINNING)
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    with library.spins_bounded():
        assert "GOMP_SPINCOUNT" not in os.environ


@pytest.mark.parametrize(
    ("name", "limit", "known"), [("", None, True), ("GOMP_SPINCOUNT", None, False), ("", 4.0, False)]
)
def test_contention_is_watched_where_it_is_known(
    monkeypatch: pytest.MonkeyPatch, name: str, limit: float | None, known: bool
) -> None:
    for variable in SPINNING:
        monkeypatch.delenv(variable, raising=False)
    if name:
        monkeypatch.setenv(name, "7")
    monkeypatch.setattr(contention, "quota", lambda: limit)
    if not Path("/proc/self/schedstat").exists():
        pytest.skip("this system does not tell how long threads wait for processors")
    assert watchable.__wrapped__() is known
    monkeypatch.setattr(contention, "TASKS", b"/proc/none")
    assert not watchable.__wrapped__()


class Machine:
    """Two processors and a process of two threads that compute, in simulated time, with one look each 50 ms."""

    def __init__(self, processors: int = 2) -> None:
        self.now = Times(0.0, {})
        self.policy = Policy(self.now, processors)

    def passes(self, seconds: float, waits: float = 0.0, foreign: float = 0.0, third: float = 0.0) -> list[bool]:
        """What the policy decides while threads wait for `waits` processors, others take `foreign` of them, and a third
        thread `third`."""
        decided = []
        for _ in range(round(seconds / 0.05)):
            last = self.now
            shares = {"1": (0.6, waits / 2), "2": (0.4, waits / 2), "3": (third, 0.0)}
            began = {name: last.threads.get(name, (0.0, 0.0)) for name in shares}
            threads = {n: (began[n][0] + 0.05 * ran, began[n][1] + 0.05 * wait) for n, (ran, wait) in shares.items()}
            taken = (last.busy or 0.0) + 0.05 * (1.0 + third + foreign) if self.policy.brief else None
            self.now = Times(last.at + 0.05, threads, taken)
            decided.append(self.policy.decide(self.now))
        return decided


def test_threads_spin_long_until_others_want_the_processors() -> None:
    machine = Machine()
    assert not any(machine.passes(3, waits=0.1))
    assert all(machine.passes(5, waits=0.6, foreign=1.0))  # from the first look on, for as long as it lasts
    assert machine.passes(2 * REST + 0.1)[-1] is False
    assert not any(machine.passes(20))


def test_a_third_thread_of_the_process_wants_a_processor_too() -> None:
    machine = Machine()
    assert all(machine.passes(5, waits=0.6, third=0.5))
    assert machine.passes(2 * REST + 0.1, third=0.1)[-1] is False


def test_a_rest_grows_while_threads_spin_long_in_vain() -> None:
    """Where what they wait for shows in nobody's time, as in that of another machine on the same processors."""
    machine = Machine()
    changes, brief = [], False
    for i in range(2000):
        [now] = machine.passes(0.05, waits=0.0 if machine.policy.brief else 0.6)
        if now != brief:
            changes.append(i)
            brief = now
    rests = [0.05 * (b - a) for a, b in zip(changes[::2], changes[1::2], strict=False)]
    assert rests[0] <= REST + 0.15
    assert all(b > a or b >= LONGEST_REST for a, b in itertools.pairwise(rests))
    assert LONGEST_REST <= rests[-1] <= LONGEST_REST + 0.2
    machine.passes(2 * LONGEST_REST)
    assert machine.passes(LONGEST_REST + 1)[-1] is False  # nobody waits any more
    machine.passes(0.1, waits=0.6)
    assert machine.policy.brief
    assert not machine.passes(2 * REST)[-1]  # a short rest again


def test_others_may_take_processors_that_this_process_leaves() -> None:
    for count, long in ((2, False), (4, True)):
        machine = Machine(count)
        machine.passes(0.1, waits=0.6)
        assert machine.policy.brief
        assert machine.passes(1, foreign=1.5)[-1] is not long


def test_idle_processes_tell_nothing() -> None:
    policy = Policy(Times(0.0, {}), 2)
    assert not policy.decide(Times(0.05, {"1": (0.001, 0.004)}))  # a start that waited once
    assert policy.decide(Times(0.10, {"1": (0.007, 0.008)}))


WATCHED = """
import os, subprocess, sys, threading, time
import numpy as np
import onnx
import mezzo as mz
from mezzo.runtime.backends.onednn.spinning import watch
from mezzo.runtime.backends.onednn.library import library
w = onnx.numpy_helper.from_array(np.full((256, 256), 0.01, np.float32), "w")
nodes = [onnx.helper.make_node("MatMul", [f"x{i}" if i else "x", "w"], [f"x{i + 1}"]) for i in range(8)]
ports = [onnx.helper.make_tensor_value_info(n, 1, [int(sys.argv[1]), 256]) for n in ("x", "x8")]
session = mz.load(onnx.helper.make_model(onnx.helper.make_graph(nodes, "g", ports[:1], ports[1:], [w])), threads=2)
run = lambda: session.run({"x": np.ones((int(sys.argv[1]), 256), np.float32)})
run()
if library() is None or watch() is None:
    print("unknown here"); sys.exit()
def threads():
    return len(os.listdir("/proc/self/task"))
def until(brief, seconds=60):
    end = time.monotonic() + seconds
    while watch()._policy.brief is not brief:
        assert time.monotonic() < end, (brief, seconds)
        run()
def team():
    return any(t.name == "mezzo-idle-team" for t in threading.enumerate())
loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2 * os.cpu_count())]
try:
    until(True)
    assert team()
    busy = threads()
    pid = os.fork()  # the child has no such team, and runs
    if not pid:
        assert not team()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    assert not team() and threads() < busy
    end = time.monotonic() + 60
    while not team():
        assert time.monotonic() < end
        run()
finally:
    for loop in loops:
        loop.kill(); loop.wait()
print("watched")
"""


@pytest.mark.parametrize("rows", [4, 512])
def test_runs_beside_busy_processes_let_threads_sleep_soon(rows: int) -> None:
    """Small models, whose runs are replayed without a choice, and larger ones."""
    command = [sys.executable, "-W", "error", "-c", WATCHED, str(rows)]
    done = subprocess.run(command, env=clean(), capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    if "unknown here" in done.stdout:
        pytest.skip("no GNU OpenMP, or nobody tells here how long threads wait")
    assert "watched" in done.stdout
