"""`mezzo.kv.create`: creates a store by its kind."""

from __future__ import annotations

import os
from dataclasses import replace
from difflib import get_close_matches

from ..ops.errors import InputError
from ..runtime.engine import engine
from ..runtime.environment import switch
from ..runtime.manifest import RECORD
from .at_exit import close_at_exit
from .backend import Backend
from .environment import Environment
from .levels import Levels
from .local import OF_ONE, Local
from .protocol.consistency import Bounded, Consistency, Eventual, Sequential
from .schedulers import scheduled, start
from .store import KVStore

# Kind -> how its workers follow each other, unless `consistency` says otherwise.
DIST = {"dist_sync": "sequential", "dist_device_sync": "sequential", "dist_async": "eventual", "nccl": "sequential"}
KINDS = (*OF_ONE, *DIST)
CONSISTENCIES = ("sequential", "bounded", "eventual")


def create(
    kind: str = "local",
    *,
    consistency: str | tuple[str, str] | None = None,
    staleness: int | None = None,
    by_staleness: bool = False,
    deadline: float | None = None,
) -> KVStore:
    """A store.

    | kind | workers | a push |
    |---|---|---|
    | `local`, `device` | this process | sums over the devices of this process, on the host or the first GPU |
    | `dist_sync`, `dist_device_sync` | those of the job | sums over all workers, in the order of their ranks |
    | `dist_async` | those of the job | counts by itself, when it has arrived |
    | `nccl` | those of the job, each with a GPU | as `dist_sync`; a Trainer's gradients travel from GPU to GPU |

    `consistency` is `sequential` (a round is the set of all workers; the same numbers in every run), `bounded` (nobody
    is more than `staleness` pushes of a key ahead of the slowest) or `eventual` (nobody waits for anybody); a pair says
    it for the workers of one host and between hosts. With `by_staleness` an optimizer on a store that is not
    sequential divides the rate of an update by 1 + its staleness: the updates that the value has had since this worker
    read it. `deadline` (seconds) ends every wait for other workers with an
    error that names those who are missing.

    The dist kinds read the job from the environment (DMLC_ROLE and the other names of `environment.py`), which
    `mezzo launch` and the launchers of MXNet set, or what torchrun, mpirun and srun tell (`schedulers.py`). In the role
    of a server or scheduler this call serves until the job has ended, and then exits.

    Raises InputError for unknown kinds and for arguments that do not go together.

    >>> with create("local") as kv:
    ...     kv.rank, kv.num_workers
    (0, 1)
    >>> create("dist_sinc")
    Traceback (most recent call last):
    mezzo.ops.errors.InputError: kv.create: there is no kind 'dist_sinc'
      hint: did you mean 'dist_sync'? There are local, device, dist_sync, dist_device_sync, dist_async, nccl
    """
    store = _created(kind, _levels(kind, consistency, staleness, by_staleness), deadline)
    verbose, traced = switch("MEZZO_KV_VERBOSE") == "1", bool(switch("MEZZO_KV_TRACE")) and kind not in OF_ONE
    if verbose or traced:
        store.watch(verbose=verbose)
    return store


def _of_job(backend: Backend) -> Backend:
    """The backend of a worker of a job, recorded where that is asked for."""
    if not (folder := switch(RECORD)):
        return backend
    from .recording import RecordedBackend

    return RecordedBackend(backend, folder)


def _created(kind: str, levels: Levels, deadline: float | None) -> KVStore:
    if deadline is not None and not deadline > 0:
        raise InputError(f"deadline={deadline} is no number of seconds above 0", where="kv.create")
    if kind in OF_ONE:
        if levels != Levels(Sequential(), Sequential()):
            raise InputError(
                f"consistency={str(levels.inside)!r} says how workers follow each other, and {kind!r} has one",
                where="kv.create",
                hint="leave it out, or create a dist kind",
            )
        return KVStore(Local(kind))
    environment = Environment.read()
    if (job := scheduled(os.environ)) is not None:
        start(environment.variables(), job)
    if environment.role != "worker":
        from .role import main

        raise SystemExit(main())
    engine()  # or what is wrong with other variables would be found when the others count on this process
    if deadline is not None:
        environment = replace(environment, deadline=deadline)
    opened: Backend
    if environment.servers:
        from .dist import open_dist

        opened = open_dist(kind, environment, levels)
    else:
        from .host.opening import open_host

        opened = open_host(kind, environment, levels)
    store = KVStore(_of_job(opened), (str(levels.inside), str(levels.between)))
    close_at_exit(store, tells=not environment.rejoin)
    return store


def _levels(kind: str, consistency: str | tuple[str, str] | None, staleness: int | None, by_staleness: bool) -> Levels:
    if kind not in KINDS:
        near = get_close_matches(str(kind), KINDS, 1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise InputError(f"there is no kind {kind!r}", where="kv.create", hint=f"{hint}There are {', '.join(KINDS)}")
    default = DIST.get(kind, "sequential")
    if consistency is None:
        consistency = "bounded" if staleness is not None else default
    names = (consistency, consistency) if isinstance(consistency, str) else tuple(consistency)
    for name in names:
        if name not in CONSISTENCIES or len(names) != 2:
            near = get_close_matches(str(name), CONSISTENCIES, 1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            hint += f"Give {', '.join(CONSISTENCIES)}, or a pair of them: inside of hosts, and between them"
            raise InputError(f"consistency={consistency!r}", where="kv.create", hint=hint)
    if (staleness is not None) != ("bounded" in names) or (staleness is not None and staleness < 0):
        raise InputError(
            f"consistency={consistency!r} with staleness={staleness}",
            where="kv.create",
            hint="'bounded' needs a staleness of 0 or more, and nothing else has one",
        )
    if by_staleness and {*names} == {"sequential"}:
        raise InputError(
            f"by_staleness in a sequential store, {kind!r}, in which nothing is stale",
            where="kv.create",
            hint="create dist_async, or leave it out",
        )
    made: dict[str, Consistency] = {"sequential": Sequential(), "eventual": Eventual(by_staleness)}
    made |= {"bounded": Bounded(staleness, by_staleness)} if staleness is not None else {}
    inside, between = names
    return Levels(made[inside], made[between])
