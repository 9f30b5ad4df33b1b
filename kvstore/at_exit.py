"""Stores that a script has not closed when it ends: its process leaves the job in good order, as MXNet's do."""

from __future__ import annotations

import atexit
import os
import sys
from typing import Protocol

from ..ops.errors import MezzoError
from ..runtime.engine import engine


class Leaves(Protocol):
    """A store, which is left with the error that has ended the script, or without."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None: ...


_open: dict[Leaves, tuple[int, bool]] = {}  # in the order in which they were made: the process, and what it tells


def close_at_exit(store: Leaves, tells: bool) -> None:
    """Close a store when the process ends, unless `closed` is called before. An error that ends the script is told to
    the other workers if `tells`; else the process just ends, and another one may come in its place."""
    engine()  # it closes itself at exit too: after this
    atexit.unregister(_close_all)
    atexit.register(_close_all)
    _open[store] = os.getpid(), tells


def closed(store: Leaves) -> None:
    """Forget a store, which is closed."""
    _open.pop(store, None)


def _close_all() -> None:
    interactive = hasattr(sys, "ps1")  # where an error ends nothing
    error = None if interactive else getattr(sys, "last_value", None)
    for store, (process, tells) in reversed(_open.copy().items()):
        if process != os.getpid() or (error is not None and not tells):
            continue  # a child that was forked has no store
        try:
            store.__exit__(None, error, None)
        except MezzoError as problem:
            print(f"mezzo: a store could not be closed at the end of the process: {problem}", file=sys.stderr)
