"""Casts around nodes whose operands have floats that their operator's schema does not take, or not beside one another.
Files of exporters have such nodes, and are computed as they are; what is written is what the schema says."""

from __future__ import annotations

from collections.abc import Mapping

from ..ops import OPSETS, DType
from ..ops.dataclasses import replace
from ..ops.types import Tensor, Type
from ..ops.upgrade import Form
from ..runtime.ir.autodiff import unused_name
from ..runtime.ir.graph import Graph, Node, names_of
from .lower import Schema, misfit, schema_of, type_word
from .parts import Part, types_of

FLOATS = {type_word(Tensor(d, None)): d for d in (DType.FLOAT16, DType.BFLOAT16, DType.FLOAT, DType.DOUBLE)}


def fit(part: Part) -> None:
    """Put casts where they are needed."""
    graph = _fitted(part.graph, part.types, names_of(part.graph))
    if graph is not part.graph:
        part.graph = graph
        part.types = types_of(graph)


def _fitted(graph: Graph, types: Mapping[str, Type], taken: set[str]) -> Graph:
    nodes: list[Node] = []
    for node in graph.nodes:
        bodies = {a: b for a, v in node.bodies.items() if (b := _fitted(v, types, taken)) is not v}
        nodes += _around(replace(node, attrs={**node.attrs, **bodies}) if bodies else node, types, taken)
    same = len(nodes) == len(graph.nodes) and all(a is b for a, b in zip(nodes, graph.nodes, strict=True))
    return graph if same else graph.but(nodes=tuple(nodes))


def _around(node: Node, types: Mapping[str, Type], taken: set[str]) -> list[Node]:
    schema = schema_of(node.domain, node.op, OPSETS.get(node.domain, 0))
    form = Form(node.op, node.inputs, node.outputs, node.attrs, node.domain)
    if schema is None or not misfit(form, schema, types, frozenset(node.outputs)):
        return [node]
    inputs, outputs, shared = [*node.inputs], [*node.outputs], _shared(node, schema, types)
    before: list[Node] = []
    after: list[Node] = []
    for i, name in enumerate(inputs):
        param = schema.inputs[min(i, len(schema.inputs) - 1)]
        known, only = _float(types.get(name)), [d for word, d in FLOATS.items() if word in param.types]
        to = shared.get(param.type_str) if param.is_homogeneous else None
        if to is None and len(only) == 1:
            to = only[0]
        if known is not None and to is not None and to is not known:
            inputs[i] = unused_name(f"{name}.{to.name.lower()}", taken)
            before.append(Node("Cast", (name,), (inputs[i],), {"to": to.onnx}, where=node.place))
    for i, name in enumerate(outputs):
        param = schema.outputs[min(i, len(schema.outputs) - 1)]
        known, wanted = _float(types.get(name)), shared.get(param.type_str)
        if known is not None and wanted is not None and wanted is not known:
            outputs[i] = unused_name(f"{name}.{wanted.name.lower()}", taken)
            after.append(Node("Cast", (outputs[i],), (name,), {"to": known.onnx}, where=node.place))
    return [*before, replace(node, inputs=tuple(inputs), outputs=tuple(outputs)), *after]


def _float(kind: Type | None) -> DType | None:
    return kind.dtype if isinstance(kind, Tensor) and kind.dtype in FLOATS.values() else None


def _shared(node: Node, schema: Schema, types: Mapping[str, Type]) -> dict[str, DType]:
    """The float that operands of one type parameter become where they have several: as wide as all of them."""
    floats: dict[str, set[DType]] = {}
    for i, name in enumerate(node.inputs):
        param = schema.inputs[min(i, len(schema.inputs) - 1)]
        known = _float(types.get(name))
        if known is not None and param.is_homogeneous and type_word(Tensor(known, None)) in param.types:
            floats.setdefault(param.type_str, set()).add(known)
    return {t: DType.DOUBLE if DType.DOUBLE in kinds else DType.FLOAT for t, kinds in floats.items() if len(kinds) > 1}
