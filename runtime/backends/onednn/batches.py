"""Consecutive calls of the library as one foreign call.

A call that releases Python's lock may wait for the turn of another thread, 5 ms; one that holds it returns to the
interpreter all the same. A batch is a table of calls, which a loop of machine code goes through: the lock is released
once, or not at all where all calls are short.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any, Self

from ...compile.kernel import failed
from ...execution.alarm import readable
from ...ir.interpreter import blaming
from ..machine.call import MachineCall
from ..machine.routines import ROW_BYTES, RUN, Routine, Row, routine, table
from .flag_watch import LookAtRows
from .invalid import Look, LookAtAll, LowerAll, Lowering
from .looked import PLAIN, Looked
from .teams import Order

# Calls whose `rows` are all that they do; a method `met` takes a row, and its answer if that is not 0.
NATIVE = (*PLAIN, MachineCall, Routine, Look, LookAtAll, LowerAll, Lowering, Looked, LookAtRows)
MOST_HELD = 64  # short calls that run without releasing the lock


class Batch(Routine):
    """Consecutive calls as one. `calls` are pairs of the name of a step, for errors, and a call.

    An answer other than 0 is for `judge`, so that a run without one calls nothing of Python's.
    """

    _entries: list[tuple[str, Any, int, int]]  # of each row: the name, the call, the first row of that and its end
    _table: Any

    def __new__(cls, calls: Sequence[tuple[str, Any]]) -> Self:
        entries: list[tuple[str, Any, int, int]] = []
        rows: list[Row] = []
        for name, call in calls:
            begin, end = len(rows), len(rows) + len(call.rows)
            entries += [(name, call, begin, end)] * len(call.rows)
            rows += call.rows
        held = len(rows) <= MOST_HELD and all(_is_short(call) for _, call in calls)
        numbers = table(rows)
        arguments = (ctypes.c_void_p(ctypes.addressof(numbers)), ctypes.c_int64(len(rows)))
        batch = super().__new__(cls, _functions()[held], *arguments)
        batch._entries, batch._table = entries, numbers  # calls own what the rows point to
        return batch

    def judge(self, answer: int) -> None:
        """Raise what an answer means, or let the call that it came from see to it and go on behind that.

        Raises ExecutionError where a call has answered with another status than 0, InvalidOperation as the looks do.
        """
        begin, count = ctypes.addressof(self._table), len(self._entries)
        done = 0
        while answer:
            at, status = done + (answer >> 32) - 1, answer & 0xFFFFFFFF
            name, call, first, done = self._entries[at]
            if not hasattr(call, "met"):
                raise failed(status).at(name)
            with blaming(name):
                call.met(at - first, status)
            answer = self.func(ctypes.c_void_p(begin + done * ROW_BYTES), ctypes.c_int64(count - done))


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
