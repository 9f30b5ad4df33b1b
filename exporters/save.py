"""Atomic writing of model files: a reader finds the old file or the new one, never half of one."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import numpy as np
import onnx
import onnx.checker
from google.protobuf.message import EncodeError as _EncodeError  # type: ignore[import-untyped]

from ..ops import DType
from ..ops.errors import ModelError
from ..ops.types import Array
from ..runtime.files import put_in_place, sync, temporary_beside
from ..runtime.ir.graph import Graph
from .model import to_model
from .proto import payload, stored_bytes, tensor
from .target import check_graph

EncodeError: type[Exception] = _EncodeError
LARGEST_PROTOBUF = 2**31 - 2**26  # protobufs end at 2 GiB; some room is left for all that is not weights
PAGE, LINE = 4096, 64  # alignment of large and of small tensors, so that they can be used where they are mapped


class DataFile:
    """Weights in a separate file, which is named after its contents once they are known."""

    def __init__(self, folder: Path, threshold: int) -> None:
        self.threshold = threshold
        self._handle, self.temporary = temporary_beside(folder, "data")
        self._digest = hashlib.blake2b(digest_size=8)
        self._size = 0

    def store(self, name: str, array: Array) -> onnx.TensorProto:
        """Write a large array to the file, and return a TensorProto that points there; small ones stay inside."""
        size = stored_bytes(array)
        if size < max(self.threshold, 1):
            return tensor(name, array)
        start = -(-self._size // (step := PAGE if size >= 1 << 20 else LINE)) * step
        self._write(b"\0" * (start - self._size))
        dtype = DType.of(np.asarray(array).dtype)
        proto = onnx.TensorProto(name=name, data_type=dtype.onnx, dims=np.shape(array))
        proto.data_location = onnx.TensorProto.EXTERNAL
        for key, value in (("location", ""), ("offset", start), ("length", size)):
            proto.external_data.add(key=key, value=str(value))
        # In parts, so that no second copy is held; of a multiple of eight elements, so that packed ones end on a byte.
        for part in np.nditer(array, ["external_loop", "buffered"], order="C", buffersize=1 << 24):
            self._write(payload(np.asarray(part), dtype))
        return proto

    def _write(self, data: bytes) -> None:
        self._handle.write(data)
        self._digest.update(data)
        self._size += len(data)

    def finish(self, model: onnx.ModelProto, name: str, given: str) -> str:
        """Close the file and write its final name into the model, the `given` one or one of the model's `name`; returns
        that name (empty if nothing was stored)."""
        if not self._size:
            return ""
        location = given or f"{name}.{self._digest.hexdigest()}.data"
        for graph in _proto_graphs(model.graph):
            for stored in graph.initializer:
                if stored.data_location == onnx.TensorProto.EXTERNAL:
                    stored.external_data[0].value = location
        sync(self._handle)
        return location

    def discard(self) -> None:
        self._handle.close()
        self.temporary.unlink(missing_ok=True)


def _proto_graphs(graph: onnx.GraphProto) -> Iterable[onnx.GraphProto]:
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for body in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                yield from _proto_graphs(body)


def save(
    graph: Graph,
    path: str | os.PathLike[str],
    *,
    opset: int | None,
    ir_version: int | None,
    standard: bool,
    external_data: Literal["auto", "always", "never"],
    threshold: int,
    location: str,
) -> None:
    """See `mezzo.exporters.save_onnx`."""
    check_graph(graph)
    given = location
    if given and os.path.basename(given) != given:
        raise ModelError(f"location={given!r}", where="save_onnx", hint="give the name of a file without a folder")
    if external_data not in ("auto", "always", "never"):
        raise ModelError(f"external_data={external_data!r}", where="save_onnx", hint="give auto, always or never")
    target = Path(os.path.realpath(path))
    weights = sum(stored_bytes(a) for g in (graph, *_bodies(graph)) for a in g.initializers.values())
    aside = external_data == "always" or (external_data == "auto" and weights > LARGEST_PROTOBUF)
    if not aside and weights > LARGEST_PROTOBUF:
        raise ModelError(
            f"{weights} bytes of weights are more than a protobuf can hold",
            where=str(target),
            hint='save with external_data="auto"',
        )
    try:
        data = DataFile(target.parent, threshold) if aside else None
        try:
            store = data.store if data else tensor
            model = to_model(graph, opset=opset, ir_version=ir_version, standard=standard, store=store)
            location = data.finish(model, target.name, given) if data else ""
            known = not location or (target.parent / location).exists()
            if data and location:
                os.replace(data.temporary, target.parent / location)
            try:
                _replace(model, target)
            except BaseException:
                if not known:
                    (target.parent / location).unlink(missing_ok=True)
                raise
            _remove_former(target, location)
        finally:
            if data:
                data.discard()
    except OSError as error:
        raise ModelError(
            f"the file cannot be written: {error}", where=str(target), hint="check the folder and its free space"
        ) from error


def _bodies(graph: Graph) -> list[Graph]:
    return [body for _, node in graph.walk() for body in node.bodies.values()]


def _replace(model: onnx.ModelProto, target: Path) -> None:
    handle, temporary = temporary_beside(target.parent, "onnx")
    try:
        ends = [v.type.tensor_type for v in (*model.graph.input, *model.graph.output) if v.type.HasField("tensor_type")]
        open_ends = [t for t in ends if not t.HasField("shape")]
        for t in open_ends:  # files may leave the rank open, and the checker does not take that
            t.shape.SetInParent()
        handle.write(serialised(model, target))
        sync(handle)
        try:
            onnx.checker.check_model(str(temporary))
        except onnx.checker.ValidationError as error:
            raise ModelError(
                f"onnx refuses the model: {' '.join(str(error).split())[:600]}",
                where=str(target),
                hint="the former file is untouched; correct the graph that is to be saved",
            ) from error
        if open_ends:
            for t in open_ends:
                t.ClearField("shape")
            with temporary.open("wb") as again:
                again.write(serialised(model, target))
                sync(again)
        put_in_place(temporary, target)
    finally:
        handle.close()
        temporary.unlink(missing_ok=True)


def serialised(model: onnx.ModelProto, target: Path) -> bytes:
    """The bytes of a model; ModelError if it is larger than protobufs are."""
    try:
        data: bytes = model.SerializeToString()
        return data
    except (EncodeError, ValueError) as error:
        raise ModelError(
            f"the model is larger than a protobuf can be: {error}",
            where=str(target),
            hint='save with external_data="always", and keep large arrays in initialisers, not in attributes of nodes',
        ) from error


def _remove_former(target: Path, location: str) -> None:
    """Remove data files that former calls wrote for this model."""
    ours = re.compile(re.escape(target.name) + r"\.[0-9a-f]{16}\.data")
    for entry in os.scandir(target.parent):
        if ours.fullmatch(entry.name) and entry.name != location:
            os.unlink(entry.path)
