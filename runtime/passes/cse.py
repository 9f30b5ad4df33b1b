"""Elimination of common subexpressions and of equal initializers."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np

from ...ops.symbolic import may_be_symbolic
from ..ir.graph import AGAIN, Graph, Node
from .bodies import map_bodies

SMALL = 1024  # bytes: initialisers up to this size are compared by content


def merge_equal(graph: Graph) -> Graph:
    """Merge equal deterministic nodes and equal small initialisers; subgraphs each by themselves."""
    graph = map_bodies(graph, merge_equal)
    names: dict[str, str] = {}
    first: dict[Hashable, str] = {}
    for name, array in graph.initializers.items():
        if name in graph.inputs or any(s.input == name for s in graph.states) or array.nbytes > SMALL:
            continue
        if array.dtype == object and not may_be_symbolic(array):
            continue
        content = tuple(array.ravel().tolist()) if array.dtype == object else array.tobytes()
        same = first.setdefault((array.dtype.str, array.dtype.name, array.shape, content), name)
        if same != name:
            names[name] = same
    seen: dict[Hashable, Node] = {}
    nodes: list[Node] = []
    for node in graph.nodes:
        key = _key(node, names)
        twin = None if key is None else seen.setdefault(key, node)
        if twin is None or twin is node or any(o and not t for o, t in zip(node.outputs, twin.outputs, strict=True)):
            nodes.append(node)
        else:
            names |= {o: t for o, t in zip(node.outputs, twin.outputs, strict=True) if o}
    if not names:
        return graph
    kept = {n: a for n, a in graph.initializers.items() if n not in names}
    return graph.but(nodes=tuple(nodes), initializers=kept).rename(names)


def _key(node: Node, names: dict[str, str]) -> Hashable | None:
    if node.bodies or not node.record.deterministic or node.name.endswith(AGAIN):
        return None
    inputs = tuple(names.get(i, i) for i in node.inputs)
    attrs = tuple((a, _frozen(v)) for a, v in sorted(node.attrs.items()))
    return (node.domain, node.op, node.device, inputs, len(node.outputs), attrs)


def _frozen(value: Any) -> Hashable:
    if isinstance(value, np.ndarray):
        content = tuple(value.ravel().tolist()) if value.dtype == object else value.tobytes()
        return (value.dtype.name, value.shape, content)
    return (type(value).__name__, value)
