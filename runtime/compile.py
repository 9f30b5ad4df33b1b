"""Compile once with symbolic dims, specialise per input signature: both are functions from graph to data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..ops import Type
from ..ops.budget import Budget
from ..ops.errors import InputError
from ..ops.types import Array
from .graph import Graph, Node
from .infer import infer
from .kernels import Ask
from .lower import Options, lower
from .passes import rewrite, simplify
from .passes.batchnorm import BATCHNORM
from .passes.canonical import CANONICAL
from .passes.chains import fuse_chains
from .passes.expand import expand
from .passes.fold import fold
from .passes.fusions import FUSIONS
from .passes.gradient import write_gradients
from .passes.precision import narrowed
from .passes.prune import prune
from .passes.qdq import quantise
from .passes.rewrite import Rule
from .program import Program
from .shared import shared

# operators whose parts have better kernels than the whole
WRITTEN_OUT = {
    ("", "Attention"),
    *(("com.microsoft", op) for op in ("FusedMatMul", "FusedConv", "FusedGemm", "Gelu", "FastGelu", "BiasGelu",
                                       "QuickGelu", "SkipLayerNormalization", "Attention", "MultiHeadAttention")),
}  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Compiled:
    """A graph after all rewriting that needs no sizes; `outputs` are the public names of its outputs."""

    graph: Graph
    outputs: tuple[str, ...]
    options: Options
    budget: Budget


@dataclass(frozen=True, slots=True, eq=False)
class Bound:
    """A program for one input signature, the constants that it needs, and the graph that it was made from.

    `origin` tells whether the program was read as a variant of a file, or bound from the graph (and why).
    """

    program: Program
    constants: Mapping[str, Array] = field(repr=False)
    graph: Graph = field(repr=False)
    origin: str = "graph"


def compile_graph(
    graph: Graph,
    *,
    outputs: Sequence[str] | None = None,
    options: Options | None = None,
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
    pruned = prune(write_gradients(graph, limits).but(outputs=names))
    return Compiled(simplify(infer(pruned, budget=limits)), names, options or Options(), limits)


def specialise(compiled: Compiled, types: Mapping[str, Type]) -> Bound:
    """The program for these input types: dims and known values propagate, kernels are chosen, memory is planned."""
    graph = simplify(infer(compiled.graph, types, budget=compiled.budget))
    if compiled.options.fuse:
        graph = infer(prune(rewrite(graph, FUSIONS)), types, budget=compiled.budget)
    graph = _fused(graph, compiled, types) if compiled.options.onednn else prune(fold(graph, weights=True))
    program, packed = lower(graph, compiled.options, names=compiled.outputs)
    wanted = program.all_weights()
    constants = {n: shared(a, ()) for n, a in packed.items() if n in wanted}

    def collect(part: Graph) -> None:
        constants.update((n, a) for n, a in part.initializers.items() if n in wanted)
        for node in part.nodes:
            for body in node.bodies.values():
                collect(body)

    collect(graph)
    return Bound(program, constants, graph)


def _fused(graph: Graph, compiled: Compiled, types: Mapping[str, Type]) -> Graph:
    """Quantised operators, batch normalisation in weights, and chains of operators that one kernel computes."""
    options = compiled.options

    def takes(around: Graph, node: Node) -> str | None:
        known = [around.types[n] if n else None for n in node.inputs]
        constants = [n in around.initializers or n in graph.initializers for n in node.inputs]
        ask = Ask(node, known, [around.types[node.outputs[0]]], constants, options.target)
        choice, declined = options.device.choose(ask)
        return None if choice.implementation else "; ".join(reason for _, reason in declined)

    def settled(graph: Graph, rules: Sequence[Rule], rounds: int) -> Graph:
        for _ in range(rounds):
            before, graph = graph, prune(rewrite(graph, rules))
            if graph is before:
                break
            graph = infer(graph, types, budget=compiled.budget)
        return graph

    graph = prune(fold(quantise(graph, takes), weights=True))
    if any((n.domain, n.op) in WRITTEN_OUT for _, n in graph.walk()):
        written = expand(graph, lambda n: (n.domain, n.op) in WRITTEN_OUT, graph.types)
        graph = simplify(infer(written, types, budget=compiled.budget))  # what the parts make of sizes is known
    graph = settled(infer(graph, types, budget=compiled.budget), CANONICAL, 2)  # padding goes before its taps
    graph = settled(graph, BATCHNORM, 4)  # a scale, a shift, a normalisation, one after another
    if options.precision == "bf16":
        graph = infer(prune(narrowed(graph, takes)), types, budget=compiled.budget)
    return infer(prune(fuse_chains(graph, takes, options.extern or ())), types, budget=compiled.budget)
