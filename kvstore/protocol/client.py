"""The machine of one who speaks to servers (an agent, or a worker): what is outstanding where, and what goes next.

A key lies on one server or is split over all (`keys.place`); the machine alone knows. Offsets in its instructions are
those of the whole array. Operations on one key follow each other; those on several keys run at a time, those of higher
priority first, frame by frame. What was not answered when a connection was lost is said again on the next one; the
server counts it once.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...ops.errors import MezzoError
from .messages import Message, Push

# ---------------------------------------------------------------------------------------------------- what happened


@dataclass(frozen=True, slots=True)
class Connected:
    """A connection to this server is open and both have said Hello and Welcome."""

    server: int
    incarnation: int = 0


@dataclass(frozen=True, slots=True)
class Lost:
    """The connection to this server is closed."""

    server: int
    reason: str = "its connection was closed"


@dataclass(frozen=True, slots=True)
class Declare:
    """A key is to be declared; ends with `Finish` when the initial value has been received (or, from the first rank,
    taken). `step` is where a worker that was started again goes on."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    step: int = 0


@dataclass(frozen=True, slots=True)
class Start:
    """A push, a pull or both of a declared key."""

    name: str
    push: bool = True
    pull: bool = True
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Sent:
    """The payload of the last `Transmit` to this server has left (the kernel has it): the next may go."""

    server: int


@dataclass(frozen=True, slots=True)
class Heard:
    """A message of a server: Init, Value (its header; `length` bytes of payload follow), Done, Refused or Failed."""

    server: int
    message: Message
    length: int = 0


@dataclass(frozen=True, slots=True)
class Received:
    """The payload of the last `Receive` from this server is in memory."""

    server: int


@dataclass(frozen=True, slots=True)
class Ticked:
    """Time has passed; seconds of a clock that only this event tells."""

    now: float


Event = Connected | Lost | Declare | Start | Sent | Heard | Received | Ticked

# ------------------------------------------------------------------------------------------------------- what to do


@dataclass(frozen=True, slots=True)
class Tell:
    """Send a message without payload."""

    server: int
    message: Message


@dataclass(frozen=True, slots=True)
class Transmit:
    """Send this message and the bytes [lo, hi) of what is pushed to the key; then say `Sent`. There is never more than
    one per server under way."""

    server: int
    message: Push
    name: str
    lo: int
    hi: int


@dataclass(frozen=True, slots=True)
class Receive:
    """Read the payload of the `Value` just heard into the bytes [lo, hi) of the key's array; then say `Received`.

    It may be the memory of what is pushed: bytes that are answered have been counted, and are not read again.
    """

    server: int
    name: str
    lo: int
    hi: int


@dataclass(frozen=True, slots=True)
class Finish:
    """The oldest operation on this key has ended. `step` counts the pushes to it so far."""

    name: str
    step: int
    error: MezzoError | None = None


@dataclass(frozen=True, slots=True)
class Fail:
    """Nothing can go on; every operation has ended with this error."""

    error: MezzoError


Instruction = Tell | Transmit | Receive | Finish | Fail


class Client:
    """The machine of one (rank, lane). `first`: whether this rank gives initial values.

    `deadline`: seconds without any answer after which an operation fails. `grace`: seconds for which a server may be
    away; with 0 a lost connection is a failure at once.
    """

    def __init__(
        self,
        rank: int,
        servers: int,
        *,
        first: bool | None = None,
        deadline: float = 120.0,
        grace: float = 0.0,
    ) -> None:
        raise NotImplementedError

    def handle(self, event: Event) -> tuple[Instruction, ...]:
        """What to do about what happened."""
        raise NotImplementedError
