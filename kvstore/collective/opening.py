"""Opening of communicators: of the job that a launcher has begun, or beside a store."""

from __future__ import annotations

from weakref import WeakKeyDictionary

from ...ops.errors import InputError
from ..environment import Environment
from ..host.mesh import join
from ..store import KVStore
from .communicator import Alone, Communicator
from .shared import Shared

_beside: WeakKeyDictionary[KVStore, int] = WeakKeyDictionary()  # how many communicators a store has beside it


def beside(store: KVStore, deadline: float | None = None) -> Communicator:
    """A communicator of the workers of a store, over the memory that they share. Every worker calls this, equally
    often, and closes it. `deadline` is the job's by default.

    Raises InputError where they are on several hosts, DeadlineError that names who has not come.
    """
    if store.num_workers == 1:
        return Alone()
    if not store.kind.startswith("dist"):
        raise InputError(f"the workers of a {store.kind!r} store share no memory", where="communicator")
    number = _beside[store] = _beside.get(store, -1) + 1
    environment = Environment.read()
    if environment.servers:
        raise InputError(
            "this job has servers, and its workers may be on several hosts",
            where="communicator",
            hint="mezzo launch without -s; between hosts gradients travel through the store",
        )
    root, wait = environment.root, environment.deadline if deadline is None else deadline
    name = f"mezzo/{root[0]}:{root[1]}/{environment.host}/collective {number}"
    return Shared(join(name, store.rank, store.num_workers, wait, "rank"), store.num_workers, wait)
