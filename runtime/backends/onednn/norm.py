"""Softmax and normalisation: over last axes, over groups of channels, across channels.

https://oneapi-src.github.io/oneDNN/dev_guide_softmax.html,
https://oneapi-src.github.io/oneDNN/dev_guide_layer_normalization.html,
https://oneapi-src.github.io/oneDNN/dev_guide_lrn.html
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from ....ops import DType
from ....ops.core.fused import ABSENT
from ....ops.layouts import channels_last, row_major
from ...compile.kernel import Alias, Call, KernelArgs, KernelRequest
from ..short_rows import short_rows
from .api import DST, SCALE, SHIFT, SRC, SRC_1, Refused
from .frames import Frame, flat, images, lying
from .kernel import WORK, OneDnn, floats, result
from .looked import Looked
from .memory import Memory
from .postops import Link, chain, keeping, post_ops
from .primitive import Attributes, Descriptor, Draft, Operand, PostOp

USE_SCALE, USE_SHIFT = 2, 4


class Rowwise(OneDnn):
    """Kernels that pass over a row more than once: the result may overwrite their input, but not an operand of a
    post-op, where intermediate numbers would overwrite elements that are still to be read."""

    inplace = True

    def _aliases(
        self, request: KernelRequest, descriptors: Sequence[Descriptor], layouts: Sequence[str]
    ) -> Iterator[Alias]:
        first, *others = chain(request.node)
        again = {at for link in others for at in link.operands}
        return (
            a
            for a in super()._aliases(request, descriptors, layouts)
            if a.input == first.operands[0] and a.input not in again
        )


class Softmax(Rowwise):
    """Softmax and LogSoftmax along one axis."""

    name = "onednn.softmax"
    ops = frozenset({"Softmax", "LogSoftmax"})
    remembers = True

    def drafts(self, request: KernelRequest, links: tuple[Link, ...]) -> Iterator[Draft]:
        """Yield drafts in the layout of the input, then row-major, then with the elements of the axis contiguous."""
        link, y = links[0], result(request)
        keeping(request, link)
        (x,) = floats(request, link.operands)
        axis = link.attr("axis") % len(x.sizes)
        if link.op == "Softmax" and not links[1:] and short_rows(x, axis):
            raise Refused("it goes over one short row at a time")
        algorithm = "softmax_log" if link.op == "LogSoftmax" else "softmax_accurate"
        letters = row_major(len(x.sizes))
        for layout in dict.fromkeys((x.layout, "", letters.replace(letters[axis], "") + letters[axis])):
            frame = lying(x.sizes, layout, axis)
            source = Operand(SRC, ("in", link.operands[0]), frame.memory(x.dtype), frame.layout)
            target = Operand(DST, ("out", 0), frame.memory(y.dtype), frame.layout)
            post = post_ops(request, links[1:], frame, sums=False)
            yield Draft("softmax_forward", (source, target), (algorithm, frame.axis(axis)), Attributes(post))

    def prepare(self, args: KernelArgs) -> Call:
        """The primitive, which leaves one NaN of a row; where nobody can run it again, rows with one are the
        reference's."""
        call = super().prepare(args)
        first = chain(args.node)[0].operands[0]
        return Looked(call, args, {("in", first): ("not finite",)}) if args.request.target.nan == "kept" else call


class LayerNorm(Rowwise):
    """LayerNormalization over the last axes, without its statistics."""

    name = "onednn.layer_norm"
    ops = frozenset({"LayerNormalization"})
    remembers = True

    def drafts(self, request: KernelRequest, links: tuple[Link, ...]) -> Iterator[Draft]:
        """Yield the draft of a matrix whose rows are normalised."""
        link, y = links[0], result(request)
        (x,) = floats(request, link.operands[:1])
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
            (t,) = floats(request, [at])
            if t.elements != columns or (t.dtype is not DType.FLOAT and not request.constant(at)):
                raise Refused(f"{t} is spread over {columns} columns")
            flags |= flag
            # oneDNN takes them in float32 only
            source = None if t.dtype is DType.FLOAT else Memory((columns,), t.dtype)
            operands.append(Operand(argument, ("in", at), Memory((columns,), DType.FLOAT), source=source))
        operands.append(Operand(DST, ("out", 0), Memory(sizes, y.dtype)))
        post = post_ops(request, links[1:], flat(y.sizes, axis))
        yield Draft("layer_normalization_forward", tuple(operands), (link.attr("epsilon"), flags), Attributes(post))


class ChannelNorm(OneDnn):
    """InstanceNormalization and GroupNormalization: the channels of a group are normalised as one row, then each
    channel is scaled and shifted."""

    name = "onednn.channel_norm"
    ops = frozenset({"InstanceNormalization", "GroupNormalization"})

    def plans(self, request: KernelRequest) -> Iterator[tuple[Draft, ...]]:
        """Two primitives over the row-major image."""
        links = chain(request.node)
        link, y = links[0], result(request)
        x, scale, shift = floats(request, link.operands)
        if len({t.dtype for t in (x, scale, shift)}) > 1 or x.dtype is not DType.FLOAT:
            raise Refused("intermediate numbers are rounded to another type than float32")
        if len(x.sizes) < 3 or link.attrs.get("stash_type", 1) != 1:
            raise Refused("there are no elements in a channel, or statistics are kept in another type than float32")
        batch, channels, *spatial = x.sizes
        groups = link.attr("num_groups") if link.op == "GroupNormalization" else channels
        rows = Memory((batch * groups, channels // groups * math.prod(spatial)), x.dtype)
        normed = Operand(DST, (WORK, 0), rows)
        first = Draft("layer_normalization_forward", (Operand(SRC, ("in", link.operands[0]), rows), normed),
                      (link.attr("epsilon"), 0))  # fmt: skip
        pixels = tuple(range(2, len(x.sizes)))
        apart = math.prod(spatial) > 1  # else one axis more would let oneDNN mistake the channels
        frame = Frame(y.sizes, ((0,), (1,), pixels) if apart else ((0,), (1, *pixels)))
        image, channel = frame.memory(x.dtype), Memory((1, channels, 1)[: len(frame.groups)], x.dtype)
        operands = (
            Operand(SRC, (WORK, 0), image),
            Operand(SRC_1, ("in", link.operands[1]), channel),
            Operand(DST, ("out", 0), image),
        )
        shifted = PostOp("binary_add", other=channel, place=("in", link.operands[2]))
        post = (shifted, *post_ops(request, links[1:], frame))
        yield first, Draft("binary", operands, ("binary_mul",), Attributes(post))


class LocalNorm(OneDnn):
    """LRN: each element divided by a power of the squares around it, across channels."""

    name = "onednn.lrn"
    ops = frozenset({"LRN"})

    def drafts(self, request: KernelRequest, links: tuple[Link, ...]) -> Iterator[Draft]:
        """Yield drafts in the layout of the input first, but not row-major: there oneDNN adds to and subtracts from one
        running sum while its window moves, so that all channels after a large number lose digits, and after an infinity
        are NaN."""
        link, y = links[0], result(request)
        (x,) = floats(request, link.operands)
        if x.elements == x.sizes[0] * x.sizes[1]:
            raise Refused("channels of one pixel lie row-major")
        if len(links) > 1 or not link.attr("size") % 2:
            raise Refused("a window of an even size, whose longer side is another")
        settings = ("lrn_across_channels", link.attr("size"), *map(link.attr, ("alpha", "beta", "bias")))
        for layout in filter(None, images(x.sizes, x.layout, channels_last(len(x.sizes)))):
            source = Operand(SRC, ("in", link.operands[0]), Memory(x.sizes, x.dtype, layout), layout)
            target = Operand(DST, ("out", 0), Memory(y.sizes, y.dtype, layout), layout)
            yield Draft("lrn_forward", (source, target), settings)
