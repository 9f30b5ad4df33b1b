"""Regions of pictures: proposals, and pooling by position, with shifts, of turned ones."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ....ops import DType
from ....ops.errors import ShapeError, UnsupportedModel
from ..converter import Converter, Value
from ..rules import rule
from .nn import spread


def _anchors(stride: int, scales: Sequence[float], ratios: Sequence[float]) -> Any:
    """Corners of the first place, in float32 as MXNet rounds them."""
    f, middle = np.float32, np.float32(0.5 * (stride - 1))
    corners = []
    for ratio in ratios:
        wide = np.floor(np.sqrt(np.floor(f(stride * stride) / f(ratio))) + f(0.5))
        for scale in scales:
            w, h = wide * f(scale), np.floor(wide * f(scale) / f(scale) * f(ratio) + f(0.5)) * f(scale)
            half = f(0.5) * (w - f(1)), f(0.5) * (h - f(1))
            corners.append([middle - half[0], middle - half[1], middle + half[0], middle + half[1]])
    return np.array(corners, np.float32)


@rule("_contrib_Proposal", single=True)
@rule("_contrib_MultiProposal", single=False)
def proposal(
    c: Converter,
    cls_prob: str,
    bbox_pred: str,
    im_info: str,
    *,
    rpn_pre_nms_top_n: int = 6000,
    rpn_post_nms_top_n: int = 300,
    threshold: float = 0.7,
    rpn_min_size: int = 16,
    scales: tuple[float, ...] = (4.0, 8.0, 16.0, 32.0),
    ratios: tuple[float, ...] = (0.5, 1.0, 2.0),
    feature_stride: int = 16,
    output_score: bool = False,
    iou_loss: bool = False,
    single: bool,
) -> Any:
    """Rows of picture and corners, the best first, and their scores. What is left of the rows repeats the first ones;
    boxes that are too small, or lie in padding, have the score -1."""
    batch, _, rows, columns = c.sizes(cls_prob, "to lay out anchors")
    base = _anchors(feature_stride, scales, ratios)
    if single and batch != 1:
        raise ShapeError(f"_contrib_Proposal takes one picture, not {batch}", hint="use _contrib_MultiProposal")
    y, x = (np.arange(n, dtype=np.float32) * feature_stride for n in (rows, columns))
    shifts = np.stack([*np.broadcast_arrays(x[None, :], y[:, None])] * 2, -1)
    boxes = (shifts[:, :, None] + base).reshape(-1, 4).astype(np.float32)
    count = len(boxes)
    parts = c.transpose(c.reshape(bbox_pred, [0, len(base), 4, rows, columns]), (0, 3, 4, 1, 2))
    deltas = [c.slice(c.reshape(parts, [0, count, 4]), 2, i, i + 1) for i in range(4)]
    scores = c.reshape(c.transpose(c.slice(cls_prob, 1, len(base), None), (0, 2, 3, 1)), [0, count, 1])
    high, wide, scale = (c.unsqueeze(c.slice(im_info, 1, i, i + 1), 1) for i in range(3))
    one, zero = c.number(1, scores), c.number(0, scores)
    edges = _moved(c, boxes, deltas, iou_loss=iou_loss)
    limits = [c.Sub(wide, one), c.Sub(high, one)] * 2
    edges = [c.Max(c.Min(e, limit), zero) for e, limit in zip(edges, limits, strict=True)]
    step = c.number(feature_stride, scores)
    place = np.broadcast_arrays(np.arange(rows)[:, None, None], np.arange(columns)[:, None], np.arange(len(base)))
    outside = [
        c.GreaterOrEqual(c.array(p.reshape(1, -1, 1), scores), c.Floor(c.Div(size, step)))
        for p, size in zip(place, (high, wide), strict=False)
    ]
    least = c.Mul(c.number(rpn_min_size, scores), scale)
    small = [c.Less(c.Add(c.Sub(edges[i + 2], edges[i]), one), least) for i in range(2)]
    tiny = c.Or(*small)
    grown = c.Where(tiny, c.Mul(least, c.number(0.5, least)), zero)
    edges = [*(c.Sub(e, grown) for e in edges[:2]), *(c.Add(e, grown) for e in edges[2:])]
    scores = c.Where(c.Or(c.Or(*outside), tiny), c.number(-1, scores), scores)
    before = min(rpn_pre_nms_top_n if rpn_pre_nms_top_n > 0 else count, count)
    order = c.op("TopK", scores, c.ints(before), outputs=2, axis=1, largest=1)[1]
    scores = c.GatherElements(scores, order, axis=1)
    corners = c.GatherElements(c.op("Concat", *edges, axis=2), c.Expand(order, c.ints(1, 1, 4)), axis=1)
    kept, points = [], []
    for picture in range(batch):
        here = [c.slice(v, 0, picture, picture + 1) for v in (corners, scores)]
        chosen = _chosen(c, here[0], min(rpn_post_nms_top_n, before), threshold, rpn_post_nms_top_n)
        numbers = c.full(c.ints(rpn_post_nms_top_n, 1), picture, c.dtype(scores))
        kept.append(c.op("Concat", numbers, c.Gather(c.squeeze(here[0], 0), chosen, axis=0), axis=1))
        points.append(c.Gather(c.squeeze(here[1], 0), chosen, axis=0))
    results = [c.op("Concat", *v, axis=0) if batch > 1 else v[0] for v in (kept, points)]
    results = [c.constant(v) for v in results]
    return tuple(results) if output_score else results[0]


def _moved(c: Converter, boxes: Any, deltas: list[str], *, iou_loss: bool) -> list[str]:
    """Corners of anchors that are moved."""
    like = deltas[0]
    if iou_loss:
        return [c.Add(c.array(boxes[:, i].reshape(1, -1, 1), like), d) for i, d in enumerate(deltas)]
    corners: list[list[str]] = []
    for axis in range(2):
        size = boxes[:, axis + 2] - boxes[:, axis] + np.float32(1)
        middle = boxes[:, axis] + np.float32(0.5) * (size - np.float32(1))
        side, place = (c.array(v.reshape(1, -1, 1), like) for v in (size, middle))
        centre = c.Add(c.Mul(deltas[axis], side), place)
        half = c.Mul(c.Sub(c.Mul(c.Exp(deltas[axis + 2]), side), c.number(1, like)), c.number(0.5, like))
        corners.append([c.Sub(centre, half), c.Add(centre, half)])
    return [corners[0][0], corners[1][0], corners[0][1], corners[1][1]]


def _chosen(c: Converter, boxes: str, most: int, threshold: float, rows: int) -> Value:
    """Places of the boxes [1, n, 4] that stay, by their order, over and over up to so many. Corners are pixels that
    belong to a box, so that one is added to the far ones."""
    wider = c.Add(boxes, c.array([0, 0, 1, 1], boxes))
    n = c.size(boxes, 1)
    ranks = c.const(np.arange(n, 0, -1, dtype=np.float32).reshape(1, 1, n))
    selected = c.NonMaxSuppression(
        c.cast(wider, DType.FLOAT), ranks, c.ints(most), c.const(np.array([threshold], np.float32))
    )
    places = c.squeeze(c.slice(selected, 1, 2, 3), 1)
    count = c.op("Shape", places, start=0, end=1)
    return c.Gather(places, c.Mod(c.const(np.arange(rows)), count), axis=0)


@rule("_contrib_PSROIPooling")
def psroi_pooling(
    c: Converter,
    data: str,
    rois: str,
    *,
    spatial_scale: float,
    output_dim: int,
    pooled_size: int,
    group_size: int = 0,
) -> Any:
    """Means over the bins of regions, each bin of a channel of its own, by sums from the corner in float64."""
    group, bins = group_size or pooled_size, pooled_size
    if min(group, bins, output_dim) < 1:
        raise UnsupportedModel(f"PSROIPooling of {output_dim} channels in {group} groups and {bins} bins")
    start, end = _ends(c, rois, spatial_scale)
    side = c.Div(c.Max(c.Sub(end, start), c.number(0.1, start)), c.number(bins, start))
    steps = c.array(np.arange(bins), start)
    edges = []  # of rows, then of columns: begins and ends [rois, bins]
    for axis, column in ((2, 1), (3, 0)):
        first, length = (c.slice(v, 1, column, column + 1) for v in (start, side))
        begins = c.Floor(c.Add(c.Mul(steps, length), first))
        ends = c.Ceil(c.Add(c.Mul(c.Add(steps, c.number(1, steps)), length), first))
        size = c.cast(c.dim(data, axis), DType.INT64)
        edges.append([c.Min(c.Max(c.cast(e, DType.INT64), c.const(np.array(0))), size) for e in (begins, ends)])
    channels = _channels(output_dim, group, bins)
    padded = c.Pad(c.cast(data, DType.DOUBLE), c.ints(0, 0, 1, 1, 0, 0, 0, 0))
    sums = c.CumSum(c.CumSum(padded, c.const(np.array(2))), c.const(np.array(3)))
    shape = c.shape_with([c.dim(rois, 0), output_dim, bins, bins])
    picture = c.unsqueeze(c.whole(c.slice(rois, 1, 0, 1)), 2, 3)  # [rois, 1, 1, 1]
    rows = [c.unsqueeze(e, 1, 3) for e in edges[0]]
    columns = [c.unsqueeze(e, 1, 2) for e in edges[1]]

    def corner(row: str, column: str) -> Value:
        parts = [c.Expand(p, shape) for p in (picture, c.const(channels[None]), row, column)]
        return c.GatherND(sums, c.op("Concat", *(c.unsqueeze(p, 4) for p in parts), axis=4))

    total = c.Add(
        c.Sub(corner(rows[1], columns[1]), corner(rows[0], columns[1])),
        c.Sub(corner(rows[0], columns[0]), corner(rows[1], columns[0])),
    )
    area = c.Mul(*(c.Max(c.Sub(e, b), c.const(np.array(0))) for b, e in (rows, columns)))
    count = c.cast(c.Max(area, c.const(np.array(1))), DType.DOUBLE)
    means = c.Where(c.Greater(area, c.const(np.array(0))), c.Div(total, count), c.const(np.array(0.0)))
    return c.cast(means, c.dtype(data))


def _ends(c: Converter, rois: str, scale: float) -> tuple[Value, Value]:
    """The near and the far corner of regions [rois, 2], which are whole pixels, on the map: columns, rows."""
    whole = c.slice(rois, 1, 1, 5)
    rounded = c.Mul(c.Sign(whole), c.Floor(c.Add(c.Abs(whole), c.number(0.5, whole))))
    near, far = c.slice(rounded, 1, 0, 2), c.Add(c.slice(rounded, 1, 2, 4), c.number(1, rounded))
    return c.Mul(near, c.number(scale, rois)), c.Mul(far, c.number(scale, rois))


def _channels(outputs: int, group: int, bins: int) -> Any:
    """The channel that each bin of each output reads: [outputs, bins, bins]."""
    groups = np.minimum(np.arange(bins) * group // bins, group - 1)
    return (np.arange(outputs)[:, None, None] * group + groups[:, None]) * group + groups


def _between(c: Converter, data: str, leading: Sequence[str], places: Sequence[str], shape: str) -> Value:
    """Values of a map [..., rows, columns(, channels)] between its elements, at rows and columns that broadcast to a
    shape; those outside are moved to the edge. `leading` are the indices of the axes before."""
    sides = []
    for axis, place in enumerate(places, len(leading)):
        last = c.cast(c.Sub(c.dim(data, axis), c.ints(1)), c.dtype(place))
        place = c.Min(c.Max(place, c.number(0, place)), last)
        low = c.Floor(place)
        share = c.Sub(place, low)
        high = c.Min(c.Add(low, c.number(1, low)), last)
        sides.append([(low, c.Sub(c.number(1, share), share)), (high, share)])
    parts = []
    for (row, tall), (column, wide) in itertools.product(*sides):
        indices = [c.unsqueeze(c.Expand(c.whole(i), shape), -1) for i in (*leading, row, column)]
        weight = c.Mul(tall, wide)
        weight = c.unsqueeze(weight, -1) if c.rank(data) > len(indices) else weight
        parts.append(c.Mul(c.GatherND(data, c.op("Concat", *indices, axis=-1)), weight))
    return c.op("Sum", *parts)


def _inside(c: Converter, place: str, size: str, low: float, beyond: float) -> Value:
    """Truths: places from `low` to the size and `beyond`."""
    high = c.Add(c.cast(size, c.dtype(place)), c.number(beyond, place))
    return c.And(c.GreaterOrEqual(place, c.number(low, place)), c.LessOrEqual(place, high))


@rule("_contrib_DeformablePSROIPooling")
def deformable_psroi_pooling(
    c: Converter,
    data: str,
    rois: str,
    trans: str | None = None,
    *,
    spatial_scale: float,
    output_dim: int,
    group_size: int,
    pooled_size: int,
    part_size: int = 0,
    sample_per_part: int = 1,
    trans_std: float = 0.0,
    no_trans: bool = False,
) -> Any:
    """Means of samples in the bins of regions, each bin of a channel of its own; `trans` [rois, 2 * classes, parts,
    parts] shifts the bins. Samples outside of the map do not count."""
    bins, samples = pooled_size, sample_per_part
    if min(group_size, bins, samples, output_dim) < 1:
        raise UnsupportedModel(f"{output_dim} channels in {group_size} groups, {bins} bins and {samples} samples")
    like = rois
    start, end = _ends(c, rois, spatial_scale)
    start, end = (c.Sub(v, c.number(0.5, like)) for v in (start, end))
    size = c.Max(c.Sub(end, start), c.number(0.1, like))
    shape = c.shape_with([c.dim(rois, 0), output_dim, *[bins] * 2, *[samples] * 2])
    places = []
    for column, axis in ((1, 2), (0, 3)):  # rows, then columns
        first, length = (c.unsqueeze(c.slice(v, 1, column, column + 1), 2, 3, 4, 5) for v in (start, size))
        steps = np.arange(bins).reshape([-1 if i == axis else 1 for i in range(6)]) / bins
        finer = np.arange(samples).reshape([-1 if i == axis + 2 else 1 for i in range(6)]) / (bins * samples)
        place = c.Add(first, c.Mul(length, c.array(steps + finer, like)))
        if trans is not None and not no_trans:
            classes = c.size(trans, 1, "to tell classes") // 2
            part = part_size or bins
            parts = c.const((np.arange(bins, dtype=np.float32) / np.float32(bins) * np.float32(part)).astype(np.int64))
            which = np.arange(output_dim) // (output_dim // classes) * 2 + column
            shift = c.Gather(c.Gather(c.Gather(trans, c.const(which), axis=1), parts, axis=2), parts, axis=3)
            place = c.Add(place, c.Mul(c.Mul(c.unsqueeze(shift, 4, 5), c.number(trans_std, like)), length))
        places.append(place)
    inside = c.And(*(_inside(c, p, c.dim(data, a), -0.5, -0.5) for p, a in zip(places, (2, 3), strict=True)))
    picture = c.unsqueeze(c.slice(rois, 1, 0, 1), 2, 3, 4, 5)
    channel = c.unsqueeze(c.const(_channels(output_dim, group_size, bins)), 3, 4)
    values = _between(c, data, [picture, channel], places, shape)
    count = c.ReduceSum(c.cast(c.Expand(inside, shape), c.dtype(values)), c.ints(4, 5), keepdims=0)
    total = c.ReduceSum(c.Where(inside, values, c.number(0, values)), c.ints(4, 5), keepdims=0)
    return c.Div(total, c.Max(count, c.number(1, count)))


@rule("_contrib_RROIAlign")
def rotated_roi_align(
    c: Converter, data: str, rois: str, *, pooled_size: tuple[int, ...], spatial_scale: float, sampling_ratio: int = -1
) -> Any:
    """Means of samples in the bins of turned regions [picture, x, y, width, height, degrees], of all channels."""
    if sampling_ratio <= 0:
        raise UnsupportedModel("RROIAlign with as many samples as a region is large is not carried")
    bins = spread(pooled_size, 2, 1)
    like = rois
    scaled = c.Mul(c.slice(rois, 1, 1, 5), c.number(spatial_scale, like))
    picture, x, y, wide, high, angle = (
        c.unsqueeze(c.slice(v, 1, i, i + 1), 2)
        for v, i in ((rois, 0), (scaled, 0), (scaled, 1), (scaled, 2), (scaled, 3), (rois, 5))
    )
    radians = c.Mul(angle, c.number(math.pi / 180, like))
    cos, sin = c.Cos(radians), c.Sin(radians)
    sides = []
    for axis, (length, count) in enumerate(zip((high, wide), bins, strict=True)):
        steps = (np.arange(count * sampling_ratio) + 0.5) / (count * sampling_ratio) - 0.5
        whole = steps.reshape((1, -1, 1) if axis == 0 else (1, 1, -1))
        sides.append(c.Mul(c.Max(length, c.number(1, like)), c.array(whole, like)))
    down, along = sides
    places = [
        c.Add(c.Sub(c.Mul(down, cos), c.Mul(along, sin)), y),
        c.Add(c.Add(c.Mul(along, cos), c.Mul(down, sin)), x),
    ]
    shape = c.shape_with([c.dim(rois, 0), *(n * sampling_ratio for n in bins)])
    inside = c.And(*(_inside(c, p, c.dim(data, a), -1, 0) for p, a in zip(places, (2, 3), strict=True)))
    values = _between(c, c.transpose(data, (0, 2, 3, 1)), [picture], places, shape)
    values = c.Where(c.unsqueeze(inside, 3), values, c.number(0, values))
    return c.AveragePool(
        c.transpose(values, (0, 3, 1, 2)), kernel_shape=[sampling_ratio] * 2, strides=[sampling_ratio] * 2
    )
