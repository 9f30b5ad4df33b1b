"""Operators on single elements: one operand through oneDNN's eltwise, two through its binary primitive.

https://oneapi-src.github.io/oneDNN/dev_guide_eltwise.html, https://oneapi-src.github.io/oneDNN/dev_guide_binary.html
"""

from __future__ import annotations

from collections.abc import Iterator

from ...ops import Tensor
from ...ops.layouts import plain
from ..kernels.kernel import Ask
from .api import DST, SRC, SRC_1, Refused
from .kernel import OneDnn, floats, result
from .memory import Memory
from .postops import BINARY, COMMUTE, ELTWISE, Link, eltwise, post_ops
from .primitive import Attributes, Draft, Operand


class Eltwise(OneDnn):
    """One function of one operand, and arithmetic with a known number."""

    name = "onednn.eltwise"
    ops = frozenset({*ELTWISE, "Clip", "Pow", *BINARY})
    remembers = True
    inplace = True

    def drafts(self, ask: Ask, links: tuple[Link, ...]) -> Iterator[Draft]:
        """In the layout of the input, else row-major."""
        link, y = links[0], result(ask)
        found = eltwise(ask, link)
        if found is None:
            raise Refused("there is no operand whose value is one known number")
        at = next(i for i in link.operands if i >= 0 and _whole(ask, i, y))
        (x,) = floats(ask, [at])
        if not x.sizes:
            raise Refused("a single number")
        for layout in dict.fromkeys((x.layout, "")):
            source = Operand(SRC, ("in", at), Memory(x.sizes, x.dtype, layout), layout)
            target = Operand(DST, ("out", 0), Memory(y.sizes, y.dtype, layout), layout)
            yield Draft(
                "eltwise_forward", (source, target), found, Attributes(post_ops(ask, links[1:], y.sizes, layout))
            )


class Binary(OneDnn):
    """Arithmetic of two operands, one of which has the size of the result."""

    name = "onednn.binary"
    ops = frozenset(BINARY)
    remembers = True
    inplace = True

    def drafts(self, ask: Ask, links: tuple[Link, ...]) -> Iterator[Draft]:
        """In the layout of the larger operand, else row-major."""
        link, y = links[0], result(ask)
        if len(link.operands) != 2:
            raise Refused(f"{len(link.operands)} operands")
        first, second = link.operands
        if not _whole(ask, first, y):
            if link.op not in COMMUTE:
                raise Refused(f"the first operand of {link.op} is widened")
            first, second = second, first
        if not _whole(ask, first, y):
            raise Refused("both operands are widened")
        a, b = floats(ask, (first, second))
        dims = (1,) * (len(y.sizes) - len(b.sizes)) + b.sizes
        for layout in dict.fromkeys((a.layout or (b.layout if b.sizes == y.sizes else ""), "")):
            beside = layout if b.sizes == y.sizes else ""
            source = Operand(SRC, ("in", first), Memory(a.sizes, a.dtype, layout), layout)
            # a row of whole blocks is the same bytes in blocks, and oneDNN wants to be told so
            seen = layout if not plain(layout, dims) else beside
            other = Operand(SRC_1, ("in", second), Memory(dims, b.dtype, seen), beside)
            target = Operand(DST, ("out", 0), Memory(y.sizes, y.dtype, layout), layout)
            post = post_ops(ask, links[1:], y.sizes, layout)
            yield Draft("binary", (source, other, target), (BINARY[link.op],), Attributes(post))


def _whole(ask: Ask, at: int, y: Tensor) -> bool:
    found = ask.inputs[at]
    return isinstance(found, Tensor) and found.sizes == y.sizes
