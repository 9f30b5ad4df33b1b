"""Merging of values into buffers: in place, as views, as parts of a concatenation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ...ops.dataclasses import dataclass
from .liveness import ALIGN, Life, Sharing, Timeline


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
    """Values that share bytes; they occupy `size` bytes from step `first` to step `last`."""

    members: list[Member]
    size: int
    first: int
    last: int

    @classmethod
    def of(cls, life: Life) -> Buffer:
        """Return the buffer of a single value."""
        return cls([Member(life, 0, life.value)], life.nbytes, life.first, life.last)


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
        small, large = home[offer.value], home[offer.other]
        if shift < 0:
            small, large, shift = large, small, -shift
        if _joined(offer, small, large, shift, value, other, time):
            for m in small.members:
                home[m.life.value] = large
            taken.append(offer)
    return list(dict.fromkeys(home.values())), taken


def _fits(offer: Sharing, value: Member, other: Member, time: Timeline) -> bool:
    if offer.kind == "view":
        # a value that lies in another one already stays there: two that it lay in would seem to hold the same elements
        free = value.content == value.life.value
        return free and offer.delta + value.life.nbytes <= other.life.nbytes
    return value.life.nbytes == other.life.nbytes and not value.before and time.succeeds(value.life, other.life)


def _joined(
    offer: Sharing, small: Buffer, large: Buffer, shift: int, value: Member, other: Member, time: Timeline
) -> bool:
    """Move `small` into `large` at `shift`; undone, and False, if two of their values would clash there."""
    undo = [(m, m.at, m.content, m.before) for m in (*small.members, *large.members)]
    if offer.kind == "view":
        content = value.content
        for m in (*small.members, *large.members):
            if m.content == content:
                m.content = other.content
    else:
        value.before = other.life.value
    for m in small.members:
        m.at += shift
    if any(clashing(a, b, time) for a in small.members for b in large.members):
        for m, at, content, before in undo:
            m.at, m.content, m.before = at, content, before
        return False
    large.members += small.members
    large.size = max(large.size, small.size + shift)
    large.first, large.last = min(large.first, small.first), max(large.last, small.last)
    return True
