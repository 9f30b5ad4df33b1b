"""Convolution through deformed windows, and patches put back together to an image.

https://onnx.ai/onnx/operators/onnx__DeformConv.html, https://onnx.ai/onnx/operators/onnx__Col2Im.html
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product

import numpy as np

from .conv import add_bias, check_bias, conv_dims
from .errors import ShapeError
from .op import Context, Sample, op
from .points import read_at
from .rules import ints, length, narrow, same, unknown, widen
from .rules import product as product_of
from .types import Array, Dim, Tensor, f32
from .windows import Ints, Window, known, out_dims, taps, windows


@op(
    "DeformConv",
    since=22,
    samples=[
        Sample([f32(1, 2, 4, 4), f32(3, 2, 2, 2), f32(1, 8, 3, 3)]),
        Sample([f32(2, 4, 5, 4), f32(2, 2, 3, 2), f32(2, 24, 4, 3), f32(2), f32(2, 12, 4, 3)],
               {"group": 2, "offset_group": 2, "pads": [1, 0, 0, 1], "strides": [1, 1], "dilations": [1, 2],
                "kernel_shape": [3, 2]}),
        Sample([f32(1, 2, 5, 5), f32(2, 1, 2, 2), f32(1, 8, 2, 2), None, f32(1, 4, 2, 2)],
               {"group": 2, "strides": [3, 3], "pads": [0, 0, 0, 0]}),
        Sample([f32(1, 1, 6), f32(1, 1, 3), f32(1, 3, 4)]),
    ],
)  # fmt: skip
def deform_conv(
    k: Context,
    X: Array,
    W: Array,
    offset: Array,
    B: Array | None = None,
    mask: Array | None = None,
    *,
    dilations: Ints = None,
    group: int = 1,
    kernel_shape: Ints = None,
    offset_group: int = 1,
    pads: Ints = None,
    strides: Ints = None,
) -> Array:
    xp, n, (batch, channels, *sizes) = k.xp, X.ndim - 2, X.shape
    found = known(windows(sizes, W.shape[2:], strides, dilations, pads))
    x, places = widen(X), [w.out for w in found]
    spread = math.prod(w.kernel for w in found)
    moved = widen(offset).reshape(batch * offset_group, spread, n, *places)
    points = []
    for i, w in enumerate(found):
        taps_at = np.array([place[i] for place in product(*(range(v.kernel) for v in found))])
        start = xp.arange(w.out) * w.stride - w.before
        base = xp.asarray(taps_at * w.dilation).reshape(-1, *(1,) * n) + start.reshape(-1, *(1,) * (n - 1 - i))
        points.append((moved[:, :, i] + base).reshape(len(moved), -1))
    seen = read_at(xp, x.reshape(batch * offset_group, channels // offset_group, *sizes), points)
    if mask is not None:
        seen = seen * widen(mask).reshape(batch * offset_group, 1, -1)
    patches = seen.reshape(batch, group, channels // group * spread, math.prod(places))
    weights = widen(W).reshape(1, group, W.shape[0] // group, -1)
    y = xp.matmul(weights, patches.astype(weights.dtype, copy=False)).reshape(batch, W.shape[0], *places)
    return narrow(add_bias(y, B), X.dtype)


@deform_conv.infer
def _(
    X: Tensor,
    W: Tensor,
    offset: Tensor,
    B: Tensor | None = None,
    mask: Tensor | None = None,
    *,
    dilations: Ints = None,
    group: int = 1,
    kernel_shape: Ints = None,
    offset_group: int = 1,
    pads: Ints = None,
    strides: Ints = None,
) -> Tensor:
    x, w, kernel = conv_dims(X, W, kernel_shape)
    if x is None or w is None:
        return X.of(None)
    same(x[1], product_of((w[1], group)), f"{X} has other channels than the kernel {W} takes in {group} groups")
    check_bias(B, w[0], W)
    dims = (x[0], w[0], *out_dims(x[2:], kernel, strides, dilations, pads))
    if offset.dims is not None:
        wanted = (dims[0], product_of((offset_group, len(kernel), *kernel)), *dims[2:])
        if len(offset.dims) != len(wanted):
            raise ShapeError(f"the offsets {offset} do not fit {X}")
        for a, b in zip(offset.dims, wanted, strict=True):
            same(a, b, f"the offsets {offset} should have dims {list(wanted)}")
    return X.of(dims)


def _list(*values: int) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    return np.array(values, np.int64)


@op(
    "Col2Im",
    since=18,
    outputs=("output",),
    samples=[
        Sample([f32(1, 5, 5), _list(5, 5), _list(1, 5)]),
        Sample([f32(2, 12, 4), _list(5, 5), _list(2, 3)], {"strides": [2, 2], "dilations": [2, 1]}),
        Sample([f32(1, 4, 4), _list(4, 4), _list(2, 2)], {"pads": [0, 1, 1, 0], "strides": [2, 2]}),
        Sample([f32(1, 8, 2), _list(2, 2, 3), _list(2, 2, 2)]),
    ],
)
def col2im(
    k: Context,
    input: Array,
    image_shape: Array,
    block_shape: Array,
    *,
    dilations: Ints = None,
    pads: Ints = None,
    strides: Ints = None,
) -> Array:
    sizes, block = ints(image_shape), ints(block_shape)
    found = known(windows(sizes, block, strides, dilations, pads))
    channels = input.shape[1] // math.prod(block)
    columns = widen(input).reshape(input.shape[0], channels, math.prod(block), *(w.out for w in found))
    whole = [n + w.before + w.after for n, w in zip(sizes, found, strict=True)]
    y = k.xp.zeros((input.shape[0], channels, *whole), columns.dtype)
    # every block adds its elements into the padded image, of which the pads are then cut off
    for t, view in enumerate(taps(y, [Window(w.kernel, w.stride, w.dilation, 0, 0, w.out) for w in found])):
        view += columns[:, :, t]
    inside = (slice(w.before, w.before + n) for n, w in zip(sizes, found, strict=True))
    return narrow(k.xp.array(y[(slice(None), slice(None), *inside)], order="C"), input.dtype)


@col2im.infer
def _(
    input: Tensor,
    image_shape: Tensor,
    block_shape: Tensor,
    *,
    dilations: Ints = None,
    pads: Ints = None,
    strides: Ints = None,
) -> Tensor:
    batch, columns, blocks = input.dims or (None, None, None)
    sizes, block = image_shape.ints(), block_shape.ints()
    count = length(image_shape) if sizes is None else len(sizes)
    spatial: Sequence[Dim] | None = sizes or unknown(count)
    if spatial is None:
        return input.of(None)
    if block is None or not isinstance(columns, int):
        return input.of((batch, None, *spatial))
    channels, rest = divmod(columns, math.prod(block))
    if rest:
        raise ShapeError(f"{columns} rows of {input} are no blocks of {block}")
    if sizes is not None:
        found = product_of(out_dims(sizes, block, strides, dilations, pads))
        same(blocks, found, f"the blocks of {input}, and those of {block} in an image of {sizes}")
    return input.of((batch, channels, *spatial))
