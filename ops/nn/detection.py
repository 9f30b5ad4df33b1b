"""Operators of object detection.

https://onnx.ai/onnx/operators/onnx__NonMaxSuppression.html
"""

from __future__ import annotations

import numpy as np

from ..core.rules import has_rank, ints, same
from ..errors import ShapeError
from ..op import Context, Sample, op
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
