"""`mezzo top`: what it tells of a running job, of one with a rank that is silent or gone, and that no job minds it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from click.testing import CliRunner, Result

from mezzo.kvstore import secret
from mezzo.kvstore.environment import Environment
from mezzo.kvstore.loop import Loop
from mezzo.kvstore.member import Member
from mezzo.kvstore.onlooker import Onlooker, told_of
from mezzo.kvstore.protocol import messages as m
from mezzo.kvstore.scheduler import Scheduler
from mezzo.ops.errors import MezzoError, PeerError
from mezzo.runtime.files import replace_file
from mezzo.tools.cli import cli
from mezzo.tools.top import SILENT, report, view

from .test_kv_network import free_port


class Running:
    """A job of two workers that report what they are told to, with its scheduler in a thread."""

    def __init__(self, folder: Path) -> None:
        root = ("127.0.0.1", free_port())
        self.environment = Environment("worker", root, 2, 0, "h", key=secret.fresh(), deadline=60.0)
        self.file = folder / "job.json"
        replace_file(self.file, [told_of(self.environment)], private=True)
        self.scheduler = Scheduler(self.environment.as_role("scheduler"))
        self.failure: Any = None
        self.loops, self.members = [Loop(), Loop()], list[Member]()
        threads = [Thread(target=self._serve), *(Thread(target=self._join, args=(rank,)) for rank in range(2))]
        for thread in threads:
            thread.start()
        for thread in threads[1:]:
            thread.join()
        self.members.sort(key=lambda member: member.welcome.rank)
        self.serving, self.ended = threads[0], False

    def _serve(self) -> None:
        self.failure = self.scheduler.run()

    def _join(self, rank: int) -> None:
        self.members.append(Member(self.loops[rank], self.environment.as_role("worker", rank), "worker"))

    def train(self, loss: float = 0.5) -> None:
        """Report twice, a second and ten steps apart."""
        for steps in (10.0, 20.0):
            for rank, member in enumerate(self.members):
                counts = {"steps": steps, "seconds": steps / 10, "waited": 0.06 * steps, "here": 0.05 * steps}
                member.say(m.Report(rank, {**counts, "data": 0.01 * steps, "loss": loss, "inside": 1000 * steps}))
            time.sleep(0.02)

    def end(self) -> None:
        """All members leave, if they have not."""
        if self.ended:
            return
        self.ended = True
        leaving = [Thread(target=member.leave) for member in self.members]
        for thread in leaving:
            thread.start()
        for thread in [*leaving, self.serving]:
            thread.join(20)


@contextmanager
def running(folder: Path) -> Iterator[Running]:
    made = Running(folder)
    try:
        yield made
    finally:
        made.end()


def top(*args: str) -> Result:
    return CliRunner().invoke(cli, ["top", *args])


def looked(job: Running) -> Any:
    found = top(str(job.file), "--once", "--json")
    assert found.exit_code == 0, (found.output, found.exception)
    return json.loads(found.output)


def test_what_it_tells(tmp_path: Path) -> None:
    with running(tmp_path) as job:
        assert [row["state"] for row in looked(job)["workers"]] == ["no steps yet"] * 2
        job.train()
        shown = looked(job)
        for rank, row in enumerate(shown["workers"]):
            assert (row["rank"], row["host"], row["state"], row["steps"], row["loss"]) == (rank, "h", "trains", 20, 0.5)
            parts = {part: row[part] for part in ("compute", "data", "network", "others")}
            assert parts == pytest.approx({"compute": 0.03, "data": 0.01, "network": 0.01, "others": 0.05})
            assert row["rate"] == pytest.approx(10)
            assert row["inside"] > 0
            assert row["between"] is row["behind"] is None
        assert shown["straggler"] is None
        text = top(str(job.file), "--once").output
        assert "straggler  none" in text
        assert "30.0" in text  # milliseconds of computing
        job.train(float("nan"))
        assert looked(job)["workers"][0]["loss"] is None  # JSON has no number for it
    assert job.failure is None, "the job has minded that somebody looked"


def test_without_a_file_it_is_the_job_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DMLC_PS_ROOT_URI", raising=False)
    with pytest.raises(MezzoError, match="which job"):
        cli.main(["top", "--once"], standalone_mode=False)
    with running(tmp_path) as job:
        for name, value in job.environment.variables().items():
            if name in ("DMLC_PS_ROOT_URI", "DMLC_PS_ROOT_PORT", "MEZZO_JOB_KEY"):
                monkeypatch.setenv(name, value)
        assert top("--once").exit_code == 0


def test_who_has_no_key_sees_nothing(tmp_path: Path) -> None:
    with running(tmp_path) as job:
        for key in ("", "another"):
            other = Environment.read({**job.environment.variables(), "MEZZO_JOB_KEY": key})
            with pytest.raises(PeerError):
                Onlooker(other)
        os.chmod(job.file, 0o644)
        found = top(str(job.file), "--once")
        assert isinstance(found.exception, MezzoError)
        assert "others may use it" in str(found.exception)
        job.file.unlink()
        replace_file(job.file, [b'{"DMLC_ROLE": 3}'], private=True)
        assert "tells of no job" in str(top(str(job.file)).exception)
    assert job.failure is None


def test_a_rank_that_dies_is_told_and_ends_it(tmp_path: Path) -> None:
    with running(tmp_path) as job:
        job.train()
        looking = Onlooker(job.environment)
        found = looking.look()
        assert found is not None
        assert len(found.members) == 2
        job.members[1]._stream.close()  # as the kernel does
        looking.rest(20)
        assert looking.look() is None
        assert looking.failure.startswith("worker 1 on host 'h' is gone")
        looking.close()
        late = top(str(job.file), "--json")  # who comes afterwards may find the scheduler still there, or gone
        assert late.exit_code in (1, 3)
        assert looking.failure in late.output or isinstance(late.exception, MezzoError)


def test_the_end_of_a_job_is_no_failure(tmp_path: Path) -> None:
    with running(tmp_path) as job, Onlooker(job.environment) as looking:
        assert looking.look() is not None
        begin = time.monotonic()
        job.end()
        assert time.monotonic() - begin < 5, "the scheduler has waited for who looks on"
        looking.rest(20)
        assert looking.look() is None
        assert looking.over
        assert not looking.failure
    assert isinstance(top(str(job.file)).exception, MezzoError)


def test_states() -> None:
    split = {"steps": 5.0, "rate": 2.0, "compute": 0.4, "data": 0.0, "network": 0.05, "others": 0.05}
    members: list[m.Seen] = [
        ("worker", 0, "a", SILENT + 1.4, split),
        ("worker", 1, "a[b]", SILENT + 1.6, {**split, "behind": 1.5}),
        ("worker", 2, "a", 99.0, {**split, "left": 1.0}),
        ("server", 0, "s", 0.1, {}),
    ]
    shown = view(m.Overview(0, 4, tuple(members), 4))
    states = [row["state"] for row in shown["workers"]]
    assert states == ["trains", "silent for 7 s", "has left", "not here"]
    assert shown["others"] == [{"role": "server", "rank": 0, "host": "s", "heard": 0.1}]
    assert len(report(shown).tables[0].rows) == 4


SCRIPT = """
import sys, time
import numpy as np
import mezzo as mz
with mz.kv.create("dist_sync") as kv:
    kv.init("w", np.zeros(100, np.float32))
    end = time.monotonic() + 60
    while not kv.pushpull("w", np.full(100, time.monotonic() > end, np.float32))[0]:
        time.sleep(0.02)
        kv.stepped(0.25)
"""


def test_a_launched_job_and_its_file(tmp_path: Path) -> None:
    """The file is there for as long as the job, and nobody else may read it."""
    (tmp_path / "script.py").write_text(SCRIPT)
    file = tmp_path / "job.json"
    command = [sys.executable, "-m", "mezzo", "launch", "-n", "2", "-s", "0", "--job", str(file), "script.py"]
    launched = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE)
    try:
        end, rates = time.monotonic() + 60, list[Any]()
        while not (len(rates) == 2 and all(rates)) and time.monotonic() < end:
            time.sleep(0.1)
            found = top(str(file), "--once", "--json") if file.exists() else None
            if found is not None and found.exit_code == 0:
                rates = [row.get("rate") for row in json.loads(found.output)["workers"]]
        assert len(rates) == 2
        assert all(rates)
        assert file.stat().st_mode & 0o777 == 0o600
        launched.terminate()
        assert launched.wait(30) == 143
        assert not file.exists()
    finally:
        launched.kill()
        launched.communicate()
