"""The event loop: one thread for many sockets and timers.

The server, the scheduler and the agent run it for ever, a worker while it waits. Others may have descriptors of their
own in `epoll` (the mesh of a host has), so that one call of the kernel waits for all of them.
"""

from __future__ import annotations

import heapq
import itertools
import select
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

READ, WRITE = select.EPOLLIN, select.EPOLLOUT


class Watched(Protocol):
    """Handler of a socket in the loop."""

    def readable(self) -> None: ...

    def writable(self) -> None: ...


@dataclass(order=True, slots=True)
class Timer:
    """A call that is due at a time of `time.monotonic`; `cancel` removes it."""

    due: float
    number: int
    call: Callable[[], None] = field(compare=False)
    cancelled: bool = field(default=False, compare=False)

    def cancel(self) -> None:
        self.cancelled = True


class Loop:
    """The event loop of sockets and timers; not thread-safe."""

    def __init__(self) -> None:
        self.epoll = select.epoll()
        self._watched: dict[int, Watched] = {}
        self._timers: list[Timer] = []
        self._numbers = itertools.count()
        self._idle: list[Callable[[], None]] = []

    def watch(self, sock: socket.socket, watched: Watched, events: int = READ) -> None:
        """Tell `watched` when the socket can be read (or written)."""
        self._watched[sock.fileno()] = watched
        self.epoll.register(sock, events)

    def change(self, sock: socket.socket, events: int) -> None:
        """Wait for other events of a watched socket; none at all is `forget`."""
        self.epoll.modify(sock, events)

    def forget(self, sock: socket.socket) -> None:
        """Watch this socket no longer."""
        del self._watched[sock.fileno()]
        self.epoll.unregister(sock)

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
        ready = self.epoll.poll(0 if self._idle else timeout)
        for fd, events in ready:
            self.handle(fd, events)
        if not ready and self._idle:
            calls, self._idle = self._idle, []
            for call in calls:
                call()
        if self._timers:
            self.tick()

    def handle(self, fd: int, events: int) -> None:
        """Tell who watches this descriptor what `epoll` has said of it."""
        watched = self._watched.get(fd)
        if watched is None:
            return
        if events == READ:
            watched.readable()
            return
        if events & ~READ:  # an error or the end may be told by either
            watched.writable()
        if events & ~WRITE:
            watched.readable()

    def tick(self) -> None:
        """Make the calls that are due; not those that become so meanwhile, or calls that take long are all it does."""
        now = time.monotonic()
        while self._timers and (self._timers[0].cancelled or self._timers[0].due <= now):
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

    def close(self) -> None:
        self.epoll.close()
        self._watched.clear()
        self._timers.clear()
