"""A model in training mode and back: BatchNormalization keeps running statistics, Dropout drops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from ..ops import DType
from ..ops.errors import InputError
from ..runtime.autodiff import fresh
from ..runtime.graph import Graph, Node, State

# Operators and which of their inputs are weights; constants elsewhere are part of the arithmetic, and stay.
WEIGHTS: dict[str, tuple[int, ...]] = {
    "Conv": (1, 2), "ConvTranspose": (1, 2), "DeformConv": (1, 3), "Gemm": (0, 1, 2), "MatMul": (0, 1), "Add": (0, 1),
    "Mul": (0, 1), "Sub": (0, 1), "BatchNormalization": (1, 2), "InstanceNormalization": (1, 2),
    "LayerNormalization": (1, 2), "GroupNormalization": (1, 2), "RMSNormalization": (1,), "PRelu": (1,),
    "LSTM": (1, 2, 3, 7), "GRU": (1, 2, 3), "RNN": (1, 2, 3), "Gather": (0,), "Einsum": (0, 1, 2, 3),
    "CausalConvWithState": (1, 2),
}  # fmt: skip
ARITHMETIC = {"Add", "Mul", "Sub"}  # where a single number is a factor, and no weight
# The same weight in another form.
THROUGH = {"Transpose", "Reshape", "Identity", "Cast", "Unsqueeze", "Squeeze"}


def weights(graph: Graph) -> list[str]:
    """The initialisers that a model learns: floating tensors of rank 1 and more where operators have weights."""
    found: dict[str, None] = {}
    source: dict[str, str] = {}
    for _, node in graph.walk():
        if node.op in THROUGH and not node.domain and node.inputs[0]:
            source[node.outputs[0]] = source.get(node.inputs[0], node.inputs[0])
        for i in WEIGHTS.get(node.op, ()) if not node.domain else ():
            if i < len(node.inputs):
                name = source.get(node.inputs[i], node.inputs[i])
                array = graph.initializers.get(name)
                if array is None or not array.ndim or name in graph.inputs or not DType.of(array.dtype).floating:
                    continue
                if array.size > 1 or node.op not in ARITHMETIC:
                    found[name] = None
    return list(found)


def hoisted(graph: Graph) -> Graph:
    """The graph whose floating Constant nodes are initialisers: exporters write weights as either."""
    found = {
        n.outputs[0]: n.attrs["value"]
        for n in graph.nodes
        if (n.op, n.domain) == ("Constant", "") and isinstance(n.attrs.get("value"), np.ndarray)
    }
    found = {n: a for n, a in found.items() if DType.of(a.dtype).floating}
    nodes = tuple(n for n in graph.nodes if found.keys().isdisjoint(n.outputs))
    return graph.but(nodes=nodes, initializers={**graph.initializers, **found}) if found else graph


def chosen(graph: Graph, train: Sequence[str] | None, freeze: Sequence[str]) -> list[str]:
    """The weights to learn: all, or those that match a pattern of `train`, without those that match one of `freeze`.

    Raises InputError for a pattern that matches nothing.
    """
    every = weights(graph)
    floats = [n for n, a in graph.initializers.items() if DType.of(a.dtype).floating]
    for pattern in (*(train or ()), *freeze):
        if not any(fnmatchcase(n, pattern) for n in floats):
            shown = ", ".join(every[:8]) + (", ..." if len(every) > 8 else "")
            raise InputError(f"no weight matches {pattern!r}", where=graph.name, hint=f"the weights are {shown}")
    first = every if train is None else [n for n in floats if any(fnmatchcase(n, p) for p in train)]
    return [n for n in first if not any(fnmatchcase(n, p) for p in freeze)]


def training(graph: Graph, *, statistics: bool = True) -> Graph:
    """BatchNormalization by the statistics of the batch, its running ones becoming states; Dropout drops.

    With `statistics=False` batch normalisation stays as it is, by its running statistics.
    """
    nodes: list[Node] = []
    constants, states = dict(graph.initializers), list(graph.states)
    taken = {o for n in graph.nodes for o in n.outputs} | set(constants) | set(graph.inputs)

    for node in graph.nodes:
        if not node.domain and node.op == "BatchNormalization" and statistics:
            node, kept = _by_batch(node, constants, taken)
            states += [s for s in kept if all(s.input != t.input for t in states)]
        elif not node.domain and node.op == "Dropout":
            ratio = node.inputs[1] if len(node.inputs) > 1 and node.inputs[1] else ""
            if not ratio:
                ratio = fresh(f"{node.outputs[0]}.ratio", taken)
                constants[ratio] = np.float32(0.5)
            on = fresh(f"{node.outputs[0]}.on", taken)
            constants[on] = np.array(True)
            node = replace(node, inputs=(node.inputs[0], ratio, on))
        nodes.append(node)
    return graph.but(nodes=tuple(nodes), initializers=constants, states=tuple(states))


def _by_batch(node: Node, constants: dict[str, Any], taken: set[str]) -> tuple[Node, list[State]]:
    mean, var = node.inputs[3:5]
    if mean not in constants or var not in constants:
        raise InputError("running statistics that are no constants", where=node.place, hint="use statistics=False")
    outputs = [*node.outputs, *[""] * (3 - len(node.outputs))][:3]
    outputs = [o or fresh(f"{n}.next", taken) for o, n in zip(outputs, (node.outputs[0], mean, var), strict=True)]
    after = replace(node, outputs=tuple(outputs), attrs={**node.attrs, "training_mode": 1})
    return after, [State(mean, mean, outputs[1]), State(var, var, outputs[2])]


def inference(graph: Graph) -> Graph:
    """BatchNormalization by its running statistics, and Dropout without effect; states of the former are constants."""

    def plain(node: Node) -> Node:
        if not node.domain and node.op == "BatchNormalization":
            return replace(node, outputs=node.outputs[:1], attrs={**node.attrs, "training_mode": 0})
        if not node.domain and node.op == "Dropout":
            return replace(node, inputs=node.inputs[:2])
        return node

    nodes = tuple(map(plain, graph.nodes))
    made = {o for n in nodes for o in n.outputs} | set(graph.initializers) | set(graph.inputs)
    states = tuple(s for s in graph.states if s.output in made)
    return graph.but(nodes=nodes, states=states)
