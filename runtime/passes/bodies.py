"""Application of a pass to the subgraphs of a graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ..ir.graph import Graph


def map_bodies(graph: Graph, change: Callable[[Graph], Graph]) -> Graph:
    """Apply a pass to every subgraph; the graph itself comes back when none changed. Bodies see all known types."""
    if not [v for n in graph.nodes for v in n.attrs.values() if isinstance(v, Graph)]:
        return graph
    nodes = []
    for node in graph.nodes:
        before = node.bodies
        after = {a: change(b.but(types=graph.types)) for a, b in before.items()}
        # `but` above makes another object, so compare what a pass can change
        changed = {a: b for a, b in after.items() if not _same(b, before[a])}
        nodes.append(replace(node, attrs={**node.attrs, **changed}) if changed else node)
    return graph if all(a is b for a, b in zip(nodes, graph.nodes, strict=True)) else graph.but(nodes=tuple(nodes))


def _same(a: Graph, b: Graph) -> bool:
    return a.nodes is b.nodes and a.outputs == b.outputs and a.initializers is b.initializers
