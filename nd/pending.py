"""The queue of operations that are gathered and not yet pushed to the engine.

Asking for the variable of any array pushes all of it first, so that order is kept, also with writes.
"""

from __future__ import annotations

import threading
from typing import Any
from weakref import ref

MOST = 96  # operations that wait

lock = threading.RLock()
waiting: list[ref[Any]] = []  # nodes of nd/lazy.py, and what else has a `push`


def put_off(operation: Any) -> None:
    """Have `operation.push()` called when anybody asks for a variable, as long as somebody holds it."""
    with lock:
        waiting.append(ref(operation))
        if len(waiting) >= MOST:
            waiting[:] = [r for r in waiting if r() is not None]


def flush(but: Any = None) -> None:
    """Push all that is gathered, `but` this, as long as somebody holds it."""
    with lock:
        operations, waiting[:] = [r() for r in waiting], []
        for operation in operations:
            if operation is not None and operation is not but:
                operation.push()
        if but is not None:
            waiting.append(ref(but))
