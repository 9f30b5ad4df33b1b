"""A network that exists only here: machines of the KVStore's protocol, bytes between them, and chance in the middle.

Every step one of the things that could happen next does: a message arrives (payloads in pieces of any length), leaves,
a worker starts an operation, a connection is lost, a process is started again. Memory that the protocol calls free is
overwritten at once, and bytes to be sent are read as late as possible, so that a promise that does not hold shows.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mezzo.kvstore import wire
from mezzo.kvstore.protocol import client as c
from mezzo.kvstore.protocol import messages as m
from mezzo.kvstore.protocol import serving as s
from mezzo.kvstore.protocol.consistency import Consistency, Sequential
from mezzo.kvstore.protocol.keys import Keys
from mezzo.kvstore.protocol.rounds import Rounds
from mezzo.ops.errors import MezzoError

Array = np.ndarray[Any, np.dtype[Any]]
GARBAGE = 0xA5
Update = Callable[[Array, Array, int], Array]  # (value, gradient, step) -> value


@dataclass(frozen=True)
class Operation:
    """What a worker does next: push (its own gradient of that step), pull, or both."""

    key: str
    push: bool = True
    pull: bool = True
    priority: int = 0


@dataclass
class Job:
    """What all workers do: `gradients[key][rank][step - 1]`."""

    initial: Mapping[str, Array]
    gradients: Mapping[str, list[list[Array]]]
    programs: list[list[Operation]]
    consistency: Consistency = field(default_factory=Sequential)
    update: Update | None = None
    whole: bool = False
    servers: int = 1
    frame: int = 128
    split: int = 256
    in_place: bool = False  # values are received over what is pushed
    waits: bool = False  # workers wait for some operations before they start others; they must share an order then

    def values(self, key: str) -> list[Array]:
        """The sequential model: the value after each round, sums taken in the order of ranks."""
        made = [self.initial[key]]
        given = self.gradients[key]
        for step in range(max(len(of_rank) for of_rank in given)):
            parts = [of_rank[step] for of_rank in given if step < len(of_rank)]
            total = parts[0].copy()
            for part in parts[1:]:
                total += part
            made.append(total if self.update is None else self.update(made[-1], total, step + 1))
        return made


@dataclass(eq=False)
class Link:
    """One connection: messages on their way, and where the payload at each end goes."""

    up: deque[tuple[bytes, bytes]] = field(default_factory=deque)  # message, payload
    down: deque[tuple[bytes, bytes]] = field(default_factory=deque)
    leaving: deque[tuple[m.Message, tuple[int, int, int] | None]] = field(default_factory=deque)  # with (key, lo, hi)
    transmit: c.Transmit | None = None
    receive: s.ServerReceive | None = None  # of the payload that arrives at the server
    payload: bytes = b""
    held: bool = False  # an early payload that waits for Due
    dead: bool = False  # which the server may not know yet


class Server:
    """The driver of a server's machine: memory for the bytes that it speaks of."""

    def __init__(self, job: Job, ranks: int, grace: float) -> None:
        self.job = job
        self.machine = Rounds(range(ranks), job.consistency, grace=grace)
        self.keys = Keys(1 << 30)
        self.links: dict[int, Link] = {}
        self.value: dict[int, Array] = {}
        self.sum: dict[int, Array] = {}
        self.staging: dict[tuple[int, int], Array] = {}
        self.applied: list[s.Apply] = []
        self.failure: s.ServerFail | None = None
        self.refused: list[s.Refuse] = []

    def do(self, event: s.Event) -> None:
        for instruction in self.machine.handle(event):
            self.execute(instruction)

    def execute(self, instruction: s.Instruction) -> None:
        match instruction:
            case s.ServerReceive():
                self.links[instruction.rank].receive = instruction
                self.links[instruction.rank].held = instruction.early
            case s.Due(rank, key, step):
                link = self.links[rank]
                waits = link.receive
                assert link.dead or (waits and (waits.key, waits.step, waits.early) == (key, step, True))
                link.held = False
            case s.Add(key, _, rank, lo, hi, first):
                staged = self.staging[rank, key][lo:hi]
                total = self.sum[key][lo:hi]
                mine, other = self._typed(key, total), self._typed(key, staged)
                mine[:] = other if first else mine + other
                staged[:] = GARBAGE
            case s.Apply():
                self._apply(instruction)
            case s.Send(rank, key, step, lo, hi):
                self.links[rank].leaving.append((m.Value(key, step, rank, lo), (key, lo, hi)))
            case s.Acknowledge(rank, key, step):
                self.links[rank].leaving.append((m.Done(key, step, rank), None))
            case s.Refuse(rank, key, step, reason, hint):
                self.refused.append(instruction)
                self.links[rank].leaving.append((m.Refused(reason, hint, key, step, rank), None))
            case s.ServerFail(ranks, reason):
                self.failure = instruction
                for link in self.links.values():
                    link.leaving.append((m.Failed(ranks, reason), None))

    def _typed(self, key: int, data: Array) -> Array:
        return data.view(self.keys[key].dtype)

    def _apply(self, e: s.Apply) -> None:
        self.applied.append(e)
        source = self.sum[e.key] if e.rank is None else self.staging[e.rank, e.key]
        value, given = self._typed(e.key, self.value[e.key][e.lo : e.hi]), self._typed(e.key, source[e.lo : e.hi])
        if e.how == "update":
            assert self.job.update is not None
            assert not self.job.whole or e.hi - e.lo == self.keys[e.key].nbytes
            value[:] = self.job.update(value.copy(), given, e.step)
        else:
            value[:] = given if e.how == "assign" else value + given
        source[e.lo : e.hi] = GARBAGE

    def _pushed(self, event: s.Pushed, payload: bytes) -> None:
        """A first frame of a push has come with its payload."""
        for instruction in self.machine.handle(event):
            if isinstance(instruction, s.ServerReceive):
                e = instruction
                if e.into != "nothing" and e.keep < e.hi:
                    target = {"sum": self.sum, "value": self.value}.get(e.into)
                    into = target[e.key] if target is not None else self.staging[e.rank, e.key]
                    into[e.keep : e.hi] = np.frombuffer(payload, np.uint8)[e.keep :]
            else:
                self.execute(instruction)

    def heard(self, rank: int, data: bytes, payload: bytes, whole: bool) -> None:
        """A message has arrived; of its payload nothing yet, or the `whole` of it."""
        header = wire.parse(data)
        wire.check(header, self.keys)
        message = wire.decode(header, data[wire.HEADER :])
        link = self.links[rank]
        match message:
            case m.Init():
                key = self.keys.admit(message)
                shard = self.keys[key]
                if key not in self.value:
                    self.value[key], self.sum[key] = (np.full(shard.nbytes, GARBAGE, np.uint8) for _ in range(2))
                self.do(s.KeyDeclared(key, shard.nbytes, shard.name, shard.whole, rank=rank))
                given = {f: getattr(message, f) for f in ("name", "dtype", "shape", "lo", "hi", "rank")}
                link.leaving.append((m.Init(**given, key=key, step=self.machine.counted(rank, key)), None))
            case m.Push(key, step, _, offset, pull):
                self.staging.setdefault((rank, key), np.full(self.keys[key].nbytes, GARBAGE, np.uint8))
                if not offset and whole:
                    self._pushed(s.Pushed(rank, key, step, header.length, pull), payload)
                    return
                link.payload = payload
                self.do(s.Opened(rank, key, step, offset, offset + header.length, pull))
                assert link.receive is not None
                if not payload:
                    link.receive = None
            case m.Pull(key, step):
                self.do(s.Asked(rank, key, step))
            case _:
                raise AssertionError(message)

    def arrived(self, rank: int, count: int) -> None:
        """The next bytes of a payload are there."""
        link = self.links[rank]
        e = link.receive
        assert e is not None
        at = e.hi - len(link.payload)
        piece, link.payload = np.frombuffer(link.payload[:count], np.uint8), link.payload[count:]
        upto = at + piece.size
        if e.into != "nothing" and upto > e.keep:
            target = {"sum": self.sum, "value": self.value}.get(e.into)
            into = target[e.key] if target is not None else self.staging[rank, e.key]
            lo = max(at, e.keep)
            into[lo:upto] = piece[lo - at :]
        if upto == e.hi:
            link.receive, link.held = None, False
        if e.into != "nothing":
            self.do(s.Arrived(rank, e.key, e.step, upto))

    def leave(self, rank: int) -> None:
        """The first message that waits to be sent leaves: its bytes are read only now."""
        link = self.links[rank]
        message, part = link.leaving.popleft()
        payload = b""
        if part:
            key, lo, hi = part
            payload = self.value[key][lo:hi].tobytes()
        link.down.append((wire.encode(message, len(payload)), payload))


class Worker:
    """The driver of a client's machine, and the program that it runs."""

    def __init__(self, network: Network, rank: int) -> None:
        self.network, self.rank, job = network, rank, network.job
        self.started = 0  # operations of the program
        self.open: dict[str, deque[Operation]] = {key: deque() for key in job.initial}
        self.pushed: Counter[str] = Counter()  # started
        self.answered: Counter[str] = Counter()  # finished
        self.declared: set[str] = set()
        self.out = {key: np.full(a.shape, np.nan, a.dtype) if rank else a.copy() for key, a in job.initial.items()}
        self.mine = self.out if job.in_place else {key: a.copy() for key, a in job.initial.items()}  # what is sent
        self.receiving: dict[int, tuple[str, int, int]] = {}
        self.incarnation = 0
        self.begun = False  # all keys have been declared once
        self.left = False
        self.errors: list[MezzoError] = []
        self.checked = 0
        self.begin(None)

    def begin(self, steps: Mapping[str, int] | None) -> None:
        """Start the machine, at first or again."""
        job, keys = self.network.job, list(self.network.job.initial)
        self.machine = c.Client(self.rank, job.servers, split=job.split, frame=job.frame, grace=1e9)
        self.network.chance.shuffle(keys)
        self.declared.clear()
        for key in keys:
            a = job.initial[key]
            self.do(c.Declare(key, str(a.dtype), a.shape, None if steps is None else steps[key]))

    def restart(self) -> None:
        """The process dies and comes back with its state: what was answered, and what it was about to push."""
        self.incarnation += 1
        self.begin({key: self.answered[key] for key in self.open} if self.begun else None)
        for key, operations in self.open.items():
            for operation in list(operations):
                self.do(c.Start(key, operation.push, operation.pull, operation.priority))

    @property
    def busy(self) -> int:
        return sum(len(operations) for operations in self.open.values())

    @property
    def finished(self) -> bool:
        return len(self.declared) == len(self.open) and self.started == len(self.program) and not self.busy

    @property
    def program(self) -> list[Operation]:
        return self.network.job.programs[self.rank]

    def start(self) -> None:
        """The next operation of the program."""
        operation = self.program[self.started]
        self.started += 1
        queue = self.open[operation.key]
        queue.append(operation)
        if len(queue) == 1:
            self._fill(operation)
        self.do(c.Start(operation.key, operation.push, operation.pull, operation.priority))

    def _fill(self, operation: Operation) -> None:
        """What is pushed next; level 1 would have summed it now."""
        if operation.push:
            step = self.pushed[operation.key]
            self.pushed[operation.key] += 1
            self.mine[operation.key][...] = self.network.job.gradients[operation.key][self.rank][step]

    def do(self, event: c.Event, payload: bytes | None = None) -> None:
        for instruction in self.machine.handle(event):
            match instruction:
                case c.Receive(_, name, lo, hi) if payload is not None:
                    self._take(name, lo, hi, payload)
                case c.Tell(server, message):
                    self.network.link(self.rank, server).up.append((wire.encode(message), b""))
                case c.Transmit(server):
                    link = self.network.link(self.rank, server)
                    assert link.transmit is None
                    link.transmit = instruction
                case c.Finish(name, step, error):
                    self._ended(name, step, error)
                case c.Receive(server, name, lo, hi):
                    self.receiving[server] = (name, lo, hi)
                case c.Fail(error):
                    self.errors.append(error)
                case _:
                    raise AssertionError(instruction)

    def _ended(self, name: str, step: int, error: MezzoError | None) -> None:
        if error:
            self.errors.append(error)
            return
        if name not in self.declared:
            self.declared.add(name)
            if not self.begun:
                self.network.pulled(self, name, 0)
                self.begun = len(self.declared) == len(self.open)
            return
        operation = self.open[name].popleft()
        self.answered[name] += operation.push
        assert step == self.answered[name]
        if operation.pull:
            self.network.pulled(self, name, step)
        if self.open[name]:
            self._fill(self.open[name][0])

    def transmit(self, server: int) -> None:
        """The payload under way leaves: its bytes are read only now."""
        link = self.network.link(self.rank, server)
        e = link.transmit
        assert e is not None
        link.transmit = None
        payload = self.mine[e.name].view(np.uint8).reshape(-1)[e.lo : e.hi].tobytes()
        link.up.append((wire.encode(e.message, len(payload)), payload))
        self.do(c.Sent(server))

    def heard(self, server: int) -> None:
        """The next message of a server arrives, payload and all."""
        data, payload = self.network.link(self.rank, server).down.popleft()
        header = wire.parse(data)
        message = wire.decode(header, data[wire.HEADER :])
        if isinstance(message, m.Value) and self.network.chance.random() < 0.5:
            self.do(c.Came(server, message, header.length), payload)
            return
        self.do(c.Heard(server, message, header.length))
        if server in self.receiving:
            self._take(*self.receiving.pop(server), payload)
            self.do(c.Received(server))

    def _take(self, name: str, lo: int, hi: int, payload: bytes) -> None:
        self.out[name].view(np.uint8).reshape(-1)[lo:hi] = np.frombuffer(payload, np.uint8)


class Network:
    """All of it. `trouble`: how often, of a thousand steps, a connection is lost or a process starts again."""

    def __init__(self, job: Job, seed: int, trouble: int = 0, restarts: bool = False, leave: bool = False) -> None:
        self.job, self.chance, self.leave = job, random.Random(seed), leave
        self.trouble, self.restarts = trouble, restarts
        ranks = len(job.programs)
        self.servers = [Server(job, ranks, grace=1e9) for _ in range(job.servers)]
        for server in self.servers:
            if job.update:
                server.do(s.Configured(elementwise=not job.whole))
        self.down: set[tuple[int, int]] = {(r, n) for r in range(ranks) for n in range(job.servers)}
        self.losses = 0
        self.model = {key: job.values(key) for key in job.initial}
        self.window = [self.chance.choice((1, 2, 99)) if job.waits else 99 for _ in range(ranks)]
        self.workers: list[Worker] = []
        for rank in range(ranks):
            for server in self.servers:
                server.links[rank] = Link()
            self.workers.append(Worker(self, rank))

    def link(self, rank: int, server: int) -> Link:
        return self.servers[server].links[rank]

    def pulled(self, worker: Worker, key: str, step: int | None) -> None:
        """A value has been received whole: in a sequential store it is the model's, to the last bit."""
        if step is not None and self.job.consistency.sums and not (step == 0 and worker.rank == 0):
            found, expected = worker.out[key], self.model[key][step]
            assert found.tobytes() == expected.tobytes(), (worker.rank, key, step, found, expected)
            worker.checked += 1

    def possible(self) -> Iterator[tuple[Callable[..., None], Any]]:
        """What could happen now."""
        for worker in self.workers:
            if worker.left:
                continue
            if len(worker.declared) == len(worker.open) and worker.started < len(worker.program):
                if worker.busy < self.window[worker.rank]:
                    yield (worker.start, ())
            elif self.leave and worker.finished and not any(rank == worker.rank for rank, _ in self.down):
                yield (self.goodbye, (worker,))
            for number, server in enumerate(self.servers):
                at = (worker.rank, number)
                if at in self.down:
                    yield (self.connect, at)
                    continue
                link = server.links[worker.rank]
                if link.transmit:
                    yield (worker.transmit, (number,))
                if link.leaving:
                    yield (server.leave, (worker.rank,))
                if link.down:
                    yield (worker.heard, (number,))
                if link.receive and not link.held:
                    yield (self.piece, at)
                elif link.up and not link.receive:
                    yield (self.message, at)

    def message(self, rank: int, server: int) -> None:
        data, payload = self.link(rank, server).up.popleft()
        self.servers[server].heard(rank, data, payload, self.chance.random() < 0.5)

    def piece(self, rank: int, server: int) -> None:
        left = len(self.link(rank, server).payload)
        self.servers[server].arrived(rank, self.chance.choice((left, min(left, 64), self.chance.randint(1, left))))

    def connect(self, rank: int, server: int) -> None:
        self.down.discard((rank, server))
        self.servers[server].links[rank] = Link()
        self.servers[server].do(s.Joined(rank, self.workers[rank].incarnation))
        self.workers[rank].do(c.Connected(server))

    def lose(self, rank: int, server: int) -> None:
        """A connection breaks. The server may learn of it late: when the rank comes back."""
        self.losses += 1
        self.down.add((rank, server))
        self.servers[server].links[rank] = Link(dead=True)
        if self.chance.random() < 0.5:
            self.servers[server].do(s.Left(rank, "the cable was cut"))
        self.workers[rank].do(c.Lost(server, "the cable was cut"))

    def restart(self, worker: Worker) -> None:
        self.losses += 1
        for number, server in enumerate(self.servers):
            self.down.add((worker.rank, number))
            server.links[worker.rank] = Link(dead=True)
            server.do(s.Left(worker.rank, "killed"))
        worker.restart()

    def goodbye(self, worker: Worker) -> None:
        worker.left = True
        for server in self.servers:
            server.do(s.Left(worker.rank, "", orderly=True))

    def run(self) -> None:
        """Until nothing can happen any more."""
        for _ in range(200_000):
            if self.trouble and self.losses < 12 and self.chance.randrange(1000) < self.trouble:
                self._trouble()
            choices = list(self.possible())
            if not choices:
                held = [link for server in self.servers for link in server.links.values() if link.held]
                if not held:
                    return
                self.chance.choice(held).held = False  # there is nothing else to do
                continue
            call, arguments = self.chance.choice(choices)
            call(*arguments)
        raise AssertionError("it never ends")

    def _trouble(self) -> None:
        worker = self.chance.choice([w for w in self.workers if not w.left] or self.workers)
        if worker.left:
            return
        if self.restarts and self.chance.random() < 0.3:
            self.restart(worker)
        else:
            at = (worker.rank, self.chance.randrange(self.job.servers))
            if at not in self.down:
                self.lose(*at)

    def value(self, key: str) -> Array:
        """What the servers hold now."""
        whole = np.empty_like(self.job.initial[key])
        data = whole.view(np.uint8).reshape(-1)
        for server in self.servers:
            for number, shard in server.keys.items():
                if shard.name == key:
                    data[shard.lo : shard.hi] = server.value[number]
        return whole
