"""Operations that the engine starts, and what a caller holds of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ..ops.types import Array
from ..runtime.engine import Variable, Work, engine

if TYPE_CHECKING:
    from .store import Ticket


class Later:
    """A ticket that the engine's network threads get from a backend when the operations before it on its key have
    ended; `variable` stands for the key."""

    __slots__ = ("ticket", "work")

    def __init__(self, start: Callable[..., Ticket], args: tuple[Any, ...], variable: Variable, priority: int) -> None:
        self.ticket: Ticket | None = None
        one = engine()
        # Run in turn, operations begin where they are pushed and end where they are waited for: to wait at once for a
        # round in which others come to this key later would be to wait for ever.
        naive = one.mode == "naive"
        push: Callable[..., Work] = one.push if naive else one.push_async
        self.work = push(
            self._begin if naive else self._start,
            writes=(variable,),
            resource="network",
            priority=priority,
            name=variable.name,
            args=(start, args),
        )

    def _begin(self, start: Callable[..., Ticket], args: tuple[Any, ...]) -> None:
        self.ticket = start(*args)

    def _start(
        self, start: Callable[..., Ticket], args: tuple[Any, ...], done: Callable[[BaseException | None], None]
    ) -> None:
        self.ticket = start(*args)
        self.ticket.then(done)

    def wait(self) -> Array:
        if self.ticket is None:
            self.work.wait()  # until it has ended, or failed before it was started
            assert self.ticket is not None
        return self.ticket.wait()


class Handle:
    """Operations under way; `wait` returns when they have ended, with the value of each pull (read-only; see `pull`),
    and raises what they failed with."""

    __slots__ = ("_tickets",)

    def __init__(self, tickets: Sequence[Ticket | Later]) -> None:
        self._tickets = tickets

    def wait(self) -> list[Array]:
        return [ticket.wait() for ticket in self._tickets]
