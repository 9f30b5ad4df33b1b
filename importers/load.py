"""The ONNX reader: parse, survey, check, build."""

from __future__ import annotations

import os
from contextlib import closing
from functools import cache, partial
from pathlib import Path

import onnx

from ..ops.budget import Budget
from ..ops.errors import ModelError, ShapeError
from ..runtime.ir.graph import Graph
from .build import Build
from .check import check, inferred_types
from .operators import operator_uses
from .order import tell
from .source import Source, read
from .survey import Findings, measured, survey
from .tensors import ExternalData, TensorReader
from .uses import OperatorUse
from .walk import functions_of


def operators(source: str | os.PathLike[str] | bytes | onnx.ModelProto, budget: Budget) -> list[OperatorUse]:
    """See `mezzo.importers.operators_of`."""
    with closing(read(source, budget)) as found:
        problems = Findings()
        functions = functions_of(found.model)
        used = measured(found.model, functions, found.name, budget, problems)
        problems.report(found.name)
        return operator_uses(found.model, functions, used, found.name)


def load(
    source: str | os.PathLike[str] | bytes | onnx.ModelProto,
    budget: Budget,
    folder: Path | None = None,
    *,
    mapped: bool = False,
    data: ExternalData | None = None,
) -> Graph:
    """See `mezzo.importers.load_onnx`; `folder` has the external data of a model that is no file, `data` those that are
    given. The large weights of a `mapped` file are views of it, at any addresses; for those who only plan programs from
    them."""
    with closing(read(source, budget, folder)) as found:
        if found.weights is not None:
            found.weights.mapped = mapped
        return _loaded(found, budget, data or ExternalData())


def _loaded(found: Source, budget: Budget, data: ExternalData) -> Graph:
    reader = TensorReader(found.name, found.folder, budget, found.weights, found.home)
    data.put_in(found.model.graph, reader)
    found, problems = survey(found, reader, budget)
    problems.report(found.name)
    if problems.early:
        tell(found.name, problems.early)
    check(found, changed=bool(data.values or data.files or problems.early))
    build = Build(found.model, found.name, reader, cache(partial(inferred_types, found.model)))
    graph = build.build()
    declined = Findings(unsupported=[(f"{where}: {reason}", "") for where, reason in build.declined])
    if declined.unsupported:
        hint = "convert the model to a newer opset first (onnx.version_converter), or export it again"
        declined.unsupported[0] = (declined.unsupported[0][0], hint)
    declined.report(found.name)
    try:
        return graph.verify()
    except ShapeError as error:  # a call without an operand that the function's body needs, for one
        raise ModelError(error.message, where=error.where, hint="check the operands of this node") from error
