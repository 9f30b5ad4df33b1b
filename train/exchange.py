"""Distributed training: a KVStore as the Trainer and its programs see it.

Gradients lie in arrays of the store (shared memory, where workers share a host). A program's Emit starts their way, its
Await ends it (ops/training/exchange.py): with the optimizer on the worker what comes back is the sum of all workers'
gradients, in the gradient's place; with the optimizer on the store it is the parameter's next value.
"""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import cached_property
from os import PathLike
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np

from ..ops import Tensor
from ..ops.errors import ExecutionError, InputError
from ..ops.training.exchange import SUM
from ..ops.types import Array, type_of
from ..runtime.optimizer import Optimizer
from .agree import agree
from .building import Shared

if TYPE_CHECKING:
    from ..kvstore.async_handle import Handle
    from ..kvstore.drift import Drift
    from ..kvstore.store import KVStore

SIZES, TOTAL = "trainer/sizes", "trainer/total"  # keys of our own
LOST = "lost/"  # before the names of parameters, of what compression had lost of their gradients
COMPARED = 100  # steps from one comparison of all workers' parameters to the next
FIRST = 1 << 20  # the priority of what everybody waits for
_users: WeakKeyDictionary[KVStore, int] = WeakKeyDictionary()  # how many Exchanges a store has had
_owners: WeakKeyDictionary[KVStore, WeakKeyDictionary[Any, Any]] = WeakKeyDictionary()  # trainers' optimizers on them


def prefix_of_next(store: KVStore) -> str:
    """Return the key prefix of the next trainer on a store. Several trainers may share it if every worker makes them in
    the same order."""
    number = _users[store] = _users.get(store, -1) + 1
    return f"{number}/" if number else ""


def take_store(store: KVStore, owner: object, prefix: str, optimizer: Optimizer | None) -> None:
    """Let a trainer's pushes be steps of its optimizer, or (None) sums. A store has one optimizer for all that is
    pushed: InputError where another trainer that is still there needs it otherwise."""
    if optimizer is not None and prefix and optimizer.groups:  # keys have the prefix before the name
        named = tuple(replace(g, patterns=tuple(prefix + p for p in g.patterns)) for g in optimizer.groups)
        optimizer = replace(optimizer, groups=named)
    owners = _owners.setdefault(store, WeakKeyDictionary())

    def others() -> list[Optimizer | None]:
        return [theirs for other, theirs in owners.items() if other is not owner]

    if any(theirs != optimizer for theirs in others()):
        gc.collect()  # of trainers that nobody has any more
    alone = store.num_workers == 1  # a process has one store of a job
    for theirs in others():
        if theirs != optimizer:
            sides = [f"{o.kind} on the store" if o else "an optimizer of its own" for o in (theirs, optimizer)]
            raise InputError(
                f"a trainer on this store has {sides[0]}, and this one {sides[1]}, while a push means one thing",
                where=f"the {store.kind!r} store",
                hint="give all of them update_on_kvstore=False, or the same optimizer" + "; or a store to each" * alone,
            )
    if optimizer is None:
        check_sums(store)
    elif not others():
        store.set_optimizer(optimizer)
    owners[owner] = optimizer


def check_sums(store: KVStore) -> None:
    """Raise InputError where what a trainer wants summed would be taken for gradients to step by."""
    if store.steps:
        raise InputError(
            "an optimizer or an updater on the store steps by all that it gets, and this trainer needs sums",
            where=f"the {store.kind!r} store",
            hint="set no optimizer, or let the trainer set it: update_on_kvstore=True",
        )


class Exchange:
    """The KVStore behind a step's Emit and Await (`runtime.kernels.Exchange`), and the sums of a few numbers that
    Trainers exchange.

    `kvstore` is a store or the kind of one; `on_store` says where the optimizer runs, by default on the worker, but on
    the store where that is not sequential (`dist_async`). Raises InputError for what cannot be.
    """

    def __init__(
        self, kvstore: KVStore | str, on_store: bool | None = None, overlap: bool = True, compare_every: int = COMPARED
    ) -> None:
        if isinstance(kvstore, str):
            from ..kvstore.create import create  # a start of `import mezzo` alone does without

            kvstore = create(kvstore)
        self.store = kvstore
        rounds = set(self.store.consistency) == {"sequential"}
        self.on_store = not rounds if on_store is None else on_store
        if not (rounds or self.on_store):
            raise InputError(
                f"the workers of this {self.store.kind!r} store do not wait for each other "
                f"({' and '.join(self.store.consistency)}): there is no sum of their gradients",
                where="update_on_kvstore=False",
                hint="let the optimizer run on the store, or create a sequential one",
            )
        self.rank, self.workers = self.store.rank, self.store.num_workers
        self._summed = self.workers if rounds else 1  # gradients of one update
        self.overlap, self.joined = overlap, False
        self.alone = False  # nothing is exchanged, and gradients are this worker's own
        self._compare_every = compare_every if rounds and self.workers > 1 else 0
        self._drift: Drift | None = None
        self._prefix = prefix_of_next(self.store)
        self.first = not self._prefix  # of the Trainers on the store
        self._buffers: dict[str, Array] = {}
        self._priorities: dict[str, int] = {}
        self._handles: dict[str, Handle] = {}

    @property
    def shared(self) -> Shared:
        """Split of a step between workers and store."""
        return Shared(self._summed, self.on_store, self.overlap)

    @property
    def part(self) -> tuple[int, ...]:
        """Part of the random key of this worker, so that each worker draws numbers of its own."""
        return (self.rank,) if self.workers > 1 else ()

    def join(
        self,
        parameters: Mapping[str, Array],
        optimizer: Optimizer,
        states: PathLike[str] | str | None = None,
        facts: Mapping[str, str] | None = None,
    ) -> None:
        """Give every worker the parameters of rank 0, which are named in the order in which a step reads them, and the
        store its optimizer, with the states of a file if one is given. Every worker calls it, once. `facts` tell what
        this worker's step is: InputError naming both sides where rank 0 makes another one."""
        agree(self.store, self._prefix, facts or {})
        names = [*parameters]
        # gradients are made, and awaited, from the last layer to the first
        self._priorities = {name: i for i, name in enumerate(names)}
        arrays = [np.asarray(p) for p in parameters.values()]  # copies of those that lie on a GPU
        self.store.broadcast([self._prefix + name for name in names], arrays, arrays)
        for parameter, array in zip(parameters.values(), arrays, strict=True):
            if array is not parameter:
                parameter[...] = array
        if self.on_store:
            if optimizer.lazy_update and set(self.store.consistency) != {"sequential"}:
                kinds = " and ".join(self.store.consistency)
                raise InputError(
                    f"lazy_update in a store that is {kinds}: a worker would not see the rows that only others change",
                    where="update_on_kvstore=True",
                    hint="create a sequential store, or leave lazy_update out",
                )
            take_store(self.store, self, self._prefix, optimizer)
            if states is not None:
                self.store.load_optimizer_states(states)
        else:
            take_store(self.store, self, self._prefix, None)
        self.joined = True

    def rejoin(self) -> None:
        """Meet the others again after another worker has died: see `KVStore.rejoin`, which raises."""
        self.store.rejoin()
        self.joined, self._drift = False, None
        self._buffers.clear()
        for handle in self._handles.values():
            handle.drop()
        self._handles.clear()
        self.__dict__.pop("_sizes", None)

    def compare(self, parameters: Mapping[str, Array], step: int | None = None) -> None:
        """Compare the parameters of all workers, where it is their time: after every so many steps, and where no step
        is given. PeerError names the first that differs and the ranks."""
        every = self._compare_every
        if not every or not self.joined or self.alone or (step is not None and step % every):
            return
        if self._drift is None:
            from ..kvstore.drift import Drift

            self._drift = Drift(self.store, [*parameters], f"{self._prefix}parameters")
        self._drift.check(parameters, "" if step is None else f" after step {step}")

    def drop_losses(self) -> None:
        """Forget what compression has left over."""
        self.store.drop_losses()

    def keep_losses(self) -> dict[str, Array]:
        """Return what compression has left over, as arrays of a checkpoint. Rank 0 adds it to what it sends next, as
        rank 0 of those who resume does."""
        lost = self.store.take_losses()
        self.store.give_losses(lost)
        keys = {self._prefix + name: LOST + name for name in self._priorities}
        return {keys[key]: array for key, array in lost.items() if isinstance(key, str) and key in keys}

    def give_losses(self, lost: Mapping[str, Array]) -> None:
        """Go on with what `keep_losses` has told."""
        if not self.on_store:  # where parameters come back as they are
            self.store.give_losses({self._prefix + name.removeprefix(LOST): array for name, array in lost.items()})

    def barrier(self) -> None:
        """Return when every worker is here."""
        self.store.barrier()

    def stepped(self, loss: float) -> None:
        """A step has ended."""
        self.store.stepped(loss)

    def watched(self, step: int) -> AbstractContextManager[None]:
        """A store watches over its own waits."""
        return nullcontext()

    # -- one step ---------------------------------------------------------------------------------------------------

    def buffer(self, key: str, type: Tensor) -> Array:
        """The array of the store in which the gradient of a parameter lies."""
        buffer = self._buffers.get(key)
        if buffer is None:
            buffer = self._buffers[key] = self.store.empty(type.sizes, type.dtype.numpy)
        elif type_of(buffer) != type.forget():
            raise InputError(f"the gradient is {type}, and was {type_of(buffer)} before", where=f"key {key!r}")
        return buffer

    def emit(self, key: str, verb: str = SUM) -> None:
        """The gradient is final. A store knows no verb but sums."""
        assert verb == SUM
        if self.alone:
            return
        if key in self._handles:
            raise ExecutionError(
                "the former step ended before the store had answered",
                where=f"key {key!r}",
                hint="after an error in a step, begin again from a checkpoint",
            )
        value = self._buffers[key]
        self._handles[key] = self.store.pushpull(
            self._prefix + key, value, None if self.on_store else value, priority=self._priorities[key], wait=False
        )

    def wait(self, key: str) -> Array:
        """The sum of the gradients, where the worker's own was, or the parameter's next value."""
        if self.alone:
            return self._buffers[key]
        (answer,) = self._handles.pop(key).wait()
        return answer if self.on_store else self._buffers[key]

    def sum_rows(self, key: str, ids: Array, rows: Array) -> tuple[Array, Array]:
        """The sum over all workers of the rows that each has of a gradient, or with the optimizer on the store what has
        become of these rows: their numbers, and they."""
        if self.alone:
            return ids, rows
        if self.on_store:
            return self.store.step_rows(self._prefix + key, ids, rows, priority=self._priorities[key])
        return self.store.sum_rows(self._prefix + key, ids, rows, priority=self._priorities[key])

    # -- numbers ----------------------------------------------------------------------------------------------------

    @cached_property
    def _sizes(self) -> Array:
        self.store.init(self._prefix + SIZES, np.zeros(self.workers, np.int64))
        return self.store.empty(self.workers, np.int64)

    def sizes_begin(self, size: int) -> Handle | None:
        """Tell the others how large this worker's share is. An optimizer on the store would take that for a gradient:
        there it is not told."""
        if not self.on_store:
            check_sums(self.store)
        if self.workers == 1 or self.on_store or self.alone:
            return None
        self._sizes[...] = 0
        self._sizes[self.rank] = size
        place = self._sizes
        handle: Handle = self.store.pushpull(self._prefix + SIZES, place, place, priority=FIRST, wait=False)
        self._handles[SIZES] = handle
        return handle

    def sizes_end(self, handle: Handle | None) -> None:
        """InputError where the shares of a step were not equal: its gradient was not that of the whole batch."""
        if handle is None:
            return
        handle.wait()
        del self._handles[SIZES]
        if (self._sizes != self._sizes[0]).any():
            raise InputError(
                f"the workers' shares of this step have {', '.join(map(str, self._sizes))} samples",
                where=f"rank {self.rank}",
                hint="give every worker as many samples (mezzo.train.shares.Share); its update was not that of the "
                "whole batch",
            )

    def total(self, numbers: Sequence[float]) -> list[float]:
        """The sum over all workers of each number (float64). Every worker calls it, with as many numbers."""
        if self.workers == 1:
            return list(numbers)
        if self.on_store:
            raise InputError(
                "there are no sums over workers: the store treats all that it gets as gradients",
                where="update_on_kvstore=True",
                hint="ask for this worker's own, or let the workers update: update_on_kvstore=False",
            )
        key = f"{TOTAL}/{len(numbers)}"
        if key not in self._buffers:
            self.store.init(self._prefix + key, np.zeros(len(numbers)))
            self._buffers[key] = self.store.empty(len(numbers), np.float64)
        place = self._buffers[key]
        place[...] = numbers
        self.store.pushpull(self._prefix + key, place, place, priority=FIRST)
        return [float(n) for n in place]

    def sum_words(self, key: str, mine: Array | None, size: int) -> bytes:
        """The words (int64) that one worker has, `size` bytes of them. Every worker calls it, once for a key."""
        self.store.init(self._prefix + key, np.zeros(-(-size // 8), np.int64))
        place = self.store.empty(-(-size // 8), np.int64)
        place[...] = 0 if mine is None else mine
        self.store.pushpull(self._prefix + key, place, place, priority=FIRST)
        whole: bytes = place.tobytes()[:size]
        return whole

    def any(self, flag: bool) -> bool:
        """Return True if the flag is set on any worker. Every worker calls it."""
        return self.total([float(flag)])[0] > 0
