"""Images and boxes: resizing, sampling, regions, anchors, suppression."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ....ops import Body, DType, Tensor
from ....ops.errors import UnsupportedModel
from ..converter import Converter
from ..rules import rule
from .nn import convolution, spread


@rule("UpSampling")
def upsampling(
    c: Converter,
    *data: str,
    scale: int,
    sample_type: str,
    num_filter: int = 0,
    multi_input_mode: str = "concat",
) -> Any:
    """Nearest: every operand to the size of the first one's result, then joined or added. Bilinear: a transposed
    convolution with the weight that is the second operand."""
    if sample_type == "bilinear":
        kernel, pad = 2 * scale - scale % 2, math.ceil((scale - 1) / 2)
        channels = c.size(data[0], 1, "for a bilinear upsampling")
        return c.ConvTranspose(
            *data,
            kernel_shape=(kernel, kernel),
            strides=(scale, scale),
            pads=(pad,) * 4,
            group=channels,
        )
    if sample_type != "nearest":
        raise UnsupportedModel(f"upsampling of the kind {sample_type!r} is not known")
    grown = []
    for i, x in enumerate(data):
        factor = scale
        if i:
            factor = scale * c.size(data[0], 2, "beside other operands") // c.size(x, 2, "beside others")
        grown.append(_repeated(c, x, factor))
    if len(grown) == 1:
        return grown[0]
    return c.Sum(*grown) if multi_input_mode == "sum" else c.op("Concat", *grown, axis=1)


def _repeated(c: Converter, x: str, factor: int) -> str:
    scales = c.const(np.array([1, 1, factor, factor], np.float32))
    result: str = c.Resize(
        x, None, scales, mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor"
    )
    return result


@rule("_contrib_BilinearResize2D")
def bilinear_resize(
    c: Converter,
    data: str,
    like: str | None = None,
    *,
    height: int = 1,
    width: int = 1,
    scale_height: Any = None,
    scale_width: Any = None,
    mode: str = "size",
    align_corners: bool = True,
) -> Any:
    sides = []
    for axis, side, scale in ((2, height, scale_height), (3, width, scale_width)):
        if mode == "like":
            assert like is not None
            sides.append(c.dim(like, axis))
            continue
        if mode not in ("size", "odd_scale"):
            raise UnsupportedModel(f"BilinearResize2D of mode {mode!r} is not known")
        size = side if scale is None else int(c.size(data, axis, "to be scaled") * scale)
        if mode == "odd_scale" and scale is not None:
            known = c.size(data, axis)
            size = int(known * scale) if known % 2 == 0 else int((known - 1) * scale) + 1
        sides.append(c.ints(size))
    way = "align_corners" if align_corners else "half_pixel"
    sizes = c.op("Concat", c.dim(data, 0), c.dim(data, 1), *sides, axis=0)
    return c.Resize(data, None, None, sizes, mode="linear", coordinate_transformation_mode=way)


@rule("GridGenerator")
def grid_generator(c: Converter, data: str, *, transform_type: str, target_shape: tuple[int, ...] = (0, 0)) -> Any:
    """[batch, 2, height, width]: x and y from -1 to 1 of where to sample."""
    if transform_type == "affine":
        return _affine_grid(c, data, target_shape)
    if transform_type != "warp":
        raise UnsupportedModel(f"grids of the kind {transform_type!r} are not known")
    height, width = c.size(data, 2, "for a grid"), c.size(data, 3, "for a grid")
    plain = np.stack(np.meshgrid(np.arange(width), np.arange(height)), 0)[None]
    half = np.reshape([max(width - 1, 1) / 2, max(height - 1, 1) / 2], (1, 2, 1, 1))
    return c.Sub(c.Div(c.Add(data, c.array(plain, data)), c.array(half, data)), c.number(1, data))


def _affine_grid(c: Converter, theta: str, shape: tuple[int, ...]) -> str:
    height, width = shape
    xs, ys = np.meshgrid(np.linspace(-1, 1, width), np.linspace(-1, 1, height))
    points = np.stack([xs.ravel(), ys.ravel(), np.ones(height * width)])
    grid = c.MatMul(c.reshape(theta, [-1, 2, 3]), c.array(points, theta))
    return c.reshape(grid, [0, 2, height, width])


@rule("BilinearSampler")
def bilinear_sampler(c: Converter, data: str, grid: str) -> Any:
    return c.GridSample(
        data, c.transpose(grid, (0, 2, 3, 1)), mode="linear", padding_mode="zeros", align_corners=1
    )


@rule("SpatialTransformer")
def spatial_transformer(
    c: Converter,
    data: str,
    loc: str,
    *,
    sampler_type: str,
    transform_type: str,
    target_shape: tuple[int, ...] = (0, 0),
) -> Any:
    if target_shape == (0, 0):
        target_shape = (c.size(data, 2, "for a grid"), c.size(data, 3, "for a grid"))
    return bilinear_sampler(c, data, _affine_grid(c, loc, target_shape))


@rule("ROIPooling", "_npx_roi_pooling")
def roi_pooling(c: Converter, data: str, rois: str, *, pooled_size: tuple[int, ...], spatial_scale: float) -> Any:
    return c.MaxRoiPool(data, rois, pooled_shape=tuple(spread(pooled_size, 2, 1)), spatial_scale=spatial_scale)


@rule("_contrib_ROIAlign")
def roi_align(
    c: Converter,
    data: str,
    rois: str,
    *,
    pooled_size: tuple[int, ...],
    spatial_scale: float,
    sample_ratio: int = -1,
    position_sensitive: bool = False,
    aligned: bool = False,
) -> Any:
    if position_sensitive:
        raise UnsupportedModel("position-sensitive ROIAlign is not carried")
    high, wide = spread(pooled_size, 2, 1)
    return c.RoiAlign(
        data,
        c.slice(rois, 1, 1, 5),
        c.whole(c.squeeze(c.slice(rois, 1, 0, 1), 1)),
        output_height=high,
        output_width=wide,
        spatial_scale=spatial_scale,
        sampling_ratio=max(sample_ratio, 0),
        mode="avg",
        coordinate_transformation_mode="half_pixel" if aligned else "output_half_pixel",
    )


def _deformable(c: Converter, data: str, offset: str, mask: str | None, weight: str, bias: str | None, a: Any) -> Any:
    count = len(a["kernel"])
    pads = spread(a["pad"], count, 0)
    return c.DeformConv(
        data,
        weight,
        offset,
        None if a["no_bias"] else bias,
        mask,
        kernel_shape=tuple(a["kernel"]),
        strides=tuple(spread(a["stride"], count, 1)),
        dilations=tuple(spread(a["dilate"], count, 1)),
        pads=(*pads, *pads),
        group=a["num_group"],
        offset_group=a["num_deformable_group"],
    )


@rule("_contrib_DeformableConvolution")
def deformable_convolution(
    c: Converter,
    data: str,
    offset: str,
    weight: str,
    bias: str | None = None,
    *,
    kernel: tuple[int, ...],
    num_filter: int,
    stride: tuple[int, ...] = (),
    dilate: tuple[int, ...] = (),
    pad: tuple[int, ...] = (),
    num_group: int = 1,
    num_deformable_group: int = 1,
    no_bias: bool = False,
    layout: Any = None,
) -> Any:
    attrs = locals()
    offset, mask = _within_data(c, data, offset, attrs)
    return _deformable(c, data, offset, mask, weight, bias, attrs)


def _within_data(c: Converter, data: str, offset: str, a: Any) -> tuple[str, str]:
    """Offsets and a mask for samples as the first deformable convolution takes them: none from outside of the data, and
    between the last element and its end that element whole."""
    kernel, groups = a["kernel"], a["num_deformable_group"]
    steps, gaps, pads = spread(a["stride"], 2, 1), spread(a["dilate"], 2, 1), spread(a["pad"], 2, 0)
    out = [c.size(offset, i + 2, "of offsets") for i in range(2)]
    taps = np.stack(np.meshgrid(*(np.arange(k) * g for k, g in zip(kernel, gaps, strict=True)), indexing="ij"), -1)
    places = [
        taps.reshape(-1, 2)[:, i, None, None] + np.expand_dims(np.arange(out[i]) * steps[i] - pads[i], 1 - i)
        for i in range(2)
    ]
    apart = c.reshape(offset, [0, groups, math.prod(kernel), 2, *out])
    moved, masks = [], []
    for i, base in enumerate(places):
        grid = c.array(np.broadcast_to(base, (math.prod(kernel), *out)), offset)
        at = c.Add(c.squeeze(c.slice(apart, 3, i, i + 1), 3), grid)
        size = c.size(data, i + 2, "beside offsets")
        masks.append(c.And(c.GreaterOrEqual(at, c.number(0, at)), c.Less(at, c.number(size, at))))
        moved.append(c.unsqueeze(c.Sub(c.Min(at, c.number(size - 1, at)), grid), 3))
    joined = c.reshape(c.op("Concat", *moved, axis=3), [0, -1, *out])
    return joined, c.reshape(c.cast(c.And(*masks), c.dtype(data)), [0, -1, *out])


@rule("_contrib_ModulatedDeformableConvolution")
def modulated_deformable_convolution(
    c: Converter,
    data: str,
    offset: str,
    mask: str,
    weight: str,
    bias: str | None = None,
    *,
    kernel: tuple[int, ...],
    num_filter: int,
    stride: tuple[int, ...] = (),
    dilate: tuple[int, ...] = (),
    pad: tuple[int, ...] = (),
    num_group: int = 1,
    num_deformable_group: int = 1,
    no_bias: bool = False,
    im2col_step: int = 64,
    layout: Any = None,
) -> Any:
    return _deformable(c, data, offset, mask, weight, bias, locals())


@rule("Correlation")
def correlation(
    c: Converter,
    data1: str,
    data2: str,
    *,
    kernel_size: int = 1,
    max_displacement: int = 1,
    stride1: int = 1,
    stride2: int = 1,
    pad_size: int = 0,
    is_multiply: bool = True,
) -> Any:
    """Means of products (or of absolute differences) of patches of one image and of displaced ones of the other: one
    channel for each displacement."""
    radius = kernel_size // 2
    border = max_displacement + radius
    high, wide = (c.size(data1, a, "for a correlation") + 2 * pad_size for a in (2, 3))
    rows, columns = (math.ceil((s - 2 * border) / stride1) for s in (high, wide))
    pads = c.ints(0, 0, pad_size, pad_size, 0, 0, pad_size, pad_size)
    first, second = (c.Pad(x, pads) for x in (data1, data2))
    reach = max_displacement // stride2 * stride2
    channels = c.size(data1, 1, "for a correlation")
    inner = c.ints(2, 3)
    here = c.Slice(
        first, c.ints(max_displacement, max_displacement), c.ints(high - max_displacement, wide - max_displacement), inner
    )
    maps = []
    for down in range(-reach, reach + 1, stride2):
        for right in range(-reach, reach + 1, stride2):
            top, left = max_displacement + down, max_displacement + right
            ends = c.ints(high - max_displacement + down, wide - max_displacement + right)
            there = c.Slice(second, c.ints(top, left), ends, inner)
            both = c.Mul(here, there) if is_multiply else c.Abs(c.Sub(here, there))
            maps.append(c.ReduceSum(both, c.ints(1), keepdims=1))
    joined = c.op("Concat", *maps, axis=1)
    window = c.AveragePool(joined, kernel_shape=(kernel_size,) * 2, strides=(stride1, stride1))
    cut = c.Slice(window, c.ints(0, 0), c.ints(rows, columns), inner)
    return c.Mul(cut, c.number(1 / channels, cut))


# Boxes


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
    rows, columns = (c.size(data, a, "for anchors") for a in (2, 3))
    down, right = (s if s > 0 else 1 / n for s, n in zip(steps, (rows, columns), strict=True))
    centre_y = (np.arange(rows) + offsets[0]) * down
    centre_x = (np.arange(columns) + offsets[1]) * right
    halves = [(s * rows / columns * math.sqrt(ratios[0]) / 2, s / math.sqrt(ratios[0]) / 2) for s in sizes]
    halves += [(sizes[0] * rows / columns * math.sqrt(r) / 2, sizes[0] / math.sqrt(r) / 2) for r in ratios[1:]]
    w, h = np.array(halves).T
    x, y = (v[..., None] for v in np.meshgrid(centre_x, centre_y))
    boxes = np.stack([x - w, y - h, x + w, y + h], -1).reshape(1, -1, 4).astype(np.float32)
    return c.Identity(c.array(np.clip(boxes, 0, 1) if clip else boxes, data))


def corners(c: Converter, boxes: str, kind: str) -> list[str]:
    """Left, top, right, bottom of the last axis, each with an axis of one element there."""
    at = c.rank(boxes) - 1
    parts = [c.slice(boxes, at, i, i + 1) for i in range(4)]
    if kind == "corner":
        return parts
    x, y, w, h = parts
    half_w, half_h = c.Mul(w, c.number(0.5, w)), c.Mul(h, c.number(0.5, h))
    return [c.Sub(x, half_w), c.Sub(y, half_h), c.Add(x, half_w), c.Add(y, half_h)]


def _area(c: Converter, left: str, top: str, right: str, bottom: str) -> str:
    zero = c.number(0, left)
    return c.Mul(c.Max(c.Sub(right, left), zero), c.Max(c.Sub(bottom, top), zero))


def overlaps(c: Converter, first: list[str], second: list[str]) -> str:
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


def suppressed(c: Converter, boxes: list[str], classes: str | None, alive: str, threshold: float) -> str:
    """Which of boxes [batch, n, 1 each], sorted by their scores, stay: each drops those behind it that overlap it by
    more than the threshold and are of its class. One step of a loop for each box."""
    n = c.dim(alive, 1)
    over = c.Greater(
        overlaps(c, boxes, [c.transpose(b, (0, 2, 1)) for b in boxes]), c.const(threshold, c.dtype(boxes[0]))
    )
    if classes is not None:
        over = c.And(over, c.Equal(classes, c.transpose(classes, (0, 2, 1))))
    count = c.squeeze(n, 0)
    steps = c.Range(c.const(0), count, c.const(1))
    behind = c.Less(c.unsqueeze(steps, 0, 2), c.unsqueeze(steps, 0, 1))
    drops = c.cast(c.And(over, behind), DType.INT32)

    kept_type, rows_type = c.types[alive], c.types[drops]
    assert isinstance(kept_type, Tensor) and isinstance(rows_type, Tensor) and rows_type.dims is not None
    row = Tensor(DType.INT32, (rows_type.dims[0], rows_type.dims[2]))
    index = Tensor(DType.INT64, ())

    def step(g: Any, kept: str, at: str, victims: str) -> tuple[str, ...]:
        here = g.Gather(kept, at, axis=1)
        hit = g.Mul(g.Unsqueeze(here, np.array([1])), victims)
        return (g.Mul(kept, g.Sub(g.const(np.array(1, np.int32)), hit)),)

    kept: str = c.Scan(
        c.cast(alive, DType.INT32),
        steps,
        c.transpose(drops, (1, 0, 2)),
        body=Body([Tensor(DType.INT32, kept_type.dims), index, row], step),
        num_scan_inputs=2,
    )
    return c.cast(kept, DType.BOOL)


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
    boxes = corners(c, c.slice(sorted_, 2, coord_start, coord_start + 4), in_format)
    same = None if force_suppress or classes is None else c.slice(sorted_, 2, id_index, id_index + 1)
    kept = suppressed(c, boxes, same, alive, overlap_thresh)
    if out_format != in_format:
        sorted_ = _recoded(c, sorted_, boxes, coord_start, out_format)
    result = c.Where(c.unsqueeze(kept, 2), sorted_, c.number(-1, sorted_))
    first = c.op("TopK", c.cast(kept, DType.FLOAT), c.dim(order, 1), outputs=2, axis=1, largest=1)[1]
    result = c.GatherElements(result, c.Expand(c.unsqueeze(first, 2), c.shape_of(result)), axis=1)
    return c.Reshape(result, c.shape_of(data))


def _three(c: Converter, x: str) -> str:
    """[..., n, width] as [batch, n, width]."""
    rank = c.rank(x)
    return c.Reshape(x, c.shape_with([-1, c.dim(x, rank - 2), c.dim(x, rank - 1)]))


def _recoded(c: Converter, x: str, boxes: list[str], start: int, kind: str) -> str:
    """The boxes among the columns, as corners or as centre and size."""
    left, top, right, bottom = boxes
    if kind == "center":
        half = c.number(0.5, left)
        edges = [c.Mul(c.Add(left, right), half), c.Mul(c.Add(top, bottom), half), c.Sub(right, left), c.Sub(bottom, top)]
    else:
        edges = boxes
    parts = [c.slice(x, 2, 0, start)] if start else []
    width = c.size(x, 2)
    rest = [c.slice(x, 2, start + 4, width)] if width > start + 4 else []
    return c.op("Concat", *parts, *edges, *rest, axis=2)


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
    foreground = c.slice(cls_prob, 1, 1, None)
    score, best = c.ReduceMax(foreground, c.ints(1), keepdims=0), c.ArgMax(foreground, axis=1, keepdims=0)
    shifts = c.reshape(loc_pred, [0, -1, 4])
    boxes = box_decode(c, shifts, anchor, std0=variances[0], std1=variances[1], std2=variances[2], std3=variances[3],
                       format="corner")  # fmt: skip
    if clip:
        boxes = c.Clip(boxes, c.number(0, boxes), c.number(1, boxes))
    valid = c.Not(c.Less(score, c.number(threshold, score)))
    classes = c.Where(valid, c.cast(best, c.dtype(score)), c.number(-1, score))
    rows = c.op("Concat", c.unsqueeze(classes, 2), c.unsqueeze(score, 2), boxes, axis=2)
    # What is no candidate comes behind, in the order of the anchors.
    order = c.op(
        "TopK", c.Where(valid, score, c.number(-math.inf, score)), c.dim(score, 1), outputs=2, axis=1, largest=1
    )[1]
    rows = c.GatherElements(rows, c.Expand(c.unsqueeze(order, 2), c.shape_of(rows)), axis=1)
    alive = c.GatherElements(valid, order, axis=1)
    if nms_topk > 0:
        place = c.unsqueeze(c.Range(c.const(0), c.squeeze(c.dim(order, 1), 0), c.const(1)), 0)
        alive = c.And(alive, c.Less(place, c.const(nms_topk)))
    edges = corners(c, c.slice(rows, 2, 2, 6), "corner")
    same = None if force_suppress else c.slice(rows, 2, 0, 1)
    kept = suppressed(c, edges, same, alive, nms_threshold) if 0 < nms_threshold <= 1 else alive
    identity = c.Where(c.unsqueeze(kept, 2), c.slice(rows, 2, 0, 1), c.number(-1, rows))
    marked = c.op("Concat", identity, c.slice(rows, 2, 1, 6), axis=2)
    return c.Where(c.unsqueeze(c.GatherElements(valid, order, axis=1), 2), marked, c.number(-1, marked))


# Images


@rule("_image_normalize", "_npx__image_normalize")
def image_normalize(
    c: Converter, data: str, *, mean: tuple[float, ...] = (0.0,) * 4, std: tuple[float, ...] = (1.0,) * 4
) -> Any:
    channels = c.size(data, -3)

    def column(values: tuple[float, ...]) -> str:
        each = values if len(values) > 1 else values * channels
        return c.array(np.reshape(each[:channels], (-1, 1, 1)), data)

    return c.Div(c.Sub(data, column(mean)), column(std))


@rule("_image_to_tensor", "_npx__image_to_tensor")
def image_to_tensor(c: Converter, data: str) -> Any:
    rank = c.rank(data)
    floats = c.Div(c.cast(data, DType.FLOAT), c.const(np.float32(255)))
    return c.transpose(floats, (*range(rank - 3), rank - 1, rank - 3, rank - 2))


@rule("_image_flip_left_right", "_npx__image_flip_left_right")
def flip_left_right(c: Converter, data: str) -> Any:
    return c.slice(data, c.rank(data) - 2, -1, None, -1)


@rule("_image_flip_top_bottom", "_npx__image_flip_top_bottom")
def flip_top_bottom(c: Converter, data: str) -> Any:
    return c.slice(data, c.rank(data) - 3, -1, None, -1)


@rule("_image_crop", "_npx__image_crop")
def image_crop(c: Converter, data: str, *, x: int, y: int, width: int, height: int) -> Any:
    rank = c.rank(data)
    return c.Slice(data, c.ints(y, x), c.ints(y + height, x + width), c.ints(rank - 3, rank - 2))


@rule("im2col")
def im2col(
    c: Converter,
    data: str,
    *,
    kernel: tuple[int, ...],
    stride: tuple[int, ...] = (),
    dilate: tuple[int, ...] = (),
    pad: tuple[int, ...] = (),
) -> Any:
    """Patches as columns: a convolution whose filters pick one element each."""
    channels, area = c.size(data, 1, "to take patches of it"), math.prod(kernel)
    picks = np.tile(np.eye(area).reshape(area, 1, *kernel), (channels, *[1] * (len(kernel) + 1)))
    patches = convolution(
        c, data, c.array(picks, data), kernel=kernel, num_filter=channels * area, stride=stride, dilate=dilate,
        pad=pad, num_group=channels, no_bias=True,
    )  # fmt: skip
    return c.reshape(patches, [0, channels * area, -1])


@rule("col2im")
def col2im(
    c: Converter,
    data: str,
    *,
    output_size: tuple[int, ...],
    kernel: tuple[int, ...],
    stride: tuple[int, ...] = (),
    dilate: tuple[int, ...] = (),
    pad: tuple[int, ...] = (),
) -> Any:
    count = len(kernel)
    pads = spread(pad, count, 0)
    return c.Col2Im(
        data,
        c.ints(*output_size),
        c.ints(*kernel),
        strides=tuple(spread(stride, count, 1)),
        dilations=tuple(spread(dilate, count, 1)),
        pads=(*pads, *pads),
    )
