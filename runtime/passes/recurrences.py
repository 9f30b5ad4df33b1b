"""Conversion of Scans to `mezzo.Recurrence`, whose step is a list of operators, for devices with a kernel for the
whole."""

from __future__ import annotations

from collections.abc import Callable

from ...ops import Tensor
from ...ops.recurrent.recurrence import ABSENT, Link
from ...ops.types import Array
from ..ir.graph import Graph, Node

Takes = Callable[[Graph, Node], bool]


def recurrences(graph: Graph, takes: Takes) -> Graph:
    """The graph with those scans in another form that `takes` says yes to in that form. Scans inside of subgraphs
    stay; so do those over other axes than the first, and those whose step has subgraphs itself."""
    nodes: list[Node] = []
    constants: dict[str, Array] = {}
    for node in graph.nodes:
        recurrence = _listed(graph, node) if (node.domain, node.op) == ("", "Scan") else None
        if recurrence is not None:
            around = graph.but(initializers={**graph.initializers, **recurrence[1]})
            if takes(around, recurrence[0]):
                node = recurrence[0]
                constants |= recurrence[1]
        nodes.append(node)
    if all(a is b for a, b in zip(nodes, graph.nodes, strict=True)):
        return graph
    return graph.but(nodes=tuple(nodes), initializers={**graph.initializers, **constants})


def _listed(graph: Graph, node: Node) -> tuple[Node, dict[str, Array]] | None:
    """The node in the other form, with the constants of its body; None where there is no such form."""
    attrs, body = node.attrs, node.bodies["body"]
    rows = attrs["num_scan_inputs"]
    states = len(node.inputs) - rows
    if any(attrs.get("scan_input_axes") or ()) or any(attrs.get("scan_output_axes") or ()) or not rows:
        return None
    if any(n.bodies for n in body.nodes) or body.states or not all(node.outputs[:states]):
        return None
    others = (*body.captures(), *body.initializers)
    if not all(isinstance(graph.types.get(n), Tensor) for n in others):
        return None
    places = {n: i for i, n in enumerate([*body.inputs, *others])}
    links: list[Link] = []
    count = len(places)
    for inner in body.nodes:
        operands = tuple(places[n] if n else ABSENT for n in inner.inputs)
        named = tuple(sorted(inner.attrs.items()))
        links.append((inner.domain, inner.op, operands, len(inner.outputs), named))
        places |= {n: count + i for i, n in enumerate(inner.outputs) if n}
        count += len(inner.outputs)
    kept = [i for i, n in enumerate(node.outputs) if i < states or n]
    behind = attrs.get("scan_output_directions") or (0,) * (len(node.outputs) - states)
    recurrence = Node(
        "Recurrence",
        (*node.inputs, *others),
        tuple(node.outputs[i] for i in kept),
        {
            "links": tuple(links),
            "rows": rows,
            "after": tuple(places[n] for n in body.outputs[:states]),
            "made": tuple(places[body.outputs[i]] for i in kept[states:]),
            "backwards": tuple(attrs.get("scan_input_directions") or (0,) * rows),
            "behind": tuple(behind[i - states] for i in kept[states:]),
        },
        "mezzo",
        node.name,
        node.where,
        node.origin,
    )
    return recurrence, dict(body.initializers)
