"""Opening of communicators beside a store: over the memory of a host, or over the store between hosts."""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakKeyDictionary

import numpy as np

from ...ops.errors import InputError
from ...runtime.digests import blake2b
from ..create import DIST
from ..environment import Environment
from ..host.mesh import called, join
from ..store import KVStore
from .communicator import Alone, Communicator
from .over_store import OverStore
from .shared import Shared

_beside: WeakKeyDictionary[KVStore, int] = WeakKeyDictionary()  # how many communicators a store has beside it


def _hosts(store: KVStore, number: int, host: str) -> list[int]:
    """A number for the host of each worker, the same for workers of one host. InputError if the store does not sum."""
    if store.steps or set(store.consistency) != {"sequential"}:
        why = "has an optimizer" if store.steps else "does not sum over workers"
        raise InputError(f"the store {why}", where="communicator", hint="make the Trainer first, with dist_sync")
    numbers, key = np.zeros(store.num_workers, np.int64), f"collective/hosts {number}"
    store.init(key, numbers)
    numbers[store.rank] = int.from_bytes(blake2b(host.encode(), digest_size=7).digest(), "little")
    return [int(n) for n in store.pushpull(key, numbers)]


def beside(store: KVStore, deadline: float | None = None) -> Communicator:
    """A communicator of the workers of a store: over the memory that they share, or over the store itself where they
    are on several hosts. Every worker calls this, equally often, and closes it. `deadline` is in seconds, by default
    the job's; waits over the store have the job's.

    Raises InputError for a store that does not sum, and DeadlineError, which names the workers that have not called it.
    """
    if store.num_workers == 1:
        return Alone()
    if store.kind not in DIST:
        raise InputError(f"the workers of a {store.kind!r} store share no memory", where="communicator")
    number = _beside[store] = _beside.get(store, -1) + 1
    environment = Environment.read()
    hosts = _hosts(store, number, environment.host)
    wait = environment.deadline if deadline is None else deadline
    members = [r for r, host in enumerate(hosts) if host == hosts[store.rank]]
    if len(members) < store.num_workers:
        return OverStore(store, number, wait, members)
    return _of_host(environment, f"collective {number}", store.rank, members, wait)


def _of_host(environment: Environment, what: str, rank: int, members: Sequence[int], wait: float) -> Communicator:
    """The communicator of the ranks of this host."""
    if len(members) == 1:
        return Alone()
    root, me = environment.root, members.index(rank)
    name = f"mezzo/{root[0]}:{root[1]}/{environment.host}/{what}"
    return Shared(join(name, me, called(members), wait), len(members), wait, members)


def of_gpus(store: KVStore, device: int) -> Communicator:
    """A communicator of the workers of a store with a GPU each, of which this one has number `device`: over NCCL, or
    where they are on several hosts over NCCL in each and the store between them. Every worker calls this, equally
    often, and closes it. Raises what `beside` and NCCL raise."""
    from .layout import warn_of_layout
    from .nccl import Nccl
    from .two_levels import TwoLevels

    between = beside(store)
    if not isinstance(between, OverStore):
        warn_of_layout(between, device)
        return Nccl(between, device)
    inside = _of_host(Environment.read(), f"gpus {_beside[store]}", store.rank, between.members, between.deadline)
    warn_of_layout(inside, device)
    return TwoLevels(Nccl(inside, device, between.deadline), between, between.members)
