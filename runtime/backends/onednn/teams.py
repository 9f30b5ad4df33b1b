"""OpenMP's number of threads, set to 1 while small primitives run that read it at run time.

Most primitives that are no products do not keep to the number for which they were made: a rectifier of 128 elements
takes 1.3 µs on two threads, and 0.5 on one.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

from ...compile.program import ProgramStep
from ...execution.alarm import readable
from ..machine.routines import ALONE, TOGETHER, Routine, address_of, routine, row
from .invalid import LookAtAll
from .library import library

Order = list[tuple[int, Callable[[], Any] | None]]  # numbers of steps, each with what stands before it, or None: itself


@cache
def _openmp() -> tuple[int, int] | None:
    """Return the addresses of OpenMP's functions that get and set the number of threads of the calling thread; None if
    there are none, or machine code may not call them."""
    loaded = library()
    if loaded is None or not hasattr(loaded.held, "omp_set_num_threads") or not readable():
        return None
    return address_of(loaded.held.omp_get_max_threads), address_of(loaded.held.omp_set_num_threads)


class Team:
    """The calling thread's number of threads: 1 between `alone` and `together`, then restored."""

    __slots__ = ("_before", "alone", "together")

    def __init__(self) -> None:
        self._before = ctypes.c_int()
        self.alone = self._routine(ALONE)
        self.together = self._routine(TOGETHER)

    def _routine(self, code: str) -> Routine:
        openmp = _openmp()
        if openmp is None:
            return Routine(int)
        arguments = (ctypes.addressof(self._before), *openmp)
        function = ctypes.PYFUNCTYPE(None, *[ctypes.c_void_p] * 3)(routine(code))
        call = Routine(function, *map(ctypes.c_void_p, arguments))
        call.rows = (row(routine(code), *arguments),)
        return call


def alone(step: ProgramStep, call: Any) -> bool | None:
    """Return True if the call of a step reads the number of threads and should see one; None if it does not read it.
    Products that are split among threads do read it: a weight's gradient takes twice its time where it is one."""
    if getattr(call, "asks", False) and call.threads == 1 and _openmp():
        return True
    product = step.choice.implementation.startswith("brg") and getattr(call, "threads", 0) == 1
    fixed = not step.choice.implementation or product
    return None if fixed and not step.bodies and not step.dynamic else False


def placed(order: Order, alone: Callable[[int], bool | None], team: Team) -> Order:
    """The order with what sets the number between the calls: for the fewest changes, and as before at the end."""
    result: Order = []
    now = False
    for i, look in order:
        wanted = alone(i) if look is None else False if isinstance(look, LookAtAll) else None
        if wanted is not None and wanted != now:
            result.append((i, team.alone if wanted else team.together))
            now = wanted
        result.append((i, look))
    return [*result, (result[-1][0], team.together)] if now else result
