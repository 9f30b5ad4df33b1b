"""Offsets for buffers: rectangles of bytes x steps packed into the smallest arena."""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import chain, islice
from random import Random

import numpy as np

from .buffers import Buffer
from .liveness import Sequential, Timeline, aligned

SEARCH_LIMIT = 3000  # buffers: above it the linear mode plans, whose time grows with their number only
TRIES = 40
EFFORT = 40_000  # neighbours looked at over all tries: what keeps planning short beside a few runs


def stacked(buffers: Sequence[Buffer]) -> list[int]:
    """One after another: no bytes are used twice."""
    offsets, at = [], 0
    for buffer in buffers:
        offsets.append(at)
        at += aligned(buffer.size)
    return offsets


def extent(buffers: Sequence[Buffer], offsets: Sequence[int]) -> int:
    """Bytes of the arena that these offsets need."""
    return max((at + aligned(b.size) for b, at in zip(buffers, offsets, strict=True)), default=0)


class _Gaps:
    """The free bytes below `top`, found by size, merged with their neighbours when more is freed."""

    def __init__(self) -> None:
        self.top = 0
        self._by_size: list[tuple[int, int]] = []  # (size, offset)
        self._size_at: dict[int, int] = {}  # where a gap begins
        self._begin_of: dict[int, int] = {}  # where a gap ends

    def take(self, size: int) -> int:
        """The offset of the smallest gap that holds `size`, or of new bytes at the top."""
        place = bisect_left(self._by_size, (size, -1))
        if place < len(self._by_size):
            room, offset = self._by_size[place]
            self._remove(offset, room)
            if room > size:
                self._add(offset + size, room - size)
            return offset
        offset = self.top
        if self.top in self._begin_of:  # grow the gap at the top
            offset = self._begin_of[self.top]
            self._remove(offset, self.top - offset)
        self.top = offset + size
        return offset

    def give(self, offset: int, size: int) -> None:
        """Free these bytes."""
        after = self._size_at.get(offset + size)
        if after is not None:
            self._remove(offset + size, after)
            size += after
        begin = self._begin_of.get(offset)
        if begin is not None:
            self._remove(begin, offset - begin)
            offset, size = begin, size + offset - begin
        self._add(offset, size)

    def _add(self, offset: int, size: int) -> None:
        self._size_at[offset], self._begin_of[offset + size] = size, offset
        insort(self._by_size, (size, offset))

    def _remove(self, offset: int, size: int) -> None:
        del self._size_at[offset], self._begin_of[offset + size]
        del self._by_size[bisect_left(self._by_size, (size, offset))]


def linear(buffers: Sequence[Buffer]) -> list[int]:
    """First come, best fit: one sweep over the steps with a list of gaps; time grows as n log n.

    For steps that run one after another.
    """
    offsets, gaps, dying = [0] * len(buffers), _Gaps(), list[tuple[int, int]]()
    spans = [(b.first, b.last, aligned(b.size)) for b in buffers]
    for i in sorted(range(len(buffers)), key=lambda i: (spans[i][0], -spans[i][2])):
        first, last, size = spans[i]
        while dying and dying[0][0] < first:
            gone = heapq.heappop(dying)[1]
            gaps.give(offsets[gone], spans[gone][2])
        if size:
            offsets[i] = gaps.take(size)
            heapq.heappush(dying, (last, i))
    return offsets


def search(buffers: Sequence[Buffer], time: Timeline, enough: int, first: int = 0) -> tuple[list[int], int]:
    """Several orders of placing, each buffer at the lowest offset that is free for its whole life; the best is kept.
    Returns the offsets, and the number of the order that they come from; that of number `first` is tried first.

    Stops as soon as the arena has `enough` bytes, or as many as are taken at the busiest step: no order can beat that.
    Above SEARCH_LIMIT buffers the linear mode answers.
    """
    if not buffers:
        return [], 0
    if len(buffers) > SEARCH_LIMIT and isinstance(time, Sequential):
        return linear(buffers), 0
    sizes = [aligned(b.size) for b in buffers]
    enough = max(enough, _busiest(buffers, sizes))
    meets = _meetings(buffers, time)
    best: list[int] = []
    smallest, which = -1, 0
    effort = sum(map(len, meets)) + len(buffers)
    orders: Iterator[tuple[int, list[int]]] = enumerate(_orders(buffers, sizes, meets))
    if first:
        orders = chain(islice(enumerate(_orders(buffers, sizes, meets)), first, first + 1), orders)
    for tries, (number, order) in enumerate(orders):
        if tries >= 3 and tries * effort > EFFORT:
            break
        offsets = _placed(order, sizes, meets)
        size = extent(buffers, offsets)
        if smallest < 0 or size < smallest:
            best, smallest, which = offsets, size, number
        if smallest <= enough:
            break
    return best, which


def _busiest(buffers: Sequence[Buffer], sizes: Sequence[int]) -> int:
    """The most bytes that buffers take at one step."""
    change = np.zeros(max(b.last for b in buffers) + 2, np.int64)
    np.add.at(change, [b.first for b in buffers], sizes)
    np.subtract.at(change, [b.last + 1 for b in buffers], sizes)
    return int(change.cumsum().max())


def _meetings(buffers: Sequence[Buffer], time: Timeline) -> list[list[int]]:
    """Return, for each buffer, the others that are alive at the same time."""
    others: list[list[int]] = [[] for _ in buffers]
    if isinstance(time, Sequential):
        spans = [(b.first, b.last) for b in buffers]
        alive: list[int] = []
        for i in sorted(range(len(buffers)), key=lambda i: spans[i][0]):
            begin = spans[i][0]
            alive = [j for j in alive if spans[j][1] >= begin]
            for j in alive:
                others[j].append(i)
            others[i] += alive
            alive.append(i)
        return others
    for i, a in enumerate(buffers):
        for j, b in enumerate(buffers[:i]):
            if any(time.meets(m.life, n.life) for m in a.members for n in b.members):
                others[i].append(j)
                others[j].append(i)
    return others


def _orders(buffers: Sequence[Buffer], sizes: list[int], meets: list[list[int]]) -> Iterator[list[int]]:
    """Yield orders of the buffers: by size, by size x duration, by the number of meetings, by time; then random
    variations, the same each time."""
    spans = [b.last - b.first + 1 for b in buffers]

    @cache
    def crowd(i: int) -> int:
        return sizes[i] + sum(sizes[j] for j in meets[i])

    keys = (
        lambda i: (-sizes[i], buffers[i].first),
        lambda i: (-sizes[i], -spans[i], buffers[i].first),
        lambda i: (-sizes[i] * spans[i], buffers[i].first),
        lambda i: (-crowd(i), -sizes[i]),
        lambda i: (-spans[i], -sizes[i]),
        lambda i: (buffers[i].first, -sizes[i]),
        lambda i: (-buffers[i].last, -sizes[i]),
    )
    everyone = range(len(buffers))
    for key in keys:
        yield sorted(everyone, key=key)
    luck = Random(0)
    for _ in range(TRIES):
        weight = {i: sizes[i] * luck.uniform(0.5, 1.5) for i in everyone}
        yield sorted(everyone, key=lambda i: -weight[i])


def _placed(order: Sequence[int], sizes: Sequence[int], meets: Sequence[Sequence[int]]) -> list[int]:
    offsets = [-1] * len(sizes)
    for i in order:
        at = 0
        for low, high in sorted((offsets[j], offsets[j] + sizes[j]) for j in meets[i] if offsets[j] >= 0):
            if low >= at + sizes[i]:
                break
            at = max(at, high)
        offsets[i] = at
    return offsets
