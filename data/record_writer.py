"""Writing of record files: the file, its index and its checksums, each put in place when it is whole."""

from __future__ import annotations

import os
import zlib
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from ..ops.errors import InputError
from ..runtime.files import replacing
from .record_format import Bytes, encoded
from .records import write_index, write_sums


class RecordWriter:
    """Writes records one after the other. Nothing stands at `path` before `close`, and nothing changes there where the
    `with` block raises.

    `index` writes `photos.idx` beside it and `sums` the checksums `photos.sum`; without either the result is what
    MXNet's `MXRecordIO` writes. Keys are the numbers of the records unless they are given.

    >>> import tempfile
    >>> from .records import RecordFile
    >>> path = tempfile.mkdtemp() + "/few.rec"
    >>> with RecordWriter(path) as out:
    ...     [out.write(text) for text in (b"one", b"two")]
    [0, 1]
    >>> bytes(RecordFile(path)[1])
    b'two'
    """

    def __init__(self, path: str | os.PathLike[str], *, index: bool = True, sums: bool = True) -> None:
        self.path, self._index, self._with_sums = Path(path), index, sums
        if self.path.suffix in (".idx", ".sum"):
            raise InputError(f"{self.path.suffix} is what lies beside records", where=str(path), hint="write OUT.rec")
        self._keys: list[str] = []
        self._begins: list[int] = []
        self._sums: list[int] = []
        self._stack = ExitStack()
        self._file = self._stack.enter_context(replacing(self.path, "rec", "the record file"))
        self.bytes = 0

    def write(self, payload: Bytes, key: object = None) -> int:
        """Write a record; returns its number. Raises InputError for one of 512 MiB and more, and for a bad key."""
        number = len(self._begins)
        name = str(number if key is None else key)
        if "\t" in name or "\n" in name or "\r" in name or not name:
            raise InputError(f"{name!r} is no key", where=str(self.path), hint="keys have no tabs and no line ends")
        begin = self.bytes
        for piece in encoded(payload):
            self._file.write(piece)
            self.bytes += len(piece)
        self._keys.append(name)
        self._begins.append(begin)
        if self._with_sums:
            self._sums.append(zlib.crc32(payload))
        return number

    def __len__(self) -> int:
        return len(self._begins)

    def close(self) -> None:
        """Put the file in its place, and what lies beside it. Raises InputError for a key that was given twice."""
        if len({*self._keys}) < len(self._keys):
            twice = next(k for k in self._keys if self._keys.count(k) > 1)
            self.__exit__(InputError, InputError(f"the key {twice!r} was given twice", where=str(self.path)), None)
            raise InputError(f"the key {twice!r} was given twice", where=str(self.path), hint="keys are unique")
        for ending in (".sum", ".idx"):  # those of a former file would not fit
            self.path.with_suffix(ending).unlink(missing_ok=True)
        self._stack.close()
        if self._index:
            write_index(self.path, self._keys, self._begins)
        if self._with_sums:
            write_sums(self.path, self._sums, self.bytes)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self._stack.__exit__(kind, error, trace)
