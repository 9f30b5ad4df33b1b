"""Descriptions of primitives and launches (Choice.primitives) as texts, and back.

A frozen dataclass is `{"name of its class": [its fields]}`, so that a file can be read by eye. Only classes that are
listed here are ever made.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

import numpy as np

from ...ops import DType
from ...ops.dataclasses import fields
from .pool import dtype_of
from .table import malformed

# The classes by the name that stands in files; modules are those under runtime/.
CLASSES: Final = {
    **dict.fromkeys(("Draft", "Operand", "Attributes", "PostOp"), "onednn.primitive"),
    "Memory": "onednn.memory",
    **dict.fromkeys(("Choice", "Alias"), "kernels.kernel"),
    **dict.fromkeys(("Written", "Launch", "Source", "In", "Out", "Scratch", "Key"), "gpu.launch"),
    **{f"cudnn.{name}": "gpu.cudnn.draft" for name in ("Draft", "Operand", "Node")},
    **{f"cublaslt.{name}": "gpu.cublaslt.product" for name in ("Product", "Matrix")},
}
_PACKAGE: Final = (__package__ or "").rpartition(".")[0]


def written(described: Any) -> str:
    """The text of a description."""
    return json.dumps(described, default=_plain, separators=(",", ":"))


def read(text: str) -> Any:
    """The description that a text holds; ModelError where it holds none."""
    try:
        return _tupled(json.loads(text, object_hook=_object))
    except (ValueError, TypeError, KeyError, RecursionError, AttributeError) as error:
        raise malformed(f"a step describes what nobody can make: {error}") from error


def _plain(value: Any) -> Any:
    match value:
        case DType():
            return {"dtype": value.onnx}
        case bytes():
            return {"bytes": value.hex()}
        case np.generic():
            return {"number": [value.dtype.str, value.tobytes().hex()]}
    name, names = _named(type(value).__module__, type(value).__name__)
    return {name: [_entries(getattr(value, n)) for n in names]}


def _entries(value: Any) -> Any:
    return {"map": list(value.items())} if isinstance(value, Mapping) else value


def _object(found: dict[str, Any]) -> Any:
    ((name, value),) = found.items()
    match name:
        case "dtype":
            return dtype_of(value)
        case "bytes":
            return bytes.fromhex(value)
        case "map":
            return {k: _tupled(v) for k, v in value}
        case "number":
            dtype = np.dtype(value[0])
            if dtype.hasobject or dtype.kind not in "biufc":
                raise malformed(f"there are no numbers of type {value[0]!r}")
            return np.frombuffer(bytes.fromhex(value[1]), dtype)[0]
    return _class(name)(*map(_tupled, value))


def _tupled(value: Any) -> Any:
    return tuple(map(_tupled, value)) if value.__class__ is list else value


@cache
def _class(name: str) -> Any:
    module: Any
    match CLASSES[name]:  # those of GPUs with the first program for one
        case "onednn.primitive":
            from ..onednn import primitive as module
        case "onednn.memory":
            from ..onednn import memory as module
        case "kernels.kernel":
            from ..kernels import kernel as module
        case "gpu.launch":
            from ..gpu import launch as module
        case "gpu.cudnn.draft":
            from ..gpu.cudnn import draft as module
        case _:
            from ..gpu.cublaslt import product as module
    return getattr(module, name.rpartition(".")[2])


@cache
def _named(module: str, of: str) -> tuple[str, tuple[str, ...]]:
    """The name of a class in files, and the names of its fields."""
    for name, place in CLASSES.items():
        if of == name.rpartition(".")[2] and module == f"{_PACKAGE}.{place}":
            return name, tuple(f.name for f in fields(_class(name)) if f.init)
    raise TypeError(f"{of} is no description that files hold")
