"""Gradients of convolutions, by the image and by the weights.

https://docs.nvidia.com/deeplearning/cudnn/frontend/latest/operations/Convolutions.html
"""

from __future__ import annotations

from collections.abc import Iterator

from .....ops import DType, Tensor
from .....ops.nn.windows import known, windows
from ....compile.kernel import KernelRequest
from ...onednn.postops import Link
from .conv import operand, settings_of
from .draft import GraphDraft, GraphRefused, Writer, channels_last
from .kernel import CuDnn, floats, result


class ConvGradient(CuDnn):
    """Base of both: `operation` of two operands of a convolution, of which the third is the result."""

    domain = "mezzo"
    operation: str
    weights_made: bool

    def drafts(self, request: KernelRequest, links: tuple[Link, ...]) -> Iterator[GraphDraft]:
        """The orders of axes are those of the convolution itself: see Conv. Nothing can follow a gradient."""
        if len(links) > 1:
            raise GraphRefused("nothing can follow a gradient")
        link, gradient = links[0], result(request)
        first, second = floats(request, link.operands[:2])
        rank = len(gradient.sizes)
        if not 3 <= rank <= 5 or len({first.dtype, second.dtype, gradient.dtype}) > 1:
            raise GraphRefused(f"{rank - 2} spatial axes, or {first} and {second} make {gradient}")
        strict = gradient.dtype is DType.DOUBLE or (gradient.dtype is DType.FLOAT and request.target.math != "tf32")
        orders = (channels_last(rank), "")
        for layout in reversed(orders) if strict else orders:
            yield self._draft_in(layout, request, link, first, second, gradient)

    def _draft_in(
        self, layout: str, request: KernelRequest, link: Link, first: Tensor, second: Tensor, gradient: Tensor
    ) -> GraphDraft:
        writer, target = Writer(), operand(("out", 0), gradient, layout)
        places = [("in", place) for place in link.operands[:2]]
        read = [writer.read(operand(p, t, layout)) for p, t in zip(places, (first, second), strict=True)]
        image, weights = (second, gradient) if self.weights_made else (gradient, second)
        a = link.attr
        around = known(
            windows(image.sizes[2:], weights.sizes[2:], a("strides"), a("dilations"), a("pads"), a("auto_pad"))
        )
        inputs = reversed(read) if self.weights_made else read  # cuDNN names the image before the slope
        writer.add(self.operation, *inputs, sizes=target.sizes, **settings_of(around, len(target.sizes)))
        return writer.draft(target, "tf32" if request.target.math == "tf32" else "strict")


class ImageGradient(ConvGradient):
    """mezzo::ConvGradInput of one to three spatial axes, grouped and depthwise too."""

    name = "cudnn.conv_grad_input"
    ops = frozenset({"ConvGradInput"})
    operation = "conv_dgrad"
    weights_made = False


class WeightsGradient(ConvGradient):
    """mezzo::ConvGradWeights of one to three spatial axes, grouped and depthwise too."""

    name = "cudnn.conv_grad_weights"
    ops = frozenset({"ConvGradWeights"})
    operation = "conv_wgrad"
    weights_made = True
