"""Level 2 as the group of a host uses it: assigns each key to a member and a connection that speak for the host."""

from __future__ import annotations

from collections.abc import Sequence

from ..ops.errors import MezzoError
from ..ops.types import Array
from .environment import Environment
from .host.upper_tier import Ended
from .host.values import HostValue
from .levels import Levels
from .loop import Loop
from .member import Member
from .protocol import messages as m
from .uplink import Lies, Uplink, bytes_of

# Bytes up to which a worker speaks to servers itself, since one more process costs more than the value: where workers
# of a host are summed, and where there is one alone.
SMALL, ALONE = 64 << 10, 1 << 20


class Link:
    """One member's share of level 2; see `host/above.py`.

    `me` is its number in the group of `members` workers, whose agent has the number behind theirs. Without an agent the
    group is one worker.
    """

    def __init__(
        self, loop: Loop, member: Member, environment: Environment, me: int, members: int, rank: int, role: m.Role
    ) -> None:
        self.loop, self._member, self._members, self.rank = loop, member, members, rank
        levels = Levels.parse(member.welcome.consistency)
        self._apart = len(member.welcome.hosts) > 1
        self._agent, self._newest = levels.sums, not levels.between.sums and not levels.sums
        lane, self._speaks = 0 if role == "agent" else me + 1, role == "agent"
        self.uplink = Uplink(loop, environment, member.welcome.servers, rank, lane, role)

    @property
    def newest(self) -> bool:
        return self._newest

    def leader(self, number: int, nbytes: int) -> int:
        if not self._agent:
            return 0
        return self._members if nbytes > (SMALL if self._members > 1 else ALONE) else number % self._members

    def declare(self, value: HostValue, ended: Ended) -> None:
        self.uplink.declare(value.name, value.stored, ended)

    def lift(self, value: HostValue, given: Array | None, pull: bool, priority: int, ended: Ended) -> None:
        stored = (_value(value.number), 0)
        lies: Lies | None
        if given is None or given is value.stored:
            source = None if given is None else value.data
            lies = stored
        else:
            source, lies = bytes_of(given), ((0, value.lifted), 0)
        if value.packing and self._apart:  # all hosts get what those get to which values travel
            lies = None
        target = value.data if pull else None
        self.uplink.start(value.name, source, target, ended, priority, lies, stored, value.packing)

    def lend(self, member: int, number: int, fd: int, size: int) -> None:
        if self._speaks:
            self.uplink.lend(_value(number) if member < 0 else (member, number), fd, size)

    def forget(self, member: int, number: int) -> None:
        self.uplink.forget((member, number))

    def fetch(self, value: HostValue, rows: Array, out: Array, ended: Ended) -> None:
        self.uplink.fetch(self.uplink.parts(value.name), rows, out, ended)

    def drop_losses(self, collect: bool = False) -> None:
        self.uplink.drop_losses(collect)

    def counts(self) -> tuple[int, int]:
        return self.uplink.sent, self.uplink.received

    def ready(self, fd: int, events: int) -> None:
        self.loop.handle(fd, events)

    def blame(self, ranks: Sequence[int], reason: str) -> None:
        self._member.say(m.Failed(tuple(ranks), reason, "worker"))

    def tick(self) -> None:
        self.loop.tick()

    def close(self, error: MezzoError | None = None) -> None:
        self.uplink.close(error)


def _value(number: int) -> tuple[int, int]:
    """The segment of a value, beside those of members."""
    return (-1, number)
