"""The memory of a server: for each key the value, the sum of the open round, staged pushes, and optimizer states.

The machine (protocol/rounds.py) decides what happens to these bytes; here it happens. Everything that grows is counted
against a limit before it is taken.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from ..ops.errors import BudgetError, InputError, ModelError, WireError
from ..ops.types import Array, DType
from .protocol.keys import Keys, Shard, element
from .protocol.messages import SetOptimizer
from .updater import ChangedRows, UpdateRule
from .wire import FRAME

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Described = tuple[tuple[str, str, tuple[int, ...]], ...]  # name, element type and shape of arrays
UPDATES = "updates"
Into = Literal["sum", "staging", "value", "nothing"]
SPARE = 8  # blocks that are kept for the next push


class Budget:
    """Bytes that may be allocated."""

    def __init__(self, most: int) -> None:
        self.most, self.taken = most, 0

    def take(self, count: int, what: str) -> None:
        """Count these bytes. Raises BudgetError, and counts nothing, where that passes the limit."""
        if self.taken + count > self.most:
            raise BudgetError(
                f"{what} needs {count} bytes, {self.most - self.taken} of {self.most} are left",
                where="server",
                hint="start more servers, or raise MEZZO_KV_MEMORY",
            )
        self.taken += count


class Blocks:
    """Staging memory in blocks of one frame; the block used last is taken first, since it is in the cache."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._spare: list[Bytes] = []

    def take(self, count: int) -> Bytes:
        if count < FRAME // 2:
            self._budget.take(count, "a staged push")
            return np.empty(count, np.uint8)
        if self._spare:
            return self._spare.pop()[:count]
        self._budget.take(FRAME, "a staged push")
        return np.empty(FRAME, np.uint8)[:count]

    def give(self, block: Bytes) -> None:
        if not block.flags.writeable:  # lent, and not ours
            return
        whole = block if block.base is None else block.base
        if whole.size == FRAME and len(self._spare) < SPARE:
            self._spare.append(whole)
        else:
            self._budget.taken -= whole.size


class Room:
    """Memory of one shard, as elements and as bytes to send and receive; in `place` where that is given."""

    __slots__ = ("array", "data")

    def __init__(self, shard: Shard, dtype: np.dtype[Any], place: Bytes | None = None) -> None:
        self.array = np.zeros(shard.nbytes // dtype.itemsize, dtype) if place is None else place.view(dtype)
        self.data: memoryview = self.array.view(np.uint8).data


@dataclass(slots=True)
class Held:
    """One shard."""

    shard: Shard
    nbytes: int
    dtype: np.dtype[Any]
    value: Room
    sum: Room
    step: int = -1  # of the value
    applied: int = 0  # bytes of the sum that are applied already, as those of the next step
    adopting: bool = False  # they stay in the sum, which becomes the value when all are
    staged: dict[int, deque[tuple[int, Bytes]]] = field(default_factory=dict[int, deque[tuple[int, Bytes]]])
    base: Array | None = None  # the first rank's push, where it is lent: bytes [low, high) of it are not in the sum yet
    low: int = 0
    high: int = 0
    states: dict[str, Array] = field(default_factory=dict[str, Array])
    updates: int = 0  # whole steps that the optimizer has made
    rows: dict[int, int] = field(default_factory=dict[int, int])  # by rank: gradients of rows that were stepped
    loaded: int = 0  # updates that the value had when states were loaded, which all have read
    reads: dict[int, int] = field(default_factory=dict[int, int])  # by rank: updates of the value that it has read

    def staleness(self, rank: int) -> int:
        """Updates that the value has had since this rank read it."""
        return self.updates - self.reads.get(rank, self.loaded)

    def elements(self, room: Room, lo: int, hi: int) -> Array:
        """The bytes [lo, hi) of the value or of the sum."""
        if hi - lo == self.nbytes:
            return room.array
        return room.array[lo // self.dtype.itemsize : hi // self.dtype.itemsize]


class Shards:
    """All keys of a server."""

    def __init__(self, keys: Keys, budget: Budget, by_staleness: bool = False) -> None:
        self.keys, self.budget, self._by_staleness = keys, budget, by_staleness
        self.optimizer: SetOptimizer | None = None
        self._rule: UpdateRule | None = None
        self._blocks = Blocks(budget)
        self._held: dict[int, Held] = {}
        self._nothing = memoryview(bytearray(FRAME))

    def declare(self, key: int) -> Held:
        """Take the memory of an admitted key, once. Raises BudgetError."""
        if key not in self._held:
            shard = self.keys[key]
            self.budget.take(2 * shard.nbytes, f"key {shard.name!r}")
            dtype = np.dtype(element(shard.dtype).numpy)
            self._held[key] = Held(shard, shard.nbytes, dtype, Room(shard, dtype), Room(shard, dtype))
        return self._held[key]

    def __getitem__(self, key: int) -> Held:
        return self._held[key]

    def __iter__(self) -> Iterator[int]:
        return iter(self._held)

    # --- ranks

    def counts(self, key: int) -> dict[int, int] | None:
        """By rank the last push to a key that counts, as it was kept of an earlier server; None where nothing was."""
        return None

    @property
    def left(self) -> frozenset[int]:
        """Ranks that take part no more, in what was kept of an earlier server."""
        return frozenset()

    def leave(self, rank: int) -> None:
        """A rank takes part no more."""

    def come(self, rank: int, counts: Mapping[int, int]) -> None:
        """A rank takes part again, as if it had pushed so often to each key."""

    # --- receiving

    def place(self, key: int, rank: int, lo: int, hi: int, into: Into) -> memoryview:
        """Return the memory for the bytes [lo, hi) of a push."""
        held = self._held[key]
        if into == "sum":
            return held.sum.data[lo:hi]
        if into == "value":
            return held.value.data[lo:hi]
        if into == "nothing":
            return self._nothing[: hi - lo]
        parts = self._staged_below(held, rank, lo)
        block = self._blocks.take(hi - lo)
        parts.append((lo, block))
        return block.data

    def lend(self, key: int, rank: int, lo: int, hi: int, into: Into, keep: int, lent: memoryview) -> None:
        """Take the bytes [lo, hi) of a push, of which those below `keep` are here, from the lent memory of the shard.
        They are read where they lie when they are added."""
        held = self._held[key]
        if into == "sum":
            if held.base is None or held.low >= held.high:
                held.base, held.low = np.frombuffer(lent, held.dtype), max(lo, keep)
            held.high = hi
        elif into == "staging":
            parts = self._staged_below(held, rank, lo)
            block = np.frombuffer(lent[lo:hi], np.uint8)
            block.flags.writeable = False
            parts.append((lo, block))
        elif into == "value":
            held.value.data[lo:hi] = lent[lo:hi]

    def _staged_below(self, held: Held, rank: int, lo: int) -> deque[tuple[int, Bytes]]:
        """Return what a rank staged before offset `lo`, to be appended to. What begins later is dropped: a connection
        was lost amid it, and it comes again."""
        parts = held.staged.get(rank)
        if parts is None:
            parts = held.staged[rank] = deque()
        while parts and parts[-1][0] >= lo:
            self._blocks.give(parts.pop()[1])
        return parts

    def _settle(self, held: Held, hi: int) -> None:
        """Bring the first rank's lent bytes up to `hi` into the sum."""
        if held.base is not None and held.low < min(hi, held.high):
            lo, hi = held.low, min(hi, held.high)
            np.copyto(held.elements(held.sum, lo, hi), self._based(held, lo, hi))
            held.low = hi

    def _based(self, held: Held, lo: int, hi: int) -> Array:
        assert held.base is not None
        return held.base[lo // held.dtype.itemsize : hi // held.dtype.itemsize]

    def _taken(self, held: Held, rank: int, lo: int, hi: int) -> Iterator[tuple[int, Bytes]]:
        """The staged bytes [lo, hi) of a rank, piece by piece with their offsets; free when the next is asked for."""
        parts = held.staged[rank]
        while lo < hi:
            at, block = parts[0]
            stop = min(hi, at + block.size)
            yield lo, block[lo - at : stop - at]
            lo = stop
            if stop == at + block.size:
                parts.popleft()
                self._blocks.give(block)

    # --- computing

    def add(self, key: int, rank: int, lo: int, hi: int, first: bool) -> None:
        """Add staged bytes to the sum, or make them the sum."""
        held = self._held[key]
        for at, piece in self._taken(held, rank, lo, hi):
            total, given = held.elements(held.sum, at, at + piece.size), piece.view(held.dtype)
            stop = at + piece.size
            if first:
                held.base = None
                np.copyto(total, given)
            elif held.base is not None and held.low == at and stop <= held.high:
                np.add(self._based(held, at, stop), given, out=total)
                held.low = stop
            else:
                self._settle(held, stop)
                np.add(total, given, out=total)

    def apply(self, key: int, step: int, lo: int, hi: int, how: str, rank: int | None) -> None:
        """Update the bytes [lo, hi) of the value to `step`."""
        held = self._held[key]
        if rank is not None:
            whole = self._rule is not None and not self._rule.elementwise
            stale = held.staleness(rank) if self._by_staleness else 0
            for at, piece in self._taken(held, rank, lo, hi):
                if whole:
                    held.elements(held.sum, at, at + piece.size)[...] = piece.view(held.dtype)
                else:
                    self._change(held, at, piece.view(held.dtype), how, stale)
            if whole:
                self._change(held, lo, held.elements(held.sum, lo, hi), how, stale)
            self._applied(held, step, how, rank)
            return
        self._settle(held, hi)
        if held.applied + hi - lo >= held.nbytes:
            held.base = None
        if how != "assign":
            self._change(held, lo, held.elements(held.sum, lo, hi), how)
        held.applied += hi - lo
        held.adopting = how == "assign" and held.applied < held.nbytes
        if held.applied < held.nbytes:
            self._applied_in_part(held)
        else:
            self._applied(held, step, how, None)

    def _applied_in_part(self, held: Held) -> None:
        """More of a round is applied, and may be sent."""

    def _applied(self, held: Held, step: int, how: str, rank: int | None) -> None:
        """All of a round, or of a push of this rank, is applied. A sum that becomes the value changes places with it:
        the next one goes where that was."""
        if how == "assign":
            held.value, held.sum = held.sum, held.value
        held.step, held.applied = step, 0
        held.updates += how == "update"

    def given(self, key: int) -> None:
        """The initial value of a key is complete."""
        self._held[key].step = 0

    def _target(self, held: Held, lo: int, hi: int, how: str) -> tuple[Array, dict[str, Array]]:
        """Return the place in which the bytes [lo, hi) of the value are changed and, by an update, those of its states:
        they are there as they are now."""
        size = held.dtype.itemsize
        states = self._states(held) if how == "update" else {}
        parts = {slot: state[lo // size : hi // size] for slot, state in states.items()}
        return held.elements(held.value, lo, hi), parts

    def _change(self, held: Held, lo: int, operand: Array, how: str, stale: int = 0) -> None:
        value, states = self._target(held, lo, lo + operand.nbytes, how)
        if how == "add":
            np.add(value, operand, out=value)
            return
        assert self._rule is not None
        begin = (held.shard.lo + lo) // held.dtype.itemsize
        self._rule.step(held.shard.name, held.updates, value, operand, states, begin, stale)

    def _states(self, held: Held) -> dict[str, Array]:
        """The optimizer states of a shard, taken when they are first needed."""
        if self._rule is not None and not held.states:
            value = held.value.array
            self.budget.take(len(self._rule.optimizer.slots) * value.nbytes, f"states of key {held.shard.name!r}")
            held.states = self._rule.states(held.shard.name, value)
        return held.states

    def view(self, key: int, step: int, lo: int, hi: int) -> memoryview:
        """The bytes [lo, hi) of the value of this step, which may be the sum of a round that is being applied."""
        held = self._held[key]
        return self._source(held, step).data[lo:hi]

    def _source(self, held: Held, step: int) -> Room:
        return held.sum if held.adopting and step > held.step else held.value

    def read(self, key: int, rank: int) -> None:
        """This rank gets the value as it is now."""
        held = self._held[key]
        held.reads[rank] = held.updates

    def slices(self, key: int, starts: Array, width: int, rank: int = 0) -> memoryview:
        """Slices of so many bytes of the value, one after the other, which this rank gets. Raises WireError where
        they do not lie in it, cut elements, or are more than a frame."""
        held = self._held[key]
        size, last = held.dtype.itemsize, held.nbytes - width
        if len(starts) * width > FRAME or width % size or last < 0:
            raise WireError(f"{len(starts)} slices of {width} bytes", where=f"key {held.shard.name!r}")
        if len(starts) and (int(starts.min()) < 0 or int(starts.max()) > last or (starts % size).any()):
            raise WireError(f"slices of {width} bytes outside of {held.nbytes}", where=f"key {held.shard.name!r}")
        self.read(key, rank)
        windows = np.lib.stride_tricks.sliding_window_view(held.value.array, width // size)
        found: memoryview = windows[starts // size].reshape(-1).view(np.uint8).data
        return found

    # --- rows

    def most_rows(self, key: int) -> int:
        """Bytes of rows that a shard has a part of, with their numbers, at most."""
        shard = self._held[key].shard
        width = max(1, math.prod(shard.shape[1:]) * element(shard.dtype).itemsize)
        return (shard.nbytes // width + 2) * (8 + width)

    def step_rows(self, key: int, data: bytearray, first: int, rank: int = 0, number: int = 0) -> None:
        """Step by the gradient of some rows, the `number`-th of this rank: their numbers, then they; once, however
        often it comes (0: it comes once). Raises InputError without an optimizer, WireError for what are no rows of the
        table."""
        held = self._held[key]
        if 0 < number <= held.rows.get(rank, 0):
            return
        shape, dtype = held.shard.shape, held.dtype
        width = math.prod(shape[1:]) * dtype.itemsize
        count, rest = divmod(len(data), 8 + width)
        ids = np.frombuffer(data, np.int64, count)
        ascending = (ids[1:] > ids[:-1]).all() and (not count or 0 <= int(ids[0]) <= int(ids[-1]) < shape[0])
        if not shape or rest or not ascending:
            raise WireError(f"{count} rows that are none of {held.shard}", where=f"key {held.shard.name!r}")
        if self._rule is None:
            raise InputError("there is no optimizer", where=f"key {held.shard.name!r}", hint="call set_optimizer first")
        rows = np.frombuffer(data, dtype, offset=8 * count).reshape(count, *shape[1:])
        begin = held.shard.lo // dtype.itemsize
        tables = {"": held.value.array, **self._states(held)}
        stale = held.staleness(rank) if self._by_staleness else 0
        changed = self._rule.step_rows(held.shard.name, held.updates, tables, (ids, rows), begin, first, stale)
        self._rows_stepped(held, tables, changed, rank, number)

    def _rows_stepped(self, held: Held, tables: dict[str, Array], changed: ChangedRows, rank: int, number: int) -> None:
        """Write what has become of some rows."""
        changed.write(tables)
        held.updates += 1
        held.rows[rank] = number

    # --- optimizers

    @property
    def elementwise(self) -> bool:
        return self._rule is None or self._rule.elementwise

    def set_rule(self, rule: UpdateRule, given: SetOptimizer) -> None:
        """Another optimizer, as it was given, whose states begin anew."""
        self._rule, self.optimizer = rule, given
        for held in self._held.values():
            self.budget.taken -= sum(state.nbytes for state in held.states.values())
            held.states, held.updates, held.loaded = {}, 0, 0
            held.reads.clear()

    def states(self, key: int) -> tuple[Described, list[bytes]]:
        """Names, types and shapes of a shard's states, and their bytes; the number of updates is the last."""
        held = self._held[key]
        arrays = {**self._states(held), UPDATES: np.array(held.updates, np.int64)}
        about = tuple((name, str(element_of(a)), a.shape) for name, a in arrays.items())
        return about, [a.tobytes() for a in arrays.values()]

    def most_states(self, key: int) -> int:
        """Bytes of a shard's states, at most."""
        slots = len(self._rule.optimizer.slots) if self._rule is not None else 0
        return slots * self._held[key].shard.nbytes + 8

    def load_states(self, key: int, about: Described, data: bytes | bytearray) -> None:
        """Take what `states` told. Raises ModelError where that belongs to another optimizer or shard."""
        held = self._held[key]
        mine = {**self._states(held), UPDATES: np.array(held.updates, np.int64)}
        if about != tuple((name, str(element_of(a)), a.shape) for name, a in mine.items()):
            raise ModelError(f"these are no states of {held.shard}", where=f"key {held.shard.name!r}")
        at = 0
        for array in mine.values():
            array.reshape(-1).view(np.uint8)[:] = np.frombuffer(data, np.uint8, array.nbytes, at)
            at += array.nbytes
        held.updates = held.loaded = int(mine[UPDATES])
        held.reads.clear()


def element_of(array: Array) -> DType:
    return DType.of(array.dtype)
