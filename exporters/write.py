"""Graphs and functions as protobufs, once the form of each node is chosen."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import onnx
import onnx.helper

from ..ops.errors import MezzoError, ModelError
from ..ops.types import Array, Tensor, type_of
from ..ops.upgrade import Form
from ..runtime.ir.graph import Graph, Node
from .lower import kind_of, schema_of
from .parts import Function, Part, graphs_of
from .proto import attribute, kind_by_value, tensor, value_info
from .target import Chosen

Store = Callable[[str, Array], onnx.TensorProto]


class PartWriter:
    """Writer of one part: its nodes as the opset has them, and the constants that they still read."""

    def __init__(self, chosen: Chosen, part: Part, store: Store) -> None:
        self._chosen, self._part, self._store = chosen, part, store
        self._context = chosen.context(part)
        ways = [chosen.way(n) for _, n in part.graph.walk()]
        self._taken = frozenset().union(*(w.taken for w in ways))
        self._read = {i for w in ways for i in w.form.inputs}
        self._read |= {o for g in graphs_of(part.graph) for o in g.outputs}

    def body(self, graph: Graph) -> Iterator[onnx.NodeProto]:
        """The nodes of a function; it has no initialisers, but nodes for constants."""
        for node in graph.nodes:
            way = self._chosen.way(node)
            for name, array in way.added.items():
                if name in way.form.inputs:
                    yield self._node(node, Form("Constant", (), (name,), {"value": array}))
            if node.op == "Constant" and self._read.isdisjoint(node.outputs):
                continue  # it became an attribute
            yield self._node(node, way.form)

    def graph(self, graph: Graph) -> onnx.GraphProto:
        """A subgraph."""
        proto = onnx.GraphProto()
        self.fill(proto, graph, top=False)
        return proto

    def fill(self, proto: onnx.GraphProto, graph: Graph, *, top: bool = True) -> None:
        """Write a graph into a protobuf."""
        proto.name = graph.name or ("graph" if top else "body")
        if not top:
            proto.doc_string = graph.doc
        states = graph.states
        inputs = [*graph.inputs, *(s.input for s in states if s.input not in graph.inputs)]
        outputs = [*graph.outputs, *(s.output for s in states if s.output not in graph.outputs)]
        kept = {n: a for n, a in graph.initializers.items() if n not in self._taken or n in self._read or n in inputs}
        own, copies = graph.defined(), list[onnx.NodeProto]()
        if not top:  # ONNX Runtime takes no value of the graphs around out of a body, and none twice
            taken = [o in outputs[:i] or o not in own for i, o in enumerate(outputs)]
            fresh = [self._context.fresh(o) if t else o for o, t in zip(outputs, taken, strict=True)]
            copies = [onnx.helper.make_node("Identity", [o], [f], name=f)
                      for o, f in zip(outputs, fresh, strict=True) if o != f]  # fmt: skip
            outputs = fresh
        for name in inputs:
            proto.input.append(self._info(name, graph, top))
        for node in graph.nodes:
            way = self._chosen.way(node)
            kept |= {n: a for n, a in way.added.items() if n in way.form.inputs}
            proto.node.append(self._node(node, way.form))
        proto.node.extend(copies)
        for name, array in kept.items():
            proto.initializer.append(self._store(name, array))
            if self._chosen.ir_version < 4 and name not in inputs:
                proto.input.append(value_info(name, type_of(np.asarray(array))))
        for name in outputs:
            proto.output.append(self._info(name, graph, top))
        shown = {*inputs, *outputs, *graph.initializers}
        inside = {o for n in graph.nodes for o in n.outputs}
        for name, kind in graph.types.items():
            if name in inside and name not in shown:
                proto.value_info.append(value_info(name, kind))

    def _info(self, name: str, graph: Graph, top: bool) -> onnx.ValueInfoProto:
        kind = graph.types.get(name)
        if top and (kind is None or (isinstance(kind, Tensor) and kind.dims is None)):
            kind = self._part.types.get(name, kind)
            if kind is None:
                raise ModelError(
                    f"the type of {name!r} is not known, and ONNX asks for those of inputs and outputs",
                    where=graph.name or "graph",
                    hint="give it in Graph.types",
                )
        return value_info(name, kind)

    def _node(self, node: Node, form: Form) -> onnx.NodeProto:
        """A node, or one more that it needs, in the words of the opset."""
        name = node.name if form.outputs == node.outputs else ""
        proto = onnx.NodeProto(op_type=form.op, name=name, domain=form.domain)
        proto.input.extend(form.inputs)
        proto.output.extend(form.outputs)
        schema = schema_of(form.domain, form.op, self._chosen.opsets[form.domain])
        for key, value in form.attrs.items():
            if value is not None:
                kind = kind_of(schema, key) if schema else kind_by_value(value)
                try:
                    proto.attribute.append(attribute(key, value, kind, self.graph))
                except MezzoError as error:
                    raise error.at(node.place) from error.__cause__
        return proto


def function_proto(chosen: Chosen, function: Function) -> onnx.FunctionProto:
    """A function, at the model's opsets."""
    graph = function.part.graph
    proto = onnx.FunctionProto(name=function.name, domain="mezzo", doc_string=function.doc)
    proto.input.extend(graph.inputs)
    proto.output.extend(graph.outputs)
    proto.attribute.extend(function.attrs)
    proto.node.extend(PartWriter(chosen, function.part, tensor).body(graph))
    for domain in dict.fromkeys(["", *(chosen.way(n).form.domain for _, n in graph.walk())]):
        proto.opset_import.add(domain=domain, version=chosen.opsets[domain])
    return proto
