"""Standard forms: the nodes of standard operators that a node stands for, as its record builds them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ...ops import OPS
from ...ops.types import Array, Type
from .graph import Node
from .typed import TypedBuilder


def expanded(
    node: Node, types: Mapping[str, Type], *, older: bool = False
) -> tuple[list[Node], Mapping[str, Array]] | None:
    """The nodes that stand for a node, with their constants; None if its record has no body for it. See `expand`."""
    OPS.load()  # standard forms may stand in modules of their own
    record = node.record
    rule = record.body_rule or (record.older_rule if older else None)
    if rule is None:
        return None
    count = len(node.inputs) if any(p.variadic for p in record.inputs) else len(record.inputs)
    names = [*node.inputs, *[""] * (count - len(node.inputs))]
    around = {n: types[n] for n in node.reads() if n in types}
    g = TypedBuilder(around, prefix=f"{next(filter(None, node.outputs), record.name)}/")
    result = rule(g, [n or None for n in names], [types.get(n) for n in names], **record.bind(node.attrs))
    if result is None:
        return None
    values = result if isinstance(result, tuple) else (result,)
    built, said = g.graph([]), {a for a, v in node.attrs.items() if v is not None}
    if older and any((n.domain, n.op) == (node.domain, node.op) and n.attrs.keys() >= said for n in built.nodes):
        return None  # a form of itself is of no use to an opset that lacks it, or one of its attributes
    makers = {o for n in built.nodes for o in n.outputs}
    rename: dict[str, str] = {}
    copies: list[tuple[str, str]] = []  # outputs that are an input, a constant, or another output
    for value, name in zip(values, node.outputs, strict=False):
        if name and value in makers and value not in rename:
            rename[value] = name
        elif name:
            copies.append((value, name))
    nodes = [
        replace(
            n,
            inputs=tuple(rename.get(i, i) for i in n.inputs),
            outputs=tuple(rename.get(o, o) for o in n.outputs),
            where=node.where,
            origin=(node.name,),
        )
        for n in _needed(built.nodes, {*rename, *(v for v, _ in copies)})
    ]
    nodes += [Node("Identity", (rename.get(v, v),), (o,), where=node.where, origin=(node.name,)) for v, o in copies]
    read = {i for n in nodes for i in n.inputs}
    return nodes, {name: array for name, array in built.initializers.items() if name in read}


def _needed(nodes: tuple[Node, ...], wanted: set[str]) -> list[Node]:
    """The nodes that the wanted values depend on, without optional outputs that nobody reads."""
    kept: list[Node] = []
    for node in reversed(nodes):
        if wanted.isdisjoint(node.outputs):
            continue
        params = node.record.outputs
        outputs = [
            o if o in wanted or not params[min(i, len(params) - 1)].optional else "" for i, o in enumerate(node.outputs)
        ]
        while not outputs[-1]:
            outputs.pop()
        kept.append(replace(node, outputs=tuple(outputs)))
        wanted = wanted | set(node.reads())
    return kept[::-1]
