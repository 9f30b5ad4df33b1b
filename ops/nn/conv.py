"""Convolutions of any number of spatial axes, as matrix products over the patches that windows see.

https://onnx.ai/onnx/operators/onnx__Conv.html, https://onnx.ai/onnx/operators/onnx__ConvTranspose.html
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..core import weights
from ..core.rules import narrow, product, same, unknown, widen
from ..core.shapes import moved_into, reaches, sizes, starts
from ..errors import ShapeError
from ..op import Builder, Context, Sample, Value, op
from ..types import Array, Dim, Tensor, f32
from .windows import CONV, Ints, Window, known, out_dims, padded, per_axis, taps, windows


def add_bias(y: Array, B: Array | None) -> Array:
    """The array with one number added to each channel, in place."""
    if B is not None:
        y += widen(B).reshape(-1, *(1,) * (y.ndim - 2))
    return y


@op(
    "Conv",
    attributes=CONV,
    weights=weights.conv,
    kind="convolution",
    quantized="QLinearConv",
    planned_from=0,
    since=22,
    samples=[
        Sample([f32(2, 3, 5, 6), f32(4, 3, 3, 2), f32(4)], {"pads": [1, 0, 1, 1], "strides": [2, 1]}),
        Sample([f32(1, 4, 6, 6), f32(6, 2, 3, 3)], {"group": 2, "dilations": [2, 1], "kernel_shape": [3, 3]}),
        Sample([f32(1, 4, 5, 5), f32(4, 1, 3, 3), f32(4)], {"group": 4, "pads": [1, 1, 1, 1]}),
        Sample([f32(1, 2, 5, 5), f32(6, 1, 3, 3)], {"group": 2}),
        Sample([f32(2, 4, 3, 3), f32(5, 4, 1, 1), f32(5)]),
        Sample([f32(1, 3, 7), f32(2, 3, 4)], {"auto_pad": "SAME_UPPER", "strides": [2]}),
        Sample([f32(1, 3, 7), f32(2, 3, 4)], {"auto_pad": "SAME_LOWER"}),
        Sample([f32(1, 3, 7), f32(2, 3, 4)], {"auto_pad": "VALID"}),
        Sample([f32(1, 2, 4, 3, 5), f32(3, 2, 2, 2, 2), f32(3)], {"pads": [0, 1, 0, 1, 0, 0]}),
        Sample([f32(0, 3, 5, 5), f32(4, 3, 3, 3)]),
    ],
)
def conv(k: Context, X: Array, W: Array, B: Array | None = None, *, group: int = 1, **window: Any) -> Array:
    sliding = known(windows(X.shape[2:], W.shape[2:], **window))
    views = taps(padded(k.xp, widen(X), sliding), sliding)
    n, places = X.shape[0], [w.out for w in sliding]
    weights = widen(W).reshape(group, W.shape[0] // group, W.shape[1], len(views))
    if W.shape[1] == 1 and group > 1:  # depthwise: one multiply-add per tap, no patches
        y = _depthwise(k, views, weights)
    else:
        # summed in float64: a BLAS product in float32 rounds equal channels differently, by their place and the number
        # of threads, and networks with untrained weights (onnx's light models) amplify that without bound
        depth = group * W.shape[1]
        patches = k.xp.empty((n, depth, len(views), *places), np.float64)
        for t, view in enumerate(k.each(views, 1)):
            patches[:, :, t] = view
        patches = patches.reshape(n, group, W.shape[1] * len(views), math.prod(places))
        rows = weights.astype(np.float64).reshape(1, group, W.shape[0] // group, W.shape[1] * len(views))
        y = k.xp.matmul(rows, patches).astype(weights.dtype, copy=False)
    return narrow(add_bias(y.reshape(n, W.shape[0], *places), B), X.dtype)


def _depthwise(k: Context, views: Sequence[Array], weights: Array) -> Array:
    spatial = (1,) * (views[0].ndim - 2)
    scales = weights.reshape(1, weights.shape[0], weights.shape[1], len(views), *spatial)
    y = views[0][:, :, None] * scales[:, :, :, 0]
    term = k.xp.empty_like(y)
    for t, view in enumerate(k.each(views[1:], 1), start=1):
        y += k.xp.multiply(view[:, :, None], scales[:, :, :, t], out=term)
    return y


@conv.infer
def _(
    X: Tensor, W: Tensor, B: Tensor | None = None, *, group: int = 1, kernel_shape: Ints = None, **window: Any
) -> Tensor:
    x, w, kernel = conv_dims(X, W, kernel_shape)
    if x is None or w is None:
        return X.of(None)
    same(x[1], product((w[1], group)), f"{X} has other channels than the kernel {W} takes in {group} groups")
    if isinstance(w[0], int) and w[0] % group:
        raise ShapeError(f"{w[0]} filters do not divide into {group} groups")
    check_bias(B, w[0], W)
    return X.of((x[0], w[0], *out_dims(x[2:], kernel, **window)))


@conv.grad
def _(g: Builder, dys: Any, ys: Any, xs: Any, **attrs: Any) -> tuple[Value | None, ...]:
    (dy,), (X, W, B) = dys, xs
    return (
        g.ConvGradInput(dy, W, g.shape_of(X), domain="mezzo", **attrs) if g.wants[0] else None,
        g.ConvGradWeights(dy, X, g.shape_of(W), domain="mezzo", **attrs) if g.wants[1] else None,
        bias_grad(g, dy) if B is not None and g.wants[2] else None,
    )


def bias_grad(g: Builder, dy: Value) -> Value:
    """The gradient of what was added to each channel."""
    return g.ReduceSum(dy, g.const([0, *range(2, g.rank_of(dy))]), keepdims=0)


def conv_dims(
    X: Tensor, W: Tensor, kernel_shape: Ints
) -> tuple[tuple[Dim, ...] | None, tuple[Dim, ...] | None, tuple[Dim, ...]]:
    """Dims of input, weights and kernel; a rank that only one of them knows holds for all."""
    ranks = [len(t.dims) for t in (X, W) if t.dims is not None] + ([len(kernel_shape) + 2] if kernel_shape else [])
    if not ranks:
        return None, None, ()
    if min(ranks) < 3 or len(set(ranks)) > 1:
        raise ShapeError(f"{X}, the kernel {W} and kernel_shape {kernel_shape} differ in their spatial axes")
    x = unknown(ranks[0]) if X.dims is None else X.dims
    w = unknown(ranks[0]) if W.dims is None else W.dims
    kernel: list[Dim] = list((w or ())[2:])
    if kernel_shape:
        kernel = [
            same(a, b, f"kernel_shape {list(kernel_shape)} of the kernel {W}")
            for a, b in zip(kernel, kernel_shape, strict=True)
        ]
    return x, w, tuple(kernel)


def check_bias(B: Tensor | None, filters: Dim, W: Tensor) -> None:
    """ShapeError where a bias has another number of entries than there are filters."""
    if B is not None and B.dims is not None:
        if len(B.dims) != 1:
            raise ShapeError(f"a bias is a list, not {B}")
        same(B.dims[0], filters, f"the bias {B} does not fit the filters of {W}")


def transposed_windows(
    sizes: Sequence[Dim],
    kernel: Sequence[Dim],
    strides: Ints = None,
    dilations: Ints = None,
    pads: Ints = None,
    auto_pad: str = "NOTSET",
    output_padding: Ints = None,
    output_shape: Ints = None,
) -> tuple[Window | None, ...]:
    """The windows that a convolution from the result back to the input would have."""
    n = len(sizes)
    step, spread = per_axis(strides, n, 1, "strides"), per_axis(dilations, n, 1, "dilations")
    more = per_axis(output_padding, n, 0, "output_padding")
    edge = per_axis(pads, 2 * n, 0, "pads")
    target = per_axis(output_shape, n, -1, "output_shape")
    windows: list[Window | None] = []
    for i, (size, taken) in enumerate(zip(sizes, kernel, strict=True)):
        if not isinstance(size, int) or not isinstance(taken, int):
            known_out = target[i] if output_shape else None
            windows.append(None if known_out is None else Window(-1, step[i], spread[i], 0, 0, known_out))
            continue
        whole = step[i] * (size - 1) + more[i] + (taken - 1) * spread[i] + 1
        before, after = edge[i], edge[n + i]
        if output_shape or auto_pad in ("SAME_UPPER", "SAME_LOWER"):
            missing = max(whole - (target[i] if output_shape else size * step[i]), 0)
            before = missing // 2 if auto_pad == "SAME_UPPER" else missing - missing // 2
            after = missing - before
        elif auto_pad == "VALID":
            before = after = 0
        out = target[i] if output_shape else whole - before - after
        if out < 0:
            raise ShapeError(f"pads {[before, after]} crop more than the {whole} elements of spatial axis {i}")
        windows.append(Window(taken, step[i], spread[i], before, after, out))
    return tuple(windows)


@op(
    "ConvTranspose",
    attributes={**CONV, "output_padding": None, "output_shape": None},
    weights=weights.conv_transpose,
    kind="convolution",
    planned_from=0,
    since=22,
    samples=[
        Sample([f32(1, 3, 4, 5), f32(3, 2, 3, 3), f32(2)], {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
        Sample([f32(2, 4, 3, 3), f32(4, 3, 2, 3)], {"group": 2, "strides": [3, 2], "output_padding": [2, 1]}),
        Sample([f32(1, 2, 4), f32(2, 3, 3)], {"dilations": [2]}),
        Sample([f32(1, 2, 4), f32(2, 3, 3)], {"strides": [2], "auto_pad": "SAME_UPPER"}),
        Sample([f32(1, 2, 4), f32(2, 3, 4)], {"strides": [3], "auto_pad": "SAME_LOWER"}),
        Sample([f32(1, 0, 4), f32(0, 1, 4)], {"strides": [3]}),
        Sample([f32(1, 2, 4), f32(2, 3, 3)], {"strides": [2], "output_shape": [8]}),
        Sample(
            [f32(1, 2, 3, 3), f32(2, 1, 3, 3)], {"strides": [3, 2], "output_shape": [10, 8], "output_padding": [1, 1]}
        ),
        Sample([f32(1, 2, 2, 3, 2), f32(2, 1, 2, 2, 2)]),
        Sample([f32(1, 2, 3), f32(2, 1, 3)], {"auto_pad": "VALID", "strides": [2]}),
        Sample([f32(1, 2, 3), f32(2, 1, 2)], {"dilations": [2], "output_padding": [1], "pads": [1, 0]}),
        Sample([f32(0, 2, 3), f32(2, 2, 2)]),
    ],
)
def conv_transpose(
    k: Context, X: Array, W: Array, B: Array | None = None, *, group: int = 1, kernel_shape: Ints = None, **window: Any
) -> Array:
    n, c, *sizes = X.shape
    channels = W.shape[1] * group
    sliding = known(transposed_windows(sizes, W.shape[2:], **window))
    weights = widen(W).reshape(1, group, c // group, math.prod(W.shape[1:]))
    patches = k.xp.matmul(weights.swapaxes(2, 3), widen(X).reshape(n, group, c // group, math.prod(sizes)))
    patches = patches.reshape(n, channels, math.prod(W.shape[2:]), *sizes)
    # every input place adds its patch into the whole result, of which the pads are then cut off
    whole = [max((s - 1) * w.stride + w.span, w.before + w.out) for s, w in zip(sizes, sliding, strict=True)]
    y = k.xp.zeros((n, channels, *whole), patches.dtype)
    reach = [Window(w.kernel, w.stride, w.dilation, 0, 0, s) for s, w in zip(sizes, sliding, strict=True)]
    for t, view in enumerate(k.each(taps(y, reach), 1)):
        view += patches[:, :, t]
    y = y[(slice(None), slice(None), *(slice(w.before, w.before + w.out) for w in sliding))].copy()
    return narrow(add_bias(y, B), X.dtype)


@conv_transpose.infer
def _(
    X: Tensor, W: Tensor, B: Tensor | None = None, *, group: int = 1, kernel_shape: Ints = None, **window: Any
) -> Tensor:
    x, w, kernel = conv_dims(X, W, kernel_shape)
    if x is None or w is None:
        return X.of(None)
    same(x[1], w[0], f"{X} has other channels than the kernel {W} takes")
    filters = product((w[1], group))
    check_bias(B, filters, W)
    sliding = transposed_windows(x[2:], kernel, **window)
    return X.of((x[0], filters, *(None if f is None else f.out for f in sliding)))


@conv_transpose.grad
def _(
    g: Builder,
    dys: Any,
    ys: Any,
    xs: Any,
    *,
    auto_pad: str = "NOTSET",
    kernel_shape: Ints = None,
    output_padding: Ints = None,
    output_shape: Ints = None,
    pads: Ints = None,
    **attrs: Any,
) -> tuple[Value | None, ...]:
    (dy,), (X, W, B) = dys, xs
    fitted = auto_pad in ("SAME_UPPER", "SAME_LOWER") or bool(output_shape)
    if fitted or any(a >= b for a, b in zip(output_padding or (), attrs.get("strides") or (1,) * 9, strict=False)):
        dy = _whole(g, dy, X, W, auto_pad, output_padding, output_shape, pads, attrs)
    elif auto_pad == "NOTSET" and pads:
        attrs["pads"] = pads
    return (
        g.Conv(dy, W, **attrs) if g.wants[0] else None,
        g.ConvGradWeights(X, dy, g.shape_of(W), domain="mezzo", **attrs) if g.wants[1] else None,
        bias_grad(g, dys[0]) if B is not None and g.wants[2] else None,
    )


def _whole(
    g: Builder,
    dy: Value,
    X: Value,
    W: Value,
    auto_pad: str,
    output_padding: Ints,
    output_shape: Ints,
    pads: Ints,
    attrs: dict[str, Any],
) -> Value:
    """dy over all places that the windows reach: zeros stand where the result was cut off, and what was put behind the
    windows is gone."""
    rank = g.rank_of(W) - 2
    places = sizes(g, g.shape_of(X), 2)
    moves = [attrs.get(a) for a in ("strides", "dilations")]
    reach = reaches(g, places, sizes(g, g.shape_of(W), 2), rank, *moves)
    more = per_axis(output_padding, rank, 0, "output_padding")
    whole = g.Add(reach, g.const(more)) if any(more) else reach
    if output_shape:
        target = g.const(per_axis(output_shape, rank, -1, "output_shape"))
    else:
        target = g.Mul(places, g.const(per_axis(moves[0], rank, 1, "strides")))
    fitted = auto_pad in ("SAME_UPPER", "SAME_LOWER") or bool(output_shape)
    side = "SAME_UPPER" if auto_pad == "SAME_UPPER" else "SAME_LOWER"
    before = starts(g, target, whole, rank, pads, side if fitted else auto_pad)
    return moved_into(g, dy, before, reach, rank)
