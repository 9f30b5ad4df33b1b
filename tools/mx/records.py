"""`mx.recordio`: record files in MXNet's words, over ours."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Self

import numpy as np

from ...data import IRHeader, RecordFile, RecordWriter
from ...data import pack as pack_record
from ...data import unpack as unpack_record
from ...data.images import decode, encode
from ...ops.errors import InputError

Name = str | os.PathLike[str]


class MXRecordIO:
    """Records that are read ("r") one after the other, or written ("w")."""

    def __init__(self, uri: Name, flag: str) -> None:
        if flag not in ("r", "w"):
            raise InputError(f"flag {flag!r}", where=str(uri), hint="r or w")
        self.uri, self.flag, self.writable = uri, flag, flag == "w"
        self.is_open = False
        self.open()

    def open(self) -> None:
        """Begin: at the first record, or with an empty file."""
        self._at, self.is_open = 0, True
        self._writer = RecordWriter(self.uri, index=False, sums=False) if self.writable else None
        self._file = None if self.writable else RecordFile(self.uri)

    def close(self) -> None:
        if self.is_open and self._writer is not None:
            self._writer.close()
        self.is_open = False

    def reset(self) -> None:
        """Begin again."""
        self.close()
        self.open()

    def write(self, buf: bytes) -> None:
        self._written().write(buf)

    def _written(self) -> RecordWriter:
        if self._writer is None or not self.is_open:
            raise InputError("it is not open for writing", where=str(self.uri), hint="flag 'w'")
        return self._writer

    def _records(self) -> RecordFile:
        if self._file is None or not self.is_open:
            raise InputError("it is not open for reading", where=str(self.uri), hint="flag 'r'")
        return self._file

    def read(self) -> bytes | None:
        """The next record; None behind the last one."""
        records = self._records()
        if self._at >= len(records):
            return None
        self._at += 1
        return bytes(records[self._at - 1])

    def tell(self) -> int:
        """The number of bytes written, or of records read."""
        return self._written().bytes if self.writable else self._at

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "is_open", False):
            self.close()


class MXIndexedRecordIO(MXRecordIO):
    """Records with keys, which a second file has."""

    def __init__(self, idx_path: Name, uri: Name, flag: str, key_type: type = int) -> None:
        self.idx_path, self.key_type = idx_path, key_type
        self.keys: list[Any] = []
        self.idx: dict[Any, int] = {}
        super().__init__(uri, flag)

    def open(self) -> None:
        super().open()
        self.keys, self.idx = [], {}
        self._lines: list[str] = []
        if not self.writable:
            self._file = RecordFile(self.uri, self.idx_path)
            self.keys = [self.key_type(key) for key in self._file.keys or range(len(self._file))]
            self.idx = {key: i for i, key in enumerate(self.keys)}

    def close(self) -> None:
        writing = self.is_open and self.writable
        super().close()
        if writing:
            Path(self.idx_path).write_text("".join(self._lines))

    def seek(self, idx: Any) -> None:
        """Read on at a key."""
        if idx not in self.idx:
            raise InputError(f"there is no key {idx!r}", where=str(self.idx_path))
        self._at = self.idx[idx]

    def read_idx(self, idx: Any) -> bytes | None:
        self.seek(idx)
        return self.read()

    def write_idx(self, idx: Any, buf: bytes) -> None:
        key = self.key_type(idx)
        self._lines.append(f"{key}\t{self.tell()}\n")
        self.keys.append(key)
        self.write(buf)


def pack(header: Any, s: bytes) -> bytes:
    """A header and bytes as one record; of several labels, their number is the flag."""
    return bytes(pack_record(IRHeader(*header), s))


def unpack(s: bytes) -> tuple[Any, bytes]:
    header, content = unpack_record(s)
    return header, bytes(content)


def pack_img(header: Any, img: Any, quality: int = 95, img_fmt: str = ".jpg") -> bytes:
    """A picture [height, width, 3], whose channels are blue, green, red, as a record."""
    kind = {".jpg": "JPEG", ".jpeg": "JPEG", ".png": "PNG"}.get(img_fmt)
    if kind is None:
        raise InputError(f"img_fmt {img_fmt!r}", where="pack_img", hint=".jpg or .png")
    array = np.asarray(img.asnumpy() if hasattr(img, "asnumpy") else img, np.uint8)
    turned = array[..., ::-1] if array.ndim == 3 and array.shape[-1] == 3 else array
    return pack(header, encode(np.ascontiguousarray(turned), kind, quality if kind == "JPEG" else 95))


def unpack_img(s: bytes, iscolor: int = -1) -> tuple[Any, Any]:
    """The header and the picture of a record, with channels blue, green, red."""
    header, content = unpack(s)
    picture = np.asarray(decode(content, 1 if iscolor == 0 else 3))
    return header, picture[..., 0] if iscolor == 0 else np.ascontiguousarray(picture[..., ::-1])


__all__ = ["IRHeader", "MXIndexedRecordIO", "MXRecordIO", "pack", "pack_img", "unpack", "unpack_img"]
