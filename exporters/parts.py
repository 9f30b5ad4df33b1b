"""Parts of a model: the graph, and a function for each operator of ours that ONNX has no node for.

One function serves all nodes of the same attributes, ranks and element types; its body are the standard operators that
the operator's record says it is made of. Where functions are not wanted, the body stands in the place of the node.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ..ops import OPS
from ..ops.budget import Budget
from ..ops.dataclasses import dataclass, field, replace
from ..ops.errors import MezzoError, ModelError
from ..ops.op import REQUIRED, Op, Param
from ..ops.types import Array, Tensor, Type
from ..runtime.ir.autodiff import unused_name
from ..runtime.ir.graph import Graph, Node, names_of
from ..runtime.ir.infer import infer
from ..runtime.ir.standard_form import expanded
from ..runtime.passes.expand import expand
from .proto import kind_by_value

SMALL = 64  # elements of a list of integers that a body may be written for
Known = Callable[[Type], Type]


@dataclass(slots=True, eq=False)
class Part:
    """A graph that is written: the model's own, or the body of a function."""

    graph: Graph
    types: Mapping[str, Type]

    @classmethod
    def of(cls, graph: Graph) -> Part:
        """The graph with what is known of its values."""
        whole = _whole(graph, names_of(graph))
        return cls(whole, types_of(whole))


def _whole(graph: Graph, taken: set[str]) -> Graph:
    """The graph with names for outputs that nobody reads, where ONNX asks for one; subgraphs too."""

    def named(node: Node) -> Node:
        record = OPS.get((node.domain, node.op))
        asked = (
            [i for i, p in enumerate(record.outputs) if not (p.optional or p.variadic)] if record is not None else []
        )
        outputs = [*node.outputs, *[""] * (max(asked, default=-1) + 1 - len(node.outputs))]
        missing = [i for i in asked if not outputs[i]]
        bodies = {a: b for a, v in node.bodies.items() if (b := _whole(v, taken)) is not v}
        if not missing and not bodies:
            return node
        for i in missing:
            outputs[i] = unused_name(f"{next(filter(None, node.outputs), node.op)}.{i}", taken)
        return replace(node, outputs=tuple(outputs), attrs={**node.attrs, **bodies})

    nodes = tuple(map(named, graph.nodes))
    same = all(a is b for a, b in zip(nodes, graph.nodes, strict=True))
    return graph if same else graph.but(nodes=nodes)


@dataclass(slots=True, eq=False)
class Function:
    """An operator of ours for some types. `attrs` are stored where it is called."""

    name: str
    record: Op
    attrs: Mapping[str, Any]
    part: Part

    @property
    def doc(self) -> str:
        """Documentation of the function: the first line of the operator's own, and the types of the inputs that the
        body was written for."""
        docstring = inspect.getdoc(self.record.reference) or ""
        types = ", ".join(f"{n}: {self.part.types[n]}" for n in self.part.graph.inputs if n in self.part.types)
        return f"{docstring.splitlines()[0]}\n{types}" if docstring else types


@dataclass(slots=True)
class Parts:
    """The graph and its functions; `calls` has the function of each node that calls one, by the node's id."""

    top: Part
    functions_wanted: bool
    functions: dict[Hashable, Function | None] = field(default_factory=dict[Hashable, "Function | None"])
    calls: dict[int, tuple[Node, Function]] = field(default_factory=dict[int, "tuple[Node, Function]"])
    stuck: dict[int, Node] = field(default_factory=dict[int, Node])  # nodes that have neither

    def all(self) -> list[Part]:
        """The graph first, then the bodies of functions."""
        return [self.top, *(f.part for f in self.made())]

    def made(self) -> list[Function]:
        """The functions that were made, in order of first use."""
        return [f for f in self.functions.values() if f is not None]

    def resolve(self, chosen: Callable[[Node], bool]) -> None:
        """Give each chosen node a function, or write it out; in what this makes too."""
        while any(self._resolve(part, chosen) for part in self.all()):
            pass

    def _resolve(self, part: Part, chosen: Callable[[Node], bool]) -> bool:
        settled = {*self.calls, *self.stuck}
        todo = [n for _, n in part.graph.walk() if id(n) not in settled and chosen(n)]
        written_out: dict[int, Node] = {}  # by id, as long as they live
        for node in todo:
            function = self._function(node, part.types) if self.functions_wanted and node.domain == "mezzo" else None
            if function is not None:
                self.calls[id(node)] = node, function
            else:
                written_out[id(node)] = node
        if written_out:
            part.graph = expand(part.graph, lambda n: id(n) in written_out, part.types, older=True)
            part.types = types_of(part.graph)
            self.stuck |= {id(n): n for _, n in part.graph.walk() if id(n) in written_out}
        return bool(todo)

    def _function(self, node: Node, types: Mapping[str, Type]) -> Function | None:
        """The function for a node; None for one that has subgraphs, which may read values around them, and for one
        whose standard form depends on more than a function may know."""
        attrs = {a: v for a, v in node.attrs.items() if v is not None}
        if node.bodies or any(n and n not in types for n in node.inputs):
            return None
        if not all(map(_storable, attrs.values())):
            if not any(node.record.attrs.get(a) is REQUIRED and not _storable(v) for a, v in attrs.items()):
                return None
            attrs = {}  # without what it requires nobody takes a call for the operator: its body is what it means
        for known in (_ranks, _lists, lambda t: t):
            given = tuple(known(types[n]) if n else None for n in node.inputs)
            key = (node.op, _frozen(node.attrs), tuple(map(_described, given)), len(node.outputs))
            if key not in self.functions:
                body = _body(node, given)
                name = function_name(node.op, {f.name for f in self.made()})
                self.functions[key] = None if body is None else Function(name, node.record, attrs, body)
            function = self.functions[key]
            if function is not None:
                return function
        return None


def function_name(op: str, taken: set[str]) -> str:
    """The name of a function: that of its operator, with a number behind `_` from the second on."""
    name, count = op, 1
    while name in taken:
        count += 1
        name = f"{op}_{count}"
    return name


def _body(node: Node, given: tuple[Type | None, ...]) -> Part | None:
    """The standard form of a node for operands of these types; None if it has none."""
    record, names = node.record, set[str]()

    def formals(params: Sequence[Param], many: int) -> list[str]:
        each = [params[min(i, len(params) - 1)] for i in range(many)]
        return [
            unused_name(f"{p.name}_{i - len(params) + 1}" if p.variadic else p.name, names) for i, p in enumerate(each)
        ]

    inputs, outputs = formals(record.inputs, len(given)), formals(record.outputs, len(node.outputs))
    read = tuple(n if t is not None else "" for n, t in zip(inputs, given, strict=True))
    types = {n: t for n, t in zip(inputs, given, strict=True) if t is not None}
    try:
        standard = expanded(replace(node, inputs=read, outputs=tuple(outputs)), types)
    except MezzoError:  # it wants to know more of its operands
        return None
    if standard is None:
        return None
    nodes, constants = standard
    held = [Node("Constant", (), (n,), {"value": np.asarray(a)}, where=node.place) for n, a in constants.items()]
    plain = {n: t.forget() if isinstance(t, Tensor) else t for n, t in types.items()}
    return Part.of(Graph(tuple(inputs), tuple(outputs), (*held, *nodes), {}, plain, name=record.name))


def _ranks(kind: Type) -> Type:
    """Ranks alone; of lists of integers, such as shapes, their lengths, which tell the ranks of results."""
    if not isinstance(kind, Tensor) or kind.dims is None or (len(kind.dims) == 1 and kind.dtype.integer):
        return kind.forget() if isinstance(kind, Tensor) else kind
    return kind.of((None,) * len(kind.dims))


def _lists(kind: Type) -> Type:
    """Ranks, and what short lists of integers hold."""
    if isinstance(kind, Tensor) and kind.value is not None and kind.dtype.integer and kind.value.size <= SMALL:
        return kind
    return _ranks(kind)


def _described(kind: Type | None) -> Hashable:
    return str(kind), _frozen(kind.value) if isinstance(kind, Tensor) else None


def _frozen(value: Any) -> Hashable:
    """Something to compare attributes by."""
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.shape, value.tobytes()
    if isinstance(value, Mapping):
        return tuple(sorted((a, _frozen(v)) for a, v in value.items() if v is not None))
    return tuple(map(_frozen, value)) if isinstance(value, (tuple, list)) else (type(value).__name__, value)


def _storable(value: Any) -> bool:
    """True if ONNX has attributes of this kind."""
    try:
        kind_by_value(value)
    except ModelError:
        return False
    return True


def types_of(graph: Graph) -> dict[str, Type]:
    """Types of all values as far as they can be known without computing anything; those of constants with what they
    hold."""
    constants = constants_of(graph)
    try:
        inferred = infer(graph, budget=Budget(fold_elements=0))
        declared = {n: t for g in graphs_of(graph) for n, t in g.types.items() if n not in constants}
        return {**inferred.types, **{n: t for n, t in declared.items() if not _says_less(t, inferred.types.get(n))}}
    except MezzoError:  # the graph is written as far as declared types tell; onnx.checker judges the result
        return {n: t for g in graphs_of(graph) for n, t in g.types.items()}


def _says_less(declared: Type, inferred: Type | None) -> bool:
    """True if only the inferred one knows the rank."""
    if not isinstance(declared, Tensor) or not isinstance(inferred, Tensor):
        return False
    return declared.dims is None and inferred.dims is not None and declared.dtype is inferred.dtype


def graphs_of(graph: Graph) -> Iterator[Graph]:
    """The graph and all subgraphs."""
    yield graph
    for node in graph.nodes:
        for body in node.bodies.values():
            yield from graphs_of(body)


def constants_of(graph: Graph) -> dict[str, Array]:
    """The constants of a graph and of all subgraphs, those of Constant nodes included."""
    constants: dict[str, Array] = {}
    for inner in graphs_of(graph):
        constants |= {n: a for n, a in inner.initializers.items() if n not in inner.inputs}
        values: Mapping[str, object] = {
            n.outputs[0]: n.attrs.get("value") for n in inner.nodes if n.op == "Constant" and n.outputs
        }
        constants |= {n: a for n, a in values.items() if isinstance(a, np.ndarray)}
    return constants
