"""Tensors of ONNX files as arrays: without copies where the bytes allow it, and never larger than the data present.

https://onnx.ai/onnx/repo-docs/IR.html#tensors and #external-tensor-data
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.numpy_helper

from ..ops.budget import Budget
from ..ops.dataclasses import dataclass, field
from ..ops.errors import ModelError, ShapeError
from ..ops.regular import open_regular
from ..ops.types import DType
from .wire import StoredWeights

TensorProto = onnx.TensorProto
NOT_WHOLE = "the file is damaged, or was written by a faulty exporter: export it again"

# The field that holds elements of a type which are not in `raw_data`: int32_data for all types not listed. Narrow
# floats and packed elements are entries that hold a bit pattern.
_FIELDS = {
    DType.FLOAT: "float_data",
    DType.COMPLEX64: "float_data",
    DType.DOUBLE: "double_data",
    DType.COMPLEX128: "double_data",
    DType.INT64: "int64_data",
    DType.UINT32: "uint64_data",
    DType.UINT64: "uint64_data",
    DType.STRING: "string_data",
}


@dataclass(slots=True)
class TensorReader:
    """Reader of the tensors of one model. `folder` is where external data may be; None allows none. `weights` are those
    that stayed in the model's file. Where the model is a link, its external data may be links to files beside it, or
    below, in its `home`: Hugging Face's cache has all files as such."""

    name: str
    folder: Path | None
    budget: Budget
    weights: StoredWeights | None = None
    home: Path | None = None
    _files: dict[str, np.ndarray[Any, Any]] = field(default_factory=dict[str, np.ndarray[Any, Any]])

    def read(self, tensor: TensorProto) -> np.ndarray[Any, Any]:
        """The elements, read-only. Raises ModelError or BudgetError naming the tensor, before it takes memory."""
        dtype, dims = self.declared(tensor)
        place = self.stored(tensor)
        if place is not None and self.weights is not None:
            if dtype is DType.STRING:
                raise ModelError("strings cannot be raw data", where=self.where(tensor), hint=NOT_WHOLE)
            self._check_size(tensor, self.weights.lengths[place], dtype, dims)  # before it takes memory
            array = self._from_bytes(tensor, self.weights.read(place), dtype, dims)
        elif tensor.data_location == TensorProto.EXTERNAL:
            array = self._from_bytes(tensor, self.external(tensor, dtype, dims), dtype, dims)
        elif dtype is not DType.STRING and tensor.HasField("raw_data"):
            array = self._from_bytes(tensor, np.frombuffer(tensor.raw_data, np.uint8), dtype, dims)
        else:
            array = self._from_fields(tensor, dtype, dims)
        array.flags.writeable = False
        return array

    def declared(self, tensor: TensorProto) -> tuple[DType, tuple[int, ...]]:
        """Element type and dims, checked against the budget."""
        where = self.where(tensor)
        if tensor.HasField("segment"):
            raise ModelError("tensors in segments are not part of ONNX files", where=where, hint=NOT_WHOLE)
        try:
            dtype = DType.from_onnx(tensor.data_type)
        except ShapeError as error:
            raise ModelError(error.message, where=where, hint=error.hint) from error
        dims = tuple(tensor.dims)
        if any(d < 0 for d in dims):
            raise ModelError(f"the dims {list(dims)} are negative", where=where, hint=NOT_WHOLE)
        self.budget.check("tensor_elements", math.prod(dims), f"elements of dims {list(dims)}", where=where)
        if math.prod(filter(None, dims)) >= 1 << 58:
            raise ModelError(
                f"no array has the dims {list(dims)}, though without elements", where=where, hint=NOT_WHOLE
            )
        return dtype, dims

    def where(self, tensor: TensorProto) -> str:
        return f"{self.name}: tensor {tensor.name!r}" if tensor.name else f"{self.name}: a tensor"

    def _short(self, tensor: TensorProto, needed: int, present: int, unit: str) -> ModelError:
        return ModelError(
            f"dims {list(tensor.dims)} of {DType.from_onnx(tensor.data_type)} need {needed} {unit}, here are {present}",
            where=self.where(tensor),
            hint=NOT_WHOLE,
        )

    def _from_bytes(
        self, tensor: TensorProto, data: np.ndarray[Any, Any], dtype: DType, dims: tuple[int, ...]
    ) -> np.ndarray[Any, Any]:
        self._check_size(tensor, data.size, dtype, dims)
        count = math.prod(dims)
        if dtype.bits < 8:
            return _unpack(data, count, dtype).reshape(dims)
        return data.view(dtype.numpy).reshape(dims)

    def _check_size(self, tensor: TensorProto, present: int, dtype: DType, dims: tuple[int, ...]) -> None:
        needed = -(-math.prod(dims) * dtype.bits // 8)
        if present != needed:
            raise self._short(tensor, needed, present, "bytes")

    def stored(self, tensor: TensorProto) -> int | None:
        """The place of a tensor's bytes in the model's own file; None if they lie elsewhere."""
        return None if self.weights is None else self.weights.place_of(tensor)

    def _from_fields(self, tensor: TensorProto, dtype: DType, dims: tuple[int, ...]) -> np.ndarray[Any, Any]:
        entries: Sequence[Any] = getattr(tensor, _FIELDS.get(dtype, "int32_data"))
        count = math.prod(dims)
        complex_ = dtype.name.startswith("COMPLEX")  # two entries an element
        packed = 0 < dtype.bits < 8 and 8 % dtype.bits == 0  # those of 6 bits are an entry each
        needed = 2 * count if complex_ else -(-count * dtype.bits // 8) if packed else count
        if len(entries) != needed:
            raise self._short(tensor, needed, len(entries), "entries")
        if dtype is DType.STRING:
            return _text(entries, dims, self.where(tensor))
        try:
            if complex_:
                parts = np.array(entries, np.float32 if dtype is DType.COMPLEX64 else np.float64)
                return parts.view(dtype.numpy).reshape(dims)
            if (dtype.floating and dtype.bits <= 16) or dtype.bits < 8:  # stored as bit patterns
                patterns = np.array(entries, np.int64).astype(np.uint16 if dtype.bits == 16 else np.uint8)
                if dtype.bits < 8 and not packed:
                    single: np.ndarray[Any, Any] = (patterns & (2**dtype.bits - 1)).view(dtype.numpy)
                    return single.reshape(dims)
                return self._from_bytes(tensor, patterns.view(np.uint8), dtype, dims)
            return np.array(entries, dtype.numpy).reshape(dims)
        except OverflowError as error:
            raise ModelError(f"an entry does not fit {dtype}", where=self.where(tensor), hint=NOT_WHOLE) from error

    def sparse(self, tensor: onnx.SparseTensorProto) -> np.ndarray[Any, Any]:
        """A sparse tensor made dense, within the element budget."""
        where, dims = self.where(tensor.values), tuple(tensor.dims)
        if any(d < 0 for d in dims):
            raise ModelError(f"the dims {list(dims)} are negative", where=where, hint=NOT_WHOLE)
        count = math.prod(dims)
        self.budget.check("tensor_elements", count, f"elements of a sparse tensor of dims {list(dims)}", where=where)
        values, indices = self.read(tensor.values), self.read(tensor.indices)
        shapes = (values.shape, (*values.shape, len(dims)))
        if values.ndim != 1 or indices.dtype != np.int64 or indices.shape not in shapes:
            raise ModelError("the values and indices of a sparse tensor do not fit", where=where, hint=NOT_WHOLE)
        limits = np.array(dims if indices.ndim == 2 else [count], np.int64)
        if (indices < 0).any() or (indices.reshape(len(values), len(limits)) >= limits).any():
            raise ModelError(f"an index lies outside of dims {list(dims)}", where=where, hint=NOT_WHOLE)
        dense = np.full(dims, "" if values.dtype == object else 0, values.dtype)
        if indices.ndim == 2:
            dense[tuple(indices.T)] = values
        else:
            dense.reshape(-1)[indices] = values
        dense.flags.writeable = False
        return dense

    # External data

    def missing(self, tensors: Sequence[TensorProto]) -> dict[str, list[str]]:
        """Files of external data that are not there, each with the names of the tensors that need it."""
        wanted: dict[str, list[str]] = {}
        for tensor in tensors:
            wanted.setdefault(location_of(tensor), []).append(tensor.name)
        folder = self.folder
        if folder is None:
            return {}
        return {at: names for at, names in wanted.items() if self._absent(at, folder)}

    def _absent(self, location: str, folder: Path) -> bool:
        return location not in self._files and stays(location) and not os.path.lexists(folder / location)

    def give(self, location: str, data: Any) -> None:
        """Take the bytes of a file of external data from memory."""
        self._files[location] = np.frombuffer(data, np.uint8)

    def external(self, tensor: TensorProto, dtype: DType, dims: tuple[int, ...]) -> np.ndarray[Any, Any]:
        """The mapped bytes of a tensor whose data lie in another file."""
        where, entries = self.where(tensor), _entries(tensor)
        if dtype is DType.STRING:
            raise ModelError("strings cannot be external data", where=where, hint=NOT_WHOLE)
        needed = -(-math.prod(dims) * dtype.bits // 8)
        try:
            offset, length = int(entries.get("offset", 0)), int(entries.get("length", needed))
        except ValueError as error:
            raise ModelError(f"offset or length is no number: {error}", where=where, hint=NOT_WHOLE) from error
        if length != needed:
            raise self._short(tensor, needed, length, "bytes")
        data = self._map(entries.get("location", ""), where)
        if offset < 0 or offset + length > data.size:
            raise ModelError(
                f"its data lie at bytes {offset} to {offset + length} of {entries['location']!r}, "
                f"which has {data.size}",
                where=where,
                hint="the file of external data is cut short, or belongs to another model",
            )
        return data[offset : offset + length]

    def _map(self, location: str, where: str) -> np.ndarray[Any, Any]:
        """A file of external data as read-only bytes; each file is mapped once."""
        if location in self._files:
            return self._files[location]
        if self.folder is None:
            raise ModelError(
                f"its data are in the file {location!r}, and the model was not given as a path",
                where=where,
                hint="load the model by its path, or put the weights into it",
            )
        path = inside(self.folder, location, where, self.home)
        try:
            # The last step must not be a link either: it may have been put there since the path was resolved.
            opened = open_regular(path, follow=False)
        except OSError as error:
            raise ModelError(
                f"its external data cannot be read: {error}", where=where, hint="put the file beside the model"
            ) from error
        with opened as file:
            status = os.fstat(file.fileno())
            if status.st_nlink > 1:
                raise ModelError(
                    f"{location!r} has other hard links, so it may be a file from elsewhere",
                    where=where,
                    hint="copy the file of external data instead of linking it",
                )
            self.budget.check("file_bytes", status.st_size, f"bytes of {location!r}", where=where)
            if not status.st_size:
                self._files[location] = np.zeros(0, np.uint8)
            else:
                self._files[location] = np.memmap(file, np.uint8, "r").view(np.ndarray)
        return self._files[location]


@dataclass(frozen=True, slots=True)
class ExternalData:
    """External data that are given in the place of files: values of initializers by their names, and whole files by
    theirs. What no initializer asks for changes nothing."""

    values: Mapping[str, Any] = field(default_factory=dict[str, Any])
    files: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def put_in(self, graph: onnx.GraphProto, reader: TensorReader) -> None:
        """Let the initializers of a graph have these. Raises ModelError for a value of another type."""
        for location, content in self.files.items():
            reader.give(location, content)
        for tensor in graph.initializer:
            if tensor.name not in self.values or tensor.data_location != TensorProto.EXTERNAL:
                continue
            if reader.stored(tensor) is not None:
                continue
            dtype, dims = reader.declared(tensor)
            array = np.asarray(self.values[tensor.name])
            if (DType.of(array.dtype), array.shape) != (dtype, dims):
                text = f"the value that is given for it is {DType.of(array.dtype)}{[*array.shape]}"
                hint = f"give {dtype}{[*dims]}"
                raise ModelError(text, where=reader.where(tensor), hint=hint)
            tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))


def inside(folder: Path, location: str, where: str, home: Path | None = None) -> str:
    """The real path of a file of external data; ModelError if it leaves the folder of the model, and its `home`."""
    hint = "keep the files of external data in the folder of the model"
    if not location or "\0" in location or location.endswith(("/", "\\")):
        raise ModelError(f"{location!r} is no file name of external data", where=where, hint=hint)
    if not stays(location):
        raise ModelError(f"its external data {location!r} lie outside of the model's folder", where=where, hint=hint)
    real = os.path.realpath(folder / location)
    if not any(os.path.commonpath([real, root]) == str(root) != real for root in (folder, home) if root is not None):
        raise ModelError(
            f"its external data {location!r} lead to {real}, outside of the model's folder", where=where, hint=hint
        )
    return real


def stays(location: str) -> bool:
    """True if a location names something below the folder of the model, as far as its text tells."""
    usable = bool(location) and "\0" not in location and not os.path.isabs(location)
    return usable and ".." not in Path(location.replace("\\", "/")).parts


def location_of(tensor: TensorProto) -> str:
    """The file that a tensor's data lie in; empty if it does not say."""
    return _entries(tensor).get("location", "")


def _entries(tensor: TensorProto) -> dict[str, str]:
    return {e.key: e.value for e in tensor.external_data}


def _unpack(data: np.ndarray[Any, Any], count: int, dtype: DType) -> np.ndarray[Any, Any]:
    """Elements of 2, 4 or 6 bits, lowest bits first, one a byte."""
    if 8 % dtype.bits:
        apart = np.unpackbits(data, count=count * dtype.bits, bitorder="little").reshape(count, dtype.bits)
        parts = np.packbits(apart, axis=1, bitorder="little").reshape(-1)
    else:
        shifts = np.arange(0, 8, dtype.bits, dtype=np.uint8)
        parts = (data[:, None] >> shifts & (2**dtype.bits - 1)).reshape(-1)[:count]
    if dtype.integer:
        signed = parts.astype(np.int8)
        if dtype.signed:
            signed[signed >= 2 ** (dtype.bits - 1)] -= 2**dtype.bits
        elements: np.ndarray[Any, Any] = signed.astype(dtype.numpy)
    else:
        elements = parts.view(dtype.numpy)  # ml_dtypes keeps a float4 in the low bits of its byte
    return elements


def _text(entries: Sequence[bytes], dims: tuple[int, ...], where: str) -> np.ndarray[Any, Any]:
    strings = np.empty(len(entries), object)
    try:
        strings[:] = [e.decode("utf-8") for e in entries]
    except UnicodeDecodeError as error:
        raise ModelError("a string is not UTF-8", where=where, hint=NOT_WHOLE) from error
    return strings.reshape(dims)
