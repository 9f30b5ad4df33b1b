"""The processor's flag for invalid operations, by which a run detects NaN.

IEEE 754 has a sticky flag for operations that make a NaN (the difference of infinities, the root of a negative number),
and x86 raises it too where a maximum, a minimum or an ordered comparison meets one: the only ways in which oneDNN's
kernels turn a NaN into a number. So a run that ends with the flag down has lost none, and asking costs nothing while
it computes. Each thread has a flag of its own; those of OpenMP's workers are read by a few instructions that each of
them runs, since libm's `fetestexcept` knows the calling thread alone.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import numpy as np

from ...compile.kernel import TargetSpec
from ...execution.alarm import raise_alarm
from .library import library

# void look(int *found): the flags of this thread are added to *found, and taken down; answers the one asked for
LOOK = bytes.fromhex(
    "4883ec08"  # sub rsp, 8
    "0fae1c24"  # stmxcsr [rsp]
    "8b0424"  # mov eax, [rsp]
    "832424c0"  # and dword [rsp], ~63: all flags down
    "0fae1424"  # ldmxcsr [rsp]
    "83e001"  # and eax, 1: invalid operation
    "f00907"  # lock or [rdi], eax
    "4883c408"  # add rsp, 8
    "c3"  # ret
)


@cache
def _loaded() -> tuple[int, Any, Any]:
    """The instructions, the function that they are, and the memory that holds them."""
    memory = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    memory.write(LOOK)
    begin = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    return begin, ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(begin), memory


class Look:
    """A call that clears the flag in the calling thread, and raises InvalidOperation if it was set."""

    __slots__ = ("_call", "_found")

    def __init__(self) -> None:
        _, function, _ = _loaded()
        self._found = ctypes.c_int()
        self._call: Callable[[], object] = partial(function, ctypes.c_void_p(ctypes.addressof(self._found)))

    def __call__(self) -> None:
        self._call()
        if self._found.value:
            self._found.value = 0
            raise_alarm()


class LookAtAll(Look):
    """The same in all OpenMP workers of the calling thread, of which primitives use `threads`, or OpenMP's default if
    no number is given: some check the flag when they run."""

    __slots__ = ()

    def __init__(self, threads: int) -> None:
        super().__init__()
        begin, _, _ = _loaded()
        parallel, most = _openmp()
        instructions, place = ctypes.c_void_p(begin), ctypes.c_void_p(ctypes.addressof(self._found))
        self._call = lambda: parallel(instructions, place, max(threads, most()), 0)


class LowerAll(LookAtAll):
    """A call that clears the flag in all of them, without raising."""

    __slots__ = ()

    def __call__(self) -> None:
        self._call()
        self._found.value = 0


def lowered() -> None:
    """Take the flag of the calling thread down."""
    function, place = _lowering()
    function(place)


@contextmanager
def flag_kept() -> Iterator[None]:
    """A context that leaves the flag of the calling thread as it was, or raised: NumPy takes it down."""
    function, place = _lowering()
    raised = function(place)
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


@cache
def _lowering() -> tuple[Any, ctypes.c_void_p]:
    found = ctypes.c_int()
    place = ctypes.c_void_p(ctypes.addressof(found))
    place.kept = found  # type: ignore[attr-defined]
    return _loaded()[1], place


@cache
def _openmp() -> tuple[Any, Any]:
    """Return OpenMP's functions that run a function on each thread of a team, and that return the size of a team."""
    found = library()
    assert found is not None
    parallel, most = found.handle.GOMP_parallel, found.held.omp_get_max_threads
    parallel.restype = None
    return parallel, most
