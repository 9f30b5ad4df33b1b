"""The derivatives of a convolution, which are convolutions too.

Dumoulin and Visin, A guide to convolution arithmetic for deep learning (https://arxiv.org/abs/1603.07285), chapter 4.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..core.rules import ints, narrow, unknown, widen
from ..core.shapes import joined, moved_into, reaches, reshaped, sizes, starts
from ..op import Builder, Context, Sample, Value, op
from ..types import Array, Tensor, f32
from .windows import CONV, Ints, known, padded, taps, unpadded, windows


def _shape(*dims: int) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    return np.array(dims, np.int64)


@op(
    "ConvGradInput",
    domain="mezzo",
    attributes=CONV,
    outputs=("dX",),
    samples=[
        Sample([f32(2, 4, 3, 6), f32(4, 3, 3, 2), _shape(2, 3, 5, 7)], {"pads": [1, 0, 1, 0], "strides": [2, 1]}),
        Sample([f32(1, 6, 2, 4), f32(6, 2, 3, 3), _shape(1, 4, 6, 6)], {"group": 2, "dilations": [2, 1]}),
        Sample([f32(1, 4, 2, 3), f32(4, 1, 3, 2), _shape(1, 4, 6, 7)], {"group": 4, "strides": [3, 2]}),
        Sample([f32(1, 2, 4), f32(2, 3, 4), _shape(1, 3, 7)], {"auto_pad": "SAME_UPPER", "strides": [2]}),
        Sample([f32(1, 2, 7), f32(2, 3, 4), _shape(1, 3, 7)], {"auto_pad": "SAME_LOWER"}),
        Sample([f32(1, 2, 2, 2, 4), f32(2, 1, 2, 2, 2), _shape(1, 1, 3, 3, 5)]),
        Sample([f32(1, 2, 2), f32(2, 3, 3), _shape(1, 3, 7)], {"pads": [-1, -2]}),
        Sample([f32(0, 4, 3), f32(4, 3, 3), _shape(0, 3, 5)]),
    ],
)
def conv_grad_input(k: Context, dy: Array, W: Array, shape: Array, *, group: int = 1, **window: Any) -> Array:
    """The gradient of Conv to its input of this shape: every window adds its part in place."""
    batch, channels, *spatial = ints(shape)
    sliding = known(windows(spatial, W.shape[2:], **window))
    places = dy.shape[2:]
    weights = widen(W).reshape(1, group, W.shape[0] // group, math.prod(W.shape[1:]))
    patches = k.xp.matmul(
        weights.swapaxes(2, 3), widen(dy).reshape(batch, group, W.shape[0] // group, math.prod(places))
    )
    patches = patches.reshape(batch, channels, math.prod(W.shape[2:]), *places)
    whole = [n + w.before + w.after + w.extra for n, w in zip(spatial, sliding, strict=True)]
    dx = k.xp.zeros((batch, channels, *whole), patches.dtype)
    for t, view in enumerate(taps(dx, sliding)):
        view += patches[:, :, t]
    return narrow(unpadded(k.xp, dx, sliding, spatial), dy.dtype)


@conv_grad_input.infer
def _(dy: Tensor, W: Tensor, shape: Tensor, **attrs: Any) -> Tensor:
    rank = next((len(t.dims) for t in (dy, W) if t.dims is not None), None)
    asked = shape.ints()
    return dy.of(unknown(rank) if asked is None else asked)


@conv_grad_input.body
def _(
    g: Builder,
    xs: Any,
    types: Any,
    *,
    auto_pad: str = "NOTSET",
    pads: Ints = None,
    kernel_shape: Ints = None,
    **attrs: Any,
) -> Value:
    dy, W, shape = xs
    rank = g.rank_of(W) - 2
    whole = g.ConvTranspose(dy, W, **_given(kernel_shape=kernel_shape, **attrs))
    image = sizes(g, shape, 2)
    before = starts(g, image, sizes(g, g.shape_of(whole), 2), rank, pads, auto_pad)
    return moved_into(g, whole, g.Neg(before), image, rank)


def _given(**attrs: Any) -> dict[str, Any]:
    return {a: v for a, v in attrs.items() if v is not None}


@conv_grad_input.grad
def _(g: Builder, dys: Any, ys: Any, xs: Any, **attrs: Any) -> tuple[Value | None, ...]:
    dy, W, _ = xs
    (ddx,) = dys
    return (
        g.Conv(ddx, W, **attrs) if g.wants[0] else None,
        g.ConvGradWeights(dy, ddx, g.shape_of(W), domain="mezzo", **attrs) if g.wants[1] else None,
        None,
    )


@op(
    "ConvGradWeights",
    domain="mezzo",
    attributes=CONV,
    outputs=("dW",),
    samples=[
        Sample([f32(2, 4, 3, 6), f32(2, 3, 5, 7), _shape(4, 3, 3, 2)], {"pads": [1, 0, 1, 0], "strides": [2, 1]}),
        Sample([f32(1, 6, 2, 4), f32(1, 4, 6, 6), _shape(6, 2, 3, 3)], {"group": 2, "dilations": [2, 1]}),
        Sample([f32(2, 4, 2, 3), f32(2, 4, 6, 7), _shape(4, 1, 3, 2)], {"group": 4, "strides": [3, 2]}),
        Sample([f32(1, 2, 4), f32(1, 3, 7), _shape(2, 3, 4)], {"auto_pad": "SAME_UPPER", "strides": [2]}),
        Sample([f32(1, 2, 7), f32(1, 3, 7), _shape(2, 3, 4)], {"auto_pad": "SAME_LOWER"}),
        Sample([f32(1, 2, 2, 2, 4), f32(1, 1, 3, 3, 5), _shape(2, 1, 2, 2, 2)]),
        Sample([f32(1, 2, 2), f32(1, 3, 7), _shape(2, 3, 3)], {"pads": [-1, -2]}),
        Sample([f32(0, 4, 3), f32(0, 3, 5), _shape(4, 3, 3)]),
    ],
)
def conv_grad_weights(k: Context, dy: Array, X: Array, shape: Array, *, group: int = 1, **window: Any) -> Array:
    """The gradient of Conv to its weights of this shape: each sums the products of what it met."""
    filters, channels, *kernel = ints(shape)
    sliding = known(windows(X.shape[2:], kernel, **window))
    views = taps(padded(k.xp, widen(X), sliding), sliding)

    def rows(v: Array) -> Array:  # [group, channels of a group, everything else]
        return v.swapaxes(0, 1).reshape(group, v.shape[1] // group, math.prod((v.shape[0], *v.shape[2:])))

    left = rows(widen(dy))
    dw = k.xp.empty((group, filters // group, channels, len(views)), left.dtype)
    for t, view in enumerate(views):
        dw[..., t] = k.xp.matmul(left, rows(view).swapaxes(1, 2))
    return narrow(dw.reshape(filters, channels, *kernel), dy.dtype)


@conv_grad_weights.infer
def _(dy: Tensor, X: Tensor, shape: Tensor, **attrs: Any) -> Tensor:
    rank = next((len(t.dims) for t in (dy, X) if t.dims is not None), None)
    asked = shape.ints()
    return dy.of(unknown(rank) if asked is None else asked)


@conv_grad_weights.body
def _(
    g: Builder,
    xs: Any,
    types: Any,
    *,
    auto_pad: str = "NOTSET",
    group: int = 1,
    dilations: Ints = None,
    pads: Ints = None,
    strides: Ints = None,
    kernel_shape: Ints = None,
) -> Value:
    """The image is the input of a Conv, its channels the batch, and dy the kernel: strides and dilations change roles,
    and the batch is summed over."""
    dy, X, shape = xs
    rank = g.rank_of(X) - 2
    kernel, out, image = sizes(g, shape, 2), sizes(g, g.shape_of(dy), 2), sizes(g, g.shape_of(X), 2)
    reach = reaches(g, out, kernel, rank, strides, dilations)
    x = moved_into(g, X, starts(g, image, reach, rank, pads, auto_pad), reach, rank)
    turned = [1, 0, *range(2, rank + 2)]
    if group > 1:  # [batch, channels] -> [channels of a group, groups * batch]
        batch = sizes(g, g.shape_of(X), 0, 1)
        each = sizes(g, shape, 1, 2)
        x = reshaped(g, x, joined(g, batch, [group], each, reach))
        x = g.Transpose(x, perm=[2, 1, 0, *range(3, rank + 3)])
        x = reshaped(g, x, joined(g, each, g.Mul(batch, g.const([group])), reach))
    else:
        x = g.Transpose(x, perm=turned)
    attrs = _given(strides=dilations, dilations=strides)
    return g.Transpose(g.Conv(x, g.Transpose(dy, perm=turned), group=group, **attrs), perm=turned)


@conv_grad_weights.grad
def _(g: Builder, dys: Any, ys: Any, xs: Any, **attrs: Any) -> tuple[Value | None, ...]:
    _, X, _ = xs
    (ddw,) = dys
    return (
        g.Conv(X, ddw, **attrs) if g.wants[0] else None,
        g.ConvGradInput(xs[0], ddw, g.shape_of(X), domain="mezzo", **attrs) if g.wants[1] else None,
        None,
    )
