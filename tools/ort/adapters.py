"""ONNX Runtime's adapters: files of values for inputs of a model that may be fed, and runs that are given them.

The file is one flatbuffer: https://github.com/microsoft/onnxruntime/tree/main/onnxruntime/lora/adapter_format.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, Self

import numpy as np

from ...ops import Tensor
from ...ops.errors import ArgumentError, ModelError
from ...runtime.file.layout import Field, Layout
from ...runtime.file.table import Table, root
from ...runtime.file.write import pack
from ...runtime.files import replace_file
from .errors import Fail, WrongType
from .values import OrtValue, element_type

IDENTIFIER, FORMAT = b"TORT", 1
PARAMETER = Layout(
    "Parameter",
    {
        "name": Field(0, "string"),
        "dims": Field(1, "[long]", code="q"),
        "data_type": Field(2, "uint", code="I"),
        "raw_data": Field(3, "[ubyte]", code="B", align=8),
    },
)
ADAPTER = Layout(
    "Adapter",
    {
        "format_version": Field(0, "uint", code="I"),
        "adapter_version": Field(1, "uint", code="I"),
        "model_version": Field(2, "uint", code="I"),
        "parameters": Field(3, "[Parameter]", PARAMETER),
    },
)


NUMBERS = frozenset((*range(1, 8), *range(10, 14), *range(16, 21)))  # of the element types that adapters may have


class UnreadableAdapter(ModelError, Fail, RuntimeError):
    """The file is missing or no adapter, or parts of it contradict each other."""


def _signed(number: int) -> int:
    return number - (number >> 31 << 32)


def _read(path: str | os.PathLike[str]) -> tuple[Table, dict[str, OrtValue]]:
    """The table of an adapter's file, and its values, which lie in the file until they are written to."""
    where, name = "AdapterFormat", os.fspath(path)
    try:
        with open(name, "rb") as file:
            content: Any = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    except (OSError, ValueError) as error:  # the latter for an empty file
        raise UnreadableAdapter(
            f"{name} cannot be read: {error}", where=where, hint="give an adapter's path"
        ) from error
    try:
        table = root(content, ADAPTER, IDENTIFIER)
        if (version := table.number("format_version")) != FORMAT:
            raise ModelError(f"its format has the version {version}, not {FORMAT}")
        return table, dict(map(_parameter, table.tables("parameters")))
    except (ModelError, ArgumentError) as error:
        hint = "write it again: AdapterFormat.export_adapter"
        raise UnreadableAdapter(f"{name} is no adapter: {error.message}", where=where, hint=hint) from error


def _parameter(table: Table) -> tuple[str, OrtValue]:
    name, dims, dtype = table.text("name"), table.column("dims"), element_type(table.number("data_type"))
    raw = table.raw("raw_data")
    if dtype.onnx not in NUMBERS or min(dims, default=-1) < 0 or raw.nbytes != prod(dims) * dtype.numpy.itemsize:
        raise ModelError(f"{name!r} has {raw.nbytes} bytes for {dtype}{dims}")
    array = np.frombuffer(raw, np.uint8).view(dtype.numpy).reshape(dims)
    return name, OrtValue(array if array.flags.aligned else array.copy())  # ONNX Runtime aligns to four bytes


class AdapterFormat:
    """An adapter's file: values by the names of the inputs that they are for, and two versions of one's own.

    >>> adapter = AdapterFormat()
    >>> adapter.set_parameters({"a": OrtValue.ortvalue_from_numpy(np.ones((2, 3), np.float32))})
    >>> adapter.get_parameters()["a"].shape()
    [2, 3]
    """

    def __init__(self) -> None:
        self._format, self._adapter, self._model = FORMAT, 0, 0
        self._parameters: dict[str, OrtValue] = {}

    @classmethod
    def read_adapter(cls, file_path: str | os.PathLike[str]) -> Self:
        """The adapter of a file. Raises UnreadableAdapter, which is a Fail."""
        made = cls()
        table, made._parameters = _read(file_path)
        made._adapter, made._model = (_signed(table.number(n)) for n in ("adapter_version", "model_version"))
        return made

    def export_adapter(self, file_path: str | os.PathLike[str]) -> None:
        """Write a file that takes the place of an old one. Raises ArgumentError for values that no file holds, and
        ModelError where it cannot be written."""
        for name, value in self._parameters.items():
            known = value._known()
            if not isinstance(known, Tensor) or known.dtype.onnx not in NUMBERS or not known.dims:
                where, hint = "AdapterFormat.export_adapter", "give tensors with an axis, of integers or floats"
                raise ArgumentError(f"{name!r} is {known}", where=where, hint=hint)
        parameters = [
            {
                "name": name,
                "dims": np.array(array.shape, np.int64),
                "data_type": value.element_type(),
                "raw_data": np.ascontiguousarray(array).reshape(-1).view(np.uint8),
            }
            for name, value in self._parameters.items()
            for array in [value.numpy()]
        ]
        versions = (("format_version", FORMAT), ("adapter_version", self._adapter), ("model_version", self._model))
        content = {name: number & 0xFFFFFFFF for name, number in versions} | {"parameters": parameters}
        replace_file(file_path, [pack(ADAPTER, content, IDENTIFIER)])

    def get_format_version(self) -> int:
        return self._format

    def set_adapter_version(self, adapter_version: int) -> None:
        self._adapter = _checked(adapter_version, "set_adapter_version")

    def get_adapter_version(self) -> int:
        return self._adapter

    def set_model_version(self, model_version: int) -> None:
        self._model = _checked(model_version, "set_model_version")

    def get_model_version(self) -> int:
        return self._model

    def set_parameters(self, params: Mapping[str, OrtValue]) -> None:
        """Take these values in the place of all others. Raises ArgumentError for what is no OrtValue."""
        for name, value in params.items():
            if not isinstance(value, OrtValue):
                text, where = f"{name!r} is a {type(value).__name__}", "AdapterFormat.set_parameters"
                raise WrongType(text, where=where, hint="give an OrtValue")
        self._parameters = dict(params)

    def get_parameters(self) -> dict[str, OrtValue]:
        """The values by name; of a file, in its bytes."""
        return dict(self._parameters)


class LoraAdapter:
    """An adapter for runs: `RunOptions.add_active_adapter` feeds its values to the inputs of their names."""

    def __init__(self) -> None:
        self.parameters: dict[str, OrtValue] | None = None

    def Load(self, file_path: str | os.PathLike[str]) -> None:  # noqa: N802
        """Map a file into memory. Raises UnreadableAdapter, which is a Fail."""
        _, self.parameters = _read(file_path)


def fed_by(adapters: Sequence[LoraAdapter], feeds: Mapping[str, Any]) -> dict[str, Any]:
    """Feeds, and the values of adapters. Raises ArgumentError for a name that is given twice."""
    fed = dict(feeds)
    for adapter in adapters:
        for name, value in (adapter.parameters or {}).items():
            if name in fed:
                hint = "leave it out of the feeds, or of all adapters but one"
                raise ArgumentError(f"{name!r} is given twice", where="RunOptions.add_active_adapter", hint=hint)
            fed[name] = value
    return fed


def _checked(version: Any, call: str) -> int:
    if type(version) is not int or not -(1 << 31) <= version < 1 << 31:
        raise ArgumentError(f"{version!r} is no version", where=f"AdapterFormat.{call}", hint="give a number")
    return version
