"""Operations that the engine starts, and the handles that callers get for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ..ops.errors import MezzoError
from ..ops.types import Array
from ..runtime.engine import Ordered, Variable, Workload, engine

if TYPE_CHECKING:
    from .pace import Pace
    from .ticket import Ticket


class AsyncHandle:
    """A ticket for an operation that the engine starts. Its network threads get it from a backend when earlier
    operations on its key, and those on the engine's arrays among the arguments, have ended. `variable` stands for the
    key, `written` are those of the arrays that it fills."""

    __slots__ = ("ticket", "work")

    def __init__(
        self,
        start: Callable[..., Ticket],
        args: tuple[Any, ...],
        variable: Variable,
        priority: int,
        written: Sequence[Any] = (),
    ) -> None:
        self.ticket: Ticket | None = None
        fills = [x.variable for x in written if isinstance(x, Ordered)]
        reads = [x.variable for given in args if isinstance(given, tuple) for x in given if isinstance(x, Ordered)]
        for fill in fills:
            fill.edition += 1
        one = engine()
        # Run in turn, operations begin where they are pushed and end where they are waited for: to wait at once for a
        # round in which others come to this key later would be to wait for ever.
        naive = one.mode == "naive"
        push: Callable[..., Workload] = one.push if naive else one.push_async
        self.work = push(
            self._begin if naive else self._start,
            reads=[v for v in reads if v not in fills],
            writes=(variable, *fills),
            resource="network",
            priority=priority,
            name=variable.name,
            args=(start, args, bool(fills)) if naive else (start, args),
        )

    def _begin(self, start: Callable[..., Ticket], args: tuple[Any, ...], whole: bool) -> None:
        self.ticket = start(*map(_lying, args))
        if whole:  # nobody will wait for an array that an ended workload has filled
            self.ticket.wait()

    def _start(
        self, start: Callable[..., Ticket], args: tuple[Any, ...], done: Callable[[BaseException | None], None]
    ) -> None:
        self.ticket = start(*map(_lying, args))
        self.ticket.then(done)

    @property
    def late(self) -> float:
        return 0.0 if self.ticket is None else self.ticket.late

    def wait(self) -> Array:
        if self.ticket is None:
            self.work.wait()  # until it has ended, or failed before it was started
            assert self.ticket is not None
        return self.ticket.wait()


def _lying(given: Any) -> Any:
    """Return the arguments for a backend: arrays of the engine are replaced by their memory."""
    if isinstance(given, tuple):
        return tuple([x.lying if isinstance(x, Ordered) else x for x in given])
    return given


class Handle:
    """Operations in flight. `wait` returns when they have ended, with the value of each pull (read-only; see `pull`),
    and raises their errors."""

    __slots__ = ("_tickets", "_wait")

    def __init__(
        self, tickets: Sequence[Ticket | AsyncHandle], wait: Callable[[Ticket | AsyncHandle], Array] | None = None
    ) -> None:
        self._tickets, self._wait = tickets, wait or _wait

    def wait(self) -> list[Array]:
        return [self._wait(ticket) for ticket in self._tickets]

    def drop(self) -> None:
        """Wait until they have ended, well or not: their errors are known."""
        for ticket in self._tickets:
            with suppress(MezzoError):
                (ticket.work if isinstance(ticket, AsyncHandle) else ticket).wait()


def settled(pace: Pace, handles: Sequence[AsyncHandle | None]) -> None:
    """Wait until operations that the engine starts have ended, with all before them on their keys."""
    for handle in handles:
        if handle is not None:
            pace.wait(handle)


def _wait(ticket: Ticket | AsyncHandle) -> Array:
    return ticket.wait()
