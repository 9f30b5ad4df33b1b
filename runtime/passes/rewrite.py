"""Rewrite rules as data, and the engine that runs them.

A pattern is a DAG over graph nodes; a rule names what it looks for, asks a check, and says what stands there instead.
A check that declines gives its reason, which `rewrite` can report.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import cache
from typing import Any

from ...ops import OPS, Tensor, Type
from ...ops.dataclasses import dataclass, field, replace
from ...ops.op import Op
from ...ops.types import Array, type_of
from ..ir.graph import Graph, Node
from .bodies import map_bodies


@dataclass(frozen=True, slots=True)
class Leaf:
    """A leaf of a pattern: any value, remembered under `name`; `constant` demands known elements."""

    name: str
    constant: bool = False


@dataclass(frozen=True, slots=True)
class Pattern:
    """A node of a pattern: the operator, one of several, or a question to its record; the patterns of its inputs
    (further inputs of the node are free), the attributes that must be equal, the output that it stands for, the number
    of readers that output may have, a name to remember it by, and whether its two operands commute."""

    op: str | tuple[str, ...] | Callable[[Op], bool]
    inputs: tuple[Operand, ...] = ()
    attrs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    domain: str = ""
    output: int = 0
    uses: int | None = None
    name: str = ""
    commutes: bool = False

    def takes(self, domain: str, op: str) -> bool:
        """True if a node of this operator may stand here."""
        if domain != self.domain:
            return False
        if isinstance(self.op, str):
            return op == self.op
        if isinstance(self.op, tuple):
            return op in self.op
        record = OPS.get((domain, op))
        return record is not None and self.op(record)


@dataclass(frozen=True, slots=True)
class Either:
    """An operand of a pattern with several alternatives."""

    choices: tuple[Operand, ...]


Operand = Pattern | Leaf | Either


@dataclass(frozen=True, slots=True)
class Match:
    """Match of a pattern: its root, all matched nodes, and the remembered values by name."""

    graph: Graph
    root: Node
    nodes: tuple[Node, ...]
    values: Mapping[str, str]

    def type(self, value: str) -> Type | None:
        """The type of a value of the graph."""
        return self.graph.types.get(value)

    def tensor(self, value: str) -> Tensor | None:
        type = self.graph.types.get(value)
        return type if isinstance(type, Tensor) else None

    def constant(self, value: str) -> Array | None:
        """The elements of a value, where known."""
        tensor = self.tensor(value)
        return None if tensor is None else tensor.value

    def input(self, i: int) -> str:
        """Input `i` of the root, "" where absent."""
        return self.root.inputs[i] if i < len(self.root.inputs) else ""

    def attr(self, name: str) -> Any:
        """An attribute of the root, its default included."""
        return self.root.attrs.get(name, self.root.record.attrs.get(name))


@dataclass(frozen=True, slots=True)
class Replacement:
    """Replacement of the matched nodes: new nodes, the values to read instead of the root's outputs, and constants that
    the new nodes read."""

    values: Mapping[str, str]
    nodes: tuple[Node, ...] = ()
    constants: Mapping[str, Array] = field(default_factory=dict[str, Array])


@dataclass(frozen=True, slots=True)
class Rule:
    """`check` returns None to go on or the reason to decline; `replace` builds the replacement."""

    name: str
    pattern: Pattern
    check: Callable[[Match], str | None]
    replace: Callable[[Match], Replacement]


@dataclass(frozen=True, slots=True)
class RewriteDeclined:
    """A rule that matched a node and declined, with its reason."""

    rule: str
    where: str
    reason: str


def match(
    graph: Graph, pattern: Pattern, root: Node, producers: Mapping[str, Node], uses: Callable[[], Mapping[str, int]]
) -> Match | None:
    """Fit a pattern whose root is this node, or None; of several ways to fit it, the first."""
    if not _near(pattern, root, producers):
        return None
    leaves = _leaves(pattern)
    if leaves is not None:
        matches = pattern.takes(root.domain, root.op) and len(root.inputs) >= len(leaves)
        return Match(graph, root, (root,), dict(zip(leaves, root.inputs, strict=False))) if matches else None
    Bindings = tuple[Mapping[str, str], tuple[Node, ...]]  # remembered values, and the nodes matched so far

    def fits(want: Pattern, node: Node, bindings: Bindings) -> Iterator[Bindings]:
        if not want.takes(node.domain, node.op) or len(node.inputs) < len(want.inputs):
            return
        if any(not _equal(node.attrs.get(a, node.record.attrs.get(a)), v) for a, v in want.attrs.items()):
            return
        output = node.outputs[want.output]
        if want.uses is not None and uses().get(output, 0) != want.uses:
            return
        values, nodes = bindings
        if want.name:
            if values.get(want.name, output) != output:
                return
            values = {**values, want.name: output}
        orders = [node.inputs, node.inputs[::-1]] if want.commutes else [node.inputs]
        for inputs in orders:
            yield from operands(want.inputs, inputs, (values, (*nodes, node)))

    def operands(wants: Sequence[Operand], inputs: Sequence[str], bindings: Bindings) -> Iterator[Bindings]:
        if not wants:
            yield bindings
            return
        for extended in operand(wants[0], inputs[0], bindings):
            yield from operands(wants[1:], inputs[1:], extended)

    def operand(want: Operand, value: str, bindings: Bindings) -> Iterator[Bindings]:
        values, nodes = bindings
        match want:
            case Leaf():
                known = graph.types.get(value)
                constant = isinstance(known, Tensor) and known.value is not None
                if values.get(want.name, value) == value and (constant or not want.constant):
                    yield {**values, want.name: value}, nodes
            case Either():
                for choice in want.choices:
                    yield from operand(choice, value, bindings)
            case Pattern():
                maker = producers.get(value)
                if maker is not None and maker.outputs[want.output] == value:
                    yield from fits(want, maker, bindings)

    for values, nodes in fits(pattern, root, ({}, ())):
        return Match(graph, root, nodes, values)
    return None


def _leaves(pattern: Pattern) -> list[str] | None:
    """The names of the operands, where any will do: then there is nothing to search for."""
    if pattern.attrs or pattern.uses is not None or pattern.name:
        return None
    names = [i.name for i in pattern.inputs if isinstance(i, Leaf) and not i.constant]
    return names if len(names) == len(pattern.inputs) == len(set(names)) else None


def _near(pattern: Pattern, root: Node, producers: Mapping[str, Node]) -> bool:
    """True if the operands of the root have the producers that the pattern needs: a quick test that rules out most
    nodes."""

    def fits(inputs: Sequence[str]) -> bool:
        for want, value in zip(pattern.inputs, inputs, strict=False):
            if not isinstance(want, Pattern):
                continue
            if (maker := producers.get(value)) is None or not want.takes(maker.domain, maker.op):
                return False
        return True

    return fits(root.inputs) or (pattern.commutes and fits(root.inputs[::-1]))


def _equal(a: Any, b: Any) -> bool:
    return math.isclose(a, b, rel_tol=1e-6) if isinstance(a, float) and isinstance(b, float) else bool(a == b)


def rewrite(graph: Graph, rules: Sequence[Rule], declined: list[RewriteDeclined] | None = None) -> Graph:
    """Apply rules over the graph and its subgraphs, each node once; reasons of declining rules go to `declined`.

    New nodes take the place of the root; the other matched nodes stay until they are pruned.
    """
    graph = map_bodies(graph, lambda body: rewrite(body, rules, declined))
    present = {(n.domain, n.op) for n in graph.nodes}
    by_op: dict[tuple[str, str], list[Rule]] = {}
    for rule in rules:
        for key in _roots(rule.pattern, present):
            by_op.setdefault(key, []).append(rule)
    if not by_op:
        return graph
    producers, uses = graph.producers(), cache(graph.uses)
    names: dict[str, str] = {}
    nodes: list[Node] = []
    constants: dict[str, Array] = {}
    taken, values = dict(graph.initializers), {*graph.inputs, *producers}
    for node in graph.nodes:
        done = _first(graph, by_op.get((node.domain, node.op), ()), node, producers, uses, declined)
        if done is None:
            nodes.append(node)
            continue
        done = _apart(done, node, taken, values)
        taken |= done.constants
        values |= {o for n in done.nodes for o in n.outputs}
        nodes += [replace(n, origin=n.origin or (node.name,), where=n.where or node.where) for n in done.nodes]
        names |= {old: _last(names, new) for old, new in done.values.items()}
        constants |= done.constants
    if not names and len(nodes) == len(graph.nodes) and all(a is b for a, b in zip(nodes, graph.nodes, strict=True)):
        return graph
    types = {**graph.types, **{n: type_of(a, known=True) for n, a in constants.items()}}
    initializers = {**graph.initializers, **constants}
    return graph.but(nodes=tuple(nodes), initializers=initializers, types=types).rename(names)


def _apart(done: Replacement, root: Node, taken: Mapping[str, Array], values: AbstractSet[str]) -> Replacement:
    """The replacement with names of its own for constants and for results that are not the root's: a value of the graph
    may be called so, and of an earlier constant other nodes may read, once equal ones are merged."""
    names: dict[str, str] = {}
    for name, array in done.constants.items():
        while (now := names.get(name, name)) in values or taken.get(now, array) is not array:
            names[name] = f"{now}'"
    for name in (o for n in done.nodes for o in n.outputs if o and o not in root.outputs):
        while (now := names.get(name, name)) in values or now in taken:
            names[name] = f"{now}'"
    if not names:
        return done
    nodes = tuple(
        replace(n, inputs=tuple(names.get(i, i) for i in n.inputs), outputs=tuple(names.get(o, o) for o in n.outputs))
        for n in done.nodes
    )
    constants = {names.get(n, n): a for n, a in done.constants.items()}
    return replace(done, nodes=nodes, constants=constants, values={v: names.get(n, n) for v, n in done.values.items()})


def _roots(pattern: Pattern, present: AbstractSet[tuple[str, str]]) -> list[tuple[str, str]]:
    """The operators of a graph that may be the pattern's root; none where it lacks an operator of the pattern, as most
    graphs do of most rules."""
    if isinstance(pattern.op, str):
        roots = [(pattern.domain, pattern.op)] if (pattern.domain, pattern.op) in present else []
    elif callable(pattern.op):
        roots = [key for key in present if pattern.takes(*key)]
    else:
        roots = [key for name in pattern.op if (key := (pattern.domain, name)) in present]
    return roots if roots and all(_possible(i, present) for i in pattern.inputs) else []


def _possible(want: Operand, present: AbstractSet[tuple[str, str]]) -> bool:
    """True if a graph of these operators can hold the pattern."""
    match want:
        case Leaf():
            return True
        case Either():
            return any(_possible(choice, present) for choice in want.choices)
        case Pattern():
            return bool(_roots(want, present))


def _last(names: Mapping[str, str], name: str) -> str:
    while name in names:
        name = names[name]
    return name


def _first(
    graph: Graph,
    rules: Sequence[Rule],
    node: Node,
    producers: Mapping[str, Node],
    uses: Callable[[], Mapping[str, int]],
    declined: list[RewriteDeclined] | None,
) -> Replacement | None:
    for rule in rules:
        matched = match(graph, rule.pattern, node, producers, uses)
        if matched is None:
            continue
        reason = rule.check(matched)
        if reason is None:
            return rule.replace(matched)
        if declined is not None:
            declined.append(RewriteDeclined(rule.name, node.place, reason))
    return None
