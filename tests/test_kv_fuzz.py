"""Members of a job that say anything at all: a server and a scheduler hear mutated messages and noise after a handshake
that was right. Nothing but a MezzoError or a closed connection comes of it, within bounded memory and time.

A case is a number, from which all of it follows, and which is told where it fails: `fuzz("server", 1, 4711)` plays it
again.
"""

from __future__ import annotations

import gc
import os
import random
import signal
import socket
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

import numpy as np
import pytest

import mezzo as mz
from mezzo.kvstore import lent, scheduler, server, wire
from mezzo.kvstore.environment import Environment
from mezzo.kvstore.loop import Loop
from mezzo.kvstore.protocol import handshake as h
from mezzo.kvstore.protocol import messages as m

KEY = b"the key"
MEMORY = 8 << 20  # bytes that a server may take for values
MOST = 4 * MEMORY  # bytes that anything here may take at once
LONG = 60  # seconds for one conversation, which takes milliseconds
WORDS = 8  # messages of a conversation
IN_THE_SUITE, IN_SOAK = 2_000, 100_000  # messages
JOB = Environment("server", ("127.0.0.1", 0), 2, 1, "h", memory=MEMORY, deadline=LONG, key=KEY.decode())


JOBS = (  # by the number of a case: who takes part, and how they follow each other
    ((("a", (0,)), ("b", (1,))), "sequential/sequential"),
    ((("a", (0,)),), "sequential/sequential"),  # whose rounds end with every push
    ((("a", (0,)), ("b", (1,))), "sequential/eventual"),
    ((("a", (0, 1)),), "eventual/eventual"),
    ((("a", (0,)), ("b", (1,))), "sequential/bounded 1"),
)


class Membership:
    """What a server knows of its scheduler, without one."""

    case = 0

    def __init__(self, loop: Loop, environment: Environment, role: m.Role, *, address: str) -> None:
        self.name, self.ended = "server 0 on h", False
        self.failure: mz.MezzoError | None = None
        self.failed: Callable[[mz.MezzoError], None] = lambda error: None
        hosts, consistency = JOBS[self.case % len(JOBS)]
        self.welcome = m.Welcome(0, 2, (address,), hosts, consistency)

    def fail(self, error: mz.MezzoError) -> None:
        assert isinstance(error, mz.MezzoError)
        if self.failure is None:
            self.failure = error
            self.failed(error)

    def say(self, message: m.Message) -> None:
        wire.encode(message)


class OfServer:
    """A server under attack."""

    def __init__(self, case: int) -> None:
        Membership.case = case
        self.made = server.Server(JOB)
        self.loop = self.made._loop
        self.close = self.made._close
        self.service = f"server {self.made._member.welcome.servers[0]}"

    @property
    def over(self) -> bool:
        return self.made._member.failure is not None

    @property
    def address(self) -> Any:
        return self.made._gate._door.sock.getsockname()


class OfScheduler:
    """A scheduler under attack."""

    service = "scheduler"

    def __init__(self, case: int) -> None:
        self.made = scheduler.Scheduler(JOB)
        self.loop = self.made._loop
        self.close = self.made.close

    @property
    def over(self) -> bool:
        return self.made._ended is not None

    @property
    def address(self) -> Any:
        return self.made._gate._door.sock.getsockname()


Target = OfServer | OfScheduler
TARGETS: dict[str, type[Target]] = {"server": OfServer, "scheduler": OfScheduler}


def member(target: Target) -> socket.socket:
    """A connection whose handshake is done."""
    sock = socket.create_connection(target.address)
    machine = h.Handshake("caller", KEY, os.urandom(h.NONCE), target.service)
    made: Sequence[h.Instruction] = machine.handle(h.Began())
    sock.setblocking(False)
    while h.Open() not in made:
        for instruction in made:
            assert isinstance(instruction, h.Say), instruction
            sock.sendall(instruction.data)
        made = ()
        target.loop.step(0)
        try:
            made = machine.handle(h.HandshakeReceived(sock.recv(machine.wanted)))
        except BlockingIOError:
            continue
    return sock


# What members say, more or less: fields are of the right type, and often of the right size.


def small(rng: random.Random) -> int:
    return rng.choice((0, 1, 1, 1, 2, 3, rng.randrange(100)))


def count(rng: random.Random) -> int:
    return rng.choice((0, 1, 16, 4096, 1 << 20, 1 << 31, 1 << 40, (1 << 62), (1 << 63) - 1))


def text(rng: random.Random) -> str:
    return rng.choice(("", "a", "b", "w", "sgd", "float32", "127.0.0.1:1", "x" * 256, "\0", "é"))


def reals(rng: random.Random) -> dict[str, float]:
    names = ("steps", "seconds", "waited", "here", "data", "loss", "held 0", "inside", "between", "behind", text(rng))
    numbers = (0.0, 1.0, -1.0, 1e308, float("nan"), float("inf"), rng.uniform(0, 1e4))
    return {name: rng.choice(numbers) for name in rng.sample(names, rng.randrange(len(names)))}


def sequential(rng: random.Random) -> str:
    return rng.choice(("sequential/sequential", "eventual/eventual", "sequential", "", "bounded 3/bounded -1"))


def shape(rng: random.Random) -> tuple[int, ...]:
    return tuple(rng.choice((0, 1, 4, 1000, count(rng))) for _ in range(rng.choice((0, 1, 1, 2, 33))))


def init(rng: random.Random, rank: int) -> m.Message:
    dims: tuple[int, ...] = rng.choice(((4,), (1000,), (200_000,), (), (0,), shape(rng)))
    dtype = rng.choice(("float32", "float64", "bfloat16", "bool", "object", text(rng)))
    size = 4 * int(np.prod(dims)) if len(dims) < 3 and all(dim < 1 << 20 for dim in dims) else count(rng)
    return m.Init(rng.choice("abc"), dtype, dims, rng.choice((0, 0, 0, 4)), size, rank, 0, small(rng))


def scalars(rng: random.Random) -> dict[str, Any]:
    values: tuple[Any, ...] = (0, 0.5, -1, True, "text", float("nan"), float("inf"), 1 << 62)
    names = ("rate", "momentum", "kind", "rate.kind", "rate.value", "a.b.c", "", ".", "weight_decay")
    return {name: rng.choice(values) for name in rng.sample(names, rng.randrange(4))}


LENT = lent.keep(os.memfd_create("mezzo"), 8000)
os.truncate(LENT.file, 8000)


def odd_place(rng: random.Random) -> lent.Place:
    return lent.Place(rng.choice((os.getpid(), count(rng))), small(rng), LENT.kernel, count(rng), count(rng))


FITTING = {
    "server": (m.Init, m.Push, m.Push, m.Pull, m.SetOptimizer, m.States, m.Slices, m.Rows, m.Lend, m.Offer, m.Packed),
    "scheduler": (m.Hello, m.Barrier, m.Heartbeat, m.ServerStats, m.Report, m.Overview),
}


def message(rng: random.Random, rank: int, kind: str) -> tuple[m.Message, int]:
    """A message and the length of its payload; mostly one that this kind of process expects."""
    key, step = rng.choice((1, 1, 1, small(rng))), small(rng)
    length = rng.choice((0, 4, 8, 16, 4000, 16, wire.FRAME))
    lo = rng.choice((0, 0, 0, 4, 16, wire.FRAME, 1 << 40))
    arrays = tuple((text(rng), rng.choice(("float32", "object")), shape(rng)) for _ in range(small(rng) % 4))
    role: m.Role = rng.choice(("worker", "server", "agent", "agent", "scheduler"))
    hello = m.Hello(role, text(rng), rng.choice((-1, 0, 1, 2, 1 << 20)), small(rng), 0, text(rng), sequential(rng), 1.0)
    made: list[tuple[m.Message, int]] = [
        (hello, 0),
        (m.Hello("agent", "a", rank, 0, 0, "", "sequential/sequential", 5.0), 0),
        (init(rng, rank), 0),
        (init(rng, rank), 0),
        (m.Push(key, step, rank, lo, rng.random() < 0.5), length),
        (m.Push(key, step, rank, 0, True), rng.choice((16, 4000))),
        (m.Pull(key, step, rank), 0),
        (m.Value(key, step, rank, lo), length),
        (m.Done(key, step, rank), 0),
        (m.SetOptimizer(rng.choice(("SGD", "sgd", "Adam", "LARS", text(rng))), scalars(rng), rank), 0),
        (m.States(key, rank, lo, arrays), length),
        (m.States(key, rank, 0, ()), 0),
        (m.Barrier(text(rng), rank), 0),
        (m.ServerStats({text(rng): count(rng)}), 0),
        (m.Report(rank, reals(rng)), 0),
        (m.Overview(rng.choice((0, 0, count(rng)))), 0),
        (m.Refused(text(rng), text(rng), key, step, rank), 0),
        (m.Failed((rank, small(rng)), text(rng), role), 0),
        (m.Gather(small(rng), (rank, small(rng)), text(rng)), 0),
        (m.Heartbeat(), 0),
        (m.Bye(rank, small(rng), text(rng)), 0),
        (m.Welcome(rank, 2, (text(rng),), ((text(rng), (0, 1)),), sequential(rng)), 0),
        (m.Slices(key, rank, rng.choice((1, 4, wire.FRAME))), rng.choice((0, 8, 16, 7))),
        (m.Rows(key, rank, step, lo, count(rng), small(rng)), length),
        (m.Lend(small(rng), rank, *(LENT if rng.random() < 0.7 else odd_place(rng))), 0),
        (m.Offer(key, step, rank, lo, length, small(rng), lo, rng.random() < 0.5, small(rng), lo), 0),
        (m.Written(key, step, rank, lo, length), 0),
        (packed(rng, key, step, rank), rng.choice((2, 8, 8, 10, 504, 1000))),
    ]
    wanted = rng.choice(FITTING[kind]) if rng.random() < 0.85 else None
    return rng.choice([each for each in made if wanted is None or isinstance(each[0], wanted)])


def packed(rng: random.Random, key: int, step: int, rank: int) -> m.Packed:
    scheme = rng.choice(("fp16", "bf16", "2bit", "1bit", "topk", "topk 0.5", "powersgd 1", "powersgd 0", text(rng)))
    nbytes = rng.choice((4, 16, 16, 4000, 3, wire.FRAME))
    return m.Packed(
        key, step, rank, rng.choice((0, 0, 0, 16, wire.FRAME)), nbytes, scheme, rng.random() < 0.5, small(rng)
    )


def mutated(rng: random.Random, data: bytearray) -> bytes:
    """The same bytes, with something wrong."""
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        at = rng.randrange(max(1, min(len(data), 2 * wire.HEADER)))
        match rng.randrange(7):
            case 0 if data:
                data[at % len(data)] ^= 1 << rng.randrange(8)
            case 1 if data:
                data[at % len(data)] = rng.choice((0, 1, 0x7F, 0x80, 0xFF))
            case 2:
                data[at : at + rng.choice((1, 4, 8))] = rng.randbytes(rng.choice((1, 4, 8)))
            case 3:
                del data[at : at + rng.randrange(16)]
            case 4:
                data[at:at] = rng.randbytes(rng.randrange(16))
            case 5:
                field = rng.choice((8, 12, 16, 24, 32, 40))
                data[field : field + 4] = rng.choice((0, 1, wire.FRAME, 1 << 31, (1 << 32) - 1)).to_bytes(4, "little")
            case 6:
                del data[rng.randrange(len(data) + 1) :]
    return bytes(data)


def words(rng: random.Random, rank: int, kind: str) -> bytes:
    """What is said at once: a message that may be right, one that is wrong, or noise."""
    if rng.random() < 0.02:
        return rng.randbytes(rng.choice((1, 48, 1000, 200_000)))
    said, length = message(rng, rank, kind)
    data = wire.encode(said, length) + rng.randbytes(length)
    return mutated(rng, bytearray(data)) if rng.random() < 0.15 else data


def converse(target: Target, number: int, kind: str) -> int:
    """Have one member say what a number stands for; how many messages it said until it was closed."""
    rng = random.Random(number)
    rank = rng.choice((0, 0, 1)) if len(JOBS[number % len(JOBS)][0]) == 2 else 0
    said = 0
    with member(target) as sock:
        todo = bytearray()
        if rng.random() < 0.9:
            role: m.Role = "agent" if kind == "server" else rng.choice(("worker", "server", "agent"))
            host = rng.choice(("h", "ab"[rank]))  # that of the server, or another
            todo += wire.encode(m.Hello(role, host, rank, 0, 0, "", "sequential/sequential", 5.0))
            if kind == "server" and rng.random() < 0.9:
                size = rng.choice((4, 1000, 200_000))
                todo += wire.encode(m.Init("a", "float32", (size,), 0, 4 * size, rank))
        while said < WORDS and not target.over:
            todo += words(rng, rank, kind)
            said += 1
            if not spoken(target, sock, todo):
                break
        for _ in range(3):
            target.loop.step(0)
    for _ in range(3):
        target.loop.step(0)  # it hears that the other end is gone
    return said


def spoken(target: Target, sock: socket.socket, data: bytearray) -> bool:
    """Say what can be said now, and hear the answers; whether the connection is still open."""
    for _ in range(50):
        try:
            del data[: sock.send(data)]
        except BlockingIOError:
            pass
        except OSError:
            return False
        target.loop.step(0)
        try:
            while answer := sock.recv(1 << 20):
                assert answer
            return False
        except BlockingIOError:
            pass
        except OSError:
            return False
        if not data:
            return True
    return True  # it does not read on, as is its right


@contextmanager
def in_time(number: int) -> Iterator[None]:
    def late(signum: int, frame: FrameType | None) -> None:
        raise AssertionError(f"case {number} hangs")

    former = signal.signal(signal.SIGALRM, late)
    signal.alarm(LONG)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, former)


def fuzz(kind: str, messages: int, seed: int) -> None:
    """Conversations from this number on, each with a process of its own, until so many messages were said."""
    number, said = seed, 0
    tracemalloc.start(1)
    try:
        first, _ = tracemalloc.get_traced_memory()
        while said < messages:
            tracemalloc.reset_peak()  # what earlier cases took, and nobody has collected yet, is none of this one's
            base, _ = tracemalloc.get_traced_memory()
            with in_time(number):
                made = TARGETS[kind](number)
                try:
                    said += converse(made, number, kind)
                except Exception as error:
                    raise AssertionError(f"case {number} against the {kind}: {error!r}") from error
                finally:
                    made.close()
            _, peak = tracemalloc.get_traced_memory()
            assert peak - base < MOST, f"case {number} against the {kind} takes {peak - base} bytes"
            number += 1
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] - first < MOST, "memory is lost"
    finally:
        tracemalloc.stop()
    print(f"{kind}: {said} messages, cases {seed} to {number - 1}")


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "Member", Membership)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numbers that nobody meant, in optimizers
@pytest.mark.parametrize("kind", TARGETS)
def test_nothing_that_a_member_says_does_harm(kind: str) -> None:
    fuzz(kind, IN_THE_SUITE // 2, 0)


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("kind", TARGETS)
def test_nothing_that_members_say_for_long_does_harm(kind: str) -> None:
    fuzz(kind, IN_SOAK // 2, random.SystemRandom().randrange(1 << 40))
