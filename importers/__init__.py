"""Other formats to graphs. The readers load on first use, so that `import mezzo` needs none of their packages."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ..ops.budget import Budget
from ..runtime.graph import Graph

if TYPE_CHECKING:
    import onnx

__all__ = ["load_onnx"]


def load_onnx(source: str | os.PathLike[str] | bytes | onnx.ModelProto, *, budget: Budget = Budget()) -> Graph:  # noqa: B008 - frozen
    """Read an ONNX model as a graph of our opsets.

    `source` is a path, the bytes of a file, or a parsed model; only a path can have external data, which is mapped
    into memory and never copied. Local functions are expanded into their callers.

    Raises ModelError if the file is malformed, UnsupportedModel if it needs operators or opsets that are not carried
    (all of them are named at once), BudgetError if it passes a limit of `budget`.
    """
    try:
        from .load import load
    except ModuleNotFoundError as absent:
        from ..ops.errors import MissingPackage

        if absent.name != "onnx":
            raise
        raise MissingPackage("reading ONNX files needs the package onnx", hint="pip install onnx") from absent
    return load(source, budget)
