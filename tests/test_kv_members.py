"""The machines of the scheduler and of a client, event by event."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mezzo.kvstore.protocol import client as c
from mezzo.kvstore.protocol import membership as s
from mezzo.kvstore.protocol import messages as m
from mezzo.ops.errors import DeadlineError, InputError, MezzoError, PeerError, ShapeError, WireError

# --------------------------------------------------------------------------------------------------- the scheduler


def gathered(workers: list[str], servers: int = 0, **given: Any) -> s.Membership:
    """A job whose workers on these hosts are peers 0, 1..., its servers peers 100, 101..."""
    job = s.Membership(len(workers), servers, **given)
    for peer in range(servers):
        assert job.handle(s.Said(100 + peer, m.Hello("server", "s", address=f"10.0.0.{peer}:1"))) == ()
    for peer, host in enumerate(workers):
        made = job.handle(s.Said(peer, m.Hello("worker", host)))
    assert [type(told.message) for told in made if isinstance(told, s.MemberTell)] == [m.Welcome] * (
        len(workers) + servers
    )
    return job


def told(made: tuple[s.Instruction, ...]) -> dict[int, m.Message]:
    return {e.peer: e.message for e in made if isinstance(e, s.MemberTell)}


def failure(made: tuple[s.Instruction, ...], peers: set[int]) -> m.Failed:
    """The job has ended, and these peers know why."""
    end = made[-1]
    assert isinstance(end, s.End)
    assert end.failure
    assert told(made) == dict.fromkeys(peers, end.failure)
    return end.failure


def ticks(job: s.Membership) -> tuple[s.Instruction, ...]:
    return next(made for now in range(0, 1000, 5) if (made := job.handle(s.MemberTicked(float(now)))))


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), min_size=1, max_size=6), st.randoms())
def test_everybody_gets_a_rank_in_any_order(processes: list[tuple[str, bool]], chance: Any) -> None:
    """Some workers have a hint; they and one server arrive in any order."""
    hints = chance.sample(range(len(processes)), len(processes))
    hellos = [m.Hello("worker", host, hints[i] if hinted else -1) for i, (host, hinted) in enumerate(processes)]
    arrivals: list[m.Hello] = [*hellos, m.Hello("server", "z", address="z:1")]
    chance.shuffle(arrivals)
    job = s.Membership(len(processes), 1)
    made: tuple[s.Instruction, ...] = ()
    for peer, hello in enumerate(arrivals):
        assert made == ()
        made = job.handle(s.Said(peer, hello))
    welcomes = told(made)
    ranks = []
    for peer, hello in enumerate(arrivals):
        welcome = welcomes[peer]
        assert isinstance(welcome, m.Welcome)
        assert (welcome.num_workers, welcome.servers) == (len(processes), ("z:1",))
        if hello.role == "worker":
            assert hello.rank in (-1, welcome.rank)
            assert welcome.rank in dict(welcome.hosts)[hello.host]
            ranks.append(welcome.rank)
    assert sorted(ranks) == [*range(len(processes))]
    listed = [rank for _, of_host in welcome.hosts for rank in of_host] if isinstance(welcome, m.Welcome) else []
    assert sorted(listed) == sorted(ranks)
    if not any(hello.rank >= 0 for hello in hellos):
        assert listed == sorted(listed)
        assert isinstance(welcome, m.Welcome)
        assert [host for host, _ in welcome.hosts] == sorted({host for host, _ in processes})


def test_one_too_many_is_sent_away_and_nobody_hangs() -> None:
    job = gathered(["a", "b"])
    refused, closed = job.handle(s.Said(9, m.Hello("worker", "c")))
    assert isinstance(refused, s.MemberTell)
    assert isinstance(refused.message, m.Refused)
    assert refused.message.reason == "this job has 2 workers, and all have come: 1 on host 'a', 1 on host 'b'"
    assert closed == s.Close(9)
    assert job.handle(s.Closed(9)) == ()


def test_too_few_are_named() -> None:
    job = s.Membership(3, 1)
    for peer, rank in enumerate((0, 2)):
        job.handle(s.Said(peer, m.Hello("worker", "a", rank)))
    failed = failure(ticks(job), {0, 1})
    assert failed.ranks == (1,)
    came = "2 of 3 workers came (2 on host 'a'; not rank 1), 0 of 1 servers came"
    assert failed.reason == f"not all have come within 120 s: {came}"


def test_workers_say_how_long_they_wait() -> None:
    """`kv.create` has a deadline of its own, which counts for them from when the first of them has come."""
    job = s.Membership(2, 1, timeout=30.0)
    job.handle(s.Said(9, m.Hello("server", "h", deadline=120.0)))
    job.handle(s.MemberTicked(100.0))
    job.handle(s.Said(0, m.Hello("worker", "a", deadline=3.0)))
    assert job.handle(s.MemberTicked(110.0)) == job.handle(s.MemberTicked(113.0)) == ()
    job.handle(s.Said(1, m.Hello("worker", "b", deadline=4.0)))
    job.handle(s.Said(9, m.Heartbeat()))
    job.handle(s.Said(0, m.Barrier("b", 0)))
    job.handle(s.MemberTicked(114.0))
    job.handle(s.Said(9, m.Heartbeat()))
    assert not any(isinstance(told, s.End) for told in job.handle(s.MemberTicked(116.5)))
    job.handle(s.Said(9, m.Heartbeat()))
    assert failure(job.handle(s.MemberTicked(118.1)), {0, 1, 9}).reason == "barrier 'b' waits for rank 1 since 4 s"


def test_a_frozen_server_is_named_before_those_who_wait_for_it() -> None:
    job = s.Membership(1, 1, timeout=30.0)
    job.handle(s.Said(9, m.Hello("server", "h", deadline=120.0)))
    job.handle(s.Said(9, m.Heartbeat()))
    job.handle(s.Said(0, m.Hello("worker", "a", deadline=4.0)))
    job.handle(s.MemberTicked(0.0))
    job.handle(s.MemberTicked(3.0))
    assert failure(job.handle(s.MemberTicked(3.1)), {0, 9}).reason == "server 0 on host 'h' is silent for 3.1 s"


def test_who_was_turned_away_is_told_where_somebody_is_missing() -> None:
    job = s.Membership(2)
    job.handle(s.Said(0, m.Hello("worker", "a")))
    for number in range(2):
        assert job.handle(s.TurnedAway(f"{number}: no")) == ()
    reason = failure(ticks(job), {0}).reason
    assert reason.endswith("1 of 2 workers came (1 on host 'a'); refused connections: 2, the last from 1: no")


@pytest.mark.parametrize(
    ("hello", "reason"),
    [
        (m.Hello("worker", "a", 0), "worker 0 cannot be: another process has it"),
        (m.Hello("worker", "a", 2), "worker 2 cannot be: there are 2"),
        (m.Hello("scheduler", "a"), "this job has a scheduler already"),
    ],
    ids=str,
)
def test_who_cannot_be(hello: m.Hello, reason: str) -> None:
    job = s.Membership(2)
    job.handle(s.Said(0, m.Hello("worker", "a", 0)))
    (refused, closed) = job.handle(s.Said(1, hello))
    assert isinstance(refused, s.MemberTell)
    assert isinstance(refused.message, m.Refused)
    assert (refused.message.reason, closed) == (reason, s.Close(1))


def test_workers_that_disagree_about_the_kind() -> None:
    job = s.Membership(3)
    job.handle(s.Said(0, m.Hello("worker", "a")))
    failed = failure(job.handle(s.Said(1, m.Hello("worker", "b", consistency="eventual"))), {0, 1})
    assert failed.reason == "workers disagree about the kind of the store: eventual on host 'b'; sequential on host 'a'"


def test_agents_belong_to_hosts() -> None:
    job = s.Membership(2)
    job.handle(s.Said(7, m.Hello("agent", "b")))
    job.handle(s.Said(0, m.Hello("worker", "b")))
    made = told(job.handle(s.Said(1, m.Hello("worker", "a"))))
    assert [made[peer].rank for peer in (7, 0, 1)] == [1, 1, 0]  # type: ignore[union-attr]
    assert told(job.handle(s.Said(8, m.Hello("agent", "a"))))[8].rank == 0  # type: ignore[union-attr]
    for host, reason in {"a": "host 'a' has an agent already", "c": "no worker runs on host 'c'"}.items():
        refused = told(job.handle(s.Said(9, m.Hello("agent", host))))[9]
        assert isinstance(refused, m.Refused)
        assert refused.reason == reason


def test_a_barrier_is_a_set_of_ranks() -> None:
    job = gathered(["a", "a", "b"])
    assert job.handle(s.Said(0, m.Barrier("x", 0))) == ()
    again = told(job.handle(s.Said(0, m.Barrier("x", 0))))[0]
    assert isinstance(again, m.Refused)
    assert "stands at barrier 'x' already" in again.reason
    assert isinstance(told(job.handle(s.Said(1, m.Barrier("x", 2))))[1], m.Refused)
    assert job.handle(s.Said(2, m.Barrier("y", 2))) == ()
    assert job.handle(s.Said(2, m.Barrier("x", 2))) == ()
    assert told(job.handle(s.Said(1, m.Barrier("x", 1)))) == {r: m.Barrier("x", r) for r in range(3)}
    failed = failure(ticks(job), {0, 1, 2})
    assert failed.ranks == (0, 1)
    assert failed.reason == "barrier 'y' waits for ranks 0, 1 since 120 s"


def test_who_says_something_else_at_a_barrier_is_named() -> None:
    job = gathered(["a", "a", "a"])
    for _ in range(2):  # what was said the last time does not count
        for rank in range(3):
            job.handle(s.Said(rank, m.Barrier("x", rank, f"rate {_}")))
    job.handle(s.Said(1, m.Barrier("x", 1, "rate 2")))
    failed = failure(job.handle(s.Said(0, m.Barrier("x", 0, "rate 3"))), {0, 1, 2})
    assert failed == m.Failed((1, 0), "x: rank 0 gives rate 3, and rank 1 rate 2; every worker must give the same")


def test_who_left_is_not_awaited() -> None:
    job = gathered(["a", "a", "a"])
    job.handle(s.Said(0, m.Barrier("x", 0)))
    job.handle(s.Said(1, m.Barrier("x", 1)))
    assert told(job.handle(s.Said(2, m.Bye(2)))) == {r: m.Barrier("x", r) for r in range(2)}


def test_a_dead_process_ends_the_job() -> None:
    failed = failure(gathered(["a", "b"], 1).handle(s.Closed(1)), {0, 100})
    assert failed == m.Failed((1,), "worker 1 on host 'b' is gone: its connection was closed")
    failed = failure(gathered(["a", "b"], 1).handle(s.Closed(100, "reset by peer")), {0, 1})
    assert failed == m.Failed((0,), "server 0 on host 's' is gone: reset by peer", "server")
    job = s.Membership(2)
    job.handle(s.Said(0, m.Hello("worker", "a")))
    assert failure(job.handle(s.Closed(0)), set()).reason == "worker on host 'a' is gone: its connection was closed"


def test_the_first_failing_exit_is_told_to_all() -> None:
    job = gathered(["a", "b"], 1)
    failed = failure(job.handle(s.Said(1, m.Bye(1, 3, "ValueError: no"))), {0, 1, 100})
    assert failed == m.Failed((1,), "worker 1 on host 'b' ended with code 3: ValueError: no")
    assert job.handle(s.Said(0, m.Bye(0, 4))) == ()


def test_what_a_server_found_is_told_to_all() -> None:
    found = m.Failed((1,), "step 3 waits for rank 1")
    assert failure(gathered(["a", "b"], 1).handle(s.Said(100, found)), {0, 1, 100}) == found


def test_the_end() -> None:
    job = gathered(["a", "b"], 2)
    job.handle(s.Said(7, m.Hello("agent", "a")))
    assert job.handle(s.Said(0, m.Bye(0))) == ()
    assert job.handle(s.Closed(0)) == ()
    assert job.handle(s.Closed(7)) == ()  # no worker of its host needs it
    made = job.handle(s.Said(1, m.Bye(1)))
    assert told(made) == {100: m.Bye(0), 101: m.Bye(1)}
    assert made[-1] == s.End()


def test_silence() -> None:
    job = gathered(["a", "b"], timeout=30.0)
    job.handle(s.Said(1, m.Heartbeat()))
    beat = (s.MemberTell(1, m.Heartbeat()),)  # to who sends them
    for now in range(0, 100, 10):
        assert job.handle(s.MemberTicked(float(now))) == beat
        assert job.handle(s.MemberTicked(now + s.BEAT / 2)) == ()
        assert job.handle(s.Said(1, m.Heartbeat())) == ()
    assert job.handle(s.MemberTicked(100.0)) == job.handle(s.MemberTicked(130.0)) == beat
    assert failure(job.handle(s.MemberTicked(131.0)), {0, 1}).reason == "worker 1 on host 'b' is silent for 31 s"


# -------------------------------------------------------------------------------------------------------- a client


def client(servers: int = 1, shape: tuple[int, ...] = (4,), names: str = "w", **given: Any) -> c.Client:
    """A client of rank 1 that has declared keys, numbered from 1."""
    made = c.Client(1, servers, **given)
    for server in range(servers):
        made.handle(c.Connected(server))
    for number, name in enumerate(names, 1):
        for e in made.handle(c.Declare(name, "float32", shape)):
            assert isinstance(e, c.Tell)
            assert isinstance(e.message, m.Init)
            made.handle(c.Heard(e.server, m.Init(name, "float32", shape, e.message.lo, e.message.hi, 1, key=number)))
            nbytes = e.message.hi - e.message.lo
            made.handle(c.Heard(e.server, m.Value(number, 0, 1), nbytes))
            made.handle(c.Received(e.server))
    return made


def test_a_key_over_two_servers_ends_when_both_have_answered() -> None:
    machine = client(2, (64,), split=128)
    made = machine.handle(c.Start("w"))
    assert [(e.server, e.lo, e.hi) for e in made if isinstance(e, c.Transmit)] == [(0, 0, 128), (1, 128, 256)]
    for server in (1, 0):
        assert machine.handle(c.Sent(server)) == ()
        assert machine.handle(c.Heard(server, m.Value(1, 1, 1, 0), 64)) == (
            c.Receive(server, "w", server * 128, server * 128 + 64),
        )
        assert machine.handle(c.Received(server)) == ()
        machine.handle(c.Heard(server, m.Value(1, 1, 1, 64), 64))
        assert machine.handle(c.Received(server)) == (() if server else (c.Finish("w", 1),))


def test_higher_priorities_overtake_between_frames() -> None:
    machine = client(1, (64,), "ab", frame=64)
    sent = [*machine.handle(c.Start("a")), *machine.handle(c.Start("b", priority=1))]
    while sent and (made := machine.handle(c.Sent(0))):
        sent += made
    assert "".join(e.name for e in sent if isinstance(e, c.Transmit)) == "abbbbaaa"


def test_what_was_answered_but_not_all_sent_is_sent_again() -> None:
    machine = client(1, (64,), frame=128, grace=1.0)
    machine.handle(c.Start("w"))
    machine.handle(c.Lost(0))
    assert len(machine.handle(c.Connected(0))) == 1
    machine.handle(c.Heard(0, m.Value(1, 1, 1), 256))
    assert machine.handle(c.Received(0)) == ()  # answered, since the server had it all; memory is still being read
    machine.handle(c.Lost(0))
    (again,) = machine.handle(c.Connected(0))
    assert isinstance(again, c.Transmit)
    machine.handle(c.Heard(0, m.Value(1, 1, 1), 256))
    machine.handle(c.Received(0))
    assert [type(machine.handle(c.Sent(0))[0]) for _ in range(2)] == [c.Transmit, c.Finish]


def test_operations_on_one_key_follow_each_other() -> None:
    machine = client()
    assert len(machine.handle(c.Start("w", pull=False))) == 1
    assert machine.handle(c.Start("w", push=False)) == ()
    machine.handle(c.Sent(0))
    assert machine.handle(c.Heard(0, m.Done(1, 1, 1))) == (c.Finish("w", 1), c.Tell(0, m.Pull(1, 1, 1)))


def test_a_refused_key_is_not_used_again() -> None:
    machine = client()
    machine.handle(c.Start("w"))
    (ended,) = machine.handle(c.Heard(0, m.Refused("twice", "once", key=1, step=1, rank=1)))
    assert isinstance(ended, c.Finish)
    assert isinstance(ended.error, PeerError)
    assert str(ended.error) == "key 'w' on server 0: twice\n  hint: once"
    assert machine.handle(c.Heard(0, m.Refused("a later frame", key=1, step=1, rank=1))) == ()
    assert machine.handle(c.Start("w")) == (c.Finish("w", 1, ended.error),)


def test_a_refused_declaration_may_be_corrected() -> None:
    machine = c.Client(1, 1)
    machine.handle(c.Connected(0))
    machine.handle(c.Declare("w", "float32", (4,)))
    (ended,) = machine.handle(c.Heard(0, m.Refused("rank 0 declared float32[5]")))
    assert isinstance(ended, c.Finish)
    assert isinstance(ended.error, PeerError)
    assert isinstance(machine.handle(c.Declare("w", "float32", (5,)))[0], c.Tell)


@pytest.mark.parametrize(
    ("event", "error"),
    [
        (c.Start("v"), InputError),
        (c.Declare("w", "float32", (5,)), InputError),
        (c.Declare("v", "float32", (-5,)), ShapeError),
        (c.Declare("v", "object", (5,)), InputError),
    ],
    ids=str,
)
def test_what_cannot_begin(event: c.Event, error: type[MezzoError]) -> None:
    machine = client()
    (ended,) = machine.handle(event)
    assert isinstance(ended, c.Finish)
    assert type(ended.error) is error
    assert len(machine.handle(c.Start("w"))) == 1  # the others go on


@pytest.mark.parametrize(
    "heard",
    [
        c.Heard(0, m.Value(1, 1, 1, 8), 8),  # a gap
        c.Heard(0, m.Value(1, 1, 1, 0), 20),  # too long
        c.Heard(0, m.Value(1, 0, 1, 0), 16),  # old
        c.Heard(0, m.Value(2, 1, 1, 0), 16),  # of another key
        c.Heard(0, m.Done(1, 1, 1)),  # without the value
        c.Heard(0, m.Init("w", "float32", (4,), 0, 16, 1, 1)),
        c.Heard(0, m.Barrier("x", 1)),
    ],
    ids=str,
)
def test_answers_that_nobody_waits_for(heard: c.Heard) -> None:
    machine = client()
    machine.handle(c.Start("w"))
    (failed,) = machine.handle(heard)
    assert isinstance(failed, c.Fail)
    assert isinstance(failed.error, WireError)
    assert machine.handle(c.Start("w")) == (c.Finish("w", 0, failed.error),)
    assert machine.handle(c.Request(1, m.ServerStats())) == (c.Answered(1, (), failed.error),)


def failed(made: tuple[c.Instruction, ...]) -> MezzoError:
    (fail,) = made
    assert isinstance(fail, c.Fail)
    return fail.error


def test_a_server_that_is_gone() -> None:
    assert str(failed(client(2).handle(c.Lost(1)))) == f"server 1 is lost: its connection was closed\n  hint: {m.SEE}"
    machine = client(grace=10.0)
    assert machine.handle(c.Lost(0)) == machine.handle(c.Ticked(0.0)) == machine.handle(c.Ticked(9.0)) == ()
    assert "did not come back in 10 s" in str(failed(machine.handle(c.Ticked(10.0))))
    machine = client(grace=10.0)
    machine.handle(c.Lost(0))
    assert "its values are lost" in str(failed(machine.handle(c.Connected(0, incarnation=1))))
    assert isinstance(failed(client().handle(c.Heard(0, m.Failed((2,), "rank 2 died")))), PeerError)


def test_a_server_that_is_silent() -> None:
    machine = client(deadline=10.0)
    assert machine.handle(c.Ticked(0.0)) == machine.handle(c.Ticked(100.0)) == ()
    machine.handle(c.Start("w"))
    assert machine.handle(c.Ticked(101.0)) == machine.handle(c.Ticked(111.0)) == ()
    error = failed(machine.handle(c.Ticked(112.0)))
    assert isinstance(error, DeadlineError)
    assert error.message == "no answer from server 0 for 10 s, in step 1 of key 'w'"


def test_a_request_is_answered_by_all() -> None:
    machine = client(2)
    optimizer = m.SetOptimizer("SGD", {"rate": 0.1}, 1)
    assert machine.handle(c.Request(5, optimizer)) == (c.Tell(0, optimizer), c.Tell(1, optimizer))
    assert machine.handle(c.Heard(1, optimizer)) == ()
    assert machine.handle(c.Heard(0, optimizer)) == (c.Answered(5, (optimizer, optimizer)),)
    machine.handle(c.Request(6, optimizer))
    machine.handle(c.Heard(1, m.Refused("a round is open")))
    (answered,) = machine.handle(c.Heard(0, optimizer))
    assert isinstance(answered, c.Answered)
    assert isinstance(answered.error, PeerError)
