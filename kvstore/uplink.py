"""The connections of one rank to all servers: the exchange of an agent, or of a worker that speaks for itself.

The machine of `protocol/client.py` decides; here its instructions are carried out. Values are read from memory that the
caller names and received into memory that the caller names, which may be the same.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from ..ops.errors import DeadlineError, MezzoError
from ..ops.types import Array, DType
from . import lent, wire
from .address import parse_address
from .environment import TICK, Environment
from .gate import enter
from .gate import server as at
from .loop import Loop, Timer
from .member import prompt
from .packing import ITEM, Packer, parse, unpacked
from .protocol import client as c
from .protocol import messages as m
from .protocol.keys import Shard, slices
from .protocol.waits import BEHIND_SERVERS, beyond
from .stream import Frame, Stream

# Seconds that a server which may be away has for a handshake, or until it listens, and between attempts.
PATIENCE, LISTENS, PAUSE = 1.0, 0.1, 0.1
Done = Callable[[MezzoError | None], None]
Asked = Callable[[m.Message, bytes], bool]
Parts = Mapping[int, tuple[int, Shard]]  # of a key, by server: its number there, and what lies there
Lies = tuple[Hashable, int]  # a segment by whatever its owner calls it, and the byte where an array begins there


@dataclass(frozen=True, slots=True)
class Question:
    """Messages with their payloads, which are said again where a server is started again before it has answered."""

    said: tuple[tuple[m.Message, bytes], ...]
    answered: Asked


@dataclass(slots=True)
class Operation:
    """An operation in flight on a key."""

    source: memoryview  # the bytes that are pushed
    target: memoryview  # where the value goes
    done: Done
    lies: Lies | None = None  # the source, in a segment
    goes: Lies | None = None  # the target
    packing: str = ""  # the scheme by which both travel


class Uplink:
    """The connections of a rank. All operations start and end on the thread that steps the loop.

    `rank` is that at level 2, `lane` tells the connections of one rank apart, `first` gives initial values.
    """

    def __init__(
        self, loop: Loop, environment: Environment, servers: Sequence[str], rank: int, lane: int, role: m.Role
    ) -> None:
        self.sent = self.received = 0  # bytes of values
        self.failure: MezzoError | None = None
        self._loop, self._rank = loop, rank
        deadline, grace = environment.deadline + beyond(environment.deadline, BEHIND_SERVERS), environment.grace
        self._client = c.Client(rank, len(servers), deadline=deadline, grace=grace)
        self._environment, self._lane, self._role = environment, lane, role
        self._events: deque[c.Event] = deque()
        self._busy = False
        self._operations: dict[str, deque[Operation]] = {}
        self._into: c.Receive | None = None  # where the machine wants the payload that was just heard of
        self._payload: memoryview | None = None  # which is here already
        self._receiving: set[int] = set()  # servers whose payload is on its way to such a place
        self._requests: dict[int, Callable[[c.Answered], None]] = {}
        self._questions: list[deque[Question]] = [deque() for _ in servers]  # that were not answered
        self._left = [partial(self._handle, c.Sent(number)) for number in range(len(servers))]
        self._segments: dict[Hashable, int] = {}  # that are lent, by their numbers on the wire
        self._lends = 0  # segments so far
        # Open until these servers have answered or, where servers may be started again, until it is forgotten.
        self._kept: dict[int, tuple[lent.Place, set[int]]] = {}
        self._mapped: list[set[int]] = [set() for _ in servers]  # segments that a server has
        self._packers: dict[tuple[int, str], Packer] = {}  # by server and key
        self._era = 0  # how often what was lost was dropped
        self._collecting = False  # it travels as it is
        self._offered: dict[tuple[int, str], tuple[int, int, int, int] | None] = {}  # how a push goes to a server
        self.opened = 0  # connections so far
        self._closing = False
        self._ended: set[int] = set()  # servers that have left, since the job is over
        self.failed: Callable[[MezzoError], None] = _ignore
        self.asked: Callable[[str], bool] = bool  # who is missing from the round of a key; True: others keep this host
        self._addresses = list(servers)
        self._streams: dict[int, Stream] = {}  # by server, where there is a connection
        self._numbers: dict[Stream, int] = {}
        self._greeted: set[int] = set()  # servers that have answered Hello
        self._retries: dict[int, Timer] = {}  # the next attempt to reach a server that is away
        self._tick = min(TICK, environment.deadline / 10)
        try:
            for number in range(len(servers)):
                self._connect(number)
        except BaseException:
            self.close()
            raise
        self._ticked()

    def _connect(self, number: int) -> None:
        """Open a connection to a server, and say who this is. Where the server may be away, it is tried until it is
        back. Raises DeadlineError, PeerError."""
        environment, text, name = self._environment, self._addresses[number], f"server {number}"
        address = parse_address(text)
        environment.check_address(address if isinstance(address, str) else address[0])
        deadline, patience = prompt(environment.deadline), None
        if environment.rejoin:  # it listens already, or the job gathers again
            patience = min(PATIENCE, deadline / 10)
        if environment.grace:  # it may be gone, and the next one is at another address
            deadline, patience = min(PATIENCE, deadline / 10), min(LISTENS, deadline / 20)
        try:
            sock = enter(address, deadline, environment, at(text), name, patience)
        except DeadlineError as error:
            if not environment.grace:
                raise
            self._handle(c.Lost(number, error.message))
            if number in self._retries:  # one at a time: several would leave the loop no time for anything else
                self._retries[number].cancel()
            self._retries[number] = self._loop.after(PAUSE, partial(self._connect_again, number))
            return
        stream = Stream(self._loop, sock, self, name)
        self._streams[number], self._numbers[stream] = stream, number
        hello = m.Hello(
            self._role, environment.host, self._rank, self._lane, environment.incarnation, deadline=environment.deadline
        )
        stream.send(wire.encode(hello))

    def _connect_again(self, number: int) -> None:
        if self._closing or number in self._streams or self.failure is not None:
            return
        try:
            self._connect(number)
        except MezzoError as error:
            self._fail(type(error)(f"{error.where}: {error.message}", hint=error.hint))

    def moved(self, servers: Sequence[str]) -> None:
        """A server has been started again: go on with it. What it has not answered is said again."""
        for number, text in enumerate(servers):
            if self._closing or text == self._addresses[number]:
                continue
            self._addresses[number] = text
            if number in self._streams:
                stream = self._streams[number]
                stream.close()
                self.lost(stream, "it was started again")
            self._connect_again(number)

    # --- what the caller wants

    def declare(self, name: str, value: Array, done: Done, step: int | None = None) -> None:
        """Declare a key: of the first rank the value is taken, the others receive it there."""
        flat = bytes_of(value)
        self._operations.setdefault(name, deque()).append(Operation(flat, flat, done))
        self._handle(c.Declare(name, str(DType.of(value.dtype)), value.shape, step))

    def start(
        self,
        name: str,
        source: memoryview | None,
        target: memoryview | None,
        done: Done,
        priority: int = 0,
        lies: Lies | None = None,
        goes: Lies | None = None,
        packing: str = "",
    ) -> None:
        """Push the bytes of `source`, receive the value into `target`, or both; they may be one. `done` comes last.
        `lies` and `goes` say where these are in segments that are lent, `packing` how they travel elsewhere."""
        source = _NOTHING if source is None else source
        target = _NOTHING if target is None else target
        self._operations[name].append(Operation(source, target, done, lies, goes, packing))
        self._handle(c.Start(name, source is not _NOTHING, target is not _NOTHING, priority))

    def drop_losses(self, collect: bool = False) -> None:
        """Add nothing of what packing has lost to what comes next; or (`collect`) add it to the next push of each key,
        which travels as it is. No push is under way."""
        self._collecting = collect
        if not collect:
            self._era += 1
            self._packers.clear()

    # --- lent memory

    def lend(self, segment: Hashable, fd: int, size: int) -> None:
        """Lend a segment of shared memory to the servers of this machine; those of another host decline."""
        near = {number for number, stream in self._streams.items() if lent.near(stream)}
        if not near or self.failure is not None:
            return
        self._lends += 1
        number = self._segments[segment] = self._lends
        place = lent.keep(fd, size)
        self._kept[number] = place, near
        for server in sorted(near):
            self._streams[server].send(wire.encode(m.Lend(number, self._rank, *place)))

    def forget(self, segment: Hashable) -> None:
        """A segment is no longer in use."""
        number = self._segments.pop(segment, None)
        if number in self._kept:
            self._let_go(number)
        for server, mapped in enumerate(self._mapped):
            if number in mapped:
                mapped.remove(number)
                self._streams[server].send(wire.encode(m.Lend(number, self._rank)))

    def _settle(self, number: int, server: int) -> None:
        """A server has answered about a segment, or will not."""
        if number in self._kept:
            place, waiting = self._kept[number]
            waiting.discard(server)
            if not waiting and (not self._environment.grace or number not in self._segments.values()):
                del self._kept[number]
                lent.release(place)

    def _let_go(self, number: int) -> None:
        """A segment is forgotten: it is open until those who were asked have answered."""
        place, waiting = self._kept[number]
        if not waiting:
            del self._kept[number]
            lent.release(place)

    def _lend_again(self, server: int) -> None:
        """A server that was started again has nothing of what it was lent."""
        stream = self._streams[server]
        for number, (place, waiting) in self._kept.items():
            if lent.near(stream) and number in self._segments.values() and server not in waiting:
                waiting.add(server)
                stream.send(wire.encode(m.Lend(number, self._rank, *place)))

    def _reached(self, server: int, message: m.Lend) -> None:
        self._settle(message.number, server)
        if message.size and message.number in self._segments.values():
            self._mapped[server].add(message.number)
            self._handle(c.Near(server))
        elif message.size:  # forgotten meanwhile
            self._streams[server].send(wire.encode(m.Lend(message.number, self._rank)))

    def _unlent(self, server: int) -> None:
        """A connection has ended, and with it what was lent over it."""
        self._mapped[server].clear()
        for number in list(self._kept):
            self._settle(number, server)

    def _way(self, server: int, push: m.Push, name: str, lo: int) -> tuple[int, int, int, int] | None:
        """Return the way of a push that begins to a server: source, at, target and to of an Offer, or over the wire."""
        operation, mapped, begin = self._operations[name][0], self._mapped[server], lo - push.offset
        if not mapped or operation.lies is None or (push.pull and operation.goes is None):
            return None
        source, at = self._segments.get(operation.lies[0], 0), operation.lies[1] + begin
        target, to = 0, 0
        if push.pull and operation.goes is not None:
            target, to = self._segments.get(operation.goes[0], 0), operation.goes[1] + begin
        return (source, at, target, to) if source in mapped and (target in mapped or not push.pull) else None

    def parts(self, name: str) -> Parts:
        """Return the parts of a key that was declared here."""
        return self._client.parts(name)

    @property
    def sending(self) -> bool:
        """True while bytes that are pushed have not left."""
        return self._client.sending

    def fetch(self, parts: Parts, rows: Array, out: Array, done: Done) -> None:
        """Receive these rows (int64, at least one) of a key, as they are now, into `out`: bytes, a row for each.
        Nothing of the key may be under way, since the machine knows nothing of it."""
        width, left = out.shape[1], 0

        def take(which: Array, lo: int, hi: int, message: m.Message, payload: bytes) -> bool:
            nonlocal left
            out[which, lo:hi] = np.frombuffer(payload, np.uint8).reshape(len(which), hi - lo)
            left -= 1
            if not left:
                done(None)
            return True

        for server, (number, shard) in parts.items():
            for which, lo, hi in slices(rows, width, shard):
                left += 1
                starts = rows[which] * width + lo - shard.lo
                said = (m.Slices(number, self._rank, hi - lo), starts.tobytes())
                self.ask(server, [said], partial(take, which, lo, hi))

    def request(self, message: m.Message, answered: Callable[[c.Answered], None]) -> None:
        """Say a message to every server; `answered` is called with what all of them said."""
        number = len(self._requests) + 1
        self._requests[number] = answered
        self._handle(c.Request(number, message))

    def ask(self, server: int, said: Sequence[tuple[m.Message, bytes]], answered: Asked) -> None:
        """Say messages, with payloads, of which the machine knows nothing to one server. `answered` is called with each
        message and payload that come for them, until it says True; from the first on, where they had to be said again.
        Not while the machine waits for a message of that kind."""
        question = Question(tuple(said), answered)
        self._questions[server].append(question)
        self._say(server, question)

    def _say(self, server: int, question: Question) -> None:
        if server not in self._greeted:
            return  # which is when it is said
        for message, payload in question.said:
            self._streams[server].send(wire.encode(message, len(payload)), payload)

    @property
    def servers(self) -> int:
        return len(self._addresses)

    def close(self, error: MezzoError | None = None) -> None:
        """Say Bye to all servers, and wait a little until they have heard it; less where something is wrong already."""
        bye = m.Bye(self._rank, 0 if error is None else 1, "" if error is None else error.message[:4000])
        self._closing = True
        for stream in list(self._streams.values()):
            stream.send(wire.encode(bye))
            stream.finish()
        end = time.monotonic() + (2.0 if error is None else 0.5)
        while self._streams and time.monotonic() < end:
            self._loop.step(max(0.0, end - time.monotonic()))
        for stream in self._streams.values():
            stream.close()

    # --- what streams report

    def place(self, stream: Stream, frame: Frame) -> memoryview | None:
        if isinstance(frame.message, m.Value):
            return self._target(stream, frame)
        return memoryview(bytearray(frame.header.length))

    def arrived(self, stream: Stream, frame: Frame, payload: memoryview) -> None:
        number, message = self._numbers[stream], frame.message
        if isinstance(message, m.Value):
            self.received += frame.header.length
            if number in self._receiving:
                self._receiving.remove(number)
                self._handle(c.Received(number))
            else:  # a small one, that came as a whole
                self._payload = payload
                self._handle(c.Came(number, message, frame.header.length))
                self._payload = None
            return
        match message:
            case m.Written(key, step, rank, offset, length):
                self._payload = _THERE
                self._handle(c.Came(number, m.Value(key, step, rank, offset), length))
                self._payload = None
            case m.PackedValue(key, step, rank, offset, nbytes, scheme):
                self.received += frame.header.length
                self._payload = unpacked(scheme, payload, nbytes)
                self._handle(c.Came(number, m.Value(key, step, rank, offset), nbytes))
                self._payload = None
            case m.Lend():
                self._reached(number, message)
            case m.Late(key):
                self._handle(c.Delayed(number, key))
                if (name := self._client.name(number, key)) is not None and (
                    self.asked(name) or self._client.kept(number, key)
                ):
                    stream.send(wire.encode(message))
            case m.Bye():
                self._ended.add(number)
            case m.Welcome(incarnation=incarnation):
                self.opened += 1
                self._mapped[number].clear()  # what was lent over a connection ends with it
                self._lend_again(number)
                self._handle(c.Connected(number, incarnation))
                self._greeted.add(number)
                for question in self._questions[number]:
                    self._say(number, question)
            case m.Init() | m.States() | m.Rows() | m.Slices() | m.Refused() if self._questions[number]:
                self.received += frame.header.length * isinstance(message, m.Slices)
                if self._questions[number][0].answered(message, bytes(payload)):
                    self._questions[number].popleft()
            case _:
                self._handle(c.Heard(number, message))

    def lost(self, stream: Stream, reason: str) -> None:
        number = self._numbers.pop(stream)
        del self._streams[number]
        self._unlent(number)
        self._greeted.discard(number)
        self._receiving.discard(number)
        if not self._closing and number not in self._ended:
            self._handle(c.Lost(number, reason))

    def _target(self, stream: Stream, frame: Frame) -> memoryview:
        """Return the memory for the payload of a Value."""
        number = self._numbers[stream]
        self._into = None
        self._handle(c.Heard(number, frame.message, frame.header.length))
        if self._into is None:  # nobody wants it any more
            return memoryview(bytearray(frame.header.length))
        into: c.Receive = self._into
        self._receiving.add(number)
        return self._operations[into.name][0].target[into.lo : into.hi]

    # --- what the machine wants

    def _ticked(self) -> None:
        if not self._closing:
            self._handle(c.Ticked(time.monotonic()))
            self._loop.after(self._tick, self._ticked)

    def _handle(self, event: c.Event) -> None:
        """Tell the machine, and do what it says; events that come meanwhile follow."""
        if self._busy:
            self._events.append(event)
            return
        self._busy = True
        try:
            for instruction in self._client.handle(event):
                self._do(instruction)
            while self._events:
                for instruction in self._client.handle(self._events.popleft()):
                    self._do(instruction)
        finally:
            self._busy = False

    def _do(self, i: c.Instruction) -> None:
        if isinstance(i, c.Transmit):
            self._transmit(*i)
        elif isinstance(i, c.Receive):
            payload, self._payload = self._payload, None
            if payload is None:
                self._into = i
            elif payload is not _THERE:
                self._operations[i.name][0].target[i.lo : i.hi] = payload
        elif isinstance(i, c.Finish):
            self._operations[i.name].popleft().done(i.error)
        elif isinstance(i, c.Tell):
            self._streams[i.server].send(wire.encode(i.message))
        elif isinstance(i, c.Answered):
            self._requests[i.number](i)
        else:
            self._fail(i.error)

    def _transmit(self, server: int, push: m.Push, name: str, lo: int, hi: int) -> None:
        if not push.offset:
            self._offered[server, name] = self._way(server, push, name, lo)
        way, stream, left = self._offered[server, name], self._streams[server], self._left[server]
        if way is not None and hi > lo:
            source, at, target, to = way
            key, step, rank, offset, pull = push
            stream.send(wire.encode(m.Offer(key, step, rank, offset, hi - lo, source, at, pull, target, to)), sent=left)
            return
        operation = self._operations[name][0]
        bytes_, base = operation.source, 0
        if operation.packing and push.step and hi > lo:
            if not self._collecting:
                self._transmit_packed(server, push, name, lo, hi)
                return
            packer = self._packers.get((server, name))
            if packer is not None:
                lost = packer.kept[push.offset // ITEM : (push.offset + hi - lo) // ITEM]
                bytes_, base = bytes_of(np.frombuffer(bytes_[lo:hi], np.float32) + lost), lo
        self.sent += hi - lo
        for low in range(lo, max(hi, lo + 1), wire.FRAME):
            high = min(hi, low + wire.FRAME)
            head = wire.encode(push._replace(offset=push.offset + low - lo), high - low)
            stream.send(head, bytes_[low - base : high - base], sent=left if high == hi else None)

    def _transmit_packed(self, server: int, push: m.Push, name: str, lo: int, hi: int) -> None:
        """Send frames packed. What is packed is added to by what was lost before, on this connection's own account."""
        operation, stream = self._operations[name][0], self._streams[server]
        packer = self._packers.get((server, name))
        if packer is None:
            shard = self._client.parts(name)[server][1]
            packer = self._packers[server, name] = Packer(parse(operation.packing), shard.nbytes)
        key, step, rank, offset, pull = push
        for low in range(lo, hi, wire.FRAME):
            high, at = min(hi, low + wire.FRAME), offset + low - lo
            packet = packer.packet(step, at, operation.source[low:high])
            self.sent += len(packet)
            head = m.Packed(key, step, rank, at, high - low, packer.scheme.text, pull, self._era)
            left = self._left[server] if high == hi else None
            stream.send(wire.encode(head, len(packet)), packet, sent=left)

    def _fail(self, error: MezzoError) -> None:
        if self.failure is not None:
            return
        self.failure = error
        self.failed(error)  # before an operation ends: whoever hears of that asks why
        for waiting in self._operations.values():
            while waiting:
                waiting.popleft().done(error)


def _ignore(said: object) -> None:
    pass


_NOTHING = memoryview(b"")
_THERE = memoryview(b"there")  # a payload that has been written to its target already


def bytes_of(array: Array) -> memoryview:
    """The bytes of a contiguous array, to be read or written in place."""
    flat: memoryview = array.reshape(-1).view(np.uint8).data
    return flat
