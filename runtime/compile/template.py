"""Templates: a graph that was rewritten once, for all sizes at which everything would be decided the same way.

The passes run over a graph whose open dims are symbolic sizes (ops/symbolic.py). What they decide on the way becomes
the guards of the template; for sizes that meet them, numbers have only to be filled in.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, Literal

from ...ops import MezzoError, Tensor, Type
from ...ops.budget import Budget
from ...ops.dataclasses import dataclass, field, replace
from ...ops.symbolic import Concrete, NotSymbolic, SizeTrace, SymbolicSize, concrete, is_symbolic, tracing
from ...ops.types import Array, Dim, Map, Optional, Sequence, type_of
from ..ir.graph import Graph, Node
from ..ir.infer import Allowance, Scope, check_size, computed, infer, refusal
from ..ir.prune import prune
from ..passes.chains import Chains
from ..passes.cse import merge_equal
from .lower import Options
from .rewriting import fused, simplified

MOST = 8  # templates of a graph, and times together that one turned out to be of no use


class NoTemplate(Exception):
    """Raised with the reason why a graph has no template."""


@dataclass(slots=True)
class Tally(Allowance):
    """The number of elements that constant evaluation creates."""

    total: int = 0

    def take(self, elements: int) -> bool:
        self.total = self.total + elements
        return True


@dataclass(slots=True)
class SizedScope(Scope):
    """A scope that notes which values follow from sizes alone although their elements cannot be written down without
    numbers: ranges, masks."""

    sized: dict[str, Node] = field(default_factory=dict[str, Node])

    def evaluate(self, node: Node, ins: list[Type | None], types: tuple[Type, ...]) -> tuple[Type, ...]:
        answer = Scope.evaluate(self, node, ins, types)
        if all(isinstance(t, Tensor) and t.value is not None for t in answer):
            return answer
        known = all(
            not name or name in self.sized or (isinstance(t, Tensor) and t.value is not None)
            for name, t in zip(node.inputs, ins, strict=True)
        )
        if known and node.inputs and node.record.deterministic and not node.bodies:
            tensors = [t for t in types if isinstance(t, Tensor)]
            if len(tensors) == len(types) and all(t.elements is not None for t in tensors):
                if not all(isinstance(t, Tensor) and t.value is not None for t in ins if t is not None):
                    self.allowance.take(sum(t.elements or 0 for t in tensors))  # else it has been counted
                self.sized.update((o, node) for o in node.outputs if o)
        return answer


@dataclass(frozen=True, slots=True, eq=False)
class Template:
    """A rewritten graph with symbolic sizes, by `symbols`.

    `sized` are the nodes whose results follow from sizes alone, in order of execution; they read each other and `read`.
    `given` are the inputs of the graph itself: those behind them are results of `sized`.
    """

    symbols: Symbols
    graph: Graph
    sized: tuple[Node, ...]
    read: Mapping[str, Array]
    given: tuple[str, ...]

    def at(self, values: list[int]) -> Graph:
        """The graph with numbers for its sizes. Raises NotSymbolic for numbers that int64 does not hold, and what an
        operator on sizes raises, naming its node."""
        put = concrete(self.symbols.trace, values)
        arrays = evaluated(self.sized, self.read, put)
        graph = self.graph
        constants = {name: put(array) for name, array in graph.initializers.items()}
        constants.update((name, arrays[name]) for name in graph.inputs[len(self.given) :])
        known = {name: filled(type, put) for name, type in graph.types.items()}
        known.update((name, type_of(array, known=True)) for name, array in constants.items())
        return graph.but(inputs=self.given, initializers=constants, types=known)


def evaluated(
    nodes: Iterable[Node], read: Mapping[str, Array], put: Concrete, budget: Budget | None = None
) -> dict[str, Array]:
    """The values that nodes make of sizes, and those that they read. Raises what an operator raises, naming its node;
    with a `budget`, BudgetError before a value is made that it does not allow."""
    arrays = {name: put(array) for name, array in read.items()}
    for node in nodes:
        operands = [arrays[n] if n else None for n in node.inputs]
        try:
            if budget is not None:
                ins = [None if x is None else type_of(x, known=True) for x in operands]
                for known in node.record.infer_types(ins, node.attrs, node.wanted):
                    check_size(known, budget)
            results = computed(node, operands)
        except Exception as error:
            types = [None if x is None else type_of(x) for x in operands]
            raise refusal(error, node, types) from (error.__cause__ if isinstance(error, MezzoError) else error)
        arrays.update((o, r) for o, r in zip(node.outputs, results, strict=False) if o)
    return arrays


def size_of(type: Type, axis: int) -> int:
    """Return a size of a static tensor."""
    assert isinstance(type, Tensor)
    return type.sizes[axis]


def rank_of(type: Type) -> int:
    """Return the rank of a static tensor."""
    assert isinstance(type, Tensor)
    return type.rank


def filled(type: Type, put: Concrete) -> Type:
    """The type with numbers in the place of symbolic sizes, in what a list holds too."""
    if isinstance(type, Sequence | Optional | Map):
        return replace(type, element=filled(type.element, put))
    if type.dims is None:
        return type
    return Tensor(type.dtype, put(type.dims), None if type.value is None else put(type.value), type.layout)


@dataclass(slots=True)
class Templates:
    """The templates of one compiled graph; `used` counts the sizes that they served.

    `latest` are the input types that were planned without one last, and the graph that came out; `reasons` tells why
    there was no template; `most` bounds templates and reasons together.
    """

    options: Options
    budget: Budget
    chains: Chains
    all: list[Template] = field(default_factory=list[Template])
    used: int = 0
    latest: tuple[Mapping[str, Type], Graph] | None = None
    reasons: list[str] = field(default_factory=list[str])
    most: int = MOST

    def graph(self, source: Graph, types: Mapping[str, Type]) -> Graph | None:
        """The rewritten graph of `source` for these types of its inputs, if there is a template for them, or can be one
        of the sizes before."""
        for template in chain(self.all, self._another(source)):
            values = template.symbols.values(types)
            if values is None:
                continue
            try:
                graph = template.at(values)
            except NotSymbolic:  # products of sizes wrap in int64, and only there
                continue
            self.used += 1
            return graph
        return None

    def _another(self, source: Graph) -> Iterator[Template]:
        """Yield the template of the sizes that were planned without one last, if there can be one."""
        if self.latest is None or len(self.all) + len(self.reasons) >= self.most:
            return
        latest, self.latest = self.latest, None
        try:
            template = self._made(source, *latest)
        except NoTemplate as error:
            self.reasons.append(str(error))
        else:
            self.all.append(template)
            yield template

    def planned(self, types: Mapping[str, Type], graph: Graph) -> None:
        """Note what came out without a template."""
        self.latest = types, graph

    def drop(self, reason: str) -> None:
        """Forget all templates, and make no others."""
        self.all.clear()
        self.reasons.append(reason)
        self.most = 0

    def _made(self, source: Graph, types: Mapping[str, Type], planned: Graph) -> Template:
        """Make a template from the sizes of these types. Raises NoTemplate, also if it has other operators than
        `planned`, the graph that passes made of these sizes alone."""
        if self.options.target.sm or any(n.bodies for n in source.nodes):
            raise NoTemplate("it has subgraphs, or is for a GPU")
        try:
            with tracing():
                template = _template(source, types, self.options, self.budget, self.chains)
        except (NotSymbolic, MezzoError) as error:
            raise NoTemplate(f"sizes became numbers: {error}") from error
        if template.symbols.values(types) is None:
            raise NoTemplate("its own sizes do not meet its guards")
        operators, others = _operators(planned), _operators(template.graph)
        if others != operators:
            raise NoTemplate(f"it lacks {dict(operators - others)} and has {dict(others - operators)}")
        return template


def _operators(graph: Graph) -> Counter[str]:
    return Counter(f"{n.domain}::{n.op}" for n in graph.nodes)


@dataclass(slots=True)
class Symbols:
    """Symbolic types for the inputs of a graph: one symbol for each name of a dim, and for each dim without one.

    `places` names an input and axis for each symbol, `equal` further ones that have to agree with a symbol. A size of 0
    has no symbol: the axes in `empty` have no elements for any sizes that this is for. `ranks` are those of inputs that
    may have any.
    """

    trace: SizeTrace = field(default_factory=SizeTrace)
    places: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])
    equal: list[tuple[str, int, int]] = field(default_factory=list[tuple[str, int, int]])
    empty: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])
    ranks: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])
    types: dict[str, Type] = field(default_factory=dict[str, Type])
    named: dict[str, SymbolicSize | Literal[0]] = field(default_factory=dict[str, Any])

    def add(self, name: str, declared: Type, actual: Type) -> None:
        """Give an input its type. Raises NoTemplate for what is no tensor of numbers."""
        if not isinstance(declared, Tensor) or not isinstance(actual, Tensor) or not actual.static:
            raise NoTemplate(f"input {name!r} is no tensor of numbers")
        dims = declared.dims
        if dims is None:
            dims = (None,) * actual.rank
            self.ranks.append((name, actual.rank))
        sizes = [self._size(name, axis, *pair) for axis, pair in enumerate(zip(dims, actual.sizes, strict=True))]
        self.types[name] = Tensor(actual.dtype, tuple(sizes))

    def _size(self, name: str, axis: int, dim: Dim, size: int) -> Any:
        if isinstance(dim, int):
            return dim
        known = self.named.get(dim) if dim is not None else None
        if known is None:
            known = self.trace.symbol(size) if size else 0
            if dim is not None:
                self.named[dim] = known
            if size:
                self.places.append((name, axis))
                return known
        if type(known) is SymbolicSize:
            self.equal.append((name, axis, known.terms[0][0][0]))
        else:
            self.empty.append((name, axis))
        return known

    def values(self, types: Mapping[str, Type]) -> list[int] | None:
        """Return the values of the symbols for these types of the inputs; None if what they stand in is not for
        them."""
        if any(rank_of(types[name]) != rank for name, rank in self.ranks):
            return None
        sizes = [size_of(types[name], axis) for name, axis in self.places]
        if any(size_of(types[name], axis) for name, axis in self.empty):
            return None
        if any(size_of(types[name], axis) != sizes[symbol] for name, axis, symbol in self.equal):
            return None
        return self.trace.values(sizes)


@dataclass(frozen=True, slots=True, eq=False)
class Traced:
    """A typed graph with symbolic sizes, without what its types make superfluous, before chains are fused. `sized` are
    nodes as those of `Template`, whose results, under the names in `constants`, are the inputs of `graph` behind those
    of the source."""

    symbols: Symbols
    graph: Graph
    sized: Graph
    constants: Collection[str]


def traced(source: Graph, types: Mapping[str, Type], options: Options, budget: Budget) -> Traced:
    """Infer a graph with symbolic sizes; inside of `tracing()`. Raises NoTemplate, NotSymbolic, and what passes
    raise."""
    symbols = Symbols()
    for name in source.inputs:
        symbols.add(name, source.types[name], types[name])
    if not symbols.places:
        raise NoTemplate("no size is open")
    scope = SizedScope(budget, allowance=(tally := Tally(0)))
    typed = infer(source, symbols.types, budget=budget, scope=scope)
    if tally.total > budget.fold_elements:
        raise NoTemplate("constants exceed what the budget allows")
    sized, names = _merged(typed, scope.sized)
    left = typed.but(
        inputs=(*typed.inputs, *dict.fromkeys(names.values())),
        nodes=tuple(n for n in typed.nodes if scope.sized.keys().isdisjoint(n.outputs)),
    )
    return Traced(symbols, simplified(left.rename(names), options, budget), sized, scope.sized)


def _template(source: Graph, types: Mapping[str, Type], options: Options, budget: Budget, chains: Chains) -> Template:
    """Rewrite a graph with symbolic sizes. Raises NoTemplate, NotSymbolic, and what passes raise."""
    trace = traced(source, types, options, budget)
    symbols, sized = trace.symbols, trace.sized
    here = concrete(symbols.trace, symbols.trace.hints)
    graph = fused(
        trace.graph, options, budget, chains, planned=lambda t: filled(t, here), constants=trace.constants
    )  # fmt: skip
    if any(_holds(v) for node in graph.nodes for v in node.attrs.values()):
        raise NoTemplate("an attribute is a size")
    wanted = set(graph.reads())
    graph = graph.but(inputs=(*source.inputs, *(n for n in graph.inputs[len(source.inputs) :] if n in wanted)))
    used = wanted | {*graph.inputs, *graph.initializers, *(o for n in graph.nodes for o in n.outputs if o)}
    graph = graph.but(types={n: t for n, t in graph.types.items() if n in used})
    sized = prune(sized.but(outputs=graph.inputs[len(source.inputs) :]))
    return Template(symbols, graph, sized.nodes, sized.initializers, tuple(source.inputs))


def _merged(typed: Graph, sized: Collection[str]) -> tuple[Graph, dict[str, str]]:
    """The nodes whose results follow from sizes alone as a graph of their own, without equal ones, and under which
    names their results are found."""
    nodes = tuple(n for n in typed.nodes if not set(sized).isdisjoint(n.outputs))
    read = {n: t.value for node in nodes for n in node.inputs if n and isinstance(t := typed.types[n], Tensor)}
    constants = {n: value for n, value in read.items() if n not in sized}
    before = Graph((), tuple(sized), nodes, constants, types=typed.types)
    after = merge_equal(before)
    while after is not before and len(after.nodes) < len(before.nodes):
        before, after = after, merge_equal(after)
    return after, dict(zip(sized, after.outputs, strict=True))


def _holds(value: Any) -> bool:
    """True if a symbolic size is in an attribute."""
    return any(map(_holds, value)) if type(value) in (tuple, list) else is_symbolic(value)
