"""The memory plan: where every value lives, decided before the first run.

Lifetimes, then in-place merging, then sharing of bytes by values that never live together, then offsets: the order and
the four strategies of the MXNet paper (arXiv 1512.01274, section 3.1).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from ..ops.errors import PlanError

ALIGN = 64


class Space(Enum):
    """Whose bytes: only the arena's are ours to place; the others are pointers given at instantiation or run.

    DYNAMIC values have sizes that data decides: they take their bytes from the session's pool while the program runs
    (or are host objects: strings, sequences).
    """

    ARENA = "arena"
    WEIGHT = "weight"
    INPUT = "input"
    OUTPUT = "output"
    STATE = "state"
    EXTERN = "extern"
    DYNAMIC = "dynamic"


class Strategy(Enum):
    """How bytes are reused; BOTH is the default."""

    NONE = "none"
    INPLACE = "inplace"
    SHARING = "sharing"
    BOTH = "both"

    @property
    def merges(self) -> bool:
        return self in (Strategy.INPLACE, Strategy.BOTH)

    @property
    def shares(self) -> bool:
        return self in (Strategy.SHARING, Strategy.BOTH)


@dataclass(frozen=True, slots=True)
class Life:
    """A value, its bytes, and the first and last step that touch it. `name` is the buffer's name in EXTERN space."""

    value: str
    nbytes: int
    first: int
    last: int
    space: Space = Space.ARENA
    name: str = ""

    def meets(self, other: Life) -> bool:
        """Whether both are alive at some step."""
        return self.first <= other.last and other.first <= self.last


@dataclass(frozen=True, slots=True)
class Slot:
    """A value's place: bytes `offset` to `end` of the arena, where it lives there."""

    life: Life
    offset: int = 0

    @property
    def end(self) -> int:
        return self.offset + self.life.nbytes

    def clashes(self, other: Slot) -> bool:
        """Whether both hold the same bytes at the same step."""
        return self.life.meets(other.life) and self.offset < other.end and other.offset < self.end


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """One arena of `size` bytes and the place of every value.

    `inplace` lists (output, input) pairs that share bytes on purpose: the input dies in the step that makes the
    output. `bound` is the largest sum of bytes alive at one step, below which no plan for this order can go.
    """

    size: int
    slots: tuple[Slot, ...]
    inplace: tuple[tuple[str, str], ...] = ()
    bound: int = 0
    strategy: Strategy = Strategy.BOTH
    by_value: dict[str, Slot] = field(default_factory=dict[str, Slot], compare=False, repr=False)

    def __post_init__(self) -> None:
        self.by_value.update({s.life.value: s for s in self.slots})

    def arena(self) -> list[Slot]:
        """The slots that have bytes in the arena, by offset."""
        inside = [s for s in self.slots if s.life.space is Space.ARENA and s.life.nbytes]
        return sorted(inside, key=lambda s: (s.offset, s.life.first))

    def total(self) -> int:
        """Bytes of all arena values without any reuse."""
        return sum(_aligned(s.life.nbytes) for s in self.arena())

    def check(self) -> MemoryPlan:
        """Return the plan, or raise PlanError naming the two values that share bytes while both live."""
        slots = self.arena()
        pairs = set(self.inplace)
        columns = [(s.offset, s.end, s.life.first, s.life.last) for s in slots]
        start, end, first, last = np.array(columns or [(0, 0, 0, 0)], np.int64).T
        if slots and (int(end.max()) > self.size or int(start.min()) < 0):
            raise PlanError(f"{slots[int(end.argmax())].life.value} ends outside of the arena of {self.size} bytes")
        for i, a in enumerate(slots):
            rest = slice(i + 1, None)
            clash = (start[rest] < end[i]) & (first[rest] <= last[i]) & (first[i] <= last[rest])
            for j in np.flatnonzero(clash):
                b = slots[i + 1 + int(j)]
                old, new = sorted((a.life, b.life), key=lambda v: v.first)
                merged = (new.value, old.value) in pairs and old.last == new.first
                if not (merged and a.offset == b.offset):
                    raise PlanError(f"{b.life.value} and {a.life.value} overlap")
        return self

    def __str__(self) -> str:
        rows = [
            f"  {s.life.value:<32} [{s.offset:>10}:{s.end:>10}) steps {s.life.first}..{s.life.last}"
            for s in self.arena()
        ]
        return "\n".join([f"arena {self.size} B ({self.strategy.value}; bound {self.bound} B)", *rows])


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGN) * ALIGN


def plan(
    lives: Sequence[Life], inplace: Iterable[tuple[str, str]] = (), strategy: Strategy = Strategy.BOTH
) -> MemoryPlan:
    """Place every arena value; `inplace` offers (output, input) pairs, the better ones first.

    >>> lives = [Life("a", 256, 0, 1), Life("b", 128, 1, 2), Life("c", 256, 2, 3)]
    >>> plan(lives).size
    384
    """
    placed = _plan(lives, tuple(inplace), strategy)
    if strategy is Strategy.BOTH:  # merging lengthens lives, so that now and then sharing alone packs better
        alone = _plan(lives, (), Strategy.SHARING)
        if alone.size < placed.size:
            placed = MemoryPlan(alone.size, alone.slots, (), placed.bound, strategy)
    return placed.check()


def _plan(lives: Sequence[Life], offered: tuple[tuple[str, str], ...], strategy: Strategy) -> MemoryPlan:
    inside = {v.value: v for v in lives if v.space is Space.ARENA}
    merged = _merge(inside, offered) if strategy.merges else []
    groups = _groups(inside, merged)
    spans = [Life(g[0].value, g[0].nbytes, min(v.first for v in g), max(v.last for v in g)) for g in groups]
    offsets = _shared(spans) if strategy.shares else _stacked(spans)
    size = max((offsets[s.value] + _aligned(s.nbytes) for s in spans), default=0)
    at = {v.value: offsets[s.value] for s, g in zip(spans, groups, strict=True) for v in g}
    slots = tuple(Slot(v, at.get(v.value, 0)) for v in lives)
    return MemoryPlan(size, slots, tuple(merged), _bound(spans), strategy)


def _merge(lives: dict[str, Life], offered: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """The offered pairs whose input dies where the output is born, each value used once."""
    taken: set[str] = set()
    pairs: list[tuple[str, str]] = []
    for output, source in offered:
        new, old = lives.get(output), lives.get(source)
        if new is None or old is None or old.last != new.first or old.nbytes != new.nbytes:
            continue
        if old.first >= new.first or source in taken or any(output == o for o, _ in pairs):
            continue
        taken.add(source)
        pairs.append((output, source))
    return pairs


def _groups(lives: dict[str, Life], pairs: Iterable[tuple[str, str]]) -> list[list[Life]]:
    """Values that hold the same bytes one after another, oldest first."""
    follows = {source: output for output, source in pairs}
    later = set(follows.values())
    groups = []
    for life in lives.values():
        if life.value in later:
            continue
        chain = [life]
        while chain[-1].value in follows:
            chain.append(lives[follows[chain[-1].value]])
        groups.append(chain)
    return groups


def _stacked(spans: Iterable[Life]) -> dict[str, int]:
    offsets, at = {}, 0
    for span in spans:
        offsets[span.value] = at
        at += _aligned(span.nbytes)
    return offsets


def _shared(spans: Iterable[Life]) -> dict[str, int]:
    """Largest first, each at the lowest offset that is free for its whole life."""
    placed: list[Slot] = []
    for span in sorted(spans, key=lambda v: (-v.nbytes, v.first, v.value)):
        offset = 0
        for other in sorted((s for s in placed if s.life.meets(span)), key=lambda s: s.offset):
            if other.offset >= offset + _aligned(span.nbytes):
                break
            offset = max(offset, _aligned(other.end))
        placed.append(Slot(span, offset))
    return {s.life.value: s.offset for s in placed}


def _bound(spans: Sequence[Life]) -> int:
    """The largest sum of bytes alive at one step."""
    change: dict[int, int] = {}
    for span in spans:
        change[span.first] = change.get(span.first, 0) + span.nbytes
        change[span.last + 1] = change.get(span.last + 1, 0) - span.nbytes
    alive = most = 0
    for step in sorted(change):
        alive += change[step]
        most = max(most, alive)
    return most
