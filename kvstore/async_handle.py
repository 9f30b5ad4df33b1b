"""Operations that the engine starts, and what a caller holds of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ..ops.types import Array
from ..runtime.engine import Ordered, Variable, Workload, engine

if TYPE_CHECKING:
    from .store import Ticket


class AsyncHandle:
    """A ticket that the engine's network threads get from a backend when the operations before it on its key have
    ended, and those that touch arrays of the engine among what was given; `variable` stands for the key, `written` are
    those of the arrays that it fills."""

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

    def wait(self) -> Array:
        if self.ticket is None:
            self.work.wait()  # until it has ended, or failed before it was started
            assert self.ticket is not None
        return self.ticket.wait()


def _lying(given: Any) -> Any:
    """What a backend is given: the memory of arrays."""
    if isinstance(given, tuple):
        return tuple([x.lying if isinstance(x, Ordered) else x for x in given])
    return given


class Handle:
    """Operations under way; `wait` returns when they have ended, with the value of each pull (read-only; see `pull`),
    and raises what they failed with."""

    __slots__ = ("_tickets",)

    def __init__(self, tickets: Sequence[Ticket | AsyncHandle]) -> None:
        self._tickets = tickets

    def wait(self) -> list[Array]:
        return [ticket.wait() for ticket in self._tickets]
