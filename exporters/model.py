"""A graph as a ModelProto: opset and IR chosen, nodes written at that opset."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np
import onnx
import onnx.helper

from ..ops import OPSETS, DType
from ..ops.budget import Budget
from ..ops.errors import MezzoError, ModelError, UnsupportedModel
from ..ops.types import Array, Type, type_of
from ..ops.upgrade import Form
from ..runtime.graph import Graph, Node
from ..runtime.infer import infer
from ..runtime.passes.expand import expand
from .lower import LOWEST, SCHEMATA, Context, Way, is_composed, kind_of, schema_of, ways
from .proto import IR_OF_TYPES, attribute, kind_by_value, tensor, value_info

Store = Callable[[str, Array], onnx.TensorProto]


def to_model(
    graph: Graph, *, opset: int | None = None, standard: bool = False, store: Store = tensor
) -> onnx.ModelProto:
    """See `mezzo.exporters.to_onnx`. `store` turns an initialiser into a TensorProto."""
    composed = {id(n) for _, n in graph.walk() if is_composed(n) or (standard and n.domain not in SCHEMATA)}
    if composed:
        graph = expand(graph, lambda n: id(n) in composed, _types(graph))
    writer = _Writer(graph, opset, store)
    while writer.misfits:  # operators of old opsets that the chosen one no longer has
        graph = expand(graph, writer.is_misfit, writer.types, must=True)
        writer = _Writer(graph, opset, store)
    model = onnx.ModelProto(producer_name="mezzo", doc_string=graph.doc)
    for domain, version in writer.opsets.items():
        model.opset_import.add(domain=domain, version=version)
    model.ir_version = writer.ir_version
    for key, value in graph.metadata.items():
        model.metadata_props.add(key=key, value=value)
    model.graph.CopyFrom(writer.graph(graph, top=True))
    return model


def opset_for(graph: Graph, opset: int | None, *, standard: bool) -> int:
    """See `mezzo.exporters.expressible`."""

    def declared(name: str, array: Array) -> onnx.TensorProto:  # of weights only their types matter here
        return onnx.TensorProto(name=name, data_type=DType.of(np.asarray(array).dtype).onnx, dims=np.shape(array))

    made = to_model(graph, opset=opset, standard=standard, store=declared)
    return next(int(o.version) for o in made.opset_import if not o.domain)


class _Writer:
    """Chooses the opset for a whole graph, and writes its nodes at it."""

    def __init__(self, graph: Graph, opset: int | None, store: Store) -> None:
        self.store = store
        self.types = _types(graph)
        self._top = graph
        context = Context(
            source=graph.opsets.get("", 0),
            types=self.types,
            constants=_constants(graph),
            read=frozenset(_all_reads(graph)),
            names=_all_names(graph),
        )
        self._context = context
        limit = opset if opset is not None else graph.opsets.get("") or None
        self._ways: dict[int, list[Way]] = {}
        reasons: dict[int, str] = {}
        nodes = [node for _, node in graph.walk()]
        for node in nodes:
            self._ways[id(node)], reasons[id(node)] = ways(node, context, limit)
        late = [n for n in nodes if opset and not n.domain and (w := self._ways[id(n)]) and w[-1].low > opset]
        never = [n for n in nodes if not self._ways[id(n)]]
        self._refuse([(n, reasons[id(n)]) for n in never], [(n, reasons[id(n)]) for n in late], opset)
        self.opsets = self._lowest(nodes, opset)
        written = {id(n): self._at(n) for n in nodes}
        self.misfits = {i for i, w in written.items() if w is None}
        self._written = {i: w for i, w in written.items() if w is not None}
        self._taken = frozenset().union(*(w.taken for w in self._written.values()))
        self._read = {i for w in self._written.values() for i in w.form.inputs}
        self._read |= {o for g in _graphs(graph) for o in g.outputs}
        self.ir_version = self._ir()

    def is_misfit(self, node: Node) -> bool:
        """Whether the chosen opset lacks this node's operator."""
        return id(node) in self.misfits

    def _refuse(self, never: list[tuple[Node, str]], late: list[tuple[Node, str]], opset: int | None) -> None:
        """Raise one error for the nodes that no opset can express (`never`), and those that this one cannot."""
        if not never and not late:
            return
        other = "replace these operators by standard ones before the export"
        parts = [UnsupportedModel(reason, where=node.place, hint=other) for node, reason in never]
        lowest = "leave out opset= to get the lowest that can"
        parts += [UnsupportedModel(reason, where=node.place, hint=lowest) for node, reason in late]
        lines = [f"  - {p.where}: {p.message}" for p in parts]
        shown = "\n".join([*lines[:20], *(["  - ..."] if len(lines) > 20 else [])])
        raise UnsupportedModel(
            f"{'ONNX' if never else f'opset {opset}'} cannot express {len(parts)} of its nodes\n{shown}",
            where=self._top.name or "graph",
            hint=other if never else lowest,
            parts=parts,
        )

    def _lowest(self, nodes: list[Node], opset: int | None) -> dict[str, int]:
        lowest = {"": LOWEST}
        for node in nodes:
            way = self._ways[id(node)][-1]
            least = way.low if way.form.domain in SCHEMATA else self._version(way.form.domain)
            lowest[way.form.domain] = max(lowest.get(way.form.domain, 1), least)
        if opset is not None:
            lowest[""] = opset
        return lowest

    def _version(self, domain: str) -> int:
        """The version of a domain that onnx does not know: that of the file it came from."""
        return self._top.opsets.get(domain) or OPSETS.get(domain, 1)

    def _at(self, node: Node) -> Way | None:
        """How a node is written at the chosen opset; None if that opset does not have it."""
        fitting = [w for w in self._ways[id(node)] if w.low <= self.opsets[w.form.domain] <= w.high]
        return fitting[0] if fitting else None

    def _ir(self) -> int:
        ids = [onnx.helper.make_opsetid(d, v) for d, v in self.opsets.items()]
        least = int(onnx.helper.find_min_ir_version_for(ids, ignore_unknown=True))
        came_from = self._top.opsets
        if self._top.ir_version and all(v <= came_from.get(d, 0) for d, v in self.opsets.items()):
            # The file has shown that its opset goes with less.
            least = min(least, self._top.ir_version)
        graphs = list(_graphs(self._top))
        overridable = bool(self._top.states) or any(i in self._top.inputs for i in self._top.initializers)
        if overridable or any(g.initializers for g in graphs[1:]):
            least = max(least, 4)  # before, an initialiser was an input that nobody could give
        arrays = [a for g in graphs for a in g.initializers.values()]
        arrays += [v for _, n in self._top.walk() for v in n.attrs.values() if isinstance(v, np.ndarray)]
        kinds = {DType.of(np.asarray(a).dtype) for a in arrays}
        kinds |= {d for t in self.types.values() if (d := getattr(t, "dtype", None)) is not None}
        return max(least, *(IR_OF_TYPES.get(kind, 3) for kind in kinds), 3)

    def graph(self, graph: Graph, *, top: bool = False) -> onnx.GraphProto:
        made = onnx.GraphProto(name=graph.name or ("graph" if top else "body"))
        if not top:
            made.doc_string = graph.doc
        states = graph.states
        inputs = [*graph.inputs, *(s.input for s in states if s.input not in graph.inputs)]
        outputs = [*graph.outputs, *(s.output for s in states if s.output not in graph.outputs)]
        kept = {n: a for n, a in graph.initializers.items() if n not in self._taken or n in self._read or n in inputs}
        own, copies = graph.defined(), list[onnx.NodeProto]()
        if not top:  # ONNX Runtime takes no value of the graphs around out of a body
            fresh = [o if o in own else self._context.fresh(o) for o in outputs]
            copies = [
                self._node(Form("Identity", (o,), (f,)), f) for o, f in zip(outputs, fresh, strict=True) if o != f
            ]
            outputs = fresh
        for name in inputs:
            made.input.append(self._info(name, graph, top))
        for node in graph.nodes:
            way = self._written[id(node)]
            try:
                kept |= {n: a for n, a in way.added.items() if n in way.form.inputs}
                made.node.append(self._node(way.form, node.name))
            except MezzoError as error:
                raise error.at(node.place) from error.__cause__
        made.node.extend(copies)
        for name, array in kept.items():
            made.initializer.append(self.store(name, array))
            if self.ir_version < 4 and name not in inputs:
                made.input.append(value_info(name, type_of(np.asarray(array))))
        for name in outputs:
            made.output.append(self._info(name, graph, top))
        shown = {*inputs, *outputs, *graph.initializers}
        inside = {o for n in graph.nodes for o in n.outputs}
        for name, kind in graph.types.items():
            if name in inside and name not in shown:
                made.value_info.append(value_info(name, kind))
        return made

    def _info(self, name: str, graph: Graph, top: bool) -> onnx.ValueInfoProto:
        kind = graph.types.get(name)
        if kind is None and top:
            kind = self.types.get(name)
            if kind is None:
                raise ModelError(
                    f"the type of {name!r} is not known, and ONNX asks for those of inputs and outputs",
                    where=graph.name or "graph",
                    hint="give it in Graph.types",
                )
        return value_info(name, kind)

    def _node(self, form: Form, name: str) -> onnx.NodeProto:
        made = onnx.NodeProto(op_type=form.op, name=name, domain=form.domain)
        made.input.extend(form.inputs)
        made.output.extend(form.outputs)
        schema = schema_of(form.domain, form.op, self.opsets[form.domain])
        for key, value in form.attrs.items():
            if value is not None:
                kind = kind_of(schema, key) if schema else kind_by_value(value)
                made.attribute.append(attribute(key, value, kind, self.graph))
        return made


def _types(graph: Graph) -> dict[str, Type]:
    """Types of all values as far as they can be known without computing anything; those of constants with what they
    hold."""
    constants = _constants(graph)
    try:
        found = infer(graph, budget=Budget(fold_elements=0))
        declared = {n: t for g in _graphs(graph) for n, t in g.types.items() if n not in constants}
        return {**found.types, **declared}
    except MezzoError:  # the graph is written as far as declared types tell; onnx.checker judges the result
        return {n: t for g in _graphs(graph) for n, t in g.types.items()}


def _graphs(graph: Graph) -> Iterator[Graph]:
    """The graph and all subgraphs."""
    yield graph
    for node in graph.nodes:
        for body in node.bodies.values():
            yield from _graphs(body)


def _constants(graph: Graph) -> dict[str, Array]:
    found: dict[str, Array] = {}
    for inner in _graphs(graph):
        found |= {n: a for n, a in inner.initializers.items() if n not in inner.inputs}
        values: Mapping[str, object] = {
            n.outputs[0]: n.attrs.get("value") for n in inner.nodes if n.op == "Constant" and n.outputs
        }
        found |= {n: a for n, a in values.items() if isinstance(a, np.ndarray)}
    return found


def _all_reads(graph: Graph) -> Iterator[str]:
    for inner in _graphs(graph):
        yield from inner.outputs
        yield from (i for n in inner.nodes for i in n.inputs)
    yield from (s.output for s in graph.states)


def _all_names(graph: Graph) -> set[str]:
    return {n for g in _graphs(graph) for n in (*g.defined(), *g.outputs)}
