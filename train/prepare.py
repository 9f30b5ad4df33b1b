"""Preparation of exported models for training: every weight becomes an initializer of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..importers import load_graph
from ..ops import DType
from ..ops.errors import InputError
from ..ops.types import Array
from ..runtime.ir.autodiff import unused_name
from ..runtime.ir.graph import PRODUCER, SIGNATURE, Graph, Node
from ..runtime.ir.infer import infer
from ..runtime.ir.interpreter import evaluate
from ..runtime.ir.prune import prune
from ..runtime.optimizer.record import matches
from ..runtime.passes.modes import statistics_of
from ..runtime.passes.place import TensorParallel, placed
from .integers import with_float_weights


def prepared(graph: Graph, asked: Sequence[str] = ()) -> Graph:
    """The graph in which every weight is an initialiser of its own.

    Exporters write weights as initialisers or as Constant nodes: where most of a file's floats are Constant nodes,
    these become initialisers, and so do those that match a pattern of `asked`; else they are part of the program. The
    older exporter of PyTorch writes weights that happen to be equal once, and reads the others through Identity: each
    gets its own array again (what is tied in the module is one weight there without). Statistics of batch normalisation
    become initialisers that nothing else reads, if they are computed from constants or shared. Weights that are
    integers become floats, which are quantised on their way (see integers.py).
    """
    constants = _constants(graph)
    inside = sum(a.size for a in graph.initializers.values() if a.size > 1 and DType.of(a.dtype).floating)
    if sum(a.size for a in constants.values() if a.size > 1) > inside:
        graph = hoisted(graph)
    elif any(matches(n, *asked) for n in constants):
        graph = hoisted(graph, lambda name: matches(name, *asked))
    return with_float_weights(_own_statistics(_untied(_out_of_bodies(graph))))


def placed_source(model: Any, asked: Sequence[str], place: Any, **beside: object) -> Graph:
    """The typed graph of a training: prepared, and with its parts on several devices where `place` says so. Raises
    InputError for options `beside` it that are for whole models, and what `placed` raises."""
    graph = infer(prepared(model if isinstance(model, Graph) else load_graph(model), asked))
    if place is None:
        return graph
    refuse_beside(beside)
    return graph if isinstance(place, TensorParallel) else placed(graph, place)


def refuse_beside(beside: Mapping[str, object]) -> None:
    """Raise InputError for options beside place= that are for whole models."""
    if wrong := [f"{name}=" for name, given in beside.items() if given]:
        raise InputError(f"place= beside {' and '.join(wrong)}", where="Trainer",
                         hint="a model whose parts are on several devices trains by itself, without them")  # fmt: skip


def listed(patterns: Sequence[str] | str | None) -> Sequence[str] | None:
    """Patterns as a list, of one too."""
    return [patterns] if isinstance(patterns, str) else patterns


def _constants(graph: Graph) -> dict[str, Array]:
    """The floats that Constant nodes make, by name."""
    constants = {
        n.outputs[0]: n.attrs["value"]
        for n in graph.nodes
        if (n.op, n.domain) == ("Constant", "") and isinstance(n.attrs.get("value"), np.ndarray)
    }
    return {n: a for n, a in constants.items() if DType.of(a.dtype).floating}


def hoisted(graph: Graph, chosen: Callable[[str], bool] = lambda name: True) -> Graph:
    """The graph whose floating Constant nodes, or the chosen ones, are initialisers."""
    constants = {n: a for n, a in _constants(graph).items() if chosen(n)}
    nodes = tuple(n for n in graph.nodes if constants.keys().isdisjoint(n.outputs))
    return graph.but(nodes=nodes, initializers={**graph.initializers, **constants}) if constants else graph


def _out_of_bodies(graph: Graph) -> Graph:
    """The graph whose bodies read their floating weights from outside: there they can be states."""
    constants: dict[str, Array] = {}

    def bare(body: Graph) -> Graph:
        own = {n: a for n, a in {**body.initializers, **_constants(body)}.items()
               if a.size > 1 and DType.of(a.dtype).floating and n not in body.outputs}  # fmt: skip
        constants.update(own)
        kept = tuple(outside(n) for n in body.nodes if own.keys().isdisjoint(n.outputs))
        return body.but(nodes=kept, initializers={n: a for n, a in body.initializers.items() if n not in own})

    def outside(node: Node) -> Node:
        bodies = {a: bare(b) for a, b in node.bodies.items()}
        return replace(node, attrs={**node.attrs, **bodies}) if bodies else node

    nodes = tuple(map(outside, graph.nodes))
    return graph.but(nodes=nodes, initializers={**graph.initializers, **constants}) if constants else graph


def _untied(graph: Graph) -> Graph:
    """The graph in which each weight that PyTorch's older exporter reads through Identity is one of its own."""
    if not graph.metadata.get(PRODUCER, "").startswith("pytorch") or graph.metadata.get(SIGNATURE):
        return graph
    uses = graph.uses()
    own = {
        n.outputs[0]: np.array(graph.initializers[n.inputs[0]])
        for n in graph.nodes
        if (n.op, n.domain) == ("Identity", "")
        and n.inputs[0] in graph.initializers
        and n.inputs[0] not in graph.inputs
        and uses[n.inputs[0]] > 1
        and n.outputs[0] not in graph.outputs
        and DType.of(graph.initializers[n.inputs[0]].dtype).floating
    }
    nodes = tuple(n for n in graph.nodes if own.keys().isdisjoint(n.outputs))
    return graph.but(nodes=nodes, initializers={**graph.initializers, **own}) if own else graph


def _own_statistics(graph: Graph) -> Graph:
    """The graph in which each running statistic is an initialiser that one node reads, where it is constant at all."""
    uses, computed = graph.uses(), dict[str, Array]()
    values = {v for n in graph.nodes for v in statistics_of(n)}
    inner = [v for v in values if v not in graph.initializers]
    if inner:
        alone = prune(graph.but(outputs=tuple(inner), states=()))
        fixed = [v for v in inner if not _reads_inputs(alone, v)]
        if fixed:
            constant = prune(alone.but(inputs=(), outputs=tuple(fixed), types={}))
            computed = {n: np.array(a) for n, a in evaluate(constant, {}).items()}
    taken = {o for n in graph.nodes for o in n.outputs} | {*graph.initializers, *graph.inputs}
    nodes, weights = list[Node](), dict(graph.initializers)
    for node in graph.nodes:
        inputs = list(node.inputs)
        for i, name in enumerate(statistics_of(node), 3):
            array = computed.get(name, graph.initializers.get(name))
            if array is not None and (name in computed or name in graph.inputs or uses[name] > 1):
                inputs[i] = unused_name(f"{node.outputs[0]}.{('mean', 'var')[i - 3]}", taken)
                weights[inputs[i]] = np.array(array)
        nodes.append(node if tuple(inputs) == node.inputs else replace(node, inputs=tuple(inputs)))
    return graph.but(nodes=tuple(nodes), initializers=weights) if len(weights) > len(graph.initializers) else graph


def _reads_inputs(graph: Graph, value: str) -> bool:
    """True if a value depends on an input of the graph."""
    needed = {value}
    for node in reversed(graph.nodes):
        if not needed.isdisjoint(node.outputs):
            needed.update(node.reads())
    return not needed.isdisjoint(graph.inputs)
