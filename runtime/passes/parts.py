"""Conversion of splits with unused parts to slices: a kernel for a split writes each part."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ...ops import Tensor
from ...ops.types import Array
from ..ir.autodiff import unused_name
from ..ir.graph import Graph, Node


def wanted_parts(graph: Graph) -> Graph:
    """The graph with a Slice for each wanted part of such a Split of known sizes. Subgraphs stay."""
    nodes: list[Node] = []
    constants: dict[str, Array] = {}
    taken: set[str] = set()  # all names, once they are asked for
    for node in graph.nodes:
        tensor = graph.types.get(node.inputs[0]) if (node.domain, node.op) == ("", "Split") else None
        if all(node.outputs) or not isinstance(tensor, Tensor) or not tensor.static:
            nodes.append(node)
            continue
        axis = node.attrs.get("axis", 0) % tensor.rank
        sizes, known = [0] * len(node.outputs), graph.types.get(node.inputs[1]) if len(node.inputs) > 1 else None
        split = known.ints() if isinstance(known, Tensor) else None
        if len(node.inputs) > 1 and split is None:
            nodes.append(node)
            continue
        each = -(-tensor.sizes[axis] // len(sizes))  # the last part may be smaller
        sizes = split or [min(each, max(tensor.sizes[axis] - i * each, 0)) for i in range(len(sizes))]
        taken = taken or {*graph.inputs, *graph.initializers, *graph.producers()}
        for i, output in enumerate(node.outputs):
            if output:
                ends = sum(sizes[:i]), sum(sizes[: i + 1]), axis
                names = [unused_name(f"{output}:{what}", taken) for what in ("from", "to", "axis")]
                constants |= {n: np.array([v], np.int64) for n, v in zip(names, ends, strict=True)}
                nodes.append(replace(node, op="Slice", inputs=(node.inputs[0], *names), outputs=(output,), attrs={}))
    if not constants:
        return graph
    return graph.but(nodes=tuple(nodes), initializers={**graph.initializers, **constants})
