"""The consistency of a job on its two levels, as one text that all processes agree on."""

from __future__ import annotations

from dataclasses import dataclass

from ..ops.errors import InputError
from .protocol.consistency import Consistency, parse
from .protocol.messages import Welcome, named


@dataclass(frozen=True, slots=True)
class Levels:
    """Consistency between the workers of one host, and between the representatives of hosts.

    >>> str(Levels.parse("sequential/bounded 3"))
    'sequential/bounded 3'
    """

    inside: Consistency
    between: Consistency

    @classmethod
    def parse(cls, text: str) -> Levels:
        """The levels that `str` writes. Raises InputError."""
        inside, slash, between = text.partition("/")
        if not slash:
            raise InputError(f"{text[:40]!r} are no two levels", hint="INSIDE/BETWEEN, as in sequential/eventual")
        return cls(parse(inside), parse(between))

    def __str__(self) -> str:
        return f"{self.inside}/{self.between}"

    @property
    def sums(self) -> bool:
        """True if the workers of a host sum before one of them speaks for all; else each speaks for itself."""
        return self.inside.sums

    def speakers(self, welcome: Welcome) -> int:
        """Return the number of ranks on level 2."""
        return len(welcome.hosts) if self.sums else welcome.num_workers

    def names(self, welcome: Welcome) -> tuple[str, ...]:
        """The ranks on level 2 as errors name them: hosts with their workers, or workers."""
        if not self.sums:
            return tuple(f"rank {rank}" for rank in range(welcome.num_workers))
        return tuple(f"host {host!r} ({named(ranks)})" for host, ranks in welcome.hosts)

    def speaker(self, welcome: Welcome, rank: int) -> int:
        """The rank at level 2 of who speaks for this worker."""
        return host_of(welcome, rank) if self.sums else rank


def host_of(welcome: Welcome, rank: int) -> int:
    """The place of a worker's host."""
    return next(i for i, (_, ranks) in enumerate(welcome.hosts) if rank in ranks)
