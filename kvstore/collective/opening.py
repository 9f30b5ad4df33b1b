"""Opening of communicators beside a store: over the memory of a host, or over the store between hosts."""

from __future__ import annotations

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
    root, wait = environment.root, environment.deadline if deadline is None else deadline
    if len(set(hosts)) > 1:
        return OverStore(store, number, wait)
    name = f"mezzo/{root[0]}:{root[1]}/{environment.host}/collective {number}"
    return Shared(join(name, store.rank, called(range(store.num_workers)), wait), store.num_workers, wait)
