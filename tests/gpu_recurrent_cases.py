"""Cases of the kernels for recurrent networks: what the standard forms of the networks come to."""

from __future__ import annotations

from typing import Any

import numpy as np

from mezzo.ops import OPS, Sample, Tensor
from mezzo.ops.types import f32
from mezzo.runtime.ir.infer import infer
from mezzo.runtime.ir.prune import prune
from mezzo.runtime.passes.expand import expand
from mezzo.runtime.passes.recurrences import recurrences

from .gpu_cases import Case
from .graphs import sample_graph


def recurrence(op: str, inputs: list[Any], **attrs: Any) -> Case:
    """The scan of a recurrent network (its first, if there are two), as it is listed for a GPU."""
    domain = "" if ("", op) in OPS else "mezzo"
    graph, _ = sample_graph(OPS[domain, op], Sample(inputs, attrs, len(OPS[domain, op].outputs)))
    whole = infer(expand(graph, lambda n: n.op == op, graph.types))
    made = recurrences(infer(prune(whole)), lambda g, n: True)
    node = next(n for n in made.nodes if n.op == "Recurrence")
    given = [made.initializers.get(n, made.types[n]) for n in node.inputs]
    rng, shared = np.random.default_rng(3), node.attrs["rows"] + len(node.attrs["after"])
    for i, t in enumerate(given[shared:], shared):
        if isinstance(t, Tensor):  # small weights: large ones make more of each rounding from step to step
            given[i] = rng.uniform(-0.2, 0.2, t.sizes).astype(np.float32)
    return Case("Recurrence", given, node.attrs, len(node.outputs))


def _network(gates: int, steps: int, batch: int, hidden: int, bias: bool = False) -> list[Any]:
    """Types of the inputs of a network that goes one way."""
    own = [f32(steps, batch, 3), f32(1, gates * hidden, 3), f32(1, gates * hidden, hidden)]
    return [*own, f32(1, 2 * gates * hidden)] if bias else own


_LENGTHS = np.array([5, 2, 0], np.int32)
_THREE = f32(3, 1, 2, 9)
_SAVED = [f32(2, 1, 9, 96), f32(2, 1, 9, 384), f32(2, 1, 9, 96), f32(2, 1, 9, 96)]
# few units in one launch, many in one for each phase of a step; odd sizes; sequences that end; peepholes
RECURRENCE = [
    recurrence("LSTM", _network(4, 3, 2, 7), hidden_size=7),
    recurrence("LSTM", _network(4, 2, 11, 97), hidden_size=97),
    recurrence(
        "LSTM",
        [*_network(4, 5, 3, 6), None, _LENGTHS, f32(1, 3, 6), f32(1, 3, 6), f32(1, 18)],
        hidden_size=6,
        direction="reverse",
        input_forget=1,
    ),
    recurrence("GRU", _network(3, 2, 3, 110, True), hidden_size=110, linear_before_reset=1, clip=1.0),
    recurrence("GRU", _network(3, 3, 5, 111), hidden_size=111),
    recurrence("RNN", _network(1, 4, 300, 3), hidden_size=3, activations=["Softsign"]),
    recurrence("GRUGrad", [*_network(3, 3, 2, 9), None, None, None, *[_THREE] * 5], hidden_size=9),
    recurrence("LSTMGrad", [*_network(4, 2, 9, 96), *[None] * 5, *_SAVED], hidden_size=96),
]
