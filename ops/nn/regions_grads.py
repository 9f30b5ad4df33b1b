"""The derivatives of pooling over regions with respect to the image; regions are given, not learnt.

In standard form each region gets an image of its own, and these are summed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..core.rules import narrow, widen
from ..core.shapes import cast_like, count, joined, multiples, reshaped, size, sizes, wide, zeros
from ..op import Builder, Context, Sample, Value, op
from ..types import Array, DType, Tensor, f32
from .regions import BOXES, CORNERS, IMAGES, SAMPLING, SHAPE, bins, corners, samples


@op(
    "MaxRoiPoolGrad",
    domain="mezzo",
    outputs=("dX",),
    samples=[
        Sample([f32(4, 3, 2, 3), f32(2, 3, 6, 6), BOXES], {"pooled_shape": [2, 3]}),
        Sample([f32(4, 1, 3, 3), f32(2, 1, 6, 6), BOXES], {"pooled_shape": [3, 3], "spatial_scale": 0.5}),
        Sample([f32(0, 1, 1, 1), f32(2, 1, 6, 6), f32(0, 5)], {"pooled_shape": [1, 1]}),
    ],
)
def max_roi_pool_grad(
    k: Context, dY: Array, X: Array, rois: Array, *, pooled_shape: Sequence[int], spatial_scale: float = 1.0
) -> Array:
    """The gradient of MaxRoiPool to X: each bin hands its own to its first largest element."""
    x, dy = widen(X), widen(dY)
    dx, channels = k.xp.zeros(X.shape, dy.dtype), k.xp.arange(X.shape[1])
    for r, image, i, j, row, column in bins(rois, X.shape[2:], pooled_shape, spatial_scale):
        part = x[image, :, row, column]
        if part.size:
            down, across = divmod(part.reshape(len(part), -1).argmax(1), part.shape[2])
            dx[image, channels, row.start + down, column.start + across] += dy[r, :, i, j]
    return narrow(dx, X.dtype)


@max_roi_pool_grad.infer
def _(dY: Tensor, X: Tensor, rois: Tensor, **attrs: Any) -> Tensor:
    return X.forget()


@max_roi_pool_grad.body
def _(g: Builder, xs: Any, types: Any, *, pooled_shape: Sequence[int], spatial_scale: float = 1.0) -> Value:
    dy, X, rois = xs
    exact, x = g.Cast(rois, to=DType.DOUBLE.onnx), wide(g, X)
    boxes = g.Mul(g.Slice(exact, g.const([1]), g.const([5]), g.const([1])), g.scalar(spatial_scale, exact))
    boxes = g.Mul(g.Sign(boxes), g.Floor(g.Add(g.Abs(boxes), g.scalar(0.5, boxes))))  # halves away from zero
    image = g.Cast(g.Gather(rois, g.const(0), axis=1), to=DType.INT64.onnx)
    shape = g.shape_of(X)

    def within(axis: int) -> Value:
        """Return where a place along the axis lies in a bin, as booleans [regions, bins, size]."""
        first, last = (g.Gather(boxes, g.const([1 - axis + i]), axis=1) for i in (0, 2))
        one = g.scalar(1, boxes)
        step = g.Div(g.Max(g.Add(g.Sub(last, first), one), one), g.scalar(pooled_shape[axis], boxes))
        bin_ = g.const(np.arange(pooled_shape[axis]), DType.DOUBLE)
        starts, ends = g.Floor(g.Mul(step, bin_)), g.Ceil(g.Mul(step, g.Add(bin_, one)))
        starts, ends = (g.Unsqueeze(g.Add(v, first), g.const([2])) for v in (starts, ends))
        places = g.Cast(multiples(g, size(g, shape, 2 + axis), 1), to=DType.DOUBLE.onnx)
        return g.And(g.GreaterOrEqual(places, starts), g.Less(places, ends))

    lowest = g.scalar(-math.inf, x)
    rows, columns = (g.Unsqueeze(within(a), g.const(at)) for a, at in ((0, [1, 4]), (1, [1, 2])))
    every = g.Unsqueeze(g.Gather(x, image, axis=0), g.const([3]))  # [regions, channels, height, 1, width]
    best = g.Where(columns, every, lowest)
    across = g.ArgMax(best, axis=4, keepdims=0)  # [regions, channels, height, columns]
    best = g.Where(rows, g.Unsqueeze(g.ReduceMax(best, g.const([4]), keepdims=0), g.const([2])), lowest)
    down = g.ArgMax(best, axis=3, keepdims=0)  # [regions, channels, rows, columns]
    across = g.GatherElements(across, down, axis=2)
    nonempty = g.Greater(g.ReduceMax(best, g.const([3]), keepdims=0), lowest)
    part = g.Where(nonempty, wide(g, dy), g.scalar(0, x))
    at = g.Add(g.Mul(down, size(g, shape, 3)), across)
    return cast_like(g, _to_images(g, at, part, image, x), X)


def _to_images(g: Builder, at: Value, part: Value, image: Value, x: Value) -> Value:
    """Zeros like `x`, to which the parts of regions [regions, channels, ...] are added where their images say."""
    shape = g.shape_of(x)
    lead = joined(g, g.shape_of(image), sizes(g, shape, 1, 2))

    def flat(v: Value) -> Value:
        return reshaped(g, v, joined(g, lead, count(g, sizes(g, g.shape_of(v), 2))))

    own = zeros(g, joined(g, lead, count(g, sizes(g, shape, 2))), x)
    own = g.ScatterElements(own, flat(at), flat(part), axis=2, reduction="add")
    own = reshaped(g, own, joined(g, lead, sizes(g, shape, 2)))
    return g.ScatterND(zeros(g, shape, x), g.Unsqueeze(image, g.const([1])), own, reduction="add")


@op(
    "RoiAlignGrad",
    domain="mezzo",
    attributes=SAMPLING,
    outputs=("dX",),
    samples=[
        Sample([f32(3, 3, 2, 3), f32(2, 3, 6, 6), CORNERS, IMAGES], SHAPE),
        Sample([f32(3, 3, 2, 3), f32(2, 3, 6, 6), CORNERS, IMAGES],
               {**SHAPE, "sampling_ratio": 2, "spatial_scale": 0.7}),
        Sample([f32(3, 3, 2, 3), f32(2, 3, 6, 6), CORNERS, IMAGES],
               {**SHAPE, "coordinate_transformation_mode": "output_half_pixel", "sampling_ratio": 3}),
        Sample([f32(3, 3, 2, 3), f32(2, 3, 6, 6), CORNERS, IMAGES], {**SHAPE, "mode": "max"}),
        Sample([f32(0, 3, 1, 1), f32(2, 3, 6, 6), f32(0, 4), np.zeros(0, np.int64)]),
    ],
)  # fmt: skip
def roi_align_grad(
    k: Context,
    dY: Array,
    X: Array,
    rois: Array,
    batch_indices: Array,
    *,
    mode: str = "avg",
    output_height: int = 1,
    output_width: int = 1,
    **attrs: Any,
) -> Array:
    """The gradient of RoiAlign to X."""
    xp, x, dy = k.xp, widen(X), widen(dY)
    dx = xp.zeros(X.shape, dy.dtype)
    sampled = samples(X.shape[2:], rois, batch_indices, mode, output_height, output_width, **attrs)
    for r, (image, (down, vertical), (across, horizontal)) in enumerate(sampled):
        if mode == "avg":  # along each axis a matrix
            rows = _means(xp, vertical, output_height, down, X.shape[2], dy.dtype)
            columns = _means(xp, horizontal, output_width, across, X.shape[3], dy.dtype)
            dx[image] += rows.T @ (dy[r] @ columns)
            continue
        parts = xp.stack(corners(xp, x[image], vertical, horizontal))
        parts = parts.reshape(4, X.shape[1], output_height, down, output_width, across)
        best = parts.transpose(1, 2, 4, 0, 3, 5).reshape(X.shape[1], output_height, output_width, -1).argmax(-1)
        corner, i, j = np.unravel_index(best, (4, down, across))
        i, j = i + xp.arange(output_height)[:, None] * down, j + xp.arange(output_width) * across
        (y, down_weight), (x_, across_weight) = (
            (xp.stack(axis[:2])[side, at], xp.stack(axis[2:])[side, at])
            for axis, side, at in ((vertical, corner // 2, i), (horizontal, corner % 2, j))
        )
        channels = xp.arange(X.shape[1])[:, None, None]
        xp.add.at(dx[image], (channels, y, x_), dy[r] * down_weight * across_weight)
    return narrow(dx, X.dtype)


def _means(xp: Any, axis: Sequence[Array], bins: int, many: int, size: int, dtype: Any) -> Array:
    """The matrix [bins, size] that takes the means of the samples of each bin."""
    means = xp.zeros((bins, size), dtype)
    bin_ = xp.arange(bins).repeat(many)
    for at, weight in ((0, 2), (1, 3)):
        xp.add.at(means, (bin_, xp.asarray(axis[at])), xp.asarray(axis[weight], dtype) / many)
    return means


@roi_align_grad.infer
def _(dY: Tensor, X: Tensor, rois: Tensor, batch_indices: Tensor, **attrs: Any) -> Tensor:
    return X.forget()


@roi_align_grad.body
def _(
    g: Builder,
    xs: Any,
    types: Any,
    *,
    coordinate_transformation_mode: str = "half_pixel",
    mode: str = "avg",
    output_height: int = 1,
    output_width: int = 1,
    sampling_ratio: int = 0,
    spatial_scale: float = 1.0,
) -> Value:
    """Samples of a region that has fewer than another are there, and count nothing."""
    dY, X, rois, images = xs
    dy, x, shape = wide(g, dY), wide(g, X), g.shape_of(X)
    shifted = coordinate_transformation_mode == "half_pixel"
    boxes = g.Cast(rois, to=DType.DOUBLE.onnx)
    boxes = g.Sub(g.Mul(boxes, g.scalar(spatial_scale, boxes)), g.scalar(0.5 * shifted, boxes))
    zero, half, one = (g.scalar(v, boxes) for v in (0, 0.5, 1))

    def along(axis: int, bins: int) -> tuple[Value, Value, Value, Value]:
        """Of an axis: the elements that samples read [regions, bins, 2, samples], their weights, which samples a region
        has [regions, samples], and how many [regions, 1]."""
        first, last = (g.Gather(boxes, g.const([1 - axis + i]), axis=1) for i in (0, 2))
        extent = g.Sub(last, first) if shifted else g.Max(g.Sub(last, first), one)
        step = g.Div(extent, g.scalar(bins, boxes))
        many = (
            g.Max(g.Ceil(step), one)
            if sampling_ratio <= 0
            else g.Expand(g.scalar(sampling_ratio, boxes), g.shape_of(step))
        )
        most = g.Max(g.ReduceMax(g.Concat(many, g.const([[1]], DType.DOUBLE), axis=0), keepdims=0), one)
        number = g.Cast(g.Range(g.const(0), g.Cast(most, to=DType.INT64.onnx), g.const(1)), to=DType.DOUBLE.onnx)
        inner = g.Unsqueeze(g.Div(g.Mul(g.Add(number, half), step), many), g.const([1]))
        outer = g.Unsqueeze(g.Mul(step, g.const(np.arange(bins), DType.DOUBLE)), g.const([2]))
        at = g.Add(g.Add(inner, outer), g.Unsqueeze(first, g.const([2])))  # [regions, bins, samples]
        length = cast_like(g, size(g, shape, 2 + axis), at)
        end = g.Sub(length, one)
        outside = g.Or(g.Less(at, g.scalar(-1, at)), g.Greater(at, length))
        at = g.Clip(at, zero, end)
        low = g.Floor(at)
        part = g.Sub(at, low)
        near = [low, g.Min(g.Add(low, one), end)]
        weights = [g.Where(outside, zero, w) for w in (g.Sub(one, part), part)]
        places, weights = (g.Concat(*(g.Unsqueeze(v, g.const([2])) for v in pair), axis=2) for pair in (near, weights))
        return g.Cast(places, to=DType.INT64.onnx), cast_like(g, weights, x), g.Less(number, many), many

    rows, down, has_row, many_rows = along(0, output_height)
    columns, across, has_column, many_columns = along(1, output_width)
    # [regions, 1, rows, columns, 2, 2, samples down, samples across], of which the last four become one
    of_row, of_column = g.const([1, 3, 5, 7]), g.const([1, 2, 4, 6])
    at = g.Add(g.Mul(g.Unsqueeze(rows, of_row), size(g, shape, 3)), g.Unsqueeze(columns, of_column))
    weight = g.Mul(g.Unsqueeze(down, of_row), g.Unsqueeze(across, of_column))
    has = g.And(g.Unsqueeze(has_row, g.const([1, 2, 3, 4, 5, 7])), g.Unsqueeze(has_column, g.const([1, 2, 3, 4, 5, 6])))
    has = g.Expand(has, g.shape_of(at))
    last = sizes(g, g.shape_of(at), 4)
    bins = joined(g, g.shape_of(images), [1, output_height, output_width], count(g, last))
    at, weight, has = (reshaped(g, v, bins) for v in (at, weight, has))
    by_channel = joined(g, g.shape_of(images), sizes(g, shape, 1, 2), [output_height, output_width], count(g, last))
    dy = g.Unsqueeze(dy, g.const([4]))
    if mode == "avg":
        many = g.Unsqueeze(cast_like(g, g.Mul(many_rows, many_columns), x), g.const([1, 2, 3]))
        share = g.Where(has, g.Div(weight, many), g.scalar(0, x))
        return cast_like(g, _to_images(g, g.Expand(at, by_channel), g.Mul(dy, share), images, x), X)
    lead = joined(g, g.shape_of(images), sizes(g, shape, 1, 2))
    own = reshaped(g, g.Gather(x, images, axis=0), joined(g, lead, count(g, sizes(g, shape, 2))))
    at, weight = g.Expand(at, by_channel), g.Expand(weight, by_channel)
    seen = g.GatherElements(own, reshaped(g, at, joined(g, lead, count(g, sizes(g, by_channel, 2)))), axis=2)
    seen = g.Where(has, g.Mul(reshaped(g, seen, by_channel), weight), g.scalar(-math.inf, x))
    best = g.ArgMax(seen, axis=4)
    at, weight = g.GatherElements(at, best, axis=4), g.GatherElements(weight, best, axis=4)
    return cast_like(g, _to_images(g, at, g.Mul(dy, weight), images, x), X)
