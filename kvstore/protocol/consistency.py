"""Consistency models: when a push is applied, and when its sender may go on.

| | a push is applied | a rank that pushed step n is answered |
|---|---|---|
| Sequential | with those of all ranks, summed in rank order | when round n is applied: everybody sees the same value |
| Bounded(s) | by itself, when it has arrived | when no rank's clock is more than s behind n |
| Eventual | by itself, when it has arrived | at once |

Bulk-synchronous and asynchronous updates are those of the MXNet paper (arXiv 1512.01274, 3.3); bounded staleness is
that of Ho et al., "More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server", NIPS 2013. A clock
is the number of pushes of one rank to one key.

`by_staleness`: the rate of an optimizer's update is divided by 1 + its staleness, the number of updates that the value
has had since this rank read it (Zhang et al., "Staleness-aware Async-SGD for Distributed Deep Learning", IJCAI 2016).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ...ops.errors import InputError

_SUFFIX = " by staleness"


@dataclass(frozen=True, slots=True)
class Sequential:
    """One round after the other, each the sum over a set of ranks."""

    sums: ClassVar[bool] = True
    by_staleness: ClassVar[bool] = False

    def may_go(self, clock: int, slowest: int) -> bool:
        """True if a rank at `clock` may be answered while the slowest rank is at `slowest`."""
        return slowest >= clock

    def __str__(self) -> str:
        return "sequential"


@dataclass(frozen=True, slots=True)
class Bounded:
    """Bounded staleness: no rank is answered while it is more than `staleness` pushes ahead of the slowest."""

    staleness: int
    by_staleness: bool = False
    sums: ClassVar[bool] = False

    def may_go(self, clock: int, slowest: int) -> bool:
        return clock - slowest <= self.staleness

    def __str__(self) -> str:
        return f"bounded {self.staleness}{_SUFFIX * self.by_staleness}"


@dataclass(frozen=True, slots=True)
class Eventual:
    """Eventual consistency: no rank waits for another; every push counts once."""

    by_staleness: bool = False
    sums: ClassVar[bool] = False

    def may_go(self, clock: int, slowest: int) -> bool:
        return True

    def __str__(self) -> str:
        return f"eventual{_SUFFIX * self.by_staleness}"


Consistency = Sequential | Bounded | Eventual


def parse(text: str) -> Consistency:
    """The consistency that `str` writes. Raises InputError.

    >>> parse("bounded 3")
    Bounded(staleness=3, by_staleness=False)
    """
    stripped = text.removesuffix(_SUFFIX)
    by_staleness = stripped != text
    match stripped.split():
        case ["sequential"] if not by_staleness:
            return Sequential()
        case ["eventual"]:
            return Eventual(by_staleness)
        case ["bounded", s] if s.isascii() and s.isdigit() and len(s) < 10:
            return Bounded(int(s), by_staleness)
    raise InputError(f"there is no consistency {text[:40]!r}", hint="sequential, bounded STALENESS or eventual")
