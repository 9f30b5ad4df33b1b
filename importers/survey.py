"""Survey of a model: all of its problems, found before anything is built and reported in one error."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping

import onnx

from ..ops.budget import Budget
from ..ops.dataclasses import dataclass, field, replace
from ..ops.errors import BudgetError, MezzoError, ModelError, UnsupportedModel
from .names import graph_problems, node_problems
from .operators import operator_uses, shown
from .order import in_order
from .source import EXPORT_AGAIN, Source
from .tensors import TensorReader, location_of
from .uses import OperatorUse
from .walk import (
    FunctionKey,
    Place,
    attribute_tensors,
    functions_of,
    key_of,
    model_names,
    places,
    tensors,
)


@dataclass(slots=True)
class Findings:
    """Problems by kind, each with what to do about it; and the nodes that stand before what they read from, which are
    none."""

    wrong: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    too_much: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    unsupported: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    early: list[str] = field(default_factory=list[str])

    def add(self, error: MezzoError) -> None:
        """Keep an error for later."""
        line = (f"{error.where}: {error.message}" if error.where else error.message, error.hint)
        {BudgetError: self.too_much, UnsupportedModel: self.unsupported}.get(type(error), self.wrong).append(line)

    def report(self, where: str) -> None:
        """Raise one error that tells all problems, if there are any."""
        lines = [*self.wrong, *self.too_much, *self.unsupported]
        if not lines:
            return
        kind = ModelError if self.wrong else BudgetError if self.too_much else UnsupportedModel
        texts = [text.removeprefix(f"{where}: ") for text, _ in lines]
        hints = dict.fromkeys(hint for _, hint in lines if hint)
        head = texts[0] if len(texts) == 1 else f"{len(texts)} problems\n" + "\n".join(f"  - {t}" for t in texts)
        kinds = [ModelError] * len(self.wrong) + [BudgetError] * len(self.too_much)
        kinds += [UnsupportedModel] * len(self.unsupported)
        parts = [k(text, hint=hint) for k, text, (_, hint) in zip(kinds, texts, lines, strict=True)]
        raise kind(head, where=where, hint="; ".join(hints), parts=parts)


def survey(source: Source, reader: TensorReader, budget: Budget) -> tuple[Source, Findings]:
    """Look through a whole model. It is returned with its nodes in an order in which they can run."""
    model, where, findings = source.model, source.name, Findings()
    if model.ir_version > onnx.IR_VERSION:
        findings.unsupported.append(
            (f"IR version {model.ir_version} is newer than {onnx.IR_VERSION}, the newest that the installed onnx knows",
             "update onnx, or export the model for an older version")
        )  # fmt: skip
    functions = functions_of(model)
    used = measured(model, functions, where, budget, findings)
    if findings.wrong or findings.too_much:
        return source, findings  # too deep, too many, or recursive: not to be walked further
    model, findings.early = in_order(model)
    functions = functions_of(model)
    findings.wrong += graph_problems(model.graph, where)
    for key in used:
        body = functions[key]
        place = f"{where}: function {body.name!r}"
        findings.wrong += node_problems(body.node, set(body.input), body.output, place, frozenset())
    _operators(operator_uses(model, functions, used, where), findings)
    _stored(model, functions, used, reader, findings)
    return replace(source, model=model), findings


# Depth and number of nodes, which bound everything that follows


def measured(
    model: onnx.ModelProto,
    functions: Mapping[FunctionKey, onnx.FunctionProto],
    where: str,
    budget: Budget,
    findings: Findings,
) -> list[FunctionKey]:
    """Check nesting and the number of nodes; returns the functions that are called, innermost first."""
    # protobuf hands out text that is not UTF-8 as bytes, which nothing further on expects
    garbled = [text for text in model_names(model) if not isinstance(text, str)]
    if garbled:
        findings.wrong.append((f"{garbled[0]!r} is a name, and not UTF-8", EXPORT_AGAIN))
        return []
    sizes: dict[FunctionKey, tuple[int, int]] = {}

    def measure(nodes: Place, path: tuple[FunctionKey, ...]) -> tuple[int, int]:
        deepest, count = 0, 0
        for place in places(nodes.where, nodes.nodes, nodes.opsets):
            deepest = max(deepest, place.depth)
            for node in place.nodes:
                depth, more = call(key_of(node), path) if key_of(node) in functions else (0, 1)
                deepest, count = max(deepest, place.depth + depth), count + more
        return deepest, count

    def call(key: FunctionKey, path: tuple[FunctionKey, ...]) -> tuple[int, int]:
        if key in path:
            circle = " -> ".join(k[1] for k in (*path[path.index(key) :], key))
            raise ModelError(
                f"functions call themselves: {circle}",
                where=where,
                hint="recursion is no part of ONNX: export the model without it",
            )
        budget.check("nesting", len(path) + 1, "levels of function calls", where=where)
        if key not in sizes:
            depth, count = measure(Place("", functions[key].node, {}, 0), (*path, key))
            sizes[key] = depth + 1, count
        return sizes[key]

    try:
        depth, count = measure(Place("", model.graph.node, {}, 0), ())
        budget.check("nesting", depth, "levels of subgraphs and function calls", where=where)
        budget.check("nodes", count, "nodes, functions expanded", where=where)
    except MezzoError as error:
        findings.add(error)
    return list(sizes)


# Operators


def _operators(uses: list[OperatorUse], findings: Findings) -> None:
    unimported: Counter[str] = Counter()
    for use in uses:
        if use.opset is None:
            unimported[use.domain] += use.count
        elif use.problem:
            place = f"{use.count} times, first at {use.first.partition(': ')[2]}"
            text = f"{shown(use.domain)}::{use.op} of opset {use.opset} {use.problem} ({place})"
            findings.unsupported.append((text, use.hint))
    for domain, times in unimported.items():
        text = f"{times} nodes use the domain {shown(domain)}, and the model imports no opset for it"
        findings.wrong.append((text, "add the domain to the model's opset_import"))


# Stored tensors


def _stored(
    model: onnx.ModelProto,
    functions: Mapping[FunctionKey, onnx.FunctionProto],
    used: list[FunctionKey],
    reader: TensorReader,
    findings: Findings,
) -> None:
    stored = [*tensors(model.graph), *(t for key in used for t in attribute_tensors(functions[key].node))]
    external = [t for t in stored if t.data_location == onnx.TensorProto.EXTERNAL and reader.stored(t) is None]
    absent = reader.missing(external)
    if absent:
        folder = os.fspath(reader.folder or "")
        files = [f"{at!r} (for {len(names)} tensors, {names[0]!r} first)" for at, names in absent.items()]
        text = f"files of external data are missing: {', '.join(files)}"
        findings.wrong.append((f"{reader.name}: {text}", f"put them into {folder}, beside the model"))
    for tensor in stored:
        try:
            dtype, dims = reader.declared(tensor)
            elsewhere = tensor.data_location == onnx.TensorProto.EXTERNAL and reader.stored(tensor) is None
            if elsewhere and location_of(tensor) not in absent:
                reader.external(tensor, dtype, dims)
        except MezzoError as error:
            findings.add(error)
