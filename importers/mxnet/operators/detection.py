"""Targets of boxes in training: what anchors are to answer, pairs of rows and columns, offsets."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ....ops import Body, DType, Tensor
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
    matched = paired(c, shared, LEAST)[0]  # [batch, anchors]: the label, or -1
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


def paired(c: Converter, scores: str, least: float, most: int | None = None) -> tuple[Value, Value]:
    """Of scores [batch, rows, columns] by row its column and by column its row, -1 for what is in no pair: the pair of
    the highest score first, then the next of those that are left, above `least`. A step of a loop for each pair."""
    batch, rows, columns = (c.dim(scores, i) for i in range(3))
    dims = c.dims(scores)
    state = [Tensor(c.dtype(scores), dims), Tensor(DType.INT64, dims[:2]), Tensor(DType.INT64, (dims[0], dims[2]))]
    places = [c.Range(c.const(0), c.squeeze(n, 0), c.const(1)) for n in (rows, columns)]

    def step(g: Any, left: str, by_row: str, by_column: str, at: str) -> tuple[str, ...]:
        flat = g.Reshape(left, g.const(np.array([0, -1])))
        pair, high = g.ArgMax(flat, axis=1, keepdims=1), g.ReduceMax(flat, g.const(np.array([1])), keepdims=1)
        fits = g.Greater(high, g.number(least, high))
        row, column = g.Div(pair, columns), g.Mod(pair, columns)
        here = g.And(g.Equal(g.Unsqueeze(places[0], np.array([0])), row), fits)
        there = g.And(g.Equal(g.Unsqueeze(places[1], np.array([0])), column), fits)
        gone = g.Or(g.Unsqueeze(here, np.array([2])), g.Unsqueeze(there, np.array([1])))
        left = g.Where(gone, g.number(-math.inf, left), left)
        return left, g.Where(here, column, by_row), g.Where(there, row, by_column)

    count = c.Min(rows, columns) if most is None else c.Min(rows, columns, c.ints(most))
    none = [c.full(c.shape_with([batch, n]), -1, DType.INT64) for n in (rows, columns)]
    steps = c.Range(c.const(0), c.squeeze(count, 0), c.const(1))
    body = Body([*state, Tensor(DType.INT64, ())], step)
    results = c.Scan(scores, *none, steps, outputs=3, body=body, num_scan_inputs=1)
    return results[1], results[2]


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


@rule("_contrib_box_encode")
def box_encode(c: Converter, samples: str, matches: str, anchors: str, refs: str, means: str, stds: str) -> Any:
    """Offsets of anchors [batch, n, 4] to the boxes that they match, and their mask: samples above 0.5. Both are
    corners."""
    positive = c.unsqueeze(c.Greater(samples, c.number(0.5, samples)), 2)
    which = c.unsqueeze(c.whole(c.Max(matches, c.number(0, matches))), 2)  # what matches none is masked
    rows = c.GatherElements(refs, _wide(c, which, refs), axis=1)
    scaled = c.Div(c.Sub(_offsets(c, anchors, rows, (1, 1, 1, 1)), means), stds)
    zero, one = c.number(0, scaled), c.number(1, scaled)
    return c.constant(c.Where(positive, scaled, zero)), c.constant(c.Where(positive, one, c.like(scaled, 0)))


@rule("_contrib_bipartite_matching")
def bipartite_matching(c: Converter, data: str, *, threshold: float, is_ascend: bool = False, topk: int = -1) -> Any:
    """By row its column and by column its row, -1 for what is in no pair: the best pair first, then the best of the
    rows and columns that are left. MXNet makes one more than `topk` of them."""
    scores = data if c.rank(data) == 3 else c.reshape(data, [-1, *c.sizes(data)[-2:]])
    high = c.Neg(scores) if is_ascend else scores
    pairs = paired(c, high, -threshold if is_ascend else threshold, topk + 1 if topk > 0 else None)
    lead = [c.dim(data, i) for i in range(c.rank(data) - 2)]
    sides = zip(pairs, (c.dim(data, -2), c.dim(data, -1)), strict=True)
    return tuple(c.constant(c.Reshape(c.cast(f, c.dtype(data)), c.shape_with([*lead, size]))) for f, size in sides)
