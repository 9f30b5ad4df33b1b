"""Readiness of sessions: programs of a file that are prepared ahead, and processes that may not run them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from ...ops.errors import ForkedProcess, InputError
from ..compile.collection import collection_paused
from .fitting import ProvenBuckets

if TYPE_CHECKING:
    from .session import Session


def refused_after_fork(here: int, process: int, owner: str) -> ForkedProcess:
    """The error for a session that another process has run before."""
    return ForkedProcess(
        f"process {here} was forked from {process}, which had run this session",
        where=owner,
        hint="load the model in the child, or start workers with multiprocessing's 'spawn' or 'forkserver'",
    )


def refused_copy(session: Session) -> NoReturn:
    """Raise InputError for a copy or a pickle of a session, whose threads and memory are this process's."""
    raise InputError(
        "a session is neither copied nor pickled",
        where=session.signature.name,
        hint="load the model in each process; those that map one .mezzo file share its weights",
    )


def not_rounded(session: Session) -> list[str]:
    """The reasons why a session does not round sizes up, as far as some were tried."""
    fitting = session._fitting
    return fitting.programs(session, session.signature.outputs).reasons if isinstance(fitting, ProvenBuckets) else []


def made_ready(session: Session) -> int:
    """Read the programs for rounded sizes of a session's file, and make an instance of each; returns how many there
    are."""
    fitting, outputs = session._fitting, session.signature.outputs
    if not isinstance(fitting, ProvenBuckets):
        return 0
    programs = fitting.programs(session, outputs)
    with session.planning, collection_paused():
        kept = programs.read()
    count, dropped = 0, session.stats().evicted
    # the one with the largest arena first: to outgrow it would cost all instances
    for program in sorted(kept, key=lambda p: -p.executable.program.arena_bytes):
        executable = program.executable
        if not session.has_room(executable.program.arena_bytes):
            continue
        fitting.keep(session, programs, program)
        with session._arenas.borrow(executable.program.arena_bytes, None, executable) as arena:
            session._instance(arena, executable)
        if session.stats().evicted > dropped:
            break
        count += 1
    return count
