"""Reader of flatbuffers tables with every bound checked, over immutable bytes.

The flatbuffers package has no verifier in Python, and takes a microsecond per field; see
docs/decisions/0003-the-mezzo-file.md. Needs nothing but Python, so that a bundle does not either. Numbers
are taken as the machine has them: files are refused on one that is not little-endian.
"""

from __future__ import annotations

import struct
from typing import Any

from ...ops.dataclasses import dataclass, field
from ...ops.errors import ModelError
from .layout import COLUMNS, IDENTIFIER, SCALARS, Field, Layout

HINT = "copy or make the file again; `mezzo doctor FILE` tells more"
_U32, _I32, _U16 = struct.Struct("<I"), struct.Struct("<i"), struct.Struct("<H")
_WIDTHS = {code: struct.calcsize(f"<{code}") for code in COLUMNS.values()}
_SCALARS = {code: struct.Struct(f"<{code}") for code in SCALARS.values()}


def malformed(message: str) -> ModelError:
    """The error for a file whose parts contradict one another."""
    return ModelError(message, hint=HINT)


@dataclass(slots=True)
class FileBuffer:
    """The bytes of one flatbuffer. `left` limits the total that may be read: parts of a valid file do not overlap, so
    that reading never exceeds its size, and a file of a few bytes cannot pretend to hold a million tables."""

    data: bytes
    left: int
    view: memoryview = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.view = memoryview(self.data)

    def take(self, at: int, nbytes: int) -> int:
        """Claim bytes; returns where they begin. ModelError outside of the buffer, or if too much is read."""
        self.left -= nbytes
        if at < 0 or nbytes < 0 or at + nbytes > len(self.data) or self.left < 0:
            raise malformed("a part of the description lies outside of it, or parts overlap")
        return at

    def u32(self, at: int) -> int:
        return int(_U32.unpack_from(self.data, self.take(at, 4))[0])


def root(data: bytes, layout: Layout, identifier: bytes = IDENTIFIER) -> Table:
    """The root table of a flatbuffer of this kind; ModelError if it cannot be one."""
    buffer = FileBuffer(data, 4 * len(data) + 64)
    start = buffer.u32(0)
    if data[4:8] != identifier:
        raise malformed("the description is no flatbuffer of this kind")
    return Table(buffer, start, layout)


class Table:
    """One table: `t.column(name)`, `t.number(name)`, `t.text(name)`, `t.table(name)`, `t.tables(name)`."""

    __slots__ = ("_at", "_buffer", "_fields", "_layout", "_size")

    def __init__(self, buffer: FileBuffer, at: int, layout: Layout) -> None:
        self._buffer, self._at, self._layout = buffer, at, layout
        buffer.take(at, 4)
        self._fields = at - int(_I32.unpack_from(buffer.data, at)[0])
        buffer.take(self._fields, 4)
        self._size = int(_U16.unpack_from(buffer.data, self._fields)[0])
        buffer.take(self._fields, self._size)

    def rewound(self) -> Table:
        """The same table, to be read from the beginning."""
        return Table(FileBuffer(self._buffer.data, 4 * len(self._buffer.data) + 64), self._at, self._layout)

    def _field(self, name: str) -> tuple[Field, int]:
        """A field, and where its inline part lies; 0 if it is absent."""
        field = self._layout.fields[name]
        slot = 4 + 2 * field.number
        if slot + 2 > self._size:
            return field, 0
        offset = int(_U16.unpack_from(self._buffer.data, self._fields + slot)[0])
        return field, self._at + offset if offset else 0

    def _target(self, at: int) -> int:
        return at + self._buffer.u32(at)

    def _vector(self, at: int, itemsize: int) -> memoryview:
        start = self._target(at)
        nbytes = self._buffer.u32(start) * itemsize
        begin = self._buffer.take(start + 4, nbytes)
        return self._buffer.view[begin : begin + nbytes]

    def column(self, name: str) -> list[int]:
        """The integers of a column; empty if it is absent."""
        return self.raw(name).tolist()

    def raw(self, name: str) -> memoryview:
        """A column as it lies in the file."""
        field, at = self._field(name)
        vector: Any = self._vector(at, _WIDTHS[field.code]) if at else memoryview(b"")
        numbers: memoryview = vector.cast(field.code)
        return numbers

    def number(self, name: str) -> int:
        """A scalar; 0 if it is absent."""
        field, at = self._field(name)
        code = _SCALARS[field.code]
        return int(code.unpack_from(self._buffer.data, self._buffer.take(at, code.size))[0]) if at else 0

    def _string(self, at: int) -> str:
        try:
            return str(self._vector(at, 1), "utf-8")
        except UnicodeDecodeError as error:
            raise malformed("a text is not UTF-8") from error

    def text(self, name: str) -> str:
        """A string; empty if it is absent."""
        _, at = self._field(name)
        return self._string(at) if at else ""

    def strings(self, name: str) -> list[str]:
        """A vector of strings."""
        _, at = self._field(name)
        if not at:
            return []
        start, count = self._references(at)
        return [self._string(start + 4 * i) for i in range(count)]

    def table(self, name: str) -> Table:
        """A table; ModelError if it is absent."""
        field, at = self._field(name)
        if not at or field.table is None:
            raise malformed(f"{self._layout.name} lacks {name}")
        return Table(self._buffer, self._target(at), field.table)

    def tables(self, name: str) -> list[Table]:
        """A vector of tables; empty if it is absent."""
        field, at = self._field(name)
        if not at or field.table is None:
            return []
        start, count = self._references(at)
        return [Table(self._buffer, self._target(start + 4 * i), field.table) for i in range(count)]

    def _references(self, at: int) -> tuple[int, int]:
        start = self._target(at)
        count = self._buffer.u32(start)
        self._buffer.take(start + 4, 4 * count)
        return start + 4, count
