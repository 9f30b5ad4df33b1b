"""The graph builder that types each value when it is added; gradient rules and bodies use it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ...ops import Body, DType, Tensor, Type
from ...ops.budget import Budget
from ...ops.errors import ShapeError
from ...ops.types import Array, Optional, differentiable, type_of
from ...ops.types import Sequence as SequenceType
from .graph import COPY, Graph, GraphBuilder, Node, names_of
from .infer import Scope


class TypedBuilder(GraphBuilder):
    """`g` in gradient rules (see ops/op.py): every node is typed when it is added.

    `types` are those of the values around; they grow with each node.

    >>> from mezzo.ops.types import f32
    >>> g = TypedBuilder({"x": f32("n", 3), "b": f32(3)})
    >>> print(g.type_of(g.sum_to("x", "b")))
    float32[3]
    """

    def __init__(
        self, types: Mapping[str, Type] | None = None, *, prefix: str = "", captured: tuple[str, ...] = ()
    ) -> None:
        super().__init__(prefix=prefix)
        self.wants: tuple[bool, ...] = (True,)
        self.captured = captured
        # `autodiff.gradients`, of builders that it was given: their rules may differentiate bodies
        self.differentiate: Callable[..., dict[str, str]] | None = None
        self.device = ""  # of the nodes that are added, where they have none
        self.where = ""  # what the nodes are for, where an error has to name one
        self.scope = Scope(Budget(), dict(types or {}))

    @property
    def types(self) -> dict[str, Type]:
        """The types of all values, those around included."""
        return self.scope.types

    def input(self, name: str, type: Type) -> str:
        self.types[name] = type
        return super().input(name, type)

    def const(self, value: Any, dtype: DType | None = None) -> str:
        name = super().const(value, dtype)
        self.hold(name, self._constants[name])
        return name

    def hold(self, name: str, array: Array) -> None:
        """Keep a constant under a name that it has already."""
        self._constants[name] = array
        self.types[name] = type_of(array, known=True)

    def operand(self, value: Any) -> str:
        if isinstance(value, list):  # a sequence, which an eager rule has at hand
            name = self._new_name("const")
            self.hold(name, value)
            return name
        return super().operand(value)

    def scalar(self, value: float, like: str) -> str:
        """A constant of rank 0 in the element type of another value."""
        return self.const(value, self._tensor(like).dtype)

    def add(self, node: Node, types: Sequence[Type] | None = None) -> None:
        """Append a node; `types` are those of its outputs where they are known already."""
        if self.where and not node.where:
            node = replace(node, where=f"{self.where} (node {node.name!r}, {node.op})")
        if self.device and not node.device:
            node = replace(node, device=self.device)
        output_types = types or self.scope.node(node)
        self.types.update((o, t) for o, t in zip(node.outputs, output_types, strict=True) if o)
        super().add(node)

    def type_of(self, x: str) -> Type:
        """Return the type of a value."""
        return self.types[x]

    def rank_of(self, x: str) -> int:
        """The rank of a tensor; ShapeError where it is not known."""
        known = self._tensor(x)
        if known.dims is None:
            raise ShapeError(f"the rank of {x!r} has to be known here", hint="declare the shapes of the graph's inputs")
        return len(known.dims)

    def shape_of(self, x: str) -> str:
        """The shape of a tensor, as an int64 vector: a constant where all sizes are known."""
        known = self._tensor(x)
        if known.elements is not None:
            return self.const(np.array(known.sizes, np.int64))
        shape: str = self.Shape(x)
        return shape

    def _tensor(self, x: str) -> Tensor:
        known = self.types[x]
        if not isinstance(known, Tensor):
            raise ShapeError(f"{x!r} is {known}, and no tensor")
        return known

    def sum_to(self, dy: str, x: str) -> str:
        """The sum of `dy` over the dims that broadcasting gave it beyond those of `x`."""
        axes = broadcast_axes(self._tensor(dy), self._tensor(x))
        if axes is None:
            reduced: str = self.SumTo(dy, self.shape_of(x), domain="mezzo")
            return reduced
        if not axes:
            return dy
        more = self.rank_of(dy) - self.rank_of(x)
        summed: str = self.ReduceSum(dy, self.const(np.array(axes, np.int64)), keepdims=1)
        return self.Squeeze(summed, self.const(np.arange(more))) if more else summed

    def total(self, values: Sequence[str]) -> str:
        """The sum of several gradients of one value: of sequences, element by element."""
        if len(values) == 1:
            return values[0]
        first = self.types[values[0]]
        if isinstance(first, SequenceType):
            sums = values[0]
            for other in values[1:]:
                sums = self.SequenceMap(sums, other, body=Body([first.element] * 2, lambda b, *pair: (b.total(pair),)))
            return sums
        if isinstance(first, Optional):
            optional: str = self.Optional(self.total([self.OptionalGetElement(v) for v in values]))
            return optional
        summed: str = self.Add(*values) if len(values) == 2 else self.Sum(*values)
        return summed

    def again(self, body: Any, inputs: Sequence[Any]) -> tuple[str, ...]:
        """Run a copy of a subgraph here: see `Builder.again`."""
        copy = self._copy(body.graph, inputs)
        for node in copy.nodes:
            self.add(node)
        return copy.outputs

    def grad_of(self, body: Any, inputs: Sequence[Any], dys: Sequence[Any]) -> tuple[str | None, ...]:
        """Run a copy of a subgraph here, and its derivative: see `Builder.grad_of`."""
        copy = self._copy(body.graph, inputs)
        seeds: dict[str, list[str]] = {}
        for o, dy in zip(copy.outputs, dys, strict=True):
            if dy is not None:
                seeds.setdefault(o, []).append(self.operand(dy))
        wrt = [n for n in (*copy.inputs, *self.captured) if differentiable(self.types[n])]
        assert self.differentiate is not None
        gradients = self.differentiate(self, copy.nodes, {o: self.total(parts) for o, parts in seeds.items()}, wrt)
        return tuple(gradients.get(n) for n in (*copy.inputs, *self.captured))

    def _copy(self, body: Graph, inputs: Sequence[Any]) -> Graph:
        """A copy of a subgraph with names of its own, of which the inputs and the constants are made here."""
        prefix = self._new_name("again") + COPY
        copy = prefixed(body, prefix)
        self.types.update({prefix + n: self.types[n] for n in names_of(body) if n in self.types})
        for name, value in zip(copy.inputs, inputs, strict=True):
            self.add(Node("Identity", (self.operand(value),), (name,), name=name))
        for name, array in copy.initializers.items():
            self.hold(name, array)
        return copy

    def _within(self, prefix: str) -> TypedBuilder:
        """A builder for a body."""
        return TypedBuilder(prefix=prefix, captured=self.captured)

    def _trace(self, prefix: str, body: Body) -> Graph:
        inner = self._within(prefix)
        inner.differentiate = self.differentiate
        inner.scope = self.scope
        names = [inner.input(f"{prefix}in_{i}", t) for i, t in enumerate(body.inputs)]
        outputs: list[str] = []
        for value in body.build(inner, *names):  # runtimes take only values of the body's own out of it, and each once
            own = value in names or any(value in n.outputs for n in inner.nodes())
            outputs.append(value if own and value not in outputs else inner.Identity(value))
        return inner.graph(outputs=outputs)

    def constants(self) -> dict[str, Array]:
        """The constants made so far."""
        return self._constants

    def nodes(self) -> tuple[Node, ...]:
        """The nodes added so far."""
        return tuple(self._nodes)


def broadcast_axes(wide: Tensor, narrow: Tensor) -> list[int] | None:
    """The axes of `wide` that broadcasting added to `narrow` or stretched; None where sizes decide that are not known.

    >>> broadcast_axes(Tensor(DType.FLOAT, (2, "n", 4)), Tensor(DType.FLOAT, ("n", 1)))
    [0, 2]
    """
    if wide.dims is None or narrow.dims is None:
        return None
    more = len(wide.dims) - len(narrow.dims)
    axes = list(range(more))
    for i, (a, b) in enumerate(zip(wide.dims[more:], narrow.dims, strict=True), more):
        if a == b and a is not None:
            continue
        if b == 1:
            axes.append(i)
        elif not isinstance(b, int):
            return None
    return axes


def prefixed(graph: Graph, prefix: str) -> Graph:
    """A copy of a graph with a prefix before every name that it defines, those of its subgraphs included."""
    own = names_of(graph)

    def new(names: Iterable[str]) -> tuple[str, ...]:
        return tuple(prefix + n if n in own else n for n in names)

    def copy(part: Graph) -> Graph:
        nodes = tuple(
            replace(
                n,
                inputs=new(n.inputs),
                outputs=new(n.outputs),
                attrs={a: copy(v) if isinstance(v, Graph) else v for a, v in n.attrs.items()},
            )
            for n in part.nodes
        )
        constants = {prefix + n: a for n, a in part.initializers.items()}
        types = {(prefix + n if n in own else n): t for n, t in part.types.items()}
        return part.but(
            inputs=new(part.inputs), outputs=new(part.outputs), nodes=nodes, initializers=constants, types=types
        )

    return copy(graph)
