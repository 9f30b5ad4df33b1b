"""Matrix products: MatMul and Gemm, with bias and post-ops.

https://oneapi-src.github.io/oneDNN/dev_guide_matmul.html
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from ....ops import Tensor
from ....ops.core.fused import ABSENT, PREVIOUS
from ....ops.layouts import is_permutation, row_major, usual
from ....ops.types import DType
from ...compile.kernel import KernelRequest
from .api import BIAS, DST, SRC, WEIGHTS, Refused
from .frames import as_it_is, flat
from .kernel import OneDnn, constant, floats, result
from .memory import Memory, strides_of
from .postops import Link, post_ops
from .primitive import Attributes, Draft, Operand, PostOp

ONE_ROW = 1 << 19  # elements of a weight: smaller ones stay in a processor's own memory


class MatMul(OneDnn):
    """MatMul of any number of leading axes, broadcast; operands and result may have their axes in any order."""

    name = "onednn.matmul"
    ops = frozenset({"MatMul"})
    remembers = True

    def drafts(self, request: KernelRequest, links: tuple[Link, ...]) -> Iterator[Draft]:
        """Yield the draft of a single product of two matrices if the second operand is one, else the batched
        product."""
        link = links[0]
        a, b = floats(request, link.operands)
        y = result(request)
        if min(len(a.sizes), len(b.sizes)) < 2:
            raise Refused("an operand is a vector")
        rank, layout = len(y.sizes), usual(y.layout, y.sizes)
        rows, columns = row_major(rank)[-2], row_major(rank)[-1]
        if is_permutation(layout) and len(links) == 1:  # oneDNN's post-ops err in such results
            if layout[-1] == columns:
                yield self._batched(request, links, a, b, y, layout)
            if layout[-1] == rows and 1 not in y.sizes[-2:]:
                yield self._turned(request, links, a, b, y, layout)
        if len(b.sizes) == 2:
            left = Memory((math.prod(a.sizes[:-1]), a.sizes[-1]), a.dtype)
            yield from one_row(request, links, left, Memory(b.sizes, b.dtype), y)
            try:
                yield _flat(request, links, a, b, y)
            except Refused:
                if len(a.sizes) == 2:
                    raise
        yield self._batched(request, links, a, b, y, "")

    def _batched(
        self, request: KernelRequest, links: tuple[Link, ...], a: Tensor, b: Tensor, y: Tensor, layout: str
    ) -> Draft:
        sides = [
            self._side(at, t, len(y.sizes), argument)
            for argument, at, t in zip((SRC, WEIGHTS), links[0].operands, (a, b), strict=True)
        ]
        target = Operand(DST, ("out", 0), Memory(y.sizes, y.dtype, layout), layout)
        post = post_ops(request, links[1:], as_it_is(y.sizes, layout))
        return Draft("matmul", (*sides, target), attributes=Attributes(post, request.target.math))

    def _turned(
        self, request: KernelRequest, links: tuple[Link, ...], a: Tensor, b: Tensor, y: Tensor, layout: str
    ) -> Draft:
        """The transposed product of the transposed operands, for a result whose columns shall lie together."""
        rank, (first, second) = len(y.sizes), links[0].operands
        left, right = self._side(second, b, rank, SRC), self._side(first, a, rank, WEIGHTS)
        target = Operand(DST, ("out", 0), Memory(y.sizes, y.dtype, strides=strides_of(layout, y.sizes)), layout)
        operands = tuple(replace(o, memory=transposed(o.memory)) for o in (left, right, target))
        return Draft("matmul", operands, attributes=Attributes(math=request.target.math))

    def _side(self, at: int, t: Tensor, rank: int, argument: int) -> Operand:
        """An operand with as many axes as the result."""
        layout = t.layout if is_permutation(t.layout) else ""
        if layout and layout[-1] not in row_major(len(t.sizes))[-2:]:
            layout = ""
        sizes = (1,) * (rank - len(t.sizes)) + t.sizes
        strides = strides_of(layout, t.sizes) if layout else None
        if strides is not None:
            strides = (strides[0],) * (rank - len(t.sizes)) + strides
        return Operand(argument, ("in", at), Memory(sizes, t.dtype, strides=strides), layout)


def transposed(memory: Memory) -> Memory:
    """The last two axes the other way round."""
    strides = memory.strides or strides_of(row_major(len(memory.dims)), memory.dims)
    dims = (*memory.dims[:-2], memory.dims[-1], memory.dims[-2])
    return replace(memory, dims=dims, strides=(*strides[:-2], strides[-1], strides[-2]))


def _flat(request: KernelRequest, links: tuple[Link, ...], a: Tensor, b: Tensor, y: Tensor) -> Draft:
    """Return the draft with all leading axes merged; a bias that follows becomes part of the product."""
    left = Memory((math.prod(a.sizes[:-1]), a.sizes[-1]), a.dtype)
    right = constant(request, WEIGHTS, links[0].operands[1], Memory(b.sizes, b.dtype))
    return product(request, links, Operand(SRC, ("in", links[0].operands[0]), left), right, y)


def product(
    request: KernelRequest,
    links: tuple[Link, ...],
    left: Operand,
    right: Operand,
    y: Tensor,
    first: tuple[PostOp, ...] = (),
) -> Draft:
    """The draft of a product of two matrices. `first` are post-ops before those of the links."""
    frame = flat(y.sizes, len(y.sizes) - 1)
    operands, following = [left, right], links[1:]
    if following and not first:
        bias = _bias(request, following[0], y.sizes[-1])
        if bias is not None:
            operands, following = [*operands, bias], following[1:]
    post = first + post_ops(request, following, frame)
    target = Operand(DST, ("out", 0), frame.memory(y.dtype))
    return Draft("matmul", (*operands, target), attributes=Attributes(post, request.target.math))


def _bias(request: KernelRequest, link: Link, columns: int) -> Operand | None:
    """The other operand of an Add, if it has one entry for each column."""
    others = [i for i in link.operands if i != PREVIOUS]
    other = request.inputs[others[0]] if link.op == "Add" and len(others) == 1 else None
    if not isinstance(other, Tensor) or other.sizes[-1:] != (columns,) or other.elements != columns or columns == 1:
        return None
    return Operand(BIAS, ("in", others[0]), Memory((1, columns), other.dtype))


def one_row(request: KernelRequest, links: tuple[Link, ...], left: Memory, right: Memory, y: Tensor) -> Iterator[Draft]:
    """Yield the draft of a product of one row with a large constant that is read as it lies: a step of a decoder reads
    each weight once, and oneDNN's inner product does so at the memory's speed where the weight's longer axis is its
    inner one, up to twice as fast as matmul with a weight laid out for many rows."""
    (rows, inner), (_, columns) = left.dims, right.dims
    turned, plain = right.strides == (1, inner), right.strides in (None, (columns, 1))
    longest = (turned and inner >= columns) or (plain and inner <= columns)
    strict = request.target.math == "strict" and left.dtype is right.dtype is y.dtype is DType.FLOAT
    at = links[0].operands
    if rows != 1 or not longest or not strict or inner * columns < ONE_ROW or not request.constant(at[1]):
        return
    if request.target.one_layout:
        return
    operands = [
        Operand(SRC, ("in", at[0]), Memory(left.dims, left.dtype)),
        Operand(WEIGHTS, ("in", at[1]), Memory((columns, inner), right.dtype, strides=transposed(right).strides)),
        Operand(DST, ("out", 0), Memory((1, columns), y.dtype)),
    ]
    bias = _bias(request, links[1], columns) if len(links) > 1 else None
    if bias is not None:
        operands.append(replace(bias, memory=Memory((columns,), bias.memory.dtype)))
    post = post_ops(request, links[1 + (bias is not None) :], flat(y.sizes, len(y.sizes) - 1))
    if all(each.kind.startswith("eltwise") for each in post):  # it would add an array in a pass of its own
        yield Draft("inner_product_forward", tuple(operands), attributes=Attributes(post))


class Gemm(OneDnn):
    """Gemm with either operand transposed; `beta` of 0 or 1."""

    name = "onednn.gemm"
    ops = frozenset({"Gemm"})
    remembers = True

    def drafts(self, request: KernelRequest, links: tuple[Link, ...]) -> Iterator[Draft]:
        """The product of two matrices, scaled by alpha, plus C."""
        link, y = links[0], result(request)
        a, b = floats(request, link.operands[:2])
        alpha, beta = link.attr("alpha"), link.attr("beta")
        left = Operand(SRC, ("in", link.operands[0]), _matrix(a, link.attr("transA")))
        weights = _matrix(b, link.attr("transB"))
        right = constant(request, WEIGHTS, link.operands[1], weights)
        first: tuple[PostOp, ...] = (PostOp("eltwise_linear", alpha, 0.0),) if alpha != 1 else ()
        if link.operand(2) != ABSENT and beta:
            if beta != 1:
                raise Refused("beta scales the third operand")
            add = Link("Add", (PREVIOUS, link.operand(2)), {})
            links = (link, add, *links[1:])
        if not first:
            yield from one_row(request, links, left.memory, weights, y)
        yield product(request, links, left, right, y, first)


def _matrix(t: Tensor, transposed: int) -> Memory:
    rows, columns = t.sizes
    return Memory((columns, rows), t.dtype, strides=(1, columns)) if transposed else Memory(t.sizes, t.dtype)
