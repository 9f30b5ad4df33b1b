"""The verbs of a store, and the protocol of the backends below them.

A store keeps arrays by key. Workers push to a key and pull from it; what a push means is decided by the store's
consistency and by its optimizer (arXiv 1512.01274, section 3.3; the verbs are those of MXNet,
https://mxnet.apache.org/versions/1.9.1/api/python/docs/api/kvstore/index.html).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar, cast

import numpy as np
from numpy.typing import DTypeLike

from ..ops.errors import InputError, ShapeError
from ..ops.types import Array
from ..runtime.engine import Ordered, Variable, engine
from ..runtime.engine.waited import timed
from .async_handle import AsyncHandle, Handle, settled
from .at_exit import closed
from .backend import Backend
from .local import OF_ONE
from .on_gpus import HostCopies, copy_back, host_copies, to_host
from .pace import Pace
from .packing import Packings
from .protocol.keys import OWN
from .protocol.pace import Split, straggler
from .rows import Rows, RowSums, are_rows, check_rows, fill, rows_of
from .rule import Rule, Updater, by_names
from .states import read_states, write_states
from .stats import Stats
from .ticket import Ticket

if TYPE_CHECKING:
    from .watching import Watch

Batch = TypeVar("Batch")
Key = str | int
Keys = Key | Sequence[Key] | Mapping[Any, Any]  # a string is one key; a mapping brings the arrays with it
Values = Array | Sequence[Array] | Sequence[Sequence[Array]]


class Described(Protocol):
    """An object that can be written as plain data: an optimizer of `mezzo.optimizer`."""

    def to_dict(self) -> dict[str, Any]: ...


@dataclass(slots=True, eq=False)
class Declared:
    """Declaration of a key by `init`."""

    key: Key
    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    variable: Variable | None = None  # of the engine, for operations that it starts
    later: AsyncHandle | None = None  # the last of them


Call = tuple[Declared, tuple[Any, ...], tuple[Any, ...]]  # of a verb: what for, with what, and the arrays to fill


class KVStore:
    """Arrays by key, shared by `num_workers` workers; made by `mezzo.kv.create`. `consistency` has that between the
    workers of one host, and that between hosts.

    Keys are strings or integers (3 and "3" are two keys), values arrays or lists of arrays (one per device, summed in
    list order); every verb takes one key, a list of keys with a list of values, or a mapping of keys to values. A key
    is declared by `init`, with the shape and element type that every later array must have (ShapeError else).

    Arrays are NumPy's or those of `mz.nd`. With the latter a verb returns at once, unless it is called with
    `wait=True`: it is a workload of the engine, which reads what is pushed and writes `out` in the order of all others.
    `local` and `device` take arrays of GPUs too, and wait for them: a list for one key is a value of each GPU, which
    `device` adds up on the first, and `local` on the host; the value is kept on the host.

    What a push does to the stored value:

    - with an optimizer it is a gradient, and the optimizer makes one step (`set_optimizer`);
    - with an updater of the user's, `updater(key, received, stored)` changes the stored array in place;
    - else, in a `sequential` store, the sum over all workers replaces the value once all of them have pushed; in a
      `bounded` or `eventual` one each push is added to the value.

    >>> import numpy as np
    >>> from mezzo.kvstore.create import create
    >>> with create("local") as kv:
    ...     kv.init("w", np.zeros(3, np.float32))
    ...     kv.push("w", [np.ones(3, np.float32), np.full(3, 2, np.float32)])  # two devices
    ...     out = np.empty(3, np.float32)
    ...     kv.pull("w", out=out)
    ...     out
    array([3., 3., 3.], dtype=float32)
    """

    def __init__(self, backend: Backend, consistency: tuple[str, str] = ("sequential", "sequential")) -> None:
        self._backend, self.consistency = backend, consistency
        self._pace, self._closed = Pace(), False
        self._begin()

    def _begin(self) -> None:
        self._declared: dict[Key, Declared] = {}
        self._names: dict[str, Key] = {}
        self._sums = RowSums(self)
        self._steps = False  # an optimizer or an updater says what a push does
        self._given: dict[Key, Array] = {}  # what compression had lost before, until the next push of a key

    # -- who

    @property
    def kind(self) -> str:
        """Kind of the store that was passed to `create`."""
        return self._backend.kind

    @property
    def rank(self) -> int:
        """The number of this worker, from 0."""
        return self._backend.rank

    @property
    def num_workers(self) -> int:
        return self._backend.num_workers

    @property
    def steps(self) -> bool:
        """True if an optimizer, or an updater, says what a push does."""
        return self._steps

    # -- values

    def init(self, key: Keys, value: Values | None = None) -> None:
        """Declare keys with their first values. Every worker declares every key, in any order; the value of rank 0
        counts. Raises InputError for a key that is declared already, ShapeError where workers disagree."""
        key, value = _spread(key, value)
        for one, given in self._pairs(key, value, "init"):
            if isinstance(one, str) and one.startswith(OWN):
                why = f"keys that begin with {OWN!r} are the store's own"
                raise InputError(why, where=self._here("init"), hint="another name")
            self._init(one, np.asarray(given))

    def _init(self, key: Key, value: Array) -> None:
        declared = self._declare(key, value)
        self._backend.init(declared.name, value)
        self._declared[key] = declared
        self._names[declared.name] = key

    def push(
        self, key: Keys, value: Values | None = None, *, priority: int = 0, wait: bool | None = None
    ) -> Handle | None:
        """Push arrays. Returns when they have been taken: the caller may write into them again, except into those from
        `empty`, which are read in place until the round has ended. With `wait=False` a handle, at once. A RowSparse of
        `mz.nd` is a value whose other rows are zeros; an optimizer steps its rows alone where that is the same, or it
        is lazy. That has happened when this returns, and every worker pushes rows of the same keys in the same order
        in a sequential store."""
        key, value = _spread(key, value)
        value = self._to_host(key, value)
        calls: list[Call] = []
        for declared, given in self._each("push", key, value):
            if are_rows(given):
                self._push_rows(declared, rows_of(given))
            else:
                arrays = self._with_losses(declared, self._arrays(declared, given, "push"))
                calls.append((declared, (declared.name, arrays, priority), ()))
        return self._ended(self._started(self._backend.push, calls, wait), wait)

    def pull(self, key: Keys, out: Values | None = None, *, priority: int = 0, wait: bool | None = None) -> Any:
        """Copy values into `out`: per key an array or a list of arrays. Without `out` the value itself, read-only and
        valid until this worker's next push of the key. With `wait=False` a handle, at once."""
        key, out = _spread(key, out)
        out, copies = self._host_copies(out)
        calls: list[Call] = []
        for declared, into in self._each("pull", key, out):
            outs = self._arrays(declared, into, "pull", writable=True)
            calls.append((declared, (declared.name, outs, priority), outs))
        return self._pulled(self._started(self._backend.pull, calls, wait), key, out, wait, copies)

    def pushpull(
        self,
        key: Keys,
        value: Values | None = None,
        out: Values | None = None,
        *,
        priority: int = 0,
        wait: bool | None = None,
    ) -> Any:
        """A push and a pull as one, which is faster; `out` may be `value`, and is for a mapping that comes alone. See
        both for what is returned. Of a RowSparse, without an optimizer, `out` (a RowSparse too) becomes the sum over
        all workers, when this returns, and the stored value stays as it is: see `sum_rows`."""
        key, value, out = _spread(key, value, out)
        out, copies = self._host_copies(out)
        value = self._to_host(key, value)
        calls: list[Call] = []
        for declared, given, into in self._each("pushpull", key, value, out):
            if are_rows(given):
                self._pushpull_rows(declared, rows_of(given), into, priority)
                continue
            arrays = self._with_losses(declared, self._arrays(declared, given, "pushpull"))
            targets = self._arrays(declared, into, "pushpull", writable=True)
            calls.append((declared, (declared.name, arrays, targets, priority), targets))
        return self._pulled(self._started(self._backend.pushpull, calls, wait), key, out, wait, copies)

    def broadcast(self, key: Keys, value: Values, out: Values, *, priority: int = 0) -> None:
        """`init`, then `pull`: every worker gets the value of rank 0."""
        self.init(key, value)
        self.pull(key, out, priority=priority)

    def row_sparse_pull(
        self, key: Keys, out: Values, row_ids: Any, *, priority: int = 0, wait: bool | None = None
    ) -> Handle | None:
        """Copy some rows of values: `out` has the shape (len(row_ids), *shape of a row), in the order of `row_ids`
        (integers, each below the number of rows; a row may be asked for twice). A RowSparse has these rows then, each
        once, when this returns."""
        calls: list[Call] = []
        for declared, into, asked in self._each("row_sparse_pull", key, out, row_ids):
            rows = self._rows(declared, asked)
            if are_rows(into):
                ids = np.unique(rows)
                fill(declared, into, (ids, self._rows_now(declared, ids, priority)), self._here("row_sparse_pull"))
                continue
            shape = (len(rows), *declared.shape[1:])
            outs = self._arrays(declared, into, "row_sparse_pull", writable=True, shape=shape)
            calls.append((declared, (declared.name, rows, outs, priority), outs))
        return self._ended(self._started(self._backend.pull_rows, calls, wait), wait)

    def sum_rows(self, key: Key, ids: Array, rows: Array, *, priority: int = 0) -> Rows:
        """The sum over all workers of a value of which each gives some rows: the numbers of those that anybody gave,
        ascending, and their sums, with the bits of a dense sum. `ids` are integers, ascending and each once, `rows` has
        a row for each. Every worker calls it for the same keys in the same order; what is stored stays as it is.

        Only rows travel. Raises InputError in a store that does not sum, or has an optimizer, which would step them.

        >>> import numpy as np
        >>> from mezzo.kvstore.create import create
        >>> with create("local") as kv:
        ...     kv.init("words", np.zeros((1000, 2)))
        ...     kv.sum_rows("words", np.array([3, 7]), np.ones((2, 2)))
        (array([3, 7]), array([[1., 1.],
               [1., 1.]]))
        """
        declared = self._of(key, "sum_rows")
        ids, rows = self._rows_given(declared, (ids, rows), "sum_rows")
        if self._steps or set(self.consistency) != {"sequential"}:
            why = "has an optimizer" if self._steps else "does not sum over workers"
            raise InputError(f"the store {why}", where=self._here("sum_rows"), hint="let the workers update")
        return self._sums.sum(declared.name, ids, rows, priority)

    def step_rows(self, key: Key, ids: Array, rows: Array, *, priority: int = 0) -> Rows:
        """Push rows as `push` does, with an optimizer that steps them alone; what is returned are the rows of a
        sequential store that have changed, by whomever, as they are now: their numbers, ascending, and they."""
        declared = self._of(key, "step_rows")
        changed = self._push_rows(declared, (ids, rows))
        return changed, self._rows_now(declared, changed, priority)

    def empty(self, shape: int | Sequence[int], dtype: DTypeLike = np.float32) -> Array:
        """An array whose pushes and pulls need no copy, where the kind of store has such memory (shared between the
        workers of a host). It is zeros at first, and lives as long as anybody holds it."""
        sizes = (shape,) if isinstance(shape, int) else tuple(map(int, shape))
        if min(sizes, default=0) < 0:
            raise InputError(f"{sizes} is no shape", where=self._here("empty"))
        return self._backend.empty(sizes, np.dtype(dtype))

    # -- what a push does

    def set_optimizer(self, optimizer: Mapping[str, Any] | Described) -> None:
        """Make every later push a gradient, with which the stored value makes one step of the optimizer: one of
        `mezzo.optimizer`, or its `to_dict()`. It travels as data. Every worker calls it."""
        data = optimizer if isinstance(optimizer, Mapping) else optimizer.to_dict()
        self._backend.set_optimizer(data)
        self._steps = True

    def set_updater(self, updater: Updater | Rule) -> None:
        """Let a rule (`mezzo.kv.rule`) define every later push or, in one process, `updater(key, received, stored)`,
        which changes `stored` in place. Raises InputError for a function in the dist kinds: code does not travel."""
        if isinstance(updater, Rule):
            self._backend.set_optimizer(updater.to_dict())
        else:
            self._backend.set_updater(by_names(updater, self._names))
        self._steps = True

    def set_compression(self, scheme: str | Mapping[str, int] | None) -> None:
        """Pack the values (float32) of keys that are declared from now on where they travel between hosts, by a scheme
        of `packing.py` or, by size, by several: `{"fp16": 64 << 10, "2bit": 1 << 20}` gives each the bytes from which
        on it counts. Every worker calls it, with the same. Raises InputError."""
        self._backend.set_compression(Packings.of(scheme))

    def drop_losses(self) -> None:
        """Forget what compression has lost so far. Every worker calls it, when what it pushed has ended."""
        self._given.clear()
        self._backend.drop_losses()

    def take_losses(self) -> dict[Key, Array]:
        """Return what compression has lost so far on all workers and servers together, by key, for a checkpoint; nobody
        has it any more (see `give_losses`). That is a round of each key: its value is what was lost then. Every worker
        calls it, when what it pushed has ended; what rank 0 gets is whole. With an optimizer on the store it is
        dropped."""
        found: dict[Key, Array] = {self._names[n]: a for n, a in self._backend.take_losses().items()}
        for key, lost in self._given.items():
            found[key] = found[key] + lost if key in found else lost
        self._given.clear()
        return found

    def give_losses(self, lost: Mapping[Key, Array]) -> None:
        """Have rank 0 add to its next push of each key what was lost before (`take_losses`). Every worker calls it."""
        for key, array in lost.items():
            declared = self._of(key, "give_losses")
            (given,) = self._arrays(declared, array, "give_losses")
            if self.rank == 0:
                self._given[key] = given + self._given[key] if key in self._given else given

    def _with_losses(self, declared: Declared, arrays: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the arrays of a push, with what was lost before."""
        lost = self._given.pop(declared.key, None) if self._given else None
        return arrays if lost is None else (*arrays, lost)

    def save_optimizer_states(self, path: str | PathLike[str]) -> None:
        """Write the optimizer and its states to a file (safetensors), which is replaced as a whole. Every worker calls
        it; rank 0 writes. Raises ModelError where that cannot be done, InputError without an optimizer."""
        saved = self._backend.states()
        if self.rank == 0:
            write_states(path, saved)
        self.barrier()

    def load_optimizer_states(self, path: str | PathLike[str]) -> None:
        """Take optimizer and states from such a file. Every worker calls it. Raises ModelError for another file."""
        self._backend.load_states(read_states(path))
        self._steps = True

    # -- all together

    def barrier(self) -> None:
        """Return when every worker is here: pulls find what was pushed before. A DeadlineError names who is not."""
        if {*self.consistency} != {"sequential"}:  # there pulls wait for the pushes of all anyway
            settled(self._pace, [d.later for d in [*self._declared.values()]])
        self._pace.wait_for_others(self._backend.barrier)

    def stats(self) -> Stats:
        """Counters of this process, and how the workers get on. One alone may ask."""
        found, view = self._backend.stats(), self._backend.overview()
        splits = {rank: Split.of(rank, counts) for role, rank, _, _, counts in view.members if role == "worker"}
        ranks = {rank: split for rank, split in splits.items() if split is not None}
        return replace(found, ranks=ranks, straggler=straggler(ranks.values()))

    def stepped(self, loss: float | None = None) -> None:
        """Say that a step of the training has ended, with its loss, in loops of your own (a Trainer says it): `stats`
        and `mezzo top` tell then what a step is made of. The first call begins the count. It costs clock reads, and a
        small message a second."""
        if (due := self._pace.stepped(loss)) is not None:
            self._backend.report(due)
        self._pace.end_if_enough(self.close)

    def batches(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """The same batches, whose waits count as those for data (those of a DataLoader, or of a fit, do anyway)."""
        return timed(batches)

    def watch(self, *, trace: bool = False, verbose: bool = False) -> Watch:
        """Time every operation from now on: `timings` by verb and key, Prometheus text and, with `trace`, when every
        worker calls it, a trace whose clock is that of all. `verbose` writes a line of JSON for each event to standard
        error, as MEZZO_KV_VERBOSE=1 does for every store."""
        from .watching import watched

        self._backend = made = watched(self._backend, self._pace, self.consistency, trace, verbose)
        return made.watch

    @property
    def rejoins(self) -> bool:
        """True if the job waits for others in the place of workers that die (`mezzo launch --rejoin`)."""
        return self._backend.rejoins

    @property
    def gathering(self) -> int:
        """Number of times that the job has gathered again."""
        return self._backend.gathering

    def rejoin(self) -> None:
        """After a failure: meet the other workers again, one in the place of who has died; no key is declared. Every
        worker calls it. Raises the failure where the job does not go on, InputError where nothing failed or `steps`."""
        self._backend = self._backend.again()
        self._begin()

    def close(self) -> None:
        """Leave the store, as the end of the process does. Others may go on with what needs nothing from this one."""
        self.__exit__(None, None, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._closed = True
        closed(self)
        self._declared.clear()
        self._backend.close(error)

    # -- what a caller gave

    def _to_host(self, key: Any, value: Any) -> Any:
        """Return what is pushed with arrays of GPUs in memory of the host, where the store is of one process."""
        if self.kind not in OF_ONE:
            return value
        together = self.kind == "device"
        if isinstance(key, list | tuple) and isinstance(value, list | tuple):  # one for each key
            return [to_host(x, together) for x in value]
        return to_host(value, together)

    def _host_copies(self, out: Any) -> tuple[Any, HostCopies]:
        """Return the arrays to fill, and those of GPUs that get what comes."""
        copies: HostCopies = []
        return (host_copies(out, copies) if self.kind in OF_ONE else out), copies

    def _here(self, verb: str) -> str:
        return f"{verb} in {self.kind}, rank {self.rank}"

    def _pairs(self, key: Keys, value: Any, verb: str) -> list[tuple[Key, Any]]:
        """Return each key with its argument (None if there is none)."""
        if not isinstance(key, list | tuple):
            return [(cast(Key, key), value)]
        if value is None:
            return [(one, None) for one in key]
        if not isinstance(value, list | tuple) or len(value) != len(key):
            count = len(value) if isinstance(value, list | tuple) else "one value"
            raise InputError(f"{len(key)} keys, but {count}", where=self._here(verb), hint="give one value for each")
        return list(zip(key, value, strict=True))

    def _each(self, verb: str, key: Keys, *given: Any) -> Sequence[tuple[Any, ...]]:
        """Return the declaration of each key, with its arguments."""
        if not isinstance(key, list | tuple):
            return ((self._of(cast(Key, key), verb), *given),)
        keys = [self._of(one, verb) for one in key]
        values = ([value for _, value in self._pairs(key, each, verb)] for each in given)
        return [*zip(keys, *values, strict=True)]

    def _declare(self, key: Any, value: Array) -> Declared:
        if isinstance(key, bool) or not isinstance(key, str | int | np.integer) or key == "":
            raise InputError(f"{key!r} is no key", where=self._here("init"), hint="keys are strings or integers")
        key = key if isinstance(key, str) else int(key)
        name = key if isinstance(key, str) else f"#{key}"
        if name in self._names:
            former = self._names[name]
            why = "is declared already" if former == key else f"would be confused with {former!r}"
            raise InputError(f"key {key!r} {why}", where=self._here("init"), hint="declare each key once")
        if value.dtype.hasobject or value.dtype.names is not None or value.dtype.kind in "USMm":
            raise InputError(f"key {key!r} has elements {value.dtype}, not numbers", where=self._here("init"))
        return Declared(key, name, value.shape, value.dtype)

    def _of(self, key: Key, verb: str) -> Declared:
        declared = self._declared.get(key)
        if declared is None:
            if self._closed:
                raise InputError("the store is closed", where=self._here(verb))
            other = next((k for k in self._declared if str(k) == str(key)), None)
            hint = "declare it with init" if other is None else f"declared is {other!r}, which is another key"
            raise InputError(f"key {key!r} is not declared", where=self._here(verb), hint=hint)
        return declared

    def _arrays(
        self, declared: Declared, given: Any, verb: str, *, writable: bool = False, shape: tuple[int, ...] | None = None
    ) -> tuple[Array, ...]:
        """Return the checked arrays of one key."""
        if given is None:
            if verb == "push":
                raise InputError(f"key {declared.key!r} was given no array", where=self._here(verb))
            return ()
        plain = given.__class__ is np.ndarray and shape is None and not (writable and not given.flags.writeable)
        if plain and given.shape == declared.shape and given.dtype is declared.dtype:
            return (given,)  # as nearly always
        arrays = tuple(given) if isinstance(given, list | tuple) else (given,)
        wanted = declared.shape if shape is None else shape
        for i, array in enumerate(arrays):
            if array.__class__ is not np.ndarray and not isinstance(array, Ordered):
                raise InputError(
                    f"key {declared.key!r} was given a {type(array).__name__}, not an array", where=self._here(verb)
                )
            if isinstance(array, Ordered) and array.device.name != "cpu":
                raise InputError(
                    f"key {declared.key!r} was given an array on {array.device}",
                    where=self._here(verb),
                    hint="bring it to the host: x.to_device(mz.cpu())",
                )
            if array.shape != wanted or array.dtype != declared.dtype:
                which = f"value {i} of {len(arrays)}" if len(arrays) > 1 else "the value"
                raise ShapeError(
                    f"key {declared.key!r} was declared as {declared.dtype}{list(declared.shape)}; {which} is "
                    f"{array.dtype}{list(array.shape)}" + (f", not of shape {list(wanted)}" if shape else ""),
                    where=self._here(verb),
                )
            if writable and array.__class__ is np.ndarray and not array.flags.writeable:
                raise InputError(f"key {declared.key!r}: the array to fill is read-only", where=self._here(verb))
        return arrays

    def _rows(self, declared: Declared, given: Any, verb: str = "row_sparse_pull") -> Array:
        rows = np.asarray(given)
        where = self._here(verb)
        if not declared.shape:
            raise ShapeError(f"key {declared.key!r} has no rows", where=where)
        if rows.ndim != 1 or (rows.size and rows.dtype.kind not in "iu"):
            raise InputError(f"row_ids are {rows.dtype}{list(rows.shape)}, not one list of integers", where=where)
        if rows.size and not 0 <= int(rows.min()) <= int(rows.max()) < declared.shape[0]:
            raise InputError(
                f"row_ids reach from {rows.min()} to {rows.max()}; key {declared.key!r} has {declared.shape[0]} rows",
                where=where,
            )
        return rows.astype(np.int64)

    def _rows_given(self, declared: Declared, given: Rows, verb: str) -> Rows:
        """Return some rows of a value, checked."""
        ids = self._rows(declared, given[0], verb)
        check_rows(declared, ids, given[1], self._here(verb))
        return ids, given[1]

    def _push_rows(self, declared: Declared, given: Rows) -> Array:
        """Return the numbers of the rows that were stepped, where rows were."""
        ids, rows = self._rows_given(declared, given, "push")
        stepped = [(ids, rows)]

        def sum(ids: Array, rows: Array) -> Rows:
            stepped.append(self._sums.sum(declared.name, ids, rows, 0))
            return stepped[-1]

        self._pace.wait(self._start(declared, self._backend.push_rows, (declared.name, ids, rows, sum), (), True))
        return stepped[-1][0]

    def _rows_now(self, declared: Declared, ids: Array, priority: int) -> Array:
        found = np.empty((len(ids), *declared.shape[1:]), declared.dtype)
        args = declared.name, ids, (found,), priority
        self._pace.wait(self._start(declared, self._backend.pull_rows, args, (), True))
        return found

    def _pushpull_rows(self, declared: Declared, given: Rows, out: Any, priority: int) -> None:
        if not self._steps:
            fill(declared, out, self.sum_rows(declared.key, *given, priority=priority), self._here("pushpull"))
            return
        self._push_rows(declared, given)
        if are_rows(out):
            self.row_sparse_pull(declared.key, out, given[0], priority=priority)
        else:
            self.pull(declared.key, out, priority=priority)

    # -- what a caller gets

    def _started(
        self, start: Callable[..., Ticket], calls: Sequence[Call], wait: bool | None
    ) -> Sequence[Ticket | AsyncHandle]:
        """Start all operations of a call, whose arguments have been checked."""
        return [self._start(declared, start, args, outs, wait) for declared, args, outs in calls]

    def _start(
        self,
        declared: Declared,
        start: Callable[..., Ticket],
        args: tuple[Any, ...],
        outs: tuple[Any, ...],
        wait: bool | None,
    ) -> Ticket | AsyncHandle:
        """Have an operation started: now, or by the engine when those before it on its key, and on arrays of the
        engine, have ended."""
        later = declared.later
        if wait is not False and not any(
            x.__class__ is not np.ndarray for given in args if given.__class__ is tuple for x in given
        ):
            if later is not None:
                declared.later = None
                if later.ticket is None:
                    later.work.wait()
            return start(*args)
        if declared.variable is None:
            declared.variable = engine().variable(f"key {declared.key!r}")
        declared.later = later = AsyncHandle(start, args, declared.variable, args[-1], outs)
        return later

    def _ended(self, tickets: Sequence[Ticket | AsyncHandle], wait: bool | None) -> Handle | None:
        if wait is False:
            return Handle(tickets, self._pace.wait)
        for ticket in tickets:
            if wait or not isinstance(ticket, AsyncHandle):
                self._pace.wait(ticket)
        return None

    def _pulled(
        self, tickets: Sequence[Ticket | AsyncHandle], key: Keys, out: Any, wait: bool | None, copies: HostCopies
    ) -> Any:
        if copies:
            for ticket in tickets:
                self._pace.wait(ticket)
            copy_back(copies)
        if wait is False:
            return Handle(tickets, self._pace.wait)
        if out is not None:
            return self._ended(tickets, wait)
        values = [self._pace.wait(ticket) for ticket in tickets]
        return values if isinstance(key, list | tuple) else values[0]


def _spread(key: Any, *given: Any) -> list[Any]:
    """A mapping as its keys and, wherever nothing else is given, its values."""
    if not isinstance(key, Mapping):
        return [key, *given]
    values = ([*key.values()] if v is None else [v[k] for k in key] if isinstance(v, Mapping) else v for v in given)
    return [list(key), *values]
