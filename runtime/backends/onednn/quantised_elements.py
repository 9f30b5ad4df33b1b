"""Conversion between floats and 8-bit numbers, elementwise operators on 8-bit numbers, and pooling of them.

Additions, divisions and functions run through oneDNN's binary primitive: it reads 8-bit numbers, computes in float32,
and rounds what comes out of its post-ops to the nearest even.

https://oneapi-src.github.io/oneDNN/dev_guide_binary.html, https://oneapi-src.github.io/oneDNN/dev_guide_reorder.html
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ....ops import DType, Tensor
from ....ops.core.fused import ABSENT
from ....ops.core.rules import axis_of
from ....ops.types import Array
from ...compile.kernel import KernelRequest
from .api import DST, SRC, SRC_1, Refused
from .kernel import channels_last
from .memory import Memory
from .pool import placed
from .postops import Link, alone
from .primitive import Attributes, Draft, Operand, PostOp
from .quantised import BYTES, Quantised, QuantizedParts, attr, output, scale_of, tensors, values, zero_of

FAR = 2.0**20  # steps: beyond every type, and what NaN is cut to


def _side(argument: int, at: int, t: Tensor, layout: str) -> Operand:
    return Operand(argument, ("in", at), Memory(t.sizes, t.dtype, layout), layout)


def _target(y: Tensor, layout: str) -> Operand:
    return Operand(DST, ("out", 0), Memory(y.sizes, y.dtype, layout), layout)


def _number(rank: int, value: float) -> Operand:
    """One number as the second operand of a binary primitive."""
    raw = np.float32(value).tobytes()
    return Operand(SRC_1, ("given", SRC_1), Memory((1,) * rank, DType.FLOAT), value=raw)


def _by_axis(request: KernelRequest, link: Link, at: int, x: Tensor) -> tuple[Array, tuple[int, ...]]:
    """A scale or zero point with its dims beside `x`: one number, or one for each entry of the axis."""
    numbers = values(request, at)
    if attr(link, "block_size") or (numbers.ndim > 1 and numbers.size > 1):
        raise Refused("scales are given by block")
    dims = [1] * len(x.sizes)
    if numbers.size > 1:
        dims[axis_of(attr(link, "axis"), len(dims)) if len(dims) > 1 else 0] = numbers.size
    return numbers.reshape(-1), tuple(dims)


class Quantize(Quantised):
    """QuantizeLinear of float32 into 8 bits, per tensor or per axis: a true division, rounded before the zero point is
    added, so that ties round as in ONNX. NaN, which ONNX leaves undefined, becomes the lowest step, as in ONNX
    Runtime."""

    name = "onednn.quantize"
    ops = frozenset({"QuantizeLinear"})
    domains = ("",)

    def drafts(self, request: KernelRequest, links: tuple[Link, ...]) -> Iterator[Draft]:
        """Yield drafts in the layout of the input, then row-major."""
        link = alone(links)
        (x,) = tensors(request, link.operands[:1], (DType.FLOAT,))
        y = output(request, BYTES)
        if not x.sizes:
            raise Refused("a single number")
        if attr(link, "precision") not in (0, DType.FLOAT.onnx):
            raise Refused("the division is not one of float32")
        scale, dims = _by_axis(request, link, link.operands[1], x)
        if scale.dtype != np.float32:
            raise Refused(f"the scale is {scale.dtype}")
        divisor = Operand(SRC_1, ("given", 0), Memory(dims, DType.FLOAT), value=scale.tobytes())
        post = [PostOp("eltwise_clip", -FAR, FAR), PostOp("eltwise_round")]
        if link.operand(2) != ABSENT:
            zero, dims = _by_axis(request, link, link.operands[2], x)
            if zero.any():
                raw, memory = zero.astype(np.float32).tobytes(), Memory(dims, DType.FLOAT)
                post.append(PostOp("binary_add", other=memory, place=("given", 1), value=raw))
        for layout in dict.fromkeys((x.layout, "")):
            operands = (_side(SRC, link.operands[0], x, layout), divisor, _target(y, layout))
            yield Draft("binary", operands, ("binary_div",), Attributes(tuple(post)))


class Dequantize(Quantised):
    """DequantizeLinear into float32, per tensor or with a scale for each entry of an axis."""

    name = "onednn.dequantize"
    ops = frozenset({"DequantizeLinear"})
    domains = ("",)

    def drafts(self, request: KernelRequest, links: tuple[Link, ...]) -> Iterator[Draft]:
        """A reorder: into the layout that is wished for, or that of the input; with a zero point into that alone."""
        link, parts = alone(links), QuantizedParts()
        (x,) = tensors(request, link.operands[:1], (*BYTES, DType.INT32))
        y = output(request, (DType.FLOAT,))
        scale, dims = _by_axis(request, link, link.operands[1], x)
        mask = sum(1 << i for i, n in enumerate(dims) if n > 1)
        zero = zero_of(request, link.operand(2))
        if zero and x.dtype is DType.INT32:
            raise Refused("int32 numbers with a zero point")
        parts.scale(SRC, scale, mask)
        parts.zero(SRC, zero)
        # a reorder that transposes blocks of eight leaves the zero point out: docs/onednn-defects.md
        layouts = (x.layout,) if zero else (y.layout or x.layout, x.layout, "")
        for layout in dict.fromkeys(layouts):
            operands = (_side(SRC, link.operands[0], x, x.layout), *parts.operands, _target(y, layout))
            yield Draft("reorder", operands, attributes=parts.attributes())


class Arithmetic(Quantised):
    """QLinearAdd and QLinearMul of com.microsoft; one operand may be broadcast."""

    name = "onednn.qlinear_binary"
    ops = frozenset({"QLinearAdd", "QLinearMul"})

    def drafts(self, request: KernelRequest, links: tuple[Link, ...]) -> Iterator[Draft]:
        """Yield drafts in the layout of the larger operand, then row-major."""
        link, y = alone(links), output(request, BYTES)
        sides = [link.operands[:3], link.operands[3:6]]
        types = tensors(request, [s[0] for s in sides], BYTES)
        zeros = [zero_of(request, s[2]) for s in sides]
        if types[0].sizes != y.sizes or (link.op == "QLinearMul" and zeros[1] and types[1].sizes == y.sizes):
            sides, types, zeros = sides[::-1], types[::-1], zeros[::-1]
        a, b = types
        if a.sizes != y.sizes or not y.sizes:
            raise Refused("both operands are widened, or single numbers")
        scales = [np.float64(scale_of(request, s[1])) for s in sides]
        result_scale, zero = np.float64(scale_of(request, link.operands[6])), zero_of(request, link.operand(7))
        dims = (1,) * (len(y.sizes) - len(b.sizes)) + b.sizes
        for layout in dict.fromkeys((a.layout or (b.layout if b.sizes == y.sizes else ""), "")):
            beside = layout if b.sizes == y.sizes else ""
            first, memory = _side(SRC, sides[0][0], a, layout), Memory(dims, b.dtype, beside)
            place = ("in", sides[1][0])
            if link.op == "QLinearAdd":
                parts = QuantizedParts()
                parts.scale(SRC, scales[0] / result_scale)
                parts.scale(SRC_1, scales[1] / result_scale)
                moved = zero - (zeros[0] * scales[0] + zeros[1] * scales[1]) / result_scale
                second = Operand(SRC_1, place, memory, beside)
                attributes = parts.attributes((PostOp("eltwise_linear", 1.0, float(moved)),))
                yield Draft("binary", (first, second, *parts.operands, _target(y, layout)), ("binary_add",), attributes)
                continue
            times = PostOp("binary_mul", other=memory, place=place, layout=beside)
            steps = float(scales[0] * scales[1] / result_scale)
            post: tuple[PostOp, ...] = (times, PostOp("eltwise_linear", steps, zero))
            if zeros[1]:  # (a - za) (b - zb) = ((a - za) b / -zb + a - za) -zb
                again = PostOp("binary_add", other=first.memory, place=first.place, layout=layout)
                back = PostOp("eltwise_linear", -1 / zeros[1], -zeros[0])
                post = (times, back, again, PostOp("eltwise_linear", -zeros[1] * steps, zero))
            operands = (first, _number(len(y.sizes), zeros[0]), _target(y, layout))
            yield Draft("binary", operands, ("binary_sub",), Attributes(post))


class Sigmoid(Quantised):
    """QLinearSigmoid of com.microsoft."""

    name = "onednn.qlinear_sigmoid"
    ops = frozenset({"QLinearSigmoid"})

    def drafts(self, request: KernelRequest, links: tuple[Link, ...]) -> Iterator[Draft]:
        """Yield drafts in the layout of the input, then row-major."""
        link, y = alone(links), output(request, BYTES)
        (x,) = tensors(request, link.operands[:1], BYTES)
        if not x.sizes:
            raise Refused("a single number")
        scale, result_scale = scale_of(request, link.operands[1]), scale_of(request, link.operands[3])
        number = _number(len(x.sizes), zero_of(request, link.operand(2)))
        post = (
            PostOp("eltwise_linear", float(scale), 0.0),
            PostOp("eltwise_logistic"),
            PostOp("eltwise_linear", float(1 / result_scale), zero_of(request, link.operand(4))),
        )
        for layout in dict.fromkeys((x.layout, "")):
            operands = (_side(SRC, link.operands[0], x, layout), number, _target(y, layout))
            yield Draft("binary", operands, ("binary_sub",), Attributes(post))


class Pool8(Quantised):
    """MaxPool of 8-bit numbers, and the averages of com.microsoft, QLinearAveragePool and QLinearGlobalAveragePool."""

    name = "onednn.qlinear_pool"
    ops = frozenset({"MaxPool", "QLinearAveragePool", "QLinearGlobalAveragePool"})

    def drafts(self, request: KernelRequest, links: tuple[Link, ...]) -> Iterator[Draft]:
        """Channels-last, which alone is fast."""
        link, y = alone(links), output(request, BYTES)
        (x,) = tensors(request, link.operands[:1], BYTES)
        if not 3 <= len(x.sizes) <= 5:
            raise Refused(f"{len(x.sizes) - 2} spatial axes")
        post: tuple[PostOp, ...] = ()
        if link.op == "MaxPool":
            settings = placed(link, x)
        else:
            if attr(link, "channels_last"):
                raise Refused("the channels are the last axis")
            standard = link.op.removeprefix("QLinear")
            kept = {n: v for n, v in link.attrs.items() if n != "channels_last"}
            settings = placed(Link(standard, link.operands[:1], kept), x)
            at = link.operands
            steps = np.float64(scale_of(request, at[1])) / np.float64(scale_of(request, at[3]))
            before, after = zero_of(request, at[2]), zero_of(request, link.operand(4))
            if before and "include" in settings[0] and any(map(any, settings[4:])):
                raise Refused("the padding is not the zero point")
            post = (PostOp("eltwise_linear", float(steps), float(after - before * steps)),)
        layout = channels_last(len(x.sizes))
        operands = (_side(SRC, link.operands[0], x, layout), _target(y, layout))
        yield Draft("pooling_forward", operands, settings, Attributes(post))
