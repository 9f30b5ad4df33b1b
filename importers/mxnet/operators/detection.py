"""Targets of anchors in training, proposals of regions, pooling of regions by position."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ....ops import Body, DType, Tensor
from ....ops.errors import ShapeError, UnsupportedModel
from ..converter import Converter, Value
from ..rules import rule
from .boxes import corners, overlaps
from .reductions import positions

LEAST = 1e-6  # the overlap that an anchor has to pass to be a label's best


@rule("_contrib_MultiBoxTarget", "_npx_multibox_target")
def multibox_target(
    c: Converter,
    anchor: str,
    label: str,
    cls_pred: str,
    *,
    overlap_threshold: float = 0.5,
    ignore_label: float = -1.0,
    negative_mining_ratio: float = -1.0,
    negative_mining_thresh: float = 0.5,
    minimum_negative_samples: int = 0,
    variances: tuple[float, ...] = (0.1, 0.1, 0.2, 0.2),
) -> Any:
    """Offsets, their mask and classes for each anchor. Each label takes the anchor that overlaps it most, then anchors
    take labels that they overlap by more than the threshold; of the others as many as `negative_mining_ratio` times
    the positives are background, those that look least like it. A picture without labels has no targets. On the CPU
    `minimum_negative_samples` is not looked at, nor here."""
    classes = c.slice(label, 2, 0, 1)  # [batch, labels, 1]
    ends = c.cast(c.Equal(c.squeeze(classes, 2), c.number(-1, classes)), DType.INT32)
    valid = c.Equal(c.CumSum(ends, c.const(np.array(1))), c.const(np.array(0, np.int32)))  # those before the first -1
    theirs = [c.transpose(c.slice(label, 2, i, i + 1), (0, 2, 1)) for i in range(1, 5)]
    shared = overlaps(c, corners(c, anchor, "corner"), theirs)  # [batch, anchors, labels]
    shared = c.Where(c.unsqueeze(valid, 1), shared, c.number(-1, shared))
    matched = _matched(c, shared)  # [batch, anchors]: the label, or -1
    best, most = c.ArgMax(shared, axis=2, keepdims=0), c.ReduceMax(shared, c.ints(2), keepdims=0)
    taken = c.GreaterOrEqual(matched, c.const(np.array(0)))
    positive = taken
    if overlap_threshold > 0:
        positive = c.Or(taken, c.Greater(most, c.number(overlap_threshold, most)))
    which = c.Where(taken, matched, best)
    some = c.cast(c.ReduceMax(c.cast(valid, DType.INT32), c.ints(1), keepdims=1), DType.BOOL)
    positive = c.And(positive, some)
    negative = c.And(c.Not(positive), some)
    if negative_mining_ratio > 0:
        near = c.Less(most, c.number(negative_mining_thresh, most))
        negative = _mined(c, cls_pred, positive, c.And(negative, near), negative_mining_ratio)
    rows = c.GatherElements(label, _wide(c, c.unsqueeze(which, 2), label), axis=1)
    chosen = c.Add(c.squeeze(c.slice(rows, 2, 0, 1), 2), c.number(1, rows))
    target = c.Where(positive, chosen, c.Where(negative, c.number(0, rows), c.number(ignore_label, rows)))
    mask = c.unsqueeze(positive, 2)
    offsets = c.Where(mask, _offsets(c, anchor, c.slice(rows, 2, 1, 5), variances), c.number(0, rows))
    zero, one = c.number(0, rows), c.number(1, rows)
    masks = c.Where(c.Expand(mask, c.shape_of(offsets)), one, zero)
    return c.constant(c.reshape(offsets, [0, -1])), c.constant(c.reshape(masks, [0, -1])), c.constant(target)


def _wide(c: Converter, rows: str, like: str) -> Value:
    return c.Expand(rows, c.shape_with([1, 1, c.dim(like, 2)]))


def _matched(c: Converter, shared: str) -> Value:
    """By anchor the label that it is the best of, -1 for most: the pair that overlaps most first, then the next of
    those that are left. A step of a loop for each label."""
    batch, anchors, labels = (c.dim(shared, i) for i in range(3))
    left = Tensor(c.dtype(shared), c.dims(shared))
    found = Tensor(DType.INT64, c.dims(shared)[:2])
    places = [c.Range(c.const(0), c.squeeze(n, 0), c.const(1)) for n in (anchors, labels)]

    def step(g: Any, left: str, found: str, at: str) -> tuple[str, ...]:
        flat = g.Reshape(left, g.const(np.array([0, -1])))
        pair, most = g.ArgMax(flat, axis=1, keepdims=1), g.ReduceMax(flat, g.const(np.array([1])), keepdims=1)
        fits = g.Greater(most, g.number(LEAST, most))
        anchor, label = g.Div(pair, labels), g.Mod(pair, labels)
        here = g.And(g.Equal(g.Unsqueeze(places[0], np.array([0])), anchor), fits)
        there = g.And(g.Equal(g.Unsqueeze(places[1], np.array([0])), label), fits)
        gone = g.Or(g.Unsqueeze(here, np.array([2])), g.Unsqueeze(there, np.array([1])))
        return g.Where(gone, g.number(-1, left), left), g.Where(here, label, found)

    none = c.full(c.shape_with([batch, anchors]), -1, DType.INT64)
    made = c.Scan(
        shared, none, places[1], outputs=2, body=Body([left, found, Tensor(DType.INT64, ())], step), num_scan_inputs=1
    )
    return made[1]


def _mined(c: Converter, predicted: str, positive: str, candidate: str, ratio: float) -> Value:
    """Candidates that look least like background, `ratio` times as many as are positive."""
    background = c.squeeze(c.slice(c.Softmax(predicted, axis=1), 1, 0, 1), 1)
    low = c.number(-math.inf, background)
    order = c.op("TopK", c.Where(candidate, c.Neg(background), low), c.dim(background, 1), outputs=2, axis=1)[1]
    counted = c.ReduceSum(c.cast(positive, DType.FLOAT), c.ints(1), keepdims=1)
    count = c.Floor(c.Mul(counted, c.const(np.float32(ratio))))
    place = c.cast(positions(c, background, 1), DType.FLOAT)
    first = c.cast(c.Expand(c.Less(place, count), c.shape_of(order)), DType.INT32)
    chosen = c.ScatterElements(c.like(order, 0, DType.INT32), order, first, axis=1)
    return c.And(c.cast(chosen, DType.BOOL), candidate)


def _offsets(c: Converter, anchor: str, boxes: str, variances: Sequence[float]) -> Value:
    sizes = []
    for left, top, right, bottom in (corners(c, anchor, "corner"), corners(c, boxes, "corner")):
        half = c.number(0.5, left)
        middle = c.Mul(c.Add(left, right), half), c.Mul(c.Add(top, bottom), half)
        sizes.append((*middle, c.Sub(right, left), c.Sub(bottom, top)))
    (ax, ay, aw, ah), (x, y, w, h) = sizes
    shifts = [c.Div(c.Sub(x, ax), aw), c.Div(c.Sub(y, ay), ah), c.Log(c.Div(w, aw)), c.Log(c.Div(h, ah))]
    return c.op("Concat", *(c.Div(s, c.number(v, s)) for s, v in zip(shifts, variances, strict=True)), axis=2)


# Regions


def _anchors(stride: int, scales: Sequence[float], ratios: Sequence[float]) -> Any:
    """Corners of the first place, in float32 as MXNet rounds them."""
    f, middle = np.float32, np.float32(0.5 * (stride - 1))
    made = []
    for ratio in ratios:
        wide = np.floor(np.sqrt(np.floor(f(stride * stride) / f(ratio))) + f(0.5))
        for scale in scales:
            w, h = wide * f(scale), np.floor(wide * f(scale) / f(scale) * f(ratio) + f(0.5)) * f(scale)
            half = f(0.5) * (w - f(1)), f(0.5) * (h - f(1))
            made.append([middle - half[0], middle - half[1], middle + half[0], middle + half[1]])
    return np.array(made, np.float32)


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
    found = c.GatherElements(c.op("Concat", *edges, axis=2), c.Expand(order, c.ints(1, 1, 4)), axis=1)
    kept, points = [], []
    for picture in range(batch):
        here = [c.slice(v, 0, picture, picture + 1) for v in (found, scores)]
        chosen = _chosen(c, here[0], min(rpn_post_nms_top_n, before), threshold, rpn_post_nms_top_n)
        numbers = c.full(c.ints(rpn_post_nms_top_n, 1), picture, c.dtype(scores))
        kept.append(c.op("Concat", numbers, c.Gather(c.squeeze(here[0], 0), chosen, axis=0), axis=1))
        points.append(c.Gather(c.squeeze(here[1], 0), chosen, axis=0))
    made = [c.op("Concat", *v, axis=0) if batch > 1 else v[0] for v in (kept, points)]
    made = [c.constant(v) for v in made]
    return tuple(made) if output_score else made[0]


def _moved(c: Converter, boxes: Any, deltas: list[str], *, iou_loss: bool) -> list[str]:
    """Corners of anchors that are moved."""
    like = deltas[0]
    if iou_loss:
        return [c.Add(c.array(boxes[:, i].reshape(1, -1, 1), like), d) for i, d in enumerate(deltas)]
    made: list[list[str]] = []
    for axis in range(2):
        size = boxes[:, axis + 2] - boxes[:, axis] + np.float32(1)
        middle = boxes[:, axis] + np.float32(0.5) * (size - np.float32(1))
        side, place = (c.array(v.reshape(1, -1, 1), like) for v in (size, middle))
        centre = c.Add(c.Mul(deltas[axis], side), place)
        half = c.Mul(c.Sub(c.Mul(c.Exp(deltas[axis + 2]), side), c.number(1, like)), c.number(0.5, like))
        made.append([c.Sub(centre, half), c.Add(centre, half)])
    return [made[0][0], made[1][0], made[0][1], made[1][1]]


def _chosen(c: Converter, boxes: str, most: int, threshold: float, rows: int) -> Value:
    """Places of the boxes [1, n, 4] that stay, by their order, over and over up to so many. Corners are pixels that
    belong to a box, so that one is added to the far ones."""
    wider = c.Add(boxes, c.array([0, 0, 1, 1], boxes))
    n = c.size(boxes, 1)
    ranks = c.const(np.arange(n, 0, -1, dtype=np.float32).reshape(1, 1, n))
    found = c.NonMaxSuppression(
        c.cast(wider, DType.FLOAT), ranks, c.ints(most), c.const(np.array([threshold], np.float32))
    )
    places = c.squeeze(c.slice(found, 1, 2, 3), 1)
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
    whole = c.slice(rois, 1, 1, 5)
    rounded = c.Mul(c.Sign(whole), c.Floor(c.Add(c.Abs(whole), c.number(0.5, whole))))
    near, far = c.slice(rounded, 1, 0, 2), c.Add(c.slice(rounded, 1, 2, 4), c.number(1, rounded))
    scale = c.number(spatial_scale, rois)
    start, end = c.Mul(near, scale), c.Mul(far, scale)
    side = c.Div(c.Max(c.Sub(end, start), c.number(0.1, start)), c.number(bins, start))
    steps = c.array(np.arange(bins), start)
    edges = []  # of rows, then of columns: begins and ends [rois, bins]
    for axis, column in ((2, 1), (3, 0)):
        first, length = (c.slice(v, 1, column, column + 1) for v in (start, side))
        begins = c.Floor(c.Add(c.Mul(steps, length), first))
        ends = c.Ceil(c.Add(c.Mul(c.Add(steps, c.number(1, steps)), length), first))
        size = c.cast(c.dim(data, axis), DType.INT64)
        edges.append([c.Min(c.Max(c.cast(e, DType.INT64), c.const(np.array(0))), size) for e in (begins, ends)])
    groups = np.minimum(np.arange(bins) * group // bins, group - 1)
    channels = (np.arange(output_dim)[:, None, None] * group + groups[:, None]) * group + groups
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
