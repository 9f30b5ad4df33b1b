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
from .invalid import LookAtAll
from .library import library

Order = list[tuple[int, Callable[[], Any] | None]]  # numbers of steps, each with what stands before it, or None: itself


@cache
def _openmp() -> tuple[Any, Any] | None:
    """Return OpenMP's functions that get and set the number of threads of the calling thread; None if there are
    none."""
    found = library()
    held = None if found is None else found.held
    if held is None or not hasattr(held, "omp_set_num_threads"):
        return None
    tells = ctypes.PYFUNCTYPE(ctypes.c_int)(("omp_get_max_threads", held))
    return tells, ctypes.PYFUNCTYPE(None, ctypes.c_int)(("omp_set_num_threads", held))


class Team:
    """The calling thread's number of threads: 1 between `alone` and `together`, then restored."""

    __slots__ = ("_before", "_openmp")

    def __init__(self) -> None:
        self._openmp: tuple[Any, Any] = _openmp() or (int, int)
        self._before = 0

    def alone(self) -> None:
        """Let what asks run in one thread."""
        tells, becomes = self._openmp
        self._before = tells()
        becomes(1)

    def together(self) -> None:
        """Let it run in as many as before."""
        if self._before:
            self._openmp[1](self._before)
            self._before = 0


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
    made: Order = []
    now = False
    for i, look in order:
        wanted = alone(i) if look is None else False if isinstance(look, LookAtAll) else None
        if wanted is not None and wanted != now:
            made.append((i, team.alone if wanted else team.together))
            now = wanted
        made.append((i, look))
    return [*made, (made[-1][0], team.together)] if now else made
