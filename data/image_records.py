"""Image records: a header with labels before the bytes of an image file. MXNet's `recordio.pack` and its like."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..ops.errors import InputError
from ..ops.types import Array
from .record_format import Bytes

HEADER = struct.Struct("<IfQQ")


class IRHeader(NamedTuple):
    """The header of an image record: `label` is a number, or `flag` of them; `id` and `id2` are the caller's."""

    flag: int
    label: float | Sequence[float] | Array
    id: int
    id2: int = 0


def pack(header: IRHeader, content: Bytes) -> bytes:
    """Return the record of a header and an image file (or any bytes).

    Several labels lie behind the header as float32. Raises InputError for labels and numbers that do not fit.

    >>> pack(IRHeader(0, 3.0, 7), b"jpeg").hex(" ", 8)
    '0000000000004040 0700000000000000 0000000000000000 6a706567'
    """
    label = header.label
    try:
        if isinstance(label, int | float | np.number):
            return HEADER.pack(0, float(label), header.id, header.id2) + bytes(content)
        several = np.asarray(label, np.float32).ravel()
        return HEADER.pack(several.size, 0.0, header.id, header.id2) + several.astype("<f4").tobytes() + bytes(content)
    except (struct.error, OverflowError, ValueError, TypeError) as error:
        raise InputError(f"no header of an image record: {error}", where="pack", hint="see IRHeader") from error


def unpack(record: Bytes) -> tuple[IRHeader, memoryview]:
    """Return the header and the content of a record; several labels are an array. Raises InputError for what is none.

    >>> header, content = unpack(pack(IRHeader(0, [1, 2], 7), b"jpeg"))
    >>> header.flag, header.label.tolist(), bytes(content)
    (2, [1.0, 2.0], b'jpeg')
    """
    data = memoryview(record)
    if len(data) < HEADER.size:
        raise InputError(f"{len(data)} bytes are no image record", where="unpack", hint="its header has 24")
    flag, label, number, second = HEADER.unpack_from(data)
    if not flag:
        return IRHeader(0, label, number, second), data[HEADER.size :]
    begin = HEADER.size + 4 * flag
    if begin > len(data):
        raise InputError(f"{flag} labels in a record of {len(data)} bytes", where="unpack", hint="is it damaged?")
    return IRHeader(flag, np.frombuffer(data, "<f4", flag, HEADER.size), number, second), data[begin:]
