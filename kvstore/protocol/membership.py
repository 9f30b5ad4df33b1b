"""The scheduler's machine: who takes part, with which rank, where; barriers; who is missing, and who died.

Events name a connection by a number of the driver's own (`peer`). Workers and servers say `Hello`; when as many as were
declared are there, all get their `Welcome`. A worker or server without a hint (`Hello.rank`) gets the lowest free rank:
hosts in the order of their names, on a host in order of arrival. An agent says `Hello` too; its rank is the place of
its host in `Welcome.hosts`, one agent per host.
"""

from __future__ import annotations

from dataclasses import dataclass

from .messages import Failed, Message


@dataclass(frozen=True, slots=True)
class Said:
    """A message has come: Hello, Barrier, Heartbeat, Failed, Stats or Bye."""

    peer: int
    message: Message


@dataclass(frozen=True, slots=True)
class Closed:
    """A connection is closed; without a Bye before, its process is dead."""

    peer: int
    reason: str = "its connection was closed"


@dataclass(frozen=True, slots=True)
class Ticked:
    """Time has passed; seconds of a clock that only this event tells. A tick a second is enough."""

    now: float


Event = Said | Closed | Ticked


@dataclass(frozen=True, slots=True)
class Tell:
    """Send this message."""

    peer: int
    message: Message


@dataclass(frozen=True, slots=True)
class Close:
    """Close the connection when what was sent before has left."""

    peer: int


@dataclass(frozen=True, slots=True)
class End:
    """The job has ended, well or with the first failure; everybody has been told."""

    failure: Failed | None = None


Instruction = Tell | Close | End


class Membership:
    """The machine of the scheduler, for a job of so many workers and servers.

    `deadline`: seconds for all to come, and for a barrier. `timeout`: seconds without any message after which a process
    is taken for dead (0: never; a closed connection always is).
    """

    def __init__(self, workers: int, servers: int = 0, deadline: float = 120.0, timeout: float = 0.0) -> None:
        raise NotImplementedError

    def handle(self, event: Event) -> tuple[Instruction, ...]:
        """What to do about what happened."""
        raise NotImplementedError
