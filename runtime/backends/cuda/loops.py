"""Loops over the elements of several arrays at once, merged as far as their strides allow."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ....ops.dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Loops:
    """Axes from the outermost to the innermost: their sizes and, for each array, their strides."""

    sizes: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]

    @property
    def count(self) -> int:
        return math.prod(self.sizes)


def merged(sizes: Sequence[int], strides: Sequence[Sequence[int]]) -> Loops:
    """Axes that follow one another in memory in all arrays are one; those of size 1 are none.

    >>> merged([2, 1, 3, 4], [[12, 9, 4, 1], [0, 0, 0, 1]])
    Loops(sizes=(6, 4), strides=((4, 1), (0, 1)))
    """
    axes: list[tuple[int, list[int]]] = []
    for n, now in zip(sizes, zip(*strides, strict=True), strict=True):
        if n == 1:
            continue
        if axes and all(before == s * n for before, s in zip(axes[-1][1], now, strict=True)):
            axes[-1] = axes[-1][0] * n, list(now)
        else:
            axes.append((n, list(now)))
    if not axes:
        return Loops((1,), tuple((0,) for _ in strides))
    return Loops(tuple(n for n, _ in axes), tuple(tuple(s[i] for _, s in axes) for i in range(len(strides))))
