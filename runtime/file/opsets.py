"""Conversion of files with older vocabularies: nodes go through the table of upgrades."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ...ops import OPS, Tensor, Type, upgrade
from ...ops.dataclasses import dataclass, field
from ...ops.errors import UnsupportedModel
from ...ops.types import Array, type_of
from ...ops.upgrade import Form, UpgradeDeclined
from ..ir.graph import Graph, Node


@dataclass(slots=True)
class UpgradeContext:
    """`upgrade.Scope` for the nodes of a graph; `added` collects the constants that former attributes become."""

    types: Mapping[str, Type]
    constants: Mapping[str, Array]
    taken: set[str]
    reads: set[str]
    source: int
    added: dict[str, Array] = field(default_factory=dict[str, Array])

    def const(self, stem: str, value: Array) -> str:
        name, count = stem, 0
        while name in self.taken:
            count += 1
            name = f"{stem}.{count}"
        self.taken.add(name)
        self.added[name] = value
        return name

    def value(self, name: str) -> Array | None:
        return self.constants.get(name)

    def take(self, name: str) -> Array:
        raise UpgradeDeclined("reading a file keeps all constants")

    def type(self, name: str) -> Tensor | None:
        type = self.types.get(name)
        return type if isinstance(type, Tensor) else None

    def used(self, name: str) -> bool:
        return name in self.reads


def upgraded(graph: Graph, older: Mapping[str, int]) -> Graph:
    """The graph with every node of these domains brought from the opset named there to ours.

    Raises UnsupportedModel where a node means something that our opset cannot say.
    """
    parts = [graph, *_bodies(graph)]
    constants = {n: a for p in parts for n, a in p.initializers.items()}
    constants |= {
        n.outputs[0]: n.attrs["value"]
        for _, n in graph.walk()
        if n.op == "Constant" and "value" in n.attrs and n.outputs
    }
    types = {n: t for p in parts for n, t in p.types.items()}
    taken = {*constants, *types, *(n for p in parts for n in p.defined())}
    around = UpgradeContext(types, constants, taken, {r for p in parts for r in p.reads()}, graph.opsets.get("", 0))
    result = _upgraded(graph, older, around)
    return result.but(
        initializers={**result.initializers, **around.added},
        types={**result.types, **{n: type_of(a) for n, a in around.added.items()}},
    )


def _bodies(graph: Graph) -> Iterable[Graph]:
    return [body for _, node in graph.walk() for body in node.bodies.values()]


def _upgraded(graph: Graph, older: Mapping[str, int], around: UpgradeContext) -> Graph:
    def upgraded_node(node: Node) -> Node:
        attrs: dict[str, Any] = {
            a: _upgraded(v, older, around) if isinstance(v, Graph) else v for a, v in node.attrs.items()
        }
        form = Form(node.op, node.inputs, node.outputs, attrs, node.domain)
        if node.domain in older:
            try:
                form = upgrade.upgrade(form, older[node.domain], around)
            except UpgradeDeclined as reason:
                raise UnsupportedModel(
                    str(reason), where=node.place, hint="compile the model again with this Mezzo"
                ) from reason
        if (form.domain, form.op) not in OPS:
            raise UnsupportedModel(f"operator {form.domain or 'ai.onnx'}::{form.op} is not carried", where=node.place)
        return Node(form.op, form.inputs, form.outputs, form.attrs, form.domain, node.name, node.where, node.origin,
                    node.device)  # fmt: skip

    return graph.but(nodes=tuple(map(upgraded_node, graph.nodes)))
