"""The bytes of record files, as MXNet's dmlc library writes them: headers, parts, padding, and the search for damage.

A record is one part or several, each behind the number `MAGIC` and a word with its flag (0 whole; 1, 2, 3: first,
middle, last) and its length, and padded with zeros to 4 bytes. A payload is cut at each 4-aligned `MAGIC`, which is
left out and put back on reading: so every aligned `MAGIC` of a file begins a part, and what follows damage can be
found.
https://mxnet.apache.org/versions/1.9.1/api/architecture/note_data_loading
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..ops.dataclasses import dataclass
from ..ops.errors import InputError
from ..ops.types import Array

MAGIC = 0xCED7230A
MAGIC_BYTES = struct.pack("<I", MAGIC)
WHOLE, FIRST, MIDDLE, LAST = range(4)
LONGEST = (1 << 29) - 1  # bytes of a part
HEADER = struct.Struct("<II")
PIECE = 1 << 24  # bytes that are searched at once

Bytes = bytes | bytearray | memoryview


def encoded(payload: Bytes) -> Iterator[Bytes]:
    """Yield the bytes of a record in a file. Raises InputError for a payload of 512 MiB and more.

    >>> b"".join(encoded(b"x")).hex(" ", 4)
    '0a23d7ce 01000000 78000000'
    """
    size = len(payload)
    if size > LONGEST:
        raise InputError(f"a record of {size} bytes", where="record", hint=f"the format has at most {LONGEST} bytes")
    begin, parts = 0, [*_cuts(payload), size]
    for number, end in enumerate(parts):
        last = number == len(parts) - 1
        flag = (LAST if last else MIDDLE) if number else (WHOLE if last else FIRST)
        yield HEADER.pack(MAGIC, flag << 29 | end - begin)
        yield memoryview(payload)[begin:end]
        begin = end + 4
    yield bytes(-size % 4)


def _cuts(payload: Bytes) -> Iterator[int]:
    """Yield the places of aligned magic numbers inside a payload."""
    text = payload if isinstance(payload, bytes | bytearray) else bytes(payload)
    at = text.find(MAGIC_BYTES)
    while at >= 0:
        if at % 4 == 0:
            yield at
            at += 3
        at = text.find(MAGIC_BYTES, at + 1)


class Damage(Exception):
    """Bytes that are no record, and why."""


def decoded(data: memoryview, end: int) -> memoryview:
    """Return the payload of the record that `data` begins with, of which the next one is known to begin at `end` or
    before. Of bytes behind the record there are at least 8, or all up to `end`.

    A record of one part is a view of `data`. Raises Damage.
    """
    parts: list[memoryview] = []
    at, expected = 0, (WHOLE, FIRST)
    while True:
        if at + 8 > len(data):
            raise Damage(f"its part {len(parts)} would begin at byte {at} of the record, which ends at {len(data)}")
        magic, word = HEADER.unpack_from(data, at)
        flag, length = word >> 29, word & LONGEST
        stop = at + 8 + length
        at, start = stop + -length % 4, at + 8
        if magic != MAGIC:
            raise Damage(f"no magic number at byte {start - 8} of it, but {magic:#010x}")
        if flag not in expected:
            raise Damage(f"its part {len(parts)} has the flag {flag}")
        if at > len(data):
            raise Damage(f"a length of {length} bytes at byte {start - 4} of it leads behind its end at {len(data)}")
        if stop != at and any(data[stop:at]):
            raise Damage(f"the padding behind a length of {length} bytes at byte {start - 4} of it is not zero")
        if flag in (FIRST, MIDDLE) and length % 4:
            raise Damage(f"its part {len(parts)}, which another one follows, has {length} bytes, no multiple of 4")
        parts.append(data[start:stop])
        if flag in (WHOLE, LAST):
            break
        expected = (MIDDLE, LAST)
    if at < end:
        magic, word = HEADER.unpack_from(data, at) if at + 8 <= len(data) else (0, 0)
        if magic != MAGIC or word >> 29 not in (WHOLE, FIRST):
            raise Damage(f"it ends at byte {at} of it, where no other one begins")
    return parts[0] if len(parts) == 1 else memoryview(MAGIC_BYTES.join(parts))


@dataclass(frozen=True, slots=True, eq=False)
class Spans:
    """The records of a file as a search finds them: first bytes, the bytes behind, and the damage of those that have
    any, by number."""

    begins: Array
    ends: Array
    damage: dict[int, str]


def search(data: memoryview) -> Spans:
    """Find all records of a file without its index. Bytes between sound records are one damaged record."""
    spans = _Search(len(data))
    heads = _magics(data)
    for place, head in enumerate(heads):
        spans.part(data, head, heads[place + 1] if place + 1 < len(heads) else len(data))
    if spans.opened is not None or (not heads and len(data)):
        spans.close(len(data), "the file ends in it" if heads else "no record begins here")
    return Spans(np.array(spans.begins, np.int64), np.array(spans.ends, np.int64), spans.damage)


def _magics(data: memoryview) -> list[int]:
    """The bytes at which aligned magic numbers stand."""
    words = np.frombuffer(data, "<u4", len(data) // 4)
    step = PIECE // 4
    places = [np.flatnonzero(words[i : i + step] == MAGIC) + i for i in range(0, len(words), step)]
    every: list[int] = (4 * np.concatenate(places)).tolist() if places else []
    return [at for at in every if at + 8 <= len(data)]


class _Search:
    """Records gathered from parts in the order of a file."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.begins: list[int] = []
        self.ends: list[int] = []
        self.damage: dict[int, str] = {}
        self.opened: int | None = None  # the begin of a record whose last part has not come
        self.behind = 0  # the byte behind the last part

    def close(self, end: int, wrong: str = "") -> None:
        if wrong:
            self.damage[len(self.begins)] = wrong
        self.begins.append(self.behind if self.opened is None else self.opened)
        self.ends.append(end)
        self.opened, self.behind = None, end

    def part(self, data: memoryview, at: int, following: int) -> None:
        """Take in the part at `at`; the next magic number is at `following`."""
        if at > self.behind:  # bytes before the first magic number
            self.close(at, "no record begins here")
        word: int = HEADER.unpack_from(data, at)[1]
        flag, length = word >> 29, word & LONGEST
        end = at + 8 + length + -length % 4
        lost = end < following and _lost_header(data, end, following)
        if flag in (WHOLE, FIRST) and self.opened is not None:
            self.close(at, "its last part is missing")
        if flag in (WHOLE, FIRST):
            self.opened = at
        elif self.opened is None:  # the flag of this one is wrong, or that of the one before
            if self.begins and flag in (MIDDLE, LAST):
                self.damage.setdefault(len(self.begins) - 1, f"a part with the flag {flag} follows it")
            self.opened = at
            self.close(following, f"it begins with the flag {flag}")
            return
        if end != following and not lost:
            self.close(following, f"a length of {length} bytes at byte {at + 4} does not lead to another record")
        elif flag in (WHOLE, LAST):
            self.close(end)
        elif flag not in (FIRST, MIDDLE):
            self.close(end, f"a part has the flag {flag}")
        self.behind = end if end <= following else following
        if lost:
            self.close(following, f"no magic number at byte {end}")
        self.behind = following


def _lost_header(data: memoryview, at: int, following: int) -> bool:
    """True if the bytes from `at` are a part that has lost its magic number alone, or the end of the file has cut."""
    if at + 8 > following:
        rest = bytes(data[at : at + 4])
        return following == len(data) and MAGIC_BYTES.startswith(rest)
    word: int = HEADER.unpack_from(data, at)[1]
    length = word & LONGEST
    return word >> 29 <= LAST and at + 8 + length + -length % 4 == following


def view_of(memory: Any) -> memoryview:
    """Bytes of a mapped file."""
    return memoryview(memory).cast("B")
