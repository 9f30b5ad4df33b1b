"""Removal of nodes and constants that no output needs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from .graph import Graph, Node


def prune(graph: Graph) -> Graph:
    """Drop nodes, operator outputs, results of bodies and initialisers that no output and no state needs."""
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
    """Outputs that nobody reads become absent; an If, Loop or Scan loses them in its bodies too."""
    outputs = tuple(o if o in needed else "" for o in node.outputs)
    if (node.domain, node.op) in (("", "Loop"), ("", "Scan")):
        return _only_wanted_iterations(node, outputs)
    if (node.domain, node.op) == ("", "If"):
        keep = [i for i, o in enumerate(outputs) if o]
        if len(keep) == len(outputs) or any(len(b.outputs) != len(outputs) for b in node.bodies.values()):
            return node  # inference tells what does not fit
        bodies = {a: b.but(outputs=tuple(b.outputs[i] for i in keep)) for a, b in node.bodies.items()}
        return replace(node, outputs=tuple(outputs[i] for i in keep), attrs={**node.attrs, **bodies})
    while outputs and not outputs[-1] and not any(p.variadic for p in node.record.outputs):
        outputs = outputs[:-1]
    return node if outputs == node.outputs else replace(node, outputs=outputs)


def _only_wanted_iterations(node: Node, outputs: tuple[str, ...]) -> Node:
    """A Loop or Scan without carried values that lead to nothing, and without scan inputs and outputs that nobody
    reads."""
    body: Graph = node.attrs["body"]
    lead = 2 if node.op == "Loop" else 0  # the limit and the condition; in the body, the number and the condition
    condition = body.outputs[: lead // 2]
    scanned = node.attrs.get("num_scan_inputs", 0)
    n = len(node.inputs) - lead - scanned
    results = body.outputs[lead // 2 :]
    if n < 0 or scanned < 0 or len(body.inputs) != lead + n + scanned or not max(n, len(outputs)) <= len(results):
        return replace(node, outputs=outputs)  # inference tells what does not fit
    outputs += ("",) * (len(results) - len(outputs))
    carried, rows = {i for i in range(n) if outputs[i]}, [i for i in range(n, len(results)) if outputs[i]]
    while True:
        read = _needed(body, (*condition, *(results[i] for i in (*carried, *rows))))
        more = carried | {i for i in range(n) if body.inputs[lead + i] in read}
        if more == carried:
            break
        carried = more
    slices = [i for i in range(n, n + scanned) if body.inputs[i] in read] or [*range(n, n + min(scanned, 1))]
    if (len(carried), len(slices), len(rows)) == (n, scanned, len(results) - n):
        return node  # unread results of carried values stay: other runtimes want them all
    attrs = dict(node.attrs)
    for attr, kept in (("scan_input", slices), ("scan_output", rows)):
        for name in (f"{attr}_axes", f"{attr}_directions"):
            if attrs.get(name):
                attrs[name] = tuple(attrs[name][i - n] for i in kept)
    if scanned:
        attrs["num_scan_inputs"] = len(slices)
    ins, outs = sorted(carried) + slices, sorted(carried) + rows
    attrs["body"] = body.but(
        inputs=(*body.inputs[:lead], *(body.inputs[lead + i] for i in ins)),
        outputs=(*condition, *(results[i] for i in outs)),
    )
    padded = (*node.outputs, *("",) * (len(results) - len(node.outputs)))
    return replace(
        node,
        inputs=(*node.inputs[:lead], *(node.inputs[lead + i] for i in ins)),
        outputs=tuple(padded[i] for i in outs),
        attrs=attrs,
    )


def _needed(graph: Graph, values: Iterable[str]) -> set[str]:
    """Return all values that these values of a graph depend on."""
    needed = set(values)
    for node in reversed(graph.nodes):
        if not needed.isdisjoint(node.outputs):
            needed.update(node.reads())
    return needed


def _only_used_bodies(node: Node) -> Node:
    before = node.bodies
    after = {a: prune(b) for a, b in before.items()}
    if all(after[a] is before[a] for a in before):
        return node
    return replace(node, attrs={**node.attrs, **after})
