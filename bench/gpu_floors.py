"""How fast a network can be on one H200, whoever runs it: the sum over its products of what bounds each, arithmetic or
the bytes that it must read and write. What lies between products is counted as computed with them.

The rates are those measured on one card, or (TF32, float32) taken from public figures; a row says which card it ran on.
"""

from __future__ import annotations

import math

from mezzo.ops import Tensor
from mezzo.runtime.ir.graph import Graph, Node
from mezzo.runtime.ir.infer import infer

BANDWIDTH = 4.3e12  # bytes a second, read and written
RATES = {"fp32": 60e12, "tf32": 400e12, "fp16": 790e12, "bf16": 790e12}  # operations a second
ITEM = {"fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2}


def floor_ms(graph: Graph, precision: str) -> float:
    """Milliseconds below which nothing can be.

    >>> from mezzo.models.workloads import WORKLOADS
    >>> round(floor_ms(WORKLOADS["resnet50"].build(64), "fp16"), 1)
    0.9
    """
    typed = infer(graph)
    return 1e3 * sum(_seconds(typed, node, precision) for node in typed.nodes)


def _seconds(graph: Graph, node: Node, precision: str) -> float:
    if node.op not in ("Conv", "Gemm", "MatMul"):
        return 0.0
    a, b = (graph.types[n] for n in node.inputs[:2])
    y = graph.types[node.outputs[0]]
    assert isinstance(a, Tensor) and isinstance(b, Tensor) and isinstance(y, Tensor)
    made = math.prod(y.sizes)
    depth = math.prod(b.sizes[1:]) if node.op == "Conv" else a.sizes[0 if node.attrs.get("transA") else -1]
    weighs = node.inputs[1] in graph.initializers
    # two activations are an attention's: its scores need not leave the chip
    moved = (math.prod(a.sizes) + math.prod(b.sizes) + made) * ITEM[precision] if weighs else 0
    return max(2 * made * depth / RATES[precision], moved / BANDWIDTH)
