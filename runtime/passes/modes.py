"""Training mode of a model and back: BatchNormalization updates running statistics, Dropout drops, and gradients go
straight through pairs of QuantizeLinear and DequantizeLinear."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ..ir.autodiff import unused_name
from ..ir.graph import Graph, Node, State
from .straight_through import straight_through


def statistics_of(node: Node) -> tuple[str, ...]:
    """The values that a node takes for its running mean and variance; none where it has no such thing."""
    return node.inputs[3:5] if (node.op, node.domain) == ("BatchNormalization", "") else ()


def training(graph: Graph, *, statistics: bool = True) -> Graph:
    """BatchNormalization by the statistics of the batch, its running ones becoming states; Dropout drops; pairs of
    QuantizeLinear and DequantizeLinear become one operator that has a gradient.

    With `statistics=False` batch normalisation stays as it is, by its running statistics; so does one whose statistics
    are computed from the inputs.
    """
    graph = straight_through(graph)
    nodes: list[Node] = []
    constants, states = dict(graph.initializers), list(graph.states)
    taken = {o for n in graph.nodes for o in n.outputs} | set(constants) | set(graph.inputs)

    for node in graph.nodes:
        if not node.domain and node.op == "BatchNormalization" and statistics and _constant(node, constants):
            node, kept = _by_batch(node, constants, taken)
            states += kept
        elif not node.domain and node.op == "Dropout":
            ratio = node.inputs[1] if len(node.inputs) > 1 and node.inputs[1] else ""
            if not ratio:
                ratio = unused_name(f"{node.outputs[0]}.ratio", taken)
                constants[ratio] = np.array(0.5, np.float32)
            on = unused_name(f"{node.outputs[0]}.on", taken)
            constants[on] = np.array(True)
            node = replace(node, inputs=(node.inputs[0], ratio, on))
        nodes.append(node)
    return graph.but(nodes=tuple(nodes), initializers=constants, states=tuple(states))


def _constant(node: Node, constants: Mapping[str, Any]) -> bool:
    return all(n in constants for n in statistics_of(node))


def _by_batch(node: Node, constants: dict[str, Any], taken: set[str]) -> tuple[Node, list[State]]:
    mean, var = node.inputs[3:5]
    outputs = [*node.outputs, *[""] * (3 - len(node.outputs))][:3]
    outputs = [o or unused_name(f"{n}.next", taken) for o, n in zip(outputs, (node.outputs[0], mean, var), strict=True)]
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
    defined = {o for n in nodes for o in n.outputs} | set(graph.initializers) | set(graph.inputs)
    states = tuple(s for s in graph.states if s.output in defined)
    return graph.but(nodes=nodes, states=states)
