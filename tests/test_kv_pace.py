"""What a step is made of, on every rank, and who holds the others up by what."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import mezzo as mz
from mezzo.kvstore.held import HeldBack
from mezzo.kvstore.pace import Pace
from mezzo.kvstore.protocol import membership as machine
from mezzo.kvstore.protocol.membership import Membership, MemberTell, MemberTicked, Said
from mezzo.kvstore.protocol.messages import Hello, Overview, Refused, Report
from mezzo.kvstore.protocol.pace import CAUSES, LEAST, PARTS, PATIENCE, SAID, SHARE, History, Split, split_of, straggler
from mezzo.kvstore.wire import HEADER, decode, encode, parse

ROOT = Path(__file__).parents[1]
CASES = [("compute", 0), ("data", 0), ("network", 1), ("compute", 1), ("data", 1)]


def started(cause: str, seed: int, servers: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.kv_slow", cause, str(seed), str(servers)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def check_named(process: subprocess.Popen[str], cause: str) -> None:
    out, err = process.communicate(timeout=120)
    told: list[Any] = [json.loads(line) for line in out.splitlines()]
    workers = [each for each in told if isinstance(each, list)]
    assert len(workers) == 2, err
    for slow, named, splits in workers:
        assert named == [slow, cause], (slow, splits)
        assert len(splits) == 2
    warned = told[-1]["scheduler"]
    assert warned.startswith(f"scheduler: rank {workers[0][0]} is slow: "), (warned, err)
    assert SAID[cause] in warned


def test_a_slow_worker_is_named_with_its_cause() -> None:
    """In stats of every worker, and in a warning of the scheduler; all at once, since they mostly wait."""
    processes = [(started(cause, 7, servers), cause) for cause, servers in CASES[:3]]
    for process, cause in processes:
        check_named(process, cause)


@pytest.mark.soak
@pytest.mark.parametrize(("cause", "servers"), CASES)
def test_a_slow_worker_is_named_in_each_of_twenty_trials(cause: str, servers: int) -> None:
    for seed in range(20):
        check_named(started(cause, seed, servers), cause)


def split(rank: int, own: Any) -> Split:
    return Split(rank, 10, 5.0, float(own[0]), float(own[1]), float(own[2]), 0.2 - float(own.sum()))


@pytest.mark.parametrize("seed", range(20))
def test_the_straggler_is_the_largest_difference_by_its_largest_part(seed: int) -> None:
    chance = np.random.default_rng(seed)
    ranks = int(chance.integers(2, 9))
    usual = chance.uniform(0.001, 0.05, 3)
    slow, cause = int(chance.integers(ranks)), int(chance.integers(3))
    splits = []
    for rank in range(ranks):
        own = usual * chance.uniform(0.99, 1.01, 3)
        splits.append(split(rank, own))
    assert straggler(splits) is None  # one that is a hundredth slower is none
    longer = 2 * max(LEAST, SHARE * usual.sum())
    more = dict(zip(CAUSES, longer * np.eye(3)[cause], strict=True))
    splits[slow] = split(slow, np.array([getattr(splits[slow], name) + more[name] for name in CAUSES]))
    found = straggler(splits)
    assert found is not None
    assert (found.rank, found.cause) == (slow, CAUSES[cause])
    assert abs(found.seconds - longer) < 0.05 * usual.sum()
    assert straggler(splits[:1]) is None


def reported(seed: int) -> tuple[History, list[History], dict[str, float]]:
    """Reports of a worker and two servers, at odd times, of a training that goes evenly; and its true parts."""
    chance = np.random.default_rng(seed)
    true = dict(zip(PARTS, chance.uniform(0.01, 0.1, 4), strict=True))
    here = true["others"] * chance.uniform()
    step = sum(true.values())

    def counts(now: float) -> dict[str, float]:
        steps = int(now / step)
        waits = true["network"] + true["others"]
        parts = {"waited": waits * steps, "here": here * steps, "data": true["data"] * steps}
        return {"steps": float(steps), "seconds": steps * step, "loss": 3.0, **parts}

    worker, servers = History(), [History(), History()]
    for now in np.sort(chance.uniform(100, 110, 9)):
        worker.add(float(now), counts(float(now)))
    for i, server in enumerate(servers):  # the other one waits less
        for now in np.arange(98, 112, chance.uniform(0.9, 3)):
            server.add(float(now), {"held 1": (true["others"] - here) / step * now * (1 - i / 2), "held 0": 99 * now})
    return worker, servers, true


@pytest.mark.parametrize("seed", range(20))
def test_what_servers_have_kept_is_waiting_for_others(seed: int) -> None:
    worker, servers, true = reported(seed)
    split = split_of(3, worker, servers, speaker=1)
    assert split is not None
    assert split.rank == 3
    assert split.loss == 3
    for part in CAUSES[:2]:
        assert getattr(split, part) == pytest.approx(true[part], rel=1e-6)
    whole = true["network"] + true["others"]
    assert split.network + split.others == pytest.approx(whole)
    begin, end = (now for now, _ in worker.window or ())
    assert split.others == pytest.approx(true["others"], rel=0.02 + 2 / (end - begin))  # a step at each end
    alone = split_of(3, worker, [], speaker=1)
    assert alone is not None
    assert alone.others < split.others


def test_no_split_before_there_are_steps() -> None:
    history = History()
    assert split_of(0, history, [], 0) is None
    for now, steps in ((1.0, 5.0), (2.0, 5.0)):
        history.add(now, {"steps": steps, "seconds": now})
        assert split_of(0, history, [], 0) is None
    history.add(3.0, {"steps": 1.0, "seconds": 0.5})  # it began again
    assert history.window is None


def told(job: Membership, peer: int, message: Any) -> Any:
    """What the scheduler answers this peer."""
    return [each.message for each in job.handle(Said(peer, message)) if isinstance(each, MemberTell)]


def training(slow: int, cause: str) -> tuple[Membership, list[machine.Instruction]]:
    """A job of 130 workers on 65 hosts, and a server, ten seconds after its first step."""
    job = Membership(workers=130, servers=1, timeout=30.0)
    for rank in range(130):
        job.handle(Said(rank, Hello("worker", f"h{rank // 2:03}", rank, consistency="sequential/sequential")))
    job.handle(Said(500, Hello("server", "s", 0, address="s:1")))
    made: list[machine.Instruction] = []
    for second in range(11):
        made += job.handle(MemberTicked(50.0 + second))
        job.handle(Said(500, Report(0, {f"held {h}": second * (0.0 if h == slow // 2 else 0.6) for h in range(65)})))
        for rank in range(130):
            late = rank == slow
            counts = {"steps": 10.0 * second, "seconds": 1.0 * second, "loss": 1.0, "between": 1000.0 * second}
            waited = 0.7 if not late or cause == "network" else 0.1
            here = 0.6 if rank // 2 == slow // 2 and not late else 0.0
            data = 0.1 + 0.6 * (late and cause == "data")
            counts |= {"waited": waited * second, "here": here * second, "data": data * second}
            job.handle(Said(rank, Report(rank, counts)))
    return job, [each for each in made if not isinstance(each, MemberTell)]


@pytest.mark.parametrize("cause", CAUSES)
def test_the_scheduler_names_the_straggler_once_and_shows_everybody(cause: str) -> None:
    job, made = training(77, cause)
    (said,) = made
    assert isinstance(said, machine.Slow)
    assert (said.straggler.rank, said.straggler.cause) == (77, cause)
    members: list[Any] = []
    while True:
        (answer,) = told(job, 9999, Overview(len(members)))  # who asks needs be no member
        assert isinstance(answer, Overview)
        assert answer.total == 131
        members += answer.members
        if len(members) >= answer.total:
            break
    assert [m[:2] for m in members] == [*(("worker", rank) for rank in range(130)), ("server", 0)]
    assert {m[4]["between"] for m in members[:130]} == {1000.0}
    splits = [split for m in members if (split := Split.of(m[1], m[4]))]
    assert len(splits) == 130
    found = straggler(splits)
    assert found is not None
    assert (found.rank, found.cause) == (77, cause)
    assert found.seconds == pytest.approx(said.straggler.seconds) == pytest.approx(0.06)
    for now in (60.1, 75.1):
        job.handle(MemberTicked(now))
    (late,) = told(job, 9999, Overview(130))
    assert late.members[0][3] == pytest.approx(15.0)  # seconds in which the server has said nothing


@pytest.mark.parametrize("seed", range(20))
def test_no_report_harms_the_scheduler(seed: int) -> None:
    """Whatever the numbers are that a member of the job tells."""
    chance = np.random.default_rng(seed)
    odd = [0.0, 1.0, -1.0, 1e308, float("nan"), float("inf"), 7.5]
    names = ["steps", "seconds", "waited", "here", "data", "loss", "held 0", "inside", "between", "behind"]
    job = Membership(workers=3, timeout=30.0)
    for rank in range(3):
        job.handle(Said(rank, Hello("worker", "a", rank, consistency="sequential/sequential")))
    for second in range(30):
        job.handle(MemberTicked(float(second)))
        for rank in range(3):
            some = [name for name in names if chance.random() < 0.9]
            assert not told(job, rank, Report(rank, {name: float(chance.choice(odd)) for name in some}))
        (answer,) = told(job, 9, Overview())
        assert decode(parse(sent := encode(answer)), sent[HEADER:]).total == 3  # type: ignore[union-attr]


def test_who_reports_for_another_is_refused() -> None:
    job = Membership(workers=1)
    job.handle(Said(1, Hello("worker", "a")))
    assert isinstance(told(job, 1, Report(1, {}))[0], Refused)
    assert not told(job, 1, Report(0, {}))
    assert isinstance(told(job, 2, Report(0, {}))[0], Refused)
    assert PATIENCE > 1


def test_a_server_counts_the_time_in_which_a_rank_has_a_whole_push_without_an_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = iter(range(100))
    monkeypatch.setattr("mezzo.kvstore.held.time", SimpleNamespace(monotonic=lambda: next(clock)))
    held = HeldBack()
    held.complete(3, 1)  # at 0
    held.complete(3, 2)  # within it
    held.answered(3, 1)
    held.answered(3, 2)  # at 1
    held.answered(3, 2)
    held.complete(4, 1)  # at 2
    assert held.counts() == {"held 3": 1.0, "held 4": 1.0}  # at 3
    held.left(4)  # at 4
    assert held.counts() == {"held 3": 1.0, "held 4": 2.0}


def test_the_clock_of_one_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Data are those of a loader or of `batches`, each second once; waits before the first step do not count."""
    monkeypatch.setattr("mezzo.kvstore.pace.EVERY", 1e3)
    pace = Pace()
    pace.wait_for_others(lambda: time.sleep(0.3))
    assert pace.stepped(None) is not None
    with mz.kv.create("local") as kv:
        loader = mz.data.DataLoader(mz.data.ArrayDataset(np.zeros((8, 2), np.float32)), 2)
        for _ in kv.batches(loader):
            time.sleep(0.002)
    pace.wait_for_others(lambda: time.sleep(0.1))
    assert pace.stepped(0.5) is None, "the next report is not due yet"
    counts = pace.counts(True)
    assert counts["steps"] == 1
    assert 0.108 <= counts["seconds"] < 60
    assert 0 < counts["data"] < counts["seconds"] - 0.008
    assert 0.1 <= counts["here"] == counts["waited"] <= counts["seconds"]
    assert counts["loss"] == 0.5
    with mz.kv.create("local") as kv:
        kv.stepped(1.0)
        assert kv.stats().straggler is None
