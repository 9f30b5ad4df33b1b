"""The passes over a typed graph, in their order: what comes out is lowered as it is."""

from __future__ import annotations

from collections.abc import Callable, Container

from ...ops import Type
from ...ops.budget import Budget
from ..ir.graph import Graph, Node
from ..ir.infer import infer
from ..ir.prune import prune
from ..passes import TYPED, rewrite, simplify
from ..passes.attention import attended
from ..passes.batchnorm import BATCHNORM
from ..passes.byte_sums import in_floats
from ..passes.canonical import CANONICAL
from ..passes.chains import Chains, fuse_chains
from ..passes.expand import expand, in_served_parts
from ..passes.fold import fold
from ..passes.fusions import FUSIONS
from ..passes.parts import wanted_parts
from ..passes.precision import NARROW, narrowed
from ..passes.qdq import quantise
from ..passes.recurrences import recurrences
from .kernel import KernelRequest
from .lower import Options


def _itself(type: Type) -> Type:
    return type


def canonical(graph: Graph, budget: Budget) -> Graph:
    """One form for what exporters write in several, batch normalisation in weights."""
    for rules, rounds in ((CANONICAL, 2), (BATCHNORM, 4)):  # padding goes before its taps; one scale after another
        for _ in range(rounds):
            before, graph = graph, _retyped(graph, rewrite(graph, rules), budget)
            if graph is before:
                break
    return graph


def simplified(typed: Graph, options: Options, budget: Budget) -> Graph:
    """The graph without what its types make superfluous."""
    graph = simplify(typed, TYPED, rounds=1)
    if graph is not typed:
        graph = simplify(graph)
    if options.fuse:
        graph = _retyped(graph, rewrite(graph, FUSIONS), budget)
    return graph


def fused(
    graph: Graph,
    options: Options,
    budget: Budget,
    chains: Chains,
    *,
    planned: Callable[[Type], Type] = _itself,
    constants: Container[str] = (),
) -> Graph:
    """Quantised operators, operators that are written out, and chains of operators that one kernel computes.

    `chains` are those of other sizes (see `fuse_chains`). Kernels are asked with the types that `planned` makes, and
    told that the inputs `constants` are constant.
    """
    if not options.onednn:
        return prune(fold(graph, weights=True))

    def request(around: Graph, node: Node) -> KernelRequest:
        known = [planned(around.types[n]) if n else None for n in node.inputs]
        fixed = [n in around.initializers or n in graph.initializers or n in constants for n in node.inputs]
        results = [planned(around.types[n]) for n in node.outputs if n]
        return KernelRequest(node, known, results, fixed, options.spec, trial=True)

    def takes(around: Graph, node: Node) -> str | None:
        choice, declined = options.target.choose(request(around, node))
        return None if choice.implementation else "; ".join(reason for _, reason in declined)

    def in_parts(node: Node) -> bool:
        written_out = node.record.written_out
        return written_out and not (options.target.sm and takes(graph, node) is None)

    graph = _retyped(graph, fold(quantise(graph, takes), weights=True), budget)
    if not options.target.sm:
        graph = _retyped(graph, in_floats(graph, takes), budget)
    if any(in_parts(node) for _, node in graph.walk()):
        written = expand(graph, in_parts, graph.types, older=True)
        graph = simplify(_retyped(graph, written, budget))  # what the parts make of sizes is known
    if options.target.sm:

        def elsewhere(around: Graph, node: Node) -> bool:
            """Return True if a node runs on the host as a whole."""
            return not options.target.choose(request(around, node))[0].capturable

        def listed(around: Graph) -> Graph:
            parted = _retyped(around, wanted_parts(around), budget)
            return _retyped(parted, recurrences(parted, lambda g, node: not elsewhere(g, node)), budget)

        def settled(before: Graph, after: Graph) -> Graph:
            return listed(simplify(_retyped(before, after, budget)))

        graph = in_served_parts(listed(graph), elsewhere, settled)
    graph = canonical(graph, budget)
    if options.precision in NARROW:
        graph = _retyped(graph, narrowed(graph, takes, NARROW[options.precision]), budget)
    if options.target.sm:
        graph = _retyped(graph, attended(graph, takes), budget)
    return fuse_chains(graph, takes, options.extern or (), chains=chains)


def _retyped(before: Graph, after: Graph, budget: Budget) -> Graph:
    """Return a rewritten graph, pruned, with types for its new values."""
    return before if after is before else infer(prune(after), budget=budget, rewritten=True)
