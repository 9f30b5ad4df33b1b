"""Sums and means of several tensors, slopes of PRelu, and numbers in another float type.

https://oneapi-src.github.io/oneDNN/dev_guide_sum.html, https://oneapi-src.github.io/oneDNN/dev_guide_prelu.html,
https://oneapi-src.github.io/oneDNN/dev_guide_reorder.html
"""

from __future__ import annotations

from collections.abc import Iterator

from ....ops import Tensor
from ....ops.layouts import plain
from ...compile.kernel import KernelRequest
from .api import DST, MULTIPLE_SRC, SRC, WEIGHTS, Refused
from .kernel import FLOATS, OneDnn, floats, result
from .memory import Memory
from .postops import Link, keeping
from .primitive import Draft, Operand


class Sum(OneDnn):
    """Sum and Mean of several operands of one size."""

    name = "onednn.sum"
    ops = frozenset({"Sum", "Mean"})
    remembers = True
    slow = ("ref",)  # `simple:any` adds the operands piece by piece

    def drafts(self, request: KernelRequest, links: tuple[Link, ...]) -> Iterator[Draft]:
        """Yield drafts in the layout of the first operand, then row-major."""
        link, y = links[0], result(request)
        tensors = floats(request, link.operands)
        if len(links) > 1 or len(tensors) < 2 or any(t.sizes != y.sizes for t in tensors):
            raise Refused("operands are not of one size")
        scale = 1.0 if link.op == "Sum" else 1.0 / len(tensors)
        for layout in dict.fromkeys((tensors[0].layout, "")):
            operands = [
                Operand(MULTIPLE_SRC + i, ("in", at), Memory(t.sizes, t.dtype, layout), layout)
                for i, (at, t) in enumerate(zip(link.operands, tensors, strict=True))
            ]
            target = Operand(DST, ("out", 0), Memory(y.sizes, y.dtype, layout), layout)
            yield Draft("sum", (*operands, target), (scale,))


class PRelu(OneDnn):
    """PRelu with one slope for each channel, or for each element."""

    name = "onednn.prelu"
    ops = frozenset({"PRelu"})
    inplace = True

    def drafts(self, request: KernelRequest, links: tuple[Link, ...]) -> Iterator[Draft]:
        """Yield drafts in the layout of the input first."""
        link, y = links[0], result(request)
        keeping(request, link)
        x, slope = floats(request, link.operands)
        if len(links) > 1:
            raise Refused("oneDNN's prelu has no post-ops")
        sizes = (1,) * (len(x.sizes) - len(slope.sizes)) + slope.sizes
        for layout in dict.fromkeys((x.layout, "")):
            beside = layout if slope.sizes == x.sizes else ""
            # a row of whole blocks is the same bytes in blocks, and oneDNN wants to be told so
            seen = layout if not plain(layout, sizes) else beside
            source = Operand(SRC, ("in", link.operands[0]), Memory(x.sizes, x.dtype, layout), layout)
            slopes = Operand(WEIGHTS, ("in", link.operands[1]), Memory(sizes, slope.dtype, seen), beside)
            target = Operand(DST, ("out", 0), Memory(y.sizes, y.dtype, layout), layout)
            yield Draft("prelu_forward", (source, slopes, target))


class Cast(OneDnn):
    """Cast between float32 and bfloat16, to the nearest even. Subnormal numbers become zero, as in all arithmetic of
    bfloat16."""

    name = "onednn.cast"
    ops = frozenset({"Cast"})
    remembers = True

    def drafts(self, request: KernelRequest, links: tuple[Link, ...]) -> Iterator[Draft]:
        """One reorder, in the layout of the input."""
        x, y = request.inputs[0], request.outputs[0]
        if not isinstance(x, Tensor) or not isinstance(y, Tensor) or not {x.dtype, y.dtype} <= set(FLOATS):
            raise Refused(f"{x} to {y}")
        if len(links) > 1:
            raise Refused("oneDNN's reorder has no post-ops")
        for layout in dict.fromkeys((x.layout, "")):
            source = Operand(SRC, ("in", 0), Memory(x.sizes, x.dtype, layout), layout)
            yield Draft("reorder", (source, Operand(DST, ("out", 0), Memory(y.sizes, y.dtype, layout), layout)))
