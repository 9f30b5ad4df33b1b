"""Traces of a pool's allocations and frees: recorded from a run, kept in a file, replayed on other policies.

The file is JSON, one object a line: a head, `{"mezzo": "memory trace", "version": 1}`, then for each array
`{"t": 12.5, "take": 1, "bytes": 1048576, "owner": "Conv"}` and `{"t": 80.0, "give": 1}`, in order; `t` is microseconds
since the beginning, `take` and `give` the number of the array. What was never given back was alive at the end.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter_ns
from typing import Any, NamedTuple, TypeGuard

from ...ops.errors import InputError
from ..files import replace_file
from .allocate import KEEP, POOL
from .ledger import Ledger, PoolStats, Rounding

HEAD = {"mezzo": "memory trace", "version": 1}
MOST = 1 << 22  # events of one trace: some 300 MB of text
LARGEST = 1 << 50  # bytes of one array that a file may tell of
LONGEST = 1 << 12  # characters of a line


class Event(NamedTuple):
    """An array was allocated (`nbytes` for `owner`), or freed (both None); `at` is in microseconds."""

    at: float
    number: int
    nbytes: int | None = None
    owner: str | None = None


class PoolRecorder:
    """Recorder of a pool. The frees of earlier allocations are not recorded."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.missed = 0
        self._begun = perf_counter_ns()

    def took(self, number: int, nbytes: int, owner: str) -> None:
        """An array is out."""
        self._note(Event(self._now(), number, nbytes, owner))

    def gave(self, number: int) -> None:
        """Record that an array has come back."""
        self._note(Event(self._now(), number))

    def _note(self, event: Event) -> None:
        if len(self.events) < MOST:
            self.events.append(event)
        else:
            self.missed += 1

    def _now(self) -> float:
        return (perf_counter_ns() - self._begun) / 1e3


@contextmanager
def record(path: str | os.PathLike[str]) -> Iterator[PoolRecorder]:
    """`mz.memory.record`: write what the pool of arrays hands out and gets back inside to a file, replaced as a whole.

    A trace ends with its 4,194,304th event; `missed` counts those behind it. `mezzo memory FILE` replays it.

    >>> import tempfile
    >>> from mezzo import nd
    >>> path = os.path.join(tempfile.mkdtemp(), "memory.jsonl")
    >>> with record(path):
    ...     for _ in range(3):
    ...         a = nd.ones((512, 1024)).wait_to_read()
    >>> [event.nbytes for event in read(path) if event.nbytes]
    [2097152, 2097152, 2097152]
    """
    recorder = PoolRecorder()
    POOL.watch(recorder)
    try:
        yield recorder
    finally:
        POOL.watch(None)
        replace_file(path, [text(recorder.events).encode()])


def text(events: Iterable[Event]) -> str:
    """The lines of a file of these events."""
    lines = [json.dumps(HEAD)]
    for at, number, nbytes, owner in events:
        told = {"give": number} if nbytes is None else {"take": number, "bytes": nbytes, "owner": owner}
        lines.append(json.dumps({"t": round(at, 3), **told}))
    return "\n".join([*lines, ""])


def read(path: str | os.PathLike[str]) -> list[Event]:
    """The events of a file. Raises InputError, with the line, for a file that is no trace or contradicts itself."""
    events: list[Event] = []
    out: set[int] = set()
    try:
        with Path(path).open(encoding="utf8") as file:
            for i, line in enumerate(_lines(file), 1):
                if i == 1:
                    if _object(line) != HEAD:
                        raise ValueError(f"it begins with {line[:80]!r}, not with {json.dumps(HEAD)}")
                    continue
                if len(events) == MOST:
                    raise ValueError(f"more than {MOST} events")
                events.append(_event(line, out))
    except (OSError, ValueError, RecursionError) as error:
        where = f"{path}:{len(events) + 2}" if events or out else str(path)
        raise InputError(
            f"no memory trace: {error}", where=where, hint="record one: with mz.memory.record('memory.jsonl'): ..."
        ) from error
    if not events:
        raise InputError("a memory trace without events", where=str(path), hint="arrays below 256 KiB are not recorded")
    return events


def _lines(file: Any) -> Iterator[str]:
    while line := file.readline(LONGEST + 1):
        if len(line) > LONGEST:
            raise ValueError(f"a line of more than {LONGEST} characters")
        yield line


def _object(line: str) -> dict[str, Any]:
    value = json.loads(line)
    if not isinstance(value, dict):
        raise ValueError(f"{line[:80]!r} is no object")
    return value


def _event(line: str, out: set[int]) -> Event:
    """The event of a line; `out` are the numbers of arrays that are out."""
    entry = _object(line)
    at, taken = entry.get("t"), "take" in entry
    number, nbytes, owner = entry.get("take" if taken else "give"), entry.get("bytes"), entry.get("owner")
    if set(entry) != ({"t", "take", "bytes", "owner"} if taken else {"t", "give"}):
        raise ValueError(f"an event has the keys {', '.join(sorted(entry))}")
    if not _whole(number, LARGEST) or at.__class__ not in (int, float) or not 0 <= at < LARGEST:
        raise ValueError(f"{line[:80]!r} is no event")
    if not taken:
        if number not in out:
            raise ValueError(f"array {number} comes back, and is not out")
        out.remove(number)
        return Event(float(at), number)
    if not _whole(nbytes, LARGEST) or not isinstance(owner, str):
        raise ValueError(f"{line[:80]!r} is no event")
    if number in out:
        raise ValueError(f"array {number} is handed out twice")
    out.add(number)
    return Event(float(at), number, nbytes, owner)


def _whole(value: Any, most: int) -> TypeGuard[int]:
    return value.__class__ is int and 0 <= value <= most


def replay(events: Sequence[Event], rounding: Rounding, *, limit: int | None = None, keep: int = KEEP) -> PoolStats:
    """Return the statistics that a pool with these policies would have at the end of a trace, without the memory.

    Raises BudgetError where it would have passed the limit.

    >>> events = [Event(0, 1, 5000, "Add"), Event(1, 1), Event(2, 2, 6000, "Mul"), Event(3, 2)]
    >>> for rounding in (Rounding("naive"), Rounding("round")):
    ...     made = replay(events, rounding)
    ...     print(rounding, made.misses, made.peak_reserved, f"{made.waste:.0%}")
    naive 2 11000 45%
    round:24 1 8192 27%
    """
    ledger = Ledger(rounding, limit, keep, "the replay")
    out: dict[int, tuple[int, int, str]] = {}
    for event in events:
        if event.nbytes is None or event.owner is None:
            ledger.give(*out.pop(event.number), ledger)
        else:
            size, _ = ledger.take(event.nbytes, event.owner)
            out[event.number] = size, event.nbytes, event.owner
    return ledger.stats()
