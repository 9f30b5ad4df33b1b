"""The machines of the KVStore against a sequential model, over a network of chance (kv_network.py)."""

from __future__ import annotations

from collections import Counter
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mezzo.kvstore.protocol import client as c
from mezzo.kvstore.protocol import messages as m
from mezzo.kvstore.protocol import serving as s
from mezzo.kvstore.protocol.consistency import Bounded, Consistency, Eventual, Sequential
from mezzo.kvstore.protocol.rounds import Rounds

from .kv_network import Array, Job, Network, Operation


def momentum(value: Array, gradient: Array, step: int) -> Array:
    """An optimizer that works element by element, and whose steps do not commute."""
    return np.asarray(value * value.dtype.type(0.5) - gradient / value.dtype.type(step), value.dtype)


def normed(value: Array, gradient: Array, step: int) -> Array:
    """One that needs the whole array."""
    return np.asarray(value - gradient / (np.abs(gradient).max() + value.dtype.type(step)), value.dtype)


@st.composite
def jobs(draw: st.DrawFn, consistency: Consistency | None = None, uneven: bool = False) -> Job:
    """Jobs of up to four workers, three servers and four keys. Either every worker has an order of its own and starts
    all operations at once, or they share an order and wait now and then."""
    ranks, servers = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    kind = consistency or Sequential()
    chance = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    whole = draw(st.booleans()) and kind.sums
    update = normed if whole else draw(st.sampled_from([None, momentum])) if kind.sums else None
    batches = draw(st.lists(st.integers(0, 4), min_size=ranks, max_size=ranks))
    initial: dict[str, Array] = {}
    gradients: dict[str, list[list[Array]]] = {}
    pushes: list[list[Operation]] = [[] for _ in range(ranks)]
    for name in "abcd"[: draw(st.integers(1, 4))]:
        size = draw(st.sampled_from([0, 1, 7, 16, 40, 100, 200]) if not whole else st.integers(1, 60))
        dtype = draw(st.sampled_from([np.float32, np.float64, np.float16]))
        rounds = [draw(st.integers(1, 4))] * ranks
        if uneven:
            rounds = batches

        def array(size: int = size, dtype: Any = dtype) -> Array:
            if not kind.sums:
                return chance.integers(-50, 50, size).astype(dtype)  # sums are exact in any order
            return (chance.standard_normal(size) * 10.0 ** chance.integers(-3, 4, size)).astype(dtype)

        initial[name] = array()
        gradients[name] = [[array() for _ in range(n)] for n in rounds]
        for rank, n in enumerate(rounds):
            pull = chance.random() < 0.7
            pushes[rank] += [Operation(name, True, bool(pull), int(chance.integers(-2, 3)))] * n
            pushes[rank] += [Operation(name, False, True)] * int(chance.integers(0, 2))
    waits = draw(st.booleans()) and not uneven  # else one may wait for who waits for another key, for ever
    order = dict(zip(initial, chance.permutation(len(initial)), strict=True))
    for program in pushes:
        chance.shuffle(program)
        if waits:
            program.sort(key=lambda operation: order[operation.key])
    frame = draw(st.sampled_from([64, 128, 1 << 19]))
    split = 1 << 20 if whole else 256
    return Job(initial, gradients, pushes, kind, update, whole, servers, frame, split, waits=waits)


def finish(network: Network) -> None:
    """Run; everybody has got all answers, and nobody was refused anything."""
    network.run()
    assert [server.failure for server in network.servers] == [None] * len(network.servers)
    assert not [refused for server in network.servers for refused in server.refused]
    assert not [error for worker in network.workers for error in worker.errors]
    assert all(worker.finished or worker.left for worker in network.workers)


def check_sequential(network: Network) -> None:
    finish(network)
    for key, values in network.model.items():
        assert network.value(key).tobytes() == values[-1].tobytes()


@given(jobs(), st.integers(0, 1 << 32))
def test_sums_are_those_of_rank_order_to_the_last_bit(job: Job, seed: int) -> None:
    check_sequential(Network(job, seed))


@given(jobs(), st.integers(0, 1 << 32), st.booleans())
def test_connections_are_lost(job: Job, seed: int, in_place: bool) -> None:
    job.in_place = in_place
    check_sequential(Network(job, seed, trouble=50))


@given(jobs(), st.integers(0, 1 << 32))
def test_workers_start_again_with_their_state(job: Job, seed: int) -> None:
    check_sequential(Network(job, seed, trouble=50, restarts=True))


@given(jobs(uneven=True), st.integers(0, 1 << 32))
def test_workers_with_fewer_batches_leave(job: Job, seed: int) -> None:
    check_sequential(Network(job, seed, leave=True))


def check_each_push_counts_once(network: Network) -> None:
    """Integers have one sum in any order; and the servers applied every push of everybody, each once."""
    finish(network)
    job = network.job
    for key, start in job.initial.items():
        pushed = sum((g for of_rank in job.gradients[key] for g in of_rank), start.copy())
        assert network.value(key).tobytes() == pushed.tobytes()
    for server in network.servers:
        applied = Counter((e.key, e.rank) for e in server.applied)
        for number in server.keys:
            steps = [e.step for e in server.applied if e.key == number]
            assert steps == [*range(1, len(steps) + 1)]
        for number, shard in server.keys.items():
            given = job.gradients[shard.name]
            assert [applied[number, rank] for rank in range(len(given))] == [len(of_rank) for of_rank in given]


@given(jobs(Eventual()), st.integers(0, 1 << 32), st.sampled_from([0, 50]))
def test_eventual_counts_every_push_once(job: Job, seed: int, trouble: int) -> None:
    check_each_push_counts_once(Network(job, seed, trouble, restarts=True))


@given(st.data(), st.integers(0, 3), st.integers(0, 1 << 32), st.sampled_from([0, 50]))
def test_bounded_staleness_is_never_passed(data: st.DataObject, most: int, seed: int, trouble: int) -> None:
    network = Network(data.draw(jobs(Bounded(most))), seed, trouble, restarts=True)
    check_each_push_counts_once(network)
    for server in network.servers:
        assert all(staleness <= most for staleness in histogram(server.machine))


@pytest.mark.soak
@settings(settings.get_profile("soak"))
@given(jobs(), st.integers(0, 1 << 32), st.booleans())
def test_many_jobs(job: Job, seed: int, restarts: bool) -> None:
    check_sequential(Network(job, seed, trouble=50, restarts=restarts))


@pytest.mark.soak
@settings(settings.get_profile("soak"))
@given(st.data(), st.integers(0, 3), st.integers(0, 1 << 32))
def test_many_jobs_of_bounded_staleness(data: st.DataObject, most: int, seed: int) -> None:
    network = Network(data.draw(jobs(Bounded(most))), seed, trouble=50, restarts=True)
    check_each_push_counts_once(network)
    assert all(staleness <= most for server in network.servers for staleness in histogram(server.machine))


def histogram(machine: Rounds) -> dict[int, int]:
    """The staleness that was seen: how often, by how many pushes."""
    found = {name: count for name, count in machine.stats().items() if name.startswith("staleness ")}
    return {int(name.split()[1]): count for name, count in found.items()}


# ------------------------------------------------------------------------------------------- one server, by hand


def server(ranks: int, consistency: Consistency | None = None, nbytes: int = 4, **given: Any) -> Rounds:
    """A server's machine with key 1 of so many bytes, and everybody there."""
    machine = Rounds(range(ranks), consistency or Sequential(), answers=20, **given)
    begun: list[s.Event] = [s.KeyDeclared(1, nbytes, "w", step=0), *(s.Joined(rank) for rank in range(ranks))]
    for event in begun:
        assert machine.handle(event) == ()
    return machine


def push(machine: Rounds, rank: int, step: int, nbytes: int = 4) -> list[s.Instruction]:
    made = machine.handle(s.Opened(rank, 1, step, 0, nbytes))
    return [*made, *machine.handle(s.Arrived(rank, 1, step, nbytes))]


@pytest.mark.parametrize("order", [*permutations(range(3))], ids=str)
def test_one_sum_in_any_order(order: tuple[int, ...]) -> None:
    """1e8 - 1e8 + 1 is 1 in rank order and 0 in others."""
    given = [np.array([x], np.float32) for x in (1e8, -1e8, 1)]
    machine, total = server(3), np.zeros(1, np.float32)
    staged = dict(enumerate(given))
    for rank in order:
        for done in push(machine, rank, 1):
            match done:
                case s.ServerReceive(into="sum"):
                    total = given[rank].copy()
                case s.Add(rank=adds):
                    total += staged.pop(adds)
    assert total == 1
    assert np.float32(1) + np.float32(-1e8) + np.float32(1e8) == 0


def test_a_fast_worker_waits_for_the_slow_one() -> None:
    machine = server(2, Bounded(2))
    answered = [[e.step for e in push(machine, 0, step) if isinstance(e, s.Send)] for step in (1, 2, 3)]
    assert answered == [[1], [2], []]
    assert [(e.rank, e.step) for e in push(machine, 1, 1) if isinstance(e, s.Send)] == [(0, 3), (1, 1)]
    assert histogram(machine) == {1: 1, 2: 2, 0: 1}


def refusal(made: tuple[s.Instruction, ...]) -> str:
    """Why it was refused; a payload on its way is dropped."""
    refused = [e for e in made if isinstance(e, s.Refuse)]
    assert len(refused) == 1
    assert all(isinstance(e, s.Refuse) or (isinstance(e, s.ServerReceive) and e.into == "nothing") for e in made)
    return refused[0].reason


def test_what_is_refused() -> None:
    machine = server(2)
    push(machine, 0, 1)
    says: dict[s.Event, str] = {
        s.Opened(0, 1, 1, 0, 4): "rank 0 pushed step 1 already, and now step 1",
        s.Opened(0, 1, 2, 0, 4): "rank 0 pushed step 2 before it was answered on an earlier one",
        s.Opened(1, 1, 2, 0, 4): "rank 1 pushed step 2, its next one is 1",
        s.Opened(1, 1, 0, 0, 4): "rank 1 pushed step 0: only the first rank gives the initial value",
        s.Opened(1, 1, 1, 0, 8): "bytes 0 to 8 do not lie in 4",
        s.Opened(1, 1, 1, 2, 4): "bytes 2 to 4 of step 1 do not follow what came before",
        s.Opened(1, 9, 1, 0, 4): "key number 9 was never declared",
        s.Opened(5, 1, 1, 0, 4): "rank 5 takes no part",
        s.Opened(1, 1, 1, 0, 4, lane=3): "rank 1 takes no part",
        s.Asked(1, 1, 1): "rank 1 asked for step 1, and has pushed 0",
        s.Asked(0, 1, 1): "rank 0 asked again before it was answered",
        s.Joined(2): "rank 2 is none of the 2 ranks of this job",
        s.Configured(rank=1): "a round of key 'w' is open",
    }
    for event, reason in says.items():
        assert refusal(machine.handle(event)) == reason
    assert [type(e) for e in push(machine, 1, 1)] == [s.ServerReceive, s.Add, s.Apply, s.Send, s.Send]
    assert machine.stats()["refused"] == len(says)


def test_priorities_hold_from_the_first_frame_of_a_new_connection() -> None:
    client = c.Client(rank=0, servers=1, grace=1.0)
    client.handle(c.Connected(0))
    for number, name in enumerate("ab", 1):
        client.handle(c.Declare(name, "float32", (1,), step=0))
        client.handle(c.Heard(0, m.Init(name, "float32", (1,), 0, 4, 0, number)))
    client.handle(c.Lost(0))
    client.handle(c.Start("a", priority=1))
    client.handle(c.Start("b", priority=2))
    made = [*client.handle(c.Connected(0)), *client.handle(c.Sent(0))]
    assert [e.name for e in made if isinstance(e, c.Transmit)] == ["b", "a"]


def test_a_process_that_was_replaced_is_refused() -> None:
    machine = server(2)
    assert machine.handle(s.Joined(1, incarnation=1)) == ()
    assert "replaces" in refusal(machine.handle(s.Joined(1, incarnation=0)))


def test_a_repeated_push_is_answered_again_and_counts_once() -> None:
    machine = server(1)
    assert push(machine, 0, 1)[-1] == s.Send(0, 1, 1, 0, 4)
    machine.handle(s.Joined(0))
    assert push(machine, 0, 1) == [s.ServerReceive(0, 1, 1, 0, 4, "nothing", keep=4), s.Send(0, 1, 1, 0, 4)]
    assert machine.stats() == {"pushes": 1, "rounds": 1, "repeats": 1, "staleness 0": 2}


def test_an_optimizer_of_whole_arrays_needs_whole_keys() -> None:
    machine = Rounds([0])
    assert machine.handle(s.KeyDeclared(1, 64, "half", whole=False)) == ()
    assert "key 'half' is split" in refusal(machine.handle(s.Configured(elementwise=False)))
    machine = Rounds([0])
    assert machine.handle(s.Configured(elementwise=False)) == ()
    assert "key 'half' is split" in refusal(machine.handle(s.KeyDeclared(1, 64, "half", whole=False)))


# -------------------------------------------------------------------------------------- nobody waits for ever


def late(machine: Rounds) -> s.ServerFail:
    """Ticks until something fails, and those whom it names were asked before."""
    asked = set[int]()
    for now in range(0, 1000, 10):
        for made in machine.handle(s.ServerTicked(float(now))):
            if isinstance(made, s.ServerFail):
                assert machine.failure == made
                assert asked >= {*made.ranks} or "did not come back" in made.reason
                return made
            assert isinstance(made, s.Ask)
            assert made.rank not in asked
            asked.add(made.rank)
    raise AssertionError("nobody is missed")


def test_a_round_names_who_is_missing() -> None:
    machine = server(4)
    push(machine, 1, 1)
    assert late(machine) == s.ServerFail((0, 2, 3), "step 1 of key 'w' waits for ranks 0, 2, 3; nothing came for 120 s")
    assert machine.handle(s.Opened(2, 1, 1, 0, 4)) == ()


def test_who_is_missing_is_asked_again_only_after_something_has_come() -> None:
    machine = server(3)
    push(machine, 0, 1)
    asked = [machine.handle(s.ServerTicked(now)) for now in (0.0, 1.0, 121.5, 122.0)]
    every = tuple(s.Ask(rank, 1, 1) for rank in range(3))  # who waits hears of it too
    assert asked == [(), (), every, ()]
    push(machine, 1, 1)
    assert [machine.handle(s.ServerTicked(now)) for now in (200.0, 201.0, 321.5)] == [
        (),
        (),
        tuple(s.Ask(rank, 1, 1) for rank in range(3)),
    ]


def test_who_waits_for_others_is_not_named_before_them() -> None:
    machine = Rounds([0, 1, 2], answers=10.0)
    machine.handle(s.KeyDeclared(1, 4, "w", step=0))
    for rank in range(3):
        machine.handle(s.Joined(rank))
    machine.handle(s.Excused(1, 1, 1))  # nobody has asked
    push(machine, 0, 1)
    asked = tuple(s.Ask(rank, 1, 1) for rank in range(3))
    assert [machine.handle(s.ServerTicked(now)) for now in (0.0, 1.0, 122.0)] == [(), (), asked]
    machine.handle(s.Excused(2, 1, 2))  # of another step
    machine.handle(s.Excused(1, 1, 1))
    (failed,) = machine.handle(s.ServerTicked(132.0))
    assert failed == s.ServerFail((2,), "step 1 of key 'w' waits for rank 2; nothing came for 120 s")


def test_all_who_are_missing_may_wait_for_others_a_little_longer() -> None:
    machine = Rounds([0, 1], answers=10.0)
    machine.handle(s.KeyDeclared(1, 4, "w", step=0))
    for rank in range(2):
        machine.handle(s.Joined(rank))
    push(machine, 0, 1)
    for now in (0.0, 1.0, 122.0):
        machine.handle(s.ServerTicked(now))
    machine.handle(s.Excused(1, 1, 1))
    assert machine.handle(s.ServerTicked(144.0)) == ()
    (failed,) = machine.handle(s.ServerTicked(147.0))
    assert isinstance(failed, s.ServerFail)
    assert failed.ranks == (1,)
    assert "waits for rank 1; nothing came for 120 s, and there others are waited for" in failed.reason


def test_a_push_that_stopped_names_its_rank() -> None:
    machine = server(2, nbytes=128)
    push(machine, 0, 1, 128)
    machine.handle(s.Opened(1, 1, 1, 0, 128))
    machine.handle(s.Arrived(1, 1, 1, 64))
    assert late(machine).ranks == (1,)


def test_the_initial_value_that_never_comes() -> None:
    machine = Rounds(range(3), answers=20)
    machine.handle(s.KeyDeclared(1, 4, "w"))
    machine.handle(s.Joined(2))
    assert machine.handle(s.Asked(2, 1, 0)) == ()
    assert late(machine).ranks == (0,)


def test_bounded_staleness_names_the_slowest() -> None:
    machine = server(3, Bounded(0))
    push(machine, 0, 1)
    push(machine, 2, 1)
    assert late(machine).ranks == (1,)


def test_progress_moves_the_deadline() -> None:
    machine = server(2, nbytes=1 << 20)
    machine.handle(s.Opened(0, 1, 1, 0, 1 << 20))
    for second in range(0, 1000, 50):
        machine.handle(s.Arrived(0, 1, 1, (second + 50) * 64))
        assert machine.handle(s.ServerTicked(float(second))) == ()


def test_a_lost_connection_is_a_failure_at_once() -> None:
    assert server(2).handle(s.Left(1)) == (s.ServerFail((1,), "rank 1 is lost: its connection was closed"),)


def test_a_lost_connection_may_come_back() -> None:
    machine = server(2, grace=30.0)
    assert machine.handle(s.Left(1)) == ()
    assert [machine.handle(s.ServerTicked(now)) for now in (0.0, 20.0)] == [(), ()]
    assert machine.handle(s.Joined(1)) == ()
    assert machine.handle(s.ServerTicked(100.0)) == ()
    assert machine.handle(s.Left(1)) == ()
    assert late(machine).ranks == (1,)


def test_leaving_in_the_middle_of_a_push_is_a_failure() -> None:
    machine = server(2, nbytes=128)
    machine.handle(s.Opened(1, 1, 1, 0, 64))
    (failed,) = machine.handle(s.Left(1, orderly=True))
    assert isinstance(failed, s.ServerFail)
    assert "in the middle of a push of key 'w'" in failed.reason


def test_who_comes_back_takes_part_in_the_rounds_after() -> None:
    machine = server(2)
    machine.handle(s.Left(1, orderly=True))
    assert push(machine, 0, 1)[-1] == s.Send(0, 1, 1, 0, 4)
    machine.handle(s.Opened(0, 1, 2, 0, 4))
    machine.handle(s.Joined(1))
    assert machine.counted(1, 1) == 2
    assert machine.handle(s.Asked(1, 1, 2)) == ()  # the value is being overwritten
    assert machine.handle(s.Arrived(0, 1, 2, 4))[1:] == (s.Send(0, 1, 2, 0, 4), s.Send(1, 1, 2, 0, 4))
    assert [type(e) for e in push(machine, 0, 3)] == [s.ServerReceive]
    assert [e.rank for e in push(machine, 1, 3) if isinstance(e, s.Send)] == [0, 1]


def test_what_was_pushed_counts_after_its_rank_has_left() -> None:
    machine = server(3)
    push(machine, 1, 1)
    assert machine.handle(s.Left(1, orderly=True)) == ()
    push(machine, 2, 1)
    added = [e.rank for e in push(machine, 0, 1) if isinstance(e, s.Add)]
    assert added == [1, 2]
    push(machine, 0, 2)
    assert [e.rank for e in push(machine, 2, 2) if isinstance(e, s.Send)] == [0, 2]


def test_early_bytes_are_due_when_those_before_are_there() -> None:
    machine = server(3, nbytes=128)
    assert machine.handle(s.Opened(2, 1, 1, 0, 64)) == (s.ServerReceive(2, 1, 1, 0, 64, "staging", early=True),)
    assert machine.handle(s.Opened(1, 1, 1, 0, 128)) == (s.ServerReceive(1, 1, 1, 0, 128, "staging", early=True),)
    assert machine.handle(s.Opened(0, 1, 1, 0, 128)) == (s.ServerReceive(0, 1, 1, 0, 128, "sum"),)
    assert machine.handle(s.Arrived(0, 1, 1, 64)) == ()
    assert machine.handle(s.Arrived(0, 1, 1, 128)) == (s.Due(1, 1, 1),)
    assert machine.handle(s.Arrived(1, 1, 1, 64)) == (s.Add(1, 1, 1, 0, 64), s.Due(2, 1, 1))
    assert machine.handle(s.Arrived(2, 1, 1, 64))[:2] == (s.Add(1, 1, 2, 0, 64), s.Apply(1, 1, 0, 64, "assign"))
    assert machine.handle(s.Opened(2, 1, 1, 64, 128)) == (s.ServerReceive(2, 1, 1, 64, 128, "staging", 64, early=True),)


def test_a_repetition_keeps_what_was_counted() -> None:
    machine = server(2, nbytes=192, grace=1.0)
    machine.handle(s.Opened(0, 1, 1, 0, 192))
    machine.handle(s.Arrived(0, 1, 1, 100))
    machine.handle(s.Opened(1, 1, 1, 0, 192))
    assert machine.handle(s.Arrived(1, 1, 1, 192))[:2] == (s.Add(1, 1, 1, 0, 64), s.Apply(1, 1, 0, 64, "assign"))
    machine.handle(s.Left(0))
    machine.handle(s.Joined(0))
    assert machine.handle(s.Opened(0, 1, 1, 0, 192)) == (
        s.ServerReceive(0, 1, 1, 0, 192, "sum", 64),
        s.Send(0, 1, 1, 0, 64),
    )
    assert machine.handle(s.Arrived(0, 1, 1, 64)) == ()
    assert machine.handle(s.Arrived(0, 1, 1, 192))[:2] == (s.Add(1, 1, 1, 64, 192), s.Apply(1, 1, 64, 192, "assign"))


def test_one_lane_of_two_may_leave() -> None:
    machine = server(2)
    machine.handle(s.Joined(1, lane=1))
    machine.handle(s.Left(1, orderly=True, lane=1))
    assert [e.rank for e in [*push(machine, 0, 1), *push(machine, 1, 1)] if isinstance(e, s.Send)] == [0, 1]
