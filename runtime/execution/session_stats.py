"""Counters of a session."""

from __future__ import annotations

from ...ops.dataclasses import dataclass
from ..memory.ledger import PoolStats


@dataclass(frozen=True, slots=True)
class SessionStats:
    """Counters of a session: programs planned in all, cached now and evicted; runs; arenas and their bytes; the pool;
    defects of kernels in this process (see `mezzo explain`); runs repeated because of a NaN; templates over sizes (see
    docs/service.md), and the programs that were planned from one; programs for rounded sizes, which are not among the
    others; the bytes of all programs and of what is made of them in the arenas."""

    planned: int
    programs: int
    evicted: int
    runs: int
    arenas: int
    arena_bytes: int
    pool: PoolStats
    defects: int = 0
    alarms: int = 0
    templates: int = 0
    from_template: int = 0
    rounded: int = 0
    program_bytes: int = 0
