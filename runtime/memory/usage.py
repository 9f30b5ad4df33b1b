"""`mz.memory`: memory of arrays, and of programs' results, on the CPU.

Those of 256 KiB and more lie in a pool; smaller ones are NumPy's affair, and not counted. A block comes back when
nobody can see it any more: no array, view, workload under way, buffer or DLPack capsule. It lies ready for the next
array of its size then.

>>> from mezzo import nd
>>> a = nd.ones((512, 1024)).wait_to_read()
>>> stats().owners["Expand"] >= 2**21
True
>>> set_pool("naive", limit=2**30)
>>> print(stats().rounding)
naive
>>> set_pool()
"""

from __future__ import annotations

from ...ops.errors import InputError
from .allocate import KEEP, POOL, USUAL
from .ledger import PoolStats, Rounding
from .trace import read, record, replay


def stats() -> PoolStats:
    """Return the current and peak bytes of the pool, and those of each owner: the operator or program that asked for
    them."""
    return POOL.stats()


def trim() -> int:
    """Give the blocks that lie ready back to the system; returns how many bytes that were."""
    return POOL.trim()


def set_pool(rounding: str | Rounding = USUAL, *, limit: int | None = None, keep: int = KEEP) -> None:
    """Other rules from now on: see `Rounding` (`naive`, `round:20`, `unpooled`).

    `limit` is how many bytes arrays may take (None: as many as there are), `keep` how many may lie ready. An operation
    that would pass the limit raises BudgetError where its result is read. Raises InputError for negative bytes.
    """
    rules = rounding if isinstance(rounding, Rounding) else Rounding.parse(rounding)
    if min(keep, limit or 0) < 0:
        raise InputError(f"limit={limit}, keep={keep}", where="memory.set_pool", hint="give numbers of bytes")
    POOL.set(rules, limit, keep)


__all__ = ["PoolStats", "Rounding", "read", "record", "replay", "set_pool", "stats", "trim"]
