"""Models of Apache MXNet, read without it: symbol files, files of parameters, and lists of arrays."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...ops import Tensor
from ...ops.budget import Budget
from ...ops.dataclasses import dataclass
from ...ops.errors import ModelError
from ...ops.types import Array, Dim
from ...runtime.ir.graph import Graph
from ..registry import first_bytes
from .arrays import MAGIC, read_arrays
from .sizes import UnknownSize
from .states import OptimizerStates, read_states
from .vocabulary import Vocabulary, read_vocabulary

if TYPE_CHECKING:
    from .symbol import SymbolGraph

__all__ = [
    "Model", "OptimizerStates", "UnknownSize", "Vocabulary", "load", "open_model", "operator_uses", "read",
    "read_arrays", "read_states", "read_vocabulary",
]  # fmt: skip

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
    size has to be known (UnknownSize), BudgetError beyond a limit.
    """
    return open_model(source, params, budget).graph(shapes, dtypes)


def open_model(
    source: Source, params: Source | Mapping[str, Array] | None = None, budget: Budget | None = None
) -> Model:
    """Read the files of a model, of which `graph` makes a graph. Raises as `load` does."""
    from .symbol import read_symbol

    limits = Budget.of(budget)
    where = "" if isinstance(source, bytes) else Path(source).name
    if first_bytes(source).startswith(MAGIC):
        raise ModelError(
            "it has the parameters of an MXNet model, and no network",
            where=where or "model",
            hint="load the -symbol.json file beside it",
        )
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
    return Model(symbol, arrays, where, limits)


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """A symbol and its arrays, as their files have them."""

    symbol: SymbolGraph
    arrays: Mapping[str, Array]
    name: str
    budget: Budget

    def graph(
        self, shapes: Mapping[str, Sequence[Dim]] | None = None, dtypes: Mapping[str, Any] | None = None
    ) -> Graph:
        """The graph for inputs of these sizes and types. Raises UnknownSize where a size has to be known."""
        from .build import build

        return build(self.symbol, self.arrays, shapes=shapes, dtypes=dtypes, name=self.name, budget=self.budget)

    def inputs(self) -> dict[str, Tensor]:
        """Names and element types of the inputs."""
        from .build import inputs_of

        return inputs_of(self.symbol, self.arrays)


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
