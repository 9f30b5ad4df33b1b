"""Expansion of nodes into the standard operators of their records' bodies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from ...ops import Tensor
from ...ops.errors import ShapeError
from ...ops.types import Array, Type
from ..ir.graph import Graph, Node
from ..ir.standard_form import expanded

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
        expansion = _expansion(node, types, older) if chosen(node) else None
        if expansion is None:
            bodies = {a: e for a, b in node.bodies.items() if (e := expand(b, chosen, types, older=older)) is not b}
            nodes.append(replace(node, attrs={**node.attrs, **bodies}) if bodies else node)
        else:
            nodes += expansion[0]
            constants |= expansion[1]
    same = len(nodes) == len(graph.nodes) and all(a is b for a, b in zip(nodes, graph.nodes, strict=True))
    return graph if same else graph.but(nodes=tuple(nodes), initializers=constants)


def _expansion(node: Node, types: Mapping[str, Type], older: bool) -> tuple[list[Node], Mapping[str, Array]] | None:
    try:
        return expanded(node, types, older=older)
    except ShapeError:
        if older:
            return None  # it depends on a rank that is not known
        raise


def in_served_parts(
    graph: Graph,
    unserved: Callable[[Graph, Node], bool],
    settled: Callable[[Graph, Graph], Graph],
    kept: frozenset[str] = frozenset(),
) -> Graph:
    """The graph with the parts of those nodes of known sizes that a device does not serve and all whose parts it does.
    `settled` makes typed and simplified of a graph and what was rewritten of it. Subgraphs stay: they run where their
    node does. Nodes whose first outputs are in `kept` stay as they are.
    """

    def fixed(node: Node) -> bool:
        return all(isinstance(t, Tensor) and t.static for t in (graph.types.get(n) for n in node.reads()))

    wanted = {
        node.outputs[0]
        for node in graph.nodes
        if node.outputs[0] not in kept and node.record.body_rule and fixed(node) and unserved(graph, node)
    }
    written = expand(graph, lambda node: node.outputs[0] in wanted, graph.types) if wanted else graph
    if written is graph:
        return graph
    result = settled(graph, written)
    left = [o for node in result.nodes if unserved(result, node) for o in node.outputs]
    split = {w for w in wanted if any(o == w or o.startswith(f"{w}/") for o in left)}
    return in_served_parts(graph, unserved, settled, kept | split) if split else result
