"""Attention of com.microsoft: what its operators ask of shapes, and their parts as standard operators."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..core.rules import has_dims, has_rank
from ..core.shapes import cast_like, reshaped, wide
from ..errors import ShapeError
from ..op import Builder, Value
from ..types import Array, Dim, DType, Tensor, Type

LEAST = np.finfo(np.float32).min


def causal(xp: Any, rows: int, columns: int, past: int) -> Array:
    """Return the bias that hides later positions from earlier ones; the first row sees the past and the first position.

    The last row sees everything, more keys than queries included: so ONNX Runtime has it."""
    row = xp.arange(rows)[:, None]
    later = (xp.arange(columns) > row + past) & (row < rows - 1)
    return xp.where(later, LEAST, np.float32(0))


def check_heads(width: Dim, heads: int) -> Dim:
    """Return the size of one of so many heads; ShapeError where a width does not divide into them."""
    if heads < 1:
        raise ShapeError(f"{heads} heads", hint="num_heads should be at least 1")
    if isinstance(width, int) and (width < 0 or width % heads):
        raise ShapeError(f"{width} columns do not divide into {heads} heads", hint="correct num_heads, or the sizes")
    return width // heads if isinstance(width, int) else None


def check_mask(mask: Tensor | None, batch: Dim, rows: Dim, columns: Dim) -> None:
    """Raise ShapeError for a mask of none of the forms: ends of sequences, or a number for each key, in which a single
    one stands for all; for each query and key; or a square of the longest length."""
    if mask is None or mask.dims is None:
        return
    has_rank(mask, 1, 2, 3, 4)
    if len(mask.dims) == 1:
        count = mask.dims[0]
        if isinstance(batch, int) and isinstance(count, int) and count not in (batch, 2 * batch, 3 * batch + 2):
            raise ShapeError(f"the mask {mask} has neither an end for each of {batch} sequences nor a start too")
    elif mask.dims not in ((batch, 1), (1, 1)):
        forms: dict[int, Sequence[Dim]] = {2: (batch, columns), 3: (batch, rows, columns), 4: (batch, 1, None, None)}
        has_dims(mask, forms[len(mask.dims)], f"{rows} queries and {columns} keys in a batch of {batch}")


def check_bias(bias: Tensor | None, batch: Dim, heads: int, rows: Dim, columns: Dim) -> None:
    """Raise ShapeError for numbers to add to the scores that are not (batch or 1, heads or 1, queries, keys)."""
    if bias is None or bias.dims is None:
        return
    has_rank(bias, 4)
    lead = (1 if one == 1 else dim for one, dim in zip(bias.dims, (batch, heads), strict=False))
    has_dims(bias, (*lead, rows, columns), f"{rows} queries and {columns} keys")


class AttentionForm:
    """Attention as standard operators, for operands of known sizes."""

    def __init__(self, g: Builder, xs: Sequence[Value | None], types: Sequence[Type | None], heads: int) -> None:
        self.g, self.heads, self.like = g, heads, xs[0]
        self.xs = [None if x is None else wide(g, x) for x in xs]
        self.sizes = [t.sizes if isinstance(t, Tensor) else () for t in types]
        self.kind = DType.DOUBLE if isinstance(types[0], Tensor) and types[0].dtype is DType.DOUBLE else DType.FLOAT

    @staticmethod
    def possible(types: Sequence[Type | None]) -> bool:
        return all(t is None or (isinstance(t, Tensor) and t.static) for t in types)

    def split(self, x: Value, batch: int, length: int, width: int) -> Value:
        """(batch, length, heads * size) as (batch, heads, length, size)."""
        g = self.g
        whole = reshaped(g, x, g.const([batch, length, self.heads, width // self.heads]))
        return g.Transpose(whole, perm=(0, 2, 1, 3))

    def mask(self, i: int, batch: int, rows: int, columns: int, filter_value: float) -> Value | None:
        """Return the number that a mask, in any of its forms, adds to the scores: 0 or `filter_value`; None without
        one."""
        g, mask, sizes = self.g, self.xs[i], self.sizes[i]
        if mask is None:
            return None
        if len(sizes) == 1:

            def part(first: int) -> Value:
                ends = g.Slice(mask, g.const([first]), g.const([first + batch]), g.const([0]))
                return g.Unsqueeze(ends, g.const([1]))

            at = g.CastLike(g.const(np.arange(columns)), mask)
            seen = g.Less(at, part(0))
            if sizes[0] == 2 * batch:
                seen = g.And(seen, g.GreaterOrEqual(at, part(batch)))
            seen = g.Unsqueeze(seen, g.const([1, 2]))
        else:
            if len(sizes) == 4:
                mask = g.Slice(mask, g.const([columns - rows, 0]), g.const([columns, columns]), g.const([2, 3]))
            else:
                mask = g.Unsqueeze(mask, g.const([1, 2] if len(sizes) == 2 else [1]))
            seen = g.Greater(mask, g.scalar(0, mask))
        return g.Where(seen, g.const(0, self.kind), g.const(filter_value, self.kind))

    def together(self, *parts: Value | None) -> Value | None:
        """The sum of what is there; hidden places stay finite."""
        g, present = self.g, [p for p in parts if p is not None]
        if not present:
            return None
        whole = present[0]
        for p in present[1:]:
            whole = g.Add(whole, p)
        return g.Max(whole, g.const(LEAST, self.kind))

    def causal(self, rows: int, columns: int, past: int) -> Value:
        return self.g.const(causal(np, rows, columns, past), self.kind)

    def attend(
        self, q: Value, k: Value, v: Value, bias: Value | None, scale: float | None, sizes_out: Sequence[int], size: int
    ) -> tuple[Value, Value]:
        """softmax(q k' scale + bias) v, and the products before the softmax; `sizes_out` are those of the result, and
        `size` is that of a head of queries."""
        g, factor = self.g, scale if scale else 1 / math.sqrt(max(size, 1))
        products = g.Mul(g.MatMul(q, g.Transpose(k, perm=(0, 1, 3, 2))), g.const(np.float32(factor), self.kind))
        if bias is not None:
            products = g.Add(products, bias)
        y = g.Transpose(g.MatMul(g.Softmax(products, axis=-1), v), perm=(0, 2, 1, 3))
        return reshaped(g, y, g.const(list(sizes_out))), products

    def results(self, *values: Value) -> tuple[Value, ...]:
        return tuple(cast_like(self.g, x, self.like) for x in values)
