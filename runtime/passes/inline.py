"""Inlining of the branch of an If whose condition is known."""

from __future__ import annotations

import numpy as np

from ...ops import Tensor
from ..ir.graph import Graph, Node
from .bodies import map_bodies


def inline_known_branches(graph: Graph) -> Graph:
    """Replace each If whose condition is known by the nodes of its branch."""
    graph = map_bodies(graph, inline_known_branches)
    names: dict[str, str] = {}
    nodes: list[Node] = []
    constants = dict(graph.initializers)
    for node in graph.nodes:
        branch = _known_branch(graph, node)
        if branch is None:
            nodes.append(node)
            continue
        nodes += branch.nodes
        constants |= branch.initializers
        names |= {old: new for old, new in zip(node.outputs, branch.outputs, strict=False) if old}
    if not names and len(nodes) == len(graph.nodes):
        return graph
    return graph.but(nodes=tuple(nodes), initializers=constants).rename(_resolved(names))


def _known_branch(graph: Graph, node: Node) -> Graph | None:
    if (node.domain, node.op) != ("", "If"):
        return None
    condition = graph.types.get(node.inputs[0])
    if not isinstance(condition, Tensor) or condition.value is None:
        return None
    taken: Graph = node.attrs["then_branch" if np.asarray(condition.value).reshape(-1)[0] else "else_branch"]
    return taken


def _resolved(names: dict[str, str]) -> dict[str, str]:
    def last(name: str) -> str:
        while name in names:
            name = names[name]
        return name

    return {old: last(new) for old, new in names.items()}
