"""Merging of values into buffers: in place, as views, as parts of a concatenation."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence

from ...ops.dataclasses import dataclass
from .liveness import ALIGN, Life, Sequential, Sharing, Timeline


@dataclass(slots=True, eq=False)
class Member:
    """A value in a buffer: its offset there, and the content that its bytes belong to.

    Values of one content are views of each other: they hold the same elements in the same bytes, and none may be
    overwritten while another lives. `before` is the value that it took over from, in place.
    """

    life: Life
    at: int
    content: str
    before: str = ""

    @property
    def end(self) -> int:
        return self.at + self.life.nbytes


@dataclass(slots=True, eq=False)
class Buffer:
    """Values that share bytes; they occupy the bytes from `low` to `high` from step `first` to step `last`.

    `members` are in the order of their first steps, which `firsts` has; `reach` has the last step of those up to each.
    """

    members: list[Member]
    firsts: list[int]
    reach: list[int]
    low: int
    high: int

    @classmethod
    def of(cls, life: Life) -> Buffer:
        """Return the buffer of a single value."""
        return cls([Member(life, 0, life.value)], [life.first], [life.last], 0, life.nbytes)

    @property
    def size(self) -> int:
        return self.high - self.low

    @property
    def first(self) -> int:
        return self.firsts[0]

    @property
    def last(self) -> int:
        return self.reach[-1]

    def around(self, life: Life, time: Timeline) -> Iterator[Member]:
        """Yield the members that may be alive together with this life, and perhaps others."""
        if not isinstance(time, Sequential):
            yield from self.members
            return
        for i in range(bisect_right(self.firsts, life.last) - 1, -1, -1):
            if self.reach[i] < life.first:
                return
            yield self.members[i]

    def take(self, other: Buffer) -> None:
        """Add the members of another buffer."""
        ordered = other.first >= self.firsts[-1]
        self.members += other.members
        if not ordered:
            self.members.sort(key=lambda m: m.life.first)
            self.firsts, self.reach = [], []
        for m in self.members[len(self.firsts) :]:
            self.firsts.append(m.life.first)
            self.reach.append(max(m.life.last, self.reach[-1]) if self.reach else m.life.last)
        self.low, self.high = min(self.low, other.low), max(self.high, other.high)


def clashing(a: Member, b: Member, time: Timeline) -> bool:
    """True if two values of one buffer occupy the same bytes at the same time without intent."""
    if a.at >= b.end or b.at >= a.end or a.content == b.content or not time.meets(a.life, b.life):
        return False
    new, old = (a, b) if a.life.first > b.life.first else (b, a)
    return not (new.before == old.life.value and a.at == b.at and time.succeeds(new.life, old.life))


def merged(lives: Iterable[Life], offers: Sequence[Sharing], time: Timeline) -> tuple[list[Buffer], list[Sharing]]:
    """One buffer per value, then every offer taken that breaks nothing; returns the buffers and the offers taken."""
    home = {v.value: Buffer.of(v) for v in lives}
    of = {v: b.members[0] for v, b in home.items()}
    taken: list[Sharing] = []
    for offer in offers:
        value, other = of.get(offer.value), of.get(offer.other)
        if value is None or other is None or home[offer.value] is home[offer.other]:
            continue
        shift = other.at + offer.delta - value.at
        if shift % ALIGN or not _fits(offer, value, other, time):
            continue
        own = moved = home[offer.value]
        kept = home[offer.other]
        if len(moved.members) > len(
            kept.members
        ):  # the smaller one moves, so that long chains cost no more than others
            moved, kept, shift = kept, moved, -shift
        if _joined(offer, own, moved, kept, shift, value, other, time):
            for m in moved.members:
                home[m.life.value] = kept
            kept.take(moved)
            taken.append(offer)
    buffers = list(dict.fromkeys(home.values()))
    for buffer in buffers:
        if buffer.low:
            for m in buffer.members:
                m.at -= buffer.low
            buffer.low, buffer.high = 0, buffer.size
    return buffers, taken


def _fits(offer: Sharing, value: Member, other: Member, time: Timeline) -> bool:
    if offer.kind == "view":
        # a value that lies in another one already stays there: two that it lay in would seem to hold the same elements
        free = value.content == value.life.value
        return free and offer.delta + value.life.nbytes <= other.life.nbytes
    return value.life.nbytes == other.life.nbytes and not value.before and time.succeeds(value.life, other.life)


def _joined(
    offer: Sharing, own: Buffer, moved: Buffer, kept: Buffer, shift: int, value: Member, other: Member, time: Timeline
) -> bool:
    """Move `moved` to its place in `kept`, by `shift`; undone, and False, if two of their values would clash there.
    `own` is the one of them that has the value."""
    content = value.content
    renamed: list[Member] = []
    if offer.kind == "view":
        renamed = [m for m in own.members if m.content == content]
        for m in renamed:
            m.content = other.content
    else:
        value.before = other.life.value
    _shift(moved, shift)
    if any(clashing(a, b, time) for a in moved.members for b in kept.around(a.life, time)):
        _shift(moved, -shift)
        for m in renamed:
            m.content = content
        if offer.kind != "view":
            value.before = ""
        return False
    return True


def _shift(buffer: Buffer, by: int) -> None:
    for m in buffer.members:
        m.at += by
    buffer.low += by
    buffer.high += by
