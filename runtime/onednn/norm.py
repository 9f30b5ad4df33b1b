"""Softmax and normalisation.

https://oneapi-src.github.io/oneDNN/dev_guide_softmax.html,
https://oneapi-src.github.io/oneDNN/dev_guide_layer_normalization.html
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from ...ops import DType
from ...ops.fused import ABSENT
from ..kernels.kernel import Ask
from .api import DST, SCALE, SHIFT, SRC, Refused
from .kernel import OneDnn, floats, result
from .memory import Memory
from .postops import Link, post_ops
from .primitive import Attributes, Draft, Operand

USE_SCALE, USE_SHIFT = 2, 4


class Softmax(OneDnn):
    """Softmax and LogSoftmax along one axis."""

    name = "onednn.softmax"
    ops = frozenset({"Softmax", "LogSoftmax"})
    inplace = True

    def drafts(self, ask: Ask, links: tuple[Link, ...]) -> Iterator[Draft]:
        """In the layout of the input, else row-major."""
        link, y = links[0], result(ask)
        (x,) = floats(ask, link.operands)
        axis = link.attr("axis") % len(x.sizes)
        algorithm = "softmax_log" if link.op == "LogSoftmax" else "softmax_accurate"
        for layout in dict.fromkeys((x.layout, "")):
            source = Operand(SRC, ("in", link.operands[0]), Memory(x.sizes, x.dtype, layout), layout)
            target = Operand(DST, ("out", 0), Memory(y.sizes, y.dtype, layout), layout)
            post = post_ops(ask, links[1:], y.sizes, layout)
            yield Draft("softmax_forward", (source, target), (algorithm, axis), Attributes(post))


class LayerNorm(OneDnn):
    """LayerNormalization over the last axes, without its statistics."""

    name = "onednn.layer_norm"
    ops = frozenset({"LayerNormalization"})
    inplace = True

    def drafts(self, ask: Ask, links: tuple[Link, ...]) -> Iterator[Draft]:
        """As a matrix, whose rows are normalised."""
        link, y = links[0], result(ask)
        (x,) = floats(ask, link.operands[:1])
        axis = link.attr("axis") % len(x.sizes)
        if link.attr("stash_type") != 1:
            raise Refused("the statistics are kept in another type than float32")
        columns = math.prod(x.sizes[axis:])
        sizes = (max(math.prod(x.sizes[:axis]), 1), columns)
        flags, operands = 0, [Operand(SRC, ("in", link.operands[0]), Memory(sizes, x.dtype))]
        for i, argument, flag in ((1, SCALE, USE_SCALE), (2, SHIFT, USE_SHIFT)):
            at = link.operand(i)
            if at == ABSENT:
                continue
            (t,) = floats(ask, [at])
            if t.elements != columns or t.dtype is not DType.FLOAT:
                raise Refused(f"{t} is spread over {columns} columns")
            flags |= flag
            operands.append(Operand(argument, ("in", at), Memory((columns,), t.dtype)))
        operands.append(Operand(DST, ("out", 0), Memory(sizes, y.dtype)))
        post = post_ops(ask, links[1:], y.sizes, "", sizes)
        yield Draft("layer_normalization_forward", tuple(operands), (link.attr("epsilon"), flags), Attributes(post))
