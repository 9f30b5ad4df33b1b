"""The job of a seed: who takes part, what each worker does, and what goes wrong."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal

FRAME, SPLIT = 128, 160  # bytes of a frame, and from where on a key is split over servers
Fault = Literal[
    "none", "slow", "return", "restart", "cut", "part", "heal", "freeze", "pause", "busy", "kill", "few", "many",
    "uneven", "shapes", "kinds", "back", "rejoin",
    "counts",
]  # fmt: skip
Role = Literal["worker", "server", "agent", "scheduler"]
HARMLESS = ("none", "slow", "return", "restart", "heal", "pause", "back")  # after which everybody must succeed
DTYPES = ("float32", "float32", "float64", "float16")


@dataclass(frozen=True)
class KeyPlan:
    """A key, and how its workers go about it."""

    name: str
    size: int
    dtype: str


@dataclass(frozen=True)
class Step:
    """What a worker does with a key in a round."""

    key: int
    how: Literal["push", "pushpull", "push and pull"]
    priority: int
    shared: bool  # the array pushed lies in memory of the store


@dataclass(frozen=True)
class WorkerPlan:
    """A worker: `rounds` of steps, which it waits for one by one or all together."""

    host: str
    hint: int | None
    rounds: tuple[tuple[Step, ...], ...]
    one_by_one: bool
    delay: float  # until it starts
    pause: float  # between its rounds, at most


@dataclass(frozen=True)
class Plan:
    """A job. `victim` is the process that `fault` is about, as an index into the kind `role` of processes."""

    seed: int
    levels: str
    servers: tuple[str, ...]  # their machines
    workers: tuple[WorkerPlan, ...]
    keys: tuple[KeyPlan, ...]
    deadline: float
    latency: float
    tail: float
    barriers: bool
    fault: Fault
    role: Role
    victim: int
    at: float  # seconds from the start
    lasts: float
    learns: bool  # servers step the values by an optimizer
    more: tuple[int, int] = (0, 0)  # how many more workers and servers than there are the victim was told of

    def told(self, victim: bool) -> tuple[int, int]:
        """The numbers of workers and servers that a process was told of."""
        workers, servers = self.more if victim else (0, 0)
        return len(self.workers) + workers, len(self.servers) + servers

    @property
    def grace(self) -> float:
        """Seconds for which a connection to a server may be lost."""
        return 1e6 if self.fault in ("return", "restart", "back") else 0.0

    @property
    def rejoin(self) -> float:
        """Seconds in which a job gathers again when a worker has died."""
        return 4 * self.deadline if self.fault == "rejoin" else 0.0

    @property
    def comes_back(self) -> bool:
        """True if connections are opened again that were lost while both ends live."""
        return self.fault in ("return", "restart")

    @property
    def sequential(self) -> bool:
        return self.levels == "sequential/sequential"

    @property
    def inside_sums(self) -> bool:
        return self.levels.startswith("sequential/")

    @property
    def hosts(self) -> tuple[str, ...]:
        return tuple(sorted({worker.host for worker in self.workers}))

    def __str__(self) -> str:
        lines = [f"seed {self.seed}: {self.levels}, deadline {self.deadline:g} s, latency {self.latency:g} s"]
        keys = ", ".join(f"{key.name} {key.dtype}[{key.size}]" for key in self.keys)
        lines += [f"servers on {', '.join(self.servers) or 'no machine'}; keys {keys}"]
        rounds = ", ".join(f"{worker.host} ({len(worker.rounds)})" for worker in self.workers)
        lines += [f"workers and their rounds on {rounds}"]
        return "\n".join(
            [*lines, f"fault: {self.fault} of {self.role} {self.victim} at {self.at:.4f} s for {self.lasts:.4f} s"]
        )


def plan(seed: int) -> Plan:
    """The job of a seed."""
    draw = random.Random(seed * 7919 + 1)
    servers = draw.choice((0, 1, 1, 1, 2, 2, 3))
    staleness = draw.randrange(3)
    loose = draw.choice(("eventual", f"bounded {staleness}"))
    levels = draw.choice(("sequential/sequential",) * 4 + (f"{loose}/{loose}", f"sequential/{loose}"))
    if not servers:
        levels = levels.partition("/")[0] + "/" + levels.partition("/")[0]
    hosts = 1 if not servers else draw.choice((1, 1, 2, 2, 3))
    counts = [draw.choice((1, 1, 2, 2, 3)) for _ in range(hosts)]
    while sum(counts) > 4:
        counts[counts.index(max(counts))] -= 1
    fault: Fault = draw.choice(
        ("none",) * 3 + ("slow",) * 2 + ("return",) * 4 + ("restart",) * 2 + ("cut", "part", "heal", "pause")
        + ("freeze",) * 3 + ("busy",) + ("kill",) * 3 + ("few", "many", "uneven", "shapes", "kinds")
    )  # fmt: skip
    if fault in ("return", "restart", "cut") and not servers:
        fault = "none"
    if fault in ("uneven", "kinds", "busy", "shapes") and sum(counts) < 2:
        counts[0] = 2
    if fault in ("part", "heal") and not servers:
        fault = "kill"
    later = random.Random(seed * 7919 + 2)  # what is drawn since, so that older seeds stay what they were
    if servers and fault in ("none", "slow", "return") and later.random() < 0.5:
        fault = "back"
    newest = random.Random(seed * 7919 + 3)
    if levels == "sequential/sequential" and fault in ("none", "slow", "kill", "back") and newest.random() < 0.4:
        fault = "rejoin"
    miscount = random.Random(seed * 7919 + 4)
    if fault in ("few", "many") and miscount.random() < 0.5:
        fault = "counts"
    keys = tuple(_key(draw, name) for name in "abc"[: draw.choice((1, 1, 2, 2, 3))])
    rounds = draw.choice((1, 2, 2, 3) if len(keys) < 3 else (1, 2))
    ordered = draw.random() < 0.3  # all workers go by one order, and wait for each key before the next
    order = [*range(len(keys))]
    workers = []
    where = [chr(97 + host) for host, count in enumerate(counts) for _ in range(count)]
    hints: list[int | None] = [None] * len(where)
    if draw.random() < 0.3:
        hints = list(range(len(where)))
        draw.shuffle(hints)
    for number, host in enumerate(where):
        mine = rounds
        if fault == "uneven":
            mine = rounds + (number % 2)
        steps = []
        for _ in range(mine):
            if not ordered:
                draw.shuffle(order)
            steps.append(tuple(_step(draw, key) for key in order))
        pause = draw.choice((0.0, 0.0, 0.01))
        if fault == "rejoin":  # so long that it has begun, and has not ended, when one dies
            steps, pause = steps * 3, 0.01
        workers.append(WorkerPlan(host, hints[number], tuple(steps), ordered, draw.random() * 0.02, pause))
    role: Role = draw.choice(("worker", "worker", "server", "agent", "scheduler"))
    if (role == "server" and not servers) or (role == "agent" and not (servers and levels.startswith("sequential/"))):
        role = "worker"
    if fault in ("busy", "shapes", "kinds", "few", "many", "uneven"):
        role = "worker"
    more = (0, 0)
    if fault == "counts":
        role = miscount.choice(("worker", "scheduler", *(("server",) if servers else ())))
        fewer = (-1, 0) if len(where) > 1 else (1, 1)
        more = miscount.choice(((1, 0), (0, 1), fewer, (0, -1) if servers else (0, 1)))
    machines = tuple(draw.choice((f"s{n}", chr(97 + n % hosts))) for n in range(servers))
    deadline = draw.choice((1.0,) * 5 + (1.5,) * 4 + (12.0,))
    latency = draw.choice((1e-4, 5e-4, 2e-3)) * (5 if fault == "slow" else 1)
    tail = draw.choice((1.0, 5.0, 10.0)) if fault != "slow" else 3.0
    lasts = draw.random() * deadline * 0.3
    if fault not in ("pause", "heal"):
        lasts = 1e6 if draw.random() < 0.8 else deadline * 4
    return Plan(
        seed, levels, machines, tuple(workers), keys, deadline, latency, tail,
        barriers=draw.random() < 0.5, fault=fault, role=role, victim=draw.randrange(100),
        at=draw.random() ** 2 * 0.15, lasts=lasts,
        learns=fault == "back" and levels == "sequential/sequential" and later.random() < 0.5, more=more,
    )  # fmt: skip


def _key(draw: random.Random, name: str) -> KeyPlan:
    return KeyPlan(name, draw.choice((1, 3, 9, 17, 33, 50, 70)), draw.choice(DTYPES))


def _step(draw: random.Random, key: int) -> Step:
    how: Literal["push", "pushpull", "push and pull"] = draw.choice(("push", "pushpull", "pushpull", "push and pull"))
    return Step(key, how, draw.randrange(-1, 3), draw.random() < 0.3)
