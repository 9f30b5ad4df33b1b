"""Pooling in training: the maximum with its position, and the gradients.

https://oneapi-src.github.io/oneDNN/dev_guide_pooling.html
"""

from __future__ import annotations

from collections.abc import Iterator

from ....ops import Tensor
from ...compile.kernel import Call, KernelArgs, KernelRequest
from . import api
from .api import DIFF_DST, DIFF_SRC, DST, SRC, WORKSPACE, Refused
from .conv_grads import Training
from .kernel import channels_last, floats, result
from .looked import Looked
from .memory import Memory
from .pool import OneDnnPool, placed
from .postops import Link, alone
from .primitive import Draft, Operand, Place, describe
from .search import Odd


class TrainingPool(Training):
    """Pooling without the form that takes one element at a time."""

    slow = OneDnnPool.slow


class MaxPoolTrain(TrainingPool):
    """`mezzo.MaxPoolTrain`: its second output, the position in the window, is oneDNN's workspace."""

    name = "onednn.max_pool_train"
    ops = frozenset({"MaxPoolTrain"})

    def drafts(self, request: KernelRequest, links: tuple[Link, ...]) -> Iterator[Draft]:
        """Yield drafts in the layout of the input first, then channels-last."""
        link = alone(links)
        (x,) = floats(request, link.operands[:1])
        if len(request.outputs) != 2:
            raise Refused("one of its results is not requested")
        y, at = request.outputs
        if not isinstance(y, Tensor) or not isinstance(at, Tensor) or not 3 <= len(x.sizes) <= 5:
            raise Refused(f"results are {y} and {at}")
        settings = placed(link, x)
        for layout in dict.fromkeys((x.layout, channels_last(len(x.sizes)))):
            source = Operand(SRC, ("in", 0), Memory(x.sizes, x.dtype, layout), layout)
            target = Operand(DST, ("out", 0), Memory(y.sizes, y.dtype, layout), layout)
            position = Operand(WORKSPACE, ("out", 1), Memory(at.sizes, at.dtype, layout), layout)
            draft = Draft("pooling_training", (source, target, position), settings)
            yield checked(request, draft, position)

    def prepare(self, args: KernelArgs) -> Call:
        """The primitive; windows of nothing but -inf are looked for (see OneDnnPool) and, where no NaN may be lost,
        images with one."""
        odd: dict[Place, tuple[Odd, ...]] = {("out", 0): ("lowest",)}
        if args.request.target.nan != "watched":
            odd["in", 0] = ("nan",)
        return Looked(super().prepare(args), args, odd)


class MaxPoolGrad(TrainingPool):
    """`mezzo.MaxPoolGrad` from the positions."""

    name = "onednn.max_pool_grad"
    ops = frozenset({"MaxPoolGrad"})

    def drafts(self, request: KernelRequest, links: tuple[Link, ...]) -> Iterator[Draft]:
        """Yield drafts in the layout of the positions first, then channels-last."""
        link, dx, at = alone(links), result(request), request.inputs[1]
        (dy,) = floats(request, link.operands[:1])
        assert isinstance(at, Tensor)
        settings = placed(link, dx)
        for layout in dict.fromkeys((at.layout, channels_last(len(dx.sizes)))):
            position = Operand(WORKSPACE, ("in", 1), Memory(at.sizes, at.dtype, layout), layout)
            yield checked(request, Draft("pooling_backward", (*_grads(dy, dx, layout), position), settings), position)


class AveragePoolGrad(TrainingPool):
    """`mezzo.AveragePoolGrad`."""

    name = "onednn.average_pool_grad"
    ops = frozenset({"AveragePoolGrad"})

    def drafts(self, request: KernelRequest, links: tuple[Link, ...]) -> Iterator[Draft]:
        """Yield drafts in the layout of the gradient first, then channels-last."""
        link, dx = alone(links), result(request)
        (dy,) = floats(request, link.operands[:1])
        for layout in dict.fromkeys((dy.layout, channels_last(len(dx.sizes)))):
            yield Draft("pooling_backward", _grads(dy, dx, layout), placed(link, dx))


def _grads(dy: Tensor, dx: Tensor, layout: str) -> tuple[Operand, ...]:
    if not 3 <= len(dx.sizes) <= 5:
        raise Refused(f"{len(dx.sizes) - 2} spatial axes")
    return (
        Operand(DIFF_DST, ("in", 0), Memory(dy.sizes, dy.dtype, layout), layout),
        Operand(DIFF_SRC, ("out", 0), Memory(dx.sizes, dx.dtype, layout), layout),
    )


def checked(request: KernelRequest, draft: Draft, position: Operand) -> Draft:
    """The draft, if oneDNN keeps positions as we do; Refused otherwise."""
    descriptor = describe(draft, request.target.threads)
    if not api.getter("memory_desc_equal")(descriptor.memory(WORKSPACE), position.memory.handle.value):
        raise Refused("positions are kept in another form")
    return draft
