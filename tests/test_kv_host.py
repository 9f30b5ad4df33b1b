"""Level 1: its machine under any interleaving, and workers of one host as processes of their own (kv_workers.py)."""

from __future__ import annotations

import json
import mmap
import os
import re
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mezzo.kvstore.host import memory, private
from mezzo.kvstore.host.backend import HostStore
from mezzo.kvstore.host.group import Group
from mezzo.kvstore.host.mesh import Mesh
from mezzo.kvstore.host.upper_tier import Ended
from mezzo.kvstore.host.values import BLOCK, HostValue, add
from mezzo.kvstore.loop import Loop
from mezzo.kvstore.protocol.host import (
    Complete,
    Event,
    Final,
    Hopeless,
    Host,
    HostDone,
    HostFail,
    HostLeft,
    HostReduce,
    HostTell,
    Lift,
    Ready,
)
from mezzo.ops.errors import BudgetError, InputError, MezzoError
from mezzo.runtime.optimizer import LARS

ROOT = Path(__file__).parents[1]

# -- the machine -------------------------------------------------------------------------------------------------------


class Members:
    """Machines of all members, the channels between them, and how far each member is with each key."""

    def __init__(self, count: int, keys: dict[int, tuple[list[int] | None, int]], rounds: list[int]) -> None:
        agents = 1 if any(leader == count for _, leader in keys.values()) else 0
        self.count, self.keys, self.rounds = count, keys, rounds
        self.hosts = [Host(me, count) for me in range(count + agents)]
        for host in self.hosts:
            for key, (reducers, leader) in keys.items():
                host.declare(key, reducers, leader)
        self.channels: dict[tuple[int, int], deque[Event]] = {}
        self.todo: list[tuple[int, Event]] = []  # work that a member has been told to do, and what it says then
        self.begun = {(me, key): 0 for me in range(count) for key in keys}
        self.complete = dict.fromkeys(self.begun, 0)
        self.failed: dict[tuple[int, int], tuple[int, ...]] = {}
        self.left: set[int] = set()

    def tell(self, me: int, event: Event) -> None:
        """A member's machine hears of something; its instructions are carried out, work is kept for later."""
        for said in self.hosts[me].handle(event):
            match said:
                case HostTell(event=passed, to=to):
                    assert me not in to
                    for other in to:
                        self.channels.setdefault((me, other), deque()).append(passed)
                case HostReduce(key, step):
                    assert all(self.begun[m, key] >= step for m in range(self.count)), "an operand was not ready"
                    if self.keys[key][0] is None:  # each member has two places for its operands
                        assert all(self.begun[m, key] <= step + 1 for m in range(self.count)), "an operand had changed"
                    else:
                        assert all(self.complete[m, key] < step for m in range(self.count)), "an operand had changed"
                    self.todo.append((me, HostDone(me, key, step)))
                case Lift(key, step):
                    assert self.keys[key][1] == me
                    self.todo.append((me, Final(me, key, step)))
                case Complete(key, step):
                    if me < self.count:
                        assert self.complete[me, key] == step - 1
                        assert self.begun[me, key] == step
                        self.complete[me, key] = step
                case HostFail(key, step, members):
                    assert self.begun[me, key] == step
                    assert self.complete[me, key] == step - 1
                    assert set(members) <= self.left
                    assert members
                    self.failed[me, key] = members

    def moves(self) -> list[Callable[[], None]]:
        """All that could happen next."""
        found: list[Callable[[], None]] = []
        for (source, target), channel in self.channels.items():
            if channel and target not in self.left:
                found.append(partial(self._deliver, source, target))
        found += [partial(self._work, i) for i in range(len(self.todo))]
        for (me, key), step in self.begun.items():
            idle = step == self.complete[me, key] and (me, key) not in self.failed and me not in self.left
            if idle and step < self.rounds[me]:
                found.append(partial(self._begin, me, key))
        for me in range(self.count):
            ended = all(self.complete[me, key] == self.rounds[me] for key in self.keys)
            if ended and me not in self.left:
                found.append(partial(self._leave, me))
        return found

    def _deliver(self, source: int, target: int) -> None:
        self.tell(target, self.channels[source, target].popleft())

    def _work(self, i: int) -> None:
        self.tell(*self.todo.pop(i))

    def _begin(self, me: int, key: int) -> None:
        self.begun[me, key] += 1
        self.tell(me, Ready(me, key, self.begun[me, key]))

    def _leave(self, me: int) -> None:
        self.left.add(me)
        for other in range(len(self.hosts)):
            if other != me:
                self.channels.setdefault((me, other), deque()).append(HostLeft(me))


@st.composite
def plans(draw: st.DrawFn) -> tuple[int, dict[int, tuple[list[int] | None, int]], list[int]]:
    count = draw(st.integers(1, 4))
    keys: dict[int, tuple[list[int] | None, int]] = {}
    for key in range(draw(st.integers(1, 3))):
        reducers = draw(st.none() | st.lists(st.integers(0, count - 1), min_size=1, unique=True))
        keys[key] = (reducers, draw(st.sampled_from([-1, -1, 0, count])) if reducers else -1)
    same = draw(st.integers(1, 4))
    rounds = draw(st.just([same] * count) | st.lists(st.integers(1, 4), min_size=count, max_size=count))
    return count, keys, rounds


@given(plans(), st.data())
@settings(max_examples=150)
def test_the_machine_under_any_interleaving(
    plan: tuple[int, dict[int, tuple[list[int] | None, int]], list[int]], data: st.DataObject
) -> None:
    """Every round that all members begin is reduced once with all operands in place, and complete for all; others fail,
    and name who left."""
    count, keys, rounds = plan
    members = Members(count, keys, rounds)
    turn = np.random.default_rng(data.draw(st.integers(0, 1 << 30)))
    while moves := members.moves():
        moves[int(turn.integers(len(moves)))]()
    for (me, key), done in members.complete.items():
        if rounds[me] == min(rounds):
            assert done == rounds[me]
        else:
            assert done == min(rounds)
            assert set(members.failed[me, key]) <= {m for m in range(count) if rounds[m] < rounds[me]}


IMPOSSIBLE: list[tuple[str, list[Event]]] = [
    ("a key that was not declared", [Ready(1, 9, 1)]),
    ("ready twice", [Ready(1, 7, 1), Ready(1, 7, 1)]),
    ("ready twice for the next", [Ready(1, 7, 2), Ready(1, 7, 2)]),
    ("two rounds ahead", [Ready(1, 7, 3)]),
    ("a former round", [Ready(1, 7, 0)]),
    ("mine is ahead", [Ready(0, 7, 2)]),
    ("done twice", [HostDone(1, 7, 1), HostDone(1, 7, 1)]),
    ("done ahead", [HostDone(1, 7, 2)]),
    ("mine is done before all are ready", [HostDone(0, 7, 1)]),
    ("done by who reduces nothing", [HostDone(2, 7, 1)]),
    ("final of who lifts nothing", [Final(1, 7, 1)]),
]


@pytest.mark.parametrize("events", [e for _, e in IMPOSSIBLE], ids=[i for i, _ in IMPOSSIBLE])
def test_what_no_member_says(events: list[Event]) -> None:
    host = Host(0, 3)
    host.declare(7, reducers=[0, 1])
    for event in events[:-1]:
        host.handle(event)
    before = repr(host._keys)
    with pytest.raises(MezzoError, match="level 1"):
        host.handle(events[-1])
    assert repr(host._keys) == before


def test_who_is_missing() -> None:
    host = Host(0, 3)
    host.declare(7, reducers=[0, 1])
    host.handle(Ready(0, 7, 1))
    assert host.missing(7) == (1, 2)
    host.handle(Ready(2, 7, 1))
    assert host.missing(7) == (1,)
    host.handle(Ready(1, 7, 1))
    host.handle(HostDone(0, 7, 1))
    assert host.missing(7) == (1,)
    assert host.handle(Hopeless(1, 7, 1, 0b100)) == (
        HostTell(Hopeless(0, 7, 1, 0b100), (1, 2)),
        HostFail(7, 1, (2,)),
    )


# -- memory ------------------------------------------------------------------------------------------------------------


@given(st.integers(1, 5), st.sampled_from([1, 7, BLOCK // 8 - 1, BLOCK // 8, 2 * BLOCK // 8 + 3]), st.integers(0, 99))
@settings(max_examples=30)
def test_operands_are_added_in_order(count: int, size: int, seed: int) -> None:
    operands = list(np.random.default_rng(seed).normal(size=(count, size)) * 10.0 ** np.arange(count)[:, None])
    out = np.empty(size)
    add(operands, out)
    expected = operands[0]
    for operand in operands[1:]:
        expected = expected + operand
    assert out.tobytes() == expected.tobytes()


def test_too_much_memory_is_refused() -> None:
    with pytest.raises(BudgetError, match="shared memory"):
        memory.create(1 << 60)


def test_an_address_that_is_given_again_is_another_array() -> None:
    places, again = memory.SharedPlaces(), 0
    for number in range(1, 30):
        fd = memory.create(1 << 20)
        segment = memory.attach(number, fd)
        os.close(fd)
        places.add(segment)
        address = segment.address
        assert places.find(segment.array(64, (9,), np.dtype(float))) == (number, 64)
        del segment
        other = mmap.mmap(-1, 1 << 20)  # the kernel takes the hole that was left
        again += np.frombuffer(other, float).ctypes.data == address
        assert places.find(np.frombuffer(other, float)) is None
        assert places.dropped() == [number]
        other.close()
    assert again, "or this has tested nothing"


# -- processes ---------------------------------------------------------------------------------------------------------


def workers(scenario: str, count: int, folder: Path, **more: str) -> list[Any]:
    """What each worker says; None of one that failed. What it printed fails the test, but for one that was killed."""
    before = os.listdir("/dev/shm") if Path("/dev/shm").exists() else []
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONWARNINGS": "error", **more}
    done = subprocess.run(
        [sys.executable, "-m", "tests.kv_workers", scenario, str(count), str(folder)],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.stderr == ""
    after = os.listdir("/dev/shm") if Path("/dev/shm").exists() else []
    assert [name for name in after if "mezzo" in name and name not in before] == []
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("count", [2, 3, 4])
@pytest.mark.parametrize("scenario", ["sums", "orders"])
def test_every_round_is_right(scenario: str, count: int, tmp_path: Path) -> None:
    assert workers(scenario, count, tmp_path) == ["good"] * count


@pytest.mark.parametrize("count", [2, 3])
def test_ordinary_arrays_are_read_where_they_lie(count: int, tmp_path: Path) -> None:
    """Where the kernel allows it to all; else they are copied, to the same bits."""
    assert workers("ordinary", count, tmp_path) == [0] * count
    refused = workers("ordinary", count, tmp_path, REFUSED="1")
    assert refused[1] == 3, "one slot for each value"


def test_memory_of_others_that_cannot_be_read() -> None:
    asks = private.Probe((1, 2))
    mine = private.answer(asks.question(), os.getpid())
    assert mine == {"is": "readable", "able": True}
    assert private.answer({**asks.question(), "word": 1}, os.getpid())["able"] is False
    assert private.answer({**asks.question(), "address": 8}, os.getpid())["able"] is False
    assert private.answer(asks.question(), 0)["able"] is False
    asks.answered(1, True)
    assert not asks.may
    asks.answered(2, True)
    assert asks.may
    asks.answered(2, False)
    assert not asks.may
    with pytest.raises(private.Unreadable):
        private.PrivateOperand(3, os.getpid(), 8, 4).read(2, np.empty(5, np.float32))


def test_an_engine_that_runs_in_turn_waits_for_nobody_who_waits_for_it(tmp_path: Path) -> None:
    """Each worker starts keys in an order of its own before it waits for any of them."""
    assert workers("orders", 2, tmp_path, MEZZO_ENGINE="naive") == ["good"] * 2


def test_workers_that_step_parts_refuse_what_measures_whole_tensors() -> None:
    store = HostStore("a host", Group(Mesh(0, {}), (0,), 30.0, "the worker"))
    try:
        with pytest.raises(InputError, match="LARS measures whole tensors"):
            store.set_optimizer(LARS().to_dict())
    finally:
        store.close()


class Lifting:
    """A level above that the agent, member 1, speaks to; it answers at once, and keeps with which priorities."""

    newest = False

    def __init__(self) -> None:
        self.loop = Loop()
        self.priorities: list[int] = []

    def leader(self, number: int, nbytes: int) -> int:
        return 1

    def declare(self, value: HostValue, ended: Ended) -> None:
        ended(None)

    def lift(self, value: HostValue, given: object, pull: bool, priority: int, ended: Ended) -> None:
        self.priorities.append(priority)
        ended(None)

    def fetch(self, value: HostValue, rows: object, out: object, ended: Ended) -> None:
        raise AssertionError("a sequential store has all rows at hand")

    def lend(self, member: int, number: int, fd: int, size: int) -> None: ...

    def forget(self, member: int, number: int) -> None: ...

    def drop_losses(self, collect: bool = False) -> None: ...

    def counts(self) -> tuple[int, int]:
        return 0, 0

    def ready(self, fd: int, events: int) -> None: ...

    def blame(self, ranks: Sequence[int], reason: str) -> None:
        raise AssertionError("nobody is late")

    def tick(self) -> None: ...


def test_a_priority_reaches_the_agent() -> None:
    here, there = socket.socketpair()
    below, above = Lifting(), Lifting()
    worker = Group(Mesh(0, {1: here}), (0,), 30.0, "the worker", below)
    agent = Group(Mesh(1, {0: there}), (0,), 30.0, "the agent", above)
    following = Thread(target=agent.follow)
    following.start()
    given, store = np.ones(100_000, np.float32), HostStore("a host", worker)
    priorities = [7, -3, 0, 1 << 90, -(1 << 90)]
    try:
        store.init("w", given)
        for priority in priorities:
            assert (store.pushpull("w", [given], [], priority).wait() == 1).all()
    finally:
        store.close()
        following.join(30)
        agent.close()
        for each in (below, above):
            each.loop.close()
    assert above.priorities == [7, -3, 0, 1 << 62, -(1 << 62)]
    assert below.priorities == []


def test_a_sum_that_depends_on_the_order_has_one_value(tmp_path: Path) -> None:
    assert workers("cancelling", 3, tmp_path) == [[1.0]] * 3


def test_workers_may_be_a_round_apart(tmp_path: Path) -> None:
    assert workers("apart", 3, tmp_path) == [[3 * 19 + 3, 3 * 19 + 3]] * 3


def test_optimizers_step_parts_as_they_step_values(tmp_path: Path) -> None:
    assert workers("optimizer", 2, tmp_path) == ["good"] * 2


def test_a_killed_worker_is_named_at_once(tmp_path: Path) -> None:
    one, dead, other = workers("killed", 3, tmp_path)
    assert dead is None
    for (kind, said, seconds), (again, _, _) in (one, other):
        assert kind == again == "PeerError"
        assert "rank 1 has died" in said
        assert seconds < 10, "a second is what is promised, on a calm machine; 0.2 s of them it lived"


def test_a_worker_with_fewer_batches_is_named(tmp_path: Path) -> None:
    one, left, other = workers("leaving", 3, tmp_path)
    assert left == 3
    for rounds, barrier in (one, other):
        for (kind, said, _), key in zip(rounds, ("small", "large"), strict=True):
            assert kind == "PeerError"
            assert f"rank 1 left before round 4 of key '{key}'" in said
            assert "equally often" in said
        assert "rank 1 left before a barrier" in barrier[1]


def test_an_error_of_a_worker_reaches_the_others(tmp_path: Path) -> None:
    one, left, other = workers("failing", 3, tmp_path)
    assert left == "left"
    for kind, said, _ in (one, other):
        assert kind == "PeerError"
        assert "rank 1 failed: ValueError: no such file" in said


def test_a_deadline_names_who_is_missing(tmp_path: Path) -> None:
    one, late, other = workers("silent", 3, tmp_path)
    assert late == [3, 3, 3]
    for small, large, after in (one, other):
        for (kind, said, seconds), key in ((small, "w"), (large, "v")):
            assert kind == "DeadlineError"
            assert f"round 1 of key '{key}'" in said
            assert re.search(r"missing ranks? (0, )?1", said), "and perhaps one that waits for another key still"
            assert 0.3 < seconds < 10
        assert after == [3, 3, 3], "the next round is good"


def test_workers_that_disagree(tmp_path: Path) -> None:
    for shape, optimizer, updater, after in workers("disagreeing", 3, tmp_path):
        assert shape[0] == "ShapeError"
        for word in ("'w'", "float32[3, 2] on rank 1", "float32[2, 3] on rank 0"):
            assert word in shape[1]
        assert optimizer[0] == updater[0] == "InputError"
        assert "the same argument" in optimizer[1]
        assert "disagreeing is code, which does not travel" in updater[1]
        assert after == 3


def test_steps_of_an_epoch_are_compared(tmp_path: Path) -> None:
    for alike, refused, fewest in workers("epochs", 3, tmp_path):
        assert (alike, fewest) == (7, 0)
        assert refused[0] == "InputError"
        assert "rank 0 has 5 steps in this epoch, rank 2 has 4" in refused[1]


def test_updaters_of_the_user_are_expressions(tmp_path: Path) -> None:
    assert max(workers("ruled", 2, tmp_path)) < 1e-5


def test_eventual_counts_every_push_once(tmp_path: Path) -> None:
    small, large = 3 * 60.0, 3 * 2 * sum(range(1, 61))
    for torn, first, steps, more, slow in workers("eventual", 3, tmp_path):
        assert torn == 0
        assert first == [small, large, small, large]
        assert steps == more == -0.5 * 20 * 3
        assert slow == 15 * 3


def test_bounded_staleness_is_never_passed(tmp_path: Path) -> None:
    for (most, pulls), own in zip(workers("bounded", 3, tmp_path), (20, 12, 20), strict=True):
        assert most <= 2
        assert pulls == own


def test_a_worker_that_is_behind_is_named(tmp_path: Path) -> None:
    one, _, other = workers("behind", 3, tmp_path)
    for kind, said, _ in (one, other):
        assert kind == "DeadlineError"
        assert re.search(r"rank [02] is 3 pushes of key 'w' ahead of ranks? ([02], )?1", said)
        assert "bounded 2" in said


def test_a_worker_killed_while_it_pushes_is_named(tmp_path: Path) -> None:
    one, dead, other = workers("killed_while_pushing", 3, tmp_path)
    assert dead is None
    for kind, said, _ in (one, other):
        assert (kind, "rank 1 has died" in said) == ("PeerError", True)


@pytest.mark.parametrize("late", [{}, {"LATE": "1"}], ids=["", "to-who-comes-late-too"])
def test_a_worker_whose_array_cannot_be_read_any_more_is_named(late: dict[str, str], tmp_path: Path) -> None:
    one, dead, other = workers("vanishing", 3, tmp_path, **late)
    assert dead is None
    for kind, said, _ in (one, other):
        assert (kind, "rank 1 has died" in said) == ("PeerError", True), said


def test_who_does_not_start_is_named(tmp_path: Path) -> None:
    one, _, other = workers("lonely", 3, tmp_path)
    for kind, said, seconds in (one, other):
        assert kind == "DeadlineError"
        assert "2 of 3 processes of this host met" in said
        assert "missing rank 1" in said
        assert seconds < 40


def test_memory_and_files_are_given_back(tmp_path: Path) -> None:
    for segments, files in workers("forgotten", 2, tmp_path):
        assert segments <= 8, "the value, slots, and arrays that the last message has not told of"
        assert files == 0
