"""Processes of a job before it is complete: what keeps them from being one job, in words. Pure functions of Hellos."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from .messages import NOBODY, Failed, Hello, Role, Welcome, named


def called(role: Role, host: str, rank: int = NOBODY) -> str:
    """A process as errors name it.

    >>> called("worker", "a", 1), called("agent", "a")
    ("worker 1 on host 'a'", "the agent of host 'a'")
    """
    if role == "agent":
        return f"the agent of host {host!r}"
    number = f" {rank}" if rank != NOBODY else ""
    return f"{role}{number} on host {host!r}"


def counted(workers: int, servers: int) -> str:
    """Numbers of processes in words.

    >>> counted(1, 0)
    '1 worker and 0 servers'
    """
    return f"{workers} worker{'s' * (workers != 1)} and {servers} server{'s' * (servers != 1)}"


def miscounted(hello: Hello, workers: int, servers: int) -> Failed | None:
    """The failure of a job whose scheduler was told of these numbers, and one of its processes of others."""
    told = hello.num_workers, hello.num_servers
    if not hello.num_workers or told == (workers, servers):
        return None
    who, ranks = called(hello.role, hello.host, hello.rank), () if hello.rank == NOBODY else (hello.rank,)
    why = f"{who} was told of {counted(*told)}, and the scheduler of {counted(workers, servers)}"
    return Failed(ranks, why, hello.role, "give DMLC_NUM_WORKER and DMLC_NUM_SERVER the same values in every process")


def disagreement(workers: Sequence[Hello]) -> Failed | None:
    """The failure of a job whose workers want stores of several kinds."""
    kinds = sorted({worker.consistency for worker in workers})
    if len(kinds) < 2:
        return None
    hosts = {kind: sorted({repr(w.host) for w in workers if w.consistency == kind}) for kind in kinds}
    where = "; ".join(f"{kind} on host {', '.join(hosts[kind])}" for kind in kinds)
    why = f"workers disagree about the kind of the store: {where}"
    return Failed((), why, hint="give `kv.create` the same kind in every worker")


def crowded(hello: Hello, here: Iterable[Hello], before: Welcome | None) -> bool:
    """True if a worker that was started in the place of another, and was not told of which rank, finds as many on its
    host as there were in the last gathering: one of them has died, and its end has not been heard of.

    >>> last = Welcome(0, 3, (), (("a", (0,)), ("b", (1, 2))))
    >>> late, here = Hello("worker", "b", incarnation=1), [Hello("worker", "b", 1), Hello("worker", "b", 2)]
    >>> crowded(late, here, last), crowded(late, here[:1], last)
    (True, False)
    """
    places = dict(before.hosts).get(hello.host, ()) if before and hello.incarnation and hello.rank == NOBODY else ()
    return 0 < len(places) <= sum(other.host == hello.host for other in here)


def by_host(here: Iterable[Hello]) -> str:
    """Counts of processes by host, in words."""
    counts = Counter(hello.host for hello in here)
    return ", ".join(f"{count} on host {host!r}" for host, count in sorted(counts.items()))


def missing(declared: Mapping[Role, int], come: Mapping[Role, Sequence[Hello]]) -> tuple[tuple[int, ...], str]:
    """The ranks of workers that have not come, and who has come of those that were declared."""
    parts, ranks = [], list[int]()
    for role, most in declared.items():
        here = come[role]
        hints = {hello.rank for hello in here}
        absent = [] if NOBODY in hints else sorted({*range(most)} - hints)
        which = [by_host(here), *([f"not {named(absent)}"] if absent else [])]
        who = f" ({'; '.join(which)})" if here else ""
        parts += [f"{len(here)} of {most} {role}s came{who}"] if most else []
        ranks = absent if role == "worker" else ranks
    return tuple(ranks), ", ".join(parts)
