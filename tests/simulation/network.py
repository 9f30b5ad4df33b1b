"""Connections between processes: streams of messages in order, which are late, cut, or held up between machines."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from .world import Process, World


class Parcel(NamedTuple):
    """A message on its way, or the end of the stream: `reason` says why."""

    head: bytes
    payload: bytes = b""
    reason: str = ""

    @property
    def size(self) -> int:
        return len(self.head) + len(self.payload)


CLOSED, RESET, LOST = "it closed the connection", "Connection reset by peer", "Connection timed out"
GIVE_UP = 15.0  # seconds after which the kernel gives up a connection on which nothing gets through: Linux takes 15 min


class End:
    """One end of a connection, as a socket."""

    def __init__(self, network: Network, process: Process, number: int) -> None:
        self.network, self.process, self.number = network, process, number
        self.other: End
        self.got: deque[Parcel] = deque()  # arrived, and not read
        self.flying = 0  # bytes that were sent and that the other end has not read
        self.due = 0.0  # when the last of them arrive
        self.closed = self.finished = self.cut = False
        self.stirred: Callable[[], None] = _nothing  # something has arrived, or there is room again
        process.closings.append(self.close)

    def fileno(self) -> int:
        return self.number

    def getpeername(self) -> tuple[str, int]:
        return (self.other.process.machine, self.other.number)

    def send(self, head: bytes, payload: bytes = b"") -> None:
        if not (self.closed or self.finished or self.process.dead):
            parcel = Parcel(head, payload)
            self.flying += parcel.size
            self._carry(parcel)

    def finish(self) -> None:
        """Send no more."""
        if not (self.closed or self.finished):
            self.finished = True
            self._carry(Parcel(b"", b"", CLOSED))

    def close(self) -> None:
        """Close, as the kernel does: what has not been read is lost, and the other end is told so."""
        if self.closed:
            return
        if self.got and not self.got[0].reason:
            self._carry(Parcel(b"", b"", RESET))
        else:
            self.finish()
        self.closed = True
        self.got.clear()

    def read(self) -> Parcel:
        """The next message that has arrived."""
        parcel = self.got.popleft()
        self.other.flying -= parcel.size
        if not self.other.closed:
            self.other.stirred()
        return parcel

    def _carry(self, parcel: Parcel) -> None:
        world = self.network.world
        self.due = max(self.due, world.now + self.network.delay(self))
        world.after(self.due - world.now, partial(self.network.arrive, self, parcel))

    def take(self, parcel: Parcel) -> None:
        """A message of the other end has arrived here."""
        if self.closed:
            if not parcel.reason and not self.other.closed:
                self._carry(Parcel(b"", b"", RESET))
            return
        if parcel.reason == RESET:
            self.got.clear()
        self.got.append(parcel)
        self.stirred()


class Listener:
    """A process that can be called at an address."""

    def __init__(self, network: Network, process: Process, address: str) -> None:
        self.network, self.process, self.address = network, process, address
        self.number = network.world.number()
        self.calls: deque[Call] = deque()
        self.stirred: Callable[[], None] = _nothing
        process.closings.append(self.close)

    def fileno(self) -> int:
        return self.number

    def getsockname(self) -> tuple[str, int]:
        host, _, port = self.address.rpartition(":")
        return host, int(port)

    def close(self) -> None:
        self.network.listeners.pop(self.address, None)
        for call in self.calls:
            call.refuse()
        self.calls.clear()

    def accept(self) -> End:
        """The connection of the oldest call, at this end."""
        call = self.calls.popleft()
        mine, theirs = self.network.pair(self.process, call.process)
        call.end = theirs
        self.network.world.after(self.network.delay(mine), call.process.poke)
        return mine


class Call:
    """A process that calls another one."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.end: End | None = None
        self.refused = False

    def refuse(self) -> None:
        self.refused = True
        self.process.poke()


class Network:
    """All connections. `latency` is the usual delay in seconds; a few messages take `tail` times as long."""

    def __init__(self, world: World, latency: float, tail: float) -> None:
        self.world, self.latency, self.tail = world, latency, tail
        self.listeners: dict[str, Listener] = {}
        self.pairs: list[tuple[End, End]] = []
        self._parted: frozenset[str] = frozenset()  # machines that the others cannot reach
        self._held: deque[tuple[End, Parcel]] = deque()

    def listen(self, process: Process, address: str) -> Listener:
        if address.endswith(":0"):
            address = f"{address[:-2]}:{self.world.number() + 10_000}"
        made = self.listeners[address] = Listener(self, process, address)
        return made

    def pair(self, one: Process, two: Process) -> tuple[End, End]:
        a, b = End(self, one, self.world.number()), End(self, two, self.world.number())
        a.other, b.other = b, a
        self.pairs.append((a, b))
        return a, b

    def delay(self, end: End) -> float:
        chance = self.world.chance.random
        return self.latency * (0.5 + chance()) * (self.tail if chance() < 0.05 else 1.0)

    # --- what goes wrong

    def parted(self, one: str, two: str) -> bool:
        return (one in self._parted) != (two in self._parted)

    def part(self, machines: frozenset[str]) -> None:
        """Let nothing pass between these machines and the others."""
        self.world.note(f"the network parts {', '.join(sorted(machines))} from the others")
        self._parted = machines

    def heal(self) -> None:
        self.world.note("the network is whole again")
        self._parted = frozenset()
        held, self._held = self._held, deque()
        for end, parcel in held:
            self.arrive(end, parcel)

    def arrive(self, end: End, parcel: Parcel) -> None:
        """What this end has sent is at the other one."""
        if end.cut:
            return
        if self._parted and self.parted(end.process.machine, end.other.process.machine):
            self._held.append((end, parcel))
            self.world.after(GIVE_UP, partial(self._give_up, end, parcel))
            return
        end.other.take(parcel)

    def _give_up(self, end: End, parcel: Parcel) -> None:
        if (end, parcel) in self._held and not end.closed:
            end.take(Parcel(b"", b"", LOST))

    def cut(self, end: End, within: float) -> None:
        """Cut a connection. Each end hears of it by itself, sooner or later."""
        self.world.note(f"the connection of {end.process.name} and {end.other.process.name} is cut")
        for each in (end, end.other):
            each.cut = True
            self.world.after(self.world.chance.random() * within, partial(each.take, Parcel(b"", b"", RESET)))


def _nothing() -> None:
    pass
