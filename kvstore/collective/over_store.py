"""Communicators of the workers of a store on any hosts: each call is a sum that the store takes, on its two levels.

The store adds up the arrays of a host in shared memory, in the order of the ranks, and then those of the hosts, in the
order in which the job has them; between hosts goes one array for all ranks of a host, and servers add them. What is no
sum travels as one: integers to which the others add zeros, so that all bits stay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ...ops.errors import InputError, MezzoError, PeerError
from ...ops.types import Array
from .calls import ALL_GATHER, ALL_REDUCE, BARRIER, BROADCAST, REDUCE_SCATTER, Call
from .communicator import Communicator, EndedWork, Work

if TYPE_CHECKING:
    from ..async_handle import Handle
    from ..store import KVStore

WORD = np.dtype(np.int32)  # in which bits are added to zeros


class StoreWork:
    """A call under way: what the store does, and what follows."""

    def __init__(
        self, communicator: OverStore, handle: Handle, out: Array, then: Callable[[], None] | None = None
    ) -> None:
        self._communicator, self._out, self._then = communicator, out, then
        self._handle: Handle | None = handle

    def wait(self) -> Array:
        if self._handle is not None:
            with self._communicator.noted():
                self._handle.wait()
            self._handle = None
            if self._then is not None:
                self._then()
        return self._out


class OverStore(Communicator):
    """One worker of a store that sums. Every worker makes one, equally often; the store is closed by whoever made it.

    The store's waits have its deadline, and its errors name the rank or the host. There are no sends: all workers take
    part in every call.
    """

    kind = "store"

    def __init__(self, store: KVStore, number: int, deadline: float, members: Sequence[int]) -> None:
        super().__init__(store.rank, store.num_workers, deadline)
        self.members = tuple(members)  # the ranks of this host
        self._store, self._prefix, self._declared = store, f"collective/{number}", set[str]()
        self._places: dict[str, tuple[Array, Array]] = {}  # operand and result of a key, in memory of the store
        self._works: dict[str, StoreWork] = {}  # the latest of each of these

    def empty(self, shape: int | tuple[int, ...], dtype: Any = np.float32) -> Array:
        return self._store.empty(shape, dtype)

    def barrier(self, name: str = "") -> None:
        self._alive(BARRIER)
        with self.noted():
            self._store.barrier()

    def abort(self, reason: str) -> None:
        """End the communicator and the store on all ranks, with this reason."""
        if self.failure is None and not self.closed:
            self.failure = PeerError(f"rank {self.rank} has ended it: {reason}", where=self.where)
            self._store.__exit__(type(self.failure), self.failure, None)

    def close(self) -> None:
        self.closed = True

    @contextmanager
    def noted(self) -> Iterator[None]:
        """A context in which an error of the store ends the communicator."""
        try:
            yield
        except MezzoError as error:
            self.failure = self.failure or error
            raise

    def _start(self, call: Call, x: Any, out: Any, stream: Any) -> Work:
        if not call.count:
            return EndedWork(out)
        flat, result = x.reshape(-1), out.reshape(-1)
        key = f"{self._prefix}/{call.verb}/{call.name}/{call.dtype}[{call.count}]/{call.root}"
        if call.verb == ALL_REDUCE:
            return StoreWork(self, self._pushpull(key, flat, flat), out)
        if call.verb == REDUCE_SCATTER:
            mine = slice(self.rank * len(result), (self.rank + 1) * len(result))
            _, found = self._place(key, flat.shape, flat.dtype)
            work = StoreWork(self, self._pushpull(key, flat, found), out, partial(_copy, result, found, mine))
        elif call.verb in (ALL_GATHER, BROADCAST):
            gives = call.verb == ALL_GATHER or call.root == self.rank
            begin = self.rank * flat.nbytes if call.verb == ALL_GATHER else 0
            given, found = self._place(key, (-(-result.nbytes // WORD.itemsize),), WORD)
            if gives:
                given.view(np.uint8)[begin : begin + flat.nbytes] = flat.view(np.uint8)
            handle, whole = self._pushpull(key, given, found), slice(0, result.nbytes)
            work = StoreWork(self, handle, out, partial(_copy, result.view(np.uint8), found.view(np.uint8), whole))
        else:
            raise InputError(
                f"{call}: ranks of several hosts send each other nothing", where=self.where,
                hint="use all_gather, in which every rank takes part",
            )  # fmt: skip
        self._works[key] = work
        return work

    def _pushpull(self, key: str, given: Array, found: Array) -> Handle:
        with self.noted():
            if key not in self._declared:
                self._store.init(key, np.zeros(given.shape, given.dtype))
                self._declared.add(key)
            handle: Handle = self._store.pushpull(key, given, found, wait=False)
            return handle

    def _place(self, key: str, shape: tuple[int, ...], dtype: Any) -> tuple[Array, Array]:
        """The arrays of a key that are pushed and pulled, zeros at first, when no call uses them any more."""
        if key in self._works:
            self._works[key].wait()
        if key not in self._places:
            self._places[key] = self._store.empty(shape, dtype), self._store.empty(shape, dtype)
        return self._places[key]


def _copy(out: Array, found: Array, part: slice) -> None:
    out[...] = found[part]
