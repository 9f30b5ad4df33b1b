"""Time by stage of making a batch: read, decode, augment, batch. Each second counts once, for the innermost stage."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

STAGES = ("read", "decode", "augment", "batch")


class _Clock(threading.local):
    """The times of the batch that this thread makes, and the stage that it is in."""

    times: dict[str, float] | None = None
    stage = ""
    since = 0.0


_NOW = _Clock()


@contextmanager
def stage(name: str) -> Iterator[None]:
    """Count the time of the block for a stage; without a clock it costs next to nothing."""
    times = _NOW.times
    if times is None:
        yield
        return
    now, outer = perf_counter(), _NOW.stage
    if outer:
        times[outer] += now - _NOW.since
    _NOW.stage, _NOW.since = name, now
    try:
        yield
    finally:
        now = perf_counter()
        times[name] += now - _NOW.since
        _NOW.stage, _NOW.since = outer, now


@contextmanager
def clocked() -> Iterator[dict[str, float]]:
    """The seconds of each stage in this block, in this thread.

    >>> with clocked() as times, stage("read"), stage("decode"):
    ...     pass
    >>> sorted(times)
    ['augment', 'batch', 'decode', 'read']
    """
    before, _NOW.times = _NOW.times, dict.fromkeys(STAGES, 0.0)
    try:
        yield _NOW.times
    finally:
        _NOW.times = before
