"""Constant folding."""

from __future__ import annotations

from functools import partial

import numpy as np

from ...ops import Tensor
from ..ir.graph import Graph, Node
from .bodies import map_bodies


def fold(graph: Graph, *, weights: bool = False) -> Graph:
    """Replace nodes by initialisers where inference has found all their elements (see runtime/ir/infer.py).

    Quantised weights stay as they are unless `weights` is true: the rules of qdq.py look for them.
    """

    def known(node: Node) -> bool:
        if not weights and (node.domain, node.op) == ("", "DequantizeLinear"):
            return False
        types = [graph.types.get(o) for o in node.outputs if o]
        return all(isinstance(t, Tensor) and t.value is not None for t in types)

    graph = map_bodies(graph, partial(fold, weights=weights))
    gone = [n for n in graph.nodes if known(n)]
    if not gone:
        return graph
    made = {o: np.asarray(_value(graph, o)) for n in gone for o in n.outputs if o}
    return graph.but(nodes=tuple(n for n in graph.nodes if not known(n)), initializers={**graph.initializers, **made})


def _value(graph: Graph, name: str) -> object:
    found = graph.types[name]
    return found.value if isinstance(found, Tensor) else None
