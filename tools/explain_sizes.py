"""Costs of planning for each size of an open dim: `mezzo explain --sizes`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from statistics import median
from time import process_time
from typing import Any

import numpy as np

from ..ops import Tensor
from ..ops.dataclasses import dataclass
from ..ops.errors import InputError, MezzoError
from ..runtime.execution.ready import not_rounded
from ..runtime.execution.session import Session
from ..runtime.execution.session_stats import SessionStats
from .fills import first_that_runs
from .report import Table

MOST = 10_000


@dataclass(frozen=True, slots=True)
class Planned:
    """One size: how its program came about, milliseconds of processor time that took, and bytes of its arena."""

    size: int
    how: str
    ms: float
    arena_bytes: int


def parse_walk(text: str) -> tuple[str, list[int]]:
    """The name of a dim and its sizes, from `length=1..512` or `batch=1,8,64..66`. Raises InputError for another text.

    >>> parse_walk("n=1,4..6")
    ('n', [1, 4, 5, 6])
    """
    name, equals, ranges = text.partition("=")
    sizes: list[int] = []
    try:
        for part in ranges.split(","):
            first, dots, last = part.partition("..")
            part_sizes = range(int(first), (int(last) if dots else int(first)) + 1)
            if not 0 < len(part_sizes) <= MOST:
                raise ValueError(part)
            sizes += part_sizes
    except ValueError:
        sizes = []
    if not (name and equals and sizes and len(sizes) <= MOST):
        hint = f"give a dim and at most {MOST} sizes, upwards: --sizes length=1..512"
        raise InputError(f"--sizes {text!r} is no walk", hint=hint)
    return name, sizes


def explain_sizes(
    session: Session, dim: str, sizes: Sequence[int], given: Mapping[str, str], seed: int
) -> tuple[Table, dict[str, Any]]:
    """Plan for these sizes one after the other; `given` are sizes of other dims, what is not in it is chosen. Returns a
    table with one row for sizes that follow each other and came about alike, and facts. Raises InputError for a dim
    that no input has."""
    dims = {d for p in session.inputs if isinstance(p.type, Tensor) for d in p.type.dims or () if isinstance(d, str)}
    if dim not in dims:
        open_dims = ", ".join(sorted(dims)) or "none"
        raise InputError(f"no input has a dim {dim!r}", where="--sizes", hint=f"the open dims are {open_dims}")
    rows: list[Planned] = []

    def planned(feeds: dict[str, Any]) -> Planned:
        before, begun = session.stats(), process_time()
        program = session.warmup({n: np.shape(a) for n, a in feeds.items()})
        ms, after = 1e3 * (process_time() - begun), session.stats()
        return Planned(size, _came(before, after), ms, program.arena_bytes)

    for size in sizes:
        try:
            rows.append(first_that_runs(session, {**given, dim: str(size)}, seed, planned)[1])
        except MezzoError as error:
            rows.append(Planned(size, f"refused: {error.message}", 0.0, 0))
    stats = session.stats()
    facts: dict[str, Any] = {"templates": stats.templates, "planned_from_a_template": stats.from_template}
    facts["program_bytes"] = stats.program_bytes
    if stats.rounded:
        facts["programs_of_rounded_sizes"] = stats.rounded
    if reasons := not_rounded(session):
        facts["not_rounded_up"] = "; ".join(dict.fromkeys(reasons))
    table = Table("Sizes", (dim, "how", "median ms", "arena bytes"), [_row(list(g)) for _, g in groupby(rows, _how)])
    return table, facts


def _came(before: SessionStats, after: SessionStats) -> str:
    """Return how the program of a size came about, by the counters before and after."""
    if after.rounded > before.rounded:
        return "planned, rounded up"
    if after.from_template > before.from_template:
        return "from a template"
    return "planned" if after.planned > before.planned else "known"


def _how(planned: Planned) -> str:
    return planned.how


def _row(alike: Sequence[Planned]) -> tuple[Any, ...]:
    first, last = alike[0], alike[-1]
    arenas = [min(p.arena_bytes for p in alike), max(p.arena_bytes for p in alike)]
    return (
        str(first.size) if first is last else f"{first.size}..{last.size} ({len(alike)})",
        first.how,
        round(median(p.ms for p in alike), 2),
        str(arenas[0]) if arenas[0] == arenas[1] else f"{arenas[0]}..{arenas[1]}",
    )
