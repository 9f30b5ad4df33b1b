"""The memory plan: the place of every value, decided before the first run.

Lifetimes, then merging of values into buffers (in place, views, parts), then sharing of bytes by buffers that never
live together, then offsets: the order and the four strategies of the MXNet paper (arXiv 1512.01274, section 3.1).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum
from itertools import pairwise

import numpy as np

from ...ops.dataclasses import dataclass, field
from ...ops.errors import BudgetError, InputError, PlanError
from .buffers import Buffer, Member, merged
from .liveness import ALIGN, Life, Sequential, Sharing, Space, Timeline, aligned
from .offsets import extent, linear, search, stacked

MOST_BYTES = 1 << 62  # offsets are 64-bit numbers
BLOCK = 64  # slots that are compared with others at once


class Strategy(Enum):
    """Strategies of memory reuse; BOTH is the default. LINEAR is BOTH without the search, for huge graphs."""

    NONE = "none"
    INPLACE = "inplace"
    SHARING = "sharing"
    BOTH = "both"
    LINEAR = "linear"

    @classmethod
    def _missing_(cls, value: object) -> Strategy:
        hint = f"one of {', '.join(s.value for s in cls)}"
        raise InputError(f"strategy={value!r} is unknown", where="Session", hint=hint)

    @property
    def merges(self) -> bool:
        return self in (Strategy.INPLACE, Strategy.BOTH, Strategy.LINEAR)


@dataclass(frozen=True, slots=True)
class Slot:
    """The place of a value: bytes `offset` to `end`, if it is in the arena.

    Values of one `content` are views of each other: they are bytes `delta` onwards of the same elements.
    """

    life: Life
    offset: int = 0
    content: str = ""
    delta: int = 0

    @property
    def end(self) -> int:
        return self.offset + self.life.nbytes

    def same_content(self, other: Slot) -> bool:
        """True if both are views of the same elements, each at its right place."""
        mine, theirs = self.content or self.life.value, other.content or other.life.value
        return mine == theirs and self.offset - self.delta == other.offset - other.delta


@dataclass(frozen=True, slots=True)
class Attempt:
    """The attempt that a plan comes from: which of the offers it was made of (all; those in place; none), and which
    order of placing. The arena was `ratio` times as large as its floor."""

    offers: int = 0
    order: int = 0
    ratio: float = 1.0

    @property
    def enough(self) -> float:
        """The multiple of its floor that an arena of other sizes may take without a search for a smaller one: about as
        much as the search has left here, unless that is a lot."""
        return self.ratio * 1.01 if 1 < self.ratio <= 1.1 else 1.0


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """One arena of `size` bytes and the place of every value.

    `shared` lists the offers of shared bytes that were taken. `bound` is the largest sum of bytes alive at one step,
    below which no plan for this order can go; `floor` the same with the bytes of each buffer rounded up to ALIGN, below
    which none with these buffers can go.
    """

    size: int
    slots: tuple[Slot, ...]
    shared: tuple[Sharing, ...] = ()
    bound: int = 0
    strategy: Strategy = Strategy.BOTH
    time: Timeline = field(default_factory=Sequential, compare=False, repr=False)
    floor: int = field(default=0, compare=False, repr=False)
    attempt: Attempt = field(default_factory=Attempt, compare=False, repr=False)
    by_value: dict[str, Slot] = field(default_factory=dict[str, Slot], compare=False, repr=False)

    def __post_init__(self) -> None:
        self.by_value.update({s.life.value: s for s in self.slots})

    def arena(self) -> list[Slot]:
        """The slots that have bytes in the arena, by offset."""
        arena = Space.ARENA
        inside = [s for s in self.slots if s.life.space is arena and s.life.nbytes]
        return sorted(inside, key=lambda s: (s.offset, s.life.first))

    def total(self) -> int:
        """Bytes of all arena values without any reuse."""
        return sum(aligned(s.life.nbytes) for s in self.arena())

    def check(self) -> MemoryPlan:
        """Return the plan, or raise PlanError naming the two values that share bytes while both live.

        Sharing is right between views of the same elements, and where an output takes over from an input that dies in
        the step that makes it.
        """
        handed = {(s.value, s.other) for s in self.shared if s.kind == "inplace"}
        for a, b in self._overlaps():
            if a.same_content(b):
                continue
            old, new = (a, b) if a.life.first <= b.life.first else (b, a)
            pair = (new.life.value, old.life.value)
            if not (pair in handed and a.offset == b.offset and self.time.succeeds(new.life, old.life)):
                raise PlanError(f"{new.life.value} and {old.life.value} overlap")
        return self

    def _overlaps(self) -> Iterator[tuple[Slot, Slot]]:
        """Yield every two slots that may be alive together and have bytes in common. Raises PlanError for a slot
        outside of the arena."""
        slots = sorted(self.arena(), key=lambda s: s.life.first)
        for slot in slots:
            if slot.offset < 0 or slot.end > self.size:
                raise PlanError(f"{slot.life.value} ends outside of the arena of {self.size} bytes")
        begin, end = (np.array(n) for n in ([s.offset for s in slots], [s.end for s in slots]))
        first, last = (np.array(n) for n in ([s.life.first for s in slots], [s.life.last for s in slots]))
        sequential = isinstance(self.time, Sequential)
        for low in range(0, len(slots), BLOCK):
            high = min(low + BLOCK, len(slots))
            others = np.flatnonzero(last[:high] >= first[low]) if sequential else np.arange(high)
            rows = np.arange(low, high)[:, None]
            common = (begin[others] < end[low:high, None]) & (begin[low:high, None] < end[others]) & (others < rows)
            if sequential:  # none begins after those of higher numbers
                common &= last[others] >= first[low:high, None]
            for row, column in np.argwhere(common).tolist():
                a, b = slots[others[column]], slots[low + row]
                if sequential or self.time.meets(a.life, b.life):
                    yield a, b

    def __str__(self) -> str:
        rows = [
            f"  {s.life.value:<32} [{s.offset:>10}:{s.end:>10}) steps {s.life.first}..{s.life.last}"
            for s in self.arena()
        ]
        return "\n".join([f"arena {self.size} B ({self.strategy.value}; bound {self.bound} B)", *rows])


def plan(
    lives: Sequence[Life],
    offers: Sequence[Sharing] = (),
    strategy: Strategy = Strategy.BOTH,
    time: Timeline | None = None,
    first: Attempt | None = None,
) -> MemoryPlan:
    """Place every arena value. `offers` are tried in their order; `time` says which values may live together. The
    attempt `first`, which was the best for other sizes, is taken if its arena is about as near to the floor. `lower`
    checks what comes of it.

    >>> lives = [Life("a", 256, 0, 1), Life("b", 128, 1, 2), Life("c", 256, 2, 3)]
    >>> plan(lives).size
    384
    """
    when = time or Sequential()
    inside = [v for v in lives if v.space is Space.ARENA]
    some = [offers] if strategy.merges else [()]
    if strategy is Strategy.BOTH:
        some += [[o for o in offers if o.kind == "inplace"], ()]

    def attempted(attempt: Attempt) -> MemoryPlan:
        return _plan(lives, inside, some[attempt.offers], strategy, when, attempt)

    if first is not None and first.offers < len(some):
        again = attempted(first)
        if again.size <= again.floor * first.enough:
            return again
    best = attempted(Attempt())
    if best.size > best.floor:  # merging lengthens lives, parts claim their whole concatenation: less may pack better
        for fewer in range(1, len(some)):
            other = attempted(Attempt(fewer))
            if other.size < best.size:
                best = other
    return best


def _plan(
    lives: Sequence[Life],
    inside: Sequence[Life],
    offers: Sequence[Sharing],
    strategy: Strategy,
    time: Timeline,
    attempt: Attempt,
) -> MemoryPlan:
    buffers, taken = merged(inside, offers, time)
    bound, floor = live_bytes(buffers)
    order = 0
    if bound > MOST_BYTES:
        raise BudgetError(f"{bound} bytes would be alive at one step", hint="no machine has so many: check the sizes")
    if strategy in (Strategy.NONE, Strategy.INPLACE):
        offsets = stacked(buffers)
    elif strategy is Strategy.LINEAR:
        offsets = linear(buffers)
    else:
        offsets, order = search(buffers, time, int(floor * attempt.enough), attempt.order)
    places: dict[str, Slot] = {}
    for buffer, offset in zip(buffers, offsets, strict=True):
        roots = {m.content: m.at for m in buffer.members if m.content == m.life.value}
        for m in buffer.members:
            places[m.life.value] = Slot(m.life, offset + m.at, m.content, m.at - roots[m.content])
    slots = tuple(places.get(v.value) or Slot(v) for v in lives)
    size = extent(buffers, offsets)
    best = Attempt(attempt.offers, order, size / floor if floor else 1.0)
    return MemoryPlan(size, slots, tuple(taken), bound, strategy, time, floor, best)


def live_bytes(buffers: Sequence[Buffer]) -> tuple[int, int]:
    """The largest sum of bytes that hold something at one step, and the same with those of each buffer rounded up to
    ALIGN; bytes that several values share count once."""
    change: dict[int, tuple[int, int]] = {}

    def alive(first: int, last: int, nbytes: int) -> None:
        room = aligned(nbytes)
        for at, sign in ((first, 1), (last + 1, -1)):
            exact, rounded = change.get(at, (0, 0))
            change[at] = (exact + sign * nbytes, rounded + sign * room)

    for buffer in buffers:
        if len(buffer.members) == 1:
            alive(buffer.first, buffer.last, buffer.size)
            continue
        edges = sorted({m.life.first for m in buffer.members} | {m.life.last + 1 for m in buffer.members})
        coming, here = iter([*buffer.members, None]), list[Member]()
        new = next(coming)
        for begin, end in pairwise(edges):
            here = [m for m in here if m.life.last >= begin]
            while new is not None and new.life.first <= begin:
                here.append(new)
                new = next(coming)
            held = at = 0
            for low, high in sorted((m.at, m.end) for m in here):
                held += max(0, high - max(low, at))
                at = max(at, high)
            alive(begin, end - 1, held)
    most = room = now = held = 0
    for step in sorted(change):
        now, held = now + change[step][0], held + change[step][1]
        most, room = max(most, now), max(room, held)
    return most, room


__all__ = ["ALIGN", "Life", "MemoryPlan", "Sharing", "Slot", "Space", "Strategy", "plan"]
