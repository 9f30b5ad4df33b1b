"""Jobs that gather again when a worker has died: the scheduler's machine, event by event."""

from __future__ import annotations

from typing import Any

import pytest

from mezzo.kvstore.protocol import membership as s
from mezzo.kvstore.protocol import messages as m

from .test_kv_members import failure, gathered, told

GONE = "worker 1 on host 'b' is gone: its connection was closed"
CALL = m.Gather(1, (1,), GONE)


def job(**given: Any) -> s.Membership:
    """Workers 0, 1, 2 on hosts a, b, c and a server, whose agent on host a is peer 50."""
    made = gathered(["a", "b", "c"], 1, **{"rejoin": 30.0, **given})
    (welcome,) = told(made.handle(s.Said(50, m.Hello("agent", "a")))).values()
    assert isinstance(welcome, m.Welcome)
    made.handle(s.MemberTicked(0.0))
    return made


def come(made: s.Membership, ranks: tuple[int, ...], *more: m.Hello) -> tuple[s.Instruction, ...]:
    """The server comes again, and workers of these ranks, and others."""
    hellos = [m.Hello("server", "s", address="10.0.0.9:1")]
    hellos += [m.Hello("worker", "abc"[rank], rank) for rank in ranks]
    for peer, hello in enumerate([*hellos, *more], 200):
        last = made.handle(s.Said(peer, hello))
    return last


def test_all_meet_again_with_another_in_the_place_of_the_dead() -> None:
    made = job()
    assert told(made.handle(s.Closed(1))) == dict.fromkeys((0, 2, 50, 100), CALL)
    assert made.handle(s.Closed(0)) == made.handle(s.Closed(50)) == ()  # whoever comes again closes its connection
    welcomes = told(come(made, (0, 2), m.Hello("worker", "b", 1, incarnation=1)))
    assert [(w.rank, w.gathering) for w in welcomes.values() if isinstance(w, m.Welcome)] == [
        (0, 1), (0, 1), (2, 1), (1, 1),
    ]  # fmt: skip
    assert all(w.servers == ("10.0.0.9:1",) for w in welcomes.values() if isinstance(w, m.Welcome))
    assert told(made.handle(s.Closed(203)))[202] == m.Gather(2, (1,), GONE)  # and once more


def test_who_has_no_rank_of_its_own_gets_that_of_the_dead() -> None:
    made = job()
    made.handle(s.Closed(1))
    assert told(come(made, (2, 0), m.Hello("worker", "b")))[203] == m.Welcome(
        1, 3, ("10.0.0.9:1",), (("a", (0,)), ("b", (1,)), ("c", (2,))), gathering=1
    )


def test_nothing_of_a_gathering_is_known_in_the_next() -> None:
    made = job()
    assert made.handle(s.Said(0, m.Barrier("x", 0))) == ()
    made.handle(s.Closed(1))
    come(made, (0, 1, 2))
    assert made.handle(s.Said(202, m.Barrier("x", 1))) == made.handle(s.Said(203, m.Barrier("x", 2))) == ()
    assert told(made.handle(s.Said(201, m.Barrier("x", 0)))) == {201 + r: m.Barrier("x", r) for r in range(3)}
    assert made.handle(s.Said(2, m.Barrier("x", 2))) == ()  # on the old connection


@pytest.mark.parametrize(
    ("peer", "said"),
    [
        (100, m.Failed((1,), "worker 1 is lost")),
        (50, m.Bye(0, 1, "rank 1 has died")),
        (0, m.Failed((1,), "rank 1 has died")),
    ],
    ids=str,
)
def test_what_others_tell_of_a_death_is_no_failure(peer: int, said: m.Message) -> None:
    made = job()
    assert made.handle(s.Said(peer, said)) == ()
    assert made.handle(s.MemberTicked(s.SETTLE / 2)) == ()
    if peer == 50:
        assert made.handle(s.Closed(peer)) == ()
    assert CALL in told(made.handle(s.Closed(1))).values()
    assert made.handle(s.MemberTicked(20.0)) == ()


def test_what_is_no_death_ends_the_job_a_little_later() -> None:
    made = job()
    assert made.handle(s.Said(1, m.Bye(1, 3, "ValueError: no"))) == ()
    assert made.handle(s.Closed(1)) == ()
    failed = failure(made.handle(s.MemberTicked(s.SETTLE + 0.1)), {0, 2, 50, 100})
    assert failed.reason == "worker 1 on host 'b' ended with code 3: ValueError: no"


def test_an_agent_that_dies_is_started_anew() -> None:
    made = job()
    assert told(made.handle(s.Closed(50)))[0] == m.Gather(
        1, (), "the agent of host 'a' is gone: its connection was closed"
    )
    late = told(made.handle(s.Said(60, m.Hello("agent", "a"))))[60]  # of the gathering that is over
    assert isinstance(late, m.Refused)
    assert "has gathered again" in late.reason
    come(made, (0, 1, 2))
    assert isinstance(told(made.handle(s.Said(61, m.Hello("agent", "a", gathering=1))))[61], m.Welcome)


def test_the_job_ends_where_nobody_comes() -> None:
    made = job(deadline=300.0)
    made.handle(s.Closed(1))
    assert made.handle(s.MemberTicked(1.0)) == come(made, (0, 2)) == made.handle(s.MemberTicked(31.0)) == ()
    failed = failure(made.handle(s.MemberTicked(31.2)), {0, 2, 50, 100, 200, 201, 202})
    assert failed.reason.startswith(f"{GONE}; not all have come again within 30 s: 2 of 3 workers came")


@pytest.mark.parametrize("code", [0, 1])
def test_the_job_ends_where_one_will_not_come(code: int) -> None:
    made = job()
    made.handle(s.Closed(1))
    failed = failure(made.handle(s.Said(0, m.Bye(0, code, "it has no Trainer" * code))), {0, 2, 50, 100})
    assert failed.ranks == (0,)
    assert f"{GONE}; worker 0 on host 'a' does not come again" in failed.reason


@pytest.mark.parametrize("earlier", [m.Bye(0), m.Bye(0, 1, "no")])
def test_who_has_left_would_be_missed(earlier: m.Bye) -> None:
    made = job()
    made.handle(s.Said(0, earlier))
    assert failure(made.handle(s.Closed(1)), {2, 50, 100} | ({0} if earlier.code else set())).reason == GONE


def test_the_next_one_may_come_before_the_end_of_the_dead_is_heard_of() -> None:
    made = job()
    assert CALL.number == 1
    calls = told(made.handle(s.Said(9, m.Hello("worker", "b", 1, incarnation=1))))
    assert calls[0] == m.Gather(1, (1,), "worker 1 on host 'b' is gone: another process has its place")
    assert made.handle(s.Closed(1)) == ()
    assert len(told(come(made, (0, 2)))) == 4


def test_so_it_may_without_a_rank_of_its_own() -> None:
    made = job()
    assert made.handle(s.Said(9, m.Hello("worker", "b", incarnation=1))) == ()
    assert made.handle(s.Said(10, m.Hello("worker", "b", incarnation=1))) == made.handle(s.Closed(10)) == ()
    assert CALL in told(made.handle(s.Closed(1))).values()
    assert len(told(come(made, (0, 2)))) == 4


def test_one_that_dies_while_they_gather_is_waited_for() -> None:
    first = s.Membership(2, rejoin=30.0)
    first.handle(s.Said(0, m.Hello("worker", "a", 0)))
    assert first.handle(s.Closed(0)) == ()
    first.handle(s.Said(1, m.Hello("worker", "b", 1)))
    assert len(told(first.handle(s.Said(2, m.Hello("worker", "a", 0, incarnation=1))))) == 2


def test_servers_are_not_replaced() -> None:
    assert failure(job().handle(s.Closed(100)), {0, 1, 2, 50}).role == "server"
