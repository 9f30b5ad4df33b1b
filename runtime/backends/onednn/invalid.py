"""The processor's flag for invalid operations, by which a run detects NaN.

IEEE 754 has a sticky flag for operations that make a NaN (the difference of infinities, the root of a negative number),
and x86 raises it too where a maximum, a minimum or an ordered comparison meets one: the only ways in which oneDNN's
kernels turn a NaN into a number. So a run that ends with the flag down has lost none, and asking costs nothing while
it computes. Each thread has a flag of its own; those of OpenMP's workers are read by a few instructions that each of
them runs, since libm's `fetestexcept` knows the calling thread alone.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import numpy as np

from ...compile.kernel import TargetSpec
from ...execution.alarm import raise_alarm
from ..machine.routines import EVERYWHERE, LOOK, TELL, Row, address_of, routine, row
from .library import library


@cache
def _look() -> Any:
    return ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(routine(LOOK))


class Look:
    """A call that clears the flag in the calling thread, and raises InvalidOperation if it was set: `rows` do the one
    and answer with the flag, `check` does the other."""

    __slots__ = ("_call", "flags", "rows")

    def __init__(self) -> None:
        self.flags = ctypes.c_int()
        place = ctypes.addressof(self.flags)
        self._call: Callable[[], object] = partial(_look(), ctypes.c_void_p(place))
        self.rows: tuple[Row, ...] = (row(routine(LOOK), place, mask=1),)

    def __call__(self) -> None:
        self._call()
        self.check()

    def met(self, number: int, status: int) -> None:
        """`check`, whichever row has answered."""
        self.check()

    def check(self) -> None:
        """Raise InvalidOperation if the flag was set when it was looked at."""
        if self.flags.value:
            self.flags.value = 0
            raise_alarm()


class LookAtAll(Look):
    """The same in all OpenMP workers of the calling thread, of which primitives use `threads`, or OpenMP's default if
    no number is given: some check the flag when they run."""

    __slots__ = ()

    def __init__(self, threads: int) -> None:
        super().__init__()
        place = ctypes.addressof(self.flags)
        arguments = (place, threads, *_openmp())
        function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
        self._call = partial(function(routine(EVERYWHERE)), *arguments)
        self.rows = (row(routine(EVERYWHERE), *arguments), row(routine(TELL), place, mask=1))


class LowerAll(LookAtAll):
    """A call that clears the flag in all of them, without raising."""

    __slots__ = ()

    def __init__(self, threads: int) -> None:
        super().__init__(threads)
        self.rows = self.rows[:1]

    def check(self) -> None:
        self.flags.value = 0


class Lowering:
    """A call that takes the flag of the calling thread down."""

    __slots__ = ()

    def __call__(self) -> None:
        self.raised()

    def raised(self) -> bool:
        """Take it down, and return whether it was up."""
        function, place = _lowering()
        return bool(function(place))

    @property
    def rows(self) -> tuple[Row, ...]:
        """The same for `RUN`."""
        return (row(routine(LOOK), _lowering()[1].value or 0),)


lowered = Lowering()


@contextmanager
def flag_kept() -> Iterator[None]:
    """A context that leaves the flag of the calling thread as it was, or raised: NumPy takes it down."""
    raised = lowered.raised()
    yield
    if raised:
        with np.errstate(invalid="ignore"):
            np.subtract(np.inf, np.inf)


def keeping_flag(compute: Callable[[], Any], target: TargetSpec) -> Callable[[], Any]:
    """Return a computation of NumPy's that stands between primitives, as one that leaves the flag as it was, or raised,
    where programs for this target watch it."""
    if target.nan != "watched":
        return compute

    def kept() -> Any:
        with flag_kept():
            return compute()

    return kept


_MAKING = threading.Lock()  # the address of one flag word is in all tables: there is one


def _lowering() -> tuple[Any, ctypes.c_void_p]:
    with _MAKING:
        return _flag_word()


@cache
def _flag_word() -> tuple[Any, ctypes.c_void_p]:
    flags = ctypes.c_int()
    place = ctypes.c_void_p(ctypes.addressof(flags))
    place.kept = flags  # type: ignore[attr-defined]
    return _look(), place


@cache
def _openmp() -> tuple[int, int]:
    """Return the addresses of OpenMP's functions that return the size of a team, and that run a function on each thread
    of one."""
    loaded = library()
    assert loaded is not None
    return address_of(loaded.held.omp_get_max_threads), address_of(loaded.held.GOMP_parallel)
