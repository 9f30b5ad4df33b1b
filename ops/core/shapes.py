"""Arithmetic on shapes that are values: used by gradient rules and bodies where sizes are unknown.

Every function works for graphs and for arrays; where sizes are known the results fold.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..nn.windows import Ints, per_axis
from ..op import Builder, Value
from ..types import DType, Tensor


def sizes(g: Builder, shape: Value, start: int = 0, end: int | None = None) -> Value:
    """Return some entries of a shape, as a list."""
    ends = np.iinfo(np.int64).max if end is None else end
    return g.Slice(shape, g.const([start]), g.const([ends]), g.const([0]))


def size(g: Builder, shape: Value, axis: int) -> Value:
    """One entry of a shape, of rank 0."""
    return g.Gather(shape, g.const(axis), axis=0)


def count(g: Builder, shape: Value) -> Value:
    """Return the number of elements of a tensor of this shape, as a list of one."""
    return g.ReduceProd(shape, g.const([0]), keepdims=1)


def joined(g: Builder, *parts: Value | Sequence[int]) -> Value:
    """One list of lists, which are values or integers."""
    return g.Concat(*(g.const(np.array(p, np.int64)) if isinstance(p, (list, tuple)) else p for p in parts), axis=0)


def wide(g: Builder, x: Value) -> Value:
    """The tensor in the element type that sums are taken in (see rules.widen)."""
    return g.Cast(x, to=DType.FLOAT.onnx) if _dtype(g, x).narrow else x


def cast_like(g: Builder, x: Value, like: Value) -> Value:
    """The tensor in the element type of another."""
    to = _dtype(g, like)
    return x if _dtype(g, x) is to else g.Cast(x, to=to.onnx)


def _dtype(g: Builder, x: Value) -> DType:
    known = g.type_of(x)
    assert isinstance(known, Tensor)
    return known.dtype


def reshaped(g: Builder, x: Value, shape: Value) -> Value:
    """The elements in another shape, of which a 0 means 0."""
    return g.Reshape(x, shape, allowzero=1)


def zeros(g: Builder, shape: Value, like: Value) -> Value:
    """Zeros in the element type of another value."""
    return g.Expand(g.scalar(0, like), shape)


def multiples(g: Builder, many: Value, step: int) -> Value:
    """The first so many multiples of a number, 0 included."""
    return g.Mul(g.Range(g.const(0), many, g.const(1)), g.const(step))


def with_axes(g: Builder, v: Value, behind: int) -> Value:
    """A list with so many axes of one element behind its own."""
    return g.Unsqueeze(v, g.const(np.arange(1, behind + 1))) if behind else v


def starts(g: Builder, image: Value, reach: Value, rank: int, pads: Ints, auto_pad: str) -> Value:
    """Return the distance by which the first window begins before an image of sizes `image`, where all windows together
    cover `reach` places (see windows.window)."""
    if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        missing = g.Max(g.Sub(reach, image), g.const([0]))
        small = g.Div(missing, g.const([2]))
        return small if auto_pad == "SAME_UPPER" else g.Sub(missing, small)
    edge = per_axis(pads, 2 * rank, 0, "pads") if auto_pad == "NOTSET" else (0,) * rank
    return g.const(edge[:rank])


def moved_into(g: Builder, x: Value, before: Value, target: Value, rank: int) -> Value:
    """The tensor whose last `rank` axes get the sizes `target`: so many zeros before, the rest behind; negative numbers
    crop."""
    after = g.Sub(target, g.Add(sizes(g, g.shape_of(x), -rank), before))
    axes = np.arange(-rank, 0)
    return g.Pad(x, joined(g, before, after), None, g.const(axes))


def reaches(g: Builder, out: Value, kernel: Value, rank: int, strides: Ints, dilations: Ints) -> Value:
    """Over how many places of each axis `out` windows of a kernel reach together."""
    step, spread = (g.const(per_axis(v, rank, 1, "strides")) for v in (strides, dilations))
    one = g.const([1])
    return g.Add(g.Add(g.Mul(g.Sub(out, one), step), g.Mul(g.Sub(kernel, one), spread)), one)


def spread_over_windows(
    g: Builder,
    v: Value,
    shape: Value,
    kernel_shape: Sequence[int],
    *,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: Ints = None,
    pads: Ints = None,
    strides: Ints = None,
) -> Value:
    """An image of this shape, where each element is the sum of `v` over the windows that see it."""
    n, known = len(kernel_shape), g.type_of(v)
    assert isinstance(known, Tensor)
    columns = reshaped(g, v, joined(g, count(g, sizes(g, shape, 0, 2)), [1], sizes(g, g.shape_of(v), 2)))
    moves = {a: v for a, v in (("strides", strides), ("dilations", dilations)) if v is not None}
    whole = g.ConvTranspose(columns, g.const(np.ones((1, 1, *kernel_shape)), known.dtype), **moves)
    image = sizes(g, shape, 2)
    before = starts(g, image, sizes(g, g.shape_of(whole), 2), n, pads, auto_pad)
    return reshaped(g, moved_into(g, whole, g.Neg(before), image, n), shape)
