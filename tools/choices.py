"""Bounds on integer inputs that the graph of a model implies: indices into tables, and numbers it compares with."""

from __future__ import annotations

import numpy as np

from ..ops import OPS, Op, Tensor
from ..ops.types import Array
from ..runtime.ir.graph import Graph

MOST = 1 << 16  # values that are compared with; more are data


def _hands_on(op: Op | None) -> bool:
    """True if an operator hands the numbers of its first input on."""
    if op is None:
        return False
    moves = op.moves in ("view", "permute", "slice", "repeat") and not op.outputs[0].variadic
    return moves or op.name == "Cast"


def choices(graph: Graph) -> dict[str, Array]:
    """The values that an input of integers may be meant to have, by name: the places of a table that it picks
    from, else the constants that it is compared with. An input that neither tells of is left out.

    >>> from mezzo.ops.types import i64
    >>> from mezzo.runtime.ir.graph import GraphBuilder
    >>> g = GraphBuilder()
    >>> ids, rate = g.input("ids", i64(2)), g.input("rate", i64())
    >>> graph = g.graph([g.Gather(g.const(np.eye(3)), ids), g.Equal(rate, g.const(np.int64(16000)))])
    >>> {name: values.tolist() for name, values in choices(graph).items()}
    {'ids': [0, 1, 2], 'rate': [16000]}
    """
    constants = dict(graph.initializers)
    origin = {n: n for n in graph.inputs if isinstance(t := graph.types.get(n), Tensor) and t.dtype.integer}
    places, compared = dict[str, int](), dict[str, set[int]]()
    for node in graph.nodes:
        first, second = (*node.inputs, "", "")[:2]
        op = OPS.get((node.domain, node.op))
        if (node.domain, node.op) == ("", "Constant"):
            constants |= {node.outputs[0]: node.attrs["value"]} if "value" in node.attrs else {}
        elif op and first in constants and (op.moves == "view" or op.name == "Cast"):
            constants[node.outputs[0]] = constants[first]
        elif _hands_on(op) and first in origin:
            origin[node.outputs[0]] = origin[first]
        elif node.op == "Gather" and second in origin and first in constants:
            size = constants[first].shape[node.attrs.get("axis", 0)]
            places[origin[second]] = min(size, places.get(origin[second], size))
        elif node.op == "OneHot" and first in origin and second in constants:
            places[origin[first]] = int(constants[second].reshape(-1)[0])
        elif node.op == "Equal":
            for mine, other in ((first, second), (second, first)):
                if mine in origin and other in constants and constants[other].size <= MOST:
                    compared.setdefault(origin[mine], set()).update(constants[other].reshape(-1).astype(int).tolist())
    candidates = {n: np.arange(size) for n, size in places.items()}
    for name, values in compared.items():
        kind = graph.types[name]
        if name not in candidates and (len(values) > 1 or (isinstance(kind, Tensor) and kind.dims == ())):
            candidates[name] = np.array(sorted(values))
    return candidates
