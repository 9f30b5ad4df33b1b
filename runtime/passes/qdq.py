"""Quantised operators: those between DequantizeLinear and QuantizeLinear become operators on integers.

A rule fits at a QuantizeLinear. What it puts there computes the same sums exactly and rounds once, as the nodes that it
replaces do in float32: results differ by at most one step, where a tie falls.

https://onnx.ai/onnx/operators/onnx__QuantizeLinear.html
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ...ops import DType, Op
from ...ops.core.rules import axis_of
from ...ops.quantization.quantize import int_range
from ...ops.types import Array, type_of
from ..ir.graph import Graph, Node
from .dynamic import DYNAMIC
from .rewrite import Leaf, Match, Pattern, Replacement, RewriteDeclined, Rule, rewrite

Takes = Callable[[Graph, Node], str | None]  # None if a kernel computes the node at once, else why not
MICROSOFT = "com.microsoft"
BYTES = (DType.UINT8, DType.INT8)
LARGEST_CONCAT = 8
FINEST = 1 / 16  # of a step of the result: how coarse a step of the sums may be if a bias is rounded to it


def _pattern(op: str | Callable[[Op], bool], operands: Sequence[Any], domain: str = "") -> tuple[Pattern, ...]:
    """The operator, quantised again: as it is, and with an activation in between."""
    inner = Pattern(op, tuple(operands), domain=domain, uses=1, name="float")
    activation = Pattern(("Relu", "Clip"), (inner,), uses=1)
    return (Pattern("QuantizeLinear", (inner,)), Pattern("QuantizeLinear", (activation,)))


def _dequantised(name: str, constant: bool = False) -> Pattern:
    return Pattern("DequantizeLinear", (Leaf(name, constant=constant), Leaf(f"{name}_scale", constant=True)))


class QuantSteps:
    """Quantisation of a DequantizeLinear or QuantizeLinear: scale, zero point, axis."""

    def __init__(self, m: Match, node: Node) -> None:
        self.node = node
        self.scale = m.constant(node.inputs[1])
        zero = node.inputs[2] if len(node.inputs) > 2 else ""
        self.zero = m.constant(zero) if zero else None
        self.known = self.scale is not None and (not zero or self.zero is not None)
        quantised = m.tensor(node.outputs[0] if node.op == "QuantizeLinear" else node.inputs[0])
        self.type = quantised
        self.axis = node.attrs.get("axis", 1)
        self.block = node.attrs.get("block_size", 0)

    @property
    def scales(self) -> Array:
        return np.asarray(self.scale, np.float32).reshape(-1)

    @property
    def zeros(self) -> Array:
        dtype = self.type.dtype.numpy if self.type else np.uint8
        return np.zeros(1, dtype) if self.zero is None else np.asarray(self.zero).reshape(-1)

    def fault(self, what: str, *, columns: bool = False) -> str | None:
        """Why these steps are none of the operators', if so; `columns` allows a scale for each entry of an axis."""
        if not self.known or np.asarray(self.scale).dtype != np.float32:
            return f"the scale or zero point of {what} is no constant of float32"
        if self.type is None or self.type.dtype not in BYTES:
            return f"{what} has not 8 bits"
        if self.block or np.asarray(self.scale).ndim > 1:
            return f"{what} is quantised by block"
        if not columns and (self.scales.size != 1 or self.zeros.size != 1):
            return f"{what} is quantised by axis"
        if not (np.isfinite(self.scales).all() and (self.scales > 0).all()):
            return f"the scale of {what} is not positive"
        return None

    def same(self, other: QuantSteps) -> bool:
        """True if both have the same element type, scales and zero points."""
        a, b = self.type, other.type
        return (
            a is not None and b is not None and a.dtype is b.dtype
            and np.array_equal(self.scales, other.scales) and np.array_equal(self.zeros, other.zeros)
        )  # fmt: skip

    def of(self, value: float) -> float:
        """The step that a number falls on, not yet saturated."""
        return float(np.rint(np.float32(value) / self.scales[0])) + float(self.zeros[0])


def _inner(m: Match) -> Node:
    """The operator between: the last node behind the root that is no activation."""
    return next(n for n in m.nodes[1:] if m.values["float"] in n.outputs)


def _activation(m: Match) -> str | None:
    """None if the activation, where there is one, changes nothing that saturation does not."""
    activation = m.nodes[1]
    if activation.op not in ("Relu", "Clip") or m.values["float"] in activation.outputs:
        return None
    steps = QuantSteps(m, m.root)
    assert steps.type is not None
    low, high = int_range(steps.type.dtype)
    least, most = 0.0, np.inf
    if activation.op == "Clip":
        bounds = [m.constant(i) if i else np.float32(d) for i, d in zip(
            (*activation.inputs[1:], "", "")[:2], (-np.inf, np.inf), strict=True)]  # fmt: skip
        if any(b is None for b in bounds):
            return "a bound of Clip is not known"
        least, most = (float(np.asarray(b).reshape(())) for b in bounds)
    if steps.of(least) > low or (np.isfinite(most) and steps.of(most) < high):
        return f"{activation.op} cuts off steps that the result has"
    return None


def _product(m: Match) -> str | None:
    """A product or convolution of two dequantised operands."""
    inner, result = _inner(m), QuantSteps(m, m.root)
    left, right = (QuantSteps(m, _maker(m, inner.inputs[i])) for i in (0, 1))
    why = result.fault("the result") or left.fault("the input") or right.fault("the weights", columns=True)
    if why is not None:
        return why
    if inner.op == "Gemm" and inner.attrs.get("beta", 1.0) != 1 and len(inner.inputs) > 2:
        return "beta scales the third operand"
    why = _axis(m, inner, right) or _activation(m)
    if why is None and len(inner.inputs) > 2 and inner.inputs[2]:
        why = _bias(m, inner, _unit(m, inner))[1]
    return why


def _axis(m: Match, inner: Node, right: QuantSteps) -> str | None:
    """Scales of weights have to go with filters or columns."""
    if right.type is None or right.type.dims is None:
        return "the rank of the weights is not known"
    rank = len(right.type.dims)
    if right.scales.size == 1:
        return None if np.unique(right.zeros).size == 1 else "weights have several zero points"
    wanted = 0 if inner.record.kind == "convolution" or inner.attrs.get("transB", 0) else rank - 1
    if (axis_of(right.axis, rank) if rank > 1 else 0) != wanted or (inner.op == "MatMul" and rank != 2):
        return f"weights are quantised along axis {right.axis}"
    return None


def _unit(m: Match, inner: Node) -> Array:
    """Return the real value of one unit of the accumulator, for each filter or column."""
    left, right = (QuantSteps(m, _maker(m, inner.inputs[i])) for i in (0, 1))
    return np.float32(inner.attrs.get("alpha", 1.0)) * left.scales * right.scales


def _maker(m: Match, value: str) -> Node:
    return next(n for n in m.nodes if value in n.outputs)


def _bias(m: Match, inner: Node, unit: Array) -> tuple[Array, str | None]:
    """The bias in units of the sums, or why it cannot be counted so."""
    known = m.constant(inner.inputs[2])
    if known is None:
        return np.zeros(0), "the bias is not known"
    real = np.asarray(known, np.float64)
    if inner.op == "Gemm" and (real.ndim > 2 or (real.ndim == 2 and real.shape[0] != 1)):
        return real, "the bias differs from row to row"
    counted = real.reshape(-1) / unit.astype(np.float64)
    rounded = np.rint(counted)
    if not np.isfinite(rounded).all() or np.abs(rounded).max(initial=0) >= 2**31:
        return real, "the bias does not fit into 32 bits"
    inexact = np.abs(counted - rounded) > 1e-3
    if (inexact & (unit / QuantSteps(m, m.root).scales > FINEST)).any():
        return real, "the bias would be rounded too coarsely"
    return rounded.astype(np.int32), None


class _NodeBuilder:
    """Constants for a new node."""

    def __init__(self, m: Match) -> None:
        self.m, self.constants = m, dict[str, Array]()

    def const(self, what: str, value: Array) -> str:
        name = f"{self.m.root.outputs[0]}:{what}"
        self.constants[name] = np.asarray(value)
        return name

    def steps(self, what: str, steps: QuantSteps) -> tuple[str, str]:
        """Names of a scale and a zero point; numbers alone where there is one entry."""
        scale, zero = steps.scales, steps.zeros
        if scale.size == 1:
            scale, zero = scale.reshape(()), zero[:1].reshape(())
        elif zero.size == 1:
            zero = np.broadcast_to(zero, scale.shape).copy()
        return self.const(f"{what}_scale", scale), self.const(f"{what}_zero", zero)

    def node(self, op: str, inputs: Sequence[str], attrs: Any, domain: str = "") -> Replacement:
        root = self.m.root
        origin = tuple(dict.fromkeys(o for n in reversed(self.m.nodes) for o in (n.origin or (n.name,))))
        node = Node(op, tuple(inputs), root.outputs, attrs, domain, root.name, root.where, origin)
        return Replacement({}, (node,), self.constants)

    def quantized(self, inputs: Sequence[str], attrs: Any) -> Replacement:
        """The operator between, in its form for quantised operands."""
        domain, _, op = _inner(self.m).record.quantized.rpartition("::")
        return self.node(op, inputs, attrs, domain)


def _into_product(m: Match) -> Replacement:
    inner, builder = _inner(m), _NodeBuilder(m)
    left, right = (_maker(m, inner.inputs[i]) for i in (0, 1))
    a, b = (builder.steps(name, QuantSteps(m, n)) for name, n in (("left", left), ("right", right)))
    y = builder.steps("result", QuantSteps(m, m.root))
    c: tuple[str, ...] = ()
    if len(inner.inputs) > 2 and inner.inputs[2]:
        counted = _bias(m, inner, _unit(m, inner))[0]
        c = (builder.const("bias", counted),)
    first = (left.inputs[0], *a, right.inputs[0], *b)
    if inner.op == "Gemm":
        kept = {n: v for n, v in inner.attrs.items() if n in ("alpha", "transA", "transB")}
        return builder.quantized((*first, *(c or ("",)), *y), kept)
    return builder.quantized((*first, *y, *c), inner.attrs)


def _pointwise(m: Match) -> str | None:
    inner, result = _inner(m), QuantSteps(m, m.root)
    sides = [QuantSteps(m, _maker(m, i)) for i in inner.inputs]
    for side in (result, *sides):
        why = side.fault("an operand or the result")
        if why is not None:
            return why
    if any(side.type.dtype is not result.type.dtype for side in sides if side.type and result.type):
        return "operands and result differ in type"
    if inner.op == "AveragePool" and any(d != 1 for d in inner.attrs.get("dilations", ())):
        return "the windows are dilated"
    return _activation(m)


def _into_pointwise(m: Match) -> Replacement:
    inner, builder = _inner(m), _NodeBuilder(m)
    y = builder.steps("result", QuantSteps(m, m.root))
    sides: list[str] = []
    for i, value in enumerate(inner.inputs):
        maker = _maker(m, value)
        sides += [maker.inputs[0], *builder.steps(f"operand{i}", QuantSteps(m, maker))]
    attrs = {n: v for n, v in inner.attrs.items() if n != "dilations"}
    operands = (*y, *sides) if inner.op == "Concat" else (*sides, *y)
    return builder.quantized(operands, attrs)


def _moved(m: Match) -> str | None:
    """Operators that hand on elements as they are, or the largest of them."""
    inner, result = _inner(m), QuantSteps(m, m.root)
    source = QuantSteps(m, _maker(m, inner.inputs[0]))
    why = result.fault("the result") or source.fault("the input")
    if why is None and not source.same(result):
        why = "the result is counted in other steps"
    if why is None and len(inner.outputs) > 1 and any(inner.outputs[1:]):
        why = "there is a second result"
    return why or _activation(m)


def _into_moved(m: Match) -> Replacement:
    inner = _inner(m)
    operands = (_maker(m, inner.inputs[0]).inputs[0], *inner.inputs[1:])
    return _NodeBuilder(m).node(inner.op, operands, inner.attrs, inner.domain)


def _joined(m: Match) -> str | None:
    """Parts that are all counted as the whole is."""
    inner, result = _inner(m), QuantSteps(m, m.root)
    parts = [QuantSteps(m, n) for n in m.nodes if n.op == "DequantizeLinear"]
    if len(parts) != len(inner.inputs):
        return "there are more parts"
    for steps in (result, *parts):
        why = steps.fault("a part or the whole")
        if why is not None:
            return why
    return _activation(m) if all(p.same(result) for p in parts) else "the parts are counted in other steps"


def _into_joined(m: Match) -> Replacement:
    inner = _inner(m)
    return _NodeBuilder(m).node(inner.op, [_maker(m, i).inputs[0] for i in inner.inputs], inner.attrs)


def _again(m: Match) -> str | None:
    source, result = QuantSteps(m, m.nodes[1]), QuantSteps(m, m.root)
    why = source.fault("the input", columns=True) or result.fault("the result", columns=True)
    if why is not None:
        return why
    counted = source.same(result) and (source.scales.size == 1 or source.axis == result.axis)
    return None if counted else "the result is counted in other steps"


_X, _Y, _W = _dequantised("x"), _dequantised("y"), _dequantised("w")


def _is_product(op: Op) -> bool:
    return op.multiplies and bool(op.quantized)


def _is_pointwise(operands: int) -> Callable[[Op], bool]:
    """Operators, averages among them, that have a form for quantised operands, by how many of them they have."""
    return lambda op: bool(op.quantized) and not op.multiplies and not op.moves and len(op.inputs) == operands


def _moves_one(op: Op) -> bool:
    """Operators of one result that move the elements of one operand, or the largest of them."""
    moves = op.moves in ("view", "permute", "slice", "repeat", "gather") and not op.outputs[0].variadic
    return moves or op.name == "MaxPool"


def _rules(
    name: str, op: str | Callable[[Op], bool], operands: Sequence[Any], check: Callable[[Match], str | None],
    replace: Callable[[Match], Replacement],
) -> tuple[Rule, ...]:  # fmt: skip
    return tuple(Rule(name, pattern, check, replace) for pattern in _pattern(op, operands))


QDQ: tuple[Rule, ...] = (
    *_rules("products of quantised operands", _is_product, (_X, _W), _product, _into_product),
    *_rules("arithmetic of quantised operands", _is_pointwise(2), (_X, _Y), _pointwise, _into_pointwise),
    *_rules("functions and averages of a quantised operand", _is_pointwise(1), (_X,), _pointwise,
            _into_pointwise),
    *_rules("quantised elements moved", _moves_one, (_X,), _moved, _into_moved),
    *(rule for n in range(2, LARGEST_CONCAT + 1) for rule in
      _rules("quantised parts joined", "Concat", [_dequantised(f"x{i}") for i in range(n)], _joined, _into_joined)),
    Rule("quantised as it was", Pattern("QuantizeLinear", (_X,)), _again,
         lambda m: Replacement({m.root.outputs[0]: m.values["x"]})),
)  # fmt: skip


def quantise(graph: Graph, takes: Takes, declined: list[RewriteDeclined] | None = None) -> Graph:
    """Apply the rules wherever a kernel takes what they would put there; reasons against go to `declined`."""

    def asked(rule: Rule) -> Rule:
        def check(m: Match) -> str | None:
            why = rule.check(m)
            if why is not None:
                return why
            replacement = rule.replace(m)
            types = {**m.graph.types, **{n: type_of(a, known=True) for n, a in replacement.constants.items()}}
            around = m.graph.but(types=types, initializers={**m.graph.initializers, **replacement.constants})
            for node in replacement.nodes:
                if not node.record.moves:
                    why = takes(around, node)
            return why

        return replace(rule, check=check)

    return rewrite(graph, tuple(map(asked, (*QDQ, *DYNAMIC))), declined)
