"""Model files read without their weights: the protobuf of the rest, and the bytes of each weight when it is asked for.

A parser of protobufs copies every weight, its checker again. Here the fields of the file are walked over
(https://protobuf.dev/programming-guides/encoding/), and the large `raw_data` of the graph's initialisers stay in the
file: such a tensor is marked as external data without a location, at the place where it lies in the file itself.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from io import BufferedReader
from typing import Any, Final

import numpy as np
import onnx

from ..ops.dataclasses import dataclass, field
from ..ops.errors import ModelError
from ..runtime.memory.model_file import CAN_GIVE_BACK, ModelFile

LEAST: Final = 1 << 20  # bytes of a file that is worth the walk
LARGE: Final = 1 << 12  # bytes of a weight that stays in the file
# Numbers of fields: ModelProto.graph, GraphProto.initializer, TensorProto.raw_data, .external_data, .data_location
GRAPH, INITIALIZER, RAW_DATA, EXTERNAL_DATA, DATA_LOCATION = 7, 5, 9, 13, 14
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5  # kinds of fields


class Malformed(Exception):
    """The bytes are not as expected; whoever parses them whole says what is wrong."""


@dataclass(slots=True, eq=False)
class StoredWeights:
    """The weights that stayed in a model file, which is open: the length of each by its place. Their tensors carry the
    `mark`, which no file knows beforehand. `mapped` ones are views of the file, others have memory of their own."""

    file: BufferedReader
    name: str
    mapped: bool = False
    lengths: dict[int, int] = field(default_factory=dict[int, int])
    mark: str = field(default_factory=lambda: os.urandom(16).hex())

    def place_of(self, tensor: onnx.TensorProto) -> int | None:
        """The place of a tensor's bytes in the file; None if the tensor has them itself, or another file has."""
        entries = {e.key: e.value for e in tensor.external_data}
        return int(entries["offset"]) if entries.get("mark") == self.mark else None

    _map: np.ndarray[Any, Any] | None = None

    def read(self, place: int) -> np.ndarray[Any, Any]:
        """The bytes at a place."""
        if self.mapped and CAN_GIVE_BACK:
            if self._map is None:
                self._map = np.frombuffer(ModelFile.of(self.file, self.name), np.uint8)
            view = self._map[place : place + self.lengths[place]]
            if view.size != self.lengths[place]:
                raise self._cut()
            return view
        content = np.empty(self.lengths[place], np.uint8)
        self.file.seek(place)
        if self.file.readinto(content.data) != content.nbytes:
            raise self._cut()
        return content

    def _cut(self) -> ModelError:
        return ModelError("the file was cut short while it was read", where=self.name, hint="load it again")


def without_weights(file: BufferedReader, name: str) -> tuple[bytes, StoredWeights] | None:
    """The bytes of a model file without its large weights, and these; None for a small file, and for one that only a
    parser of the whole can judge. The file stays open for as long as weights are read."""
    size = os.fstat(file.fileno()).st_size
    if size < LEAST:
        return None
    weights = StoredWeights(file, name)
    try:
        light = _model(_Fields(file, 0, size), weights)
    except Malformed:
        return None
    return (light, weights) if weights.lengths else None


class _Fields:
    """The fields of a message that lies between two places of a file."""

    def __init__(self, file: BufferedReader, begin: int, end: int) -> None:
        self._file, self._at, self.end = file, begin, end
        file.seek(begin)

    def __bool__(self) -> bool:
        return self._at < self.end

    def next(self) -> tuple[int, int, bytes, int]:
        """Number, kind and head of the next field, and the length of its content, at which the file stands then."""
        begin = self._file.tell()
        if begin != self._at:
            raise Malformed
        tag = self._varint()
        number, kind = tag >> 3, tag & 7
        if kind == BYTES:
            length = self._varint()
        elif kind == VARINT:
            at = self._file.tell()
            self._varint()
            length = self._file.tell() - at
            self._file.seek(at)
        elif kind in (FIXED64, FIXED32):
            length = 8 if kind == FIXED64 else 4
        else:
            raise Malformed  # groups, which ONNX has none of
        content = self._file.tell()
        if not number or content + length > self.end:
            raise Malformed
        self._at = content + length
        self._file.seek(begin)
        return number, kind, self._file.read(content - begin), length

    def content(self, length: int) -> bytes:
        """The content of the field that `next` has returned."""
        return self._file.read(length)

    def skip(self) -> None:
        """Go on to the next field."""
        self._file.seek(self._at)

    def _varint(self) -> int:
        value = shift = 0
        while shift < 64:
            one = self._file.read(1)
            if not one:
                raise Malformed
            value |= (one[0] & 127) << shift
            if one[0] < 128:
                return value
            shift += 7
        raise Malformed


Rewrite = Callable[["_Fields", StoredWeights], bytes]  # of a message, without its weights


def _model(fields: _Fields, weights: StoredWeights) -> bytes:
    return _rewritten(fields, weights, GRAPH, 0, _graph)


def _graph(fields: _Fields, weights: StoredWeights) -> bytes:
    return _rewritten(fields, weights, INITIALIZER, LARGE, _tensor)


def _rewritten(fields: _Fields, weights: StoredWeights, number: int, least: int, rewrite: Rewrite) -> bytes:
    """Return a message whose messages of this number, and of at least so many bytes, are rewritten."""
    parts: list[bytes] = []
    while fields:
        field_number, kind, head, length = fields.next()
        if field_number == number and kind == BYTES and length >= least:
            begin = weights.file.tell()
            parts += _message(number, rewrite(_Fields(weights.file, begin, begin + length), weights))
            fields.skip()
        else:
            parts += (head, fields.content(length))
    return b"".join(parts)


def _tensor(fields: _Fields, weights: StoredWeights) -> bytes:
    parts: list[bytes] = []
    stored: tuple[int, int] | None = None
    while fields:
        number, kind, head, length = fields.next()
        if number in (EXTERNAL_DATA, DATA_LOCATION):
            raise Malformed  # said twice where the elements are
        if number == RAW_DATA and kind == BYTES and length >= LARGE:
            if stored is not None:
                raise Malformed
            stored = weights.file.tell(), length
            fields.skip()
        else:
            parts += (head, fields.content(length))
    if stored is not None:
        weights.lengths[stored[0]] = stored[1]
        elsewhere = onnx.TensorProto(data_location=onnx.TensorProto.EXTERNAL)
        for key, value in (("mark", weights.mark), ("offset", str(stored[0]))):
            elsewhere.external_data.add(key=key, value=value)
        parts.append(elsewhere.SerializeToString())
    return b"".join(parts)


def _message(number: int, content: bytes) -> tuple[bytes, bytes]:
    """Return a field that is a message: its head, and its content."""
    head = bytearray()
    for value in (number << 3 | BYTES, len(content)):
        while value > 127:
            head.append(value & 127 | 128)
            value >>= 7
        head.append(value)
    return bytes(head), content
