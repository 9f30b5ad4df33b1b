"""Choice of the opset and IR version of a model, and of the form of each node there."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
import onnx.helper

from ..ops import OPSETS, DType
from ..ops.errors import InputError, UnsupportedModel
from ..ops.upgrade import Form
from ..runtime.ir.graph import Graph, Node
from .lower import FREE, LOWEST, SCHEMATA, Context, Way, ways
from .parts import Part, Parts, constants_of, graphs_of
from .proto import IR_OF_TYPES

NEWEST_IR = int(onnx.IR_VERSION)
FUNCTIONS_IR, FUNCTIONS_OPSET = 8, 15  # local functions came with both


def check_graph(graph: object) -> None:
    """Raise InputError for what is no graph."""
    if not isinstance(graph, Graph):
        raise InputError(
            f"{type(graph).__name__} is no graph", where="save_onnx", hint="a session has one, mz.load(path).graph"
        )


def check_target(opset: int | None, ir_version: int | None) -> None:
    """Raise UnsupportedModel for an opset or an IR version that nothing is written for."""
    newest = OPSETS[""]
    if opset is not None and not LOWEST <= opset <= newest:
        raise UnsupportedModel(
            f"opset {opset} is not written", where="opset=", hint=f"give one of {LOWEST} to {newest}, or leave it out"
        )
    if ir_version is not None and not 3 <= ir_version <= NEWEST_IR:
        raise UnsupportedModel(
            f"IR version {ir_version} is not written",
            where="ir_version=",
            hint=f"give one of 3 to {NEWEST_IR}, or leave it out",
        )


def has_functions(opset: int | None, ir_version: int | None) -> bool:
    """True if readers of this opset and IR version support local functions."""
    if ir_version is not None:
        return ir_version >= FUNCTIONS_IR
    return opset is None or opset >= FUNCTIONS_OPSET


class Chosen:
    """The chosen form of each node of all parts at one opset, and the IR version."""

    def __init__(self, parts: Parts, opset: int | None) -> None:
        self.parts, self._asked = parts, opset
        self._top = parts.top.graph
        limit = opset if opset is not None else self._top.opsets.get("") or None
        self._ways: dict[int, list[Way]] = {}
        self._reasons: dict[int, str] = {}
        self._contexts = {id(part): _context(part, self._top.opsets.get("", 0)) for part in parts.all()}
        self._nodes: list[Node] = []
        for part in parts.all():
            for _, node in part.graph.walk():
                self._nodes.append(node)
                self._ways[id(node)], self._reasons[id(node)] = self._ways_of(node, part, limit)
        self.opsets = self._lowest()
        written = {id(n): self._at(n) for n in self._nodes}
        self._lacking = [n for n in self._nodes if written[id(n)] is None]
        self.misfits = {id(n): n for n in self._lacking if id(n) not in parts.stuck}
        self._written = {i: w for i, w in written.items() if w is not None}
        self.ir_version = 0

    def _ways_of(self, node: Node, part: Part, limit: int | None) -> tuple[list[Way], str]:
        if id(node) not in self.parts.calls:
            return ways(node, self._contexts[id(part)], limit)
        _, function = self.parts.calls[id(node)]
        call = Form(function.name, node.inputs, node.outputs, function.attrs, "mezzo")
        return [Way(call, 1, FREE, {}, frozenset())], ""

    def is_misfit(self, node: Node) -> bool:
        """True if the chosen opset lacks this node's operator, so that another form of it must be found."""
        return id(node) in self.misfits

    def refuse(self) -> None:
        """Raise one error for the nodes that no opset can express, and those that this one cannot."""
        if not self._lacking:
            return
        never = self._asked is None or any(not self._ways[id(n)] for n in self._lacking)
        other = (
            "replace these operators by standard ones before the export, or write a .mezzo file, which holds them all"
        )
        asked = f"opset {self._asked}"
        lowest = "leave out opset= to get the lowest that can"
        parts = [
            UnsupportedModel(
                self._reasons[id(n)] if self._too_new(n) else f"{n.op} has no form at this opset",
                where=n.place,
                hint=lowest if self._ways[id(n)] else other,
            )
            for n in self._lacking
        ]
        lines = [f"  - {p.where}: {p.message}" for p in parts]
        shown = "\n".join([*lines[:20], *(["  - ..."] if len(lines) > 20 else [])])
        raise UnsupportedModel(
            f"{'ONNX' if never else asked} cannot express {len(parts)} of its nodes\n{shown}",
            where=self._top.name or "graph",
            hint=other if never else lowest,
            parts=parts,
        )

    def _too_new(self, node: Node) -> bool:
        ways = self._ways[id(node)]
        return not ways or ways[-1].low > self.opsets[ways[-1].form.domain]

    def _lowest(self) -> dict[str, int]:
        lowest = {"": LOWEST}
        for node in self._nodes:
            for way in self._ways[id(node)][-1:]:
                least: int = way.low if way.form.domain in SCHEMATA else self._version(way.form.domain)
                lowest[way.form.domain] = max(lowest.get(way.form.domain, 1), least)
        if self._asked is not None:
            lowest[""] = self._asked
        return lowest

    def _version(self, domain: str) -> int:
        """The version of a domain that onnx does not know: that of the file it came from."""
        return self._top.opsets.get(domain) or OPSETS.get(domain, 1)

    def _at(self, node: Node) -> Way | None:
        """Return the form of a node at the chosen opset; None if that opset does not have it."""
        fitting = [w for w in self._ways[id(node)] if w.low <= self.opsets[w.form.domain] <= w.high]
        return fitting[0] if fitting else None

    def choose_ir(self, asked: int | None) -> None:
        """Set the IR version: the lowest that holds the model, or the one that was asked for. Raises UnsupportedModel
        telling what needs a newer one."""
        needs = list(self._ir_needs())
        least = max(version for version, _ in needs)
        lacking = dict.fromkeys(f"{why} ({version})" for version, why in needs if version > (asked or least))
        if lacking:
            raise UnsupportedModel(
                f"IR version {asked} cannot hold the model, because of {', '.join(lacking)}",
                where=self._top.name or "graph",
                hint=f"ir_version={least}, or leave it out to get the lowest",
            )
        self.ir_version = asked or least

    def _ir_needs(self) -> Iterator[tuple[int, str]]:
        """IR versions, each with what it is needed for."""
        yield 3, "ONNX"
        ids = [onnx.helper.make_opsetid(d, v) for d, v in self.opsets.items()]
        least = int(onnx.helper.find_min_ir_version_for(ids, ignore_unknown=True))
        came_from = self._top.opsets
        if self._top.ir_version and all(v <= came_from.get(d, 0) for d, v in self.opsets.items()):
            # The file has shown that its opset goes with less.
            least = min(least, self._top.ir_version)
        yield least, " and ".join(f"opset {v}" if not d else f"{d} {v}" for d, v in self.opsets.items())
        graphs = [g for part in self.parts.all() for g in graphs_of(part.graph)]
        if self._top.states:  # before, an initialiser was an input that nobody could give
            yield 4, "states, whose first values may be given"
        if any(i in self._top.inputs for i in self._top.initializers):
            yield 4, "initialisers that may be given"
        if any(g.initializers for g in graphs[1:]):
            yield 4, "constants of subgraphs"
        if self.parts.made():
            yield FUNCTIONS_IR, "functions"
        arrays = [a for g in graphs for a in g.initializers.values()]
        arrays += [v for n in self._nodes for v in n.attrs.values() if isinstance(v, np.ndarray)]
        kinds = {DType.of(np.asarray(a).dtype) for a in arrays}
        kinds |= {d for p in self.parts.all() for t in p.types.values() if (d := getattr(t, "dtype", None)) is not None}
        yield from ((version, f"elements of type {kind}") for kind, version in IR_OF_TYPES.items() if kind in kinds)

    def way(self, node: Node) -> Way:
        """Return the chosen form of a node."""
        return self._written[id(node)]

    def context(self, part: Part) -> Context:
        """Return the context of a part's nodes."""
        return self._contexts[id(part)]


def _context(part: Part, source: int) -> Context:
    return Context(
        source=source,
        types=part.types,
        constants=constants_of(part.graph),
        read=frozenset(_all_reads(part.graph)),
        names=_all_names(part.graph),
    )


def _all_reads(graph: Graph) -> Iterator[str]:
    for inner in graphs_of(graph):
        yield from inner.outputs
        yield from (i for n in inner.nodes for i in n.inputs)
    yield from (s.output for s in graph.states)


def _all_names(graph: Graph) -> set[str]:
    return {n for g in graphs_of(graph) for n in (*g.defined(), *g.outputs)}
