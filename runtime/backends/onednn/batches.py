"""Consecutive calls of the library as one foreign call.

A call that releases Python's lock may wait for the turn of another thread, 5 ms; one that holds it returns to the
interpreter all the same. A batch is a table of calls, which a loop of machine code goes through: the lock is released
once, or not at all where all calls are short.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any

from ...compile.kernel import failed
from ...execution.alarm import readable
from .invalid import Look, LookAtAll, LowerAll, Lowering
from .kernel import Calls, Moved
from .machine_code import RUN, Routine, routine, table
from .primitive import Execution
from .teams import Order

# Calls whose `rows` are all that they do. A subclass may do more.
NATIVE = (Execution, Moved, Calls, Routine, Look, LookAtAll, LowerAll, Lowering)
MOST_HELD = 64  # short calls that run without releasing the lock


class Batch:
    """Consecutive calls as one. `calls` are pairs of the name of a step, for errors, and a call; looks at the flag are
    checked at the end.

    Raises ExecutionError where a call answers with another status than 0, InvalidOperation as the looks do.
    """

    __slots__ = ("_calls", "_looks", "_names", "_run", "_table")

    def __init__(self, calls: Sequence[tuple[str, Any]]) -> None:
        rows = [(name, row) for name, call in calls for row in call.rows]
        self._calls = [call for _, call in calls]  # they own what the rows point to
        self._names = [name for name, _ in rows]
        self._table = table([row for _, row in rows])
        self._looks = tuple(call for call in self._calls if isinstance(call, Look))
        held = len(rows) <= MOST_HELD and all(_is_short(call) for call in self._calls)
        arguments = (ctypes.c_void_p(ctypes.addressof(self._table)), ctypes.c_int64(len(rows)))
        self._run = Routine(_functions()[held], *arguments)

    def __call__(self) -> None:
        answer = self._run()
        if answer:
            raise failed(answer & 0xFFFFFFFF).at(self._names[(answer >> 32) - 1])
        for look in self._looks:
            if look.flags.value:
                look.check()


def _is_short(call: Any) -> bool:
    """Return True if a call takes microseconds at most."""
    return bool(getattr(call, "short", True))


@cache
def _functions() -> tuple[Any, Any]:
    """Return the loop as a function that releases Python's lock, and as one that holds it."""
    types = (ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64)
    return ctypes.CFUNCTYPE(*types)(routine(RUN)), ctypes.PYFUNCTYPE(*types)(routine(RUN))


def batched(order: Order, calls: Sequence[Any], names: Sequence[str]) -> Order:
    """Return an order of calls with runs of native calls as batches; `calls` and `names` are those of the steps."""
    if not readable():
        return order
    result: Order = []
    run: list[tuple[int, Any]] = []

    def end() -> None:
        if len(run) > 1:
            result.append((run[0][0], Batch([(names[i], call) for i, call in run])))
        else:
            result.extend((i, call if call is not calls[i] else None) for i, call in run)
        run.clear()

    for i, inserted in order:
        call = inserted or calls[i]
        if is_native(call):
            run.append((i, call))
        else:
            end()
            result.append((i, inserted))
    end()
    return result


def is_native(call: Any) -> bool:
    """True if a call can be part of a batch."""
    return call.__class__ in NATIVE and bool(call.rows)
