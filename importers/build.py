"""Construction of a Graph from checked protobufs: names made unique, functions expanded, nodes converted to our
opsets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np
import onnx

from ..ops import upgrade
from ..ops.dataclasses import dataclass, field
from ..ops.errors import ModelError
from ..ops.types import Array, Tensor, Type, type_of
from ..ops.upgrade import Form, UpgradeDeclined
from ..runtime.ir.graph import DOMAIN, MODEL_VERSION, PRODUCER, SIGNATURE, Graph, Node
from ..runtime.memory.model_file import in_memory, model_file
from .tensors import TensorReader
from .types import type_from
from .walk import differentiated, domain_of, functions_of, key_of, label, names_read, operator_of, opsets_of

Kind = onnx.AttributeProto
# What PyTorch's newer exporter says of the inputs of its program: which are parameters, which are buffers.
TORCH_SIGNATURE = "pkg.torch.export.ExportedProgram.graph_signature"
Given = Mapping[str, "Argument"]


@dataclass(slots=True)
class Scope:
    """Names of a file, resolved to values of the graph. `results` are names that are fixed before they are defined (the
    outputs of an expanded function); `prefix` is put before new names."""

    parent: Scope | None = None
    prefix: str = ""
    results: dict[str, str] = field(default_factory=dict[str, str])
    names: dict[str, str] = field(default_factory=dict[str, str])

    def find(self, name: str, where: str) -> str:
        scope: Scope | None = self
        while name and scope is not None:
            if name in scope.names:
                return scope.names[name]
            scope = scope.parent
        if name:
            raise ModelError(f"it reads {name!r}, which nothing defines", where=where, hint="check the value's name")
        return ""


@dataclass(frozen=True, slots=True)
class Argument:
    """An attribute given to a function, with the scope in which its names and references are resolved."""

    proto: onnx.AttributeProto
    scope: Scope
    given: Given


@dataclass(slots=True)
class Frame:
    """A graph under construction."""

    nodes: list[Node] = field(default_factory=list[Node])
    constants: dict[str, Array] = field(default_factory=dict[str, Array])
    types: dict[str, Type] = field(default_factory=dict[str, Type])


@dataclass(frozen=True, slots=True)
class Around:
    """Context of a list of nodes."""

    scope: Scope
    frame: Frame
    where: str
    opsets: Mapping[str, int]
    given: Given
    call: str = ""  # the function call whose body this is, for node names


class Build:
    """Builder of one graph. `learn` returns types that onnx infers; it is called only if an upgrade needs one."""

    def __init__(
        self,
        model: onnx.ModelProto,
        name: str,
        reader: TensorReader,
        learn: Callable[[], Mapping[str, Tensor]] = dict,
    ) -> None:
        self.model, self.name, self.reader, self._learn = model, name, reader, learn
        self.functions = functions_of(model)
        self.declined: list[tuple[str, str]] = []
        self._used = _top_names(model.graph)
        self._constants: dict[str, Array] = {}
        self._types: dict[str, Type] = {}
        self._inferred: Mapping[str, Tensor] | None = None
        self._read: set[str] | None = None
        self._file_names: dict[str, str] = {}

    def build(self) -> Graph:
        """The whole model as a graph; nodes that could not be upgraded are in `declined`."""
        model = self.model
        graph = self._graph(model.graph, Scope(), self.name, opsets_of(model), {}, top=True)
        return graph.but(
            doc=model.doc_string or model.graph.doc_string,
            metadata=metadata_of(model),
            opsets=opsets_of(model),
            ir_version=int(model.ir_version),
        )

    # Names

    def _fresh(self, name: str) -> str:
        """A name like this one that nothing has yet."""
        unused, count = name, 0
        while unused in self._used:
            count += 1
            unused = f"{name}.{count}"
        self._used.add(unused)
        return unused

    def _define(self, name: str, scope: Scope, *, top: bool = False) -> str:
        if not name:
            return ""
        result = scope.results.get(name) or (name if top else self._fresh(scope.prefix + name))
        scope.names[name] = result
        if not scope.prefix:
            self._file_names[result] = name
        return result

    # Graphs

    def _graph(
        self,
        proto: onnx.GraphProto,
        outer: Scope,
        where: str,
        opsets: Mapping[str, int],
        given: Given,
        *,
        top: bool = False,
    ) -> Graph:
        scope, frame = Scope(outer, outer.prefix), Frame()
        arrays = {t.name: partial(self.reader.read, t) for t in proto.initializer}
        arrays |= {t.values.name: partial(self.reader.sparse, t) for t in proto.sparse_initializer}
        # Below IR 4 every initialiser is listed among the inputs too, and is a constant all the same.
        listed = [i for i in proto.input if i.name not in arrays or (self.model.ir_version >= 4 and top)]
        inputs = tuple(self._define(i.name, scope, top=top) for i in listed)
        for name, read in arrays.items():
            final = scope.names.get(name) or self._define(name, scope, top=top)
            array = read()
            if final in inputs and model_file(array) is not None:  # a run may be fed with it
                array = in_memory(array)
            frame.constants[final] = self._constants[final] = array
        around = Around(scope, frame, where, opsets, given)
        self._nodes(proto.node, around, top=top)
        for info in (*listed, *proto.value_info, *proto.output):
            own, kind = scope.names.get(info.name), type_from(info.type, where)
            if own and kind is not None and (own not in frame.constants or own in inputs):
                frame.types[own] = kind
        for final, array in frame.constants.items():
            frame.types.setdefault(final, type_of(array))
        outputs = tuple(scope.find(o.name, where) for o in proto.output)
        return Graph(inputs, outputs, tuple(frame.nodes), frame.constants, frame.types, name=proto.name,
                     doc=proto.doc_string)  # fmt: skip

    def _nodes(self, protos: Iterable[onnx.NodeProto], around: Around, *, top: bool = False) -> None:
        for index, proto in enumerate(protos):
            where = f"{around.where}: {label(index, proto)}"
            if key_of(proto) in self.functions:
                self._call(proto, self.functions[key_of(proto)], around, where, top=top)
            else:
                self._node(proto, around, where, top=top)

    def _node(self, proto: onnx.NodeProto, around: Around, where: str, *, top: bool) -> None:
        scope, domain = around.scope, domain_of(proto.domain)
        inputs = tuple(scope.find(i, where) for i in proto.input)
        attrs: dict[str, Any] = {}
        for attribute in proto.attribute:
            argument = _resolve(attribute, around)
            if argument is not None:
                attrs[attribute.name] = self._attribute(argument, around, f"{where} {attribute.name}")
                if any(differentiated(proto)):  # its texts are names of values
                    attrs[attribute.name] = _renamed(attrs[attribute.name], argument.scope, where)
        outputs = tuple(self._define(o, scope, top=top) for o in proto.output)
        form = Form(operator_of(domain, proto.op_type), inputs, outputs, attrs, domain)
        try:
            form = upgrade.upgrade(form, around.opsets[domain], ImportContext(self, around))
        except UpgradeDeclined as reason:
            self.declined.append((where, str(reason)))
        name = f"{around.call}/{proto.name}" if around.call and proto.name else proto.name
        node = Node(form.op, form.inputs, form.outputs, form.attrs, form.domain, name, where)
        if node.op == "Constant" and not node.domain and isinstance(node.attrs.get("value"), np.ndarray):
            self._constants[outputs[0]] = node.attrs["value"]
        around.frame.nodes.append(node)

    # Functions

    def _call(
        self, proto: onnx.NodeProto, function: onnx.FunctionProto, around: Around, where: str, *, top: bool
    ) -> None:
        call = "/".join(filter(None, (around.call, proto.name or self._fresh(f"{proto.op_type}_call"))))
        scope = Scope(prefix=f"{call}/")
        actual = [around.scope.find(i, where) for i in proto.input]
        if len(actual) > len(function.input) or len(proto.output) > len(function.output):
            raise ModelError(
                f"the function has {len(function.input)} inputs and {len(function.output)} outputs, "
                f"here are {len(actual)} and {len(proto.output)}",
                where=where,
                hint="correct the call or the function",
            )
        for index, formal in enumerate(function.input):
            scope.names[formal] = actual[index] if index < len(actual) else ""
        results = [self._define(o, around.scope, top=top) for o in proto.output]
        copies: list[tuple[str, str]] = []
        for formal, final in zip(function.output, results, strict=False):
            if final and (formal in scope.names or formal in scope.results):
                copies.append((formal, final))
            elif final:
                scope.results[formal] = final
        given = {a.name: Argument(a, scope, {}) for a in function.attribute_proto}
        given |= {a.name: r for a in proto.attribute if (r := _resolve(a, around)) is not None}
        opsets = {**around.opsets, **opsets_of(function)}
        inner = Around(scope, around.frame, where, opsets, given, call)
        self._nodes(function.node, inner)
        for formal, final in copies:
            around.frame.nodes.append(Node("Identity", (scope.find(formal, where),), (final,), {}, "", "", where))

    # Attributes

    def _attribute(self, argument: Argument, around: Around, where: str) -> Any:
        proto = argument.proto

        def body(graph: onnx.GraphProto) -> Graph:
            return self._graph(graph, argument.scope, where, around.opsets, argument.given)

        match proto.type:
            case Kind.FLOAT:
                return float(proto.f)
            case Kind.INT:
                return int(proto.i)
            case Kind.STRING:
                return _text(proto.s)
            case Kind.TENSOR:
                return self.reader.read(proto.t)
            case Kind.SPARSE_TENSOR:
                return self.reader.sparse(proto.sparse_tensor)
            case Kind.GRAPH:
                return body(proto.g)
            case Kind.TYPE_PROTO:
                return type_from(proto.tp, where)
            case Kind.FLOATS:
                return tuple(map(float, proto.floats))
            case Kind.INTS:
                return tuple(map(int, proto.ints))
            case Kind.STRINGS:
                return tuple(map(_text, proto.strings))
            case Kind.TENSORS:
                return tuple(map(self.reader.read, proto.tensors))
            case Kind.GRAPHS:
                return tuple(map(body, proto.graphs))
            case Kind.TYPE_PROTOS:
                return tuple(type_from(t, where) for t in proto.type_protos)
        raise ModelError(
            f"the attribute {proto.name!r} has no type", where=where, hint="export the model again with onnx >= 1.2"
        )

    # What upgrades ask for

    def type_of(self, name: str, frame: Frame) -> Tensor | None:
        """The type of a value as the file or inference has it. What inference said is kept with the graph, since
        whoever writes the old form again needs to know it too."""
        known = frame.types.get(name) or self._types.get(name)
        if known is None and name in self._constants:
            known = type_of(self._constants[name])
        if known is None and name in self._file_names:
            if self._inferred is None:
                self._inferred = self._learn()
            known = self._inferred.get(self._file_names[name])
            if known is not None:
                frame.types[name] = self._types[name] = known
        return known if isinstance(known, Tensor) else None

    def is_read(self, name: str) -> bool:
        """True if anything may read a value; inside functions, where names repeat, it always may."""
        if self._read is None:
            self._read = names_read(self.model.graph)
        return name not in self._file_names or self._file_names[name] in self._read

    def constant(self, name: str) -> Array | None:
        return self._constants.get(name)

    def add_constant(self, stem: str, value: Array, frame: Frame) -> str:
        """An initialiser for a former attribute."""
        name = self._fresh(stem)
        frame.constants[name] = self._constants[name] = value
        return name


@dataclass(frozen=True, slots=True)
class ImportContext:
    """`upgrade.Scope` for one node of a file."""

    build: Build
    around: Around

    @property
    def source(self) -> int:
        return self.around.opsets.get("", 0)

    def const(self, stem: str, value: Array) -> str:
        return self.build.add_constant(stem, value, self.around.frame)

    def value(self, name: str) -> Array | None:
        return self.build.constant(name)

    def take(self, name: str) -> Array:
        raise UpgradeDeclined("an import keeps all constants")

    def type(self, name: str) -> Tensor | None:
        return self.build.type_of(name, self.around.frame)

    def used(self, name: str) -> bool:
        return self.build.is_read(name)


def metadata_of(model: onnx.ModelProto) -> dict[str, str]:
    """Return the metadata of a file, with the fields that a graph does not have under keys of their own. The producer
    is that of the file, or, for a file of ours, the original one."""
    props = {p.key: p.value for p in model.metadata_props}
    producer = " ".join(filter(None, (model.producer_name, model.producer_version)))
    fields = {
        PRODUCER: props.get(PRODUCER, "") if model.producer_name == "mezzo" else producer,
        DOMAIN: model.domain,
        MODEL_VERSION: str(model.model_version) if model.HasField("model_version") else "",
        SIGNATURE: next(
            (p.value for p in model.graph.metadata_props if p.key == TORCH_SIGNATURE), props.get(SIGNATURE, "")
        ),
    }
    return {**{k: v for k, v in props.items() if k not in fields}, **{k: v for k, v in fields.items() if v}}


def _top_names(graph: onnx.GraphProto) -> set[str]:
    """Names that stay as they are, whatever else needs a name."""
    names = {i.name for i in graph.input} | {t.name for t in graph.initializer}
    return names | {t.values.name for t in graph.sparse_initializer} | {o for n in graph.node for o in n.output}


def _resolve(attribute: onnx.AttributeProto, around: Around) -> Argument | None:
    """The attribute itself, or what the caller of the function gave for it; None if nobody gave anything."""
    if attribute.ref_attr_name:
        return around.given.get(attribute.ref_attr_name)
    return Argument(attribute, around.scope, around.given)


def _renamed(names: str | tuple[str, ...], scope: Scope, where: str) -> str | tuple[str, ...]:
    return scope.find(names, where) if isinstance(names, str) else tuple(scope.find(n, where) for n in names)


def _text(value: bytes) -> str | bytes:
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return value
