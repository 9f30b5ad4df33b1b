"""What outlives a server: killed before and after every word that it commits, it goes on to the same bits."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mezzo.kvstore import kept
from mezzo.kvstore.kept import PAGE, Kept, MemoryFile
from mezzo.kvstore.kept_shards import KeptShards
from mezzo.kvstore.protocol import messages as m
from mezzo.kvstore.protocol import serving as s
from mezzo.kvstore.protocol.consistency import Consistency, Eventual, Sequential
from mezzo.kvstore.protocol.keys import Keys
from mezzo.kvstore.protocol.rounds import Rounds
from mezzo.kvstore.shards import Budget
from mezzo.kvstore.updater import UpdateRule, flat
from mezzo.ops.errors import BudgetError
from mezzo.ops.types import Array
from mezzo.runtime.optimizer import LARS, SGD, Adam, Optimizer

SHAPE, RANKS, FRAME = (8, 5), 2, 96  # float32: the second frame has 64 bytes
NBYTES = 160


class Killed(Exception):
    """The server is gone."""


class Memory:
    """A file that outlives servers."""

    def __init__(self) -> None:
        self._bytes = np.zeros(1 << 18, np.uint8)

    def map(self, offset: int, size: int) -> Array:
        return self._bytes[offset : offset + size]


class Server:
    """The machine and the memory of a server, on what was committed."""

    def __init__(self, memory: Memory, consistency: Consistency) -> None:
        self.keys = Keys(1 << 20)
        self.shards = KeptShards(self.keys, Budget(1 << 20), Kept(memory, RANKS), consistency.by_staleness)
        self.rounds = Rounds(range(RANKS), consistency, left=self.shards.left)
        if self.shards.optimizer is not None:
            self.rounds.handle(s.Configured(self.shards.elementwise))
        for key in self.shards:
            self._declare(key)
        for rank in range(RANKS):
            self.rounds.handle(s.Joined(rank))

    def _declare(self, key: int) -> None:
        held = self.shards[key]
        counts, applied = self.shards.counts(key), held.applied
        about = s.KeyDeclared(key, held.nbytes, held.shard.name, True, held.step, counts=counts, applied=applied)
        self.rounds.handle(about)

    def declare(self, name: str) -> int:
        key = self.keys.admit(m.Init(name, "float32", SHAPE, 0, NBYTES, 0))
        self.shards.declare(key)
        self._declare(key)
        return key

    def handle(self, event: s.Event, data: bytes, answer: Callable[[s.Send | s.Acknowledge, bytes], None]) -> None:
        for i in self.rounds.handle(event):
            match i:
                case s.ServerReceive(rank, key, _, lo, hi, into):
                    self.shards.place(key, rank, lo, hi, into)[:] = data
                    if into == "value" and hi == NBYTES:
                        self.shards.given(key)
                    self.handle(s.Arrived(rank, key, i.step, hi), b"", answer)
                case s.Add(key, _, rank, lo, hi, first):
                    self.shards.add(key, rank, lo, hi, first)
                case s.Apply():
                    self.shards.apply(*i)
                case s.Send(_, key, step, lo, hi):
                    if hi == NBYTES:
                        self.shards.read(key, i.rank)
                    answer(i, bytes(self.shards.view(key, step, lo, hi)))
                case s.Acknowledge():
                    answer(i, b"")
                case s.Refuse() | s.ServerFail():
                    raise AssertionError(i)


class Client:
    """A rank whose answers come into the memory of what it pushes."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.room = bytearray(NBYTES)
        self.got, self.sent, self.ended = 0, 0, True

    def begin(self, step: int, given: Array) -> None:
        self.step, self.room[:], self.got, self.sent, self.ended = step, given.tobytes(), 0, 0, False

    def again(self) -> None:
        """The server is another one."""
        self.got = self.sent = 0

    def push(self, server: Server, key: int) -> None:
        """Send a frame, if any is left."""
        lo, hi = self.sent, min(self.sent + FRAME, NBYTES)
        if lo < hi and not self.ended:
            self.sent = hi
            pull = bool(self.step)
            server.handle(
                s.Opened(self.rank, key, self.step, lo, hi, pull), bytes(self.room[lo:hi]), lambda *a: CLIENTS_TAKE(*a)
            )

    def take(self, lo: int, data: bytes) -> None:
        self.room[lo : lo + len(data)] = data
        self.got = lo + len(data)
        self.ended = self.got == NBYTES


CLIENTS_TAKE: Any = None


class Job:
    """Two ranks and a server, which is killed at the `fuse`-th word that it commits."""

    def __init__(self, consistency: Consistency, optimizers: list[Optimizer], fuse: int, before: bool) -> None:
        self.memory, self.consistency, self.optimizers = Memory(), consistency, optimizers
        self.clients = [Client(rank) for rank in range(RANKS)]
        self.words, self.fuse, self.before = 0, fuse, before
        self.kills = 0
        self.server: Server | None = None

    def store(self, words: Array, at: int, number: int) -> None:
        self.words += 1
        if self.words == self.fuse and self.before:
            raise Killed
        words[at] = number
        if self.words == self.fuse:
            raise Killed

    def do(self, what: Callable[[Server], Any]) -> Any:
        """Do something with a server, with the next one if it is killed meanwhile."""
        while True:
            try:
                if self.server is None:
                    self.server = Server(self.memory, self.consistency)
                    for client in self.clients:
                        client.again()
                return what(self.server)
            except Killed:
                self.server = None
                self.kills += 1

    def take(self, i: s.Send | s.Acknowledge, data: bytes) -> None:
        client = self.clients[i.rank]
        if isinstance(i, s.Send):
            client.take(i.lo, data)
        else:
            client.ended = True

    def exchange(self, key: int) -> None:
        """All ranks push, frame by frame in turns, until all have their answers."""

        def turns(server: Server) -> None:
            for _ in range(4):
                for client in self.clients:
                    client.push(server, key)
            assert all(client.ended for client in self.clients), "somebody has no answer"

        self.do(turns)

    def configure(self, optimizer: Optimizer) -> None:
        scalars = flat(optimizer.to_dict())
        given = m.SetOptimizer(str(scalars.pop("kind")), scalars)

        def ask(server: Server) -> None:
            if server.shards.optimizer != given:
                server.rounds.handle(s.Configured(optimizer.elementwise))
                server.shards.set_rule(UpdateRule(optimizer.to_dict()), given)

        self.do(ask)

    def run(self) -> bytes:
        global CLIENTS_TAKE
        CLIENTS_TAKE = self.take
        rng = np.random.default_rng(0)

        def draw() -> Array:
            return rng.standard_normal(SHAPE).astype(np.float32)

        key, other = (self.do(partial(Server.declare, name=name)) for name in ("w", "v"))
        for each in (key, other):
            self.clients[0].begin(0, draw())
            self.exchange(each)
        step = 0
        for optimizer in [None, *self.optimizers]:
            if optimizer is not None:
                self.configure(optimizer)
            for _ in range(2):
                step += 1
                for each in (key, other):
                    for client in self.clients:
                        client.begin(step, draw())
                    self.exchange(each)
                    if optimizer is not None and optimizer.elementwise:
                        rows = np.array([1, 6]).tobytes() + draw()[[1, 6]].tobytes()
                        self.do(partial(self._step_rows, key=each, rows=rows, number=step))
        ends = [self.do(partial(self._end, key=each)) for each in (key, other)]
        return b"".join(ends)

    def _step_rows(self, server: Server, key: int, rows: bytes, number: int) -> None:
        server.shards.step_rows(key, bytearray(rows), 0, 1, number)

    def _end(self, server: Server, key: int) -> bytes:
        held = server.shards[key]
        states = b"".join(state.tobytes() for state in held.states.values())
        return held.value.array.tobytes() + states + bytes([held.updates, held.step])


def ended(
    monkeypatch: pytest.MonkeyPatch, how: tuple[Consistency, list[Optimizer]], fuse: int = 0, before: bool = False
) -> tuple[bytes, Job]:
    job = Job(*how, fuse, before)
    monkeypatch.setattr(kept, "store", job.store)
    return job.run(), job


WAYS: dict[str, tuple[Consistency, list[Optimizer]]] = {
    "sums": (Sequential(), []),
    "steps": (Sequential(), [Adam(rate=0.1)]),
    "other steps": (Sequential(), [SGD(rate=0.1, momentum=0.9), SGD(rate=0.1), Adam(rate=0.1)]),
    "whole tensors": (Sequential(), [LARS(rate=0.1, momentum=0.9)]),
    "each by itself": (Eventual(), [SGD(rate=0.1, momentum=0.9)]),
    "by staleness": (Eventual(by_staleness=True), [SGD(rate=0.1, momentum=0.9), Adam(rate=0.1)]),
}


def everywhere(monkeypatch: pytest.MonkeyPatch, way: str, stride: int = 1) -> None:
    """Kill at every word, or at some, before it is written and after that."""
    calm, job = ended(monkeypatch, WAYS[way])
    assert job.words > 10
    for at in range(2, 2 * job.words + 2, stride):
        found, disturbed = ended(monkeypatch, WAYS[way], at // 2, at % 2 == 0)
        assert disturbed.kills == 1
        assert found == calm, f"killed {'after' if at % 2 else 'before'} word {at // 2}"


@pytest.mark.parametrize("way", WAYS)
def test_killed_at_some_words(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    everywhere(monkeypatch, way, 9)


@pytest.mark.soak
@pytest.mark.parametrize("way", WAYS)
def test_killed_at_every_word(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    everywhere(monkeypatch, way)


def early(self: KeptShards, held: Any, step: int, how: str, rank: int | None) -> None:
    """The word is written before the buffer."""
    room, states = held.other.array, held.sides[1 - held.kept.now]
    rest = room.copy(), {slot: state.copy() for slot, state in states.items()}
    room[...] = 0
    APPLIED(self, held, step, how, rank)
    room[...] = rest[0]
    for slot, state in states.items():
        state[...] = rest[1][slot]


APPLIED = KeptShards._applied


@pytest.mark.parametrize(
    ("way", "owner", "name", "defect"),
    [
        ("steps", KeptShards, "_applied", early),
        ("sums", KeptShards, "_applied_in_part", lambda self, held: None),
        ("steps", kept.KeptKey, "set_rows", lambda self, rank, number: None),
        ("other steps", Kept, "updates", lambda self, key: key.word(kept.UPDATES)),
        ("each by itself", kept.KeptKey, "counts", lambda self: dict.fromkeys(range(RANKS), self.word(kept.VERSION))),
    ],
)
def test_defects_are_found(way: str, owner: Any, name: str, defect: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner, name, defect)
    with pytest.raises(AssertionError):
        everywhere(monkeypatch, way)


def sgd() -> tuple[UpdateRule, m.SetOptimizer]:
    rule = UpdateRule(SGD(rate=0.5).to_dict())
    scalars = flat(rule.data)
    return rule, m.SetOptimizer(str(scalars.pop("kind")), scalars)


def test_a_key_that_is_refused_has_no_number() -> None:
    """For want of memory for the value or, with an optimizer, for its sum: the next key has the number that it has in
    a server that is started again."""
    memory = Memory()
    server = Server(memory, Sequential())
    server.shards.set_rule(*sgd())
    budget = server.shards.budget
    for room in (NBYTES, 2 * NBYTES):
        budget.most = budget.taken + room
        with pytest.raises(BudgetError):
            server.declare("refused")
        server.keys.withdraw(1)
        assert (budget.taken, len(server.keys), list(server.shards)) == (0, 0, [])
    budget.most = 1 << 20
    assert server.declare("taken") == 1
    again = Server(memory, Sequential())
    assert {key: again.keys[key].name for key in again.shards} == {1: "taken"}
    assert again.shards.budget.taken == budget.taken == 3 * NBYTES


def test_changes_of_rows_are_within_the_budget() -> None:
    """Rooms in which they are written down stay; they double, and a server that is started again counts them."""
    memory = Memory()
    server = Server(memory, Eventual())
    key = server.declare("w")
    server.shards.place(key, 0, 0, NBYTES, "value")[:] = bytes(NBYTES)
    server.shards.given(key)
    server.shards.set_rule(*sgd())
    budget, sizes = server.shards.budget, list[int]()
    for count in (1, 1, 2, 8, 8):
        gradient = np.ones((count, SHAPE[1]), np.float32)
        data = bytearray(np.arange(count, dtype=np.int64).tobytes() + gradient.tobytes())
        before = budget.taken
        server.shards.step_rows(key, data, 0, 0, len(sizes) + 1)
        sizes.append(budget.taken - before)
    assert sizes == [sizes[0], 0, 0, 0, 0]
    assert sizes[0] == server.shards._kept.changes > 0
    assert server.shards._kept.lacking([np.empty(PAGE)]) >= 8 * PAGE
    assert server.shards._kept.lacking([np.empty(PAGE // 8)]) >= 2 * sizes[0]
    again = Server(memory, Eventual())
    assert again.shards.budget.taken == budget.taken
    assert again.shards[key].value.array.tobytes() == server.shards[key].value.array.tobytes()
    budget.most = budget.taken
    wide = np.ones((8, SHAPE[1]), np.float32)
    server.shards._kept._changes = None  # as if none was large enough
    with pytest.raises(BudgetError, match="changed rows"):
        server.shards.step_rows(key, bytearray(np.arange(8, dtype=np.int64).tobytes() + wide.tobytes()), 0, 0, 9)


def test_a_file_without_a_name(tmp_path: Path) -> None:
    """Bytes of the file come back, and what the system refuses is an error before it is used."""
    with (tmp_path / "memory").open("w+b") as opened:
        MemoryFile(opened.fileno()).map(kept.PAGE, 100)[:3] = 1, 2, 3
        assert MemoryFile(opened.fileno()).map(kept.PAGE, 100)[:4].tolist() == [1, 2, 3, 0]
        with pytest.raises(BudgetError, match="bytes for values that outlive a server cannot be had"):
            MemoryFile(opened.fileno()).map(0, 1 << 60)
