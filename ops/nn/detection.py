"""Operators of object detection.

https://onnx.ai/onnx/operators/onnx__NonMaxSuppression.html
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..core.rules import has_rank, ints, same
from ..errors import ShapeError
from ..op import Body, Builder, Context, Sample, Value, op
from ..types import Array, DType, Tensor, f32

_BOXES = np.array(
    [[[0, 0, 1, 1], [0, 0.1, 1, 1.1], [0, -0.1, 1, 0.9], [0, 10, 1, 11], [1, 11.1, 0, 10.1], [0, 100, 1, 101]]],
    np.float32,
)
_SCORES = np.array([[[0.9, 0.75, 0.6, 0.95, 0.5, 0.3], [0.1, 0.2, 0.2, 0.0, 0.4, 0.3]]], np.float32)
_CENTRES = np.array([[[0.5, 0.5, 1, 1], [0.5, 0.6, 1, 1], [0.5, 0.4, 1, 1], [0.5, 10.5, 1, 1]]], np.float32)


@op(
    "NonMaxSuppression",
    since=11,
    outputs=("selected_indices",),
    samples=[
        Sample([_BOXES, _SCORES, np.array([3]), np.array([0.5], np.float32), np.array([0.25], np.float32)]),
        Sample([_BOXES, _SCORES, np.array(2), np.float32(0.5)]),
        Sample([_BOXES, _SCORES, np.array([9])]),
        Sample([_BOXES, _SCORES, np.array([2, 7]), np.array([0.5, 0.1], np.float32)]),  # the first of several counts
        Sample([_BOXES, _SCORES]),
        Sample(
            [_CENTRES, _SCORES[:, :, :4].copy(), np.array([3]), np.array([0.5], np.float32)], {"center_point_box": 1}
        ),
        Sample([f32(1, 0, 4), f32(1, 2, 0), np.array([3])]),
    ],
)
def non_max_suppression(
    k: Context,
    boxes: Array,
    scores: Array,
    max_output_boxes_per_class: Array | None = None,
    iou_threshold: Array | None = None,
    score_threshold: Array | None = None,
    *,
    center_point_box: int = 0,
) -> Array:
    most = 0 if max_output_boxes_per_class is None else ints(max_output_boxes_per_class)[0]
    overlap = 0.0 if iou_threshold is None else float(iou_threshold.reshape(-1)[0])
    least = None if score_threshold is None else float(score_threshold.reshape(-1)[0])
    if center_point_box:
        half = boxes[..., 2:] / 2
        low, high = boxes[..., :2] - half, boxes[..., :2] + half
    else:  # any two opposite corners
        low, high = k.xp.minimum(boxes[..., :2], boxes[..., 2:]), k.xp.maximum(boxes[..., :2], boxes[..., 2:])
    chosen: list[tuple[int, int, int]] = []
    for n in range(scores.shape[0]):
        for c in range(scores.shape[1]):
            picked = _keep(k, low[n], high[n], scores[n, c], most, overlap, least)
            chosen += [(n, c, i) for i in picked]
    return k.xp.asarray(np.array(chosen, np.int64).reshape(-1, 3))


def _keep(
    k: Context, low: Array, high: Array, scores: Array, most: int, overlap: float, least: float | None
) -> list[int]:
    """The best boxes, best first, less those that overlap a better one too much."""
    order = k.xp.argsort(-scores, kind="stable")
    if least is not None:
        order = order[scores[order] > least]  # as the runtimes do; the text would keep a score equal to the threshold
    area = (high - low).prod(-1)
    picked: list[int] = []
    while len(order) and len(picked) < most:
        k.check()
        best, order = int(order[0]), order[1:]
        picked.append(best)
        sides = k.xp.minimum(high[best], high[order]) - k.xp.maximum(low[best], low[order])
        common = k.xp.maximum(sides, 0).prod(-1)
        order = order[~(common > overlap * (area[best] + area[order] - common))]
    return picked


@non_max_suppression.infer
def _(
    boxes: Tensor,
    scores: Tensor,
    max_output_boxes_per_class: Tensor | None = None,
    iou_threshold: Tensor | None = None,
    score_threshold: Tensor | None = None,
) -> Tensor:
    for limit in (max_output_boxes_per_class, iou_threshold, score_threshold):
        if limit is not None and limit.elements == 0:
            raise ShapeError(f"the limit {limit} holds no number")
    has_rank(boxes, 3)
    has_rank(scores, 3)
    if boxes.dims is not None:
        same(boxes.dims[2], 4, f"{boxes} holds no boxes")
        if scores.dims is not None:
            same(boxes.dims[0], scores.dims[0], f"boxes {boxes} and scores {scores} differ in batch size")
            same(boxes.dims[1], scores.dims[2], f"boxes {boxes} and scores {scores} differ in number of boxes")
    return Tensor(DType.INT64, (None, 3))


_LEADING = np.array(
    [[[0, 0, 1, 1], [0, 0.1, 1, 1.1], [0, 0, 1, 1], [0, 10, 1, 11], [3, 3, 2, 2], [0, 10, 1, 10.5], [0, 0, 1, 0.5]]],
    np.float32,
)
_ALIVE = np.array([[True, True, True, True, True, True, False]])


@op(
    "KeepBoxes",
    domain="mezzo",
    since=1,
    outputs=("kept",),
    samples=[
        Sample([_LEADING, _ALIVE]),
        Sample([_LEADING, _ALIVE], {"overlap": 0.5, "inclusive": 1}),
        Sample([_LEADING, _ALIVE, np.array([[0, 1, 0, 2, 2, 2, 1]], np.float32)], {"overlap": 0.3}),
        Sample([f32(2, 5, 4), np.ones((2, 5), np.bool_), np.array([[0, 1, 0, 1, 0], [1, 1, 1, 0, 0]], np.float32)]),
    ],
)
def keep_boxes(
    k: Context, boxes: Array, alive: Array, classes: Array | None = None, *, overlap: float = 0.5, inclusive: int = 0
) -> Array:
    """True for each box that stays, of corners [batch, n, 4] in falling order of scores: one that is alive, of which
    no kept one before it, of the same class if there are `classes` [batch, n], shares more of the union than `overlap`
    (with `inclusive`: or as much)."""
    left, top, right, bottom = k.xp.moveaxis(boxes, -1, 0)
    area = k.xp.maximum(right - left, 0) * k.xp.maximum(bottom - top, 0)
    most, kept = boxes.dtype.type(overlap), k.xp.array(alive)
    for at in k.each(range(boxes.shape[1] - 1), 64):
        one, others = (slice(None), slice(at, at + 1)), (slice(None), slice(at + 1, None))
        wide = k.xp.minimum(right[one], right[others]) - k.xp.maximum(left[one], left[others])
        high = k.xp.minimum(bottom[one], bottom[others]) - k.xp.maximum(top[one], top[others])
        common = k.xp.maximum(wide, 0) * k.xp.maximum(high, 0)
        union = area[one] + area[others] - common
        share = k.xp.where(union > 0, common / k.xp.where(union > 0, union, 1), 0)
        over = share >= most if inclusive else share > most
        if classes is not None:
            over &= classes[one] == classes[others]
        kept[others] &= ~(over & kept[one])
    return kept


@keep_boxes.infer
def _(boxes: Tensor, alive: Tensor, classes: Tensor | None = None) -> Tensor:
    has_rank(boxes, 3)
    if boxes.dims is not None:
        same(boxes.dims[2], 4, f"{boxes} holds no boxes")
    for each in (alive, classes):
        if each is not None:
            has_rank(each, 2)
            if each.dims is not None and boxes.dims is not None:
                for axis in (0, 1):
                    same(each.dims[axis], boxes.dims[axis], f"{each} is not one of each of the boxes {boxes}")
    return Tensor(DType.BOOL, alive.dims if boxes.dims is None else boxes.dims[:2])


@keep_boxes.body
def _(g: Builder, xs: Any, types: Any, *, overlap: float = 0.5, inclusive: int = 0) -> tuple[Value, ...]:
    """One step of a Scan for each box."""
    boxes, alive, classes = xs
    zero, one, last = g.scalar(0, boxes), g.scalar(1, boxes), g.const([2])
    sides = g.Split(boxes, axis=2, num_outputs=4, outputs=4)  # [batch, n, 1] each
    turned = [g.Transpose(s, perm=(0, 2, 1)) for s in sides]

    def area(left: Value, top: Value, right: Value, bottom: Value) -> Value:
        return g.Mul(g.Max(g.Sub(right, left), zero), g.Max(g.Sub(bottom, top), zero))

    meet = [(g.Max if i < 2 else g.Min)(a, b) for i, (a, b) in enumerate(zip(sides, turned, strict=True))]
    common = area(*meet)
    union = g.Sub(g.Add(area(*sides), area(*turned)), common)
    positive = g.Greater(union, zero)
    share = g.Where(positive, g.Div(common, g.Where(positive, union, one)), zero)
    over = (g.GreaterOrEqual if inclusive else g.Greater)(share, g.scalar(overlap, boxes))
    if classes is not None:
        over = g.And(over, g.Equal(g.Unsqueeze(classes, last), g.Unsqueeze(classes, g.const([1]))))
    n = g.Squeeze(g.Shape(alive, start=1, end=2))
    places = g.Range(g.const(0), n, g.const(1))
    behind = g.Less(g.Unsqueeze(places, g.const([1])), g.Unsqueeze(places, g.const([0])))
    whole = DType.INT32.onnx
    drops = g.Transpose(g.Cast(g.And(over, behind), to=whole), perm=(1, 0, 2))
    row = Tensor(DType.INT32, None if types[1].dims is None else types[1].dims)

    def step(b: Builder, kept: Value, at: Value, victims: Value) -> tuple[Value, ...]:
        hit = b.Mul(b.Gather(kept, b.Unsqueeze(at, b.const([0])), axis=1), victims)
        return (b.Mul(kept, b.Sub(b.const(1, DType.INT32), hit)),)

    kept = g.Scan(
        g.Cast(alive, to=whole), places, drops,
        body=Body([row, Tensor(DType.INT64, ()), row], step), num_scan_inputs=2,
    )  # fmt: skip
    return (g.Cast(kept, to=DType.BOOL.onnx),)


_CHANCES = np.array([[[0.1, 0.2, 0.7, 0.1, 0.3], [0.6, 0.5, 0.2, 0.005, 0.3], [0.3, 0.3, 0.1, 0.002, 0.4]]], np.float32)
_SHIFTS = np.linspace(-1, 1, 20, dtype=np.float32).reshape(1, 20)
_ANCHORS = np.array(
    [[[0, 0, 0.4, 0.4], [0, 0.1, 0.4, 0.5], [0.5, 0.5, 1, 1], [0, 0, 1, 1], [0.1, 0, 0.4, 0.4]]], np.float32
)
Keep = Callable[[Array, Array | None, float], Array]  # corners in falling order of scores, their classes: who stays


@op(
    "DetectBoxes",
    domain="mezzo",
    since=1,
    outputs=("detections",),
    samples=[
        Sample([_CHANCES, _SHIFTS, _ANCHORS], {"overlap": 0.3}),
        Sample([_CHANCES, _SHIFTS, _ANCHORS], {"overlap": 0.3, "together": 1, "most": 2, "clip": 0}),
        Sample([np.repeat(_CHANCES, 2, 0), np.repeat(_SHIFTS, 2, 0), _ANCHORS], {"threshold": 0.35, "overlap": 0.0}),
    ],
)
def detect_boxes(
    k: Context,
    scores: Array,
    shifts: Array,
    anchors: Array,
    *,
    threshold: float = 0.01,
    overlap: float = 0.5,
    together: int = 0,
    clip: int = 1,
    variances: tuple[float, ...] = (0.1, 0.1, 0.2, 0.2),
    most: int = -1,
) -> Array:
    """Detections (MXNet's MultiBoxDetection): rows [batch, n, 6] of class, score and corners, best first.

    `scores` [batch, classes, n] are those of anchors [1, n, 4] (corners), class 0 the background, and `shifts`
    [batch, n * 4] move their centres and sizes. An anchor with a score below `threshold` is no candidate: its row is
    -1, behind the others. Candidates lose their class (-1) to a better one that shares `overlap` of their union (of
    their class, or `together` of any), if it is from above 0 to 1. Only the best `most` are compared, if that is above
    0, and those behind them come in the order of anchors.
    """

    def keep(corners: Array, classes: Array | None, overlap: float) -> Array:
        labels = None if classes is None else classes[None]
        alive = k.xp.ones((1, len(corners)), bool)
        found: Array = keep_boxes.reference(k, corners[None], alive, labels, overlap=overlap, inclusive=1)[0]
        return found

    return detections(
        k.xp, (scores, shifts, anchors), keep, threshold, overlap, bool(together), bool(clip), variances, most
    )


def detections(
    xp: Any, given: tuple[Array, Array, Array], keep: Keep, threshold: float, overlap: float, together: bool,
    clip: bool, variances: tuple[float, ...], most: int,
) -> Array:  # fmt: skip
    """The answer of `mezzo.DetectBoxes`, where `keep` compares boxes."""
    scores, shifts, anchors = given
    half, number = scores.dtype.type(0.5), scores.dtype.type
    left, top, right, bottom = xp.ascontiguousarray(anchors[0].T)
    sides = (right - left, bottom - top)
    middles = [edge + side * half for edge, side in zip((left, top), sides, strict=True)]
    rows = xp.empty((len(scores), scores.shape[2], 6), scores.dtype)
    for row, image, moves in zip(rows, scores[:, 1:], shifts.reshape(len(scores), -1, 4), strict=True):
        seen = xp.empty((6, len(row)), scores.dtype)  # class, score, corners: a column for each anchor
        xp.max(image, 0, out=seen[1])
        seen[0] = image.argmax(0)
        by = xp.ascontiguousarray(moves.T)
        for axis in (0, 1):
            centre = by[axis] * number(variances[axis]) * sides[axis] + middles[axis]
            wide = xp.exp(by[axis + 2] * number(variances[axis + 2])) * sides[axis] * half
            xp.subtract(centre, wide, out=seen[2 + axis])
            xp.add(centre, wide, out=seen[4 + axis])
        if clip:
            xp.minimum(xp.maximum(seen[2:], 0, out=seen[2:]), 1, out=seen[2:])
        (places,) = xp.nonzero(~(seen[1] < threshold))
        order = places[_leading(xp, seen[1, places], most)]
        first, count = len(order), len(places)
        best = seen[:, order]
        if 0 < overlap <= 1:
            kept = keep(best[2:].T, None if together else best[0], overlap)
            best[0, ~kept] = -1
        seen[0] = -1
        row[first:count] = (seen if count == len(row) else seen[:, places])[:, first:].T
        row[:first], row[count:] = best.T, -1
    return rows


def _leading(xp: Any, sure: Array, most: int) -> Array:
    """The places of the best, best first, of equals the first one; all of them, unless `most` is above 0."""
    count = len(sure) if most <= 0 else min(most, len(sure))
    if count == len(sure):
        found: Array = xp.argsort(-sure, kind="stable")
        return found
    (some,) = xp.nonzero(sure >= xp.partition(sure, len(sure) - count)[len(sure) - count])
    found = some[xp.argsort(-sure[some], kind="stable")][:count]
    return found


@detect_boxes.infer
def _(scores: Tensor, shifts: Tensor, anchors: Tensor) -> Tensor:
    has_rank(scores, 3)
    has_rank(shifts, 2)
    has_rank(anchors, 3)
    batch, classes, n = scores.dims or (None, None, None)
    if classes in (0, 1):
        raise ShapeError(f"{scores} has no class beside the background")
    if anchors.dims is not None:
        same(anchors.dims[2], 4, f"{anchors} holds no boxes")
        n = same(n, anchors.dims[1], f"{scores} are not one for each of the anchors {anchors}")
    return scores.of((batch, n, 6))


@detect_boxes.body
def _(
    g: Builder,
    xs: Any,
    types: Any,
    *,
    threshold: float = 0.01,
    overlap: float = 0.5,
    together: int = 0,
    clip: int = 1,
    variances: tuple[float, ...] = (0.1, 0.1, 0.2, 0.2),
    most: int = -1,
) -> tuple[Value, ...]:
    scores, shifts, anchors = xs
    last, rest, none = g.const([2]), g.const([np.iinfo(np.int64).max]), g.scalar(-1, scores)
    image = g.Slice(scores, g.const([1]), rest, g.const([1]))
    best = g.ReduceMax(image, g.const([1]), keepdims=0)
    label = g.CastLike(g.ArgMax(image, axis=1, keepdims=0), best)
    near, far = g.Split(anchors, axis=2, num_outputs=2, outputs=2)
    size, half = g.Sub(far, near), g.scalar(0.5, scores)
    middle = g.Add(near, g.Mul(size, half))
    moves = g.Mul(g.Reshape(shifts, g.const([0, -1, 4])), g.CastLike(g.const(np.array(variances, np.float32)), scores))
    at, by = g.Split(moves, axis=2, num_outputs=2, outputs=2)
    centre, wide = g.Add(g.Mul(at, size), middle), g.Mul(g.Mul(g.Exp(by), size), half)
    corners = g.Concat(g.Sub(centre, wide), g.Add(centre, wide), axis=2)
    if clip:
        corners = g.Clip(corners, g.scalar(0, scores), g.scalar(1, scores))
    sure = g.Not(g.Less(best, g.scalar(threshold, best)))
    count = g.Shape(best, start=1, end=2)
    order = g.TopK(g.Where(sure, best, g.scalar(-np.inf, best)), count, axis=1, largest=1, outputs=2)[1]
    leading = None
    if most > 0:
        place = g.Unsqueeze(g.Range(g.const(0), g.Squeeze(count), g.const(1)), g.const([0]))
        leading = g.Less(place, g.const(most))
        as_they_come = g.TopK(g.Cast(sure, to=DType.FLOAT.onnx), count, axis=1, largest=1, outputs=2)[1]
        order = g.Where(leading, order, as_they_come)
    seen = g.Concat(g.Unsqueeze(label, last), g.Unsqueeze(best, last), corners, axis=2)
    seen = g.GatherElements(seen, g.Expand(g.Unsqueeze(order, last), g.Shape(seen)), axis=1)
    sure = g.GatherElements(sure, order, axis=1)
    alive = sure if leading is None else g.And(sure, leading)
    kept = alive
    named, others = g.Split(seen, g.const([1, 5]), axis=2, outputs=2)
    if 0 < overlap <= 1:
        boxes = g.Slice(others, g.const([1]), rest, last)
        operands = [boxes, alive] if together else [boxes, alive, g.Squeeze(named, last)]
        kept = g.KeepBoxes(*operands, domain="mezzo", overlap=overlap, inclusive=1)
    marked = g.Concat(g.Where(g.Unsqueeze(kept, last), named, none), others, axis=2)
    return (g.Where(g.Unsqueeze(sure, last), marked, none),)
