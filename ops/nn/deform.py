"""Convolution through deformed windows, and patches put back together to an image.

https://onnx.ai/onnx/operators/onnx__DeformConv.html, https://onnx.ai/onnx/operators/onnx__Col2Im.html
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np

from ..core.rules import ints, length, narrow, same, unknown, widen
from ..core.rules import product as product_of
from ..core.shapes import cast_like, count, joined, multiples, reshaped, size, sizes, wide, with_axes
from ..errors import ShapeError
from ..op import Builder, Context, Sample, Value, op
from ..types import Array, Dim, Tensor, f32
from .conv import add_bias, bias_grad, check_bias, conv_dims
from .points import read_at, read_grads
from .reading import Reader, neighbours
from .windows import CONV, Ints, Window, known, out_dims, per_axis, taps, windows

DEFORM = {name: default for name, default in CONV.items() if name != "auto_pad"}


@op(
    "DeformConv",
    attributes=DEFORM,
    since=22,
    samples=[
        Sample([f32(1, 2, 4, 4), f32(3, 2, 2, 2), f32(1, 8, 3, 3)]),
        Sample([f32(2, 4, 5, 4), f32(2, 2, 3, 2), f32(2, 24, 4, 3), f32(2), f32(2, 12, 4, 3)],
               {"group": 2, "offset_group": 2, "pads": [1, 0, 0, 1], "strides": [1, 1], "dilations": [1, 2],
                "kernel_shape": [3, 2]}),
        Sample([f32(1, 2, 5, 5), f32(2, 1, 2, 2), f32(1, 8, 2, 2), None, f32(1, 4, 2, 2)],
               {"group": 2, "strides": [3, 3], "pads": [0, 0, 0, 0]}),
        Sample([f32(1, 1, 6), f32(1, 1, 3), f32(1, 3, 4)]),
    ],
)  # fmt: skip
def deform_conv(
    k: Context,
    X: Array,
    W: Array,
    offset: Array,
    B: Array | None = None,
    mask: Array | None = None,
    *,
    group: int = 1,
    offset_group: int = 1,
    **window: Any,
) -> Array:
    xp, (batch, channels, *sizes) = k.xp, X.shape
    sliding = known(windows(sizes, W.shape[2:], **window))
    x, places = widen(X), [w.out for w in sliding]
    spread = math.prod(w.kernel for w in sliding)
    points = _points(k, widen(offset), sliding, batch * offset_group)
    seen = read_at(xp, x.reshape(batch * offset_group, channels // offset_group, *sizes), points)
    if mask is not None:
        seen = seen * widen(mask).reshape(batch * offset_group, 1, -1)
    patches = seen.reshape(batch, group, channels // group * spread, math.prod(places))
    weights = widen(W).reshape(1, group, W.shape[0] // group, -1)
    y = xp.matmul(weights, patches.astype(weights.dtype, copy=False)).reshape(batch, W.shape[0], *places)
    return narrow(add_bias(y, B), X.dtype)


def _points(k: Context, offset: Array, sliding: Sequence[Window], rows: int) -> list[Array]:
    """The places along each axis that the moved windows see, [rows, places of the kernel * windows]."""
    xp, n = k.xp, len(sliding)
    moved = offset.reshape(rows, math.prod(w.kernel for w in sliding), n, *(w.out for w in sliding))
    points = []
    for i, w in enumerate(sliding):
        taps_at = np.array([place[i] for place in product(*(range(v.kernel) for v in sliding))])
        start = xp.arange(w.out) * w.stride - w.before
        base = xp.asarray(taps_at * w.dilation).reshape(-1, *(1,) * n) + start.reshape(-1, *(1,) * (n - 1 - i))
        points.append((moved[:, :, i] + base).reshape(len(moved), -1))
    return points


@deform_conv.infer
def _(
    X: Tensor,
    W: Tensor,
    offset: Tensor,
    B: Tensor | None = None,
    mask: Tensor | None = None,
    *,
    group: int = 1,
    offset_group: int = 1,
    **window: Any,
) -> Tensor:
    x, w, kernel = conv_dims(X, W, window.pop("kernel_shape", None))
    if x is None or w is None:
        return X.of(None)
    same(x[1], product_of((w[1], group)), f"{X} has other channels than the kernel {W} takes in {group} groups")
    check_bias(B, w[0], W)
    dims = (x[0], w[0], *out_dims(x[2:], kernel, **window))
    if offset.dims is not None:
        wanted = (dims[0], product_of((offset_group, len(kernel), *kernel)), *dims[2:])
        if len(offset.dims) != len(wanted):
            raise ShapeError(f"the offsets {offset} do not fit {X}")
        for a, b in zip(offset.dims, wanted, strict=True):
            same(a, b, f"the offsets {offset} should have dims {list(wanted)}")
    return X.of(dims)


@deform_conv.grad
def _(g: Builder, dys: Any, ys: Any, xs: Any, **attrs: Any) -> tuple[Value | None, ...]:
    (dy,), (X, W, offset, B, mask) = dys, xs
    dx, dw, doffset, *dmask = g.DeformConvGrad(
        dy, X, W, offset, mask, domain="mezzo", outputs=3 if mask is None else 4, **attrs
    )
    return dx, dw, doffset, bias_grad(g, dy) if B is not None else None, dmask[0] if dmask else None


@op(
    "DeformConvGrad",
    domain="mezzo",
    attributes=DEFORM,
    outputs=("dX", "dW", "doffset", "dmask?"),
    samples=[
        Sample([f32(1, 3, 3, 3), f32(1, 2, 4, 4), f32(3, 2, 2, 2), f32(1, 8, 3, 3)], {}, 3),
        Sample([f32(2, 2, 4, 3), f32(2, 4, 5, 4), f32(2, 2, 3, 2), f32(2, 24, 4, 3), f32(2, 12, 4, 3)],
               {"group": 2, "offset_group": 2, "pads": [1, 0, 0, 1], "dilations": [1, 2]}, 4),
        Sample([f32(1, 1, 2), f32(1, 1, 6), f32(1, 1, 3), f32(1, 3, 2), f32(1, 3, 2)], {"strides": [3]}, 4),
    ],
)  # fmt: skip
def deform_conv_grad(
    k: Context,
    dY: Array,
    X: Array,
    W: Array,
    offset: Array,
    mask: Array | None = None,
    *,
    group: int = 1,
    offset_group: int = 1,
    **window: Any,
) -> tuple[Array, ...]:
    """The gradients of DeformConv to X, W, the offsets and the mask."""
    batch, channels, *sizes = X.shape
    sliding = known(windows(sizes, W.shape[2:], **window))
    rows, spread = batch * offset_group, math.prod(w.kernel for w in sliding)
    places = math.prod(w.out for w in sliding)
    points = _points(k, widen(offset), sliding, rows)
    x = widen(X).reshape(rows, channels // offset_group, *sizes)
    seen = read_at(k.xp, x, points)
    by = None if mask is None else widen(mask).reshape(rows, 1, -1)
    patches = (seen if by is None else seen * by).reshape(batch, group, channels // group * spread, places)
    weights = widen(W).reshape(1, group, W.shape[0] // group, -1)
    dy = widen(dY).reshape(batch, group, W.shape[0] // group, places)
    dw = k.xp.matmul(dy, patches.swapaxes(2, 3)).sum(0)
    dseen = k.xp.matmul(weights.swapaxes(2, 3), dy).reshape(seen.shape)
    dx, dplaces = read_grads(k.xp, dseen if by is None else dseen * by, x, points)
    doffset = k.xp.stack([d.reshape(rows, spread, places) for d in dplaces], 2)
    grads = [narrow(d, v.dtype).reshape(v.shape) for d, v in ((dx, X), (dw, W), (doffset, offset))]
    return (*grads,) if mask is None else (*grads, narrow((dseen * seen).sum(1), mask.dtype).reshape(mask.shape))


@deform_conv_grad.infer
def _(dY: Tensor, X: Tensor, W: Tensor, offset: Tensor, mask: Tensor | None = None, **attrs: Any) -> tuple[Tensor, ...]:
    return tuple(t.forget() for t in (X, W, offset, mask) if t is not None)


@deform_conv_grad.body
def _(
    g: Builder,
    xs: Any,
    types: Any,
    *,
    group: int = 1,
    offset_group: int = 1,
    dilations: Ints = None,
    pads: Ints = None,
    strides: Ints = None,
    **_: Any,
) -> tuple[Value, ...]:
    X, W, offset, mask = xs[1:]
    dy, x, weights, moved = (wide(g, v) for v in xs[:4])
    n, shape = g.rank_of(X) - 2, g.shape_of(X)
    step, gap = per_axis(strides, n, 1, "strides"), per_axis(dilations, n, 1, "dilations")
    before = per_axis(pads, 2 * n, 0, "pads")[:n]
    batch, kernel, out = sizes(g, shape, 0, 1), sizes(g, g.shape_of(W), 2), sizes(g, g.shape_of(offset), 2)
    rows = g.Mul(batch, g.const([offset_group]))
    spread, places = count(g, kernel), count(g, out)
    every = g.Mul(spread, places)
    moved = reshaped(g, moved, joined(g, rows, spread, [n], out))
    taps_at = multiples(g, g.Squeeze(spread, g.const([0])), 1)
    points = []
    for i in range(n):
        tap = g.Mod(g.Div(taps_at, count(g, sizes(g, kernel, i + 1))), size(g, kernel, i))
        tap = with_axes(g, g.Mul(tap, g.const(gap[i])), n)
        start = with_axes(g, g.Sub(multiples(g, size(g, out, i), step[i]), g.const(before[i])), n - 1 - i)
        at = g.Add(g.Gather(moved, g.const(i), axis=2), cast_like(g, g.Add(tap, start), moved))
        points.append(reshaped(g, at, joined(g, rows, every)))
    each = g.Div(sizes(g, shape, 1, 2), g.const([offset_group]))
    reader = Reader(
        g,
        reshaped(g, x, joined(g, rows, each, sizes(g, shape, 2))),
        neighbours(g, points, sizes(g, shape, 2)),
    )
    seen = reader.read()
    by = None if mask is None else reshaped(g, wide(g, mask), joined(g, rows, [1], every))
    patches = seen if by is None else g.Mul(seen, by)
    deep = g.Mul(sizes(g, g.shape_of(W), 1, 2), spread)
    filters = g.Div(sizes(g, g.shape_of(W), 0, 1), g.const([group]))
    patches = reshaped(g, patches, joined(g, batch, [group], deep, places))
    weights = reshaped(g, weights, joined(g, [1, group], filters, deep))
    dy = reshaped(g, dy, joined(g, batch, [group], filters, places))
    dw = g.ReduceSum(g.MatMul(dy, g.Transpose(patches, perm=[0, 1, 3, 2])), g.const([0]))
    dseen = reshaped(g, g.MatMul(g.Transpose(weights, perm=[0, 1, 3, 2]), dy), g.shape_of(seen))
    dx, dplaces = reader.grads(dseen if by is None else g.Mul(dseen, by))
    parts = [reshaped(g, d, joined(g, rows, spread, [1], places)) for d in dplaces]
    gradients = [(dx, X), (dw, W), (g.Concat(*parts, axis=2), offset)]
    if mask is not None:
        gradients.append((g.ReduceSum(g.Mul(dseen, seen), g.const([1])), mask))
    return tuple(cast_like(g, reshaped(g, d, g.shape_of(v)), v) for d, v in gradients)


def _list(*values: int) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    return np.array(values, np.int64)


@op(
    "Col2Im",
    attributes={"dilations": None, "pads": None, "strides": None},
    complex_numbers="taken",
    since=18,
    outputs=("output",),
    samples=[
        Sample([f32(1, 5, 5), _list(5, 5), _list(1, 5)]),
        Sample([f32(2, 12, 4), _list(5, 5), _list(2, 3)], {"strides": [2, 2], "dilations": [2, 1]}),
        Sample([f32(1, 4, 4), _list(4, 4), _list(2, 2)], {"pads": [0, 1, 1, 0], "strides": [2, 2]}),
        Sample([f32(1, 8, 2), _list(2, 2, 3), _list(2, 2, 2)]),
    ],
)
def col2im(k: Context, input: Array, image_shape: Array, block_shape: Array, **window: Any) -> Array:
    sizes, block = ints(image_shape), ints(block_shape)
    sliding = known(windows(sizes, block, **window))
    channels = input.shape[1] // math.prod(block)
    columns = widen(input).reshape(input.shape[0], channels, math.prod(block), *(w.out for w in sliding))
    whole = [n + w.before + w.after for n, w in zip(sizes, sliding, strict=True)]
    y = k.xp.zeros((input.shape[0], channels, *whole), columns.dtype)
    # every block adds its elements into the padded image, of which the pads are then cut off
    for t, view in enumerate(
        k.each(taps(y, [Window(w.kernel, w.stride, w.dilation, 0, 0, w.out) for w in sliding]), 1)
    ):
        view += columns[:, :, t]
    inside = (slice(w.before, w.before + n) for n, w in zip(sizes, sliding, strict=True))
    return narrow(k.xp.array(y[(slice(None), slice(None), *inside)], order="C"), input.dtype)


@col2im.infer
def _(input: Tensor, image_shape: Tensor, block_shape: Tensor, **window: Any) -> Tensor:
    batch, columns, blocks = input.dims or (None, None, None)
    sizes, block = image_shape.ints(), block_shape.ints()
    count = length(image_shape) if sizes is None else len(sizes)
    spatial: Sequence[Dim] | None = sizes or unknown(count)
    if spatial is None:
        return input.of(None)
    if block is None or not isinstance(columns, int):
        return input.of((batch, None, *spatial))
    channels, rest = divmod(columns, math.prod(block))
    if rest:
        raise ShapeError(f"{columns} rows of {input} are no blocks of {block}")
    if sizes is not None:
        counted = product_of(out_dims(sizes, block, **window))
        same(blocks, counted, f"the blocks of {input}, and those of {block} in an image of {sizes}")
    return input.of((batch, channels, *spatial))


@col2im.grad
def _(
    g: Builder, dys: Any, ys: Any, xs: Any, *, dilations: Ints = None, pads: Ints = None, strides: Ints = None
) -> tuple[Value | None, ...]:
    """The blocks taken out again, axis by axis."""
    (dy,), (columns, _, block), n = dys, xs, g.rank_of(dys[0]) - 2
    step, gap = per_axis(strides, n, 1, "strides"), per_axis(dilations, n, 1, "dilations")
    axes = range(2, n + 2)
    if pads:
        dy = g.Pad(dy, g.const(per_axis(pads, 2 * n, 0, "pads")), None, g.const(np.array(axes)))
    for i in range(n):
        many, one = size(g, block, i), g.const(1)
        room = g.Sub(size(g, g.shape_of(dy), 2 + 2 * i), g.Add(g.Mul(g.Sub(many, one), g.const(gap[i])), one))
        starts = multiples(g, g.Add(g.Div(room, g.const(step[i])), one), step[i])
        at = g.Add(g.Unsqueeze(multiples(g, many, gap[i]), g.const([1])), starts)
        dy = g.Gather(dy, at, axis=2 + 2 * i)  # [batch, channels, in block 0, block 0, ..., axis i + 1, ...]
    inner, outer = range(2, 2 * n + 2, 2), range(3, 2 * n + 2, 2)
    return reshaped(g, g.Transpose(dy, perm=[0, 1, *inner, *outer]), g.shape_of(columns)), None, None
