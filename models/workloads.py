"""The networks of benchmarks and tests, defined once: how to build and feed each.

Sizes are those of the real networks and weights are random with a fixed seed, scaled so that what flows through has
the range that trained networks have: a comparison of precisions then says something.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np

from ..ops.types import Array, f32
from ..runtime.ir.graph import Graph, GraphBuilder
from .bert import bert
from .convnets import Weights, mlp, mobilenetv2, no_weights, random_weights, resnet50

LENGTH, FEATURES, HIDDEN = 64, 128, 256  # of recurrent layers


def lstm(
    batch: int | str = 1,
    weights: Weights = no_weights,
    *,
    length: int = LENGTH,
    features: int = FEATURES,
    hidden: int = HIDDEN,
) -> Graph:
    """One LSTM layer: `x` float32 [length, batch, features] to all hidden states and the last one."""
    g = GraphBuilder("lstm")
    return g.graph(recurrent(g, "LSTM", g.input("x", f32(length, batch, features)), weights, features, hidden))


# What a recurrent layer has for each hidden unit, and the attributes that make it the one other frameworks have.
GATES: Mapping[str, tuple[int, Mapping[str, Any]]] = {"LSTM": (4, {}), "GRU": (3, {"linear_before_reset": 1})}


def recurrent(g: GraphBuilder, op: str, x: str, weights: Weights, features: int, hidden: int) -> tuple[str, str]:
    """A recurrent layer: all hidden states and the last one."""
    count, attrs = GATES[op]
    gates = [g.const(weights((count * hidden, columns))[None]) for columns in (features, hidden)]
    bias = g.const(np.float32(0.1) * weights((2 * count * hidden,))[None])
    states, last = g.op(op, x, *gates, bias, outputs=2, hidden_size=hidden, **attrs)
    return states, last


@dataclass(frozen=True, slots=True)
class Workload:
    """A network: `builder(batch, weights, **sizes)`, `feeder(rng, batch, **sizes)`; `small` are sizes for tests."""

    builder: Callable[..., Graph]
    feeder: Callable[..., dict[str, Array]]
    small: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))

    def build(self, batch: int | str = 1, weights: Weights | None = None, *, small: bool = False) -> Graph:
        """The graph, with random weights of a fixed seed if none are given."""
        return self.builder(batch, weights or random_weights(), **(self.small if small else {}))

    def feeds(self, batch: int = 1, *, seed: int = 1, small: bool = False) -> dict[str, Array]:
        """Inputs of a fixed seed."""
        return self.feeder(np.random.default_rng(seed), batch, **(self.small if small else {}))


def pictures(rng: np.random.Generator, batch: int, *, side: int = 224, **_: int) -> dict[str, Array]:
    return {"data": rng.standard_normal((batch, 3, side, side), np.float32)}


def digits(rng: np.random.Generator, batch: int, **_: int) -> dict[str, Array]:
    return {"data": rng.random((batch, 784), np.float32)}


def sentences(
    rng: np.random.Generator, batch: int, *, length: int = 128, vocabulary: int = 30522, **_: int
) -> dict[str, Array]:
    """Two sentences each, padded: the mask leaves out the last fifth."""
    ids = rng.integers(0, vocabulary, (batch, length))
    kinds, mask = np.zeros_like(ids), np.ones_like(ids)
    kinds[:, length // 2 :] = 1
    mask[:, length - length // 5 :] = 0
    return {"input_ids": ids, "token_type_ids": kinds, "attention_mask": mask}


def series(
    rng: np.random.Generator, batch: int, *, length: int = LENGTH, features: int = FEATURES, **_: int
) -> dict[str, Array]:
    return {"x": rng.standard_normal((length, batch, features), np.float32)}


WORKLOADS: Mapping[str, Workload] = MappingProxyType(
    {
        "mlp": Workload(mlp, digits),
        "mobilenetv2": Workload(mobilenetv2, pictures, MappingProxyType({"side": 64})),
        "resnet50": Workload(resnet50, pictures, MappingProxyType({"side": 64})),
        "bert": Workload(
            bert, sentences, MappingProxyType({"layers": 2, "width": 64, "heads": 4, "length": 16, "vocabulary": 100})
        ),
        "lstm": Workload(lstm, series, MappingProxyType({"length": 5, "features": 12, "hidden": 16})),
    }
)
