"""Everything that stands against a model, found before anything is built and told in one error."""

from __future__ import annotations

import difflib
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache

import onnx
import onnx.defs

from ..ops import OPS, OPSETS, upgrade
from ..ops.budget import Budget
from ..ops.errors import BudgetError, MezzoError, ModelError, UnsupportedModel
from .names import graph_problems, node_problems
from .source import EXPORT_AGAIN, Source
from .tensors import TensorReader, location_of
from .walk import (
    FunctionKey,
    Place,
    attribute_tensors,
    domain_of,
    functions_of,
    key_of,
    label,
    model_names,
    opsets_of,
    places,
    tensors,
)

Used = tuple[str, str, int]  # domain, operator, opset


@dataclass(slots=True)
class Findings:
    """Problems by kind, each with what to do about it."""

    wrong: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    too_much: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    unsupported: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])

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
        raise kind(head, where=where, hint="; ".join(hints))


def survey(source: Source, reader: TensorReader, budget: Budget) -> Findings:
    """Look through a whole model."""
    model, where, found = source.model, source.name, Findings()
    if model.ir_version > onnx.IR_VERSION:
        found.unsupported.append(
            (f"IR version {model.ir_version} is newer than {onnx.IR_VERSION}, the newest that the installed onnx knows",
             "update onnx, or export the model for an older version")
        )  # fmt: skip
    # protobuf hands out text that is not UTF-8 as bytes, which nothing further on expects
    garbled = [text for text in model_names(model) if not isinstance(text, str)]
    if garbled:
        found.wrong.append((f"{garbled[0]!r} is a name, and not UTF-8", EXPORT_AGAIN))
        return found
    functions = functions_of(model)
    used = _measured(model, functions, where, budget, found)
    if found.wrong or found.too_much:
        return found  # too deep, too many, or recursive: not to be walked further
    found.wrong += graph_problems(model.graph, where)
    for key in used:
        body = functions[key]
        place = f"{where}: function {body.name!r}"
        found.wrong += node_problems(body.node, set(body.input), body.output, place, frozenset())
    _operators(list(_all_places(model, functions, used, where)), functions, found)
    _stored(model, functions, used, reader, found)
    return found


def _all_places(
    model: onnx.ModelProto, functions: Mapping[FunctionKey, onnx.FunctionProto], used: list[FunctionKey], where: str
) -> Iterator[Place]:
    yield from places(where, model.graph.node, opsets_of(model))
    for key in used:
        body = functions[key]
        yield from places(f"{where}: function {body.name!r}", body.node, {**opsets_of(model), **opsets_of(body)})


# Depth and number of nodes, which bound everything that follows


def _measured(
    model: onnx.ModelProto,
    functions: Mapping[FunctionKey, onnx.FunctionProto],
    where: str,
    budget: Budget,
    found: Findings,
) -> list[FunctionKey]:
    """Check nesting and the number of nodes; returns the functions that are called, innermost first."""
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
        found.add(error)
    return list(sizes)


# Operators and opsets


@cache
def schema_opset(domain: str, op: str, opset: int) -> int | None:
    """The opset at which the operator took the form that it has at `opset`; None if onnx knows no such operator."""
    try:
        return int(onnx.defs.get_schema(op, opset, domain).since_version)
    except (onnx.defs.SchemaError, TypeError):  # TypeError: a damaged opset that is no 32-bit number
        return None


def missing_changes(domain: str, op: str, opset: int) -> list[int]:
    """Changes between `opset` and ours that the table of upgrades does not know."""
    known, at, lacking = set(upgrade.changes(domain, op)), OPSETS.get(domain, 0), list[int]()
    while (since := schema_opset(domain, op, at)) is not None and since > opset:
        lacking += [since] if since not in known and schema_opset(domain, op, since - 1) is not None else []
        at = since - 1
    return lacking[::-1]


def _operators(all_places: list[Place], functions: Mapping[FunctionKey, object], found: Findings) -> None:
    count: Counter[Used] = Counter()
    first: dict[Used, str] = {}
    unimported: Counter[str] = Counter()
    for place in all_places:
        for index, node in enumerate(place.nodes):
            domain = domain_of(node.domain)
            if key_of(node) in functions:
                continue
            if domain not in place.opsets:
                unimported[domain] += 1
            key = (domain, node.op_type, place.opsets.get(domain, OPSETS.get(domain, 1)))
            count[key] += 1
            first.setdefault(key, f"{place.where}: {label(index, node)}")
    for domain, times in unimported.items():
        text = f"{times} nodes use the domain {_shown(domain)}, and the model imports no opset for it"
        found.wrong.append((text, "add the domain to the model's opset_import"))
    for (domain, op, opset), times in count.items():
        reason, hint = _objection(domain, op, opset)
        if reason:
            at = first[domain, op, opset].partition(": ")[2]
            text = f"{_shown(domain)}::{op} of opset {opset} {reason} ({times} times, first at {at})"
            found.unsupported.append((text, hint))


def _shown(domain: str) -> str:
    return domain or "ai.onnx"


def _objection(domain: str, op: str, opset: int) -> tuple[str, str]:
    """Why a node of this operator cannot be taken, and what to do; two empty strings if it can."""
    if not upgrade.carried(domain, op):
        return "is not carried", _nearest(domain, op)
    ours = OPSETS[domain]
    if opset > ours:
        newest = onnx.defs.onnx_opset_version() if not domain else max(
            (s.since_version for s in onnx.defs.get_all_schemas() if s.domain == domain), default=ours)  # fmt: skip
        older = f"export the model for opset {ours} of {_shown(domain)} or below"
        if not domain and opset > newest:
            return f"is newer than opset {newest}, the newest that the installed onnx knows", older
        since = schema_opset(domain, op, opset)
        if since is not None and since > ours:
            return f"changed at opset {since}, and is carried as of opset {ours}", older
    lacking = missing_changes(domain, op, opset)
    if lacking:
        changed = f"changed at opset {', '.join(map(str, lacking))} in a way that is not known here"
        return changed, "convert the model to a newer opset first (onnx.version_converter)"
    return "", ""


def _nearest(domain: str, op: str) -> str:
    if schema_opset(domain, op, OPSETS.get(domain, 0)) is not None:
        return f"{op} is an operator of ONNX that is not carried yet: export the model without it"
    names = {name for d, name in OPS if d == domain}
    if not names:
        return f"operators of the domain {_shown(domain)} are not known: export with standard operators"
    alike = difflib.get_close_matches(op, names, 3, 0.6) or [n for n in names if n.lower() == op.lower()]
    return f"{op} may mean {' or '.join(alike)}" if alike else f"{op} has no operator of a similar name"


# Stored tensors


def _stored(
    model: onnx.ModelProto,
    functions: Mapping[FunctionKey, onnx.FunctionProto],
    used: list[FunctionKey],
    reader: TensorReader,
    found: Findings,
) -> None:
    stored = [*tensors(model.graph), *(t for key in used for t in attribute_tensors(functions[key].node))]
    external = [t for t in stored if t.data_location == onnx.TensorProto.EXTERNAL]
    absent = reader.missing(external)
    if absent:
        folder = os.fspath(reader.folder or "")
        files = [f"{at!r} (for {len(names)} tensors, {names[0]!r} first)" for at, names in absent.items()]
        text = f"files of external data are missing: {', '.join(files)}"
        found.wrong.append((f"{reader.name}: {text}", f"put them into {folder}, beside the model"))
    for tensor in stored:
        try:
            dtype, dims = reader.declared(tensor)
            if tensor.data_location == onnx.TensorProto.EXTERNAL and location_of(tensor) not in absent:
                reader.external(tensor, dtype, dims)
        except MezzoError as error:
            found.add(error)
