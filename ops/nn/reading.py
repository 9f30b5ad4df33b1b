"""Interpolated reads of a tensor in standard operators, the counterpart of points.py for graphs.

A place outside of an image reads a zero that stands behind its elements, and writes there in vain.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

from ..core.shapes import cast_like, count, joined, reshaped, size, sizes, zeros
from ..dataclasses import dataclass
from ..op import Builder, Value
from ..types import DType
from .points import CUBIC

# Where a place outside of an axis lands: (place, size) -> place inside
Outside = Callable[[Value, Value], Value]


@dataclass(frozen=True, slots=True)
class Neighbour:
    """One of the elements around each point: its position in its channel, its weight, and the derivatives of the weight
    with respect to the coordinates along each axis (None: none)."""

    index: Value
    weight: Value
    slopes: tuple[Value | None, ...]


def _filter(g: Builder, at: Value, mode: str) -> tuple[Value, list[Value], list[Value | None]]:
    """The first neighbour of places along an axis, the weights of all, and the derivatives of these."""
    if mode == "nearest":
        return g.Round(at), [_number(g, 1, at)], [None]
    first = g.Floor(at)
    t = g.Sub(at, first)
    one = _number(g, 1, at)
    if mode == "linear":
        return first, [g.Sub(one, t), t], [_number(g, -1, at), one]

    def polynomial(d: Value, *factors: float) -> Value:
        value = g.scalar(factors[0], d)
        for f in factors[1:]:
            value = g.Add(g.Mul(value, d), g.scalar(f, d))
        return value

    a = CUBIC
    near, dnear = (a + 2, -a - 3, 0, 1), (3 * a + 6, -2 * a - 6, 0)
    far, dfar = (a, -5 * a, 8 * a, -4 * a), (3 * a, -10 * a, 8 * a)
    parts = g.Add(t, one), t, g.Sub(one, t), g.Sub(g.scalar(2, t), t)
    weights = [polynomial(d, *f) for d, f in zip(parts, (far, near, near, far), strict=True)]
    slopes = [polynomial(d, *f) for d, f in zip(parts, (dfar, dnear, dnear, dfar), strict=True)]
    return g.Sub(first, one), weights, [*slopes[:2], *map(g.Neg, slopes[2:])]


def _number(g: Builder, value: float, like: Value) -> Value:
    """A number for each element of another value."""
    return g.Expand(g.scalar(value, like), g.shape_of(like))


def neighbours(
    g: Builder, places: Sequence[Value], image: Value, mode: str = "linear", outside: Outside | None = None
) -> list[Neighbour]:
    """The elements around points: `places` has one value [batch, points] per axis, `image` holds the sizes."""
    total = g.Squeeze(count(g, image), g.const([0]))
    axes: list[Any] = []
    for i, at in enumerate(places):
        many = size(g, image, i)
        first, weights, slopes = _filter(g, at, mode)
        along = []
        for tap in range(len(weights)):
            stands = g.Add(first, g.scalar(tap, first))
            stands = outside(stands, many) if outside else stands
            last = g.Sub(cast_like(g, many, stands), g.scalar(1, stands))
            inside = g.And(g.GreaterOrEqual(stands, g.scalar(0, stands)), g.LessOrEqual(stands, last))
            along.append((g.Cast(stands, to=DType.INT64.onnx), inside))
        axes.append((many, along, weights, slopes))
    around = []
    for taps in product(*(range(len(weights)) for _, _, weights, _ in axes)):
        index: Any = None
        exists: Any = None
        for (many, along, _, _), tap in zip(axes, taps, strict=True):
            stands, inside = along[tap]
            index = stands if index is None else g.Add(g.Mul(index, many), stands)
            exists = inside if exists is None else g.And(exists, inside)
        weights = [w[tap] for (_, _, w, _), tap in zip(axes, taps, strict=True)]
        slopes = [s[tap] for (_, _, _, s), tap in zip(axes, taps, strict=True)]
        turned = [
            None if s is None else _product(g, [*weights[:i], s, *weights[i + 1 :]]) for i, s in enumerate(slopes)
        ]
        around.append(Neighbour(g.Where(exists, index, total), _product(g, weights), tuple(turned)))
    return around


def _product(g: Builder, factors: Sequence[Value]) -> Value:
    factor = factors[0]
    for f in factors[1:]:
        factor = g.Mul(factor, f)
    return factor


class Reader:
    """Interpolated reads of a tensor [batch, channels, *sizes] at points, and their derivatives."""

    def __init__(self, g: Builder, x: Value, around: Sequence[Neighbour]) -> None:
        self.g, self.shape, self.around = g, g.shape_of(x), around
        self.lead = sizes(g, self.shape, 0, 2)
        self.behind = zeros(g, joined(g, self.lead, [1]), x)
        self.flat = g.Concat(
            reshaped(g, x, joined(g, self.lead, count(g, sizes(g, self.shape, 2)))), self.behind, axis=2
        )
        self.axis = g.const([1])

    def _at(self, n: Neighbour) -> Value:
        """The index of a neighbour, for each channel."""
        g = self.g
        points = sizes(g, g.shape_of(n.index), 1)
        return g.Expand(g.Unsqueeze(n.index, self.axis), joined(g, self.lead, points))

    def read(self) -> Value:
        """Return the values at the points: [batch, channels, points]."""
        g = self.g
        total: Value = None
        for n in self.around:
            part = g.Mul(g.GatherElements(self.flat, self._at(n), axis=2), g.Unsqueeze(n.weight, self.axis))
            total = part if total is None else g.Add(total, part)
        return total

    def grads(self, dy: Value) -> tuple[Value, list[Value]]:
        """The derivatives to the tensor and to the places, from that of what was read."""
        g = self.g
        dx = g.Expand(g.scalar(0, self.flat), g.shape_of(self.flat))
        dplaces: list[Value] = [None] * len(self.around[0].slopes)
        for n in self.around:
            at = self._at(n)
            dx = g.ScatterElements(dx, at, g.Mul(dy, g.Unsqueeze(n.weight, self.axis)), axis=2, reduction="add")
            if all(s is None for s in n.slopes):
                continue
            met = g.ReduceSum(g.Mul(dy, g.GatherElements(self.flat, at, axis=2)), self.axis, keepdims=0)
            for i, slope in enumerate(n.slopes):
                part = g.Mul(met, slope)
                dplaces[i] = part if dplaces[i] is None else g.Add(dplaces[i], part)
        dx = g.Slice(dx, g.const([0]), g.const([-1]), g.const([2]))
        nothing = zeros(g, g.shape_of(self.around[0].weight), self.flat)
        return reshaped(g, dx, self.shape), [nothing if d is None else d for d in dplaces]
