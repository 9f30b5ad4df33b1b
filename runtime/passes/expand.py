"""Expansion of nodes into the standard operators of their records' bodies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from ...ops import OPS, Tensor
from ...ops.errors import ShapeError
from ...ops.types import Array, Type
from ..ir.graph import Graph, Node
from ..ir.typed import TypedBuilder

Chosen = Callable[[Node], bool]


def expand(graph: Graph, chosen: Chosen, types: Mapping[str, Type], *, older: bool = False) -> Graph:
    """The graph with each chosen node replaced by its body, in subgraphs too; with `older`, by its form for opsets that
    lack the operator.

    A node that has none for its types stays. Values keep their names; the new ones between them are named after the
    first output of the node. Returns the graph itself where nothing changes.
    """
    nodes: list[Node] = []
    constants = dict(graph.initializers)
    for node in graph.nodes:
        made = _made(node, types, older) if chosen(node) else None
        if made is None:
            bodies = {a: e for a, b in node.bodies.items() if (e := expand(b, chosen, types, older=older)) is not b}
            nodes.append(replace(node, attrs={**node.attrs, **bodies}) if bodies else node)
        else:
            nodes += made[0]
            constants |= made[1]
    same = len(nodes) == len(graph.nodes) and all(a is b for a, b in zip(nodes, graph.nodes, strict=True))
    return graph if same else graph.but(nodes=tuple(nodes), initializers=constants)


def _made(node: Node, types: Mapping[str, Type], older: bool) -> tuple[list[Node], Mapping[str, Array]] | None:
    try:
        return expanded(node, types, older=older)
    except ShapeError:
        if older:
            return None  # it depends on a rank that is not known
        raise


def expanded(
    node: Node, types: Mapping[str, Type], *, older: bool = False
) -> tuple[list[Node], Mapping[str, Array]] | None:
    """The nodes that stand for a node, with their constants; None if its record has no body for it. See `expand`."""
    OPS.load()  # standard forms may stand in modules of their own
    record = node.record
    rule = record.body_rule or (record.older_rule if older else None)
    if rule is None:
        return None
    given = len(node.inputs) if any(p.variadic for p in record.inputs) else len(record.inputs)
    names = [*node.inputs, *[""] * (given - len(node.inputs))]
    around = {n: types[n] for n in node.reads() if n in types}
    g = TypedBuilder(around, prefix=f"{next(filter(None, node.outputs), record.name)}/")
    found = rule(g, [n or None for n in names], [types.get(n) for n in names], **record.bind(node.attrs))
    if found is None:
        return None
    values = found if isinstance(found, tuple) else (found,)
    built = g.graph([])
    if older and any((n.domain, n.op) == (node.domain, node.op) for n in built.nodes):
        return None  # a form of itself is of no use to an opset that lacks it
    makers = {o for n in built.nodes for o in n.outputs}
    rename: dict[str, str] = {}
    copies: list[tuple[str, str]] = []  # outputs that are an input, a constant, or another output
    for value, name in zip(values, node.outputs, strict=False):
        if name and value in makers and value not in rename:
            rename[value] = name
        elif name:
            copies.append((value, name))
    nodes = [
        replace(
            n,
            inputs=tuple(rename.get(i, i) for i in n.inputs),
            outputs=tuple(rename.get(o, o) for o in n.outputs),
            where=node.where,
            origin=(node.name,),
        )
        for n in _needed(built.nodes, {*rename, *(v for v, _ in copies)})
    ]
    nodes += [Node("Identity", (rename.get(v, v),), (o,), where=node.where, origin=(node.name,)) for v, o in copies]
    read = {i for n in nodes for i in n.inputs}
    return nodes, {name: array for name, array in built.initializers.items() if name in read}


def _needed(nodes: tuple[Node, ...], wanted: set[str]) -> list[Node]:
    """The nodes that the wanted values depend on, without optional outputs that nobody reads."""
    kept: list[Node] = []
    for node in reversed(nodes):
        if wanted.isdisjoint(node.outputs):
            continue
        params = node.record.outputs
        outputs = [
            o if o in wanted or not params[min(i, len(params) - 1)].optional else "" for i, o in enumerate(node.outputs)
        ]
        while not outputs[-1]:
            outputs.pop()
        kept.append(replace(node, outputs=tuple(outputs)))
        wanted = wanted | set(node.reads())
    return kept[::-1]


def in_served_parts(
    graph: Graph,
    unserved: Callable[[Graph, Node], bool],
    settled: Callable[[Graph, Graph], Graph],
    whole: frozenset[str] = frozenset(),
) -> Graph:
    """The graph with the parts of those nodes of known sizes that a device does not serve and all whose parts it does.
    `settled` makes typed and simplified of a graph and what was rewritten of it. Subgraphs stay: they run where their
    node does. Nodes whose first outputs are in `whole` stay as they are.
    """

    def fixed(node: Node) -> bool:
        return all(isinstance(t, Tensor) and t.static for t in (graph.types.get(n) for n in node.reads()))

    wanted = {
        node.outputs[0]
        for node in graph.nodes
        if node.outputs[0] not in whole and node.record.body_rule and fixed(node) and unserved(graph, node)
    }
    written = expand(graph, lambda node: node.outputs[0] in wanted, graph.types) if wanted else graph
    if written is graph:
        return graph
    made = settled(graph, written)
    left = [o for node in made.nodes if unserved(made, node) for o in node.outputs]
    split = {w for w in wanted if any(o == w or o.startswith(f"{w}/") for o in left)}
    return in_served_parts(graph, unserved, settled, whole | split) if split else made
