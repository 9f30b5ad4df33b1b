"""The interface of the level above a host, as the group of its workers uses it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from ...ops.errors import MezzoError
from ...ops.types import Array
from ..loop import Loop
from .values import HostValue

Ended = Callable[[MezzoError | None], None]


class UpperTier(Protocol):
    """The level above. It is called under the lock of the group, and calls `ended` under it: in `ready` and `tick`, or
    at once. Its descriptors are in `loop`, which the group's mesh waits for."""

    @property
    def loop(self) -> Loop: ...

    @property
    def newest(self) -> bool:
        """True if a pull asks the level above for the current value, and a push need not wait for a value."""
        ...

    def leader(self, number: int, nbytes: int) -> int:
        """The member that speaks for the group about a key."""
        ...

    def declare(self, value: HostValue, ended: Ended) -> None:
        """Declare a key; its value is given by the first host of all, and has arrived in the others at the end."""
        ...

    def lift(self, value: HostValue, given: Array | None, pull: bool, priority: int, ended: Ended) -> None:
        """Push these bytes (the stored sum, or an operand where nobody else has one), receive the value in the place of
        the sum, or both."""
        ...

    def fetch(self, value: HostValue, rows: Array, out: Array, ended: Ended) -> None:
        """Receive some rows of the value as it is now. `rows` are int64, `out` is bytes, a row for each of them."""
        ...

    def lend(self, member: int, number: int, fd: int, size: int) -> None:
        """A segment of a member is here, or (-1) that of a value by its number: `fd` may be duplicated now."""
        ...

    def forget(self, member: int, number: int) -> None:
        """A segment of a member is no longer in use."""
        ...

    def drop_losses(self, collect: bool = False) -> None:
        """Forget what the schemes of values have lost, or add it to what is lifted next. No operation is under way."""
        ...

    def counts(self) -> tuple[int, int]:
        """Bytes of values that were sent and received."""
        ...

    def ready(self, fd: int, events: int) -> None:
        """Something has come for a descriptor that is not the group's: handle it, without waiting."""
        ...

    def blame(self, ranks: Sequence[int], reason: str) -> None:
        """Tell the job that these workers of the host have not come."""
        ...

    def tick(self) -> None:
        """Do what is due by the clock."""
        ...
