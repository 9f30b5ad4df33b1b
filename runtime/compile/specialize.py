"""Compilation with symbolic dims, and specialisation per input signature: both are functions from graph to data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ...ops import Type
from ...ops.budget import Budget
from ...ops.dataclasses import dataclass, field
from ...ops.errors import InputError
from ..ir.graph import Graph, Node
from ..ir.infer import infer
from ..ir.prune import prune
from ..passes import TYPED, rewrite, simplify
from ..passes.attention import attended
from ..passes.batchnorm import BATCHNORM
from ..passes.canonical import CANONICAL
from ..passes.chains import Chains, fuse_chains
from ..passes.expand import expand, in_served_parts
from ..passes.fold import fold
from ..passes.fusions import FUSIONS
from ..passes.gradient import write_gradients
from ..passes.parts import wanted_parts
from ..passes.precision import NARROW, narrowed
from ..passes.qdq import quantise
from ..passes.recurrences import recurrences
from .executable import Executable
from .kernel import KernelRequest
from .lower import Learned, Options, lower


@dataclass(frozen=True, slots=True, eq=False)
class Compiled:
    """A graph after all rewriting that needs no sizes; `outputs` are the public names of its outputs.

    `chains` and `learned` are what planning for one signature has found, with which it begins for the next: see
    `fuse_chains` and `lower`.
    """

    graph: Graph
    outputs: tuple[str, ...]
    options: Options
    budget: Budget
    chains: Chains = field(default_factory=Chains, repr=False)
    learned: Learned = field(default_factory=Learned, repr=False)


def compile_graph(
    graph: Graph,
    *,
    options: Options,
    outputs: Sequence[str] | None = None,
    budget: Budget | None = None,
) -> Compiled:
    """Prepare a graph for specialisation: prune to the asked outputs, infer, simplify.

    Raises InputError for an output that the graph does not have, ShapeError or BudgetError from inference.
    """
    names = tuple(graph.outputs if outputs is None else outputs)
    unknown = [n for n in names if n not in graph.outputs]
    if unknown:
        raise InputError(
            f"there is no output {unknown[0]!r}", where=graph.name, hint=f"the outputs are {', '.join(graph.outputs)}"
        )
    limits = budget or Budget()
    graph = prune(write_gradients(graph, limits).but(outputs=names))
    graph = simplify(infer(graph, budget=limits))
    return Compiled(_canonical(graph, limits) if options.onednn else graph, names, options, limits)


def specialise(compiled: Compiled, types: Mapping[str, Type]) -> Executable:
    """The program for these input types: dims and known values propagate, kernels are chosen, memory is planned.

    It begins with what earlier signatures have found: the chains that were fused, the order of execution that took
    least memory. Where a kernel declines such a chain for these sizes, all are looked for anew.
    """
    typed = infer(compiled.graph, types, budget=compiled.budget)
    graph = simplify(typed, TYPED, rounds=1)
    if graph is not typed:
        graph = simplify(graph)
    if compiled.options.fuse:
        graph = _retyped(graph, rewrite(graph, FUSIONS), compiled.budget)
    if not compiled.options.onednn:
        return _bound(prune(fold(graph, weights=True)), compiled)
    known = bool(compiled.chains)
    bound = _bound(_fused(graph, compiled), compiled)
    if known and any(s.node.op == "Fused" and not s.choice.implementation for s in bound.program.all_steps()):
        compiled.chains.clear()
        bound = _bound(_fused(graph, compiled), compiled)
    return bound


def _bound(graph: Graph, compiled: Compiled) -> Executable:
    program, packed = lower(graph, compiled.options, names=compiled.outputs, learned=compiled.learned)
    wanted = program.all_weights()
    constants = {n: a for n, a in packed.items() if n in wanted}

    def collect(part: Graph) -> None:
        for n, a in part.initializers.items():
            if n in wanted:  # kernels read its elements side by side; those of a broadcast one may be at one place
                constants[n] = a if a.flags.c_contiguous else np.ascontiguousarray(a)
        for node in part.nodes:
            for body in node.bodies.values():
                collect(body)

    collect(graph)
    return Executable(program, constants, graph)


def _retyped(before: Graph, after: Graph, budget: Budget) -> Graph:
    """Return a rewritten graph, pruned, with types for its new values."""
    return before if after is before else infer(prune(after), budget=budget, rewritten=True)


def _canonical(graph: Graph, budget: Budget) -> Graph:
    """One form for what exporters write in several, batch normalisation in weights."""
    for rules, rounds in ((CANONICAL, 2), (BATCHNORM, 4)):  # padding goes before its taps; one scale after another
        for _ in range(rounds):
            before, graph = graph, _retyped(graph, rewrite(graph, rules), budget)
            if graph is before:
                break
    return graph


def _fused(graph: Graph, compiled: Compiled) -> Graph:
    """Quantised operators, operators that are written out, and chains of operators that one kernel computes."""
    options, budget = compiled.options, compiled.budget

    def takes(around: Graph, node: Node) -> str | None:
        known = [around.types[n] if n else None for n in node.inputs]
        constants = [n in around.initializers or n in graph.initializers for n in node.inputs]
        results = [around.types[n] for n in node.outputs if n]
        request = KernelRequest(node, known, results, constants, options.spec, trial=True)
        choice, declined = options.target.choose(request)
        return None if choice.implementation else "; ".join(reason for _, reason in declined)

    def in_parts(node: Node) -> bool:
        written_out = node.record.written_out
        return written_out and not (options.target.sm and takes(graph, node) is None)

    graph = _retyped(graph, fold(quantise(graph, takes), weights=True), budget)
    if any(in_parts(node) for _, node in graph.walk()):
        written = expand(graph, in_parts, graph.types)
        graph = simplify(_retyped(graph, written, budget))  # what the parts make of sizes is known
    if options.target.sm:

        def elsewhere(around: Graph, node: Node) -> bool:
            """Return True if a node runs on the host as a whole."""
            known = [around.types[n] if n else None for n in node.inputs]
            results = [around.types[n] for n in node.outputs if n]
            constants = [n in around.initializers or n in graph.initializers for n in node.inputs]
            request = KernelRequest(node, known, results, constants, options.spec, trial=True)
            return not options.target.choose(request)[0].capturable

        def listed(around: Graph) -> Graph:
            parted = _retyped(around, wanted_parts(around), budget)
            return _retyped(parted, recurrences(parted, lambda g, node: not elsewhere(g, node)), budget)

        def settled(before: Graph, after: Graph) -> Graph:
            return listed(simplify(_retyped(before, after, budget)))

        graph = in_served_parts(listed(graph), elsewhere, settled)
    graph = _canonical(graph, budget)
    if options.precision in NARROW:
        graph = _retyped(graph, narrowed(graph, takes, NARROW[options.precision]), budget)
    if options.target.sm:
        graph = _retyped(graph, attended(graph, takes), budget)
    return fuse_chains(graph, takes, options.extern or (), chains=compiled.chains)
