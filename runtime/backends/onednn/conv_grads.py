"""The gradients of a convolution with respect to its input and its weights.

https://oneapi-src.github.io/oneDNN/dev_guide_convolution.html
"""

from __future__ import annotations

from collections.abc import Iterator

from ....ops import Tensor
from ...compile.kernel import KernelRequest
from .api import DIFF_DST, DIFF_SRC, DIFF_WEIGHTS, SRC, WEIGHTS, Refused
from .conv import grouped, placed
from .kernel import OneDnn, channels_last, constant, floats, result
from .memory import ANY, Memory
from .postops import Link, alone
from .primitive import Attributes, Draft, Operand


class Training(OneDnn):
    """Base of the kernels of training twins and gradients."""

    domain = "mezzo"
    remembers = True


class ConvGradInput(Training):
    """`mezzo.ConvGradInput` of one to three spatial axes."""

    name = "onednn.conv_grad_input"
    ops = frozenset({"ConvGradInput"})

    def drafts(self, request: KernelRequest, links: tuple[Link, ...]) -> Iterator[Draft]:
        """See `layouts`."""
        link, dx = alone(links), result(request)
        dy, w = floats(request, link.operands[:2])
        weights = constant(request, WEIGHTS, link.operands[1], grouped(link, w), relaid=True)
        settings = placed(link, dx, w)
        for layout in layouts(dy, dx):
            source = Operand(DIFF_DST, ("in", link.operands[0]), Memory(dy.sizes, dy.dtype, layout), layout)
            target = Operand(DIFF_SRC, ("out", 0), Memory(dx.sizes, dx.dtype, layout), layout)
            yield Draft(
                "convolution_backward_data", (source, weights, target), settings, Attributes(math=request.target.math)
            )


class ConvGradWeights(Training):
    """`mezzo.ConvGradWeights` of one to three spatial axes."""

    name = "onednn.conv_grad_weights"
    ops = frozenset({"ConvGradWeights"})

    def drafts(self, request: KernelRequest, links: tuple[Link, ...]) -> Iterator[Draft]:
        """See `layouts`."""
        link, dw = alone(links), result(request)
        dy, x = floats(request, link.operands[:2])
        held = grouped(link, dw)
        weights = Operand(DIFF_WEIGHTS, ("out", 0), held.any(), source=held, relaid=True)
        settings = placed(link, x, dw)
        for layout in layouts(x, dy):
            after = Operand(DIFF_DST, ("in", link.operands[0]), Memory(dy.sizes, dy.dtype, layout), layout)
            before = Operand(SRC, ("in", link.operands[1]), Memory(x.sizes, x.dtype, layout), layout)
            yield Draft(
                "convolution_backward_weights", (before, after, weights), settings, Attributes(math=request.target.math)
            )


def layouts(*images: Tensor) -> tuple[str, ...]:
    """The layouts that are tried: those in which the images are at hand, those of oneDNN's choice, and the usual."""
    rank = len(images[0].sizes)
    if not 3 <= rank <= 5:
        raise Refused(f"{rank - 2} spatial axes")
    return tuple(dict.fromkeys((*(t.layout for t in images if t.layout), ANY, channels_last(rank), "")))
