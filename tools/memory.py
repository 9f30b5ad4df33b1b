"""`mezzo memory`: the cost of a recorded run under other pool policies."""

from __future__ import annotations

import os
from collections.abc import Sequence

from ..ops.errors import BudgetError
from ..runtime.memory.allocate import KEEP
from ..runtime.memory.ledger import Rounding
from ..runtime.memory.trace import Event, read, replay
from .report import Report, Table

USUAL = ("unpooled", "naive", "round:16", "round:20", "round:24")
HEADS = ("rounding", "asked bytes", "in use bytes", "reserved bytes", "waste %", "made", "ready")


def memory(
    path: str | os.PathLike[str], roundings: Sequence[str] = (), *, limit: int | None = None, keep: int = KEEP
) -> Report:
    """Return a report of each rounding's pool at the end of a trace of `mz.memory.record`.

    Bytes asked for, in blocks, and taken from the system, each at its peak; waste is the part of the last that was
    never asked for at once; `made` blocks came from the system, the others lay ready. Raises InputError for a file
    that is no trace, or a rounding that there is not.
    """
    rules = [Rounding.parse(r) for r in roundings or USUAL]
    events = read(path)
    takes = [e for e in events if e.nbytes is not None]
    owners: dict[str, tuple[int, int]] = {}
    for e in takes:
        count, nbytes = owners.get(str(e.owner), (0, 0))
        owners[str(e.owner)] = count + 1, nbytes + (e.nbytes or 0)
    facts = {
        "arrays": len(takes),
        "bytes": sum(e.nbytes or 0 for e in takes),
        "alive_at_the_end": 2 * len(takes) - len(events),
        "kept_bytes": keep,
    }
    ranked = sorted(((o, *n) for o, n in owners.items()), key=lambda row: -row[2])
    return Report(
        str(path),
        facts,
        (
            Table("Pools", HEADS, [_row(events, rule, limit, keep) for rule in rules]),
            Table("Owners", ("owner", "arrays", "bytes"), ranked),
        ),
    )


def _row(events: Sequence[Event], rule: Rounding, limit: int | None, keep: int) -> tuple[object, ...]:
    try:
        replayed = replay(events, rule, limit=limit, keep=keep)
    except BudgetError:
        return (str(rule), "passes the limit", *[""] * (len(HEADS) - 2))
    waste = f"{100 * replayed.waste:.1f}"
    peaks = replayed.peak_asked, replayed.peak, replayed.peak_reserved
    return (str(rule), *peaks, waste, replayed.misses, replayed.hits)
