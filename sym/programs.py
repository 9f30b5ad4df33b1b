"""Forward and backward graphs of an executor, whose bound arrays (parameters, gradients) are states of the graphs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..ops.core.broadcast import zeros_like
from ..ops.types import Array
from ..runtime.ir.autodiff import ONES, gradients, unused_name
from ..runtime.ir.graph import Graph, State
from ..runtime.ir.prune import prune
from ..runtime.ir.typed import TypedBuilder
from ..runtime.passes.modes import training
from .expression import Use, output_name
from .graphs import graph_of
from .symbol import Symbol
from .typed import Typed

GRADIENT = "@gradient"  # ends the names of gradients' states and of heads' gradients


@dataclass(frozen=True, slots=True)
class RunMode:
    """Mode of a run. `train`: batch statistics and dropout; `keep`: running statistics are updated; `gradients`: "" for
    none, "state" into the arrays of the executor, "output" as further outputs; `heads`: the gradients of the outputs
    are inputs, and losses are ignored."""

    train: bool = False
    keep: bool = True
    gradients: str = ""
    heads: bool = False


def program(
    symbol: Symbol,
    inferred: Typed,
    mode: RunMode,
    arrays: Mapping[str, Array],
    wanted: Mapping[str, str],
    devices: Mapping[str, str] | None = None,
    lie: Mapping[str, str] | None = None,
) -> Graph:
    """The graph of one way to run, whose states begin as `arrays`, by variable and by its `gradient_of`.

    `wanted` tells what becomes of each gradient: written, or added to what is there. `devices` are those of groups,
    and `lie` tells where states lie then.
    """
    losses = [] if mode.heads or not mode.gradients else losses_of(symbol)
    graph = graph_of(symbol.entries, inferred, losses, symbol.name, devices)
    graph = graph.but(inputs=(), initializers={**graph.initializers, **{n: arrays[n] for n in graph.inputs}})
    outputs = graph.outputs
    if mode.train:
        graph = training(graph)
        if not mode.keep:
            graph = graph.but(states=())
    if mode.gradients:
        graph = _with_gradients(graph, symbol, mode, [output_name(e) for e in losses], wanted)
    held = {s.input for s in graph.states}
    read = set(graph.reads())
    kept = tuple(State(n, n, n) for n in arrays if n in graph.initializers and n not in held and n in read)
    states = tuple(replace(s, device=(lie or {}).get(s.input, "")) for s in (*graph.states, *kept))
    graph = graph.but(states=states, outputs=(*outputs, *graph.outputs[len(outputs) :]))
    first = {s.input: arrays[s.input] for s in graph.states}
    return prune(graph.but(initializers={**graph.initializers, **first})).verify()


def gradient_of(name: str) -> str:
    """The name of the state that holds the gradient of a variable, and of the input that holds that of an output."""
    return f"{name}{GRADIENT}"


def losses_of(symbol: Symbol) -> list[tuple[Use, int]]:
    """The losses of the heads that have one."""
    return [m.loss for m, _ in symbol.entries if isinstance(m, Use) and m.loss is not None]  # type: ignore[misc]


def lossless(symbol: Symbol) -> list[str]:
    """The outputs that have no loss of their own."""
    return [output_name((m, i)) for m, i in symbol.entries if not (isinstance(m, Use) and m.loss is not None)]


def _with_gradients(
    graph: Graph, symbol: Symbol, mode: RunMode, losses: Sequence[str], wanted: Mapping[str, str]
) -> Graph:
    names = [n for n, request in wanted.items() if request != "null"]
    taken = set(graph.types) | set(graph.initializers)
    g = TypedBuilder(graph.types, prefix=unused_name("gradient/", taken))
    for name, array in graph.initializers.items():
        g.hold(name, array)
        if name in wanted or array.size > 16:  # arguments change from run to run
            g.types[name] = graph.types[name]
    inputs: tuple[str, ...] = ()
    seeds: dict[str, str] = dict.fromkeys(losses, ONES)
    if mode.heads:
        inputs = tuple(dict.fromkeys(map(gradient_of, graph.outputs)))
        for output in graph.outputs:
            g.types[gradient_of(output)] = graph.types[output]
            seeds[output] = gradient_of(output)
    else:
        seeds |= dict.fromkeys(lossless(symbol), ONES)
    grads = gradients(g, graph.nodes, seeds, names)
    states, outputs = list(graph.states), list(graph.outputs)
    for name in names:
        value = grads.get(name) or zeros_like(g, name)
        if mode.gradients == "output":
            outputs.append(g.Identity(value) if value in inputs or value in outputs else value)
            continue
        held = gradient_of(name)
        g.types[held] = graph.types[name]
        if wanted[name] == "add":
            value = g.Add(held, value)
        states.append(State(held, held, value))
    first = {s.input: np.zeros(0) for s in states if s.input not in graph.initializers}  # what they are is told later
    return graph.but(
        inputs=inputs,
        outputs=tuple(outputs),
        nodes=g.nodes(),
        initializers={**graph.initializers, **g.constants(), **first},
        types=g.types,
        states=tuple(states),
    )
