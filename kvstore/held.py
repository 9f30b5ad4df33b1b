"""Seconds for which a server keeps the pushes of each rank, complete, for want of others."""

from __future__ import annotations

import time

from .protocol.pace import HELD


class HeldBack:
    """A clock for each rank, which runs while a push of it is complete and not answered."""

    def __init__(self) -> None:
        self._open: dict[int, set[int]] = {}  # keys of such pushes, by rank
        self._since: dict[int, float] = {}
        self._seconds: dict[int, float] = {}

    def complete(self, rank: int, key: int) -> None:
        """All bytes of a push are here."""
        keys = self._open.setdefault(rank, set())
        if not keys:
            self._since[rank] = time.monotonic()
        keys.add(key)

    def answered(self, rank: int, key: int) -> None:
        """The value is on its way back, or the push has been acknowledged."""
        keys = self._open.get(rank)
        if keys and key in keys:
            keys.remove(key)
            if not keys:
                self._seconds[rank] = self._seconds.get(rank, 0.0) + time.monotonic() - self._since[rank]

    def left(self, rank: int) -> None:
        """A rank waits for nothing any more."""
        for key in tuple(self._open.get(rank, ())):
            self.answered(rank, key)

    def counts(self) -> dict[str, float]:
        """Seconds so far, of a rank that waits now, too, as a report tells them."""
        now, found = time.monotonic(), dict(self._seconds)
        for rank, keys in self._open.items():
            if keys:
                found[rank] = found.get(rank, 0.0) + now - self._since[rank]
        return {f"{HELD}{rank}": seconds for rank, seconds in found.items()}
