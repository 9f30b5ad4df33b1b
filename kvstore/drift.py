"""Comparison of arrays that all workers are to have alike: digests are exchanged, not the arrays."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from weakref import proxy

import numpy as np

from ..ops.errors import InputError, PeerError
from ..ops.types import Array
from .protocol.keys import OWN

if TYPE_CHECKING:
    from .store import KVStore

HINT = "a defect of memory, or of one worker's code; go on from the last checkpoint"


def digest(array: Array) -> tuple[int, int]:
    """The sum and the exclusive or of an array's bytes as integers of 64 bits, at the speed of memory. One bit that
    differs, or one element, changes them.

    >>> a = np.arange(5, dtype=np.float32)
    >>> digest(a) == digest(a.copy()), digest(a) == digest(-a)
    (True, False)
    """
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    words = flat[: flat.size // 8 * 8].view(np.int64)
    rest = int.from_bytes(flat[words.nbytes :].tobytes(), "little")
    return int(np.add.reduce(words)) + rest & _MASK, int(np.bitwise_xor.reduce(words)) ^ rest


_MASK = (1 << 62) - 1  # of a sum, so that it stays an int64


class Drift:
    """The comparison of some arrays, by name, over the workers of a store; every worker makes it with the same names.

    Raises InputError for a store whose workers do not wait for each other: what they have differs.
    """

    def __init__(self, store: KVStore, names: Sequence[str], what: str) -> None:
        if set(store.consistency) != {"sequential"}:
            kinds = " and ".join(store.consistency)
            raise InputError(f"in a store that is {kinds} workers have what differs", where="compare")
        self._store: KVStore = proxy(store)
        self._names, self._what = tuple(names), what
        shape = (store.num_workers, len(self._names), 2)
        self._key = f"{OWN}{what}/digests"
        store._init(self._key, np.zeros(shape, np.int64))
        self._place = store.empty(shape, np.int64)

    def check(self, arrays: Mapping[str, Any], when: str = "") -> None:
        """Compare the arrays of all workers. Every worker calls it.

        Raises PeerError on every worker, which names the first array that differs and the ranks that have another one
        than most, or than rank 0 where there is no majority.
        """
        if self._store.num_workers == 1:
            return
        place, rank = self._place, self._store.rank
        place[...] = 0
        place[rank] = [digest(np.asarray(arrays[name])) for name in self._names]
        self._store.pushpull(self._key, place, place, priority=FIRST, wait=True)
        found = np.array(place)
        for at, name in enumerate(self._names):
            if (found[:, at] != found[0, at]).any():
                raise PeerError(_told(name, found[:, at], when), where=f"{self._what}, rank {rank}", hint=HINT)


def _told(name: str, found: Array, when: str) -> str:
    kinds = [tuple(each) for each in found.tolist()]
    usual, count = Counter(kinds).most_common(1)[0]
    if 2 * count <= len(kinds):
        usual = kinds[0]
    strange = [str(rank) for rank, each in enumerate(kinds) if each != usual]
    others = f"those of {count} other ranks" if 2 * count > len(kinds) else "rank 0"
    which = f"rank{'s' * (len(strange) > 1)} {', '.join(strange)}"
    return f"{name!r} on {which} differs from {others}{when}"


FIRST = 1 << 20  # the priority of what everybody waits for
