"""Type inference for all values of a graph, subgraphs included, from the types of its inputs.

Known elements travel with the types: an operator whose inputs are all known is evaluated here (within the budget),
so that shape arithmetic has vanished before anything is planned.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ...ops import Context, DType, MezzoError, Tensor, Type
from ...ops.budget import Budget
from ...ops.dataclasses import dataclass, field, replace
from ...ops.errors import ShapeError
from ...ops.symbolic import NotSymbolic, is_large, is_symbolic, may_be_symbolic
from ...ops.types import differentiable, type_of
from ..caches import CacheKey
from ..memory.shared_constants import shared
from .graph import Graph, GraphBuilder, Node


def check_size(result: Type, budget: Budget) -> None:
    """Refuse a tensor above the budget, or of negative size, before anything of its size exists."""
    if not isinstance(result, Tensor) or result.dims is None:
        return
    sizes = [d for d in result.dims if isinstance(d, int)]
    if any(d < 0 for d in sizes):  # not their minimum: symbolic sizes are not to be compared with each other
        raise ShapeError(f"the result would be {result}", hint="the operands are too small for these attributes")
    if math.prod(filter(None, sizes)) >= 1 << 58:
        raise ShapeError(f"the result would be {result}", hint="no array has such sizes, not even one without elements")
    elements = math.prod(sizes) if len(sizes) == len(result.dims) else 0
    if elements > budget.tensor_elements:
        budget.check("tensor_elements", elements, f"elements of {result}")


@dataclass(slots=True)
class Allowance:
    """Remaining elements that constant evaluation may create in this graph."""

    left: int

    def take(self, elements: int) -> bool:
        """Return True, and use up the elements, if this many are still allowed."""
        if elements > self.left:
            return False
        self.left -= elements
        return True


@dataclass(frozen=True, slots=True)
class TypedBody:
    """A subgraph as inference rules see it: `infer` types it inside the scope of its node."""

    graph: Graph
    scope: Scope

    @property
    def inputs(self) -> tuple[str, ...]:
        return self.graph.inputs

    @property
    def outputs(self) -> tuple[str, ...]:
        return self.graph.outputs

    def infer(self, *types: Type) -> tuple[Type, ...]:
        if len(types) != len(self.graph.inputs):
            text = f"the body takes {len(self.graph.inputs)} values, and is given {len(types)}"
            raise ShapeError(text, hint="give the node as many operands as its body has inputs for")
        self.scope.enter(self.graph, dict(zip(self.graph.inputs, types, strict=False)))
        return tuple(self.scope.types[o] for o in self.graph.outputs)

    def returns(self, value: str) -> tuple[int, ...]:
        copies = {n.outputs[0] for n in self.graph.nodes if n.op == "Identity" and n.inputs == (value,)} | {value}
        return tuple(i for i, o in enumerate(self.graph.outputs) if o in copies)

    def reached(self, values: Iterable[str]) -> set[int]:
        reached = set(values)
        for node in self.graph.nodes:
            if not reached.isdisjoint(node.reads()):
                types = self.scope.types
                reached.update(o for o in node.outputs if o and (o not in types or differentiable(types[o])))
        return {i for i, o in enumerate(self.graph.outputs) if o in reached}

    def extend(self) -> GraphBuilder:
        return GraphBuilder.after(self.graph)

    def refuse(self, error: MezzoError) -> None:
        self.scope.refused[id(self.graph)] = error


@dataclass(slots=True)
class Scope:
    """All types inferred so far; names are unique over the graph and its subgraphs, so that one dict serves every
    level."""

    budget: Budget
    types: dict[str, Type] = field(default_factory=dict[str, Type])
    allowance: Allowance = field(default_factory=lambda: Allowance(0))
    refused: dict[int, MezzoError] = field(default_factory=dict[int, MezzoError])
    answers: dict[Any, tuple[Type, ...]] = field(default_factory=dict[Any, tuple[Type, ...]])

    def enter(self, graph: Graph, inputs: Mapping[str, Type], settled: Mapping[str, Type] | None = None) -> None:
        for name, array in graph.initializers.items():
            self.types[name] = type_of(array, known=True)
        for state in graph.states:
            first = self.types[state.input]
            self.types[state.input] = first.forget() if isinstance(first, Tensor) else first
        self.types.update(inputs)
        for node in graph.nodes:
            if settled and not node.bodies and all(o in settled for o in node.outputs if o):
                self.types.update((o, settled[o]) for o in node.outputs if o)
                continue
            for name, type in zip(node.outputs, self.node(node), strict=True):
                if name:
                    self.types[name] = type

    def node(self, node: Node) -> tuple[Type, ...]:
        ins = [self.types[i] if i else None for i in node.inputs]
        record = node.record
        try:
            key = _kind(node, ins)
            types = self.answers.get(key) if key is not None else None
            if types is None:
                attrs = {a: TypedBody(v, self) if isinstance(v, Graph) else v for a, v in node.attrs.items()}
                types = record.infer_types(ins, attrs, node.wanted)
                for result in types:
                    check_size(result, self.budget)
                if key is not None and not any(isinstance(t, Tensor) and t.value is not None for t in types):
                    self.answers[key] = types  # elements may differ where attributes are equal: 0.0 and -0.0
            return self.evaluate(node, ins, types)
        except Exception as error:
            raise refusal(error, node, ins) from (error.__cause__ if isinstance(error, MezzoError) else error)

    def evaluate(self, node: Node, ins: list[Type | None], types: tuple[Type, ...]) -> tuple[Type, ...]:
        for t in ins:
            if t is not None and (not isinstance(t, Tensor) or t.value is None):
                return types
        tensors = [t for t in types if isinstance(t, Tensor)]
        if not node.record.deterministic or node.bodies or len(tensors) < len(types):
            return types
        if all(t.value is not None for t in tensors):
            return types
        size = sum(t.elements or sum(i.elements or 0 for i in ins if isinstance(i, Tensor)) for t in tensors)
        if not self.allowance.take(size):
            return types
        values = [t.value if isinstance(t, Tensor) else None for t in ins]
        if any(map(may_be_symbolic, values)) and not _calculates(node):
            return types
        try:
            results = [_settled(r, t) for r, t in zip(computed(node, values), types, strict=False)]
        except NotSymbolic:  # its elements cannot be told before sizes are known
            return types
        return tuple(type_of(r, known=True) for r in results)


def refusal(error: Exception, node: Node, ins: Sequence[Type | None]) -> MezzoError:
    """Return what a rule or a reference raised as an error that names the node: of operands that it does not foresee,
    the model is at fault."""
    if isinstance(error, MezzoError):
        return error.at(node.place)
    return ShapeError(
        f"{node.op} cannot take ({', '.join(map(str, ins))}): {type(error).__name__}: {error}",
        where=node.place,
        hint="check the operand types and attributes of this node",
    )


def computed(node: Node, values: Sequence[Any]) -> list[Any]:
    """Return the results of a deterministic node, one for each output, from the arrays that it reads."""
    with np.errstate(all="ignore"):
        results = node.record.run(Context(wanted=node.wanted), values, node.attrs)
    return [shared(r, values) for r in results]


def _calculates(node: Node) -> bool:
    """Return True for operators that move their elements or calculate with them: others look them up in tables, or take
    arrays of objects for texts."""
    record = node.record
    return bool(record.moves) or record.elementwise or record.kind == "reduction"


def _settled(result: Any, type: Type) -> Any:
    """Return a result in its element type again if no size in it is symbolic. Raises NotSymbolic for symbolic sizes in
    another type than int64, and for factors so large that int64 may overflow."""
    if not (isinstance(type, Tensor) and type.dtype is not DType.STRING and result.dtype == object):
        return result
    if not is_symbolic(result):
        return result.astype(type.dtype.numpy)
    if type.dtype is not DType.INT64 or any(is_large(v) for v in result.flat):
        raise NotSymbolic
    return result


def _kind(node: Node, ins: Sequence[Type | None]) -> Any:
    """Return the key of an inference rule's arguments, since networks repeat themselves. None if they cannot be
    compared."""
    if node.bodies:
        return None
    values = [id(t.value) if isinstance(t, Tensor) else 0 for t in ins]  # types are equal whatever their elements
    try:
        return CacheKey(node.op, node.domain, node.wanted, *node.attrs.items(), *ins, *values)
    except TypeError:
        return None


def infer(
    graph: Graph,
    inputs: Mapping[str, Type] | None = None,
    *,
    budget: Budget | None = None,
    rewritten: bool = False,
    scope: Scope | None = None,
) -> Graph:
    """The graph with the type of every value in `types`, bodies included.

    `inputs` gives the types of the inputs (default: as the graph declares them). An input without a declared type is
    an error. `rewritten` says that the graph was made from one that was typed for these inputs: a value that kept its
    name kept its type, so that only what is new is worked out. `scope` does the work (default: a new one). Raises
    ShapeError where operands do not fit, BudgetError where a tensor would be too large; both name the node.

    >>> from mezzo.runtime.ir.graph import GraphBuilder
    >>> from mezzo.ops.types import f32
    >>> g = GraphBuilder()
    >>> y = g.Exp(g.input("x", f32("n", 3)))
    >>> print(infer(g.graph([y])).types[y])
    float32[n,3]
    """
    limits = Budget.of(budget)
    scope = scope or Scope(limits, allowance=Allowance(limits.fold_elements))
    input_types = {n: t for n in graph.inputs if (t := (inputs or {}).get(n, graph.types.get(n))) is not None}
    missing = [n for n in graph.inputs if n not in input_types]
    if missing:
        raise ShapeError(f"input {missing[0]!r} has no type", where=graph.name)
    scope.enter(graph, input_types, graph.types if rewritten else None)
    if scope.refused:
        graph = _without_refused(graph, scope)
    return graph.but(types=scope.types)


def _without_refused(graph: Graph, scope: Scope) -> Graph:
    """Put a node that raises the error in place of each body that cannot run."""

    def body(node: Node, value: Any) -> Any:
        if not isinstance(value, Graph):
            return value
        error = scope.refused.get(id(value))
        if error is None:
            return _without_refused(value, scope)
        scope.types.update(zip(value.outputs, (scope.types[o] for o in node.outputs), strict=True))
        told = {"message": error.message, "place": error.where, "hint": error.hint}
        stop = Node("Raise", (), value.outputs, told, domain="mezzo", where=node.where, origin=(node.name,))
        return Graph((), value.outputs, (stop,), types=scope.types)

    nodes = tuple(replace(n, attrs={a: body(n, v) for a, v in n.attrs.items()}) if n.bodies else n for n in graph.nodes)
    return graph.but(nodes=nodes)


def body_of(value: Any, types: Mapping[str, Type], budget: Budget) -> TypedBody:
    """A subgraph for rules that run outside of `infer` (at run time), in a scope of known types."""
    return TypedBody(value, Scope(budget, dict(types), Allowance(budget.fold_elements)))
