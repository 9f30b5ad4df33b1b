"""Who looks on while programs run. A session asks `PROFILING.observer` with each run, and pays for an answer of None
with the look alone; tools/profiler.py is who answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Profiling:
    """The one who is told of the steps of every program (see `runtime.instance.Observer`); None for nobody."""

    observer: Callable[..., Any] | None = None


PROFILING = Profiling()
