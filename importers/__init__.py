"""Importers: other formats to graphs. The readers load on first use, so that `import mezzo` needs none of their
packages."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from ..ops.budget import Budget
from ..runtime.ir.graph import Graph
from .registry import Source, first_bytes, load_graph, register_importer
from .uses import OperatorUse, OutOfOrder

if TYPE_CHECKING:
    import onnx

__all__ = [
    "OperatorUse",
    "OutOfOrder",
    "first_bytes",
    "is_mxnet",
    "load_graph",
    "load_onnx",
    "operators_of",
    "register_importer",
]

DEFAULT = Budget()
SYMBOL = re.compile(rb'\s*\{\s*"nodes"\s*:')  # how symbol files of MXNet begin
ARRAYS = b"\x12\x01" + bytes(14)  # and its files of arrays


def load_onnx(source: str | os.PathLike[str] | bytes | onnx.ModelProto, *, budget: Budget = DEFAULT) -> Graph:
    """Read an ONNX model as a graph of our opsets.

    `source` is a path, the bytes of a file, or a parsed model; only a path can have external data, which is mapped
    into memory and never copied. Local functions are expanded into their callers.

    Raises ModelError if the file is malformed, UnsupportedModel if it needs operators or opsets that are not carried
    (all of them are named at once), BudgetError if it passes a limit of `budget`.
    """
    from .load import load

    return load(source, budget)


def operators_of(
    source: str | os.PathLike[str] | bytes | onnx.ModelProto, *, budget: Budget = DEFAULT
) -> list[OperatorUse]:
    """The operators that an ONNX model uses, each with what stands against it, if anything does.

    Raises ModelError or BudgetError if the file cannot be read so far.
    """
    from .load import operators

    return operators(source, budget)


def is_mxnet(head: bytes) -> bool:
    """Return True if a file begins as one of Apache MXNet: a symbol, or arrays."""
    return SYMBOL.match(head) is not None or head.startswith(ARRAYS)


def _read_mxnet(source: Source, budget: Budget) -> Graph:
    from .mxnet import read

    return read(source, budget)


register_importer("mxnet", is_mxnet, _read_mxnet)
