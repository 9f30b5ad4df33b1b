"""Autotuning: timings on the device choose among the implementations that libraries offer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from .driver import cupy

TIMED = 8  # ways that are tried
RUNS = 5  # of each, after one that is not counted
FILLED = 0x11  # a byte of which all types of float make small numbers

T = TypeVar("T")


def fastest(candidates: Iterable[T], clock: Callable[[T], float], most: int = TIMED) -> tuple[T, float] | None:
    """Return the fastest of the first candidates by `clock`, with its time; None if there are none.

    >>> fastest(range(9), lambda n: 9.0 - n, most=3)
    (2, 7.0)
    """
    times = [(candidate, clock(candidate)) for _, candidate in zip(range(most), candidates, strict=False)]
    return min(times, key=lambda t: t[1], default=None)


def milliseconds(run: Callable[[], Any]) -> float:
    """Return the time of a run on CuPy's current stream in milliseconds: the shortest of several."""
    cp = cupy()
    run()
    times: list[float] = []
    for _ in range(RUNS):
        start, end = cp.cuda.Event(), cp.cuda.Event()
        start.record()
        run()
        end.record()
        end.synchronize()
        times.append(float(cp.cuda.get_elapsed_time(start, end)))
    return min(times)


def filled(nbytes: int) -> Any:
    """Memory on the current device, of small numbers."""
    memory = cupy().cuda.alloc(max(nbytes, 1))
    memory.memset(FILLED, max(nbytes, 1))
    return memory
