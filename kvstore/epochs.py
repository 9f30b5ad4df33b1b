"""Numbers of steps of the workers of a job, compared before they make them."""

from __future__ import annotations

import numpy as np

from ..ops.errors import InputError
from .drift import FIRST
from .protocol.keys import OWN
from .store import KVStore


class Epochs:
    """Agreement on the number of steps of each epoch; every worker makes it. In a sequential store all workers push
    equally often, and one that has fewer batches would keep the others waiting in its last step.

    >>> from mezzo.kvstore import create
    >>> with create("local") as kv:
    ...     Epochs(kv).join(10)
    10
    """

    def __init__(self, store: KVStore) -> None:
        self._store = store
        self._together = store.num_workers > 1 and set(store.consistency) == {"sequential"}
        if self._together:
            self._key = f"{OWN}epochs"
            store._init(self._key, np.zeros(store.num_workers, np.int64))

    def join(self, steps: int, *, uneven: bool = False) -> int:
        """Begin an epoch for which this worker has so many steps; how many all of them make. Every worker calls it.

        Raises InputError on every worker, which names the ranks, where some have others than rank 0; with `uneven` all
        make as many as the one that has least. In stores whose workers do not wait for each other each makes its own.
        """
        if steps < 0:
            raise InputError(f"{steps} steps", where="Epochs.join")
        if not self._together:
            return steps
        mine = np.zeros(self._store.num_workers, np.int64)
        mine[self._store.rank] = steps
        self._store.pushpull(self._key, mine, mine, priority=FIRST, wait=True)
        counts = mine.tolist()
        others = [f"rank {rank} has {count}" for rank, count in enumerate(counts) if count != counts[0]]
        if others and not uneven:
            raise InputError(
                f"rank 0 has {counts[0]} steps in this epoch, {', '.join(others)}",
                where=f"Epochs.join, rank {self._store.rank}",
                hint="give every worker as many batches, or let all make the fewest: join(steps, uneven=True)",
            )
        return min(counts)
