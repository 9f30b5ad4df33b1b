"""All the architectures, and the line of the page that each of their files gets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .agree import Verdict, verdict
from .architecture import BATCHES, EXPORTERS, Architecture
from .page import Row
from .plain import PLAIN
from .speech import SPEECH
from .text import TEXT
from .vision import VISION
from .write import exported, optimised

ALL = (*PLAIN, *VISION, *TEXT, *SPEECH)
FILES = tuple((made, exporter) for made in ALL for exporter in made.exporters)
NAMES = tuple((made.name, exporter) for made, exporter in FILES)
EXCUSED = "; ".join(
    f"{made.name} by {exporter} ({made.excused})"
    for made in ALL
    for exporter in EXPORTERS
    if exporter not in made.exporters
)
# How a session is made, and the batches that it reads.
SESSIONS: tuple[tuple[Mapping[str, Any], tuple[int, ...]], ...] = (
    ({}, BATCHES),
    ({"fuse": True}, (2,)),
    ({"onednn": False}, (2,)),
)


def compared(made: Architecture, content: bytes) -> Verdict:
    """A file in every kind of session; the sizes tried are those of the first."""
    found = [verdict(made, content, settings, batches) for settings, batches in SESSIONS]
    problems = [f"{dict(s)}: {p}" for (s, _), one in zip(SESSIONS, found, strict=True) for p in one.problems]
    return Verdict(found[0].nodes, found[0].tried, max(one.error for one in found), problems)


def row(made: Architecture, exporter: str) -> tuple[Row, list[str]]:
    """The line of an architecture and an exporter, and what is wrong with it."""
    content = exported(made, exporter)
    plain, fused = compared(made, content), compared(made, optimised(content))
    tried = {dim: dict.fromkeys(sizes[dim] for sizes in plain.tried) for dim in plain.tried[0]}
    said = ", ".join(f"{dim} {' '.join(map(str, sizes))}" for dim, sizes in tried.items())
    errors = (f"{plain.error:.0e}", f"{fused.error:.0e}")
    problems = plain.problems + [f"optimised: {p}" for p in fused.problems]
    return Row(made.name, exporter, plain.nodes, fused.nodes, len(plain.tried), said, *errors), problems
