"""One thread, many sockets and timers: what happens next is decided by what arrives.

A wrapper of `selectors` that the server, the scheduler and the agent run for ever, and a worker runs while it waits.
"""

from __future__ import annotations

import heapq
import itertools
import selectors
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE


class Watched(Protocol):
    """What stands behind a socket of the loop."""

    def readable(self) -> None: ...

    def writable(self) -> None: ...


@dataclass(order=True, slots=True)
class Timer:
    """A call that is due at a time of `time.monotonic`; `cancel` forgets it."""

    due: float
    number: int
    call: Callable[[], None] = field(compare=False)
    cancelled: bool = field(default=False, compare=False)

    def cancel(self) -> None:
        self.cancelled = True


class Loop:
    """Sockets and timers; not for several threads at a time."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._timers: list[Timer] = []
        self._numbers = itertools.count()
        self._idle: list[Callable[[], None]] = []

    def watch(self, sock: socket.socket, watched: Watched, events: int = READ) -> None:
        """Tell `watched` when the socket can be read (or written)."""
        self._selector.register(sock, events, watched)

    def change(self, sock: socket.socket, watched: Watched, events: int) -> None:
        """Wait for other events of a watched socket; none at all is `forget`."""
        self._selector.modify(sock, events, watched)

    def forget(self, sock: socket.socket) -> None:
        """Watch this socket no longer."""
        self._selector.unregister(sock)

    def after(self, seconds: float, call: Callable[[], None]) -> Timer:
        """Call once, that many seconds from now."""
        timer = Timer(time.monotonic() + seconds, next(self._numbers), call)
        heapq.heappush(self._timers, timer)
        return timer

    def when_idle(self, call: Callable[[], None]) -> None:
        """Call once, as soon as a look at the sockets finds nothing else to do."""
        self._idle.append(call)

    def step(self, timeout: float | None = None) -> None:
        """Handle what is there; wait for something, but no longer than `timeout` seconds."""
        if self._timers:
            timeout = self._before(timeout)
        ready = self._selector.select(0 if self._idle else timeout)
        for key, events in ready:
            if events & WRITE:
                key.data.writable()
            if events & READ:
                key.data.readable()
        if not ready and self._idle:
            calls, self._idle = self._idle, []
            for call in calls:
                call()
        while self._timers and (self._timers[0].cancelled or self._timers[0].due <= time.monotonic()):
            timer = heapq.heappop(self._timers)
            if not timer.cancelled:
                timer.call()

    def _before(self, timeout: float | None) -> float:
        left = max(0.0, self._timers[0].due - time.monotonic())
        return left if timeout is None else min(left, timeout)

    def run(self, ended: Callable[[], bool]) -> None:
        """Step until `ended()`."""
        while not ended():
            self.step()

    def fileno(self) -> int:
        """A descriptor that can be read when a socket of the loop is ready: loops may be watched by others."""
        number: int = self._selector.fileno()
        return number

    def close(self) -> None:
        self._selector.close()
        self._timers.clear()
