"""Memory with a shadow: which bytes may be touched, which mean anything, and who has read and written them.

A unit is the narrowest access that a kernel makes to a space; shadows are kept for units. A thread is a number over the
grid; two accesses of a unit by different threads, one of them a write, are a race unless a barrier of their block lies
between them. Threads of different blocks have none.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
BASE = 0x7F1000000000  # the address of the first byte of global memory


class Fault(Exception):
    """What a kernel does that it must not."""


class Space:
    """Bytes of one kind of memory. `across` is the number of threads in a block, by which threads are told apart into
    blocks; where it is 0, memory is each thread's own and has no races."""

    def __init__(self, name: str, nbytes: int, unit: int, across: int, base: int = 0) -> None:
        count = -(-nbytes // 16) * (16 // unit)
        self.name, self.unit, self.across, self.base, self.nbytes = name, unit, across, base, nbytes
        self.bytes: Array = np.full(count * unit, 0xFF, np.uint8)
        self.inside, self.defined = np.zeros(count, bool), np.zeros(count, bool)
        self.writable = np.zeros(count, bool)
        self.begin_launch()

    def begin_launch(self) -> None:
        """Nobody has read or written anything."""
        if not self.across:
            return
        count = len(self.inside)
        self._writer, self._written = np.full(count, -1, np.int64), np.zeros(count, np.int32)
        self._reader, self._read = np.full(count, -1, np.int64), np.zeros(count, np.int32)
        self._several, self._blocks = np.zeros(count, bool), np.zeros(count, bool)
        self._atomic = np.zeros(count, bool)

    def allow(self, begin: int, nbytes: int, writable: bool, held: bytes | None = None) -> None:
        """Bytes that exist; they mean something from the beginning if they are told."""
        first, last = begin // self.unit, (begin + nbytes) // self.unit
        self.inside[first:last] = True
        self.writable[first:last] = writable
        self.defined[first:last] = held is not None
        if held is not None:
            self.bytes[begin : begin + nbytes] = np.frombuffer(held, np.uint8)

    def _units(self, address: Array, nbytes: int, lanes: Array, verb: str, may: Array) -> Array:
        """The numbers of the units at addresses, [lane, unit]. Raises Fault for those outside, or not aligned."""
        at = address.astype(np.int64) - self.base
        if (at % nbytes).any():
            bad = int(np.flatnonzero(at % nbytes)[0])
            raise Fault(f"{verb} {nbytes} bytes of {self.name} memory at an address that is no multiple of them: "
                        f"{at[bad]:#x}, thread {lanes[bad]}")  # fmt: skip
        units = (at // self.unit)[:, None] + np.arange(nbytes // self.unit)
        low = (units < 0) | (units >= len(may))
        if low.any() or not may[units].all():
            wrong = low.any(1) if low.any() else ~may[units].all(1)
            bad = int(np.flatnonzero(wrong)[0])
            raise Fault(
                f"{verb} {self.name} memory where it may not: {at[bad]:#x}, {nbytes} bytes, thread {lanes[bad]}"
            )
        return units

    def load(
        self, address: Array, kind: Any, count: int, lanes: Array, epochs: Array, constant: bool
    ) -> tuple[Any, Any]:
        """Elements at addresses as [element, lane], and which of them mean nothing (None for no one)."""
        size = kind.itemsize
        units = self._units(address, size * count, lanes, "reads", self.inside)
        if self.across:
            self._note_reads(units, lanes, epochs, constant)
        at = (address.astype(np.int64) - self.base) // size
        values = self.bytes.view(kind)[at + np.arange(count)[:, None]]
        known = self.defined[units]
        if known.all():
            return values, None
        return values, ~known.reshape(len(lanes), count, -1).all(2).T

    def store(self, address: Array, values: Array, unknown: Any, lanes: Array, epochs: Array) -> None:
        """Elements [element, lane] to addresses; `unknown` tells which mean nothing."""
        count, size = len(values), values.dtype.itemsize
        units = self._units(address, size * count, lanes, "writes", self.writable)
        if self.across:
            self._note_writes(units, lanes, epochs)
        at = (address.astype(np.int64) - self.base) // size
        self.bytes.view(values.dtype)[at + np.arange(count)[:, None]] = values
        if unknown is None:
            self.defined[units] = True
        else:
            self.defined[units] = ~np.repeat(unknown.T, size // self.unit, 1)

    def update(self, address: Array, kind: Any, change: Any, lanes: Array, epochs: Array) -> tuple[Array, Any]:
        """Elements of an atomic operation, one thread after the other: `change(old, i)` is what stands there next."""
        units = self._units(address, kind.itemsize, lanes, "updates", self.writable)
        if self.across:
            self._note_writes(units, lanes, epochs, atomic=True)
        at = (address.astype(np.int64) - self.base) // kind.itemsize
        held, old = self.bytes.view(kind), np.empty(len(lanes), kind)
        unknown = ~self.defined[units].all(1)
        for i, place in enumerate(at.tolist()):
            old[i] = held[place]
            held[place] = change(held[place], i)
        return old, unknown if unknown.any() else None

    # -- races ------------------------------------------------------------------------------------------------------

    def _apart(self, one: Array, other: Array) -> Array:
        apart: Array = one // self.across != other // self.across
        return apart

    def _note_reads(self, units: Array, lanes: Array, epochs: Array, constant: bool) -> None:
        live = self.writable[units[:, 0]]
        if not live.any():
            return
        if not live.all():
            units, lanes, epochs = units[live], lanes[live], epochs[live]
        who, when = lanes[:, None], epochs[:, None]
        writer = self._writer[units]
        if constant and (writer >= 0).any():
            raise Fault(
                f"bytes of {self.name} memory are read as constant that the same launch has written: {self._of(writer)}"
            )
        late = (writer >= 0) & (writer != who) & ((self._written[units] >= when) | self._apart(writer, who))
        if late.any():
            self._race(late, who, "reads", writer, "writes", units)
        reader, before = self._reader[units], self._read[units]
        other = (reader >= 0) & (reader != who)
        self._blocks[units] |= other & self._apart(reader, who)
        again = before == when
        several = (self._several[units] | other) & again
        self._reader[units] = np.broadcast_to(who, units.shape)
        self._read[units] = np.maximum(before, when)
        several |= self._reader[units] != who  # of the same instruction
        self._blocks[units] |= self._apart(self._reader[units], who)
        self._several[units] = several

    def _note_writes(self, units: Array, lanes: Array, epochs: Array, atomic: bool = False) -> None:
        who, when = lanes[:, None], epochs[:, None]
        writer = self._writer[units]
        late = (writer >= 0) & (writer != who) & ((self._written[units] >= when) | self._apart(writer, who))
        if atomic:
            late &= ~self._atomic[units]
        if late.any():
            self._race(late, who, "writes", writer, "writes", units)
        reader = self._reader[units]
        other = (reader != who) | self._several[units]
        late = (reader >= 0) & other & ((self._read[units] >= when) | self._apart(reader, who)) | self._blocks[units]
        if late.any():
            self._race(late, who, "writes", reader, "reads", units)
        self._writer[units] = np.broadcast_to(who, units.shape)
        self._written[units] = np.broadcast_to(when, units.shape)
        if not atomic and (self._writer[units] != who).any():
            both = self._writer[units] != who
            raise Fault(f"a race: threads {self._of(np.broadcast_to(who, both.shape)[both])} and "
                        f"{self._of(self._writer[units][both])} write one place of {self.name} memory")  # fmt: skip
        self._atomic[units] = atomic

    def _race(self, late: Array, who: Array, does: str, other: Array, did: str, units: Array) -> None:
        one = self._of(np.broadcast_to(who, late.shape)[late])
        raise Fault(
            f"a race: thread {one} {does} {self.name} memory that thread {self._of(other[late])} {did}, "
            f"at {self._of(units[late]) * self.unit:#x}"
        )

    @staticmethod
    def _of(found: Array) -> int:
        return int(np.ravel(found)[0])
