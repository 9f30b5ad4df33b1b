"""Record files: reading of records by number, the index beside them, and checksums.

Beside `photos.rec` lie `photos.idx`, whose lines are key, tab and first byte, as MXNet writes them, and `photos.sum`
with a CRC-32 of each record, which MXNet does not have and does not miss: the format itself tells damage in a header
from none, not in a payload.
"""

from __future__ import annotations

import os
import struct
import weakref
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ..ops.errors import InputError
from ..ops.types import Array
from ..runtime.files import replace_file
from .record_format import HEADER, LONGEST, WHOLE, Bytes, Damage, Spans, decoded, search, view_of
from .sources import local

LONG = 1 << 20  # bytes of a record: of longer ones the length is asked first
SUMS_MAGIC = b"mezzosum"
SUMS_HEADER = struct.Struct("<8sQQ")  # magic, number of records, bytes of the record file
BESIDE = (".idx", ".sum", ".classes")  # endings of what lies beside records
Path_ = str | os.PathLike[str]


class BadRecord(InputError):
    """A record is damaged. `number` is its place in the file."""

    number: int = -1


class RecordFile(Sequence[memoryview]):
    """The records of a file, by number, as memory that is the caller's.

    The index is `photos.idx` (or `index`), and found by a search of the file where there is none. Checksums are
    compared where there is a `photos.sum`, unless `check=False`. A damaged record raises BadRecord when it is read;
    `bad="skip"` leaves it out of iteration and counts it in `skipped`. Numbers and slices read as in a list.
    """

    def __init__(
        self, path: Path_, index: Path_ | None = None, *, check: bool = True, bad: Literal["error", "skip"] = "error"
    ) -> None:
        if bad not in ("error", "skip"):
            raise InputError(f"bad={bad!r}", where="RecordFile", hint="'error' or 'skip'")
        self.path, self.bad, self.skipped = local(path, BESIDE), bad, list[BadRecord]()
        self._index = Path(index) if index is not None else self.path.with_suffix(".idx")
        if index is not None and not self._index.is_file():
            raise InputError("there is no such index", where=str(self._index), hint="leave index= out: it is rebuilt")
        self._check = check
        self._open()

    def _open(self) -> None:
        try:
            file = self.path.open("rb", buffering=0)
            size = os.fstat(file.fileno()).st_size
        except OSError as error:
            raise InputError(
                f"the file cannot be read: {error}", where=str(self.path), hint="check the path"
            ) from error
        self._fd = file.fileno()
        self._end = weakref.finalize(self, file.close)
        self._damage: dict[int, str] = {}
        self.keys: Sequence[str] | None = None  # of the index; the numbers themselves without one
        if self._index.is_file():
            self.keys, self._begins = read_index(self._index, size)
            self._ends = _ends(self._begins, size)
        else:
            spans = search(mapped(self.path))
            self._begins, self._ends, self._damage = spans.begins, spans.ends, spans.damage
        self._sums = _sums(self.path, size) if self._check else None
        self._by_begin: Array | None = None
        if self._sums is not None:
            self._by_begin = np.argsort(self._begins, kind="stable")
            if len(self._begins) != len(self._sums):
                raise InputError(
                    f"{len(self._begins)} records, and {len(self._sums)} checksums of them",
                    where=str(self.path),
                    hint="`mezzo pack --verify` tells what is damaged; check=False reads without checksums",
                )
            rank = np.empty(len(self._begins), np.int64)
            rank[self._by_begin] = np.arange(len(rank))
            self._sums = self._sums[rank]

    def __getstate__(self) -> dict[str, Any]:
        """Paths, not bytes: another process maps the file itself."""
        return {"path": self.path, "bad": self.bad, "_index": self._index, "_check": self._check}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.skipped = []
        self._open()

    @property
    def checked(self) -> bool:
        """True if records are compared with checksums."""
        return self._sums is not None

    def __len__(self) -> int:
        return len(self._begins)

    def name(self, number: int) -> str:
        """The file, number, key and first byte of a record, for messages."""
        key = "" if self.keys is None or self.keys[number] == str(number) else f" (key {self.keys[number]})"
        return f"{self.path}, record {number}{key} at byte {self._begins[number]}"

    def __getitem__(self, number: Any) -> Any:
        if isinstance(number, slice):
            return [self[i] for i in range(*number.indices(len(self)))]
        if not -len(self) <= number < len(self):
            raise IndexError(f"record {number} of {len(self)}")  # iteration over sequences asks for it
        number = int(number) % len(self)
        if number in self._damage:
            raise self._bad(number, self._damage[number])
        begin, end = int(self._begins[number]), int(self._ends[number])
        try:
            payload = decoded(self._read(begin, end), end - begin)
        except Damage as damage:
            raise self._bad(number, str(damage)) from None
        if self._sums is not None and zlib.crc32(payload) != self._sums[number]:
            raise self._bad(number, "its bytes do not have the checksum that they were written with")
        return payload

    def _read(self, begin: int, end: int) -> memoryview:
        """The bytes of a record, by one call of the system: mapped memory would cost a fault for every few pages, and
        end the process where somebody cuts the file off. Of a span that is far longer than its record (an index of few
        records) the first part alone is read."""
        size = end - begin
        if size > LONG:
            head = os.pread(self._fd, HEADER.size, begin)
            word = HEADER.unpack(head)[1] if len(head) == HEADER.size else 0
            if word >> 29 == WHOLE:
                size = min(size, (word & LONGEST) + 3 + 2 * HEADER.size)
        return memoryview(os.pread(self._fd, size, begin))

    def _bad(self, number: int, why: str) -> BadRecord:
        error = BadRecord(
            f"the record is damaged: {why}", where=self.name(number), hint="bad='skip' leaves it out and counts it"
        )
        error.number = number
        return error

    def __iter__(self) -> Iterator[memoryview]:
        for number in range(len(self)):
            try:
                payload = self[number]
            except BadRecord as error:
                if self.bad == "error":
                    raise
                self.skipped.append(error)
                continue
            yield payload

    def at(self, key: str | int) -> memoryview:
        """The record of a key of the index. Raises InputError if there is none."""
        if not hasattr(self, "_numbers"):
            self._numbers = {k: i for i, k in enumerate(self.keys or map(str, range(len(self))))}
        if str(key) not in self._numbers:
            raise InputError(f"there is no key {key!r}", where=str(self._index), hint="`keys` has them")
        view: memoryview = self[self._numbers[str(key)]]
        return view


def mapped(path: Path) -> memoryview:
    """The bytes of a file as mapped memory, for a search."""
    return view_of(np.memmap(path, np.uint8, "r") if path.stat().st_size else b"")


def _ends(begins: Array, size: int) -> Array:
    """The first byte of the next record of each, in the order of the file."""
    if not len(begins):
        return begins
    order = np.sort(begins)
    after = np.append(order, size)[np.searchsorted(order, begins, side="right")]
    return after


def read_index(path: Path, size: int) -> tuple[list[str], Array]:
    """Keys and first bytes of an index. Raises InputError that names the line."""
    keys, begins = list[str](), list[int]()
    try:
        lines = path.read_bytes().decode("utf8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise _bad_index(path, f"it cannot be read: {error}") from error
    for number, line in enumerate(lines, 1):
        key, tab, begin = line.partition("\t")
        if not tab or not (begin.isascii() and begin.isdecimal()) or int(begin) % 4 or int(begin) + 8 > size:
            raise _bad_index(path, f"line {number} is {line[:60]!r}, no key, tab and first byte of a record")
        keys.append(key)
        begins.append(int(begin))
    if len({*keys}) < len(keys) or len({*begins}) < len(begins):
        raise _bad_index(path, "a key or a first byte occurs twice")
    return keys, np.array(begins, np.int64)


def _bad_index(path: Path, why: str) -> InputError:
    hint = f"`mezzo pack --index {path.with_suffix('.rec')}` makes it again"
    return InputError(f"the index is damaged: {why}", where=str(path), hint=hint)


def _sums(path: Path, size: int) -> Array | None:
    """The checksums beside a record file, in the order of the file; None if there are none."""
    beside = path.with_suffix(".sum")
    if not beside.is_file():
        return None
    data = beside.read_bytes()
    hint = "remove it: records are read without checksums then"
    body, end = data[:-4], data[-4:]
    if len(data) < SUMS_HEADER.size + 4 or zlib.crc32(body) != int.from_bytes(end, "little"):
        raise InputError("the file of checksums is damaged", where=str(beside), hint=hint)
    magic, count, described = SUMS_HEADER.unpack_from(body)
    if magic != SUMS_MAGIC or len(body) != SUMS_HEADER.size + 4 * count:
        raise InputError("no file of checksums", where=str(beside), hint=hint)
    if described != size:
        raise InputError(
            f"the record file has {size} bytes, and had {described} when it was written",
            where=str(path),
            hint="it was cut off, or the checksums are of another one: fetch both again",
        )
    return np.frombuffer(body, "<u4", count, SUMS_HEADER.size)


def write_sums(path: Path, sums: Sequence[int], size: int) -> None:
    """Write the checksums beside a record file of so many bytes."""
    body = SUMS_HEADER.pack(SUMS_MAGIC, len(sums), size) + np.array(sums, "<u4").tobytes()
    replace_file(path.with_suffix(".sum"), [body, zlib.crc32(body).to_bytes(4, "little")])


def write_index(path: Path, keys: Sequence[object], begins: Sequence[int]) -> None:
    """Write the index beside a record file."""
    lines = "".join(f"{key}\t{begin}\n" for key, begin in zip(keys, begins, strict=True))
    replace_file(path.with_suffix(".idx"), [lines.encode()])


def rebuild_index(path: Path_) -> Spans:
    """Search a record file, and write the index of its sound records: their numbers are the keys. Returns what was
    found."""
    path = Path(path)
    try:
        data = mapped(path)
    except OSError as error:
        raise InputError(f"the file cannot be read: {error}", where=str(path), hint="check the path") from error
    spans = search(data)
    sound = [i for i in range(len(spans.begins)) if i not in spans.damage]
    write_index(path, sound, [int(spans.begins[i]) for i in sound])
    return spans


__all__ = ["BadRecord", "Bytes", "RecordFile", "read_index", "rebuild_index", "write_index", "write_sums"]
