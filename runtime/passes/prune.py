"""Only what the outputs need."""

from __future__ import annotations

from dataclasses import replace

from ..graph import Graph, Node


def prune(graph: Graph) -> Graph:
    """Drop nodes, operator outputs, branch results and initialisers that no output and no state needs."""
    needed = {*graph.outputs, *(s.output for s in graph.states)}
    kept: list[Node] = []
    for node in reversed(graph.nodes):
        if not any(o in needed for o in node.outputs if o):
            continue
        slim = _only_used_bodies(_only_wanted(node, needed))
        needed.update(slim.reads())
        kept.append(slim)
    nodes = tuple(reversed(kept))
    keep = needed | set(graph.inputs) | {s.input for s in graph.states}
    constants = {n: a for n, a in graph.initializers.items() if n in keep}
    same = len(nodes) == len(graph.nodes) and all(a is b for a, b in zip(nodes, graph.nodes, strict=True))
    if same and len(constants) == len(graph.initializers):
        return graph
    return graph.but(nodes=nodes, initializers=constants)


def _only_wanted(node: Node, needed: set[str]) -> Node:
    """Outputs that nobody reads become absent; an If loses them in its branches too."""
    outputs = tuple(o if o in needed else "" for o in node.outputs)
    if (node.domain, node.op) == ("", "If"):
        keep = [i for i, o in enumerate(outputs) if o]
        if len(keep) == len(outputs):
            return node
        bodies = {a: b.but(outputs=tuple(b.outputs[i] for i in keep)) for a, b in node.bodies.items()}
        return replace(node, outputs=tuple(outputs[i] for i in keep), attrs={**node.attrs, **bodies})
    while outputs and not outputs[-1] and not any(p.variadic for p in node.record.outputs):
        outputs = outputs[:-1]
    return node if outputs == node.outputs else replace(node, outputs=outputs)


def _only_used_bodies(node: Node) -> Node:
    before = node.bodies
    after = {a: prune(b) for a, b in before.items()}
    if all(after[a] is before[a] for a in before):
        return node
    return replace(node, attrs={**node.attrs, **after})
