"""Convolutions of 8-bit numbers: QLinearConv, also followed by a sum, and ConvInteger.

oneDNN adds up products of 8-bit numbers in int32; the bias is added to the sums, which are then multiplied by a scale
for each filter, rounded to the nearest even and moved by the zero point, each as ONNX says and in its order.

https://oneapi-src.github.io/oneDNN/dev_guide_attributes_quantization.html
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Final

import numpy as np

from ....ops import OPS, DType, Tensor, Type
from ....ops.core.fused import ABSENT, PREVIOUS
from ....ops.dataclasses import dataclass, field
from ....ops.nn.windows import known, windows
from ....ops.quantization.quantize import int_range
from ....ops.types import Array
from ...compile.kernel import Choice, Declined, KernelRequest, anchor
from ...ir.graph import Node
from .api import ATTR_SCALES, ATTR_ZERO_POINTS, BIAS, DST, SRC, WEIGHTS, Refused
from .kernel import OneDnn, channels_last, constant
from .library import library
from .memory import Memory
from .postops import Link, alone
from .primitive import Attributes, Draft, Operand, PostOp

MICROSOFT: Final = "com.microsoft"
BYTES: Final = (DType.UINT8, DType.INT8)
EXACT: Final = 1 << 24  # float32 holds every integer up to here


class Quantised(OneDnn):
    """Kernels whose scales and zero points are constants of the step."""

    domains: ClassVar[tuple[str, ...]] = ("", MICROSOFT)

    def serves(self, node: Node) -> bool:
        domain, op = anchor(node)
        return domain in self.domains and op in self.ops

    def select(self, request: KernelRequest) -> Choice | Declined:
        choice = super().select(request)
        if isinstance(choice, Choice):
            for i, t in enumerate(request.inputs):
                kinds = {o.memory.dtype for draft in choice.primitives for o in draft.at(("in", i))}
                if isinstance(t, Tensor) and kinds - {t.dtype} and not (choice.layouts and choice.layouts[i]):
                    return Declined(f"{t.dtype} weights are read as they are")
        return choice

    def pack(self, request: KernelRequest, choice: Choice, index: int, array: Array) -> Array:
        """Weights counted from 128 are moved to the signed numbers that oneDNN multiplies with."""
        known = request.inputs[index]
        assert isinstance(known, Tensor)
        if known.dtype is DType.UINT8:
            array = (np.asarray(array) ^ np.uint8(128)).view(np.int8)
        return super().pack(request, choice, index, array)


@dataclass(slots=True)
class QuantizedParts:
    """Scales, zero points and other constants of a draft."""

    operands: list[Operand] = field(default_factory=list[Operand])
    scales: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    zeros: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])

    def value(self, argument: int, values: Any, dtype: DType = DType.FLOAT, dims: tuple[int, ...] = ()) -> None:
        """An argument with these elements, as a list unless `dims` says otherwise."""
        flat = np.ascontiguousarray(values, dtype.numpy).reshape(-1)
        memory = Memory(dims or flat.shape, dtype)
        self.operands.append(Operand(argument, ("given", argument), memory, value=flat.tobytes()))

    def scale(self, argument: int, values: Any, mask: int = 0) -> None:
        """The scale of an argument: one, or one for each entry of the axes in the mask."""
        scales = np.asarray(values, np.float32).reshape(-1)
        if scales.size > 1 or scales[0] != 1:
            self.value(ATTR_SCALES | argument, scales)
            self.scales.append((argument, mask if scales.size > 1 else 0))

    def zero(self, argument: int, value: int) -> None:
        """The zero point of an argument."""
        if value:
            self.value(ATTR_ZERO_POINTS | argument, value, DType.INT32)
            self.zeros.append((argument, 0))

    def attributes(self, post: tuple[PostOp, ...] = ()) -> Attributes:
        """The attributes that announce them."""
        return Attributes(post, scales=tuple(self.scales), zero_points=tuple(self.zeros))


def attr(link: Link, name: str) -> Any:
    """An attribute of a link, its default included."""
    record = OPS.get(("", link.op)) or OPS[MICROSOFT, link.op]
    return link.attrs.get(name, record.attrs.get(name))


def values(request: KernelRequest, at: int) -> Array:
    """The elements of a constant; Refused where they are not known."""
    operand = request.inputs[at] if request.constant(at) else None
    if not isinstance(operand, Tensor) or operand.value is None:
        raise Refused("a scale, a zero point or a bias is no constant")
    return np.asarray(operand.value)


def scale_of(request: KernelRequest, at: int) -> np.float32:
    """A scale for the whole tensor; Refused for another."""
    scale = values(request, at)
    if scale.size != 1 or not np.isfinite(scale).all() or scale.reshape(()) <= 0:
        raise Refused("a scale is not one positive number")
    return np.float32(scale.reshape(()))


def zero_of(request: KernelRequest, at: int) -> int:
    """A zero point for the whole tensor, 0 where absent; Refused for several different ones."""
    if at == ABSENT:
        return 0
    points = np.unique(values(request, at))
    if points.size != 1:
        raise Refused("there are several zero points")
    return int(points[0])


def tensors(request: KernelRequest, at: Sequence[int], dtypes: Sequence[DType]) -> list[Tensor]:
    """Operands of one of the types; Refused for others."""
    operands = [request.inputs[i] for i in at]
    typed = [t for t in operands if isinstance(t, Tensor) and t.dtype in dtypes]
    if len(typed) < len(operands):
        raise Refused(f"operands are {', '.join(map(str, operands))}")
    return typed


def whole_products() -> None:
    """Refused where sums of two products pass through 16 bits, which they may overflow."""
    loaded = library()
    if loaded is None or not any(word in loaded.isa for word in ("vnni", "bf16", "fp16", "amx")):
        raise Refused("without VNNI, sums of products of 8-bit numbers may saturate")


def output(request: KernelRequest, dtypes: Sequence[DType]) -> Tensor:
    """The type of the one output; Refused for another."""
    result = request.outputs[0]
    if len(request.outputs) > 1 or not isinstance(result, Tensor) or result.dtype not in dtypes:
        raise Refused(f"the results are {', '.join(map(str, request.outputs))}")
    return result


class QLinearConv(Quantised):
    """QLinearConv of one to three spatial axes, grouped and depthwise too; a QLinearAdd may follow."""

    name = "onednn.qlinear_conv"
    ops = frozenset({"QLinearConv"})
    domains = ("",)  # Microsoft's may have its channels last

    def drafts(self, request: KernelRequest, links: tuple[Link, ...]) -> Iterator[Draft]:
        """Channels-last, then row-major."""
        link = links[0]
        x, w = tensors(request, (link.operands[0], link.operands[3]), BYTES)
        y = output(request, BYTES)
        parts, zero = QuantizedParts(), zero_of(request, link.operands[7])
        steps = _counted(request, link, x, w, parts)
        if len(links) == 1:
            steps = (*steps, *rounded(zero))
            parts.zero(DST, zero)
        for layout in (channels_last(len(x.sizes)), ""):
            own = QuantizedParts(list(parts.operands), list(parts.scales), list(parts.zeros))
            post = _residual(request, links[1:], zero, y, layout, own) if len(links) > 1 else ()
            yield convolution(request, link, (0, 3), y, layout, own, (*steps, *post))


def _counted(request: KernelRequest, link: Link, x: Tensor, w: Tensor, parts: QuantizedParts) -> tuple[PostOp, ...]:
    """Sums, with the bias in their own units, in steps of the result: one product of float32 as ONNX says."""
    at = link.operands
    scales = values(request, at[4]).astype(np.float32).reshape(-1)
    if scales.size not in (1, w.sizes[0]) or not np.isfinite(scales).all():
        raise Refused(f"{scales.size} scales for {w.sizes[0]} filters")
    parts.zero(SRC, zero_of(request, at[2]))
    if link.operand(8) != ABSENT:
        parts.value(BIAS, values(request, link.operand(8)), DType.INT32, (w.sizes[0],))
    if zero_of(request, at[5]) != (128 if w.dtype is DType.UINT8 else 0):
        raise Refused("weights have a zero point")
    factor = scale_of(request, at[1]) * scales / scale_of(request, at[6])
    return times(factor, (1, -1, *(1,) * (len(x.sizes) - 2)))


def times(factor: Array, dims: tuple[int, ...]) -> tuple[PostOp, ...]:
    """The post-op that multiplies by one number, or by one for each entry of the axis that `dims` marks with -1."""
    if factor.size == 1:
        return (PostOp("eltwise_linear", float(factor.reshape(())), 0.0),)
    memory = Memory(tuple(factor.size if d < 0 else d for d in dims), DType.FLOAT)
    return (PostOp("binary_mul", other=memory, place=("given", 0), value=factor.astype(np.float32).tobytes()),)


def rounded(zero: int) -> tuple[PostOp, ...]:
    """Rounding before an odd zero point is added, after which ties would fall the other way."""
    return (PostOp("eltwise_round"),) if zero else ()


def _residual(
    request: KernelRequest, links: tuple[Link, ...], zero: int, y: Tensor, layout: str, parts: QuantizedParts
) -> tuple[PostOp, ...]:
    """QLinearAdd as post-ops: the result of the convolution is rounded to its own steps all the same, in registers."""
    link = links[0]
    if len(links) > 1 or link.op != "QLinearAdd" or link.operand(0) == link.operand(3):
        raise Refused(f"{', '.join(n.op for n in links)} is no post-op")
    first = link.operands[0] == PREVIOUS
    mine, theirs = (link.operands[:3], link.operands[3:6]) if first else (link.operands[3:6], link.operands[:3])
    (other,) = tensors(request, theirs[:1], BYTES)
    if other.sizes != y.sizes or PREVIOUS in theirs:
        raise Refused("an operand of the sum is broadcast")
    own, beside, total = scale_of(request, mine[1]), scale_of(request, theirs[1]), scale_of(request, link.operands[6])
    own_zero, beside_zero = zero_of(request, mine[2]), zero_of(request, theirs[2])
    low, high = int_range(y.dtype)
    parts.scale(DST, total / beside)
    parts.zero(DST, zero_of(request, link.operand(7)))
    steps = own / beside
    return (
        PostOp("eltwise_round"),
        PostOp("eltwise_clip", low - zero, high - zero),
        PostOp("eltwise_linear", float(steps), float((zero - own_zero) * steps - beside_zero)),
        PostOp("binary_add", other=Memory(y.sizes, other.dtype, layout), place=("in", theirs[0]), layout=layout),
    )


def convolution(
    request: KernelRequest, link: Link, at: tuple[int, int], y: Tensor, layout: str, parts: QuantizedParts,
    post: tuple[PostOp, ...],
) -> Draft:  # fmt: skip
    """The draft of a convolution whose image and weights are the operands `at`."""
    whole_products()
    x, w = tensors(request, [link.operands[i] for i in at], BYTES)
    if not 3 <= len(x.sizes) <= 5:
        raise Refused(f"{len(x.sizes) - 2} spatial axes")
    group, sizes = attr(link, "group"), w.sizes
    if group > 1:
        sizes = (group, sizes[0] // group, *sizes[1:])
    names = ("strides", "dilations", "pads", "auto_pad")
    axes = known(windows(x.sizes[2:], w.sizes[2:], *(attr(link, n) for n in names)))
    if any(n.out < 1 or min(n.before, n.after) < 0 for n in axes):
        raise Refused("there is no window, or a padding is negative")
    columns = [(n.stride, n.dilation - 1, n.before, n.after) for n in axes]
    settings = ("convolution_direct", *zip(*columns, strict=True))
    source = Operand(SRC, ("in", link.operands[at[0]]), Memory(x.sizes, x.dtype, layout), layout)
    target = Operand(DST, ("out", 0), Memory(y.sizes, y.dtype, layout), layout)
    weights = signed(request, link.operands[at[1]], x, Memory(sizes, DType.INT8), bool(parts.zeros))
    operands = (source, weights, *parts.operands, target)
    return Draft("convolution_forward", operands, settings, parts.attributes(post))


def signed(request: KernelRequest, at: int, source: Tensor, memory: Memory, zero: bool) -> Operand:
    """Weights as signed numbers. What a packed form holds beside them depends on the type and the zero point of the
    operand that they are multiplied with."""
    known = request.inputs[at]
    assert isinstance(known, Tensor)
    if request.constant(at):
        form = f"{source.dtype}{'z' if zero else ''}"
        return Operand(WEIGHTS, ("in", at), memory.any(), form, source=memory)
    if known.dtype is not DType.INT8:
        raise Refused("weights of uint8 are no constant")
    return constant(request, WEIGHTS, at, memory)


def largest_sum(w: Type | None) -> float:
    """Return a bound on the sum of products with the weights of one filter."""
    if not isinstance(w, Tensor) or not w.static:
        return math.inf
    if w.value is None:
        return 255.0 * 255 * math.prod(w.sizes[1:])
    apart = np.abs(np.asarray(w.value).astype(np.int64) - (128 if w.dtype is DType.UINT8 else 0))
    return 255.0 * float(apart.reshape(w.sizes[0], -1).sum(1).max(initial=0))


class ConvInteger(Quantised):
    """ConvInteger: the integer sums. They pass through float32, which must hold them exactly."""

    name = "onednn.conv_integer"
    ops = frozenset({"ConvInteger"})

    def select(self, request: KernelRequest) -> Choice | Declined:
        if largest_sum(request.inputs[1]) >= EXACT:
            return Declined("sums may be larger than float32 holds exactly")
        return super().select(request)

    def drafts(self, request: KernelRequest, links: tuple[Link, ...]) -> Iterator[Draft]:
        """Channels-last, then row-major."""
        link = alone(links)
        (w,) = tensors(request, link.operands[1:2], BYTES)
        if zero_of(request, link.operand(3)) != (128 if w.dtype is DType.UINT8 else 0):
            raise Refused("weights have a zero point")
        y = output(request, (DType.INT32,))
        for layout in (channels_last(len(w.sizes)), ""):
            parts = QuantizedParts()
            parts.zero(SRC, zero_of(request, link.operand(2)))
            yield convolution(request, link, (0, 1), y, layout, parts, ())
