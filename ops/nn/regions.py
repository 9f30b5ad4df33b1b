"""Pooling over regions of interest, each an image and a box in it.

https://onnx.ai/onnx/operators/onnx__RoiAlign.html, https://onnx.ai/onnx/operators/onnx__MaxRoiPool.html
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..core.rules import has_rank, narrow, same, widen
from ..errors import ShapeError
from ..op import Builder, Context, Sample, Value, op, signature
from ..types import Array, Dim, Tensor, f32

BOXES = np.array([[0, 1, 1, 4, 3], [1, 0, 0, 5, 5], [0, 3, 2, 3, 2], [1, 4, 4, 9, 7]], np.float32)


@op(
    "MaxRoiPool",
    since=22,
    samples=[
        Sample([f32(2, 3, 6, 6), BOXES], {"pooled_shape": [2, 3]}),
        Sample([f32(2, 1, 6, 6), BOXES], {"pooled_shape": [3, 3], "spatial_scale": 0.5}),
        Sample([f32(2, 1, 6, 6), f32(0, 5)], {"pooled_shape": [1, 1]}),
    ],
)
def max_roi_pool(
    k: Context, X: Array, rois: Array, *, pooled_shape: Sequence[int], spatial_scale: float = 1.0
) -> Array:
    x = widen(X)
    y = k.xp.zeros((len(rois), X.shape[1], *pooled_shape), x.dtype)  # bins without elements stay 0
    for r, image, i, j, row, column in k.each(bins(rois, X.shape[2:], pooled_shape, spatial_scale), 16):
        part = x[image, :, row, column]
        if part.size:
            y[r, :, i, j] = part.max((1, 2))
    return narrow(y, X.dtype)


def bins(
    rois: Array, sizes: Sequence[int], pooled_shape: Sequence[int], spatial_scale: float
) -> Iterator[tuple[int, int, int, int, slice, slice]]:
    """Every bin: the region, its image, the row and the column of the bin, and where it lies."""
    for r, (image, *corners) in enumerate(rois.tolist()):
        left, top, right, bottom = (_round(c * spatial_scale) for c in corners)
        columns = _bins(left, right, pooled_shape[1], sizes[1])
        for i, row in enumerate(_bins(top, bottom, pooled_shape[0], sizes[0])):
            for j, column in enumerate(columns):
                yield r, int(image), i, j, row, column


def _round(value: float) -> int:
    """The nearest whole number, halves away from zero."""
    return int(math.copysign(math.floor(abs(value) + 0.5), value))


def _bins(first: int, last: int, count: int, size: int) -> list[slice]:
    """Return the slices of the bins along one axis; they may overlap by an element."""
    step = max(last - first + 1, 1) / count
    ends = [(math.floor(i * step) + first, math.ceil((i + 1) * step) + first) for i in range(count)]
    return [slice(min(max(a, 0), size), min(max(b, 0), size)) for a, b in ends]


@max_roi_pool.infer
def _(X: Tensor, rois: Tensor, *, pooled_shape: Sequence[int]) -> Tensor:
    return X.of((*_frame(X, rois, 5), *pooled_shape))


@max_roi_pool.grad
def _(g: Builder, dys: Any, ys: Any, xs: Any, **attrs: Any) -> tuple[Value | None, ...]:
    return g.MaxRoiPoolGrad(dys[0], *xs, domain="mezzo", **attrs), None  # corners are rounded


def _frame(X: Tensor, rois: Tensor, entries: int) -> tuple[Dim, Dim]:
    """Return the number of regions and the number of channels."""
    has_rank(X, 4)
    has_rank(rois, 2)
    if rois.dims is not None:
        same(rois.dims[1], entries, f"each region of {rois} has {entries} entries")
    return None if rois.dims is None else rois.dims[0], None if X.dims is None else X.dims[1]


def _readers(size: int, first: float, extent: float, count: int, samples: int) -> tuple[Array, Array, Array, Array]:
    """For each sample along one axis: the two elements around it and their weights, both 0 where it lies outside."""
    step = extent / count
    at = first + (np.arange(count)[:, None] * step + (np.arange(samples) + 0.5) * step / samples).reshape(-1)
    outside = (at < -1) | (at > size)
    at = at.clip(0, size - 1)
    low = np.minimum(np.floor(at).astype(np.int64), size - 1)
    high = np.minimum(low + 1, size - 1)
    part = at - low
    return low, high, np.where(outside, 0, 1 - part), np.where(outside, 0, part)


CORNERS = np.array([[0.5, 1, 5.5, 4.2], [0, 0, 3, 3], [2, 2, 2.2, 9]], np.float32)
IMAGES = np.array([0, 1, 0])
SHAPE = {"output_height": 2, "output_width": 3}


Readers = tuple[Array, Array, Array, Array]


def samples(
    sizes: Sequence[int],
    rois: Array,
    batch_indices: Array,
    mode: str,
    output_height: int,
    output_width: int,
    *,
    coordinate_transformation_mode: str = "half_pixel",
    sampling_ratio: int = 0,
    spatial_scale: float = 1.0,
) -> Iterator[tuple[int, tuple[int, Readers], tuple[int, Readers]]]:
    """For each region its image and, for each axis, how many samples a bin has and what they read."""
    if coordinate_transformation_mode not in ("half_pixel", "output_half_pixel") or mode not in ("avg", "max"):
        raise ShapeError(f"mode {mode!r} with {coordinate_transformation_mode!r} coordinates is unknown")
    shifted = coordinate_transformation_mode == "half_pixel"

    def along(first: float, last: float, count: int, size: int) -> tuple[int, Readers]:
        extent = last - first if shifted else max(last - first, 1.0)
        if not extent < 64 * size + 4096:  # as many samples as pixels: their number must not be the data's choice
            raise ShapeError(f"a region of {extent} pixels on an image of {size}")
        many = sampling_ratio if sampling_ratio > 0 else max(math.ceil(extent / count), 1)
        if many > 64 * size + 4096:
            raise ShapeError(f"{many} samples in each bin of an image of {size} pixels")
        return many, _readers(size, first, extent, count, many)

    for image, box in zip(batch_indices.tolist(), rois.tolist(), strict=True):
        left, top, right, bottom = (c * spatial_scale - 0.5 * shifted for c in box)
        yield image, along(top, bottom, output_height, sizes[0]), along(left, right, output_width, sizes[1])


SAMPLING = signature(samples)[1]  # attributes of RoiAlign that its gradient has too


@op(
    "RoiAlign", mixed="wide",
    attributes=SAMPLING,
    since=22,
    samples=[
        Sample([f32(2, 3, 6, 6), CORNERS, IMAGES], SHAPE),
        Sample([f32(2, 3, 6, 6), CORNERS, IMAGES], {**SHAPE, "sampling_ratio": 2, "spatial_scale": 0.7}),
        Sample([f32(2, 3, 6, 6), CORNERS, IMAGES],
               {**SHAPE, "coordinate_transformation_mode": "output_half_pixel", "sampling_ratio": 3}),
        Sample([f32(2, 3, 6, 6), CORNERS, IMAGES], {**SHAPE, "mode": "max"}),
        Sample([f32(2, 3, 6, 6), f32(0, 4), np.zeros(0, np.int64)]),
    ],
)  # fmt: skip
def roi_align(
    k: Context,
    X: Array,
    rois: Array,
    batch_indices: Array,
    *,
    mode: str = "avg",
    output_height: int = 1,
    output_width: int = 1,
    **attrs: Any,
) -> Array:
    xp, x = k.xp, widen(X)
    y = xp.zeros((len(rois), X.shape[1], output_height, output_width), x.dtype)
    sampled = samples(X.shape[2:], rois, batch_indices, mode, output_height, output_width, **attrs)
    for r, (image, (down, vertical), (across, horizontal)) in enumerate(k.each(sampled, 1)):
        parts = corners(xp, x[image], vertical, horizontal)
        shape = (X.shape[1], output_height, down, output_width, across)
        if mode == "avg":
            y[r] = xp.stack(parts).sum(0).reshape(shape).mean((2, 4))
        else:  # the official vectors take the largest of the weighted neighbours, not of their sums
            y[r] = xp.stack(parts).max(0).reshape(shape).max((2, 4))
    return narrow(y, X.dtype)


def corners(xp: Any, x: Array, vertical: Readers, horizontal: Readers) -> list[Array]:
    """The four weighted neighbours of every sample of an image."""
    down, across = ([xp.asarray(v) for v in axis] for axis in (vertical, horizontal))
    return [x[:, down[v]][:, :, across[h]] * (down[v + 2][:, None] * across[h + 2]) for v in (0, 1) for h in (0, 1)]


@roi_align.infer
def _(X: Tensor, rois: Tensor, batch_indices: Tensor, *, output_height: int = 1, output_width: int = 1) -> Tensor:
    count, channels = _frame(X, rois, 4)
    if batch_indices.dims is not None:
        count = same(count, batch_indices.dims[0], f"{batch_indices} does not name an image for each region of {rois}")
    return X.of((count, channels, output_height, output_width))


@roi_align.grad
def _(g: Builder, dys: Any, ys: Any, xs: Any, **attrs: Any) -> tuple[Value | None, ...]:
    return g.RoiAlignGrad(dys[0], *xs, domain="mezzo", **attrs), None, None
