"""Boxes: anchors, overlaps, offsets, suppression, detections."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ....ops import DType
from ....ops.errors import UnsupportedModel
from ....ops.types import Dim
from ..converter import Converter, Value
from ..rules import rule
from .reductions import positions


@rule("_contrib_MultiBoxPrior", "_npx_multibox_prior")
def multibox_prior(
    c: Converter,
    data: str,
    *,
    sizes: tuple[float, ...] = (1.0,),
    ratios: tuple[float, ...] = (1.0,),
    clip: bool = False,
    steps: tuple[float, ...] = (-1.0, -1.0),
    offsets: tuple[float, ...] = (0.5, 0.5),
) -> Any:
    """Anchors of a map, corners from 0 to 1: every size with the first ratio, then the first size with the others."""
    rows, columns = (c.cast(c.dim(data, axis), DType.FLOAT) for axis in (2, 3))
    aspect = c.Div(rows, columns)
    halves = [(s * math.sqrt(ratios[0]) / 2, s / math.sqrt(ratios[0]) / 2) for s in sizes]
    halves += [(sizes[0] * math.sqrt(r) / 2, sizes[0] / math.sqrt(r) / 2) for r in ratios[1:]]
    wide, high = (c.const(np.array(v, np.float32)) for v in zip(*halves, strict=True))
    wide = c.Mul(wide, aspect)
    centres = []
    for axis, count, step, offset in zip((2, 3), (rows, columns), steps, offsets, strict=True):
        places = c.Add(c.cast(positions(c, data, axis), DType.FLOAT), c.const(np.float32(offset)))
        places = c.Mul(places, c.const(np.float32(step))) if step > 0 else c.Div(places, count)
        centres.append(c.reshape(places, [-1, 1, 1] if axis == 2 else [1, -1, 1]))
    y, x = centres
    whole = c.shape_with([c.dim(data, 2), c.dim(data, 3), len(halves)])
    edges = [c.Sub(x, wide), c.Sub(y, high), c.Add(x, wide), c.Add(y, high)]
    boxes = c.op("Concat", *(c.unsqueeze(c.Expand(e, whole), 3) for e in edges), axis=3)
    boxes = c.cast(c.reshape(boxes, [1, -1, 4]), c.dtype(data))
    return c.Clip(boxes, c.number(0, boxes), c.number(1, boxes)) if clip else boxes


def corners(c: Converter, boxes: str, kind: str) -> list[str]:
    """Left, top, right, bottom of the last axis, each with an axis of one element there."""
    at = c.rank(boxes) - 1
    parts = [c.slice(boxes, at, i, i + 1) for i in range(4)]
    if kind == "corner":
        return parts
    x, y, w, h = parts
    half_w, half_h = c.Mul(w, c.number(0.5, w)), c.Mul(h, c.number(0.5, h))
    return [c.Sub(x, half_w), c.Sub(y, half_h), c.Add(x, half_w), c.Add(y, half_h)]


def _area(c: Converter, left: str, top: str, right: str, bottom: str) -> Value:
    zero = c.number(0, left)
    return c.Mul(c.Max(c.Sub(right, left), zero), c.Max(c.Sub(bottom, top), zero))


def overlaps(c: Converter, first: list[str], second: list[str]) -> Value:
    """Intersection over union of boxes that broadcast."""
    meet = [
        c.Max(first[0], second[0]), c.Max(first[1], second[1]), c.Min(first[2], second[2]), c.Min(first[3], second[3]),
    ]  # fmt: skip
    shared = _area(c, *meet)
    union = c.Sub(c.Add(_area(c, *first), _area(c, *second)), shared)
    positive = c.Greater(union, c.number(0, union))
    return c.Where(positive, c.Div(shared, c.Where(positive, union, c.number(1, union))), c.number(0, union))


@rule("_contrib_box_iou")
def box_iou(c: Converter, lhs: str, rhs: str, *, format: str = "corner") -> Any:
    """[*lhs, *rhs] of boxes [..., 4]."""
    left, right = c.rank(lhs) - 1, c.rank(rhs) - 1
    first = [c.unsqueeze(c.squeeze(p, left), *range(left, left + right)) for p in corners(c, lhs, format)]
    second = [c.squeeze(p, right) for p in corners(c, rhs, format)]
    return overlaps(c, first, second)


@rule("_contrib_box_decode")
def box_decode(
    c: Converter,
    data: str,
    anchors: str,
    *,
    std0: float = 1.0,
    std1: float = 1.0,
    std2: float = 1.0,
    std3: float = 1.0,
    clip: float = -1.0,
    format: str = "center",
) -> Any:
    """Boxes from offsets to anchors."""
    shifts = [c.slice(data, 2, i, i + 1) for i in range(4)]
    if format == "corner":
        left, top, right, bottom = corners(c, anchors, "corner")
        w, h = c.Sub(right, left), c.Sub(bottom, top)
        x, y = c.Add(left, c.Mul(w, c.number(0.5, w))), c.Add(top, c.Mul(h, c.number(0.5, h)))
    else:
        x, y, w, h = (c.slice(anchors, 2, i, i + 1) for i in range(4))
    stds = [c.number(s, data) for s in (std0, std1, std2, std3)]
    centre_x = c.Add(c.Mul(c.Mul(shifts[0], stds[0]), w), x)
    centre_y = c.Add(c.Mul(c.Mul(shifts[1], stds[1]), h), y)
    grown = [c.Mul(shifts[i], stds[i]) for i in (2, 3)]
    if clip > 0:
        grown = [c.Min(g, c.number(clip, g)) for g in grown]
    half = [c.Mul(c.Mul(c.Exp(g), side), c.number(0.5, side)) for g, side in zip(grown, (w, h), strict=True)]
    edges = [c.Sub(centre_x, half[0]), c.Sub(centre_y, half[1]), c.Add(centre_x, half[0]), c.Add(centre_y, half[1])]
    return c.op("Concat", *edges, axis=2)


def suppressed(
    c: Converter,
    boxes: str,
    classes: str | None,
    alive: str,
    threshold: float,
    *,
    at_it: bool = False,
    most: int = -1,
) -> Value:
    """Truths: boxes [batch, n, 4], corners sorted by their scores, that stay. Each drops those behind it that overlap
    it by more than the threshold (or by as much, `at_it`) and are of its class. Where none is alive behind the first
    `most` (above 0), those alone are compared."""
    if most > 0 and not _at_most(c.dims(alive)[1], most):
        leading = c.slice(boxes, 1, 0, most)
        theirs = None if classes is None else c.slice(classes, 1, 0, most)
        stay = suppressed(c, leading, theirs, c.slice(alive, 1, 0, most), threshold, at_it=at_it)
        return c.op("Concat", stay, c.slice(alive, 1, most, None), axis=1)
    operands = [boxes, alive] if classes is None else [boxes, alive, classes]
    return c.op("KeepBoxes", *operands, domain="mezzo", overlap=threshold, inclusive=int(at_it))


def _at_most(size: Dim, most: int) -> bool:
    return isinstance(size, int) and size <= most


@rule("_contrib_box_nms", "_contrib_box_non_maximum_suppression")
def box_nms(
    c: Converter,
    data: str,
    *,
    overlap_thresh: float = 0.5,
    valid_thresh: float = 0.0,
    topk: int = -1,
    coord_start: int = 2,
    score_index: int = 1,
    id_index: int = -1,
    background_id: int = -1,
    force_suppress: bool = False,
    in_format: str = "corner",
    out_format: str = "corner",
) -> Any:
    """Boxes by falling score; those that are suppressed are -1 throughout, behind the others."""
    rank = c.rank(data)
    flat = data if rank == 3 else _three(c, data)
    scores = c.squeeze(c.slice(flat, 2, score_index, score_index + 1), 2)
    valid = c.Greater(scores, c.number(valid_thresh, scores))
    classes = c.slice(flat, 2, id_index, id_index + 1) if id_index >= 0 else None
    if classes is not None and background_id >= 0:
        valid = c.And(valid, c.Not(c.Equal(c.squeeze(classes, 2), c.number(background_id, classes))))
    low = c.number(-math.inf, scores)
    order = c.op("TopK", c.Where(valid, scores, low), c.dim(scores, 1), outputs=2, axis=1, largest=1)[1]
    rows = c.Reshape(order, c.shape_with([*(c.dim(order, i) for i in range(2)), 1]))
    sorted_ = c.GatherElements(flat, c.Expand(rows, c.shape_of(flat)), axis=1)
    alive = c.GatherElements(valid, order, axis=1)
    if topk > 0:
        place = c.unsqueeze(c.Range(c.const(0), c.squeeze(c.dim(order, 1), 0), c.const(1)), 0)
        alive = c.And(alive, c.Less(place, c.const(topk)))
    given = c.slice(sorted_, 2, coord_start, coord_start + 4)
    boxes = corners(c, given, in_format)
    edges = given if in_format == "corner" else c.op("Concat", *boxes, axis=2)
    same = None if force_suppress or classes is None else c.squeeze(c.slice(sorted_, 2, id_index, id_index + 1), 2)
    kept = suppressed(c, edges, same, alive, overlap_thresh, most=topk)
    if out_format != in_format:
        sorted_ = _recoded(c, sorted_, boxes, coord_start, out_format)
    result = c.Where(c.unsqueeze(kept, 2), sorted_, c.number(-1, sorted_))
    first = c.op("TopK", c.cast(kept, DType.FLOAT), c.dim(order, 1), outputs=2, axis=1, largest=1)[1]
    result = c.GatherElements(result, c.Expand(c.unsqueeze(first, 2), c.shape_of(result)), axis=1)
    return c.Reshape(result, c.shape_of(data))


def _three(c: Converter, x: str) -> Value:
    """[..., n, width] as [batch, n, width]."""
    rank = c.rank(x)
    return c.Reshape(x, c.shape_with([-1, c.dim(x, rank - 2), c.dim(x, rank - 1)]))


def _recoded(c: Converter, x: str, boxes: list[str], start: int, kind: str) -> Value:
    """The boxes among the columns, as corners or as centre and size."""
    left, top, right, bottom = boxes
    if kind == "center":
        half = c.number(0.5, left)
        edges = [
            c.Mul(c.Add(left, right), half),
            c.Mul(c.Add(top, bottom), half),
            c.Sub(right, left),
            c.Sub(bottom, top),
        ]
    else:
        edges = boxes
    parts = [c.slice(x, 2, 0, start)] if start else []
    width = c.size(x, 2)
    tail = [c.slice(x, 2, start + 4, width)] if width > start + 4 else []
    return c.op("Concat", *parts, *edges, *tail, axis=2)


@rule("_contrib_MultiBoxDetection", "_npx_multibox_detection")
def multibox_detection(
    c: Converter,
    cls_prob: str,
    loc_pred: str,
    anchor: str,
    *,
    clip: bool = True,
    threshold: float = 0.01,
    background_id: int = 0,
    nms_threshold: float = 0.5,
    force_suppress: bool = False,
    variances: tuple[float, ...] = (0.1, 0.1, 0.2, 0.2),
    nms_topk: int = -1,
) -> Any:
    """[batch, anchors, 6]: class, score and corners by falling score; class -1 for what is no detection. Class 0 is the
    background."""
    if background_id != 0:
        raise UnsupportedModel("MultiBoxDetection with another background than class 0 is not carried")
    return c.op(
        "DetectBoxes", cls_prob, loc_pred, anchor, domain="mezzo", threshold=threshold, overlap=nms_threshold,
        together=int(force_suppress), clip=int(clip), variances=tuple(variances), most=nms_topk,
    )  # fmt: skip
