"""Compilation with symbolic dims, and specialisation per input signature: both are functions from graph to data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from ...ops import Type
from ...ops.budget import Budget
from ...ops.dataclasses import dataclass, field
from ...ops.errors import InputError
from ..caches import Cache
from ..ir.graph import Graph
from ..ir.infer import infer
from ..ir.prune import prune
from ..memory.model_file import ModelFile, model_file
from ..passes import simplify
from ..passes.chains import Chains
from ..passes.gradient import write_gradients
from .executable import Executable, declined, executable_of
from .lower import Learned, Options
from .program import Port
from .rewriting import canonical, fused, simplified
from .template import Templates


@dataclass(frozen=True, slots=True, eq=False)
class Compiled:
    """A graph after all rewriting that needs no sizes; `outputs` are the public names of its outputs.

    `files` are those that its weights lie in. `chains`, `templates` and `learned` are what planning for one signature
    has found, with which it begins for the next: see `fuse_chains`, `Templates` and `lower`. `padded` belongs to
    buckets.py.
    """

    graph: Graph
    outputs: tuple[str, ...]
    options: Options
    budget: Budget
    files: tuple[ModelFile, ...] = ()
    chains: Chains = field(default_factory=Chains, repr=False)
    learned: Learned = field(default_factory=Learned, repr=False)
    padded: Cache[Any] = field(default_factory=lambda: Cache("results behind padded inputs", 64), repr=False)
    templates: Templates = field(init=False, repr=False)

    @property
    def ports(self) -> tuple[Port, ...]:
        """The outputs with their types, as far as these are known without sizes."""
        types = self.graph.types
        return tuple(Port(n, types[v]) for n, v in zip(self.outputs, self.graph.outputs, strict=True))

    def __post_init__(self) -> None:
        object.__setattr__(self, "templates", Templates(self.options, self.budget, self.chains))


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
    limits = Budget.of(budget)
    files = tuple({f for a in graph.initializers.values() if (f := model_file(a)) is not None})
    for file in files:  # folding reads it
        file.check()
    graph = prune(write_gradients(graph, limits).but(outputs=names))
    graph = simplify(infer(graph, budget=limits))
    graph = canonical(graph, limits) if options.onednn else graph
    for file in files:
        file.give_back()
    return Compiled(graph, names, options, limits, files)


def specialise(compiled: Compiled, types: Mapping[str, Type]) -> Executable:
    """The program for these input types: dims and known values propagate, kernels are chosen, memory is planned.

    It begins with what earlier signatures have found: a template of the rewritten graph, the chains that were fused,
    the order of execution that took least memory. Where a kernel declines such a chain for these sizes, all are looked
    for anew.
    """
    for file in compiled.files:
        file.check()
    templates, chains = compiled.templates, compiled.chains
    lowered = partial(executable_of, options=compiled.options, outputs=compiled.outputs, learned=compiled.learned)
    graph = templates.graph(compiled.graph, types)
    if graph is not None:
        executable = lowered(graph)
        if not declined(executable):
            return executable
        templates.drop("a kernel declined what it had taken for other sizes")
        chains.clear()
    options, budget = compiled.options, compiled.budget
    typed = simplified(infer(compiled.graph, types, budget=budget), options, budget)
    for file in compiled.files:
        file.give_back()
    known = bool(chains)
    executable = lowered(fused(typed, options, budget, chains))
    if known and declined(executable):
        chains.clear()
        executable = lowered(fused(typed, options, budget, chains))
    templates.planned(types, executable.graph)
    return executable
