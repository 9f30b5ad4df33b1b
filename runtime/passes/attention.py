"""Fusion of attention: two products around a Softmax, as exporters write it, become one operator where a kernel
supports it.

https://onnx.ai/onnx/operators/onnx__Attention.html
"""

from __future__ import annotations

import numpy as np

from ...ops import Tensor
from ...ops.dataclasses import dataclass
from ..ir.graph import Graph, Node
from .chains import Takes
from .rewrite import Either, Leaf, Match, Pattern, Replacement, Rule, rewrite

_scores = Pattern("MatMul", (Leaf("q"), Pattern("Transpose", (Leaf("k"),), name="turned")), uses=1, name="scores")
_scaled = Either((
    Pattern("Mul", (_scores, Leaf("scale", constant=True)), uses=1, commutes=True),
    Pattern("Div", (_scores, Leaf("scale", constant=True)), uses=1),
    _scores,
))  # fmt: skip
_masked = Either((Pattern("Add", (_scaled, Leaf("mask")), uses=1, commutes=True), _scaled))
PATTERN = Pattern("MatMul", (Pattern("Softmax", (_masked,), uses=1), Leaf("v")))
HEADS_FIRST, LENGTH_FIRST = (0, 1, 3, 2), (0, 2, 3, 1)  # how keys come to be turned: from [b, h, s, d], [b, s, h, d]


def attended(graph: Graph, takes: Takes) -> Graph:
    """The graph with an Attention in the place of its parts, where `takes` says None of it."""

    def check(m: Match) -> str | None:
        written = _written(m)
        if isinstance(written, str):
            return written
        return takes(m.graph.but(types={**m.graph.types, **written.types}), written.nodes[-1])

    def replace(m: Match) -> Replacement:
        written = _written(m)
        assert not isinstance(written, str)
        return Replacement({}, written.nodes)

    return rewrite(graph, (Rule("attention in parts", PATTERN, check, replace),))


@dataclass(frozen=True, slots=True)
class _Written:
    """The nodes of a replacement, and the types of the values that they add."""

    nodes: tuple[Node, ...]
    types: dict[str, Tensor]


def _written(m: Match) -> _Written | str:
    """The Attention, behind the keys as it wants them; or why there is none."""
    q, k, v = (m.tensor(m.values[name]) for name in "qkv")
    if q is None or k is None or v is None or not (q.static and k.static and v.static):
        return "sizes are not known"
    if {len(t.sizes) for t in (q, k, v)} != {4}:
        return "there are no heads"
    by_output = {node.outputs[0]: node for node in m.nodes}
    softmax = next(node for node in m.nodes if node.op == "Softmax")
    if softmax.attrs.get("axis", -1) not in (-1, 3):
        return "the Softmax runs along another axis"
    name, nodes, types = m.values["k"], list[Node](), dict[str, Tensor]()
    order = tuple(by_output[m.values["turned"]].attrs.get("perm", (3, 2, 1, 0)))
    if order == LENGTH_FIRST:
        k, keys = k.of(tuple(k.sizes[d] for d in (0, 2, 1, 3))), f"{m.root.outputs[0]}:keys"
        nodes.append(Node("Transpose", (name,), (keys,), {"perm": (0, 2, 1, 3)}, name=keys))
        name, types[keys] = keys, k
    elif order != HEADS_FIRST:
        return "keys are turned in another way"
    if q.sizes[:2] != k.sizes[:2] or k.sizes[:2] != v.sizes[:2]:
        return "heads are shared by broadcasting"
    scale = _scale(m)
    if scale is None:
        return "the scale is no number"
    mask = m.values.get("mask", "")
    inputs = (m.values["q"], name, m.values["v"], *([mask] if mask else []))
    origin = tuple(node.name for node in m.nodes)
    nodes.append(Node("Attention", inputs, m.root.outputs[:1], {"scale": scale}, name=m.root.name, origin=origin))
    return _Written(tuple(nodes), types)


def _scale(m: Match) -> float | None:
    if "scale" not in m.values:
        return 1.0
    number = np.asarray(m.constant(m.values["scale"]))
    if number.size != 1 or not number:
        return None
    scores = m.values["scores"]
    by = next(node.op for node in m.nodes if scores in node.inputs)
    value = float(number.reshape(()))
    return value if by == "Mul" else 1 / value
