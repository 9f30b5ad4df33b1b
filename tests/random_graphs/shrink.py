"""A failure in as few nodes, inputs and elements as show it."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from mezzo.ops import DType, Tensor
from mezzo.ops.errors import MezzoError
from mezzo.runtime.ir.graph import Graph, Node
from mezzo.runtime.ir.infer import infer

from .drawing import Property
from .maker import CONDITION, Case
from .oracle import Worlds, evaluated
from .search import Counts, Failure, isolated, judge
from .switches import Switches

TRIES = 400  # sessions that a failure may cost
AGAIN = 2  # how often one that depends on what memory held is tried


class _Shrinker:
    """The smallest failure so far. A change is kept where the same kind of failure is left."""

    def __init__(self, failure: Failure) -> None:
        self.best, self.left = failure, TRIES

    def judged(self, case: Case, chosen: tuple[Switches, Property | None]) -> Failure | None:
        if self.best.kind == "died":
            return isolated(case, [chosen])
        return judge(case, [chosen], Counts())

    def fails(self, case: Case, switches: Switches | None = None, *, plain: bool = False) -> bool:
        """Whether a smaller case still fails, in which case it is the best."""
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            try:
                typed = infer(case.graph.verify())
                worlds = evaluated(typed, case.feeds, count=2)
            except Exception:  # it is no model any more
                return False
            if any(_hangs_on_rounding(worlds, o) for o in typed.outputs):
                return False
            wanted = None if plain else self.best.property
            for _ in range(AGAIN):
                self.left -= 1
                found = self.judged(case, (switches or self.best.switches, wanted))
                if found is not None and found.kind == self.best.kind:
                    self.best = found
                    return True
        return False

    def all(self) -> Failure:
        if self.best.property is not None:
            self.fails(self.best.case, plain=True)
        before = None
        while before != _size(self.best) and self.left > 0:
            before = _size(self.best)
            for tries in (
                self._switches,
                self._outputs,
                self._heads,
                self._nodes,
                self._inputs,
                self._sizes,
                self._numbers,
            ):
                tries()
        return self.best

    def _first(self, cases: Iterator[Case]) -> bool:
        return any(self.left > 0 and self.fails(c) for c in cases)

    def _switches(self) -> None:
        for simpler in self.best.switches.simpler():
            if self.left > 0 and self.fails(self.best.case, simpler):
                return self._switches()

    def _outputs(self) -> None:
        """One output alone, an early one best; or one less."""
        graph = self.best.case.graph
        made = [o for n in graph.nodes for o in n.outputs if o]
        if self._first(pruned(self.best.case, (o,)) for o in made if graph.outputs != (o,)):
            return
        while len(outputs := self.best.case.graph.outputs) > 1:
            fewer = (pruned(self.best.case, (*outputs[:i], *outputs[i + 1 :])) for i in range(len(outputs)))
            if not self._first(fewer):
                return

    def _heads(self) -> None:
        """A value that is fed in place of being made: late ones first, since most goes with them."""
        worlds = self._worlds()
        if worlds is None:
            return
        for node in reversed(self.best.case.graph.nodes[:-1]):
            known = [o for o in node.outputs if o]
            if node in self.best.case.graph.nodes and self.left > 0:
                self.fails(fed(self.best.case, known, worlds))

    def _nodes(self) -> None:
        """A node left out: what it reads takes the place of what it makes."""
        worlds = self._worlds()
        if worlds is None:
            return
        for node in reversed(self.best.case.graph.nodes):
            if node not in self.best.case.graph.nodes or len(node.outputs) != 1:
                continue
            like = worlds.exact[node.outputs[0]]
            same = [i for i in node.inputs if i and _alike(worlds.exact.get(i), like)]
            if same and self.left > 0:
                self.fails(left_out(self.best.case, node, same[0]))

    def _inputs(self) -> None:
        """Inputs that nothing reads dropped, and optional operands."""
        case = self.best.case
        unread = set(case.graph.inputs) - set(case.graph.reads())
        for gone in [unread, *({n} for n in unread)] if unread else []:
            if self.left > 0 and gone <= set(self.best.case.graph.inputs):
                self.fails(without_inputs(self.best.case, gone))
        case = self.best.case
        for node in case.graph.nodes:
            for i, name in enumerate(node.inputs):
                optional = i < len(node.record.inputs) and node.record.inputs[i].optional
                if name and optional and self.left > 0 and node in self.best.case.graph.nodes:
                    inputs = (*node.inputs[:i], "", *node.inputs[i + 1 :])
                    self.fails(_with(self.best.case, node, replace(node, inputs=_trimmed(inputs))))

    def _sizes(self) -> None:
        """A size made smaller wherever it stands, or one dim of weights and feeds that fit nothing else."""
        sizes = sorted({n for x in _floats(self.best.case).values() for n in x.shape if n > 1}, reverse=True)
        for size in sizes:
            for smaller in (1, 2, 3, size // 2, size - 1):
                if smaller < size and self.left > 0 and self.fails(resized(self.best.case, size, smaller)):
                    break

    def _numbers(self) -> None:
        """Numbers that a shape alone tells, wherever they show it too."""
        if self.fails(drawn_anew(self.best.case)):
            return
        for name, x in _floats(self.best.case).items():
            if x.dtype == np.float32 and x.ndim and self.left > 0:
                self.fails(drawn_anew(self.best.case, name))

    def _worlds(self) -> Worlds | None:
        case = self.best.case
        try:
            return evaluated(infer(case.graph), case.feeds, count=0)
        except MezzoError:
            return None


def _hangs_on_rounding(worlds: Worlds, name: str) -> bool:
    exact = worlds.exact[name]
    largest = (
        float(np.abs(exact).max(initial=0.0)) if isinstance(exact, np.ndarray) and exact.dtype.kind == "f" else 0.0
    )
    return not worlds.deviation(name) <= CONDITION * largest


def _alike(a: Any, b: Any) -> bool:
    return isinstance(a, np.ndarray) and isinstance(b, np.ndarray) and a.shape == b.shape and a.dtype == b.dtype


def _trimmed(names: tuple[str, ...]) -> tuple[str, ...]:
    while names and not names[-1]:
        names = names[:-1]
    return names


def _size(failure: Failure) -> tuple[int, ...]:
    graph = failure.case.graph
    elements = sum(np.size(x) for x in (*failure.case.feeds.values(), *graph.initializers.values()))
    return len(graph.nodes), len(graph.inputs) + len(graph.initializers), len(graph.outputs), elements, len(
        failure.switches.given
    )  # fmt: skip


def _floats(case: Case) -> dict[str, Any]:
    found = {**case.graph.initializers, **case.feeds}
    return {n: x for n, x in found.items() if isinstance(x, np.ndarray)}


def pruned(case: Case, outputs: tuple[str, ...]) -> Case:
    """What these outputs need."""
    graph, needed, nodes = case.graph, set(outputs), list[Node]()
    for node in reversed(graph.nodes):
        if needed & set(node.outputs):
            nodes.append(node)
            needed |= set(node.reads())
    initializers = {n: a for n, a in graph.initializers.items() if n in needed}
    changed = graph.but(outputs=outputs, nodes=tuple(reversed(nodes)), initializers=initializers)
    return replace(case, worlds=None, graph=changed)


def without_inputs(case: Case, gone: set[str]) -> Case:
    """Without some inputs, which nothing reads."""
    graph = case.graph
    return replace(
        case,
        batched=tuple(n for n in case.batched if n not in gone),
        feeds={n: x for n, x in case.feeds.items() if n not in gone},
        graph=graph.but(
            inputs=tuple(n for n in graph.inputs if n not in gone),
            types={n: t for n, t in graph.types.items() if n not in gone},
        ),
    )


def fed(case: Case, names: list[str], worlds: Worlds) -> Case:
    """The same with some values fed, as the references make them."""
    types = infer(case.graph).types
    graph, feeds = case.graph, dict(case.feeds)
    gone = [n for n in graph.nodes if set(names) & set(n.outputs)]
    given: dict[str, Any] = {}
    for name in names:
        known, exact = types[name], worlds.exact[name]
        if not isinstance(known, Tensor) or not isinstance(exact, np.ndarray):
            return case
        feeds[name] = exact.astype(known.dtype.numpy)
        given[name] = Tensor(known.dtype, exact.shape)
    rows = {x.shape[0] for n in case.batched for x in [case.feeds[n]]}
    more = [n for n in names if feeds[n].ndim and feeds[n].shape[0] in rows]
    changed = graph.but(
        nodes=tuple(n for n in graph.nodes if n not in gone),
        inputs=(*graph.inputs, *names),
        types={**graph.types, **given},
    )
    return pruned(replace(case, graph=changed, feeds=feeds, batched=(*case.batched, *more)), graph.outputs)


def _with(case: Case, node: Node, new: Node) -> Case:
    nodes = tuple(new if n is node else n for n in case.graph.nodes)
    return pruned(replace(case, graph=case.graph.but(nodes=nodes)), case.graph.outputs)


def left_out(case: Case, node: Node, instead: str) -> Case:
    nodes = tuple(n for n in case.graph.nodes if n is not node)
    graph = case.graph.but(nodes=nodes).rename({node.outputs[0]: instead})
    return pruned(replace(case, graph=graph), graph.outputs)


def resized(case: Case, size: int, smaller: int) -> Case:
    """Every dim of this size made smaller, in feeds, constants, attributes and the vectors that hold shapes."""

    def one(x: Any) -> Any:
        if not isinstance(x, np.ndarray):
            return x
        made = x[tuple(slice(smaller) if n == size else slice(None) for n in x.shape)]
        if x.dtype == np.int64 and x.ndim <= 1:
            made = np.where(made == size, smaller, made).astype(x.dtype)
        return np.array(made)

    def attr(value: Any) -> Any:
        if isinstance(value, tuple) and all(isinstance(v, int) for v in value):
            return tuple(smaller if v == size and size > 5 else v for v in value)
        return smaller if isinstance(value, int) and value == size and size > 2 else value

    graph = case.graph
    nodes = tuple(
        replace(n, attrs={a: attr(v) for a, v in n.attrs.items()}) if n.op not in ("Cast", "Transpose") else n
        for n in graph.nodes
    )
    feeds = {n: one(x) for n, x in case.feeds.items()}
    types = {n: Tensor(DType.of(x.dtype), x.shape) for n, x in feeds.items() if isinstance(x, np.ndarray)}
    changed = graph.but(
        nodes=nodes, initializers={n: one(a) for n, a in graph.initializers.items()}, types={**graph.types, **types}
    )
    return replace(case, worlds=None, graph=changed, feeds=feeds)


def drawn_anew(case: Case, name: str = "") -> Case:
    """Floats drawn from a generator that a reader can call, all of them or those of one name: positive ones stay so."""
    from .printed import numbers

    def one(n: str, x: Any) -> Any:
        if not isinstance(x, np.ndarray) or x.dtype != np.float32 or not x.ndim or (name and n != name):
            return x
        return abs(numbers(*x.shape)) if (x > 0).all() else numbers(*x.shape)

    constants = {n: one(n, a) for n, a in case.graph.initializers.items()}
    graph: Graph = case.graph.but(initializers=constants)
    feeds: Mapping[str, Any] = {n: one(n, x) for n, x in case.feeds.items()}
    return replace(case, worlds=None, graph=graph, feeds=dict(feeds))


def shrunk(failure: Failure) -> Failure:
    """The smallest failure of the same kind that was found within a number of tries."""
    return _Shrinker(failure).all()
