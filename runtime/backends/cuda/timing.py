"""Autotuning: timings on the device choose among the implementations that libraries offer.

What is timed is a graph of many copies, each behind a write that fills the second-level cache, less the time of these
writes: a launch from Python takes longer than most kernels, and a kernel whose operands are in the cache already is
faster than it will be.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from .driver import cupy
from .faults import lost

TIMED = 8  # ways that are tried
COPIES = 20  # of each in a graph
RUNS = 5  # of a graph
FILLED = 0x11  # a byte of which all types of float make small numbers
NEVER = math.inf  # the time of what does not run

T = TypeVar("T")


def fastest(candidates: Iterable[T], clock: Callable[[T], float], most: int = TIMED) -> tuple[T, float] | None:
    """Return the fastest of the first candidates by `clock`, with its time; None if none of them runs.

    >>> fastest(range(9), lambda n: 9.0 - n, most=3)
    (2, 7.0)
    """
    times = [(candidate, clock(candidate)) for _, candidate in zip(range(most), candidates, strict=False)]
    return min((t for t in times if t[1] < NEVER), key=lambda t: t[1], default=None)


def milliseconds(run: Callable[[], Any]) -> float:
    """Return the time of a run on CuPy's current stream in milliseconds: the shortest of several. What cannot run, for
    want of memory or for any reason of its library, takes for ever."""
    cp = cupy()
    begun, stream = cp.cuda.Event(disable_timing=True), cp.cuda.Stream(non_blocking=True)
    begun.record()
    stream.wait_event(begun)
    try:
        with stream:
            run()  # which loads what is loaded once
            stream.synchronize()
            return _in_graphs(run, stream)
    except Exception as error:  # libraries raise errors of many kinds
        if lost(error):  # nothing that follows would run either
            raise
        return NEVER


def _in_graphs(run: Callable[[], Any], stream: Any) -> float:
    """The time of a run among copies of it; launched one by one if it cannot be captured."""
    flush = _flush()
    try:
        both = _graph([call for _ in range(COPIES) for call in (flush, run)], stream)
    except Exception:
        one_by_one = _shortest(lambda: [run() for _ in range(COPIES)], stream)
        return one_by_one / COPIES
    alone = _graph([flush] * COPIES, stream)
    writes = _shortest(lambda: alone.launch(stream), stream)
    return max(_shortest(lambda: both.launch(stream), stream) - writes, 0.0) / COPIES


def _graph(calls: Sequence[Callable[[], Any]], stream: Any) -> Any:
    """The calls as a graph."""
    stream.begin_capture(cupy().cuda.runtime.streamCaptureModeThreadLocal)
    try:
        for call in calls:
            call()
    finally:
        graph = stream.end_capture()
    graph.upload(stream)
    return graph


def _flush() -> Callable[[], Any]:
    """The call that fills the second-level cache, twice over; nothing if there is no room for that."""
    cp = cupy()
    nbytes = 2 * int(cp.cuda.runtime.getDeviceProperties(cp.cuda.Device().id)["l2CacheSize"])
    try:
        memory = cp.cuda.alloc(max(nbytes, 1))
    except cp.cuda.memory.OutOfMemoryError:
        return lambda: None
    return lambda: memory.memset_async(FILLED, max(nbytes, 1))


def _shortest(launch: Callable[[], Any], stream: Any) -> float:
    """The shortest time of several launches, in milliseconds."""
    cuda = cupy().cuda
    times: list[float] = []
    for _ in range(RUNS):
        start, end = cuda.Event(), cuda.Event()
        start.record(stream)
        launch()
        end.record(stream)
        end.synchronize()
        times.append(float(cuda.get_elapsed_time(start, end)))
    return min(times)


def filled(nbytes: int) -> Any:
    """Memory on the current device, of small numbers. Raises CuPy's OutOfMemoryError if there is not enough."""
    memory = cupy().cuda.alloc(max(nbytes, 1))
    memory.memset_async(FILLED, max(nbytes, 1))
    return memory


def no_room(error: Exception) -> bool:
    """True if an error says that memory is short: what failed may do at another time."""
    return isinstance(error, cupy().cuda.memory.OutOfMemoryError)
