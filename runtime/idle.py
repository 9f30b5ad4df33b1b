"""Cleanup on idle threads of the engine: libraries release what they keep for each thread that calls them.

OpenMP keeps a team of threads for each thread that has run something on several processors. Where there are more of
them than processors, it lets none wait awake any more, and every step of every other thread pays for waking its team.
"""

from __future__ import annotations

from collections.abc import Callable

AFTER = 0.05  # seconds
CALLS: list[Callable[[], object]] = []  # libraries append to it when they are loaded
