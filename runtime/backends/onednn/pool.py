"""Pooling: the maximum or the average of windows, or of whole images.

https://oneapi-src.github.io/oneDNN/dev_guide_pooling.html
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ....ops import Tensor
from ....ops.layouts import channels_last
from ....ops.nn.windows import Window, known, windows
from ...compile.kernel import Call, KernelArgs, KernelRequest
from .api import DST, SRC, Refused
from .frames import as_it_is, images
from .kernel import REFERENCE, OneDnn, floats, result
from .looked import Looked
from .memory import Memory
from .postops import Link, chain, keeping, post_ops
from .primitive import Attributes, Draft, Operand, Place
from .search import Odd

WHOLE = {"GlobalAveragePool": "pooling_avg_exclude_padding", "GlobalMaxPool": "pooling_max"}


class OneDnnPool(OneDnn):
    """MaxPool and AveragePool without indices, and their global forms, of one to three spatial axes."""

    name = "onednn.pool"
    ops = frozenset({"MaxPool", "AveragePool", *WHOLE})
    remembers = True
    slow = (*REFERENCE, "simple_nchw")  # one element at a time

    def drafts(self, request: KernelRequest, links: tuple[Link, ...]) -> Iterator[Draft]:
        """Yield drafts in the layout of the input first, then channels-last."""
        link = links[0]
        keeping(request, link)
        (x,) = floats(request, link.operands[:1])
        y = result(request)
        if not 3 <= len(x.sizes) <= 5:
            raise Refused(f"{len(x.sizes) - 2} spatial axes")
        settings = placed(link, x)
        layouts = [x.layout, channels_last(len(x.sizes)), ""]
        if link.op in WHOLE and not x.layout:  # a reduction of last axes is better than moving the image
            layouts = [""]
        for layout in images(x.sizes, *layouts):
            source = Operand(SRC, ("in", link.operands[0]), Memory(x.sizes, x.dtype, layout), layout)
            target = Operand(DST, ("out", 0), Memory(y.sizes, y.dtype, layout), layout)
            post = post_ops(request, links[1:], as_it_is(y.sizes, layout), sums=False)
            yield Draft("pooling_forward", (source, target), settings, Attributes(post))

    def prepare(self, args: KernelArgs) -> Call:
        """The primitive. Its maxima begin with the lowest finite number, so that windows of nothing but -inf are looked
        for: in the result or, where other operators follow, in the image."""
        call = super().prepare(args)
        first, *others = chain(args.request.node)
        if not first.op.endswith("MaxPool"):
            return call
        image = ("in", first.operands[0])
        odd: dict[Place, tuple[Odd, ...]] = {image if others else ("out", 0): ("lowest",)}
        if args.request.target.nan == "kept":
            odd[image] = ("nan", *odd.get(image, ()))
        return Looked(call, args, odd)


def placed(link: Link, x: Tensor) -> tuple[Any, ...]:
    """The algorithm of a pooling and where its windows lie, as oneDNN counts it."""
    if link.op in WHOLE:
        algorithm = WHOLE[link.op]
        axes = tuple(Window(n, 1, 1, 0, 0, 1) for n in x.sizes[2:])
    else:
        a = link.attr
        around = windows(
            x.sizes[2:], a("kernel_shape"), a("strides"), a("dilations"), a("pads"), a("auto_pad"), a("ceil_mode")
        )
        axes = known(around)
        algorithm = _algorithm(link, axes)
    if any(w.out < 1 or w.span > n + w.before + w.after + w.extra for w, n in zip(axes, x.sizes[2:], strict=True)):
        raise Refused("there is no window")
    return (
        algorithm,
        *(tuple(getattr(w, k) for w in axes) for k in ("stride", "kernel")),
        tuple(w.dilation - 1 for w in axes),
        tuple(w.before for w in axes),
        # what is left over at the end is cut, where oneDNN would see a negative padding
        tuple((w.out - 1) * w.stride + w.span - n - w.before for w, n in zip(axes, x.sizes[2:], strict=True)),
    )


def _algorithm(link: Link, axes: tuple[Window, ...]) -> str:
    if link.op.startswith("MaxPool"):
        return "pooling_max"
    if not link.attr("count_include_pad"):
        return "pooling_avg_exclude_padding"
    if any(w.extra for w in axes):
        raise Refused("windows reach beyond the padding that they count")
    return "pooling_avg_include_padding"
