"""Images: resizing, sampling, regions, deformable convolutions, patches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ....ops import DType
from ....ops.errors import UnsupportedModel
from ..converter import Converter, Value
from ..rules import rule
from .nn import WEIGHTED, WINDOW, convolution, in_onnx, spread, weighted


@rule("UpSampling", keeps_axes=True)
def upsampling(
    c: Converter, *data: str, scale: int, sample_type: str, num_filter: int = 0, multi_input_mode: str = "concat"
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


def _repeated(c: Converter, x: str, factor: int) -> Value:
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


def _affine_grid(c: Converter, theta: str, shape: tuple[int, ...]) -> Value:
    height, width = shape
    xs, ys = np.meshgrid(np.linspace(-1, 1, width), np.linspace(-1, 1, height))
    points = np.stack([xs.ravel(), ys.ravel(), np.ones(height * width)])
    grid = c.MatMul(c.reshape(theta, [-1, 2, 3]), c.array(points, theta))
    return c.reshape(grid, [0, 2, height, width])


@rule("BilinearSampler")
def bilinear_sampler(c: Converter, data: str, grid: str) -> Any:
    return c.GridSample(data, c.transpose(grid, (0, 2, 3, 1)), mode="linear", padding_mode="zeros", align_corners=1)


@rule("SpatialTransformer")
def spatial_transformer(
    c: Converter, data: str, loc: str, *, sampler_type: str, transform_type: str, target_shape: tuple[int, ...] = (0, 0)
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
    high, wide = spread(pooled_size, 2, 1)
    means = c.RoiAlign(
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
    if not position_sensitive:
        return means
    apart = c.reshape(means, [0, -1, high * wide, high * wide])  # each bin reads a channel of its own
    own = c.Expand(c.const(np.arange(high * wide).reshape(1, 1, 1, -1)), c.shape_of(c.slice(apart, 2, 0, 1)))
    return c.reshape(c.GatherElements(apart, own, axis=2), [0, -1, high, wide])


def _deformable(
    c: Converter,
    data: str,
    offset: str,
    mask: str | None,
    weight: str,
    bias: str | None,
    *,
    no_bias: bool = False,
    num_deformable_group: int = 1,
    **window: Any,
) -> Any:
    attrs = {**weighted(**window), "offset_group": num_deformable_group}
    return c.DeformConv(data, weight, offset, None if no_bias else bias, mask, **attrs)


DEFORMED = {**WEIGHTED, "num_deformable_group": 1, "no_bias": False}


@rule("_contrib_DeformableConvolution", attributes=DEFORMED)
def deformable_convolution(
    c: Converter, data: str, offset: str, weight: str, bias: str | None = None, *, layout: Any = None, **attrs: Any
) -> Any:
    offset, mask = _within_data(c, data, offset, **attrs)
    return _deformable(c, data, offset, mask, weight, bias, **attrs)


def _within_data(
    c: Converter,
    data: str,
    offset: str,
    *,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    dilate: Sequence[int] = (),
    pad: Sequence[int] = (),
    num_deformable_group: int = 1,
    **_: Any,
) -> tuple[str, str]:
    """Offsets and a mask for samples as the first deformable convolution takes them: none from outside of the data, and
    between the last element and its end that element whole."""
    steps, gaps, pads = spread(stride, 2, 1), spread(dilate, 2, 1), spread(pad, 2, 0)
    out = [c.size(offset, i + 2, "of offsets") for i in range(2)]
    taps = np.stack(np.meshgrid(*(np.arange(k) * g for k, g in zip(kernel, gaps, strict=True)), indexing="ij"), -1)
    places = [
        taps.reshape(-1, 2)[:, i, None, None] + np.expand_dims(np.arange(out[i]) * steps[i] - pads[i], 1 - i)
        for i in range(2)
    ]
    apart = c.reshape(offset, [0, num_deformable_group, math.prod(kernel), 2, *out])
    moved, masks = [], []
    for i, base in enumerate(places):
        grid = c.array(np.broadcast_to(base, (math.prod(kernel), *out)), offset)
        at = c.Add(c.squeeze(c.slice(apart, 3, i, i + 1), 3), grid)
        size = c.size(data, i + 2, "beside offsets")
        masks.append(c.And(c.GreaterOrEqual(at, c.number(0, at)), c.Less(at, c.number(size, at))))
        moved.append(c.unsqueeze(c.Sub(c.Min(at, c.number(size - 1, at)), grid), 3))
    joined = c.reshape(c.op("Concat", *moved, axis=3), [0, -1, *out])
    return joined, c.reshape(c.cast(c.And(*masks), c.dtype(data)), [0, -1, *out])


@rule("_contrib_ModulatedDeformableConvolution", attributes=DEFORMED)
def modulated_deformable_convolution(
    c: Converter,
    data: str,
    offset: str,
    mask: str,
    weight: str,
    bias: str | None = None,
    *,
    im2col_step: int = 64,
    layout: Any = None,
    **attrs: Any,
) -> Any:
    return _deformable(c, data, offset, mask, weight, bias, **attrs)


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
        first,
        c.ints(max_displacement, max_displacement),
        c.ints(high - max_displacement, wide - max_displacement),
        inner,
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


@rule("_image_normalize", "_npx__image_normalize")
def image_normalize(
    c: Converter, data: str, *, mean: tuple[float, ...] = (0.0,) * 4, std: tuple[float, ...] = (1.0,) * 4
) -> Any:
    channels = c.size(data, -3)

    def column(values: tuple[float, ...]) -> Value:
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


@rule("im2col", attributes=WINDOW)
def im2col(c: Converter, data: str, **window: Any) -> Any:
    """Patches as columns: a convolution whose filters pick one element each."""
    kernel = window["kernel"]
    channels, area = c.size(data, 1, "to take patches of it"), math.prod(kernel)
    picks = np.tile(np.eye(area).reshape(area, 1, *kernel), (channels, *[1] * (len(kernel) + 1)))
    groups = {"num_filter": channels * area, "num_group": channels}
    patches = convolution(c, data, c.array(picks, data), no_bias=True, **groups, **window)
    return c.reshape(patches, [0, channels * area, -1])


@rule("col2im", attributes=WINDOW)
def col2im(c: Converter, data: str, *, output_size: tuple[int, ...], **window: Any) -> Any:
    return c.Col2Im(data, c.ints(*output_size), c.ints(*window["kernel"]), **in_onnx(**window))
