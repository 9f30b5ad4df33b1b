"""The graph: values with types, nodes, initializers, subgraphs and states, in ONNX's terms.

A graph is data that is never changed in place: a pass returns another graph. Values are named by strings that are
unique in the graph and in all its subgraphs together; the empty string is an absent optional input or an output that
nobody uses. A subgraph is an attribute whose value is a Graph; it reads values of the outer scopes by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ...ops import OPS, Body, DType, Op, Type
from ...ops.dataclasses import dataclass, field, replace
from ...ops.errors import PlanError, ShapeError, UnsupportedModel
from ...ops.types import Array, native, type_of

# Keys of metadata that tell of the file that a graph was read from.
PRODUCER, DOMAIN, MODEL_VERSION, SIGNATURE = (
    f"mezzo.source.{field}" for field in ("producer", "domain", "model_version", "signature")
)
SPLIT = "mezzo.split"  # key of metadata of a graph whose weights are parts of others, each on a device where it stays
COPY = "@/"  # ends the prefix of a copied subgraph's names: what follows are the names of the original
RESULT = "y"  # the first output of an operator that runs alone: by it random numbers are drawn
DRAW = "draw@"  # begins the name of what a node of a trace draws: which draw of the run it is follows
AGAIN = "@again"  # how the names of nodes end that compute something a second time, to keep it in memory less long


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """One use of an operator. `where` is the file position or source line that made it; `origin` names the nodes that
    it replaces after rewriting; `device` is the one that runs it."""

    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    domain: str = ""
    name: str = ""
    where: str = ""
    origin: tuple[str, ...] = ()
    device: str = ""

    @property
    def record(self) -> Op:
        """The operator's record; UnsupportedModel if it is not carried."""
        record = OPS.get((self.domain, self.op))
        if record is None:
            raise UnsupportedModel(
                f"operator {self.domain or 'ai.onnx'}::{self.op} is not carried",
                where=self.place,
                hint="`mezzo check MODEL` lists all that a model needs",
            )
        return record

    @property
    def place(self) -> str:
        """Name of the node in error messages."""
        return self.where or f"node {self.name or ', '.join(self.outputs)!r} ({self.op})"

    @property
    def bodies(self) -> dict[str, Graph]:
        """The subgraphs among the attributes, by attribute name."""
        return {a: v for a, v in self.attrs.items() if isinstance(v, Graph)} if self.attrs else {}

    @property
    def wanted(self) -> tuple[bool, ...]:
        return tuple(map(bool, self.outputs))

    def reads(self) -> Iterator[str]:
        """Yield every value that this node needs: its inputs, and the outer values that its subgraphs read."""
        yield from filter(None, self.inputs)
        for value in self.attrs.values():
            if isinstance(value, Graph):
                yield from value.captures()

    def __str__(self) -> str:
        attrs = {a: "{...}" if isinstance(v, Graph) else v for a, v in self.attrs.items()}
        shown = ", ".join([*(i or "-" for i in self.inputs), *(f"{a}={_short(v)}" for a, v in attrs.items())])
        return f"{', '.join(o or '-' for o in self.outputs)} = {self.op}({shown})"


def _short(value: Any) -> str:
    if isinstance(value, np.ndarray) and value.size > 8:
        return f"<{type_of(value)}>"
    return str(value.tolist() if isinstance(value, np.ndarray) else value)


@dataclass(frozen=True, slots=True)
class State:
    """A value that lives from run to run: `output` of one run is `input` of the next; the initializer named as `input`
    is its first value. `device` tells where it lies, if it is not where it is read first."""

    name: str
    input: str
    output: str
    device: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Signature:
    """Interface of a graph: its inputs with their types, the names of its outputs, the defaults of optional inputs, and
    the first value of each state, by the name that a run reads."""

    name: str
    inputs: Mapping[str, Type]
    outputs: tuple[str, ...]
    defaults: Mapping[str, Array]
    states: Mapping[str, Array]


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """A typed dataflow graph; nodes are in topological order.

    `types` holds what is known of each value by name; `initializers` the constant arrays (an input of the same name
    may be left out by the caller). `opset` and `ir_version` tell what file it came from (0: none).
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[Node, ...]
    initializers: Mapping[str, Array] = field(default_factory=dict[str, Array])
    types: Mapping[str, Type] = field(default_factory=dict[str, Type])
    states: tuple[State, ...] = ()
    name: str = ""
    doc: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict[str, str])
    opsets: Mapping[str, int] = field(default_factory=dict[str, int])
    ir_version: int = 0

    def but(self, **changes: Any) -> Graph:
        """A copy with some fields replaced."""
        return replace(self, **changes)

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices of the nodes, in the order in which they compute first; none where it runs on any one."""
        return tuple(dict.fromkeys(n.device for n in self.nodes if n.device))

    @property
    def signature(self) -> Signature:
        """Interface of the graph. Raises ShapeError if an input has no type."""
        untyped = [n for n in self.inputs if n not in self.types]
        if untyped:
            raise ShapeError(f"input {untyped[0]!r} has no type", where=self.name, hint="declare every input's type")
        return Signature(
            self.name,
            {n: self.types[n] for n in self.inputs},
            self.outputs,
            {n: self.initializers[n] for n in self.inputs if n in self.initializers},
            {s.input: self.initializers[s.input] for s in self.states},
        )

    def producers(self) -> dict[str, Node]:
        """The node that makes each value."""
        return {o: n for n in self.nodes for o in n.outputs if o}

    def uses(self) -> dict[str, int]:
        """Return the number of reads of each value, by nodes (subgraphs included), outputs and states."""
        count: dict[str, int] = {}
        for name in self.reads():
            count[name] = count.get(name, 0) + 1
        return count

    def reads(self) -> Iterator[str]:
        for node in self.nodes:
            yield from node.reads()
        yield from self.outputs
        yield from (s.output for s in self.states)

    def defined(self) -> set[str]:
        """Names that this graph itself gives a value."""
        written = {o for n in self.nodes for o in n.outputs if o}
        return {*self.inputs, *self.initializers, *written, *(s.input for s in self.states)}

    def captures(self) -> tuple[str, ...]:
        """Names that this (sub)graph takes from the scopes around it, each once, in order of use."""
        own = self.defined()
        return tuple(dict.fromkeys(n for n in self.reads() if n not in own))

    def walk(self) -> Iterator[tuple[Graph, Node]]:
        """Yield every node, those of subgraphs included, with its graph."""
        for node in self.nodes:
            yield self, node
            for body in node.bodies.values():
                yield from body.walk()

    def rename(self, names: Mapping[str, str]) -> Graph:
        """Read other values in place of some: `names` maps old to new; bodies follow. Definitions keep their names."""
        if not names:
            return self

        def body(value: Any) -> Any:
            return value.rename(names) if isinstance(value, Graph) else value

        def renamed(n: Node) -> Node:
            bodies = n.bodies
            if not bodies and names.keys().isdisjoint(n.inputs):
                return n
            attrs = {a: body(v) for a, v in n.attrs.items()} if bodies else n.attrs
            return replace(n, inputs=tuple(names.get(i, i) for i in n.inputs), attrs=attrs)

        nodes = tuple(map(renamed, self.nodes))
        states = tuple(replace(s, output=names.get(s.output, s.output)) for s in self.states)
        return self.but(nodes=nodes, outputs=tuple(names.get(o, o) for o in self.outputs), states=states)

    def verify(self, outer: Iterable[str] = ()) -> Graph:
        """Return the graph, or raise PlanError naming what breaks its rules: a value has one definition in the graph
        and all its subgraphs together, before its first use; operators get as many operands as they take."""
        self._verify(set(outer), set(outer))
        return self

    def _verify(self, known: set[str], everywhere: set[str]) -> None:
        def define(name: str, where: str) -> None:
            if name in everywhere:
                raise PlanError(f"value {name!r} is defined twice", where=where)
            known.add(name)
            everywhere.add(name)

        for name in dict.fromkeys([*self.inputs, *self.initializers, *(s.input for s in self.states)]):
            define(name, self.name)
        for node in self.nodes:
            missing = [i for i in node.reads() if i not in known]
            if missing:
                raise PlanError(f"value {missing[0]!r} is read before it is made", where=node.place)
            check_arity(node)
            for body in node.bodies.values():
                body._verify(set(known), everywhere)
            for o in filter(None, node.outputs):
                define(o, node.place)
        lost = [o for o in (*self.outputs, *(s.output for s in self.states)) if o not in known]
        if lost:
            raise PlanError(f"output {lost[0]!r} is never made", where=self.name)

    def __str__(self) -> str:
        def typed(names: Sequence[str]) -> str:
            return ", ".join(f"{n}: {self.types[n]}" if n in self.types else n for n in names)

        head = f"graph {self.name}({typed(self.inputs)}) -> {typed(self.outputs)}"
        return "\n".join([head, *(f"  {n}" for n in self.nodes)])


def names_of(graph: Graph) -> set[str]:
    """Return every name that a graph defines, those of its subgraphs included."""
    return graph.defined().union(*(names_of(b) for n in graph.nodes for b in n.bodies.values()))


def check_arity(node: Node) -> None:
    """Raise ShapeError unless the node gives its operator the operands and attributes that it needs."""
    record = node.record
    for kind, names, params in (("inputs", node.inputs, record.inputs), ("outputs", node.outputs, record.outputs)):
        most = len(names) if any(p.variadic for p in params) else len(params)
        needed = [i for i, p in enumerate(params) if not (p.optional or p.variadic)]
        if len(names) > most:
            raise ShapeError(f"{record.name} takes at most {most} {kind}, here are {len(names)}", where=node.place)
        absent = [params[i].name for i in needed if kind == "inputs" and (i >= len(names) or not names[i])]
        if absent:
            raise ShapeError(f"{record.name} lacks its input {', '.join(absent)}", where=node.place)
    try:
        record.bind(node.attrs)
    except ShapeError as error:
        raise error.at(node.place) from None


class GraphBuilder:
    """`g` for graphs: `g.Mul(a, b)` adds a node and returns the name of its value (a tuple for several outputs).

    >>> from mezzo.ops import DType, Tensor
    >>> g = GraphBuilder()
    >>> x = g.input("x", Tensor(DType.FLOAT, (2,)))
    >>> print(g.graph(outputs=[g.Add(x, g.const([1.0, 2.0], DType.FLOAT))]))
    graph (x: float32[2]) -> Add_1
      Add_1 = Add(x, const_0)
    """

    def __init__(self, name: str = "", *, prefix: str = "") -> None:
        self._name, self.prefix, self._count = name, prefix, 0
        self._inputs: list[str] = []
        self._nodes: list[Node] = []
        self._types: dict[str, Type] = {}
        self._constants: dict[str, Array] = {}
        self._states: list[State] = []

    @classmethod
    def after(cls, graph: Graph) -> GraphBuilder:
        """A builder that goes on where a subgraph ends."""
        own, count = names_of(graph), 0
        while any(n.startswith(f"{graph.inputs[0]}/more{count}/") for n in own):
            count += 1
        builder = cls(graph.name, prefix=f"{graph.inputs[0]}/more{count}/")
        builder._inputs, builder._nodes = list(graph.inputs), list(graph.nodes)
        builder._types, builder._constants = dict(graph.types), dict(graph.initializers)
        return builder

    def _new_name(self, stem: str) -> str:
        self._count += 1
        return f"{self.prefix}{stem}_{self._count - 1}"

    def input(self, name: str, type: Type) -> str:
        """Declare an input."""
        self._inputs.append(name)
        self._types[name] = type
        return name

    def const(self, value: Any, dtype: DType | None = None) -> str:
        """An initialiser; integers are int64 unless `dtype` says otherwise."""
        name = self._new_name("const")
        self._constants[name] = native(np.asarray(value, dtype.numpy if dtype else None))
        return name

    def state(self, name: str, first: Any) -> str:
        """Declare a state with its first value; returns the value that a run reads. See `update`."""
        self._constants[name] = native(np.asarray(first))
        self._types[name] = type_of(self._constants[name])
        self._states.append(State(name, name, ""))
        return name

    def update(self, name: str, value: str) -> None:
        """Say which value the state holds after the run."""
        self._states = [replace(s, output=value) if s.name == name else s for s in self._states]

    def op(self, name: str, *inputs: str | Array | None, domain: str = "", outputs: int = 1, **attrs: Any) -> Any:
        """Add a node; returns the name of its output, or a tuple of names for several `outputs`. Arrays among the
        inputs become constants."""
        stem = self._new_name(name)
        results = tuple(f"{stem}.{i}" if i else stem for i in range(outputs))
        values = {a: tuple(v) if isinstance(v, list) else v for a, v in attrs.items()}
        values = {a: self._trace(f"{stem}/{a}/", v) if isinstance(v, Body) else v for a, v in values.items()}
        ins = tuple("" if i is None else self.operand(i) for i in inputs)
        while ins and not ins[-1]:
            ins = ins[:-1]
        self.add(Node(name, ins, results, values, domain, name=stem))
        return results[0] if outputs == 1 else results

    def operand(self, value: Any) -> str:
        """The name of a value: of an array, that of a constant."""
        return value if isinstance(value, str) else self.const(value)

    def add(self, node: Node) -> None:
        """Append a node as it is."""
        self._nodes.append(node)

    def _trace(self, prefix: str, body: Body) -> Graph:
        inner = GraphBuilder(prefix=prefix)
        names = [inner.input(f"{prefix}in_{i}", t) for i, t in enumerate(body.inputs)]
        return inner.graph(outputs=list(body.build(inner, *names)))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or not name[:1].isupper():
            raise AttributeError(name)
        return lambda *inputs, **attrs: self.op(name, *inputs, **attrs)

    def graph(self, outputs: Sequence[str]) -> Graph:
        """The finished graph, verified."""
        graph = Graph(
            inputs=tuple(self._inputs),
            outputs=tuple(outputs),
            nodes=tuple(self._nodes),
            initializers=dict(self._constants),
            types=dict(self._types),
            states=tuple(self._states),
            name=self._name,
        )
        return graph if self.prefix else graph.verify()
