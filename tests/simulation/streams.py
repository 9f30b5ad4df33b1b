"""What the drivers have of the kernel: epoll, streams of messages, and doors that others knock at.

They stand in for `select.epoll`, `stream.Stream`, `gate.Gate`, `gate.enter` and `address.listen`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from mezzo.kvstore import wire
from mezzo.kvstore.address import Address, written
from mezzo.kvstore.gate import TRIES
from mezzo.kvstore.loop import READ, WRITE, Loop
from mezzo.kvstore.stream import Frame
from mezzo.ops.errors import DeadlineError, MezzoError, PeerError

from .network import CLOSED, Call, End, Listener, Network
from .world import World

TURN = 1e-6  # seconds that a wait takes at least
ROOM = 400  # bytes that a connection takes before the other end has read any


class Watchable(Protocol):
    """Something that an epoll waits for."""

    def fileno(self) -> int: ...

    def events(self) -> int:
        """What it is ready for."""
        ...


class SimEpoll:
    """`select.epoll` for things of this network."""

    def __init__(self, world: World) -> None:
        self._world, self._process = world, world.current
        self._things: dict[int, tuple[Watchable, int]] = {}
        self._hot: dict[int, None] = {}  # what may be ready, in order

    def register(self, thing: Any, events: int = READ) -> None:
        self._things[thing.fileno()] = (thing, events)
        self.stir(thing)

    modify = register

    def unregister(self, thing: Any) -> None:
        del self._things[thing.fileno()]

    def close(self) -> None:
        self._things.clear()

    def stir(self, thing: Watchable) -> None:
        """Something has changed there."""
        self._hot[thing.fileno()] = None
        self._process.poke()

    def poll(self, timeout: float | None = None) -> list[tuple[int, int]]:
        end = None if timeout is None else self._world.now + (max(timeout, TURN) if timeout > 0 else 0.0)
        while True:
            while self._process.errands:
                self._process.errands.pop(0)()
            found = self._ready()
            if found or (end is not None and self._world.now >= end):
                return found
            self._process.wait(None if end is None else end - self._world.now)

    def _ready(self) -> list[tuple[int, int]]:
        found = []
        for number in list(self._hot):
            known = self._things.get(number)
            events = known[0].events() & known[1] if known else 0
            if events:
                found.append((number, events))
            else:
                del self._hot[number]
        return found


class SimStream:
    """`Stream` over an end of a connection. Of some payloads a part comes later, as of long ones."""

    def __init__(self, loop: Loop, end: End, receiver: Any, name: str = "") -> None:
        self.loop, self.end, self.receiver, self.name = loop, end, receiver, name or f"peer {end.fileno()}"
        self.closed = self.finishing = False
        self.paused: Frame | None = None
        self._out: deque[tuple[bytes, memoryview, Callable[[], None] | None]] = deque()
        self._body: tuple[Frame, memoryview, memoryview, float] | None = None  # with its place, and when it is here
        self._payload = memoryview(b"")  # of what is paused
        self._giving = False
        self._world = end.network.world
        end.stirred = self._stirred
        loop.watch(self, self, READ | WRITE)  # type: ignore[arg-type]

    def __hash__(self) -> int:
        return self.end.number

    def fileno(self) -> int:
        return self.end.number

    def _stirred(self) -> None:
        self.loop.epoll.stir(self)  # type: ignore[attr-defined]

    def events(self) -> int:
        if self._body is not None:
            reads = self._world.now >= self._body[3]
        else:
            reads = self.paused is None and bool(self.end.got)
        return (READ if reads else 0) | (WRITE if self._out and self.end.flying < ROOM else 0)

    # --- sending

    def send(self, head: bytes, payload: bytes | memoryview = b"", sent: Callable[[], None] | None = None) -> None:
        if self.closed or self.finishing:
            return
        self._out.append((head, memoryview(payload), sent))
        if not self._giving:
            self.writable()

    def writable(self) -> None:
        self._giving = True
        while self._out and not self.closed and (self.end.flying < ROOM or not self._out[0][1]):
            head, payload, sent = self._out.popleft()
            self.end.send(head, bytes(payload))
            if sent is not None:
                sent()
        self._giving = False
        if self.finishing and not self._out and not self.closed:
            self.end.finish()

    def finish(self) -> None:
        self.finishing = True
        if not self._out and not self.closed:
            self.end.finish()

    # --- receiving

    def readable(self) -> None:
        while not self.closed and self.paused is None:
            if self._body is not None:
                frame, place, payload, due = self._body
                if self._world.now < due:
                    return
                self._body = None
                place[:] = payload
                self._give(frame, place)
                continue
            if not self.end.got:
                return
            parcel = self.end.read()
            if parcel.reason:
                self._lose(parcel.reason)
                return
            try:
                header = wire.parse(parcel.head)
                frame = Frame(header, wire.decode(header, parcel.head[wire.HEADER :] if header.metadata else b""))
            except MezzoError as error:
                self._lose(str(error))
                return
            self._payload = memoryview(parcel.payload)
            if header.length and self._world.chance.random() < 0.4:
                self._start(frame)
            else:
                self._give(frame, self._payload)

    def _give(self, frame: Frame, payload: memoryview) -> None:
        try:
            self.receiver.arrived(self, frame, payload)
        except MezzoError as error:
            self._lose(str(error))

    def _start(self, frame: Frame) -> None:
        try:
            place = self.receiver.place(self, frame)
        except MezzoError as error:
            self._lose(str(error))
            return
        if self.closed:
            return
        if place is None:
            self.paused = frame
            return
        later = self.end.network.delay(self.end) if self._world.chance.random() < 0.5 else 0.0
        self._body = (frame, place, self._payload, self._world.now + later)
        if later:
            self._world.after(later, self._stirred)

    def resume(self) -> None:
        frame, self.paused = self.paused, None
        if frame is not None and not self.closed:
            self._start(frame)
            self._stirred()

    # --- ending

    def _lose(self, reason: str) -> None:
        if not self.closed:
            self.close()
            self.receiver.lost(self, reason)

    def close(self) -> None:
        if not self.closed:
            self.loop.forget(self)  # type: ignore[arg-type]
            self.closed = True
            self.end.close()
            self._out.clear()


class Doors:
    """How processes call each other: `listen`, `Gate` and `enter`."""

    def __init__(self, world: World, network: Network) -> None:
        self.world, self.network = world, network

    def listen(self, address: Address) -> Listener:
        return self.network.listen(self.world.current, written(address))

    def enter(
        self, address: Address, deadline: float, environment: Any, service: str, who: str, patience: float | None = None
    ) -> End:
        """A connection to who listens there, or soon will, once it has answered."""
        world, network, me = self.world, self.network, self.world.current
        end, where = world.now + deadline, f"{who} at {written(address)}"
        call: Call | None = None
        tries = TRIES
        late = end if patience is None else world.now + patience
        while world.now < (late if call is None else end):
            door = network.listeners.get(written(address))
            if call is None and door is not None and not network.parted(me.machine, door.process.machine):
                call = Call(me)
                door.calls.append(call)
                door.stirred()
            me.wait(min(0.02, (late if call is None else end) - world.now))
            if call is not None and call.end is not None:
                return call.end
            if call is not None and call.refused:
                tries -= 1
                if not tries:
                    raise PeerError(f"{CLOSED} before the handshake had ended", where=where)
                call, late = None, end if patience is None else min(end, world.now + patience)
        why = "nobody listens" if call is None else "the handshake has not ended"
        raise DeadlineError(f"{why} within {deadline:g} s", where=where)


class SimGate:
    """`Gate`: every caller is of the job."""

    def __init__(
        self, loop: Loop, listener: Listener, environment: Any, service: str, opened: Callable[[Any], None], *_: Any
    ) -> None:
        self._loop, self._listener, self._opened = loop, listener, opened
        listener.stirred = self._stirred
        loop.watch(self, self)  # type: ignore[arg-type]

    def fileno(self) -> int:
        return self._listener.fileno()

    def _stirred(self) -> None:
        self._loop.epoll.stir(self)  # type: ignore[attr-defined]

    def events(self) -> int:
        return READ if self._listener.calls else 0

    def readable(self) -> None:
        while self._listener.calls:
            self._opened(self._listener.accept())

    def writable(self) -> None: ...

    def close(self) -> None:
        self._loop.forget(self)  # type: ignore[arg-type]
        self._listener.close()
