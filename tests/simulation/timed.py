"""Steps of a job in virtual time: links that take as long as their bytes, and processors that are busy meanwhile.

The drivers are the product's, over the network of the other simulations. What is different: a byte here stands for
`SCALE` bytes, so that hundreds of workers fit into one process; machines have links of some rate and latency and some
processors, which copy and sum so many bytes a second; a computation is a wait. Nothing happens by chance.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import mean
from types import SimpleNamespace
from typing import Any

import numpy as np

from mezzo.kvstore import agent, dist, link, loop, member, packed_values, scheduler, server, uplink, wire
from mezzo.kvstore.environment import Environment
from mezzo.kvstore.host import values
from mezzo.kvstore.levels import Levels
from mezzo.kvstore.packing import Packings
from mezzo.kvstore.protocol import client
from mezzo.kvstore.ticket import Ticket

from . import hosts, streams, world
from .install import KEYWORDS, installed
from .jobs import NO_CHILD
from .network import End, Network, Parcel
from .plans import Plan
from .scripts import ROOT
from .streams import SimEpoll, SimStream
from .world import Process, World, one_core

SCALE = 1024  # bytes that a byte stands for
FRAME, SPLIT, SMALL, ALONE, WHOLE = 1024, 256, 64, 1024, 64  # the product's, by SCALE
ROOM = 4 << 10  # of a connection's buffers: the kernel's grow to 4 MB
LONG = 1e5  # seconds: no deadline passes
LEVELS = "sequential/sequential"


@dataclass(frozen=True)
class Machines:
    """What machines can do, in real bytes. `copies` and `sums` are bytes that a processor moves by a connection or sums
    in a second, `message` seconds of a processor for a message; several machines may be one (`apart=False`), whose
    `cores` they share."""

    link: float  # bytes a second, each way
    latency: float
    cores: int
    copies: float
    sums: float
    message: float
    apart: bool = True


@dataclass(frozen=True)
class Layout:
    """A job: hosts with workers, servers (on machines of their own), keys of so many real bytes each that become final
    one after the other while a step computes, and whether they travel meanwhile; on one level each worker speaks for
    itself."""

    hosts: int
    workers: int  # of each host
    servers: int
    keys: tuple[int, ...]
    computes: float
    overlap: bool = True
    levels: int = 2
    compression: str = ""
    steps: int = 3


class Machine:
    """Links and processors: until when each is busy."""

    def __init__(self, about: Machines) -> None:
        self.out = self.into = 0.0
        self.cores = [0.0] * about.cores

    def begins(self, now: float, seconds: float) -> float:
        """Take the processor that is free first; when it is done."""
        at = min(range(len(self.cores)), key=self.cores.__getitem__)
        self.cores[at] = max(now, self.cores[at]) + seconds
        return self.cores[at]


class TimedWorld(World):
    """A world without chance."""

    def __init__(self, machines: Machines) -> None:
        super().__init__(0)
        self.chance = SimpleNamespace(random=lambda: 0.5, randrange=lambda a, b=0: a)  # type: ignore[assignment]
        self.about, self._machines = machines, dict[str, Machine]()
        self.alarms: dict[Process, float] = {}  # when its computation ends

    def machine(self, name: str) -> Machine:
        """The machine of a process: by its name before a point or, where they are not apart, one for all."""
        name = name.partition(".")[0] if self.about.apart else ""
        if name not in self._machines:
            self._machines[name] = Machine(self.about)
        return self._machines[name]

    def busy(self, seconds: float) -> None:
        """The process that has the turn computes for so long, when a processor is free."""
        process = self.current
        self.rest(self.machine(process.machine).begins(self.now, seconds) - self.now)

    def rest(self, seconds: float) -> None:
        """The process that has the turn waits, whatever comes meanwhile."""
        process, end = self.current, self.now + seconds
        while self.now < end - 1e-12:
            process.wait(end - self.now)


class TimedNetwork(Network):
    """Links between machines."""

    world: TimedWorld

    def delay(self, end: End) -> float:
        return self.latency

    def due(self, end: End, nbytes: int) -> float:
        """When a message of so many bytes that leaves now has arrived."""
        w, about = self.world, self.world.about
        mine, theirs = w.machine(end.process.machine), w.machine(end.other.process.machine)
        if mine is theirs:
            return w.now + self.latency
        seconds = nbytes * SCALE / about.link
        begins = max(w.now, mine.out)
        mine.out = begins + seconds
        theirs.into = max(begins + self.latency, theirs.into) + seconds
        return theirs.into

    def pair(self, one: Process, two: Process) -> tuple[End, End]:
        a, b = TimedEnd(self, one, self.world.number()), TimedEnd(self, two, self.world.number())
        a.other, b.other = b, a
        return a, b


class TimedEnd(End):
    """An end of a connection whose bytes take their time."""

    network: TimedNetwork

    def send(self, head: bytes, payload: bytes = b"") -> None:
        about = self.network.world.about
        self.network.world.busy(about.message + len(payload) * SCALE / about.copies)
        super().send(head, payload)

    def _carry(self, parcel: Parcel) -> None:
        w = self.network.world
        self.due = max(self.due, self.network.due(self, len(parcel.payload)))
        w.after(self.due - w.now, partial(self.network.arrive, self, parcel))


class TimedEpoll(SimEpoll):
    """An epoll that looks up when a computation ends."""

    def poll(self, timeout: float | None = None) -> list[tuple[int, int]]:
        alarm = self._world.alarms.get(self._process)  # type: ignore[attr-defined]
        if alarm is not None:
            left = max(0.0, alarm - self._world.now)
            timeout = left if timeout is None else min(timeout, left)
        return super().poll(timeout)


class TimedStream(SimStream):
    """A stream whose messages are read by a processor."""

    def _give(self, frame: Any, payload: memoryview) -> None:
        w: TimedWorld = self._world  # type: ignore[assignment]
        seconds = w.about.message + len(payload) * SCALE / w.about.copies
        if w.current.name.startswith("server") and frame.header.length:  # which adds what it reads
            seconds += len(payload) * SCALE / w.about.sums
        w.busy(seconds)
        super()._give(frame, payload)


@dataclass
class TimedJob:
    """The processes of a layout, and the seconds of each step of each worker."""

    layout: Layout
    world: TimedWorld
    steps: list[float] = field(default_factory=list[float])
    agents: list[Process] = field(default_factory=list[Process])

    def environment(self, role: Any, rank: int | None = None, host: str = "root") -> Environment:
        one = self.layout
        made = Environment("scheduler", ROOT, one.hosts * one.workers, one.servers, "root", deadline=LONG)
        return made.as_role(role, rank, host) if role != "scheduler" else made

    def start(self) -> None:
        w, one = self.world, self.layout
        w.start("scheduler", "root", partial(scheduler.serve, self.environment("scheduler")))
        for number in range(one.servers):
            w.start(
                f"server {number}",
                f"s{number}",
                partial(server.serve, self.environment("server", number, f"s{number}")),
            )
        for number in range(one.hosts * one.workers):
            host = f"h{number // one.workers}" + (f".{number % one.workers}" if one.levels == 1 else "")
            w.start(f"worker {number}", host, partial(self._work, self.environment("worker", number, host)))

    def start_agent(self, environment: Environment, place: agent.ServedHost) -> int:
        starter = self.world.current
        main = partial(agent.serve, environment, place, lambda: starter.over)
        self.agents.append(self.world.start(f"agent of {environment.host}", environment.host, main))
        return NO_CHILD + len(self.agents) - 1

    def agent_ended(self, number: int) -> bool:
        return self.agents[number - NO_CHILD].over

    def _work(self, environment: Environment) -> None:
        one, w = self.layout, self.world
        store = dist.open_dist("dist_sync", environment, Levels.parse(LEVELS))
        if one.compression:
            store.set_compression(Packings.of({one.compression: 0}))
        names = [f"k{number}" for number in range(len(one.keys))]
        values = [np.ones(max(1, nbytes // SCALE // 4), np.float32) for nbytes in one.keys]
        for name, value in zip(names, values, strict=True):
            store.init(name, value)
            store.pull(name, [value], 0).wait()
        for _ in range(one.steps):
            store.barrier()
            begun, moved = w.now, store.group.moved
            starts = list[Callable[[], Ticket]]()
            tickets = list[Ticket]()
            for name, value in zip(names, values, strict=True):
                self._computes(store, one.computes / len(names))
                start = partial(store.pushpull, name, [value], [value], 0)
                if one.overlap:
                    tickets.append(start())
                else:
                    starts.append(start)
            for ticket in [*tickets, *(start() for start in starts)]:
                ticket.wait()
            w.busy((store.group.moved - moved) * SCALE / w.about.sums)
            self.steps.append(w.now - begun)
        store.close()

    def _computes(self, store: Any, seconds: float) -> None:
        """Compute; where gradients travel meanwhile, a thread of the engine drives."""
        if not self.layout.overlap:
            self.world.rest(seconds)
            return
        process, end = self.world.current, self.world.now + seconds
        self.world.alarms[process] = end
        store.group.wait(lambda: self.world.now >= end - 1e-12, "computing")
        del self.world.alarms[process]


@contextmanager
def scaled(w: TimedWorld, network: TimedNetwork, job: TimedJob) -> Iterator[None]:
    """The drivers over this world, with the sizes of the product by SCALE."""
    plan = replace(PLAN, latency=w.about.latency)
    product = {"Uplink": uplink.Uplink, "Server": server.Server}
    with installed(w, network, plan, job.start_agent, job.agent_ended):
        replaced: list[tuple[Any, str, Any]] = [
            *((module, "Stream", TimedStream) for module in (member, scheduler, server, uplink)),
            (loop, "select", SimpleNamespace(epoll=partial(TimedEpoll, w))), (hosts, "SimEpoll", TimedEpoll),
            (streams, "ROOM", ROOM), (world, "MOST", 1 << 40), (link, "Uplink", product["Uplink"]),
            (server, "Server", product["Server"]), (link, "SMALL", SMALL), (link, "ALONE", ALONE),
            (values, "WHOLE", WHOLE), (wire, "FRAME", FRAME), (packed_values, "FRAME", FRAME),
            (client, "LENT", 16 * FRAME),
            (client.Client.__init__, "__kwdefaults__", {**KEYWORDS, "frame": FRAME, "split": SPLIT}),
        ]  # fmt: skip
        before = [getattr(owner, name) for owner, name, _ in replaced]
        for owner, name, value in replaced:
            setattr(owner, name, value)
        try:
            yield
        finally:
            for (owner, name, _), value in zip(replaced, before, strict=True):
                setattr(owner, name, value)


PLAN = Plan(0, LEVELS, (), (), (), LONG, 0.0, 1.0, False, "none", "worker", 0, 0.0, 0.0, False)


def step_of(layout: Layout, machines: Machines) -> float:
    """The mean step of a layout in seconds, without its first one. Raises AssertionError where it does not end well."""
    w = TimedWorld(machines)
    job = TimedJob(layout, w)
    before = sys.getswitchinterval()
    sys.setswitchinterval(10.0)
    try:
        with one_core(), scaled(w, TimedNetwork(w, machines.latency, 1.0), job):
            try:
                job.start()
                w.run(LONG)
            finally:
                w.clear()
    finally:
        sys.setswitchinterval(before)
    ranks = layout.hosts * layout.workers
    assert not w.violations, w.violations
    errors = [f"{p.name}: {p.error}" for p in w.processes if p.error]
    assert len(job.steps) == ranks * layout.steps, errors or w.trace[-20:]
    return mean(job.steps[ranks:])
