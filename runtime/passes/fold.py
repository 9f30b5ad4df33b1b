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
        for output in node.outputs:
            type = graph.types.get(output) if output else None
            if output and not (isinstance(type, Tensor) and type.value is not None):
                return False
        return True

    graph = map_bodies(graph, partial(fold, weights=weights))
    gone = [n for n in graph.nodes if known(n)]
    if not gone:
        return graph
    values = {o: np.asarray(_value(graph, o)) for n in gone for o in n.outputs if o}
    folded = set(map(id, gone))
    left = tuple(n for n in graph.nodes if id(n) not in folded)
    return graph.but(nodes=left, initializers={**graph.initializers, **values})


def _value(graph: Graph, name: str) -> object:
    type = graph.types[name]
    return type.value if isinstance(type, Tensor) else None
