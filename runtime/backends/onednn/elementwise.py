"""Operators on single elements: one operand through oneDNN's eltwise, two through its binary primitive.

https://oneapi-src.github.io/oneDNN/dev_guide_eltwise.html, https://oneapi-src.github.io/oneDNN/dev_guide_binary.html
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ....ops import Tensor
from ....ops.dataclasses import replace
from ....ops.layouts import plain
from ...compile.kernel import KernelRequest
from .api import DST, SRC, SRC_1, Refused
from .frames import lying
from .kernel import OneDnn, floats, result
from .postops import BINARY, COMMUTE, ELTWISE, Link, applied, keeping, post_ops
from .primitive import Attributes, Draft, Operand, PostOp


class Eltwise(OneDnn):
    """One function of one operand, and arithmetic with a known number."""

    name = "onednn.eltwise"
    ops = frozenset({*ELTWISE, "Clip", "Pow", *BINARY})
    remembers = True
    inplace = True

    def drafts(self, request: KernelRequest, links: tuple[Link, ...]) -> Iterator[Draft]:
        """Yield drafts in the layout of the input, then row-major."""
        link, y = links[0], result(request)
        operation = applied(request, link)
        if operation is None:
            raise Refused("there is no operand whose value is one known number")
        at, settings = operation
        (x,) = floats(request, [at])
        if not x.sizes:
            raise Refused("a single number")
        for layout in _layouts(x, y):
            frame = lying(y.sizes, layout)
            source = Operand(SRC, ("in", at), frame.memory(x.dtype), frame.layout)
            target = Operand(DST, ("out", 0), frame.memory(y.dtype), frame.layout)
            post = post_ops(request, links[1:], frame)
            if link.op == "Elu":
                yield _keeping_zeros(source, target, settings, post)
            else:
                yield Draft("eltwise_forward", (source, target), settings, Attributes(post))


def _keeping_zeros(x: Operand, y: Operand, settings: tuple[Any, ...], post: tuple[PostOp, ...]) -> Draft:
    """A function whose results are no less than `x`, but 0 where oneDNN's is 0 and `x` is -0: the larger of the two.

    Its eltwise primitive takes no other operand behind it, where binary does: its own operation leaves `x` as it is.
    """
    larger = PostOp("binary_max", other=x.memory, place=x.place, layout=x.layout)
    beside = Operand(SRC_1, x.place, x.memory, x.layout)
    return Draft("binary", (x, beside, y), ("binary_max",), Attributes((PostOp(*settings), larger, *post)))


class Binary(OneDnn):
    """Arithmetic of two operands, one of which has the size of the result."""

    name = "onednn.binary"
    ops = frozenset(BINARY)
    remembers = True
    inplace = True

    def drafts(self, request: KernelRequest, links: tuple[Link, ...]) -> Iterator[Draft]:
        """Yield drafts in the layout of the larger operand, then row-major."""
        link, y = links[0], result(request)
        if len(link.operands) != 2:
            raise Refused(f"{len(link.operands)} operands")
        keeping(request, link)
        first, second = link.operands
        if not _same_size(request, first, y):
            if link.op not in COMMUTE:
                raise Refused(f"the first operand of {link.op} is widened")
            first, second = second, first
        if not _same_size(request, first, y):
            raise Refused("both operands are widened")
        a, b = floats(request, (first, second))
        layouts = _layouts(a, y) if a.layout or b.sizes != y.sizes else _layouts(b, y)
        for layout in layouts if a.sizes == y.sizes else ("",):
            frame = lying(y.sizes, layout)
            source = Operand(SRC, ("in", first), frame.memory(a.dtype), frame.layout)
            memory, beside = frame.beside(b)
            # a row of whole blocks is the same bytes in blocks, and oneDNN wants to be told so
            if not memory.strides and not plain(frame.seen, memory.dims):
                memory = replace(memory, layout=frame.seen)
            target = Operand(DST, ("out", 0), frame.memory(y.dtype), frame.layout)
            post = post_ops(request, links[1:], frame)
            operands = (source, Operand(SRC_1, ("in", second), memory, beside), target)
            yield Draft("binary", operands, (BINARY[link.op],), Attributes(post))


def _layouts(x: Tensor, y: Tensor) -> tuple[str, ...]:
    """The layouts of a result of this operand: that of the operand, if it has its axes, and row-major."""
    return tuple(dict.fromkeys((x.layout, ""))) if x.sizes == y.sizes else ("",)


def _same_size(request: KernelRequest, at: int, y: Tensor) -> bool:
    """True if an operand has as many elements as the result."""
    operand = request.inputs[at]
    return isinstance(operand, Tensor) and operand.static and operand.elements == y.elements
