"""The engine of this process: made from the environment, closed at exit, refused in a forked child."""

from __future__ import annotations

import atexit
import os
import sys
from _thread import allocate_lock
from traceback import format_exception

from ...ops.errors import ForkedProcess
from ..environment import switch
from .engine import Engine, alive

PATIENCE = 10.0  # seconds that the end of the process waits for what is under way

_engine: Engine | None = None
_making = allocate_lock()


def engine() -> Engine:
    """The engine of this process, made when it is first asked for.

    `MEZZO_ENGINE=naive` runs each workload where it is pushed; `MEZZO_ENGINE_CHECK=1` does so and checks what they
    touch; `MEZZO_ENGINE_THREADS` is how many compute at once. When the process ends, what is under way has ten seconds.
    Raises InputError for environment variables that are unknown or wrong.
    """
    global _engine
    if _engine is None:
        with _making:
            if _engine is None:
                _engine = from_environment()
                atexit.register(_at_exit, _engine)
    return _engine


def from_environment() -> Engine:
    """An engine as the environment asks for it. Raises InputError."""
    count, check = switch("MEZZO_ENGINE_THREADS"), switch("MEZZO_ENGINE_CHECK") == "1"
    mode = switch("MEZZO_ENGINE") or "threaded"
    return Engine(mode, threads={"compute": int(count)} if count else None, check=check)


def _at_exit(engine: Engine) -> None:
    """The process ends when what is under way has ended, or cannot; an error that nobody has seen is told."""
    if engine._refusal is not None:
        return
    try:
        engine.close(PATIENCE)
    except Exception as error:
        if error in _causes(getattr(sys, "last_value", None)):
            return  # it has ended the script, and was printed
        print("mezzo: an error that nobody waited for\n", *format_exception(error), sep="", file=sys.stderr)


def _causes(error: BaseException | None) -> list[BaseException]:
    """An error and those behind it."""
    causes = list[BaseException]()
    while error is not None and error not in causes:
        causes.append(error)
        error = error.__cause__ or error.__context__
    return causes


def _forked() -> None:
    global _making
    _making = allocate_lock()  # a thread that is gone may have held it
    for engine in alive:
        engine._lock = allocate_lock()
        engine._refusal = (
            ForkedProcess,
            f"process {os.getpid()} was forked from one that has an engine, whose threads it lacks",
            "start workers with multiprocessing's 'spawn' or 'forkserver'",
        )


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
