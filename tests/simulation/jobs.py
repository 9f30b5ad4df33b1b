"""A run of a job: its processes, what goes wrong, and what has come of it."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from mezzo.kvstore import agent, scheduler, server
from mezzo.kvstore.environment import Environment
from mezzo.ops.errors import MezzoError

from .checks import check
from .faults import Fate, begin
from .install import installed
from .network import Network
from .plans import Plan, plan
from .scripts import ROOT, Shared, Worker
from .world import Process, World, one_core

LAST_WORDS = 40.0  # seconds of virtual time, beside some deadlines, after which a process hangs
NO_CHILD = 1 << 30  # no process of the system has this number, or a greater one


@dataclass
class Job:
    """Everything about a run."""

    plan: Plan
    world: World
    network: Network
    shared: Shared
    workers: dict[Process, Worker] = field(default_factory=dict[Process, Worker])
    servers: list[Process] = field(default_factory=list[Process])
    agents: list[Process] = field(default_factory=list[Process])
    schedulers: list[Process] = field(default_factory=list[Process])
    fate: Fate = field(default_factory=lambda: Fate())
    starts: Counter[int] = field(default_factory=Counter[int])  # of each server

    def start(self) -> None:
        plan, world = self.plan, self.world
        made = Environment(
            "scheduler", ROOT, len(plan.workers), len(plan.servers), "root", deadline=plan.deadline, grace=plan.grace,
            rejoin=plan.rejoin,
        )  # fmt: skip
        self.environment = made
        leads = self._told(made, plan.role == "scheduler")
        self.schedulers.append(world.start("scheduler", "root", lambda: scheduler.serve(leads)))
        for number, machine in enumerate(plan.servers):
            self.start_server(number, machine, world.chance.random() * 0.01)
        workers = list(enumerate(plan.workers))
        victim = plan.victim % len(workers)
        if plan.fault == "few":
            del workers[victim]
        elif plan.fault == "many":
            workers.append((len(workers), replace(plan.workers[victim], hint=None)))
        for number, mine in workers:
            kind = ""
            if plan.fault == "kinds" and number == victim:
                kind = "eventual/eventual" if plan.sequential else "sequential/sequential"
            worker = Worker(world, self.shared, number, mine, kind)
            if plan.fault == "shapes" and number == victim:
                first, *others = plan.keys
                worker.keys = (replace(first, size=first.size + 1), *others)
            if plan.fault == "busy" and number == victim:
                worker.busy = 3 * plan.deadline
            worker.told = plan.told(plan.role == "worker" and number == victim)
            process = world.start(f"worker {number} on {mine.host}", mine.host, worker.main, mine.delay)
            self.workers[process] = worker

    def _told(self, environment: Environment, victim: bool) -> Environment:
        """The environment of a process that may have been told of other numbers."""
        workers, servers = self.plan.told(victim)
        return replace(environment, workers=workers, servers=servers)

    def replace_worker(self, victim: Process) -> None:
        """Start another worker in the place of one that has died."""
        former = self.workers[victim]
        hint = former.rank if former.rank >= 0 else former.mine.hint
        worker = Worker(self.world, self.shared, former.number, replace(former.mine, hint=hint))
        worker.incarnation = former.incarnation + 1
        name = f"worker {former.number} ({worker.incarnation}) on {victim.machine}"
        self.workers[self.world.start(name, victim.machine, worker.main)] = worker

    def start_server(self, number: int, machine: str, delay: float = 0.0) -> None:
        """Start a server, for the first time or again."""
        back = self.plan.fault == "back"
        serves = self.environment.as_role("server", number if back else None, machine)
        serves = self._told(serves, self.plan.role == "server" and number == self.plan.victim % len(self.plan.servers))
        self.starts[number] += 1
        if back:
            serves = replace(serves, kept=number, incarnation=self.starts[number] - 1)
        process = self.world.start(f"server {number}", machine, partial(_serve, serves), delay)
        self.servers[number:] = [process, *self.servers[number + 1 :]]

    def start_agent(self, environment: Environment, place: agent.ServedHost) -> int:
        name = f"agent of {environment.host}"
        starter = self.world.current
        main = partial(agent.serve, environment, place, lambda: starter.over)
        process = self.world.start(name, environment.host, main, self.world.chance.random() * 0.01)
        self.agents.append(process)
        return NO_CHILD + len(self.agents) - 1

    def agent_ended(self, number: int) -> bool:
        return self.agents[number - NO_CHILD].over


def _serve(environment: Environment) -> None:
    server.serve(environment)


@dataclass(frozen=True)
class Result:
    """What has come of a seed."""

    seed: int
    violations: tuple[str, ...]
    trace: tuple[str, ...]
    fault: str
    errors: tuple[str, ...]
    seconds: float  # of virtual time
    events: int

    @property
    def command(self) -> str:
        return f"python -m tests.simulation --seed {self.seed} --trace"

    def __str__(self) -> str:
        return "\n".join([*self.violations, f"{self.command}    # replays seed {self.seed}, {self.fault}"])


def simulate(seed: int) -> Result:
    """Run the job of a seed."""
    made = plan(seed)
    world = World(seed)
    job = Job(made, world, network := Network(world, made.latency, made.tail), Shared(made))
    world.trace.append(str(made))
    before = sys.getswitchinterval()
    sys.setswitchinterval(10.0)  # threads give the turn themselves
    try:
        with one_core(), np.errstate(all="ignore"), installed(world, network, made, job.start_agent, job.agent_ended):
            try:
                job.start()
                begin(job)
                world.run(LAST_WORDS + 8 * made.deadline)
                if not world.violations:
                    check(job)
            finally:
                world.clear()
    finally:
        sys.setswitchinterval(before)
    errors = tuple(f"{p.name}: {p.error.message}" for p in world.processes if isinstance(p.error, MezzoError))
    return Result(seed, tuple(world.violations), tuple(world.trace), made.fault, errors, world.now, world.events)
