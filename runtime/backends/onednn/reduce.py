"""Reductions: sums, means, extremes and products along axes.

https://oneapi-src.github.io/oneDNN/dev_guide_reduction.html. oneDNN is fast along the last axes; with others behind,
the reduced ones are the window of a pooling of images whose channels are those others, or a sum is a product with ones
(exact where the sum is: counts stay whole). Axes that lie side by side are one, so that two primitives do for most
tensors. The largest and the smallest are NumPy's (cpu/reductions.py): here infinities and NaN would be lost.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import groupby
from typing import Any

import numpy as np

from ....ops import DType, Tensor
from ....ops.core.fused import ABSENT
from ....ops.layouts import channels_last, is_permutation, parse, row_major, usual
from ...compile.kernel import KernelRequest
from .api import DST, SRC, WEIGHTS, Refused
from .frames import Frame, flat
from .kernel import WORK, OneDnn, floats, result
from .memory import Memory
from .postops import NOTHING, Link, chain, post_ops
from .primitive import Attributes, Draft, Operand, Place, PostOp

# what is done to each element before, how they are combined, and what is done to the result
REDUCTIONS = {
    "ReduceSum": ("", "sum", ""),
    "ReduceMean": ("", "mean", ""),
    "ReduceProd": ("", "mul", ""),
    "ReduceL1": ("eltwise_abs", "sum", ""),
    "ReduceL2": ("eltwise_square", "sum", "eltwise_sqrt"),
    "ReduceSumSquare": ("eltwise_square", "sum", ""),
    "ReduceLogSum": ("", "sum", "eltwise_log"),
    "GlobalAveragePool": ("", "mean", ""),  # where pooling is slow
}
POOLING = {"mean": "pooling_avg_exclude_padding"}


class OneDnnReduce(OneDnn):
    """A reduction along known axes, and the operators that follow it."""

    name = "onednn.reduce"
    ops = frozenset(REDUCTIONS)
    remembers = True

    def plans(self, request: KernelRequest) -> Iterator[tuple[Draft, ...]]:
        """Yield plans in the layout of the input, then row-major."""
        links = chain(request.node)
        (x,) = floats(request, links[0].operands[:1])
        axes = _axes(request, links[0], x)
        if links[0].op == "ReduceSumSquare":
            from ..cpu.reductions import unsquared  # imported where it is asked: see runtime/compile/lazy_kernel.py

            if unsquared(x, sorted(axes)) is None:
                raise Refused("a dot product reads the operand once")
        if not x.elements:
            raise Refused("there are no elements")
        if all(x.sizes[a] == 1 for a in axes):
            yield (_single(request, links, x, 0.0 if axes else NOTHING),)
            return
        for layout in dict.fromkeys((usual(x.layout, x.sizes) if is_permutation(x.layout) else "", "")):
            yield tuple(_drafts(request, links, x, axes, layout))


def _axes(request: KernelRequest, link: Link, x: Tensor) -> frozenset[int]:
    if link.op.startswith("Global"):
        return frozenset(range(2, x.rank))
    axes: list[int] | None = None
    if link.operand(1) != ABSENT:
        known = request.inputs[link.operand(1)]
        axes = known.ints() if isinstance(known, Tensor) else None
        if axes is None:
            raise Refused("the axes are not known")
    if not axes:
        axes = [] if link.attr("noop_with_empty_axes") else list(range(x.rank))
    return frozenset(a % x.rank for a in axes)


def _single(request: KernelRequest, links: tuple[Link, ...], x: Tensor, first: float) -> Draft:
    """Return the draft for a single element: it and `first`, with the functions before and after the reduction."""
    before, _, after = REDUCTIONS[links[0].op]
    y, sizes = result(request), (1, x.elements or 1)
    post = ((PostOp(after),) if after else ()) + post_ops(request, links[1:], flat(y.sizes, 0))
    source = Operand(SRC, ("in", links[0].operands[0]), Memory(sizes, x.dtype))
    target = Operand(DST, ("out", 0), Memory(sizes, y.dtype))
    settings = (before, 0.0, 0.0) if before else ("eltwise_linear", 1.0, first)
    return Draft("eltwise_forward", (source, target), settings, Attributes(post))


def _drafts(
    request: KernelRequest, links: tuple[Link, ...], x: Tensor, axes: frozenset[int], layout: str
) -> Iterator[Draft]:
    before, combine, after = REDUCTIONS[links[0].op]
    y = result(request)
    order = parse(layout, x.rank)[0] if layout else tuple(range(x.rank))
    groups = [(r, tuple(dims)) for r, dims in groupby([d for d in order if x.sizes[d] > 1], axes.__contains__)]
    place: Place = ("in", links[0].operands[0])
    dtype, shown, turn = x.dtype, layout, 0
    if before:
        if x.dtype is not DType.FLOAT:
            raise Refused("the function before the reduction would be rounded")
        memory = Memory((1, x.elements or 1), dtype)
        operands: tuple[Operand, ...] = (Operand(SRC, place, memory, layout), Operand(DST, (WORK, 0), memory))
        yield Draft("eltwise_forward", operands, (before, 0.0, 0.0))
        place, shown = (WORK, 0), ""
    settings: tuple[Any, ...]
    post: tuple[PostOp, ...]
    while groups:
        last, inner = groups.pop()
        size, window = _count(x, inner), 1 if last else _count(x, groups.pop()[1])
        outer = tuple(d for _, dims in groups for d in dims)
        rows = _count(x, outer)
        seen = ""
        parts: tuple[tuple[int, ...], ...] = (outer, (), inner)
        if last:
            source, kind, settings = Memory((rows, size), dtype), "reduction", (f"reduction_{combine}", 0.0, 0.0)
            parts = (outer, ())
        elif combine == "sum":
            source, kind, settings = Memory((rows, window, size), dtype), "matmul", ()
        elif combine in POOLING:
            seen, parts = channels_last(4), (outer, inner, (), ())
            source, kind = Memory((rows, size, window, 1), dtype, seen), "pooling_forward"
            settings = (POOLING[combine], (1, 1), (window, 1), (0, 0), (0, 0), (0, 0))
        else:
            raise Refused(f"oneDNN has no {combine} over axes before others")
        groups = _joined(groups if last else [*groups, (False, inner)])
        if any(reduced for reduced, _ in groups):
            turn += 1
            post = ()
            target = Operand(DST, (WORK, turn), Memory(tuple(_count(x, p) for p in parts), DType.FLOAT, seen))
        else:
            groups = []
            frame = _result(y, order, axes, parts, seen)
            post = ((PostOp(after),) if after else ()) + post_ops(request, links[1:], frame, sums=not seen)
            target = Operand(DST, ("out", 0), frame.memory(y.dtype), frame.layout)
        operands = (Operand(SRC, place, source, shown), target)
        if kind == "matmul":
            operands = (_ones(window, dtype), Operand(WEIGHTS, place, source, shown), target)
        yield Draft(kind, operands, settings, Attributes(post))
        place, dtype, shown = target.place, DType.FLOAT, ""


def _count(x: Tensor, dims: tuple[int, ...]) -> int:
    return math.prod(x.sizes[d] for d in dims)


def _result(
    y: Tensor, order: tuple[int, ...], axes: frozenset[int], parts: tuple[tuple[int, ...], ...], seen: str
) -> Frame:
    """Return the frame of the last primitive's result, which has these dims of the input left, in this order."""
    kept = sorted(order) if len(y.sizes) == len(order) else [d for d in sorted(order) if d not in axes]
    letters = row_major(y.rank)
    layout = usual("".join(letters[kept.index(d)] for d in order if d in kept), y.sizes)
    return Frame(y.sizes, tuple(tuple(kept.index(d) for d in dims) for dims in parts), layout, seen)


def _ones(count: int, dtype: DType) -> Operand:
    """A row of ones."""
    return Operand(SRC, ("given", 0), Memory((1, 1, count), dtype), value=np.ones(count, dtype.numpy).tobytes())


def _joined(groups: list[tuple[bool, tuple[int, ...]]]) -> list[tuple[bool, tuple[int, ...]]]:
    """Axes that lie side by side as one."""
    return [(r, tuple(d for _, dims in same for d in dims)) for r, same in groupby(groups, lambda g: g[0])]
