"""Products of 8-bit matrices: QLinearMatMul, QGemm of com.microsoft, MatMulInteger.

https://oneapi-src.github.io/oneDNN/dev_guide_matmul.html
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from ....ops import DType, Tensor
from ....ops.core.fused import ABSENT
from ....ops.types import Array
from ...compile.kernel import KernelRequest
from .api import BIAS, DST, SRC, WEIGHTS, Refused
from .memory import Memory
from .postops import Link, alone
from .primitive import Draft, Operand
from .quantised import (
    BYTES,
    EXACT,
    Quantised,
    QuantizedParts,
    attr,
    output,
    rounded,
    scale_of,
    signed,
    tensors,
    times,
    values,
    whole_products,
    zero_of,
)  # fmt: skip


class QLinearMatMul(Quantised):
    """QLinearMatMul with one scale for the left operand, and one or one for each column for the right one."""

    name = "onednn.qlinear_matmul"
    ops = frozenset({"QLinearMatMul"})

    def drafts(self, request: KernelRequest, links: tuple[Link, ...]) -> Iterator[Draft]:
        """One product."""
        link = alone(links)
        at = link.operands
        a, b = tensors(request, (at[0], at[3]), BYTES)
        y, parts = output(request, BYTES), QuantizedParts()
        factor = scale_of(request, at[1]) * _columns(request, at[4], b.sizes[-1]) / scale_of(request, at[6])
        _zeros(request, parts, at[2], (b, at[5]))
        parts.zero(DST, zero_of(request, at[7]))
        yield product(request, (at[0], a, 0), (at[3], b, 0), y, parts, factor)


class MatMulInteger(Quantised):
    """MatMulInteger: the integer sums."""

    name = "onednn.matmul_integer"
    ops = frozenset({"MatMulInteger"})

    def drafts(self, request: KernelRequest, links: tuple[Link, ...]) -> Iterator[Draft]:
        """One product."""
        link = alone(links)
        a, b = tensors(request, link.operands[:2], BYTES)
        y, parts = output(request, (DType.INT32,)), QuantizedParts()
        zero = _zeros(request, parts, link.operand(2), (b, link.operand(3)))
        if columns_sum(b, zero) >= EXACT:
            raise Refused("sums may be larger than float32 holds exactly")
        one = np.ones(1, np.float32)
        yield product(request, (link.operands[0], a, 0), (link.operands[1], b, 0), y, parts, one)


class QGemm(Quantised):
    """QGemm of com.microsoft: requantised or left as float32."""

    name = "onednn.qgemm"
    ops = frozenset({"QGemm"})

    def drafts(self, request: KernelRequest, links: tuple[Link, ...]) -> Iterator[Draft]:
        """One product, scaled, plus C in steps of it."""
        link = alone(links)
        at = link.operands
        a, b = tensors(request, (at[0], at[3]), BYTES)
        y, parts = output(request, (*BYTES, DType.FLOAT)), QuantizedParts()
        turned = attr(link, "transB")
        factor = np.float32(attr(link, "alpha")) * scale_of(request, at[1]) * _columns(request, at[4], y.sizes[1])
        if link.operand(7) != ABSENT:
            factor = factor / scale_of(request, at[7])
            parts.zero(DST, zero_of(request, link.operand(8)))
        _zeros(request, parts, at[2], (b, at[5]))
        if link.operand(6) != ABSENT:
            c = values(request, at[6])
            if c.size not in (1, y.sizes[1]) or (c.ndim == 2 and c.shape[0] != 1):
                raise Refused("C differs from row to row")
            parts.value(BIAS, np.broadcast_to(c, (1, y.sizes[1])), DType.INT32, (1, y.sizes[1]))
        yield product(request, (at[0], a, attr(link, "transA")), (at[3], b, turned), y, parts, factor)


def _columns(request: KernelRequest, at: int, count: int) -> Array:
    """Scales of the right operand; Refused if they are neither one nor one for each column."""
    scales = values(request, at).astype(np.float32)
    if scales.size not in (1, count) or scales.ndim > 1 or not np.isfinite(scales).all():
        raise Refused(f"scales of shape {scales.shape} for {count} columns")
    return scales.reshape(-1)


def _zeros(request: KernelRequest, parts: QuantizedParts, left: int, right: tuple[Tensor, int]) -> int:
    """Zero points of both operands; returns that of the right one, counted as its numbers are, from 128 if unsigned."""
    parts.zero(SRC, zero_of(request, left))
    zero = zero_of(request, right[1]) - (128 if right[0].dtype is DType.UINT8 else 0)
    parts.zero(WEIGHTS, zero)
    return zero


def columns_sum(b: Tensor, zero: int) -> float:
    """Return a bound on the sum of products with one column, and on what is added up to it: products with the numbers
    as they are stored, and with their zero point."""
    if not b.static or len(b.sizes) < 2:
        return math.inf
    if b.value is None:
        largest = np.full(1, 128.0 * b.sizes[-2])
    else:
        stored = np.asarray(b.value).astype(np.int64) - (128 if b.dtype is DType.UINT8 else 0)
        largest = np.abs(stored).sum(-2)
    return 255.0 * (float(largest.max(initial=0)) + abs(zero) * b.sizes[-2])


def product(
    request: KernelRequest,
    left: tuple[int, Tensor, int],
    right: tuple[int, Tensor, int],
    y: Tensor,
    parts: QuantizedParts,
    factor: Array,
) -> Draft:
    """The draft of a product. Operands are (place, type, transposed); `factor` is one or one for each column."""
    whole_products()
    (at, a, turned), (beside, b, around) = left, right
    if min(len(a.sizes), len(b.sizes)) < 2:
        raise Refused("an operand is a vector")
    flat = len(b.sizes) == 2 and not turned
    rank = 2 if flat or turned else len(y.sizes)
    target = (math.prod(y.sizes[:-1]), y.sizes[-1]) if flat else y.sizes
    rows = (math.prod(a.sizes[:-1]), a.sizes[-1]) if flat else a.sizes
    post = times(factor, (*(1,) * (rank - 1), -1)) if factor.size > 1 or factor[0] != 1 else ()
    post += rounded(next((1 for argument, _ in parts.zeros if argument == DST), 0))
    source = Operand(SRC, ("in", at), _matrix(rows, a.dtype, turned, rank))
    weights = signed(request, beside, a, _matrix(b.sizes, DType.INT8, around, rank), bool(parts.zeros))
    result = Operand(DST, ("out", 0), Memory(target, y.dtype))
    return Draft("matmul", (source, weights, *parts.operands, result), attributes=parts.attributes(post))


def _matrix(sizes: tuple[int, ...], dtype: DType, transposed: int, rank: int) -> Memory:
    sizes = (1,) * (rank - len(sizes)) + sizes
    if not transposed:
        return Memory(sizes, dtype)
    rows, columns = sizes
    return Memory((columns, rows), dtype, strides=(1, columns))
