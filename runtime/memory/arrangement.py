"""Arrangements: the structure of a plan, by which the same values with other sizes are placed in one pass."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from ...ops.dataclasses import dataclass, field
from .liveness import ALIGN, Life, Sequential, Sharing, Space, aligned
from .plan import MOST_BYTES, MemoryPlan, Slot


@dataclass(slots=True, eq=False)
class BufferLayout:
    """A buffer: the numbers of the slots that share its bytes.

    `links` place each member but the first: (member, the one that it is placed by, number of the offer, 1 or -1), so
    that it begins as many bytes behind or before that one as the offer says. `apart` are members that live together
    and may not overlap, `spans` the members that live from one step to before another. `below` are the groups with
    smaller offsets that meet this one, without those below them.
    """

    members: list[int]
    links: list[tuple[int, int, int, int]]
    apart: list[tuple[int, int]]
    spans: list[tuple[int, int, list[int]]]
    below: list[int] = field(default_factory=list[int])


@dataclass(frozen=True, slots=True, eq=False)
class Arrangement:
    """The structure of a plan for steps that run one after another: what shares bytes, and what lies above what.

    Buffers that lay above others do so again: no two that meet overlap, whatever their sizes are. `groups` are ordered
    by their offsets; `ends` are the numbers of the two slots of each offer that was taken, `roots` for each slot the
    one whose content its bytes belong to.
    """

    plan: MemoryPlan
    groups: tuple[BufferLayout, ...]
    ends: tuple[tuple[int, int], ...]
    roots: tuple[int, ...]

    @classmethod
    def of(cls, plan: MemoryPlan) -> Arrangement | None:
        """The structure of a plan; None where steps run in parallel."""
        if not isinstance(plan.time, Sequential):
            return None
        slots, numbers = plan.slots, {s.life.value: i for i, s in enumerate(plan.slots)}
        ends = tuple((numbers[o.value], numbers[o.other]) for o in plan.shared)
        links: dict[int, list[tuple[int, int, int, int]]] = {}
        for k, (value, other) in enumerate(ends):
            links.setdefault(other, []).append((value, other, k, 1))
            links.setdefault(value, []).append((other, value, k, -1))
        handed = {pair for pair, o in zip(ends, plan.shared, strict=True) if o.kind == "inplace"}
        groups: list[BufferLayout] = []
        met: set[int] = set()
        for first in (i for i, s in enumerate(slots) if s.life.space is Space.ARENA):
            if first in met:
                continue
            met.add(first)
            members, placing = [first], list[tuple[int, int, int, int]]()
            for member in members:  # which grows meanwhile
                for link in links.get(member, ()):
                    if link[0] not in met:
                        met.add(link[0])
                        members.append(link[0])
                        placing.append(link)
            members.sort(key=lambda i: slots[i].life.first)
            spans = list(_spans([(i, slots[i].life) for i in members]))
            apart = [p for p in _together(slots, members) if p not in handed and p[::-1] not in handed]
            groups.append(BufferLayout(members, placing, apart, spans))
        groups.sort(key=lambda g: (min(slots[i].offset for i in g.members), max(slots[i].end for i in g.members)))
        _stack(groups)
        roots = tuple(numbers.get(s.content, i) for i, s in enumerate(slots))
        return cls(plan, tuple(groups), ends, roots)

    def placed(self, nbytes: Mapping[str, int], offers: Sequence[Sharing] | None) -> MemoryPlan | None:
        """The plan for values of other sizes, and for offers with other deltas if those are given; None where an offer
        that was taken cannot be, or where a search would be worth its while."""
        former, slots = self.plan, self.plan.slots
        if len(nbytes) != len(slots) or not all(s.life.value in nbytes for s in slots):
            return None
        sizes = [nbytes[s.life.value] for s in slots]
        shared = former.shared
        if offers is not None:
            now = {(o.value, o.other, o.kind): o for o in offers}
            shared = tuple(now[key] for o in former.shared if (key := (o.value, o.other, o.kind)) in now)
            if len(shared) < len(former.shared):
                return None
        for offer, (value, other) in zip(shared, self.ends, strict=True):
            if sizes[value] != sizes[other] if offer.kind == "inplace" else offer.delta + sizes[value] > sizes[other]:
                return None
        at = [0] * len(slots)
        tops: list[int] = []
        change: dict[int, tuple[int, int]] = {}
        for group in self.groups:
            room = self._inside(group, at, sizes, shared, change)
            if room is None:
                return None
            offset = max([tops[g] for g in group.below], default=0)
            tops.append(offset + aligned(room))
            for i in group.members:
                at[i] += offset
        size, (bound, floor) = max(tops, default=0), _most(change)
        if size > floor * former.attempt.enough or bound > MOST_BYTES:
            return None
        return MemoryPlan(
            size, self._slots(at, sizes), shared, bound, former.strategy, former.time, floor, former.attempt
        )

    def _inside(
        self,
        group: BufferLayout,
        at: list[int],
        sizes: Sequence[int],
        shared: Sequence[Sharing],
        change: dict[int, tuple[int, int]],
    ) -> int | None:
        """Place the members of a group from its first byte on, and return its bytes; None if two of them would overlap,
        or lie between the multiples of ALIGN. What lives from when is added to `change`."""
        members = group.members
        if not group.links:
            ((first, behind, _),) = group.spans
            _add(change, first, behind, sizes[members[0]])
            return sizes[members[0]]
        for member, by, k, sign in group.links:
            at[member] = at[by] + sign * shared[k].delta
        low = min([at[i] for i in members])
        for i in members:
            at[i] -= low
            if at[i] % ALIGN:
                return None
        for i, j in group.apart:
            if at[i] < at[j] + sizes[j] and at[j] < at[i] + sizes[i]:
                return None
        for first, behind, here in group.spans:
            held = end = 0
            for begin, size in sorted([(at[i], sizes[i]) for i in here]):
                held += max(0, begin + size - max(begin, end))
                end = max(end, begin + size)
            _add(change, first, behind, held)
        return max([at[i] + sizes[i] for i in members])

    def _slots(self, at: Sequence[int], sizes: Sequence[int]) -> tuple[Slot, ...]:
        """The slots with these offsets and sizes."""
        slots = []
        for i, slot in enumerate(self.plan.slots):
            life, delta = slot.life, at[i] - at[self.roots[i]]
            if life.nbytes != sizes[i]:
                life = Life(life.value, sizes[i], life.first, life.last, life.space, life.name)
            if life is not slot.life or slot.offset != at[i] or slot.delta != delta:
                slot = Slot(life, at[i], slot.content, delta)
            slots.append(slot)
        return tuple(slots)


def _together(slots: Sequence[Slot], members: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield pairs of members, in the order of their first steps, that live together and are no views of each other."""
    alive: list[int] = []
    for j in members:
        alive = [i for i in alive if slots[i].life.last >= slots[j].life.first]
        yield from ((i, j) for i in alive if slots[i].content != slots[j].content)
        alive.append(j)


def _spans(members: Sequence[tuple[int, Life]]) -> Iterator[tuple[int, int, list[int]]]:
    """Yield stretches of steps in which the same members live: the first step, the one behind the last, the members,
    which come in the order of their first steps."""
    edges = sorted({life.first for _, life in members} | {life.last + 1 for _, life in members})
    here: list[tuple[int, Life]] = []
    coming = list(reversed(members))
    for begin, end in pairwise(edges):
        here = [(i, life) for i, life in here if life.last >= begin]
        while coming and coming[-1][1].first <= begin:
            here.append(coming.pop())
        if here:
            yield begin, end, [i for i, _ in here]


def _stack(groups: Sequence[BufferLayout]) -> None:
    """Note below each group those that meet it and come before it."""
    lives = [(g.spans[0][0], g.spans[-1][1], j) for j, g in enumerate(groups)]
    lower: list[list[int]] = [[] for _ in groups]
    alive: list[tuple[int, int, int]] = []
    for life in sorted(lives):
        alive = [other for other in alive if other[1] > life[0]]
        for _, _, i in alive:
            lower[max(i, life[2])].append(min(i, life[2]))
        alive.append(life)
    under: list[int] = []  # bit sets of all groups below each, at any distance
    for group, meeting in zip(groups, lower, strict=True):
        every = 0
        for i in sorted(meeting, reverse=True):
            if not every >> i & 1:
                group.below.append(i)
                every |= under[i] | 1 << i
        under.append(every)


def _add(change: dict[int, tuple[int, int]], first: int, behind: int, nbytes: int) -> None:
    """Note bytes that live from one step to before another, as they are and rounded up to ALIGN."""
    room = aligned(nbytes)
    exact, rounded = change.get(first, (0, 0))
    change[first] = exact + nbytes, rounded + room
    exact, rounded = change.get(behind, (0, 0))
    change[behind] = exact - nbytes, rounded - room


def _most(change: Mapping[int, tuple[int, int]]) -> tuple[int, int]:
    """The most bytes that live at one step, as they are and rounded up."""
    most = room = now = held = 0
    for step in sorted(change):
        now, held = now + change[step][0], held + change[step][1]
        most, room = max(most, now), max(room, held)
    return most, room
