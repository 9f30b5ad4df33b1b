"""The clock of a worker: seconds of its steps by what it did in them, and their way to the scheduler and back.

It reads clocks where the worker waits anyway, and sends one small message a second (`protocol/pace.py` says what
becomes of them).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Lock
from typing import TYPE_CHECKING

from ..ops.types import Array
from ..runtime.engine.waited import WAITED
from ..runtime.environment import switch
from .member import Member
from .protocol import messages as m
from .protocol.pace import EVERY, Counts

if TYPE_CHECKING:
    from .async_handle import AsyncHandle
    from .ticket import Ticket
    from .watching import Watch

STEPS = "MEZZO_KV_STEPS"  # variable of a launcher
LEAST = 20e-6  # seconds: who has waited for less has not waited for somebody
Drive = Callable[[Callable[[], bool], str, Callable[[], None]], None]  # what is ready, its name, how it begins


class Enough(SystemExit):
    """The end of a worker that has made the steps it was asked for; its store is closed."""


class Pace:
    """Sums since the first step that was told of. With MEZZO_KV_STEPS the worker ends after so many steps."""

    __slots__ = ("_begun", "_data", "_due", "_ended", "_most", "here", "loss", "seconds", "steps", "waited",
                 "watch")  # fmt: skip

    def __init__(self) -> None:
        self._most = int(switch(STEPS) or 0)
        self.steps, self.seconds, self.waited, self.here, self.loss = 0, 0.0, 0.0, 0.0, 0.0
        self._begun = self._data = self._due = 0.0
        self._ended = (0.0, 0.0)  # when the last step ended, and the waits for data until then
        self.watch: Watch | None = None  # of the store

    def wait(self, ticket: Ticket | AsyncHandle) -> Array:
        """Wait for an operation, and count for how long, and how much of that others of this host had not begun."""
        began = time.monotonic()
        found = ticket.wait()
        ended = time.monotonic()
        self.waited += ended - began
        if ended - began > LEAST and (late := ticket.late) > began:
            self.here += min(late, ended) - began
        if self.watch is not None and ended - began > LEAST:
            self.watch.waited(ended - began)
        return found

    def wait_for_others(self, wait: Callable[[], None]) -> None:
        """Wait for others where nothing moves, and count for how long."""
        began = time.monotonic()
        wait()
        took = time.monotonic() - began
        self.waited += took
        self.here += took
        if self.watch is not None:
            self.watch.waited(took)

    def stepped(self, loss: float | None) -> Counts | None:
        """A step has ended: the sums to report, where that is due. The first step begins the count."""
        now = time.monotonic()
        if not self._begun:
            self._begun, self._data = now, WAITED.seconds
            self.waited = self.here = 0.0
        else:
            self.steps, self.seconds = self.steps + 1, now - self._begun
            if self.watch is not None:
                self.watch.stepped(now - self._ended[0], WAITED.seconds - self._ended[1], loss)
        self._ended = now, WAITED.seconds
        if loss is not None:
            self.loss = loss
        if now < self._due:
            return None
        self._due = now + EVERY
        return self.counts(loss is not None)

    def end_if_enough(self, close: Callable[[], None]) -> None:
        """End the worker after the steps that it was asked for. Raises Enough then, behind `close`."""
        if self._most and self.steps >= self._most:
            close()
            raise Enough(0)

    def counts(self, loss: bool) -> dict[str, float]:
        """The sums by name."""
        made = {"steps": float(self.steps), "seconds": self.seconds, "waited": self.waited, "here": self.here}
        made["data"] = WAITED.seconds - self._data
        return {**made, "loss": self.loss} if loss else made


class Reporter:
    """The way of a worker's reports to the scheduler, and of the scheduler's view of the job back. `drive` waits for an
    answer, by default in a loop that nothing else steps."""

    def __init__(self, member: Member, drive: Drive | None = None) -> None:
        self._member, self._drive, self._lock = member, drive, Lock()

    def _driven(self, ready: Callable[[], bool], what: str, begin: Callable[[], None]) -> None:
        if self._drive is not None:
            self._drive(ready, what, begin)
            return
        with self._lock:
            begin()
            self._member.wait(ready, self._member.deadline, what)

    def report(self, counts: Counts) -> None:
        report = m.Report(self._member.welcome.rank, counts)
        self._driven(lambda: True, "a report", lambda: self._member.say(report))

    def overview(self) -> m.Overview:
        """The scheduler's view of the job. Raises DeadlineError, PeerError."""
        asked: list[Callable[[], m.Overview | None]] = []

        def begin() -> None:
            asked.append(self._member.overview())

        self._driven(lambda: asked[0]() is not None, "the scheduler's view of the job", begin)
        found = asked[0]()
        assert found is not None
        return found
