"""Communicators: every verb with the bits of sums in rank order, between processes and threads; and what goes wrong, by
name, on every rank."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest

from mezzo.kvstore.collective.calls import Call
from mezzo.kvstore.collective.checked import Checked, checked
from mezzo.kvstore.collective.communicator import Communicator
from mezzo.kvstore.collective.sums import shares, sum_in_order
from mezzo.kvstore.collective.threads import team
from mezzo.ops.errors import InputError, MezzoError

from .collective_ranks import operand, under_way, verbs

ROOT = Path(__file__).parents[1]


def processes(scenario: str, count: int) -> list[Any]:
    """What each of so many processes says."""
    command = [sys.executable, "-m", "tests.collective_ranks", scenario, str(count), f"mezzo-test/{uuid.uuid4()}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def threads(ranks: list[Any], do: Callable[[Any], Any]) -> list[Any]:
    """What each rank's thread returns, or the error that it ends with."""
    found: list[Any] = [None] * len(ranks)

    def run(rank: int) -> None:
        try:
            with ranks[rank] as communicator:
                found[rank] = do(communicator)
        except Exception as error:
            found[rank] = error

    all_of_them = [Thread(target=run, args=(r,), daemon=True) for r in range(len(ranks))]
    for thread in all_of_them:
        thread.start()
    for thread in all_of_them:
        thread.join(60)
    return found


@pytest.mark.parametrize("count", [3])
def test_processes_have_the_bits_of_sums_in_rank_order(count: int) -> None:
    assert processes("verbs", count) == [[]] * count


@pytest.mark.soak
@pytest.mark.parametrize("count", [2, 4, 5, 8])
def test_many_processes_have_the_bits_of_sums_in_rank_order(count: int) -> None:
    assert processes("verbs", count) == [[]] * count


@pytest.mark.parametrize("ranks", [team, checked])
def test_threads_have_the_same_bits(ranks: Any) -> None:
    assert threads(ranks(3), verbs) == [[]] * 3


def test_calls_go_on_while_others_begin() -> None:
    assert processes("under_way", 3) == [0, 0, 0]
    assert threads(team(3), under_way) == [0, 0, 0]


def test_a_rank_that_is_killed_is_named_by_all() -> None:
    first, dead, third = processes("killed", 3)
    assert dead is None
    for kind, message, seconds in (first, third):
        assert kind == "PeerError"
        # from a rank that hears of it at its next call, that the communicator has ended comes before
        assert message.endswith("rank 1 has died before all_reduce of float64[70001]")
        assert seconds < 20


def test_a_rank_that_is_frozen_is_named_by_all_at_the_deadline() -> None:
    first, frozen, third = processes("frozen", 3)
    assert frozen is None
    for kind, message, seconds in (first, third):
        assert kind in ("DeadlineError", "PeerError")
        # frozen within a call, it keeps rank 2 from ending that as well
        assert message.startswith(("rank 1 did not ", "ranks 1, 2 did not end "))
        assert "within 1 s; rank 1 last called all_reduce of float64[70001]" in message
        assert seconds < 20


def test_another_order_is_told_on_all_ranks() -> None:
    said = (
        "call 0 is all_reduce of float64[5] 'bucket 5' on rank 2, and all_reduce of float64[3] 'bucket 3' on ranks 0, 1"
    )
    for _, message, _ in processes("order", 3):
        assert message == f"the ranks do not call the same: {said}"


def test_an_abort_ends_all_with_its_reason() -> None:
    first, *others = processes("aborted", 3)
    said = "rank 0 has ended it: MemoryError: no room"
    assert first[1] == f"barrier after the communicator has ended: {said}"
    assert [message for _, message, _ in others] == [said] * 2


def test_a_rank_that_is_slow_is_named_by_all_at_the_deadline() -> None:
    for kind, message, seconds in processes("slowed", 3):
        assert kind in ("DeadlineError", "PeerError")
        assert "rank 1 did not call all_reduce of float64[70001]" in message
        assert seconds < 20


def test_shares_are_whole_and_equal() -> None:
    for count in range(40):
        for ranks in range(1, 7):
            parts = shares(count, ranks)
            sizes = [part.stop - part.start for part in parts]
            assert sum(sizes) == count
            assert max(sizes) - min(sizes) <= 1
            assert [i for part in parts for i in range(part.start, part.stop)] == list(range(count))


def test_sums_of_many_blocks_are_those_of_one() -> None:
    parts = [operand(r, 100_003, np.float32) for r in range(4)]
    expected = parts[0] + parts[1] + parts[2] + parts[3]
    sum_in_order(parts, parts[2])
    assert np.array_equal(parts[2], expected)


# -- 22 planted defects, each of which the checking communicator names on every rank that is still there

ONES = np.ones(8, np.float32)


def ones(count: int = 8, dtype: Any = np.float32) -> Any:
    return np.ones(count, dtype)


def right(c: Communicator) -> None:
    """The calls of a step: what the defects differ from."""
    works = [c.all_reduce(ones(6), name="bucket 0"), c.all_reduce(ones(4), name="bucket 1")]
    for work in works:
        work.wait()
    c.all_gather(ones(2), ones(6)).wait()
    c.barrier()


def order(c: Any) -> None:
    for n in (1, 0) if c.rank == 1 else (0, 1):
        c.all_reduce(ones(6), name=f"bucket {n}").wait()


def larger(c: Any) -> None:
    c.all_reduce(ones(9 if c.rank == 1 else 8)).wait()


def smaller(c: Any) -> None:
    c.reduce_scatter(ones(3 if c.rank == 1 else 6), ones(1 if c.rank == 1 else 2)).wait()


def dtype(c: Any) -> None:
    c.all_reduce(ones(8, np.float64 if c.rank == 1 else np.float32)).wait()


def verb(c: Any) -> None:
    (c.broadcast(ones(), 0) if c.rank == 1 else c.all_reduce(ones())).wait()


def root(c: Any) -> None:
    c.broadcast(ones(), 1 if c.rank == 1 else 0).wait()


def missing_and_left(c: Any) -> None:
    if c.rank != 1:
        c.all_reduce(ones()).wait()


def missing_and_there(c: Any) -> None:
    if c.rank == 1:
        time.sleep(1.2)
    c.all_reduce(ones()).wait()


def one_more(c: Any) -> None:
    if c.rank == 1:
        c.all_reduce(ones(), name="once more").wait()
    c.barrier()


def barrier(c: Any) -> None:
    if c.rank == 1:
        c.all_reduce(ones()).wait()
    else:
        c.barrier()


def stream(c: Any) -> None:
    c.all_reduce(ones(), stream=7).wait()
    c.all_reduce(ones(), stream=8 if c.rank == 1 else 7).wait()


def after_abort(c: Any) -> None:
    if c.rank == 1:
        c.abort("rank 1 had enough")
    else:
        time.sleep(0.1)
    c.all_reduce(ones()).wait()


def after_close(c: Any) -> None:
    if c.rank == 1:
        c.close()
    c.all_reduce(ones()).wait()


def written(c: Any) -> None:
    x = ones()
    if c.rank == 2:
        time.sleep(0.2)
    work = c.all_reduce(x, name="gradient")
    if c.rank == 1:
        x[3] = 5
    work.wait()


def nobody_waits(c: Any) -> None:
    work = c.all_reduce(ones(), name="lost")
    if c.rank != 1:
        work.wait()


def sent_size(c: Any) -> None:
    if c.rank == 1:
        c.send(ones(3), 0).wait()
    if c.rank == 0:
        c.receive(ones(4), 1).wait()
    c.barrier()


def nothing_sent(c: Any) -> None:
    if c.rank == 0:
        c.receive(ones(4), 1).wait()


def to_itself(c: Any) -> None:
    c.send(ones(), 1).wait() if c.rank == 1 else c.barrier()


def outside(c: Any) -> None:
    c.broadcast(ones(), 3 if c.rank == 1 else 0).wait()


def read_only(c: Any) -> None:
    x = ones()
    x.flags.writeable = c.rank != 1
    c.all_reduce(x).wait()


def in_pieces(c: Any) -> None:
    c.all_reduce(ones(16)[::2] if c.rank == 1 else ones()).wait()


def too_small(c: Any) -> None:
    c.all_gather(ones(2), ones(5 if c.rank == 1 else 6)).wait()


def overlapping(c: Any) -> None:
    x = ones(6)
    c.all_gather(x[:2] if c.rank == 1 else ones(2), x).wait()


def twice_under_way(c: Any) -> None:
    x = ones(6)
    works = [c.all_reduce(x), c.all_reduce(x if c.rank == 1 else ones(6))]
    for work in works:
        work.wait()


def strings(c: Any) -> None:
    c.all_reduce(np.array([True] * 8) if c.rank == 1 else ones()).wait()


def dies(c: Any) -> None:
    if c.rank == 1:
        raise ValueError("no more room")
    c.all_reduce(ones()).wait()


# defect -> what is said on the ranks, and on which ranks it is
DEFECTS: dict[Callable[[Any], None], str] = {
    order: "call 0 is all_reduce of float32[6] 'bucket 1' on rank 1, and all_reduce of float32[6] 'bucket 0' on",
    larger: "call 0 is all_reduce of float32[9] on rank 1, and all_reduce of float32[8] on rank",
    smaller: "call 0 is reduce_scatter of float32[3] on rank 1, and reduce_scatter of float32[6] on rank",
    dtype: "all_reduce of float64[8] on rank 1",
    verb: "call 0 is broadcast of float32[8] from rank 0 on rank 1",
    root: "broadcast of float32[8] from rank 1 on rank 1",
    missing_and_left: "rank 1 left before all_reduce of float32[8]",
    missing_and_there: "rank 1 did not call all_reduce of float32[8], call 0, within 0.5 s; rank 1 last called nothing",
    one_more: "all_reduce of float32[8] 'once more' on rank 1",
    barrier: "all_reduce of float32[8] on rank 1",
    stream: "rank 1: all_reduce of float32[8] is on stream 8, and all_reduce of float32[8] was on stream 7",
    after_abort: "rank 1 has ended it: rank 1 had enough",
    after_close: "rank 1",
    written: "rank 1: the operand of all_reduce of float32[8] 'gradient' was written before wait()",
    nobody_waits: "rank 1: nobody has waited for all_reduce of float32[8] 'lost'",
    sent_size: "rank 1 calls send of float32[3] to rank 0, and rank 0 receive of float32[4] from rank 1",
    nothing_sent: "rank 1",
    to_itself: "send: rank 1 is this one",
    outside: "broadcast: there is no rank 3 of 3",
    read_only: "all_reduce into an array that is read-only",
    in_pieces: "all_reduce of an array of shape [8] that is not in one piece",
    too_small: "all_gather: 3 times the operand, float32[2], is not float32[5]",
    overlapping: "all_gather: operand and result share memory",
    twice_under_way: "rank 1: all_reduce of float32[6] has memory that all_reduce of float32[6] has already",
    strings: "all_reduce of bool",
    dies: "rank 1 has ended it: ValueError: no more room",
}


def test_what_is_right_is_not_refused() -> None:
    assert threads(checked(3, 20), right) == [None] * 3


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda d: d.__name__)
def test_a_planted_defect_is_named_on_every_rank(defect: Callable[[Any], None]) -> None:
    said = threads(checked(3, 0.5), defect)
    texts = [f"{error.where} {error.message}" if isinstance(error, MezzoError) else str(error) for error in said]
    assert any(DEFECTS[defect] in text for text in texts), texts
    for rank in (0, 2):  # whoever did nothing wrong hears of rank 1, unless nothing was left to do
        silent = said[rank] is None
        assert silent or "rank 1" in texts[rank], texts
    assert any(isinstance(error, Exception) for error in said)


def test_calls_of_a_checked_rank_are_kept() -> None:
    first, second = checked(2)
    assert isinstance(first, Checked)
    threads([first, second], lambda c: c.all_reduce(ones(3), name="w").wait())
    assert first.log == [Call("all_reduce", "float32", 3, name="w")]


def test_wrong_communicators_are_refused() -> None:
    for ranks in (0, -1):
        with pytest.raises(MezzoError):
            team(ranks)
    with pytest.raises(InputError, match="deadline=0"):
        team(2, 0)
