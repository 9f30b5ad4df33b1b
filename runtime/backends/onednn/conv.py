"""Convolutions and transposed convolutions.

https://oneapi-src.github.io/oneDNN/dev_guide_convolution.html
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from ....ops import Tensor
from ....ops.core.fused import ABSENT
from ....ops.layouts import channels_last, is_permutation, parse, plain, row_major
from ....ops.nn.conv import transposed_windows
from ....ops.nn.windows import Window, known, windows
from ...compile.kernel import KernelRequest
from .api import BIAS, DST, SRC, TAGS, WEIGHTS, Refused
from .frames import as_it_is, flat
from .kernel import OneDnn, constant, floats, result
from .memory import ANY, Memory, strides_of
from .postops import Link, post_ops
from .primitive import Attributes, Draft, Operand, describe


class Conv(OneDnn):
    """Conv of one to three spatial axes, grouped and depthwise too, with bias and post-ops."""

    name = "onednn.conv"
    ops = frozenset({"Conv"})
    remembers = True
    kind = "convolution_forward"

    def drafts(self, request: KernelRequest, links: tuple[Link, ...]) -> Iterator[Draft]:
        """The layouts of oneDNN's choice first, then channels-last, then row-major; before them, blocks that are there
        already and save a reordering."""
        link = links[0]
        x, w = floats(request, link.operands[:2])
        y = result(request)
        if not 3 <= len(x.sizes) <= 5:
            raise Refused(f"{len(x.sizes) - 2} spatial axes")
        if _is_product(link, x, w):
            yield from _products(request, links, x, w, y)
        weights = self._weights(request, link, w)
        settings = (f"{self.kind.split('_')[0]}_direct", *_windows(self._windows(link, x, w, y)))
        bias: tuple[Operand, ...] = ()
        if link.operand(2) != ABSENT:
            (b,) = floats(request, [link.operand(2)])
            bias = (Operand(BIAS, ("in", link.operand(2)), Memory.of(b)),)
        attributes = Attributes(math=request.target.math)
        blocked = (x.layout,) if _stays_blocked(x, y, link.attr("group")) else ()
        for layout in (*blocked, ANY, channels_last(len(x.sizes)), ""):
            source = Operand(SRC, ("in", link.operands[0]), Memory(x.sizes, x.dtype, layout), layout)
            target = Operand(DST, ("out", 0), Memory(y.sizes, y.dtype, layout), layout)
            draft = Draft(self.kind, (source, weights, *bias, target), settings, attributes)
            drafts = _followed(request, links[1:], draft, y)
            yield from map(_turned, drafts) if _is_column(x, w, y) else drafts

    def _windows(self, link: Link, x: Tensor, w: Tensor, y: Tensor) -> tuple[Window, ...]:
        return _forward_windows(link, x, w)

    def _weights(self, request: KernelRequest, link: Link, w: Tensor) -> Operand:
        """The weights as oneDNN numbers their axes: with an axis for the groups, if there are several."""
        return constant(request, WEIGHTS, link.operands[1], grouped(link, w), relaid=True)


def grouped(link: Link, w: Tensor) -> Memory:
    """Weights as oneDNN numbers their axes: with an axis for the groups, if there are several."""
    group, sizes = link.attr("group"), w.sizes
    return Memory((group, sizes[0] // group, *sizes[1:]) if group > 1 else sizes, w.dtype)


def placed(link: Link, x: Tensor, w: Tensor) -> tuple[Any, ...]:
    """The algorithm of a convolution and where its windows lie, as oneDNN counts it."""
    return ("convolution_direct", *_windows(_forward_windows(link, x, w)))


def _forward_windows(link: Link, x: Tensor, w: Tensor) -> tuple[Window, ...]:
    a = link.attr
    return known(windows(x.sizes[2:], w.sizes[2:], a("strides"), a("dilations"), a("pads"), a("auto_pad")))


def _stays_blocked(x: Tensor, y: Tensor, group: int) -> bool:
    """True if the result should be in blocks of channels because the image is. The first convolutions of a network can
    only write blocks, later ones are faster channels-last. A depthwise one is as fast either way, and a result of one
    block is channels-last too, so that nothing needs to be reordered (MobileNetV2: up to 2 %)."""
    if not x.layout or is_permutation(x.layout):
        return False
    inner = [n for d, n in parse(x.layout, len(x.sizes))[1] if d == 1]
    return group == x.sizes[1] == y.sizes[1] or [y.sizes[1]] == inner


def _is_product(link: Link, x: Tensor, w: Tensor) -> bool:
    """True if the convolution is a product over a single pixel."""
    pixel = all(n == 1 for n in (*x.sizes[2:], *w.sizes[2:]))
    return link.op == "Conv" and pixel and link.attr("group") == 1 and not any(link.attr("pads") or ())


def _products(request: KernelRequest, links: tuple[Link, ...], x: Tensor, w: Tensor, y: Tensor) -> Iterator[Draft]:
    """A convolution of single pixels as the product of two matrices."""
    link, (filters, channels) = links[0], w.sizes[:2]
    left = Operand(SRC, ("in", link.operands[0]), Memory((x.sizes[0], channels), x.dtype))
    right = constant(request, WEIGHTS, link.operands[1], Memory((channels, filters), w.dtype, strides=(1, channels)))
    target = Operand(DST, ("out", 0), Memory((y.sizes[0], filters), y.dtype))
    operands = [left, right, target]
    if link.operand(2) != ABSENT:
        (b,) = floats(request, [link.operand(2)])
        operands.append(Operand(BIAS, ("in", link.operand(2)), Memory((1, filters), b.dtype)))
    post = post_ops(request, links[1:], flat(y.sizes, 1))
    yield Draft("matmul", tuple(operands), (), Attributes(post, request.target.math))


class ConvTranspose(Conv):
    """ConvTranspose of one to three spatial axes: oneDNN's deconvolution."""

    name = "onednn.conv_transpose"
    ops = frozenset({"ConvTranspose"})
    lengthy = True
    kind = "deconvolution_forward"

    def _windows(self, link: Link, x: Tensor, w: Tensor, y: Tensor) -> tuple[Window, ...]:
        a = link.attr
        return known(transposed_windows(
            x.sizes[2:], w.sizes[2:], a("strides"), a("dilations"), a("pads"), a("auto_pad"), a("output_padding"),
            a("output_shape"),
        ))  # fmt: skip

    def _weights(self, request: KernelRequest, link: Link, w: Tensor) -> Operand:
        """ONNX has the input channels first, oneDNN the output channels."""
        group, (channels, filters, *kernel) = link.attr("group"), w.sizes
        each = channels // group
        split = strides_of(row_major(len(w.sizes) + 1), (group, each, filters, *kernel))
        sizes, strides = (group, filters, each, *kernel), (split[0], split[2], split[1], *split[3:])
        if group == 1:
            sizes, strides = sizes[1:], strides[1:]
        return constant(request, WEIGHTS, link.operands[1], Memory(sizes, w.dtype, strides=strides), relaid=True)


def _is_column(x: Tensor, w: Tensor, y: Tensor) -> bool:
    """True if images are one pixel wide, and higher than that."""
    wide = {t.sizes[-1] for t in (x, w, y)}
    return len(x.sizes) == 4 and wide == {1} and y.sizes[2] > 1


def _turned(draft: Draft) -> Draft:
    """The same convolution over rows of pixels instead of columns: the bytes are the same, and oneDNN computes many
    pixels of a row at once."""

    def turn(memory: Memory) -> Memory:
        if len(memory.dims) < 4:
            return memory
        strides = memory.strides
        turned = (*strides[:-2], strides[-1], strides[-2]) if strides else None
        return replace(memory, dims=(*memory.dims[:-2], memory.dims[-1], memory.dims[-2]), strides=turned)

    def turned(operand: Operand) -> Operand:
        source = operand.source and turn(operand.source)
        return replace(operand, memory=turn(operand.memory), source=source)

    if not {o.memory.layout for o in draft.operands} <= {"", ANY, channels_last(4), *TAGS}:
        return draft
    post = tuple(replace(p, other=turn(p.other)) if p.other else p for p in draft.attributes.post)
    algorithm, *windows = draft.settings
    settings = (algorithm, *((w[1], w[0]) for w in windows))
    attributes = replace(draft.attributes, post=post)
    return replace(draft, operands=tuple(map(turned, draft.operands)), settings=settings, attributes=attributes)


def _windows(axes: Sequence[Window]) -> tuple[tuple[int, ...], ...]:
    """Strides, dilations and paddings as oneDNN counts them."""
    if any(w.out < 1 or min(w.before, w.after) < 0 for w in axes):
        raise Refused("there is no window, or a padding is negative")
    columns: list[Any] = [[w.stride, w.dilation - 1, w.before, w.after] for w in axes]
    return tuple(tuple(column) for column in zip(*columns, strict=True))


def _followed(request: KernelRequest, links: tuple[Link, ...], draft: Draft, y: Tensor) -> Iterator[Draft]:
    """The draft with post-ops. Operands of the result's size must lie as the result does: where oneDNN chooses that
    layout, it is asked for it first."""
    *others, target = draft.operands
    inputs = (request.inputs[i] for link in links for i in link.operands if i >= 0)
    if target.memory.layout == ANY and any(isinstance(t, Tensor) and t.sizes == y.sizes for t in inputs):
        chosen = plain(describe(draft, request.target.threads).layout(DST) or "", y.sizes)
        target = replace(target, memory=replace(target.memory, layout=chosen), layout=chosen)
    post = post_ops(request, links, as_it_is(y.sizes, target.layout))
    yield replace(draft, operands=(*others, target), attributes=replace(draft.attributes, post=post))
