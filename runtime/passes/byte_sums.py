"""Sums of products of bytes in float32, where no kernel adds bytes: as exact, and by the fast products of floats.

Distances of 8-bit numbers from their zero point are integers below 256. float32 holds sums of their products
exactly up to 2^24; where known weights could make a longer sum larger, it is cut into parts, which are added as
integers. Processors without VNNI compute files of ONNX Runtime's quantiser so, and all do where the zero point of the
operand is known at run time only (DynamicQuantizeLinear).

https://onnx.ai/onnx/operators/onnx__MatMulInteger.html, https://onnx.ai/onnx/operators/onnx__ConvInteger.html
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import numpy as np

from ...ops import DType, Tensor
from ...ops.dataclasses import dataclass, replace
from ...ops.op import Op
from ...ops.types import Array
from ..ir.graph import Graph, Node
from ..memory.shared_constants import derived
from .rewrite import Leaf, Match, Pattern, Replacement, RewriteDeclined, Rule, rewrite

EXACT: Final = 1 << 24  # float32 holds every integer up to here
MOST_PARTS: Final = 16
BYTES: Final = (DType.UINT8, DType.INT8)
Takes = Callable[[Graph, Node], str | None]


def _places(op: Op) -> tuple[int, ...]:
    """Places of the operands of a product of bytes: the left one and its zero point, the weights and theirs; where the
    result is bytes too, then the three scales, the zero point of the result, and a bias. None for other operators."""
    names = [i.name for i in op.inputs]
    zeros = [i for i, name in enumerate(names) if name.endswith("_zero_point")]
    scales = [i for i, name in enumerate(names) if name.endswith("_scale")]
    if op.domain or len(zeros) != 2 + (len(scales) == 3) or len(scales) not in (0, 3):
        return ()
    weights, last = (scales[1] - 1, [*scales, zeros[2], zeros[2] + 1]) if scales else (1, [])
    return tuple(i for i in (0, zeros[0], weights, zeros[1], *last) if i < len(names))


@dataclass(frozen=True, slots=True)
class _Sums:
    """The operands of a sum: names of the left operand and its zero point ("" where absent), the distances of the
    weights from theirs in float32, a text that tells these from those of other zero points, the summed axis of the
    weights, and into how many parts it is cut."""

    x: str
    zero: str
    weights: Array
    how: str
    axis: int
    parts: int = 1


@dataclass(frozen=True, slots=True)
class _Product:
    """The product of a match, whose root may be a Cast behind it."""

    match: Match
    node: Node

    @property
    def places(self) -> tuple[int, ...]:
        """Places of its operands."""
        return _places(self.node.record)

    @property
    def convolution(self) -> bool:
        """True for a convolution, False for a product of matrices."""
        return "kernel_shape" in self.node.record.attrs

    @property
    def floats(self) -> str:
        """The operator of floats that it is for bytes."""
        return self.node.op.removeprefix("QLinear").removesuffix("Integer")

    def input(self, place: int) -> str:
        """The name of an operand, "" where it is absent."""
        at = self.places[place] if place < len(self.places) else len(self.node.inputs)
        return self.node.inputs[at] if at < len(self.node.inputs) else ""

    def tensor(self, place: int) -> Tensor | None:
        """The type of an operand."""
        return self.match.tensor(self.input(place))

    def constant(self, place: int) -> Array | None:
        """The elements of an operand, where known."""
        return self.match.constant(self.input(place))

    def attr(self, name: str) -> Any:
        """An attribute, its default included."""
        return self.node.attrs.get(name, self.node.record.attrs.get(name))


def _product(m: Match) -> _Product:
    return _Product(m, next(n for n in m.nodes if not n.domain and _places(n.record)))


def _sums(m: _Product) -> _Sums | str:
    """Return the operands, or why they are none that this pass takes."""
    convolution = m.convolution
    x, w, zero = m.tensor(0), m.constant(2), m.input(1)
    if x is None or x.dtype not in BYTES or x.dims is None or w is None or w.dtype not in (np.uint8, np.int8):
        return "the weights are not known, or operands are no bytes"
    if len(x.dims) < 2 or (w.ndim != len(x.dims) if convolution else w.ndim != 2) or not w.size:
        return "it is no product with a matrix, or no convolution"
    if zero and ((known := m.tensor(1)) is None or not known.static or known.elements != 1):
        return "the operand has several zero points"
    shift = np.zeros(1, np.float32)
    if m.input(3):
        if (points := m.constant(3)) is None:
            return "the zero point of the weights is not known"
        shift = np.asarray(points).astype(np.float32).reshape(-1)
    if shift.size not in (1, w.shape[0] if convolution else w.shape[1]):
        return "zero points of the weights are not one of columns or filters"
    if m.input(8) and m.constant(8) is None:
        return "the bias is not known"
    how = f"distances from {shift.tolist()} of {'filters' if convolution else 'columns'}"
    shift = shift.reshape(-1, *(1,) * (w.ndim - 1)) if convolution else shift
    weights = derived(w, how, lambda: np.subtract(w, shift, dtype=np.float32))
    reach = _reach(x.dtype, m.constant(1) if zero else np.zeros(1, np.int8))
    sums = _Sums(m.input(0), zero, weights, how, 1 if convolution else 0)
    while reach * _largest(sums) + (_bias(m) if sums.parts == 1 else 0) >= EXACT:
        grouped = convolution and m.attr("group") > 1
        if sums.parts == MOST_PARTS or weights.shape[sums.axis] < 2 * sums.parts or grouped:
            return "sums may be larger than float32 holds exactly"
        sums = replace(sums, parts=2 * sums.parts)
    return "a bias may pass the ends of int32" if sums.parts > 1 and _bias(m) >= 1 << 30 else sums


def _reach(dtype: DType, zero: Array | None) -> int:
    """Return how far a byte may be from the zero point."""
    if zero is None:
        return 255
    least, most = (0, 255) if dtype is DType.UINT8 else (-128, 127)
    point = int(np.asarray(zero).reshape(()) if np.size(zero) == 1 else 0)
    return max(point - least, most - point)


def _largest(sums: _Sums) -> int:
    """Return the largest sum of absolute weights of a part, over all results."""
    axes = tuple(i for i in range(sums.weights.ndim) if i != 1 - sums.axis)
    parts = np.array_split(sums.weights, sums.parts, sums.axis)
    return max(int(np.abs(part).sum(axes, dtype=np.float64).max()) for part in parts)


def _bias(m: _Product) -> int:
    """Return the largest absolute bias."""
    bias = m.constant(8) if m.input(8) else None
    return 0 if bias is None else int(np.abs(np.asarray(bias).astype(np.int64)).max(initial=0))


def _fits(match: Match) -> str | None:
    m = _product(match)
    sums = _sums(m)
    if isinstance(sums, str):
        return sums
    if len(m.places) > 4:
        scales = [m.constant(place) for place in (4, 5, 6)]
        results = sums.weights.shape[1 - sums.axis]
        for scale, sizes in zip(scales, ((1,), (1, results), (1,)), strict=True):
            if scale is None or scale.dtype != np.float32 or scale.size not in sizes:
                return "scales are not known, or not one of the tensor, of columns or of filters"
        y, zero = match.tensor(match.root.outputs[0]), m.tensor(7)
        if y is None or y.dtype not in BYTES or zero is None or not zero.static or zero.elements != 1:
            return "the result is no bytes with one zero point"
    return None


def _in_floats(match: Match) -> Replacement:
    m = _product(match)
    sums = _sums(m)
    assert isinstance(sums, _Sums)
    write = _Writer(m, [], {})
    whole = write.total(sums)
    if len(m.places) == 4:
        to = DType.INT32 if match.root is m.node else DType.FLOAT
        write.node("Cast", [whole], {"to": to.onnx}, last=True)
        return Replacement({}, tuple(write.nodes), write.constants)
    x_scale, w_scale, y_scale = (np.asarray(m.constant(place)).reshape(-1) for place in (4, 5, 6))
    factor = x_scale * w_scale / y_scale
    form = () if factor.size == 1 else (-1, *(1,) * (sums.weights.ndim - 2)) if m.convolution else (-1,)
    steps = write.node("Mul", [whole, write.constant("factor", factor.reshape(form))])
    if (known := m.constant(7)) is not None:
        point = write.constant("point", np.asarray(known).reshape(()))
    else:
        point = write.node("Reshape", [m.input(7), write.scalar()])
    write.node("QuantizeLinear", [steps, write.constant("one", np.ones((), np.float32)), point], last=True)
    return Replacement({}, tuple(write.nodes), write.constants)


@dataclass(slots=True)
class _Writer:
    """Writer of the nodes that stand in a product's place."""

    product: _Product
    nodes: list[Node]
    constants: dict[str, Array]

    def node(self, op: str, inputs: list[str], attrs: Any = None, *, last: bool = False) -> str:
        """Add a node; returns the name of its result."""
        root = self.product.match.root
        name = root.outputs[0] if last else f"{root.outputs[0]}:{op.lower()}{len(self.nodes)}"
        self.nodes.append(Node(op, tuple(inputs), (name,), attrs or {}, name=f"{root.name}:{op}", where=root.where))
        return name

    def constant(self, what: str, array: Array) -> str:
        """Keep a constant; returns its name."""
        name = f"{self.product.match.root.outputs[0]}:{what}"
        self.constants[name] = array
        return name

    def scalar(self) -> str:
        """The shape of a scalar."""
        return self.constant("scalar", np.zeros(0, np.int64))

    def total(self, sums: _Sums) -> str:
        """Add the sums as integers: float32, or int32 where they are cut into parts; float32 before a scale.

        Round changes none of them. It keeps products from narrow types, which do not hold them, and factors out of the
        weights, where results in the middle of two steps would fall to another one.
        """
        m = self.product
        x = self.node("Cast", [sums.x], {"to": DType.FLOAT.onnx})
        known = m.constant(1) if sums.zero else np.zeros((), np.float32)
        if known is None:
            point = self.node("Cast", [sums.zero], {"to": DType.FLOAT.onnx})
            x = self.node("Sub", [x, self.node("Reshape", [point, self.scalar()])])
        elif np.any(known):
            x = self.node("Sub", [x, self.constant("zero", np.asarray(known).astype(np.float32).reshape(()))])
        bias = m.constant(8) if m.input(8) else None
        attrs = {a: m.attr(a) for a in m.node.record.attrs}
        if sums.parts == 1:
            operands = [x, self.constant("weights", sums.weights)]
            if bias is not None:
                operands.append(self.constant("bias", np.asarray(bias).astype(np.float32)))
            return self.node("Round", [self.node(m.floats, operands, attrs)])
        total, begin = "", 0
        source = m.constant(2)
        assert source is not None
        for i, part in enumerate(np.array_split(sums.weights, sums.parts, sums.axis)):
            weights = derived(source, f"part {i} of {sums.parts}: {sums.how}", partial(np.ascontiguousarray, part))
            end = begin + part.shape[sums.axis]
            operands = [
                self._slice(x, begin, end, 1 if m.convolution else -1, i),
                self.constant(f"weights{i}", weights),
            ]
            rounded = self.node("Round", [self.node(m.floats, operands, attrs)])
            product = self.node("Cast", [rounded], {"to": DType.INT32.onnx})
            total, begin = self.node("Add", [total, product]) if total else product, end
        if bias is not None:
            number = np.asarray(bias).reshape(-1, *(1,) * (sums.weights.ndim - 2))
            total = self.node("Add", [total, self.constant("bias", number)])
        return total if len(m.places) == 4 else self.node("Cast", [total], {"to": DType.FLOAT.onnx})

    def _slice(self, x: str, begin: int, end: int, axis: int, part: int) -> str:
        bounds = (("from", begin), ("to", end), ("axis", axis))
        return self.node("Slice", [x, *(self.constant(f"{what}{part}", np.array([n])) for what, n in bounds)])


_SUMS = Pattern(lambda op: bool(_places(op)), (Leaf("x"),))
_BYTE_SUMS: tuple[Rule, ...] = (
    Rule(
        "exact sums of products of bytes, wanted in float32",
        Pattern("Cast", (Pattern(("MatMulInteger", "ConvInteger"), (Leaf("x"),), uses=1),), {"to": DType.FLOAT.onnx}),
        _fits,
        _in_floats,
    ),
    Rule("exact sums of products of bytes in float32", _SUMS, _fits, _in_floats),
)


def in_floats(graph: Graph, takes: Takes, declined: list[RewriteDeclined] | None = None) -> Graph:
    """Write out sums of products of bytes that no kernel takes."""

    def unserved(rule: Rule) -> Rule:
        def check(m: Match) -> str | None:
            return "a kernel adds bytes" if takes(m.graph, _product(m).node) is None else rule.check(m)

        return replace(rule, check=check)

    return rewrite(graph, tuple(map(unserved, _BYTE_SUMS)), declined)
