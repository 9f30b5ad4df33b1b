"""Processes that were told of other numbers of workers and servers than their scheduler: real ones, over loopback."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from mezzo.kvstore.environment import Environment
from mezzo.kvstore.protocol import membership as s
from mezzo.kvstore.protocol import messages as m

from .test_kv_network import SLACK, free_port

WORKER = "from mezzo.kvstore.create import create; create('dist_sync')"
DEADLINE = 120.0  # which nobody waits for


class Processes:
    """A scheduler, two workers and a server on loopback; `told` has the numbers of those that were told others."""

    def __init__(self, folder: Path, told: dict[str, tuple[int, int]]) -> None:
        self.folder, self._told = folder, told
        self._job = Environment("worker", ("127.0.0.1", free_port()), 2, 1, "h", deadline=DEADLINE)
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str) -> None:
        role = name.split()[0]
        workers, servers = self._told.get(name, (2, 1))
        mine = replace(self._job.as_role(role, None), workers=workers, servers=servers)  # type: ignore[arg-type]
        command = ["-c", WORKER] if role == "worker" else ["-m", "mezzo.kvstore.role"]
        with (self.folder / name).open("wb") as err:
            given = {**os.environ, **mine.variables()}
            self._running[name] = subprocess.Popen([sys.executable, *command], env=given, stderr=err)

    def said(self, name: str, seconds: float) -> str:
        """What a process printed when it failed, within so many seconds."""
        assert self._running[name].wait(seconds) == 1
        return (self.folder / name).read_text()

    def runs(self, name: str) -> bool:
        return self._running[name].poll() is None

    def close(self) -> None:
        for process in self._running.values():
            process.kill()
            process.wait()


@pytest.fixture
def processes(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Processes]:
    made = Processes(tmp_path, request.param)
    yield made
    made.close()


EACH = ("scheduler", "server 0", "worker 0", "worker 1")
CASES = {
    "more workers": ({"worker 0": (3, 1)}, "3 workers and 1 server"),
    "fewer workers": ({"worker 1": (1, 1)}, "1 worker and 1 server"),
    "more servers": ({"worker 0": (2, 2)}, "2 workers and 2 servers"),
    "a server": ({"server 0": (2, 3)}, "2 workers and 3 servers"),
    "the scheduler": ({"scheduler": (1, 1)}, "1 worker and 1 server"),
}


@pytest.mark.parametrize(("processes", "other"), CASES.values(), ids=CASES, indirect=["processes"])
def test_all_hear_of_both_sides_at_once(processes: Processes, other: str) -> None:
    begun = time.monotonic()
    for name in EACH:
        processes.start(name)
    waits = not other.startswith("1")  # for those of which somebody was told, and who are not there
    for name in reversed(EACH[waits:]):
        said = processes.said(name, SLACK)
        assert all(text in said for text in ("was told of", "2 workers and 1 server", other, "DMLC_NUM_WORKER")), said
    assert time.monotonic() - begun < DEADLINE / 2
    assert processes.runs("scheduler") == waits


@pytest.mark.parametrize("processes", [{"scheduler": (1, 0)}], indirect=True)
def test_who_comes_later_hears_it_too(processes: Processes) -> None:
    """The first worker would have trained alone."""
    processes.start("scheduler")
    processes.start("worker 0")
    first = processes.said("worker 0", SLACK)
    assert "was told of 2 workers and 1 server, and the scheduler of 1 worker and 0 servers" in first
    assert processes.runs("scheduler")
    for name in ("server 0", "worker 1"):
        processes.start(name)
    for name in ("server 0", "worker 1"):
        assert "and the scheduler of 1 worker and 0 servers" in processes.said(name, SLACK)


BIG = """
import numpy as np
kv.init("small", np.zeros(10, np.float32))
kv.init("big", np.zeros(1 << 20, np.float32))
"""


@pytest.mark.parametrize("processes", [{}], indirect=True)
def test_a_key_that_a_server_has_no_memory_for_is_named(processes: Processes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEZZO_KV_MEMORY", "1")
    monkeypatch.setattr(f"{__name__}.WORKER", WORKER.replace("; create(", "; kv = create(") + BIG)
    for name in EACH:
        processes.start(name)
    said = [processes.said(name, SLACK) for name in EACH]
    assert all("key 'big' on server 0: float32[1048576] after 40 bytes of others" in text for text in said), said
    assert any("start more servers, or raise MEZZO_KV_MEMORY" in text for text in said)


def test_a_stranger_does_not_end_a_job_that_runs() -> None:
    job = s.Membership(1)
    job.handle(s.Said(0, m.Hello("worker", "a", num_workers=1)))
    refused, closed = job.handle(s.Said(1, m.Hello("worker", "b", num_workers=2)))
    assert isinstance(refused, s.MemberTell)
    assert isinstance(refused.message, m.Refused)
    assert (
        refused.message.reason
        == "worker on host 'b' was told of 2 workers and 0 servers, and the scheduler of 1 worker and 0 servers"
    )
    assert closed == s.Close(1)
    assert job.handle(s.Said(0, m.Bye(0)))[-1] == s.End()


def test_the_others_hear_who_was_refused() -> None:
    job = s.Membership(2, deadline=5.0)
    job.handle(s.Said(0, m.Hello("worker", "a", rank=0, num_workers=2)))
    job.handle(s.Said(1, m.Hello("worker", "b", rank=7, num_workers=2)))
    job.handle(s.MemberTicked(0.0))
    ended = job.handle(s.MemberTicked(6.0))[-1]
    assert isinstance(ended, s.End)
    assert ended.failure is not None
    assert "refused connections: 1, the last from a process of the job: worker 7 cannot be" in ended.failure.reason


def test_the_scheduler_waits_for_those_that_may_come() -> None:
    """As many as either side was told of."""
    job = s.Membership(2, servers=2)
    job.handle(s.Said(0, m.Hello("server", "a", num_workers=2, num_servers=2)))
    ended = job.handle(s.Said(1, m.Hello("worker", "a", num_workers=3, num_servers=1)))[-1]
    assert isinstance(ended, s.End)
    assert ended.late == 3
