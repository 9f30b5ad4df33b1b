"""Reading a tensor between its elements: what grids, deformed windows and regions of interest share.

https://onnx.ai/onnx/operators/onnx__GridSample.html
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import numpy as np

from .types import Array

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


def _linear(at: Array, xp: Any) -> tuple[Array, list[Array]]:
    first = xp.floor(at)
    part = at - first
    return first, [1 - part, part]


def _cubic(at: Array, xp: Any, a: float = -0.75) -> tuple[Array, list[Array]]:
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
    bounds = edges or [(0.0, float(n - 1)) for n in sizes]
    axes = [FILTERS[mode](at, xp) for at in places]
    total: Array = None
    for taps in product(*(range(len(weights)) for _, weights in axes)):
        index: Any = xp.zeros(places[0].shape, np.int64)
        weight: Any = None
        inside: Any = True
        for (first, weights), tap, size, (low, high) in zip(axes, taps, sizes, bounds, strict=True):
            at = outside(xp, first + tap, size, low, high)
            inside = inside & (at >= 0) & (at <= size - 1)
            index = index * size + xp.clip(at, 0, size - 1).astype(np.int64)
            weight = weights[tap] if weight is None else weight * weights[tap]
        picked = flat[rows, :, index]  # [batch, points, channels]
        if mode == "nearest":
            picked = xp.where(inside[..., None], picked, nothing)
        else:
            picked = picked * xp.where(inside, weight, 0)[..., None]
        total = picked if total is None else total + picked
    return total.swapaxes(1, 2)
