"""Expansion of ONNX's Gradient operator into the nodes between the values that it names, and their derivatives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...ops import Type
from ...ops.budget import Budget
from ...ops.core.broadcast import zeros_like
from ...ops.dataclasses import dataclass, field, replace
from ...ops.errors import InputError, UnsupportedModel
from ...ops.training.optimizers import DOMAIN
from ...ops.types import Array, differentiable
from ..ir.autodiff import ONES, gradients, unused_name
from ..ir.graph import COPY, Graph, Node
from ..ir.infer import infer
from ..ir.typed import TypedBuilder, prefixed


def write_gradients(graph: Graph, budget: Budget) -> Graph:
    """Replace each Gradient, those of subgraphs included, by a copy of the part of the graph that it names, with the
    node's inputs in place of xs and zs, and by the derivative of that.

    A Gradient may name what another one made. Raises UnsupportedModel listing every operator on the way of one that
    has no derivative, and InputError for a name that nothing before the node defines.
    """
    if not any(map(_is_gradient, (n for _, n in graph.walk()))):
        return graph
    graph = infer(graph, budget=budget)
    writing = _Writing(dict(graph.types), set(graph.types))
    written = writing.graph(graph, [])
    if writing.refused:
        raise UnsupportedModel(
            "; ".join(dict.fromkeys(e.message for e in writing.refused)), hint=writing.refused[0].hint
        )
    return written.but(types=writing.types).verify()


def _is_gradient(node: Node) -> bool:
    return (node.domain, node.op) == (DOMAIN, "Gradient")


@dataclass(slots=True)
class _Writing:
    """The types of all values, the names in use, and the values that could not be differentiated."""

    types: dict[str, Type]
    taken: set[str]
    refused: list[UnsupportedModel] = field(default_factory=list[UnsupportedModel])

    def graph(self, graph: Graph, around: Sequence[Node]) -> Graph:
        """A graph without Gradients; `around` are the nodes before it in the scopes that it reads."""
        nodes: list[Node] = []
        constants = dict(graph.initializers)
        for node in graph.nodes:
            if _is_gradient(node):
                nodes, held = self.written(node, around, nodes)
                constants |= held
            else:
                bodies = {a: self.graph(b, [*around, *nodes]) for a, b in node.bodies.items()}
                nodes.append(replace(node, attrs={**node.attrs, **bodies}) if bodies else node)
        return graph.but(nodes=tuple(nodes), initializers=constants)

    def written(
        self, node: Node, around: Sequence[Node], nodes: Sequence[Node]
    ) -> tuple[list[Node], Mapping[str, Array]]:
        """The nodes before a Gradient in its scope and what stands for it, with its constants.

        A Gradient at the very values that it names needs no copy: what is between is computed already. A refused one
        stays as it is.
        """
        before = [*around, *nodes]
        y, sources = node.attrs["y"], (*node.attrs["xs"], *(node.attrs.get("zs") or ()))
        self._check(node, y, sources, before)
        path, g = _path(before, sources, y), TypedBuilder(self.types, prefix=unused_name("grad/", self.taken))
        if any(map(_is_gradient, path)):
            return [*nodes, node], {}
        g.where = node.place
        if node.inputs != sources or not {id(n) for n in path} <= {id(n) for n in nodes}:
            copy = prefixed(Graph(sources, (y,), path), g.prefix + COPY)
            for name, value in zip(copy.inputs, node.inputs, strict=True):
                g.add(Node("Identity", (value,), (name,), name=name))
            for inner in copy.nodes:  # the inputs may have other sizes than the values whose place they take
                g.types.update(zip(inner.outputs, g.scope.node(inner), strict=True))
            sources, path, (y,) = copy.inputs, copy.nodes, copy.outputs
        wanted = {x: dx for x, dx in zip(sources, node.outputs, strict=False) if dx}
        try:
            derivatives = gradients(g, path, {y: ONES}, list(wanted))
        except UnsupportedModel as error:
            self.refused.append(error)
            return [*nodes, node], {}
        for x, dx in wanted.items():
            g.add(Node("Identity", (derivatives.get(x) or zeros_like(g, x),), (dx,), name=dx))
        self.types.update(g.types)
        self.taken.update(g.types)
        return _spliced(nodes, g.nodes()), g.constants()

    def _check(self, node: Node, y: str, sources: Sequence[str], before: Sequence[Node]) -> None:
        computed = {*sources, *(o for n in before for o in n.outputs)}
        unknown = [n for n in sources if n not in self.types] or [*{y} - computed]
        if unknown:
            raise InputError(
                f"it names {unknown[0]!r}, which nothing before it makes", where=node.place, hint="check the name"
            )
        if not differentiable(self.types[y]):
            raise InputError(f"{y!r} is {self.types[y]}", where=node.place, hint="only floats have gradients")


def _path(nodes: Sequence[Node], sources: Sequence[str], y: str) -> tuple[Node, ...]:
    """The nodes that `y` is computed by from `sources`, in their order."""
    needed, path = {y} - {*sources}, list[Node]()
    for node in reversed(nodes):
        if not needed.isdisjoint(node.outputs):
            needed.update(set(node.reads()) - {*sources})
            path.append(node)
    return tuple(path[::-1])


def _spliced(nodes: Sequence[Node], news: Sequence[Node]) -> list[Node]:
    """The nodes and the new ones behind them; of a node whose outputs new ones make (its twin, or the parts of its
    body), those take the place."""
    places = {o: i for i, n in enumerate(nodes) for o in n.outputs if o}
    instead: dict[int, list[Node]] = {}
    pending: list[Node] = []
    for node in news:
        pending.append(node)
        for i in {places[o] for o in node.outputs if o in places}:
            instead.setdefault(i, []).extend(pending)
            pending = []
    return [*(m for i, n in enumerate(nodes) for m in instead.get(i, [n])), *pending]
