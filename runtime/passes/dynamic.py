"""Fusion of dynamic quantisation: the six nodes that quantisers write for a product become one.

https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md#com.microsoft.DynamicQuantizeMatMul
"""

from __future__ import annotations

import numpy as np

from ...ops import DType, Tensor
from ..ir.graph import Node
from .rewrite import Leaf, Match, Pattern, Replacement, Rule


def _quantised(output: int) -> Pattern:
    return Pattern("DynamicQuantizeLinear", (Leaf("x"),), output=output)


def _product(m: Match) -> Node:
    return next(n for n in m.nodes if n.op == "MatMulInteger")


def _fits(m: Match) -> str | None:
    x, w, scale = m.tensor(m.values["x"]), m.tensor(m.values["w"]), m.constant(m.values["w_scale"])
    if x is None or x.dims is None or len(x.dims) < 2 or w is None or w.dims is None or len(w.dims) != 2:
        return "it is no product with a matrix"
    columns, zero = w.dims[1], _product(m).inputs[3:4]
    if scale is None or np.ndim(scale) > 1 or np.size(scale) not in (1, columns) or scale.dtype != np.float32:
        return "the scale of the weights is not one of columns"
    if zero and zero[0] and m.constant(zero[0]) is None:
        return "the zero point of the weights is not known"
    bias = m.tensor(m.values["bias"]) if "bias" in m.values else Tensor(DType.FLOAT, (columns,))
    return None if bias is not None and bias.dims == (columns,) else "what is added is no bias"


def _into_one(m: Match) -> Replacement:
    root, zero = m.root, (*_product(m).inputs[3:4], "")[0]
    inputs = [m.values["x"], m.values["w"], m.values["w_scale"], zero, m.values.get("bias", "")]
    while not inputs[-1]:
        inputs.pop()
    origin = tuple(dict.fromkeys(o for n in reversed(m.nodes) for o in (n.origin or (n.name,))))
    name, domain = "DynamicQuantizeMatMul", "com.microsoft"
    return Replacement({}, (Node(name, tuple(inputs), root.outputs, {}, domain, root.name, root.where, origin),))


_sums = Pattern("MatMulInteger", (_quantised(0), Leaf("w", constant=True), _quantised(2)), uses=1)
_real = Pattern("Cast", (_sums,), {"to": DType.FLOAT.onnx}, uses=1)
_factor = Pattern("Mul", (_quantised(1), Leaf("w_scale", constant=True)), commutes=True)
DYNAMIC: tuple[Rule, ...] = (
    Rule(
        "a product of an operand quantised as it comes, and a bias",
        Pattern(
            "Add", (Pattern("Mul", (_real, _factor), uses=1, commutes=True), Leaf("bias", constant=True)), commutes=True
        ),
        _fits,
        _into_one,
    ),
    Rule(
        "a product of an operand quantised as it comes",
        Pattern("Mul", (_real, _factor), commutes=True),
        _fits,
        _into_one,
    ),
)
