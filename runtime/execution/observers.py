"""Observers of running programs. A session asks `PROFILING.observer` with each run; if it is None, that is the only
cost. tools/profiler.py sets it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Profiling:
    """The observer of the steps of every program (see `runtime.instance.Observer`); None if there is none."""

    observer: Callable[..., Any] | None = None


PROFILING = Profiling()
