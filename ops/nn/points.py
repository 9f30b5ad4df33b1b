"""Interpolated reads of a tensor, which grids, deformed windows and regions of interest share.

https://onnx.ai/onnx/operators/onnx__GridSample.html
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np

from ..types import Array

# Where a place outside of an axis lands: (place, size, first and last edge) -> place inside
Outside = Callable[[Any, Array, int, float, float], Array]


def stay(xp: Any, at: Array, size: int, low: float, high: float) -> Array:
    """Places outside stay outside, where elements are 0."""
    return at


def to_border(xp: Any, at: Array, size: int, low: float, high: float) -> Array:
    """Places outside move to the nearest element."""
    return xp.clip(at, 0, size - 1)


def reflect(xp: Any, at: Array, size: int, low: float, high: float) -> Array:
    """Places outside are mirrored at the edges until they lie inside."""
    span = high - low
    if span <= 0:
        return xp.zeros_like(at)
    turned = xp.abs(at - low) % (2 * span)
    return xp.minimum(turned, 2 * span - turned) + low


def free(xp: Any, at: Array, size: int, low: float, high: float) -> Array:
    """The derivative of `stay`."""
    return xp.ones_like(at)


def held(xp: Any, at: Array, size: int, low: float, high: float) -> Array:
    """The derivative of `to_border`: none at and behind the border, as in PyTorch."""
    return ((at > 0) & (at < size - 1)).astype(at.dtype)


def turned(xp: Any, at: Array, size: int, low: float, high: float) -> Array:
    """The derivative of `reflect`."""
    span = high - low
    if span <= 0:
        return xp.zeros_like(at)
    return xp.where(xp.abs(at - low) % (2 * span) <= span, 1, -1) * xp.where(at < low, -1, 1).astype(at.dtype)


def _linear(at: Array, xp: Any) -> tuple[Array, list[Array]]:
    first = xp.floor(at)
    part = at - first
    return first, [1 - part, part]


CUBIC = -0.75  # the parameter of Keys' cubic filter


def _cubic(at: Array, xp: Any, a: float = CUBIC) -> tuple[Array, list[Array]]:
    """Keys' cubic filter (https://ieeexplore.ieee.org/document/1163711) over the four nearest elements."""
    first = xp.floor(at)
    t = at - first

    def near(d: Array) -> Array:
        return ((a + 2) * d - (a + 3)) * d * d + 1

    def far(d: Array) -> Array:
        return (((d - 5) * d + 8) * d - 4) * a

    return first - 1, [far(t + 1), near(t), near(1 - t), far(2 - t)]


def _nearest(at: Array, xp: Any) -> tuple[Array, list[Array]]:
    return xp.rint(at), [xp.ones_like(at)]


FILTERS: dict[str, Callable[[Array, Any], tuple[Array, list[Array]]]] = {
    "nearest": _nearest, "linear": _linear, "cubic": _cubic,
}  # fmt: skip


def _linear_slopes(at: Array, xp: Any) -> list[Array]:
    return [-xp.ones_like(at), xp.ones_like(at)]


def _cubic_slopes(at: Array, xp: Any, a: float = CUBIC) -> list[Array]:
    t = at - xp.floor(at)

    def near(d: Array) -> Array:
        return (3 * (a + 2) * d - 2 * (a + 3)) * d

    def far(d: Array) -> Array:
        return ((3 * d - 10) * d + 8) * a

    return [far(t + 1), near(t), -near(1 - t), -far(2 - t)]


# The derivatives of the weights of FILTERS.
SLOPES: dict[str, Callable[[Array, Any], list[Array]]] = {
    "nearest": lambda at, xp: [xp.zeros_like(at)], "linear": _linear_slopes, "cubic": _cubic_slopes,
}  # fmt: skip


def read_at(
    xp: Any,
    x: Array,
    places: Sequence[Array],
    mode: str = "linear",
    outside: Outside = stay,
    edges: Sequence[tuple[float, float]] | None = None,
) -> Array:
    """The elements of `x` [batch, channels, *sizes] at places between them, as [batch, channels, points].

    `places` has one array [batch, points] per axis. Neighbours that lie outside count as 0, unless `outside` moves
    them; `edges` are the ends of each axis for that.
    """
    batch, channels, *sizes = x.shape
    nothing: Any = np.zeros((), x.dtype) if x.dtype != object else np.array("", object)
    if 0 in sizes:
        return xp.full((batch, channels, places[0].shape[-1]), nothing, x.dtype)
    flat = x.reshape(batch, channels, -1)
    rows = xp.arange(batch)[:, None]
    axes = [FILTERS[mode](at, xp) for at in places]
    total: Array = None
    for taps, index, inside in _neighbours(xp, sizes, axes, outside, edges):
        picked = flat[rows, :, index]  # [batch, points, channels]
        if mode == "nearest":
            picked = xp.where(inside[..., None], picked, nothing)
        else:
            picked = picked * xp.where(inside, _weight(axes, taps), 0)[..., None]
        total = picked if total is None else total + picked
    return total.swapaxes(1, 2)


def _weight(axes: Sequence[tuple[Array, list[Array]]], taps: tuple[int, ...], but: int = -1) -> Any:
    """The weight of a neighbour: the product of those of the axes, but one."""
    weight: Any = None
    for i, ((_, weights), tap) in enumerate(zip(axes, taps, strict=True)):
        if i != but:
            weight = weights[tap] if weight is None else weight * weights[tap]
    return 1 if weight is None else weight


def _neighbours(
    xp: Any,
    sizes: Sequence[int],
    axes: Sequence[tuple[Array, list[Array]]],
    outside: Outside,
    edges: Sequence[tuple[float, float]] | None,
) -> Iterator[tuple[tuple[int, ...], Array, Array]]:
    """Yield each neighbour of a point: its index along each axis, its position in a channel, whether it exists."""
    bounds = edges or [(0.0, float(n - 1)) for n in sizes]
    for taps in product(*(range(len(weights)) for _, weights in axes)):
        index: Any = xp.zeros(axes[0][0].shape, np.int64)
        inside: Any = True
        for (first, _), tap, size, (low, high) in zip(axes, taps, sizes, bounds, strict=True):
            at = outside(xp, first + tap, size, low, high)
            inside = inside & (at >= 0) & (at <= size - 1)
            index = index * size + xp.clip(at, 0, size - 1).astype(np.int64)
        yield taps, index, inside


def read_grads(
    xp: Any,
    dy: Array,
    x: Array,
    places: Sequence[Array],
    mode: str = "linear",
    outside: Outside = stay,
    edges: Sequence[tuple[float, float]] | None = None,
) -> tuple[Array, list[Array]]:
    """The derivatives of `read_at` to the elements and to the places, from that of its result."""
    batch, channels, *sizes = x.shape
    count = math.prod(sizes)
    dplaces = [xp.zeros_like(at) for at in places]
    if not x.size or not dy.size:
        return xp.zeros_like(x), dplaces
    flat, dy = x.reshape(batch, channels, -1), dy.swapaxes(1, 2)
    rows = xp.arange(batch)[:, None]
    axes, slopes = [FILTERS[mode](at, xp) for at in places], [SLOPES[mode](at, xp) for at in places]
    dx = xp.zeros(x.size, np.float64)
    for taps, index, inside in _neighbours(xp, sizes, axes, outside, edges):
        part = dy * xp.where(inside, _weight(axes, taps), 0)[..., None]
        at = (rows * count + index)[..., None] * channels + xp.arange(channels)
        dx += xp.bincount(at.reshape(-1), part.reshape(-1), x.size)
        if mode != "nearest":
            met = xp.where(inside, (dy * flat[rows, :, index]).sum(-1), 0)
            for i, tap in enumerate(taps):
                dplaces[i] += met * _weight(axes, taps, but=i) * slopes[i][tap]
    return xp.ascontiguousarray(dx.reshape(batch, count, channels).swapaxes(1, 2)).reshape(x.shape), dplaces
