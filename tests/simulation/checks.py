"""What must hold when a job has ended: nobody hangs, nobody fails without a cause, and the culprit is named."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from mezzo.kvstore.scheduler import LATE

from .faults import Name, names_of
from .world import Process

if TYPE_CHECKING:
    from .jobs import Job

RANKS = re.compile(r"\b(?:ranks?|workers?) (\d+(?:, \d+)*)")
HOSTS = re.compile(r"\bhost '(\w+)'")
SERVERS = re.compile(r"\bserver (\d+)")


WHO = (
    r"(?:host '\w+' \(ranks? [\d, ]+\)|(?:rank|worker|server|agent) \d+(?: on host '\w+'| on \w+)?"
    r"|the agent of (?:this host|host '\w+'|\w+))"
)
LINK = re.compile(rf"{WHO} (?:is lost|failed|ended with code \d+): (?:{WHO}: )?(?:\w+Error: )?(?:\w+, rank \d+: )?")
BARRIER = re.compile(r"barrier '\w+' waits for ranks? ([\d, ]+) since")
BARE = ("Connection reset by peer", "it closed the connection")


def cause(text: str) -> str:
    """The end of a chain of errors that passed from one process to another."""
    while (link := LINK.match(text)) and not text[link.end() :].startswith(BARE):
        text = text[link.end() :]
    return text


def named(text: str) -> set[Name]:
    """Who is named in an error."""
    text = cause(text).partition(" is lost")[0]
    found = {("rank", number) for list in RANKS.findall(text) for number in list.split(", ")}
    found |= {("host", host) for host in HOSTS.findall(text)}
    found |= {("server", number) for number in SERVERS.findall(text)}
    return found | {(role, "") for role in ("agent", "scheduler") if f"the {role}" in text}


def check(job: Job) -> None:
    """Note what does not hold."""
    world, plan, fate = job.world, job.plan, job.fate
    still = [process for process in job.workers if process.frozen]
    for process in world.processes:
        serves_it = still and process not in job.workers and all(w.error is None for w in job.workers)
        unheard = plan.fault == "part" and process not in job.workers  # workers send no heartbeats
        if not (process.over or process.frozen or serves_it or unheard):
            world.violate(f"{process.name} hangs")
    if world.violations:
        return
    failed = [process for process in world.processes if process.error is not None]
    if plan.fault == "rejoin":
        _gathered(job, failed)
        return
    if fate.harmless:
        for process in failed:
            back = plan.fault == "back" and process in job.servers
            over = any(text in str(process.error) for text in ("nobody listens", "the job has ended"))
            late = (process in job.agents or back) and over  # all had ended
            if not late:
                world.violate(f"{process.name} fails for nothing: {process.error}")
        return
    if plan.fault == "many":
        _one_too_many(job, failed)
        return
    if plan.fault == "counts":
        _miscounted(job)
        return
    workers = [process.name for process in failed if process in job.workers]
    (scheduler,) = job.schedulers
    if workers and plan.fault not in ("part", "cut") and scheduler not in fate.victims and scheduler.error is None:
        world.violate(f"the scheduler ends well, and {', '.join(workers)} with errors")
    culprits: set[Name] = set()
    for victim in fate.victims:
        names = names_of(job, victim)
        if not names:
            return  # it was nobody yet
        culprits |= names
    if any(victim in job.schedulers for victim in fate.victims):  # who stands at a barrier is late because of it
        standing = [process for process, worker in job.workers.items() if worker.stands]
        culprits.update(*(names_of(job, process) for process in standing))
    for process in failed:
        assert process.error is not None
        text = process.error.message
        if (at := BARRIER.search(text)) and _absent(job, at[1]):
            continue  # it is the scheduler's, who cannot know what keeps them
        if fate.text and fate.text not in text and "nobody listens" not in text:
            world.violate(f"{process.name} says {text!r}, and not that {fate.text!r}")
        if text.startswith("not all have come"):
            continue  # it tells who has
        names = named(text)
        if culprits and names and not names & culprits and process not in fate.victims:
            world.violate(f"{process.name} says {text!r}, and the culprit is {_known(fate.victims)}")


def _gathered(job: Job, failed: list[Process]) -> None:
    """All end well, but agents of gatherings that were over; unless one may have left already when another died."""
    if job.fate.late and any(worker.finished for worker in job.workers.values()):
        return
    for process in failed:
        if process not in job.agents:
            job.world.violate(f"{process.name} fails for nothing: {process.error}")
    if not any(worker.finished for process, worker in job.workers.items() if process.error is None):
        job.world.violate("nobody has ended well")


def _miscounted(job: Job) -> None:
    """All end at once, and each hears of both sides; the scheduler waits for those that it does not know to be none."""
    (workers, servers), (others, more) = job.plan.told(True), job.plan.told(False)
    both = [f"{workers} worker{'s' * (workers != 1)} and {servers} server", f"{others} worker{'s' * (others != 1)} and"]
    for process in job.world.processes:
        said = "" if process.error is None else process.error.message
        if not all(text in said for text in ("was told of", *both, f" {more} server")):
            job.world.violate(f"{process.name} does not hear who was told of other numbers: {said!r}")
        if process.ended_at > (LATE + 0.5 if process in job.schedulers else 0.5 * job.plan.deadline):
            job.world.violate(f"{process.name} has waited for {process.ended_at:.3g} s")


def _absent(job: Job, ranks: str) -> bool:
    """True if these ranks have come to fewer barriers than others."""
    last = job.shared.standing[max(job.shared.standing)]
    return not last & {int(rank) for rank in ranks.split(", ")}


def _known(victims: list[Process]) -> str:
    return ", ".join(victim.name for victim in victims)


def _one_too_many(job: Job, failed: list[Process]) -> None:
    said = ("all have come", "the job has ended", "nobody listens", "the scheduler is gone")
    if len(failed) != 1 or not any(text in str(failed[0].error) for text in said):
        for process in failed:
            job.world.violate(f"{process.name} fails: {process.error}")
