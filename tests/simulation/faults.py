"""What goes wrong in a job, when, and who is to be named for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from .plans import HARMLESS
from .world import Process

if TYPE_CHECKING:
    from .jobs import Job

Name = tuple[str, str]  # a role and a number, or "host" and its name


@dataclass
class Fate:
    """What has gone wrong."""

    harmless: bool = True  # everybody must succeed
    victims: list[Process] = field(default_factory=list[Process])
    names: set[Name] = field(default_factory=set[Name])  # who may be named; empty: anybody
    text: str = ""  # what every error says
    late: bool = False  # one died when another may have ended already


def begin(job: Job) -> None:
    """Have the fault of a plan happen in time."""
    plan, fate = job.plan, job.fate
    fate.harmless = plan.fault in HARMLESS
    match plan.fault:
        case "return" | "restart":
            for _ in range(job.world.chance.randrange(1, 6)):
                job.world.after(job.world.chance.random() ** 2 * 0.2, partial(_cut_one, job, plan.fault == "restart"))
        case "cut":
            job.world.after(plan.at, partial(_cut, job))
        case "part" | "heal":
            job.world.after(plan.at, partial(_part, job))
        case "freeze" | "pause" | "kill":
            job.world.after(plan.at, partial(_stop, job))
        case "back":
            for _ in range(job.world.chance.randrange(1, 4)):
                job.world.after(job.world.chance.random() ** 2 * 0.2, partial(_kill_one, job))
        case "rejoin":
            for _ in range(job.world.chance.randrange(1, 4)):
                job.world.after(0.02 + job.world.chance.random() ** 2 * 0.08, partial(_lose_one, job))
        case "few":
            fate.text = "not all have come within"
        case "kinds":
            fate.text = "disagree about the kind of the store"
        case "counts":
            fate.text = "was told of"
        case "busy" | "shapes":
            _blame(job, list(job.workers)[plan.victim % len(job.workers)])
        case "uneven":
            _uneven(job)


def _blame(job: Job, victim: Process) -> None:
    """This process is the culprit."""
    job.fate.victims.append(victim)


def names_of(job: Job, victim: Process) -> set[Name]:
    """What a process may be called."""
    if victim in job.workers:
        rank = job.workers[victim].rank
        return {("rank", str(rank)), ("host", victim.machine)} if rank >= 0 else set()
    if victim in job.agents:
        return {("agent", ""), ("host", victim.machine)}
    if victim in job.servers:
        ranks = {("server", str(number)) for number in range(len(job.servers))}  # in the order of their arrival
        return ranks | {("host", victim.machine)}
    return {("scheduler", "")}


def _chosen(job: Job) -> list[Process]:
    """The processes of the kind that the fault is about."""
    role = job.plan.role
    found = {"worker": list(job.workers), "server": job.servers, "agent": job.agents, "scheduler": job.schedulers}[role]
    return found or list(job.workers)


def _stop(job: Job) -> None:
    plan, processes = job.plan, _chosen(job)
    victim = processes[plan.victim % len(processes)]
    if victim.over:
        return
    if plan.fault == "kill":
        job.world.note(f"{victim.name} is killed")
        victim.kill()
    else:
        victim.freeze(plan.lasts)
    if plan.fault != "pause":
        _blame(job, victim)


def _cut_one(job: Job, restart: bool) -> None:
    """Cut a connection to a server, which is opened again; or start a worker again."""
    speakers = [p for p in [*job.workers, *job.agents] if not p.over and hasattr(p, "uplink")]
    if not speakers:
        return
    process = job.world.chance.choice(speakers)
    uplink = process.uplink
    if uplink._closing:
        return
    if restart and job.world.chance.random() < 0.6:
        process.errands.append(lambda: None if uplink._closing else uplink.restart())
        process.poke()
        return
    stream = job.world.chance.choice([*uplink._streams.values(), None])
    if stream is None:
        return
    if not stream.closed and not stream.end.cut:
        job.network.cut(stream.end, 0.01)


def _kill_one(job: Job) -> None:
    """Kill a server, now or when it writes to the memory that outlives it; it is started again."""
    chance = job.world.chance
    number = chance.randrange(len(job.servers))
    victim = job.servers[number]
    if victim.over or victim.fuse or all(process.over for process in job.workers):
        return
    victim.closings.append(partial(_start_again, job, victim, number))
    if chance.random() < 0.4:
        job.world.note(f"{victim.name} is killed")
        victim.kill()
    else:
        victim.fuse = chance.randrange(1, 9)


def _start_again(job: Job, victim: Process, number: int) -> None:
    if victim.dead:
        job.world.after(0.001 + job.world.chance.random() * 0.02, partial(job.start_server, number, victim.machine))


def _lose_one(job: Job) -> None:
    """Kill a worker, in whose place another one comes, or an agent, in whose place the workers start one."""
    chance = job.world.chance
    if any(worker.finished for worker in job.workers.values()):
        return  # who has left is missed when the job gathers again
    agents = [process for process in job.agents if hasattr(process, "uplink")]
    those = [process for process in (*job.workers, *agents) if not process.over]
    if not those:
        return  # their successors have not started yet
    victim = chance.choice(those)
    job.world.note(f"{victim.name} is killed")
    victim.kill()
    worker = job.workers.get(victim)
    if worker is None or worker.rounds == len(worker.mine.rounds):
        job.fate.late = True
    if worker is not None:
        job.world.after(0.001 + chance.random() * 0.05, partial(job.replace_worker, victim))


def _cut(job: Job) -> None:
    """Cut any connection."""
    pairs = [a for a, b in job.network.pairs if not (a.closed or b.closed)]
    if pairs:
        end = job.world.chance.choice(pairs)
        job.network.cut(end, 0.5)
        _blame(job, end.process)
        _blame(job, end.other.process)


def _part(job: Job) -> None:
    """Part some machines from the others."""
    machines = sorted({p.machine for p in job.world.processes})
    if len(machines) < 2:
        return
    count = job.world.chance.randrange(1, len(machines))
    job.network.part(frozenset(job.world.chance.sample(machines, count)))
    if job.plan.fault == "heal":
        job.world.after(job.plan.lasts, job.network.heal)


def _uneven(job: Job) -> None:
    """Workers that make fewer rounds than others are missed where somebody sums with them."""
    rounds = [len(worker.rounds) for worker in job.plan.workers]
    for process, worker in job.workers.items():
        if len(worker.mine.rounds) == min(rounds):
            _blame(job, process)
    if not job.plan.inside_sums:
        job.fate.harmless = True
    elif not job.plan.sequential:
        by_host = {host: {len(w.rounds) for w in job.plan.workers if w.host == host} for host in job.plan.hosts}
        job.fate.harmless = all(len(counts) == 1 for counts in by_host.values())
