"""Models of Apache MXNet, read without it: symbol files, files of parameters, and lists of arrays."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...ops.budget import Budget
from ...ops.errors import ModelError
from ...ops.types import Array, Dim
from ...runtime.ir.graph import Graph
from ..registry import first_bytes
from .arrays import MAGIC, read_arrays
from .vocabulary import Vocabulary, read_vocabulary

__all__ = ["Vocabulary", "load", "operator_uses", "read", "read_arrays", "read_vocabulary"]

Source = str | os.PathLike[str] | bytes


def load(
    source: Source,
    params: Source | Mapping[str, Array] | None = None,
    *,
    shapes: Mapping[str, Sequence[Dim]] | None = None,
    dtypes: Mapping[str, Any] | None = None,
    budget: Budget | None = None,
) -> Graph:
    """Read a model as a graph of ONNX's operators.

    `source` is the path of a `-symbol.json` file or its bytes; `params` a file of parameters (`.params`), its bytes, or
    arrays by name. Left out, the file is the newest of the same prefix beside the symbol: `net-0010.params` of
    `net-symbol.json`. `shapes` and `dtypes` give sizes and element types of inputs, a name or None being an open size.

    Raises ModelError for malformed files, UnsupportedModel with all operators that are not carried, ShapeError where a
    size has to be known, BudgetError beyond a limit.
    """
    from .build import build
    from .symbol import read_symbol

    limits = budget or Budget()
    where = "" if isinstance(source, bytes) else Path(source).name
    symbol = read_symbol(source, limits)
    if params is None:
        needed = any(not n.variable for n in symbol.nodes) and len(symbol.arguments()) > 1
        beside = None if isinstance(source, bytes) else _beside(Path(source))
        if beside is None and needed and not isinstance(source, bytes):
            raise ModelError(
                "no file of parameters stands beside it", where=where, hint='give it: params="model-0000.params"'
            )
        params = beside
    arrays = params if isinstance(params, Mapping) else {} if params is None else read_arrays(params, limits)
    return build(symbol, arrays, shapes=shapes, dtypes=dtypes, name=where, budget=limits)


def operator_uses(source: Source, budget: Budget | None = None) -> dict[str, tuple[int, bool]]:
    """The operators that a symbol uses: how many nodes, and whether they are carried.

    Raises ModelError for malformed files.
    """
    from .build import operators_of
    from .operators import RULES
    from .symbol import read_symbol

    return {name: (count, name in RULES) for name, count in operators_of(read_symbol(source, budget)).items()}


def read(source: Source, budget: Budget) -> Graph:
    """The reader of the format: `load` with what stands beside the file."""
    if first_bytes(source).startswith(MAGIC):
        raise ModelError(
            "it has the parameters of an MXNet model, and no network",
            where="model" if isinstance(source, bytes) else Path(source).name,
            hint="load the -symbol.json file beside it",
        )
    return load(source, budget=budget)


def _beside(symbol: Path) -> Path | None:
    """The newest file of parameters that has the symbol's prefix."""
    prefix = symbol.name.removesuffix(".json").removesuffix("-symbol")
    numbered = re.compile(re.escape(prefix) + r"-(\d+)\.params$")
    try:
        files = [p for p in symbol.parent.iterdir() if p.suffix == ".params"]
    except OSError:
        return None
    epochs = [(int(m.group(1)), p) for p in files if (m := numbered.match(p.name))]
    if epochs:
        return max(epochs)[1]
    plain = symbol.parent / f"{prefix}.params"
    return plain if plain in files else None
