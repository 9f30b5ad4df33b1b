"""Descriptions of a model: its inputs and outputs, and what its file says of itself."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Mapping
from typing import Any

from ...ops import Optional, Tensor
from ...ops.dataclasses import dataclass
from ...runtime.compile.program import Port
from ...runtime.execution.session import Session
from ...runtime.ir.graph import DOMAIN, MODEL_VERSION, PRODUCER
from .values import type_name

NO_VERSION = (1 << 63) - 1  # of a file that says none, as ONNX Runtime has it


@dataclass(frozen=True, slots=True)
class NodeArg:
    """An input or output: its name, its type as `tensor(float)`, and its shape (a name or None where not known)."""

    name: str
    type: str
    shape: list[int | str | None]

    @classmethod
    def of(cls, port: Port) -> NodeArg:
        held = port.type.element if isinstance(port.type, Optional) else port.type
        dims = held.dims if isinstance(held, Tensor) else None
        return cls(port.name, type_name(port.type), list(dims or ()))


@dataclass(frozen=True, slots=True)
class ModelMetadata:
    """Name, domain, version, texts and metadata of a model file."""

    custom_metadata_map: Mapping[str, str]
    description: str
    domain: str
    graph_description: str
    graph_name: str
    producer_name: str
    version: int


def said_by(source: str | os.PathLike[str] | bytes) -> Mapping[str, str]:
    """The metadata of an ONNX file; none of what is no such file."""
    try:
        return metadata_of_file(source).custom_metadata_map
    except (OSError, ValueError, IndexError):
        return {}


def metadata_of_file(source: str | os.PathLike[str] | bytes) -> ModelMetadata:
    """The metadata that an ONNX file has of itself. Raises OSError, ValueError or IndexError for what is none."""
    if isinstance(source, bytes):
        return _read(memoryview(source))
    with open(source, "rb") as file:
        return _read(memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)))


def told_by(source: str | os.PathLike[str] | bytes) -> dict[str, str]:
    """Return what an ONNX file says of itself, by the keys of ONNX Runtime; nothing of other files."""
    try:
        found = metadata_of_file(source)
    except (OSError, ValueError, IndexError):
        return {}
    version = "" if found.version == NO_VERSION else str(found.version)
    fields = ("domain", "graph_description", "graph_name", "producer_name")
    own = {name: getattr(found, name) for name in fields} | {"doc_string": found.description, "model_version": version}
    return {**found.custom_metadata_map, **own}


def metadata_of(source: str | os.PathLike[str] | bytes, session: Session) -> ModelMetadata:
    """Return what an ONNX file says of itself; of other formats, and of a file that is gone, what the graph knows."""
    try:
        return metadata_of_file(source)
    except (OSError, ValueError, IndexError):
        graph = session.graph
        props = graph.metadata
        version = props.get(MODEL_VERSION, "")
        return ModelMetadata(
            {k: v for k, v in props.items() if not k.startswith("mezzo.source.")},
            graph.doc,
            props.get(DOMAIN, ""),
            "",
            graph.name,
            props.get(PRODUCER, ""),
            int(version) if version.lstrip("-").isdigit() else NO_VERSION,
        )


def _read(data: memoryview) -> ModelMetadata:
    """The fields of a ModelProto that are no part of its graph, by their numbers in onnx.proto.

    Raises ValueError for what is no ONNX file.
    """
    texts: dict[int, str] = {}
    version, has_graph, custom, of_graph = NO_VERSION, False, dict[str, str](), dict[int, str]()
    for number, value in _fields(data):
        if number in (2, 4, 6) and not isinstance(value, int):  # producer_name, domain, doc_string
            texts[number] = str(value, "utf8")
        elif number == 5 and isinstance(value, int):  # model_version
            version = value - (value >> 63 << 64)
        elif number == 14 and not isinstance(value, int):  # metadata_props
            pair = {n: str(v, "utf8") for n, v in _fields(value) if not isinstance(v, int)}
            custom[pair.get(1, "")] = pair.get(2, "")
        elif number == 7 and not isinstance(value, int):  # graph
            has_graph = True
            of_graph |= {n: str(v, "utf8") for n, v in _fields(value) if n in (2, 10) and not isinstance(v, int)}
    if not has_graph:
        raise ValueError("no ONNX file")
    fields = (texts.get(6, ""), texts.get(4, ""), of_graph.get(10, ""), of_graph.get(2, ""), texts.get(2, ""))
    return ModelMetadata(custom, *fields, version)


def _fields(data: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Fields of a protobuf message by number: integers, or the bytes of texts and messages.

    https://protobuf.dev/programming-guides/encoding
    """
    at, end = 0, len(data)
    while at < end:
        tag, at = _varint(data, at)
        value: Any
        if tag & 7 == 0:
            value, at = _varint(data, at)
        else:
            size, at = _varint(data, at) if tag & 7 == 2 else ({1: 8, 5: 4}.get(tag & 7, end), at)
            if at + size > end:
                raise ValueError("the message ends too early")
            value, at = data[at : at + size], at + size
        yield tag >> 3, value


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value & ((1 << 64) - 1), at
        shift += 7
        if shift > 63:
            raise ValueError("a number has too many bytes")
