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
    with closing(read(source, budget)) as opened:
        problems = Findings()
        functions = functions_of(opened.model)
        used = measured(opened.model, functions, opened.name, budget, problems)
        problems.report(opened.name)
        return operator_uses(opened.model, functions, used, opened.name)


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
    with closing(read(source, budget, folder)) as opened:
        if opened.weights is not None:
            opened.weights.mapped = mapped
        return _loaded(opened, budget, data or ExternalData())


def _loaded(source: Source, budget: Budget, data: ExternalData) -> Graph:
    reader = TensorReader(source.name, source.folder, budget, source.weights, source.home)
    data.put_in(source.model.graph, reader)
    source, problems = survey(source, reader, budget)
    problems.report(source.name)
    if problems.early:
        tell(source.name, problems.early)
    check(source, changed=bool(data.values or data.files or problems.early))
    build = Build(source.model, source.name, reader, cache(partial(inferred_types, source.model)))
    graph = build.build()
    declined = Findings(unsupported=[(f"{where}: {reason}", "") for where, reason in build.declined])
    if declined.unsupported:
        hint = "convert the model to a newer opset first (onnx.version_converter), or export it again"
        declined.unsupported[0] = (declined.unsupported[0][0], hint)
    declined.report(source.name)
    try:
        return graph.verify()
    except ShapeError as error:  # a call without an operand that the function's body needs, for one
        raise ModelError(error.message, where=error.where, hint="check the operands of this node") from error
