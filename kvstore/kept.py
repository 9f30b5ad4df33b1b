"""The memory of a server that outlives it: two buffers of each key and one word that says which of them counts.

The launcher holds an anonymous file of the kernel (memfd) for each server and hands it on by descriptor: it has no
name, and is gone when nobody has it. A server that was killed is started again with it, and goes on with the values,
optimizer states and counts that were committed; who had no answer says again what it has pushed, and (rank, step) tells
what counts already.

The file is a list of records, each with a text (JSON) and room for numbers. The first page has a word that says where
the list ends: it is written when a record is complete. A record of a key has two buffers for its value; one of states
has two for each of them. A round reads the buffer that counts and writes the other one, whose first `applied` bytes are
final; then a word of the key is written, and that one counts. Words are aligned, and written by one store each.
Changes of some rows are written down first, and then made in place, once more if need be.
"""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from ..ops.errors import BudgetError
from ..ops.types import Array
from .protocol.keys import Shard, element
from .protocol.messages import SetOptimizer

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
PAGE = mmap.ALLOCATIONGRANULARITY  # bytes: records begin at multiples
ALIGN = 64  # bytes: buffers begin at multiples
VERSION, UPDATES, ERA, APPLIED, COUNTS = range(5)  # words of a buffer; those of each rank follow
PER_RANK = 3  # words: pushes that count, gradients of rows, updates that the value had when this rank read it
RUNNING, KEY, UNIT, ROWS, RANK, NUMBER, AT = range(7)  # words of a change of rows that is written down


class File(Protocol):
    """Bytes that outlive a process."""

    def map(self, offset: int, size: int) -> Bytes:
        """These bytes, zeros where nobody wrote; `offset` is a multiple of PAGE. Raises BudgetError."""
        ...


class MemoryFile:
    """An anonymous file by its descriptor."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def map(self, offset: int, size: int) -> Bytes:
        try:
            if os.fstat(self._fd).st_size < offset + size:
                os.posix_fallocate(self._fd, offset, size)  # now, and not by a signal when it is written
            return np.frombuffer(mmap.mmap(self._fd, size, offset=offset), np.uint8)
        except OSError as error:
            raise BudgetError(
                f"{size} bytes for values that outlive a server cannot be had: {error}",
                where="server",
                hint="launch without --restarts, or with more servers on other hosts",
            ) from error


def store(words: Array, at: int, number: int) -> None:
    """Write a word by one store."""
    words[at] = number


def rounded(size: int, unit: int) -> int:
    return -(-size // unit) * unit


@dataclass(slots=True, eq=False)
class KeptKey:
    """The buffers of a key: of its value, and by name of its states; `words` tell which of them counts, and what of
    it."""

    shard: Shard
    words: Array  # how often the buffers have changed places, then those of each buffer
    rooms: tuple[Bytes, Bytes]
    ranks: int
    first: int  # the rank that has declared it
    left: set[int]  # ranks that take part no more
    states: tuple[dict[str, Bytes], dict[str, Bytes]] = field(default_factory=lambda: ({}, {}))

    @property
    def now(self) -> int:
        """The number of the buffer that counts."""
        return int(self.words[0]) & 1

    def _at(self, buffer: int) -> int:
        return 1 + buffer * (COUNTS + PER_RANK * self.ranks)

    def word(self, which: int, buffer: int | None = None) -> int:
        return int(self.words[self._at(self.now if buffer is None else buffer) + which])

    def counts(self) -> dict[int, int]:
        """By rank that takes part the last push that counts."""
        at = self._at(self.now) + COUNTS
        return {r: count for r, count in enumerate(self.words[at : at + self.ranks].tolist()) if r not in self.left}

    def rows(self) -> dict[int, int]:
        """By rank the gradients of rows that were stepped."""
        at = self._at(self.now) + COUNTS + self.ranks
        return dict(enumerate(self.words[at : at + self.ranks].tolist()))

    def set_here(self, which: int, number: int) -> None:
        """Change a word of the buffer that counts."""
        store(self.words, self._at(self.now) + which, number)

    def set_rows(self, rank: int, number: int) -> None:
        self.set_here(COUNTS + self.ranks + rank, number)

    def set_read(self, rank: int, updates: int) -> None:
        self.set_here(COUNTS + 2 * self.ranks + rank, updates)

    def set_reads(self, updates: int) -> None:
        """All ranks have read the value after so many updates."""
        for rank in range(self.ranks):
            self.set_read(rank, updates)

    def reads(self) -> dict[int, int]:
        at = self._at(self.now) + COUNTS + 2 * self.ranks
        return dict(enumerate(self.words[at : at + self.ranks].tolist()))

    def apply_in_part(self, count: int) -> None:
        """So many bytes of the other buffer are final."""
        store(self.words, self._at(1 - self.now) + APPLIED, count)

    @property
    def applied(self) -> int:
        """Final bytes of the other buffer."""
        return self.word(APPLIED, 1 - self.now)

    def commit(self, version: int, updates: int, era: int, counts: Mapping[int, int]) -> None:
        """The other buffer is complete: it counts from now on, with these numbers."""
        here, there = self._at(self.now), self._at(1 - self.now)
        words, count = self.words, COUNTS + PER_RANK * self.ranks
        words[there + COUNTS : there + count] = words[here + COUNTS : here + count]
        words[there + VERSION], words[there + UPDATES], words[there + ERA] = version, updates, era
        for rank, count in counts.items():
            words[there + COUNTS + rank] = count
        store(words, here + APPLIED, 0)  # what it counts when it is the other one
        store(words, 0, int(words[0]) + 1)


class Kept:
    """The records of a file. `ranks`: how many speak to this server; `gathering`: of the job, since what was kept in an
    earlier one is forgotten."""

    def __init__(self, file: File, ranks: int, gathering: int = 0) -> None:
        self._file, self._ranks = file, ranks
        self._end = file_words(file.map(0, PAGE), 2)  # the word: bytes of records that count; and of which gathering
        if self._end[1] != gathering:
            store(self._end, 0, 0)
            store(self._end, 1, gathering)
        self.keys: dict[int, KeptKey] = {}
        self.optimizer: SetOptimizer | None = None
        self.era = 0  # how many optimizers there were
        self.left = set[int]()  # ranks that take part no more
        self._spare: dict[int, Bytes] = {}  # by key: room for states
        self._changes: Bytes | None = None  # room in which a change of rows is written down
        self.changes = 0  # bytes of all such rooms, since those that were too small stay
        at = 0
        while at < int(self._end[0]):
            at += self._read(PAGE + at)
        if self._changes is not None:
            self._change_again(self._changes)

    def _read(self, at: int) -> int:
        """Take a record; its size."""
        size, length = file_words(self._file.map(at, PAGE), 2).tolist()
        room = self._file.map(at, size)
        about = json.loads(room[16 : 16 + length].tobytes())
        self._take(about, room[rounded(16 + length, ALIGN) :])
        return int(size)

    def _take(self, about: dict[str, Any], room: Bytes) -> None:
        match about["is"]:
            case "key":
                shard = Shard(about["name"], about["dtype"], tuple(about["shape"]), about["lo"], about["hi"])
                count = 1 + 2 * (COUNTS + PER_RANK * self._ranks)
                first = rounded(8 * count, ALIGN)
                second = first + rounded(shard.nbytes, ALIGN)
                rooms = (room[first : first + shard.nbytes], room[second : second + shard.nbytes])
                self.keys[about["number"]] = KeptKey(
                    shard, file_words(room, count), rooms, self._ranks, about["rank"], self.left
                )
            case "left":
                self.left.add(about["rank"])
            case "came":
                self.left.discard(about["rank"])
            case "optimizer":
                self.optimizer = SetOptimizer(about["name"], about["scalars"])
                self.era += 1
                for key in self.keys.values():
                    key.states = ({}, {})
            case "states":
                key, spare = self.keys[about["key"]], self._spare.get(about["key"], room[:0])
                self._spare[about["key"]] = spare = spare if about.get("reuse") else room
                nbytes, step = key.shard.nbytes, rounded(key.shard.nbytes, ALIGN)
                for buffer, states in enumerate(key.states):
                    for number, slot in enumerate(about["slots"]):
                        lo = (buffer * len(about["slots"]) + number) * step
                        states[slot] = spare[lo : lo + nbytes]
            case "changes":
                self._changes = room
                self.changes += room.size

    def _append(self, about: dict[str, Any], size: int = 0, fill: Callable[[Bytes], None] = lambda room: None) -> None:
        """Write a record with room for so many bytes, which `fill` writes before it counts. Raises BudgetError."""
        text, at = json.dumps(about).encode(), int(self._end[0])
        first = rounded(16 + len(text), ALIGN)
        room = self._file.map(PAGE + at, total := rounded(first + size, PAGE))
        file_words(room, 2)[:] = total, len(text)
        room[16 : 16 + len(text)] = np.frombuffer(text, np.uint8)
        fill(room[first:])
        self._take(about, room[first:])
        store(self._end, 0, at + total)

    def declare(self, key: int, shard: Shard, rank: int) -> None:
        """Take the buffers of a new key of that number, which this rank has declared; nothing if it has them."""
        if key in self.keys:
            return
        words = 1 + 2 * (COUNTS + PER_RANK * self._ranks)
        size = rounded(8 * words, ALIGN) + 2 * rounded(shard.nbytes, ALIGN)

        def fill(room: Bytes) -> None:
            numbers = file_words(room, words)
            numbers[:] = 0
            numbers[1 + VERSION] = numbers[1 + COUNTS + PER_RANK * self._ranks + VERSION] = -1

        about = {"is": "key", "number": key, "name": shard.name, "dtype": shard.dtype, "shape": shard.shape}
        self._append({**about, "lo": shard.lo, "hi": shard.hi, "rank": rank}, size, fill)

    def leave(self, rank: int) -> None:
        """This rank takes part no more."""
        self._append({"is": "left", "rank": rank})

    def come(self, rank: int, counts: Mapping[int, int]) -> None:
        """This rank takes part again, as if it had pushed so often to each key."""
        for key, count in counts.items():
            self.keys[key].set_here(COUNTS + rank, count)
        self._append({"is": "came", "rank": rank})

    def set_optimizer(self, optimizer: SetOptimizer) -> None:
        """Another optimizer than before: there are no states, and no updates."""
        self._append({"is": "optimizer", "name": optimizer.name, "scalars": dict(optimizer.scalars)})

    def add_states(self, key: int, states: Mapping[str, Array]) -> None:
        """Take states before their first step."""
        kept, slots = self.keys[key], list(states)
        step = rounded(kept.shard.nbytes, ALIGN)
        size, now = 2 * len(slots) * step, kept.now

        def fill(room: Bytes) -> None:
            for number, state in enumerate(states.values()):
                lo = (now * len(slots) + number) * step
                room[lo : lo + state.nbytes] = state.reshape(-1).view(np.uint8)

        about, spare = {"is": "states", "key": key, "slots": slots}, self._spare.get(key)
        if spare is not None and spare.size >= size:
            fill(spare)
            self._append({**about, "reuse": True})
        else:
            self._append(about, size, fill)

    def updates(self, key: KeptKey) -> int:
        """Updates of a key by the optimizer that there is now."""
        return key.word(UPDATES) if key.word(ERA) == self.era else 0

    def reads(self, key: KeptKey) -> dict[int, int]:
        """By rank the updates of a key, by that optimizer, when it read the value."""
        if key.word(ERA) != self.era:  # it may be that they were to be cleared
            key.set_reads(0)
        return key.reads()

    def set_updates(self, key: KeptKey, updates: int) -> None:
        key.set_here(UPDATES, updates)
        key.set_here(ERA, self.era)

    # --- rows

    def change_rows(
        self, key: int, at: Array, parts: Mapping[str, Array], updates: int, rank: int, number: int
    ) -> None:
        """Change some rows of the buffers that count, all or none of them."""
        pieces = [at, *parts.values()]
        if size := self.lacking(pieces):
            self._append({"is": "changes"}, size, lambda room: store(file_words(room, AT), RUNNING, 0))
        room = self._changes
        assert room is not None
        words = file_words(room, AT)
        width = parts[""].shape[1]
        words[KEY:AT] = key, width, len(at), rank, number
        words[RUNNING] = 0
        lo = ALIGN
        for piece in pieces:
            room[lo : lo + piece.nbytes] = np.ascontiguousarray(piece).reshape(-1).view(np.uint8)
            lo += rounded(piece.nbytes, ALIGN)
        store(words, RUNNING, updates)
        self._change_again(room)

    def lacking(self, pieces: Sequence[Array]) -> int:
        """Bytes of a new room in which a change of rows of these arrays is written down; 0 if it fits into the one that
        is there. A new one is twice as large at least, so that all of them are less than twice the largest."""
        size, now = 8 * AT + sum(rounded(piece.nbytes, ALIGN) for piece in pieces) + ALIGN, self._changes
        if now is not None and now.size >= size:
            return 0
        size = max(size, 0 if now is None else 2 * now.size)
        return rounded(size + ALIGN, PAGE) - ALIGN  # with what stands before it, whole pages

    def _change_again(self, room: Bytes) -> None:
        """Make the change of rows that is written down, if there is one."""
        words = file_words(room, AT)
        updates, key, width, count, rank, number = words[:AT].tolist()
        if not updates:
            return
        kept = self.keys[key]
        at, lo = room[ALIGN : ALIGN + 8 * count].view(np.int64), ALIGN + rounded(8 * count, ALIGN)
        size = width * element(kept.shard.dtype).itemsize
        for table in (kept.rooms[kept.now], *kept.states[kept.now].values()):
            table.reshape(-1, size)[at] = room[lo : lo + count * size].reshape(count, size)
            lo += rounded(count * size, ALIGN)
        self.set_updates(kept, updates)
        kept.set_rows(rank, number)
        store(words, RUNNING, 0)


def file_words(room: Bytes, count: int) -> Array:
    """The first so many words of a room."""
    return room[: 8 * count].view(np.int64)
