"""Operations in flight, as backends give them out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from ..ops.types import Array


class Ticket(Protocol):
    """One operation in flight on a backend."""

    def wait(self) -> Array:
        """Return when it has ended, and raise what it failed with; messages of all keys are handled meanwhile.

        Of a pull or a pushpull the value as a read-only array, which is valid until this worker's next push of the key;
        of a push, which has ended when the value has been taken, the array of no elements.
        """
        ...

    @property
    def late(self) -> float:
        """Time of `time.monotonic` at which the last worker of this host has begun the round that `wait` waited for; 0
        where it waited for none."""
        ...

    def then(self, call: Callable[[BaseException | None], None]) -> None:
        """Call once with the error or None when it has ended, from whatever thread that is (or now)."""
        ...


class Ended:
    """The ticket of an operation that ended at once."""

    __slots__ = ("value",)
    late = 0.0

    def __init__(self, value: Array) -> None:
        self.value = value

    def wait(self) -> Array:
        return self.value

    def then(self, call: Callable[[BaseException | None], None]) -> None:
        call(None)


ENDED = Ended(np.empty(0))
