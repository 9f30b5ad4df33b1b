"""Symbol files of MXNet: JSON of every version since 0.8, as data of the form that 1.9.1 writes."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...ops.budget import Budget
from ...ops.dataclasses import dataclass
from ...ops.errors import ModelError

VARIABLE = "null"
# Attributes that say something about an input, and stood on the operator: `weight_lr_mult` is `__lr_mult__` of it.
HIDDEN = ("lr_mult", "wd_mult", "ctx_group", "force_mirroring", "init", "dtype", "shape", "storage_type")
OF_INPUTS = ("lr_mult", "wd_mult")
# Auxiliary states that files from before 0.9 leave out, and the position of the first.
AUXILIARY = {"BatchNorm": (3, ("moving_mean", "moving_var")), "BatchNorm_v1": (3, ("moving_mean", "moving_var"))}
FIRST_WITH_AUXILIARY, FIRST_WITH_AXES = 900, 905  # versions as major * 10000 + minor * 100 + patch


@dataclass(frozen=True, slots=True)
class Entry:
    """An output of a node: which node, and which of its outputs."""

    node: int
    output: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class SymbolNode:
    """A variable (op "null"), or a use of an operator. All attributes are texts, as they stand in the file."""

    op: str
    name: str
    attrs: Mapping[str, str]
    inputs: tuple[Entry, ...]
    subgraphs: tuple[SymbolGraph, ...] = ()

    @property
    def variable(self) -> bool:
        return self.op == VARIABLE


@dataclass(frozen=True, slots=True, eq=False)
class SymbolGraph:
    """Nodes in topological order, and the entries that are the results."""

    nodes: tuple[SymbolNode, ...]
    heads: tuple[Entry, ...]
    version: int = 0  # as major * 10000 + minor * 100 + patch; 0 where the file does not tell

    def arguments(self) -> tuple[str, ...]:
        """Names of the variables, in the order of the file."""
        return tuple(n.name for n in self.nodes if n.variable)


def read_symbol(source: str | os.PathLike[str] | bytes, budget: Budget | None = None) -> SymbolGraph:
    """Read a symbol from a path, or from the bytes of a file.

    Raises ModelError for malformed files, BudgetError for more nodes than `budget.nodes`.
    """
    limits = Budget.of(budget)
    where = "model"
    if not isinstance(source, bytes):
        path = Path(source)
        where = path.name
        try:
            if not path.is_file():
                raise ModelError("it is no regular file", where=where, hint="give the model's -symbol.json")
            limits.check("file_bytes", path.stat().st_size, "bytes of the file", where=where)
            source = path.read_bytes()
        except OSError as error:
            raise ModelError(f"it cannot be read: {error.strerror}", where=where) from error
    try:
        content = json.loads(source)
    except (ValueError, RecursionError) as error:
        raise ModelError(f"it is no JSON: {error}", where=where, hint="give the model's -symbol.json") from error
    return _Parser(where, limits).graph(content, 0)


@dataclass(frozen=True, slots=True)
class _Parser:
    where: str
    budget: Budget

    def wrong(self, message: str) -> ModelError:
        return ModelError(message, where=self.where, hint="it is not as MXNet writes symbols")

    def graph(self, content: Any, level: int) -> SymbolGraph:
        self.budget.check("nesting", level, "subgraphs inside subgraphs", where=self.where)
        if not isinstance(content, dict) or not isinstance(content.get("nodes"), list):
            raise self.wrong("it has no list of nodes")
        self.budget.check("nodes", len(content["nodes"]), "nodes", where=self.where)
        version = self.version(content)
        nodes: list[SymbolNode] = []
        places: list[int] = []  # where each node of the file stands, once auxiliary states are added
        for i, item in enumerate(content["nodes"]):
            node = self.node(item, i, places, level)
            if version < FIRST_WITH_AUXILIARY:
                node = self.with_auxiliary(node, nodes)
            if version < FIRST_WITH_AXES and node.op in ("argmin", "argmax") and node.attrs.get("axis") == "-1":
                node = SymbolNode(node.op, node.name, {k: v for k, v in node.attrs.items() if k != "axis"}, node.inputs)
            for variable in _moved_to_inputs(node, nodes):
                nodes[variable[0]] = variable[1]
            places.append(len(nodes))
            nodes.append(node)
        heads = content.get("heads")
        if not isinstance(heads, list) or not heads:
            raise self.wrong("it has no heads")
        return SymbolGraph(tuple(nodes), tuple(self.entry(h, places, "a head") for h in heads), version)

    def version(self, content: Mapping[str, Any]) -> int:
        attrs = content.get("attrs")
        stored = attrs.get("mxnet_version") if isinstance(attrs, dict) else None
        if isinstance(stored, list) and len(stored) == 2 and isinstance(stored[1], int):
            return stored[1]
        return 0

    def node(self, item: Any, index: int, places: list[int], level: int) -> SymbolNode:
        if not isinstance(item, dict):
            raise self.wrong(f"node {index} is no object")
        op, name, inputs = item.get("op"), item.get("name"), item.get("inputs", [])
        if not isinstance(op, str) or not isinstance(name, str) or not isinstance(inputs, list):
            raise self.wrong(f"node {index} lacks its operator, its name or its inputs")
        attrs: dict[str, str] = {}
        for key in ("param", "attr", "attrs"):  # the names of three generations
            part = item.get(key) or {}
            if not isinstance(part, dict) or not all(isinstance(v, str) for v in part.values()):
                raise self.wrong(f"node {name!r} has attributes that are no texts")
            attrs.update({f"__{k}__" if k in HIDDEN and key == "attr" else k: v for k, v in part.items()})
        entries = tuple(self.entry(e, places, f"an input of node {name!r}") for e in inputs)
        parts = item.get("subgraphs") or []
        if not isinstance(parts, list):
            raise self.wrong(f"node {name!r} has subgraphs that are no list")
        return SymbolNode(op, name, attrs, entries, tuple(self.graph(p, level + 1) for p in parts))

    def entry(self, content: Any, places: list[int], what: str) -> Entry:
        if not isinstance(content, list) or len(content) not in (2, 3) or not all(type(v) is int for v in content):
            raise self.wrong(f"{what} is no pair of numbers")
        node, output = content[:2]
        if not 0 <= node < len(places) or not 0 <= output < 1 << 20:
            raise self.wrong(f"{what} names node {node}, which does not come before it")
        return Entry(places[node], output)

    def with_auxiliary(self, node: SymbolNode, nodes: list[SymbolNode]) -> SymbolNode:
        """The node with variables for its auxiliary states, which stand before it then."""
        first, names = AUXILIARY.get(node.op, (0, ()))
        if not names or len(node.inputs) != first:
            return node
        entries = []
        for name in names:
            entries.append(Entry(len(nodes)))
            nodes.append(SymbolNode(VARIABLE, f"{node.name}_{name}", {}, ()))
        return SymbolNode(node.op, node.name, node.attrs, (*node.inputs, *entries), node.subgraphs)


def _moved_to_inputs(node: SymbolNode, nodes: list[SymbolNode]) -> list[tuple[int, SymbolNode]]:
    """Variables that get what stood on the operator: `weight_lr_mult` becomes `__lr_mult__` of the weight."""
    changed = []
    for entry in node.inputs:
        variable = nodes[entry.node]
        if not variable.variable:
            continue
        stem = variable.name.removeprefix(f"{node.name}_")
        more = {f"__{k}__": node.attrs[f"{stem}_{k}"] for k in OF_INPUTS if f"{stem}_{k}" in node.attrs}
        if more:
            changed.append((entry.node, SymbolNode(VARIABLE, variable.name, {**variable.attrs, **more}, ())))
    return changed
