"""Convolutions and transposed convolutions, with the operators that follow them.

A transposed convolution is the gradient of a convolution by its input. A residual is added before the bias: the sum is
the same but for one rounding in float32, and most engines know that order only.
https://docs.nvidia.com/deeplearning/cudnn/frontend/latest/operations/Convolutions.html
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .....ops import DType, Tensor
from .....ops.core.fused import ABSENT
from .....ops.nn.conv import transposed_windows
from .....ops.nn.windows import Window, known, windows
from ....compile.kernel import KernelRequest
from ...onednn.postops import Link
from .draft import GraphDraft, GraphRefused, GraphTensor, Writer, channels_last, strides_of
from .epilogue import Epilogue
from .kernel import CuDnn, floats, result


class Conv(CuDnn):
    """Conv of one to three spatial axes, grouped and depthwise too, with bias and epilogue."""

    name = "cudnn.conv"
    ops = frozenset({"Conv"})
    operation = "conv_fprop"

    def drafts(self, request: KernelRequest, links: tuple[Link, ...]) -> Iterator[GraphDraft]:
        """Tensor cores like channels-last images best, and the engines of strict float32 row-major ones."""
        link, y = links[0], result(request)
        x, w = floats(request, link.operands[:2])
        if not 3 <= len(x.sizes) <= 5:
            raise GraphRefused(f"{len(x.sizes) - 2} spatial axes")
        if x.dtype is not w.dtype or x.dtype is not y.dtype:
            raise GraphRefused(f"{x} and {w} make {y}")
        windows = self._windows(link, x, w)
        orders = (channels_last(len(x.sizes)), "")
        strict = x.dtype is DType.DOUBLE or (x.dtype is DType.FLOAT and request.target.math != "tf32")
        clips = (True, False) if link.attr("group") > 1 else (False, True)
        for layout in reversed(orders) if strict else orders:
            seen: list[GraphDraft] = []
            for clipped in clips if any(later.op == "Clip" for later in links[1:]) else (False,):
                draft = self._draft_in(layout, request, links, windows, clipped)
                if draft not in seen:
                    seen.append(draft)
                    yield draft

    def _windows(self, link: Link, x: Tensor, w: Tensor) -> tuple[Window, ...]:
        a = link.attr
        return known(windows(x.sizes[2:], w.sizes[2:], a("strides"), a("dilations"), a("pads"), a("auto_pad")))

    def _draft_in(
        self, layout: str, request: KernelRequest, links: tuple[Link, ...], windows: Sequence[Window], clipped: bool
    ) -> GraphDraft:
        link, y = links[0], result(request)
        x, w = floats(request, link.operands[:2])
        writer, target = Writer(), operand(("out", 0), y, layout)
        image = writer.read(operand(("in", link.operands[0]), x, layout))
        weights = writer.read(operand(("in", link.operands[1]), w, layout))
        value = writer.add(
            self.operation, image, weights, sizes=target.sizes, **settings_of(windows, len(target.sizes))
        )
        epilogue = Epilogue(request, writer, y.sizes, target.sizes, layout, clipped)
        tail = links[1:]
        if link.operand(2) != ABSENT:
            (b,) = floats(request, [link.operand(2)])
            other = epilogue.residual(tail[0]) if tail else None
            if other is not None:
                value, tail = epilogue.add("add", value, other), tail[1:]
            value = epilogue.add("bias", value, writer.read(_channels(link.operand(2), b, len(target.sizes))))
        epilogue.follow(tail, value)
        math = "tf32" if request.target.math == "tf32" else "strict"
        return writer.draft(target, math)


class ConvTranspose(Conv):
    """ConvTranspose of one to three spatial axes."""

    name = "cudnn.conv_transpose"
    ops = frozenset({"ConvTranspose"})
    operation = "conv_dgrad"

    def _windows(self, link: Link, x: Tensor, w: Tensor) -> tuple[Window, ...]:
        a = link.attr
        windows = known(transposed_windows(
            x.sizes[2:], w.sizes[2:], a("strides"), a("dilations"), a("pads"), a("auto_pad"), a("output_padding"),
            a("output_shape"),
        ))  # fmt: skip
        for size, window in zip(x.sizes[2:], windows, strict=True):
            if (window.out + window.before + window.after - window.span) // window.stride + 1 != size:
                raise GraphRefused("the result is of another size than the gradient of a convolution")
        return windows


def settings_of(windows: Sequence[Window], rank: int) -> dict[str, tuple[int, ...]]:
    """Return the padding, strides and dilations. cuDNN needs at least two spatial axes, so that a single one gets a
    first axis of size 1."""
    if any(w.out < 1 or min(w.before, w.after) < 0 for w in windows):
        raise GraphRefused("there is no window, or a padding is negative")
    more = rank - 2 - len(windows)
    return {
        "pre_padding": (0,) * more + tuple(w.before for w in windows),
        "post_padding": (0,) * more + tuple(w.after for w in windows),
        "stride": (1,) * more + tuple(w.stride for w in windows),
        "dilation": (1,) * more + tuple(w.dilation for w in windows),
    }


def operand(place: tuple[str, int], t: Tensor, layout: str) -> GraphTensor:
    strides = strides_of(layout, t.sizes)
    more = (1,) * max(4 - len(t.sizes), 0)
    sizes = (*t.sizes[:2], *more, *t.sizes[2:])
    # a place that is all there is of its axis: its neighbour would lie where the next one of the whole row does
    first = tuple(strides[2] * t.sizes[2] for _ in more)
    return GraphTensor(place, sizes, (*strides[:2], *first, *strides[2:]), t.dtype, layout)


def _channels(at: int, b: Tensor, rank: int) -> GraphTensor:
    """A bias: one number for each channel."""
    count = b.sizes[0]
    return GraphTensor(("in", at), (1, count, *(1,) * (rank - 2)), (count, 1, *(count,) * (rank - 2)), b.dtype)
