"""Contents of a session's `.mezzo` file: its graph, and the programs that are planned now."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ..compile.executable import Executable
from ..file import VariantKey, encode, key_here
from ..file.rounded import StoredPattern
from .fitting import ProvenBuckets

if TYPE_CHECKING:
    from .session import Session


def content(session: Session, *, portable: bool, source: str, producer: str) -> Iterator[Any]:
    """The bytes of a session's file, piece by piece."""
    alone = portable or session.device.place  # programs over several devices are planned where they run
    planned = ([], []) if alone else (variants(session), patterns(session))
    return encode(session.graph, *planned, source=source, producer=producer)


def variants(session: Session) -> list[tuple[VariantKey, Executable]]:
    """The programs that are planned now, each with what it was planned for."""
    session._bind_fixed()
    with session._table:
        planned = list(session._executables.items())
    return [(key_here(session._options, outputs, dict(types)), executable) for (outputs, types), executable in planned]


def patterns(session: Session) -> list[tuple[VariantKey, StoredPattern]]:
    """The patterns by which sizes are rounded up, with the programs that are planned now or lie in the session's own
    file."""
    stored = list[tuple[VariantKey, StoredPattern]]()
    fitting = session._fitting
    if not isinstance(fitting, ProvenBuckets):
        return stored
    with session.planning:
        for outputs in {session.signature.outputs, *fitting.made}:
            key = key_here(session._options, outputs, session.signature.inputs)
            for pattern in fitting.programs(session, outputs).patterns:
                programs = dict(pattern.programs)
                programs |= {k: load() for k, load in pattern.stored.items() if k not in programs}
                kept = {k: p for k, p in programs.items() if not isinstance(p, str)}
                if kept:
                    stored.append((key, StoredPattern(pattern, kept, session.compiled(outputs).ports)))
    return stored
