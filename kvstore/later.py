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
        if one.mode == "naive":
            self.work: Work = one.push(
                self._run, writes=(variable,), resource="network", name=variable.name, args=(start, args)
            )
        else:
            self.work = one.push_async(
                self._start,
                writes=(variable,),
                resource="network",
                priority=priority,
                name=variable.name,
                args=(start, args),
            )

    def _run(self, start: Callable[..., Ticket], args: tuple[Any, ...]) -> None:
        self.ticket = start(*args)
        self.ticket.wait()

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
