"""Computation in bfloat16 or float16 where a kernel of the device supports it; inputs and outputs of the graph keep
their types.

Products and convolutions are narrowed wherever a kernel takes them; other operators where an operand is narrow already,
so that nothing is rounded twice without need. What an operator that jumps reads (`Op.jumps`: Round, QuantizeLinear)
stays float32, as does what lies between it and the products that it comes from, these included.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ...ops import DType, Op, Tensor, Type
from ...ops.dataclasses import dataclass, field, replace
from ...ops.types import Array, type_of
from ..ir.graph import Graph, Node

NARROW = {"bf16": DType.BFLOAT16, "fp16": DType.FLOAT16}  # by the name of the precision


def _moves(op: Op) -> bool:
    """True if an operator moves elements whatever their type."""
    return op.moves in ("view", "permute", "slice", "join") or op.name == "Expand"


Takes = Callable[[Graph, Node], str | None]


@dataclass(slots=True)
class _Narrowing:
    """State of the pass: the nodes so far. `narrow` maps float32 values to their forms of type `to`, `wide` holds those
    that exist as float32 too."""

    graph: Graph
    types: dict[str, Type]
    constants: dict[str, Array]
    to: DType
    mark: str  # behind the name of a value, for its narrow form
    narrow: dict[str, str] = field(default_factory=dict[str, str])
    wide: set[str] = field(default_factory=set[str])
    nodes: list[Node] = field(default_factory=list[Node])
    steep: set[str] = field(default_factory=set[str])  # values of which small changes become large ones

    def narrowed(self, name: str) -> str:
        """The narrow form of a float32 value; cast if there is none yet."""
        if name not in self.narrow:
            copy = self.narrow[name] = name + self.mark
            known = self.types[name]
            assert isinstance(known, Tensor)
            self.types[copy] = known.to(self.to)
            if name in self.constants:
                self.constants[copy] = np.asarray(self.constants[name]).astype(self.to.numpy)
                self.types[copy] = type_of(self.constants[copy], known=True)
            else:
                self.nodes.append(Node("Cast", (name,), (copy,), {"to": self.to.onnx}, name=copy, origin=(name,)))
        return self.narrow[name]

    def widened(self, name: str) -> str:
        """A value as float32, for whoever knows no other form."""
        if name in self.narrow and name not in self.wide and name not in self.constants:
            self.wide.add(name)
            to = {"to": DType.FLOAT.onnx}
            self.nodes.append(Node("Cast", (self.narrow[name],), (name,), to, name=f"{name}:wide", origin=(name,)))
        return name

    def is_float(self, name: str) -> bool:
        """True if a value is a float32 tensor of known sizes."""
        known = self.types.get(name)
        return isinstance(known, Tensor) and known.dtype is DType.FLOAT and known.static

    def may_be_float(self, name: str) -> bool:
        """True if a value is, or may become, a float32 tensor."""
        known = self.types.get(name)
        return not isinstance(known, Tensor) or known.dtype is DType.FLOAT


def narrowed(graph: Graph, takes: Takes, to: DType = DType.BFLOAT16) -> Graph:
    """The graph in a narrow type where `takes` says that a kernel computes a node so (None), else as it is.

    Nodes with a constant that would become infinite stay too.
    """
    inputs = {*graph.inputs, *(s.input for s in graph.states)}
    constants = {n: a for n, a in graph.initializers.items() if n not in inputs}
    mark = f":{to}"
    while any(name.endswith(mark) for name in graph.types):
        mark += "'"
    narrowing = _Narrowing(graph, dict(graph.types), dict(graph.initializers), to, mark)
    narrowing.wide.update(inputs)
    narrowing.steep = _steep(graph)
    around = graph.but(types=narrowing.types, initializers=narrowing.constants)
    for node in graph.nodes:
        after = _narrow_node(node, narrowing, constants, around, takes)
        if after is not None:
            narrowing.nodes.append(after)
            continue
        for name in node.reads():
            narrowing.widened(name)
        narrowing.wide.update(node.outputs)
        narrowing.nodes.append(node)
    for name in (*graph.outputs, *(s.output for s in graph.states)):
        narrowing.widened(name)
    if not narrowing.narrow:
        return graph
    return graph.but(nodes=tuple(narrowing.nodes), types=narrowing.types, initializers=narrowing.constants)


def _narrow_node(
    node: Node, narrowing: _Narrowing, constants: dict[str, Array], around: Graph, takes: Takes
) -> Node | None:
    """The narrow node, whose operands are cast where they must be; None if it stays as it is."""
    if node.domain or node.bodies:
        return None
    op = node.record
    moves = _moves(op)
    if not (op.multiplies or op.follows or moves):
        return None
    floats = [n for n in node.inputs if n and narrowing.is_float(n)]
    if (
        not floats
        or not all(narrowing.is_float(o) for o in node.outputs if o)
        or not narrowing.steep.isdisjoint(node.outputs)
    ):
        return None
    if any(narrowing.may_be_float(n) for n in node.inputs if n and n not in floats):
        return None  # one of unknown sizes stays as it is, and operands have one type
    moving = [n for n in floats if n not in constants]
    if not op.multiplies and not any(n in narrowing.narrow for n in moving):
        return None
    if moves and not all(n in narrowing.narrow for n in moving):
        return None
    if any(n in constants and _beyond(constants[n], narrowing.to) for n in floats):
        return None
    forms = {n: narrowing.narrow.get(n, n + narrowing.mark) for n in floats}
    outputs = {o: o + narrowing.mark for o in node.outputs if o}
    after = replace(
        node,
        inputs=tuple(forms.get(n, n) for n in node.inputs),
        outputs=tuple(outputs.get(o, o) for o in node.outputs),
    )
    for name, form in {**forms, **outputs}.items():
        known = narrowing.types[name]
        assert isinstance(known, Tensor)
        if form not in narrowing.types:  # kernels ask for numbers such as the bounds of Clip
            number = name in constants and known.elements == 1
            narrow = type_of(np.asarray(constants[name]).astype(narrowing.to.numpy), known=True) if number else None
            narrowing.types[form] = narrow or known.to(narrowing.to)
    if not moves and takes(_with_constants(around, forms, constants), after) is not None:
        return None
    for name in floats:
        narrowing.narrowed(name)
    narrowing.narrow |= outputs
    return after


def _steep(graph: Graph) -> set[str]:
    """Return the values that discontinuous operators read, and their operands, back to products."""
    steep: set[str] = set()
    for node in reversed(graph.nodes):
        op = node.record
        follows = not node.domain and (op.follows or _moves(op)) and not steep.isdisjoint(node.outputs)
        if follows or op.jumps:
            steep.update(n for n in node.inputs if n)
    return steep


def _beyond(array: Array, to: DType) -> bool:
    """True if a finite element of a constant exceeds the largest number of a type."""
    if to is not DType.FLOAT16 or not array.size:  # bfloat16 reaches as far as float32
        return False
    largest = max(-float(np.min(array)), float(np.max(array)))
    return float(np.finfo(np.float16).max) < largest < float("inf")


def _with_constants(around: Graph, forms: dict[str, str], constants: dict[str, Array]) -> Graph:
    """The graph as it will be: narrow forms of constants are constants too."""
    more = {
        form: constants[name] for name, form in forms.items() if name in constants and form not in around.initializers
    }
    return around.but(initializers={**around.initializers, **more}) if more else around
