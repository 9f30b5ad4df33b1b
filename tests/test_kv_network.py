"""Jobs of real processes over loopback: what they compute, what travels, and that nothing ever hangs."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mezzo.kvstore.environment import Environment, Role
from mezzo.kvstore.link import ALONE, SMALL
from mezzo.kvstore.protocol.keys import place
from mezzo.kvstore.states import read_states
from mezzo.kvstore.updater import UpdateRule, flat

from .kv_scenarios import KEYS, LARGE, TENSORS, _digest, gradient, optimizer

ROOT = Path(__file__).parents[1]
LONG = 60.0  # seconds for a job that ends well, on a machine that is busy
SHORT = 10.0  # the deadline of jobs that fail: ten times what their processes need to come on a calm machine
SLACK = 30.0  # more, for processes to start and to end on a machine that is busy
Result = dict[str, Any]


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


class Job:
    """Processes of one job, each with what it said."""

    def __init__(self, folder: Path, scenario: str, workers: int, servers: int, deadline: float, kind: str) -> None:
        self.folder, self._command = folder, [sys.executable, "-m", "tests.kv_scenarios", scenario]
        self.environment = Environment("worker", ("127.0.0.1", free_port()), workers, servers, "h", deadline=deadline)
        self.kind = kind
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, role: Role, host: str = "h", rank: int | None = None) -> None:
        given = self.environment.as_role(role, rank, host).variables()
        more = {"KV_FOLDER": str(self.folder), "KV_KIND": self.kind, "OMP_NUM_THREADS": "1"}
        with (self.folder / f"{name}.out").open("wb") as out, (self.folder / f"{name}.err").open("wb") as err:
            self.processes[name] = subprocess.Popen(
                self._command, cwd=ROOT, env={**os.environ, **given, **more}, stdout=out, stderr=err
            )

    def wait(self, seconds: float) -> dict[str, int]:
        """Exit codes of all; fails where one does not end."""
        end = time.monotonic() + seconds
        for name, process in self.processes.items():
            try:
                process.wait(max(0.01, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                pytest.fail(f"{name} does not end\n{self.said()}")
        return {name: process.returncode for name, process in self.processes.items()}

    def results(self) -> list[Result]:
        """What the workers printed, by rank."""
        names = sorted(name for name in self.processes if name.startswith("worker"))
        texts = [(self.folder / f"{name}.out").read_text() for name in names]
        assert all(texts), self.said()
        return [json.loads(text.splitlines()[-1]) for text in texts]

    def said(self) -> str:
        files = sorted([*self.folder.glob("*.err"), *self.folder.glob("*.out")])
        return "\n".join(f"--- {f.name}\n{f.read_text()[-3000:]}" for f in files if f.stat().st_size)

    def close(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
                process.wait()


@contextmanager
def job(
    folder: Path,
    scenario: str,
    hosts: Sequence[str] = ("a", "b"),
    servers: int = 1,
    *,
    workers: int | None = None,
    deadline: float = LONG,
    kind: str = "dist_sync",
    scheduler: bool = True,
    beside: Sequence[str] = (),
) -> Iterator[Job]:
    """A job whose workers are on these hosts, `workers` of them declared; servers are `beside` them, or elsewhere."""
    folder.mkdir(exist_ok=True)
    made = Job(folder, scenario, len(hosts) if workers is None else workers, servers, deadline, kind)
    try:
        if scheduler:
            made.start("scheduler", "scheduler")
        for i in range(servers):
            made.start(f"server{i}", "server", beside[i] if beside else "h", i)
        for rank, host in enumerate(hosts):
            made.start(f"worker{rank}", "worker", host, rank if rank < made.environment.workers else None)
        yield made
    finally:
        made.close()


def finished(
    folder: Path,
    scenario: str,
    hosts: Sequence[str],
    servers: int,
    kind: str = "dist_sync",
    beside: Sequence[str] = (),
) -> list[Result]:
    """The results of a job that ends well, with nothing said but that."""
    with job(folder, scenario, hosts, servers, kind=kind, beside=beside) as made:
        codes = made.wait(LONG + SLACK)
        assert set(codes.values()) == {0}, made.said()
        assert not [f.name for f in folder.glob("*.err") if f.stat().st_size], made.said()
        results = made.results()
    assert not any("error" in r for r in results), results
    return results


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def total(key: str, hosts: Sequence[str], step: int) -> Any:
    """The sum as it is to be: the ranks of a host in their order, then hosts in theirs."""
    sums: dict[str, Any] = {}
    for rank, host in enumerate(hosts):
        mine = gradient(key, rank, step)
        sums[host] = sums[host] + mine if host in sums else mine
    made, *others = sums.values()
    for other in others:
        made = made + other
    return made


def lent(hosts: Sequence[str], servers: Sequence[str], host: str) -> int:
    """Bytes of all keys that a host shares with servers beside it, which do not travel."""
    shards = {key: place(key, "float32", (size,), len(servers)) for key, size in KEYS.items()}
    least = SMALL if hosts.count(host) > 1 else ALONE  # what is less the workers send
    return sum(
        shard.nbytes
        for key, held in shards.items()
        for server, shard in held.items()
        if servers[server] == host and 4 * KEYS[key] > least
    )


# hosts of the workers, and of the servers
PLACES = {
    "three-hosts": (("a", "b", "c"), ("h", "h")),
    "two-by-two": (("a", "a", "b", "b"), ("h", "h")),
    "one": (("a",), ("h",)),
    "beside": (("a", "b"), ("a", "b")),
    "beside-two": (("a", "a", "b"), ("b", "a")),
}


@pytest.mark.parametrize("where", PLACES)
def test_sums_are_those_of_rank_order_bit_for_bit(where: str, tmp_path: Path) -> None:
    hosts, servers = PLACES[where]
    results = finished(tmp_path, "sync", hosts, len(servers), beside=servers)
    assert [r["rank"] for r in results] == [*range(len(hosts))]
    nbytes = 4 * sum(KEYS.values())
    for result in results:
        assert result["workers"] == len(hosts)
        for key in KEYS:
            assert result["sums"][f"{key} 0"] == 7
            for step in range(1, 4):
                value = total(key, hosts, step)
                expected = value.tobytes().hex()[:64] + str(_digest(value))
                assert result["sums"][f"{key} {step}"] == expected, f"{key} at step {step}"
        cancelled = np.array([1e8, -1e8, 1, 0][: len(hosts)], np.float32).cumsum(dtype=np.float32)[-1]
        assert result["cancelled"] == [float(cancelled)]
        assert "was declared as float32[1000]" in result["refused"]
    by_host: dict[str, int] = {}
    for host, result in zip(hosts, results, strict=True):
        by_host[host] = by_host.get(host, 0) + result["bytes"]
    # The initial value goes once, each of three rounds there and back: once for each host, not for each worker.
    # What a server beside the host has does not travel, but for the initial value, and for a round that begins before
    # the server has answered that it has the memory of the operand.
    for host, travelled in by_host.items():
        stays = lent(hosts, servers, host)
        assert travelled - nbytes - 2 * 3 * (nbytes - stays) in ((0, 2 * stays) if hosts.count(host) == 1 else (0,))


@pytest.mark.parametrize("kind", ["dist_sync", "dist_async"])
def test_an_optimizer_of_whole_tensors_on_one_server(kind: str, tmp_path: Path) -> None:
    assert finished(tmp_path, "whole", ("a", "b"), 1, kind) == [{"moved": True}] * 2


def test_an_updater_of_the_user_on_the_servers(tmp_path: Path) -> None:
    results = finished(tmp_path, "ruled", ("a", "a", "b"), 2)
    assert max(result["far"] for result in results) < 1e-5


def test_only_the_rows_that_are_asked_for_travel(tmp_path: Path) -> None:
    for told in finished(tmp_path, "rows", ("a", "b"), 2, "dist_async"):
        for between, asked in told["bytes"].values():
            assert between == asked


def test_an_optimizer_on_the_servers(tmp_path: Path) -> None:
    hosts = ("a", "a", "b")
    results = finished(tmp_path, "learn", hosts, 2)
    rule = UpdateRule(optimizer().to_dict())
    values = {key: np.linspace(-1, 1, size, dtype=np.float32) for key, size in TENSORS.items()}
    states = {key: rule.states(key, value) for key, value in values.items()}
    for step in range(1, 6):
        for key, value in values.items():
            rule.step(key, step - 1, value, total(key, hosts, step), states[key])
            assert {r["values"][f"{key} {step}"] for r in results} == {_digest(value)}
        if step == 3:
            saved = read_states(tmp_path / "states")
            assert flat(saved.optimizer) == flat(rule.data)
            assert saved.updates == dict.fromkeys(TENSORS, 3)
            for key in TENSORS:
                for slot, state in states[key].items():
                    np.testing.assert_array_equal(saved.states[key][slot], state)
            kept = {key: {slot: s.copy() for slot, s in states[key].items()} for key in TENSORS}
    for key, value in values.items():
        before = value.copy()
        rule.step(key, 3, value, total(key, hosts, 6), kept[key])
        assert {r[key] for r in results} == {float(np.abs(value - before).max())}
        for slot, state in kept[key].items():
            np.testing.assert_array_equal(read_states(tmp_path / "again").states[key][slot], state)


@pytest.mark.parametrize("staleness", [None, 0, 2])
def test_every_push_counts_once_and_nobody_runs_away(staleness: int | None, tmp_path: Path) -> None:
    kind = "dist_async" if staleness is None else f"dist_async {staleness}"
    results = finished(tmp_path, "counted", ("a", "b"), 2, kind)
    for result in results:
        assert result["n"] == [80.0]
        assert result["large"] == [8.0]
        assert sum(result["staleness"].values()) > 0
        if staleness is not None:
            assert max(map(int, result["staleness"])) <= staleness
        else:
            assert max(map(int, result["staleness"])) > 2, "the slow worker was not slow"


@pytest.mark.parametrize("staleness", [None, 100])
def test_a_barrier_orders_pushes_and_pulls(staleness: int | None, tmp_path: Path) -> None:
    kind = "dist_async" if staleness is None else f"dist_async {staleness}"
    assert finished(tmp_path, "ordered", ("a", "a", "b"), 2, kind) == [{"late": 0}] * 3


def agent_of(job: Job, worker: str) -> int:
    """The process that a worker has started."""
    number = job.processes[worker].pid
    (child,) = Path(f"/proc/{number}/task/{number}/children").read_text().split()
    return int(child)


@pytest.mark.parametrize("victim", ["worker1", "server0", "agent", "scheduler"])
def test_a_killed_process_fails_all_others_at_once(victim: str, tmp_path: Path) -> None:
    with job(tmp_path, "wait_for_ever", ("a", "a", "b"), 1, deadline=LONG) as made:
        end = time.monotonic() + LONG
        while len([*tmp_path.glob("runs-*")]) < 3 and time.monotonic() < end:
            assert all(p.poll() is None for p in made.processes.values()), made.said()
            time.sleep(0.02)
        number = agent_of(made, "worker2") if victim == "agent" else made.processes[victim].pid
        os.kill(number, signal.SIGKILL)
        begin = time.monotonic()
        codes = made.wait(SLACK)
        assert time.monotonic() - begin < LONG / 2, "found by the deadline, not by the closed connection"
        codes.pop(victim, None)
        servers = {codes[name] for name in codes if not name.startswith("worker")}
        assert servers == {1}, made.said()
        for name in codes:
            if name.startswith("worker"):
                (line,) = (tmp_path / f"{name}.out").read_text().splitlines()
                error = json.loads(line)["error"]
                wanted = {"worker1": ("worker 1", "rank 1"), "server0": ("server 0",), "agent": ("agent",)}
                assert any(w in error for w in wanted.get(victim, (victim,))), error


@pytest.mark.parametrize(
    ("scenario", "hosts", "servers"),
    [("wait_for_ever", "aab", 1), ("train_for_ever", "aab", 1), ("train_for_ever", "aaa", 0)],
)
def test_a_frozen_worker_is_named_by_all_others(
    scenario: str, hosts: str, servers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of another host, and where the deadline is one of the script that the servers' environment does not have."""
    monkeypatch.setenv("KV_DEADLINE", f"{SHORT}")
    with job(tmp_path, scenario, tuple(hosts), servers, deadline=LONG) as made:
        end = time.monotonic() + LONG
        while len([*tmp_path.glob("runs-*")]) < 3 and time.monotonic() < end:
            assert all(p.poll() is None for p in made.processes.values()), made.said()
            time.sleep(0.02)
        os.kill(made.processes["worker1"].pid, signal.SIGSTOP)
        for name in ("worker0", "worker2"):
            made.processes[name].wait(SHORT + SLACK)
            error = json.loads((tmp_path / f"{name}.out").read_text().splitlines()[-1])["error"]
            assert "missing rank 1" in error, error


@pytest.mark.parametrize(("hosts", "servers"), [("aab", 1), ("aaa", 0)])
def test_who_freezes_in_the_middle_of_a_round_is_named(
    hosts: str, servers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its operand is there, and its sum is not."""
    monkeypatch.setenv("KV_DEADLINE", f"{SHORT / 2}")
    with job(tmp_path, "freezes_in_a_round", tuple(hosts), servers, deadline=LONG) as made:
        for rank in (0, 2):
            made.processes[f"worker{rank}"].wait(LONG + SLACK)
            error = json.loads((tmp_path / f"worker{rank}.out").read_text().splitlines()[-1])["error"]
            assert "missing rank 1" in error, error


@pytest.mark.parametrize("key", ["small", "large"])
def test_who_does_not_come_is_named_where_another_of_its_host_comes_late(
    key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wait of the other host ends first, and its server, which knows hosts only, asks."""
    monkeypatch.setenv("KV_DEADLINE", f"{SHORT / 2}")
    with job(tmp_path, f"freezes_before_a_{key}_round", tuple("aab"), 1, deadline=LONG) as made:
        for rank in (0, 2):
            made.processes[f"worker{rank}"].wait(LONG + SLACK)
            error = json.loads((tmp_path / f"worker{rank}.out").read_text().splitlines()[-1])["error"]
            assert "missing rank 1" in error, error


def test_the_quicker_order_of_a_step_is_found(tmp_path: Path) -> None:
    for result in finished(tmp_path, "two_ways", ("a", "b"), 1):
        assert (result["steps"], result["ways"]) == (12, 2)
        assert result["early"] in ([0, 0], [1, 1]), "all take the same"


@pytest.mark.parametrize("victim", ["server0", "scheduler", "agent"])
def test_a_frozen_process_is_named_by_all_others(victim: str, tmp_path: Path) -> None:
    """By its missing heartbeats, before those who wait for it are."""
    with job(tmp_path, "wait_for_ever", tuple("aab"), 1, deadline=SHORT) as made:
        end = time.monotonic() + LONG
        while len([*tmp_path.glob("runs-*")]) < 3 and time.monotonic() < end:
            assert all(p.poll() is None for p in made.processes.values()), made.said()
            time.sleep(0.02)
        (pid, *_) = _children(made.processes["worker0"].pid) if victim == "agent" else (made.processes[victim].pid,)
        os.kill(pid, signal.SIGSTOP)
        try:
            for rank in range(3):
                made.processes[f"worker{rank}"].wait(SHORT + SLACK)
                error = json.loads((tmp_path / f"worker{rank}.out").read_text().splitlines()[-1])["error"]
                named = {
                    "server0": "server 0 on host 'h'",
                    "scheduler": "the scheduler",
                    "agent": "the agent of host 'a'",
                }
                assert f"{named[victim]} is silent for 7." in error, error
        finally:
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize(
    ("scenario", "how", "hosts", "servers"),
    [("drifts", "", "aaa", 0), ("drifts", "save", "aab", 1), ("drifts", "", "aab", 2), ("blocks_drift", "", "aaa", 0)],
)
def test_a_bit_that_changes_is_named_by_all(
    scenario: str, how: str, hosts: str, servers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first parameter that differs, and whose it is; no checkpoint is written of it."""
    monkeypatch.setenv("KV_HOW", how)
    with job(tmp_path, scenario, tuple(hosts), servers) as made:
        made.wait(LONG + SLACK)
        for result in made.results():
            assert "on rank 1 differs from those of 2 other ranks" in result.get("error", ""), result
            assert how == "save" or "10" in result["error"]
    assert not (tmp_path / "kept").exists()


FAILING: Mapping[str, dict[str, Any]] = {
    "too many declared": {"scenario": "nothing", "workers": 3, "told": "2 of 3 workers came"},
    "too few declared": {"scenario": "outlasts", "workers": 1, "told": "this job has 1 workers"},
    "no scheduler": {"scenario": "nothing", "scheduler": False, "told": "nobody answers within 10 s"},
    "one batch fewer": {"scenario": "one_fewer", "told": "rank 1"},
    "one batch fewer, one host": {"scenario": "one_fewer", "hosts": ("a", "a"), "told": "rank 1 left before round 5"},
    "different optimizers": {"scenario": "other_optimizer", "told": "; every worker must give the same"},
    "different schemes": {"scenario": "other_compression", "told": "; every worker must give the same"},
    "different shapes": {"scenario": "other_shape", "told": "declares float32[2, 5"},
}


@pytest.mark.parametrize("how", FAILING)
def test_what_makes_no_sense_is_an_error_in_time(how: str, tmp_path: Path) -> None:
    case = dict(FAILING[how])
    told = case.pop("told")
    with job(tmp_path, case.pop("scenario"), deadline=SHORT, **case) as made:
        made.wait(SHORT * 3 + SLACK)
        results = made.results()
        errors = [r["error"] for r in results if "error" in r]
        assert any(told in error for error in errors), made.said()
        assert all(r["seconds"] < SHORT * 3 + SLACK / 2 for r in results if "error" in r)


def test_servers_stay_on_this_machine(tmp_path: Path) -> None:
    outside = Environment("server", ("127.0.0.1", free_port()), 1, 1, "h", bind="0.0.0.0", deadline=SHORT)
    ended = subprocess.run(
        [sys.executable, "-m", "mezzo.kvstore.role"],
        cwd=ROOT, env={**os.environ, **outside.variables()}, capture_output=True, text=True, timeout=LONG, check=False,
    )  # fmt: skip
    assert ended.returncode == 1
    assert "MEZZO_BIND: 0.0.0.0 is outside of this machine" in ended.stderr
    assert LARGE * 4 > 1 << 20


def test_an_agent_whose_worker_is_gone_ends() -> None:
    """It would wait for the workers of its host, who do not come."""
    job = Environment("worker", ("127.0.0.1", free_port()), 1, 1, "h", deadline=LONG)
    place = json.dumps({"name": "mezzo/nobody/h", "ranks": [0], "gathering": 0})
    ended = subprocess.run(
        [sys.executable, "-m", "mezzo.kvstore.agent", place, str(os.getppid())],  # not the one that starts it
        cwd=ROOT, env={**os.environ, **job.variables()}, capture_output=True, text=True, timeout=LONG, check=False,
    )  # fmt: skip
    assert ended.returncode == 1
    assert "the worker that has started it is gone" in ended.stderr
