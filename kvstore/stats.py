"""Counters of a store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .protocol.pace import Split, Straggler


@dataclass(frozen=True, slots=True)
class Stats:
    """Counters of a store in this process. `inside` and `between` are bytes of level 1 (shared memory of a host, read
    and written for others) and of level 2 (the wire, both directions, packed where values are); `staleness` counts the
    pulls by the number of steps that they were behind. `ranks` has what the steps of each worker are made of in the
    last seconds, of those that tell when a step has ended, and `straggler` the one that holds the others up, if any."""

    pushes: int = 0
    pulls: int = 0
    inside: int = 0
    between: int = 0
    staleness: Mapping[int, int] = field(default_factory=dict[int, int])
    ranks: Mapping[int, Split] = field(default_factory=dict[int, Split])
    straggler: Straggler | None = None
