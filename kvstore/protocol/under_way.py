"""State of what a client of the servers has under way: operations on keys, by parts, and requests."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ...ops.errors import MezzoError
from .keys import Shard
from .messages import Message

if TYPE_CHECKING:
    from .client import Declare, Start


@dataclass(slots=True)
class KeyPart:
    """The part of a key that one server holds, and the progress of the current operation there."""

    name: str
    server: int
    shard: Shard
    number: int = 0  # the server's, once it has answered Init
    step: int = 0  # pushes to it, the present one included
    push: bool = False
    value: bool = False
    priority: int = 0
    order: int = 0
    sent: int = -1  # bytes that have gone or go; -1: not even the first frame, which may be empty
    got: int = 0  # bytes of the value
    answered: bool = True
    held: bool = False  # by others, as the server says
    nbytes: int = field(init=False)

    def __post_init__(self) -> None:
        self.nbytes = self.shard.nbytes

    @property
    def ended(self) -> bool:
        return self.answered and not (self.push and self.sent < self.nbytes)


@dataclass(slots=True)
class AskedKey:
    """One key: its parts by server, and operations in the order of their calls; the first is in flight."""

    declare: Declare
    parts: dict[int, KeyPart]
    operations: deque[Declare | Start]
    steps: int = 0
    error: MezzoError | None = None
    stirred: bool = True  # since the last tick
    since: float | None = None


@dataclass(slots=True)
class Requested:
    number: int
    message: Message
    answers: dict[int, Message] = field(default_factory=dict[int, Message])
    since: float | None = None  # the first tick that saw it
    error: MezzoError | None = None


@dataclass(slots=True)
class Contact:
    """One server: the answers it owes, in order, and the messages to send to it."""

    number: int
    frame: int  # bytes
    connected: bool = False
    incarnation: int | None = None
    lost: str = ""
    since: float | None = None
    sending: tuple[KeyPart, int] | None = None  # whose payload is on its way, and its end
    receiving: KeyPart | None = None
    asked: deque[KeyPart | Requested] = field(default_factory=deque["KeyPart | Requested"])
    ready: list[tuple[int, int, KeyPart]] = field(default_factory=list[tuple[int, int, KeyPart]])  # a heap
    parts: dict[int, KeyPart] = field(default_factory=dict[int, KeyPart])  # by the server's number
