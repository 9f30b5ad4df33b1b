"""State machine of a client of the servers (an agent, or a worker): outstanding requests, and the next message to each.

A key lies on one server or is split over all (`keys.place`); the machine alone knows. Offsets in its instructions are
those of the whole array. Operations on one key follow each other; those on several keys run at a time, those of higher
priority first, frame by frame. What was not answered when a connection was lost is said again on the next one; the
server counts it once.

Events and instructions are named tuples rather than frozen dataclasses, as everywhere where 20 us count.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush
from typing import Any, NamedTuple

from ...ops.errors import DeadlineError, InputError, MezzoError, PeerError, WireError
from .keys import SPLIT, Shard, place
from .messages import FRAME, LENT, SEE, Done, Failed, Init, Message, Pull, Push, Refused, Value
from .under_way import AskedKey, Contact, KeyPart, Requested

# ---------------------------------------------------------------------------------------------------- what happened


class Connected(NamedTuple):
    """A connection to this server is open and both have said Hello and Welcome."""

    server: int
    incarnation: int = 0


class Lost(NamedTuple):
    """The connection to this server is closed."""

    server: int
    reason: str = "its connection was closed"


class Declare(NamedTuple):
    """Declare a key; ends with `Finish` when the initial value has been received (or, from the first rank, taken).

    `step` is for a worker that goes on after a restart with its own state: the pushes whose answers it has had. It
    receives no value then, and pushes what was under way again. With None it counts from where the servers are, from 0
    where the job begins.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    step: int | None = None


class Start(NamedTuple):
    """A push, a pull or both of a declared key."""

    name: str
    push: bool = True
    pull: bool = True
    priority: int = 0


class Request(NamedTuple):
    """A message for every server (`SetOptimizer`, `Stats`), each of which answers with one of the same kind; ends with
    `Answered`. The number is the driver's."""

    number: int
    message: Message


class Sent(NamedTuple):
    """The payload of the last `Transmit` to this server has left (the kernel has it): the next may go."""

    server: int


class Heard(NamedTuple):
    """A message of a server: Value (its header; `length` bytes of payload follow), Done, Refused, Failed, or the answer
    to an Init or a Request."""

    server: int
    message: Message
    length: int = 0


class Came(NamedTuple):
    """A Value of a server has arrived with its payload: `Heard` and `Received` at once. The payload is copied to the
    place that `Receive` gives before any later instruction is carried out."""

    server: int
    message: Value
    length: int


class Received(NamedTuple):
    """The payload of the last `Receive` from this server is in memory."""

    server: int


class Delayed(NamedTuple):
    """This server has said that others keep it from answering what it was told of the key that has this number."""

    server: int
    key: int


class Near(NamedTuple):
    """This server has memory of ours mapped: what is pushed to it from there does not travel, in longer frames."""

    server: int


class Ticked(NamedTuple):
    """Time has passed; seconds of a clock that only this event tells."""

    now: float


Event = Connected | Lost | Declare | Start | Request | Sent | Heard | Came | Received | Delayed | Near | Ticked

# ------------------------------------------------------------------------------------------------------- what to do


class Tell(NamedTuple):
    """Send a message without payload."""

    server: int
    message: Message


class Transmit(NamedTuple):
    """Send this message with the bytes [lo, hi) of the key's pushed array, then report `Sent`. At most one per server
    is in flight."""

    server: int
    message: Push
    name: str
    lo: int
    hi: int


class Receive(NamedTuple):
    """Read the payload of the `Value` just heard (which is not empty) into the bytes [lo, hi) of the key's array; then
    report `Received`.

    It may be the memory of what is pushed: bytes that are answered have been counted, and are not read again.
    """

    server: int
    name: str
    lo: int
    hi: int


class Finish(NamedTuple):
    """The oldest operation on this key has ended. `step` counts the pushes to it so far."""

    name: str
    step: int
    error: MezzoError | None = None


class Answered(NamedTuple):
    """A request has ended, with the answer of each server."""

    number: int
    messages: tuple[Message, ...]
    error: MezzoError | None = None


class Fail(NamedTuple):
    """The store has failed; every operation in flight, and every later one, ends with this error."""

    error: MezzoError


Instruction = Tell | Transmit | Receive | Finish | Answered | Fail

MERCY = 0.3  # seconds for which a server that others keep may take longer to name them


class Client:
    """The machine of one (rank, lane). `first`: whether this rank gives initial values (by default rank 0 does).

    `deadline`: seconds without any progress after which an operation fails. `grace`: seconds for which a server may be
    away; with 0 a lost connection is a failure at once.

    >>> client = Client(rank=1, servers=1)
    >>> client.handle(Connected(0))
    ()
    >>> client.handle(Declare("w", "float32", (4,)))[0].message
    Init(name='w', dtype='float32', shape=(4,), lo=0, hi=16, rank=1, key=0, step=0)
    >>> client.handle(Heard(0, Init("w", "float32", (4,), 0, 16, rank=1, key=1)))
    (Tell(server=0, message=Pull(key=1, step=0, rank=1)),)
    >>> client.handle(Heard(0, Value(key=1, step=0, rank=1), length=16))
    (Receive(server=0, name='w', lo=0, hi=16),)
    >>> client.handle(Received(0))
    (Finish(name='w', step=0, error=None),)
    >>> client.handle(Start("w"))[0].message
    Push(key=1, step=1, rank=1, offset=0, pull=True)
    """

    def __init__(
        self,
        rank: int,
        servers: int,
        *,
        first: bool | None = None,
        deadline: float = 120.0,
        grace: float = 0.0,
        split: int = SPLIT,
        frame: int = FRAME,
    ) -> None:
        self._rank = rank
        self._first = rank == 0 if first is None else first
        self._deadline, self._grace, self._split = deadline, grace, split
        self._servers = [Contact(number, frame) for number in range(servers)]
        self._keys: dict[str, AskedKey] = {}
        self._requests: dict[int, Requested] = {}
        self._order = 0
        self._failure: MezzoError | None = None
        self._handlers: dict[type, Callable[[Any], Iterable[Instruction]]] = {
            Connected: self._on_connected,
            Lost: self._on_lost,
            Declare: self._on_declare,
            Start: self._on_start,
            Request: self._on_request,
            Sent: self._on_sent,
            Heard: self._on_heard,
            Came: self._on_came,
            Received: self._on_received,
            Delayed: self._on_delayed,
            Near: self._on_near,
            Ticked: self._on_ticked,
        }

    def handle(self, event: Event) -> tuple[Instruction, ...]:
        """Return the instructions for an event."""
        if self._failure is None:
            try:
                return tuple(self._handlers[event.__class__](event))
            except WireError as error:
                return (self._fail(error),)
        match event:
            case Declare(name=name) | Start(name=name):
                return (Finish(name, 0, self._failure),)
            case Request(number=number):
                return (Answered(number, (), self._failure),)
        return ()

    def _fail(self, error: MezzoError) -> Fail:
        self._failure = error
        return Fail(error)

    def parts(self, name: str) -> dict[int, tuple[int, Shard]]:
        """Return, by server, its number of a declared key, and the part of it that the server holds."""
        return {server: (part.number, part.shard) for server, part in self._keys[name].parts.items()}

    @property
    def sending(self) -> bool:
        """True while bytes of a push have not left, or a server is away that is to be told of one again."""
        away = (part for server in self._servers if not server.connected for part in server.parts.values())
        return any(s.sending or s.ready for s in self._servers) or not all(part.answered for part in away)

    def kept(self, server: int, number: int) -> bool:
        """True if a server has answered about its part of a key, and others have not: the next step waits for them."""
        part = self._servers[server].parts.get(number)
        return part is not None and part.ended and not all(each.ended for each in self._keys[part.name].parts.values())

    def name(self, server: int, number: int) -> str | None:
        """Return the key that has this number on a server, if it was declared here."""
        part = self._servers[server].parts.get(number)
        return None if part is None else part.name

    # ------------------------------------------------------------------------------------------------- operations

    def _on_declare(self, e: Declare) -> Iterable[Instruction]:
        known = self._keys.get(e.name)
        if known:
            same = (known.declare.dtype, known.declare.shape) == (e.dtype, e.shape)
            error = None if same else InputError(f"it is {known.declare}, and now {e}", where=f"key {e.name!r}")
            return [Finish(e.name, known.steps, error)]
        try:
            placed = place(e.name, e.dtype, e.shape, len(self._servers), self._split)
        except MezzoError as error:
            return [Finish(e.name, 0, error)]
        parts = {server: KeyPart(e.name, server, shard, answered=False) for server, shard in placed.items()}
        self._keys[e.name] = AskedKey(e, parts, deque([e]))
        return [told for part in parts.values() for told in self._ask(self._servers[part.server], part)]

    def _on_start(self, e: Start) -> Iterable[Instruction]:
        key = self._keys.get(e.name)
        if key is None:
            return [Finish(e.name, 0, InputError("it was never declared", where=f"key {e.name!r}", hint="call init"))]
        key.operations.append(e)
        return self._next(key) if len(key.operations) == 1 else ()

    def _on_request(self, e: Request) -> Iterable[Instruction]:
        self._requests[e.number] = request = Requested(e.number, e.message)
        return [told for server in self._servers for told in self._ask(server, request)]

    def _next(self, key: AskedKey) -> list[Instruction]:
        """Begin the oldest operation of a key, or end it where the key cannot be used any more."""
        made = list[Instruction]()
        key.stirred = True
        while key.operations and key.error:
            key.operations.popleft()
            made.append(Finish(key.declare.name, key.steps, key.error))
        if not key.operations:
            return made
        e = key.operations[0]
        assert isinstance(e, Start)
        key.steps += e.push
        for part in key.parts.values():
            part.step += e.push
            made += self._begin(part, e.push, e.pull or not e.push, e.priority)
        return made

    def _begin(self, part: KeyPart, push: bool, value: bool, priority: int = 0) -> list[Instruction]:
        self._order += 1
        part.push, part.value, part.priority, part.order, part.answered = push, value, priority, self._order, False
        server = self._servers[part.server]
        return self._say(server, part) + self._pump(server) if server.connected else []

    def _say(self, server: Contact, part: KeyPart) -> list[Instruction]:
        """Tell a server of the operation from its beginning; a push waits for its turn."""
        part.sent, part.got, part.held = -1, 0, False
        if not part.push:
            return [Tell(server.number, Pull(part.number, part.step, self._rank))]
        heappush(server.ready, (-part.priority, part.order, part))
        return []

    def _pump(self, server: Contact) -> list[Instruction]:
        """Send the next frame, if the one before has left."""
        if server.sending or not server.ready:
            return []
        part = server.ready[0][2]
        base = part.shard.lo
        lo = max(part.sent, 0)
        hi = min(lo + server.frame, part.nbytes)
        if hi == part.nbytes:
            heappop(server.ready)
        server.sending = (part, hi)
        push = Push(part.number, part.step, self._rank, lo, part.value)
        return [Transmit(server.number, push, part.name, base + lo, base + hi)]

    def _ask(self, server: Contact, what: KeyPart | Requested) -> list[Instruction]:
        server.asked.append(what)
        return [self._tell(server, what)] if server.connected else []

    def _tell(self, server: Contact, what: KeyPart | Requested) -> Tell:
        if isinstance(what, Requested):
            return Tell(server.number, what.message)
        shard = what.shard
        return Tell(server.number, Init(shard.name, shard.dtype, shard.shape, shard.lo, shard.hi, self._rank))

    # ---------------------------------------------------------------------------------------------------- answers

    def _on_sent(self, e: Sent) -> Iterable[Instruction]:
        server = self._servers[e.server]
        if server.sending is None:
            return ()
        (part, hi), server.sending = server.sending, None
        part.sent = max(part.sent, hi)
        made = self._pump(server)
        return [*made, *self._ended(part)] if part.ended else made

    def _on_heard(self, e: Heard) -> Iterable[Instruction]:
        server = self._servers[e.server]
        match e.message:
            case Value(key, step, _, offset):
                return self._value(server, self._part(server, key, step), offset, e.length)
            case Done(key, step):
                part = self._part(server, key, step)
                if part.value:
                    raise _unexpected(server, "Done, not the value,", part)
                part.answered = True
                return self._ended(part) if part.ended else ()
            case Refused():
                return self._refused(server, e.message)
            case Failed(_, reason):
                return [self._fail(PeerError(reason, hint=SEE))]
        if not server.asked:
            raise _unexpected(server, type(e.message).__name__)
        return self._answered(server, server.asked.popleft(), e.message)

    def _on_came(self, e: Came) -> Iterable[Instruction]:
        server, (key, step, _, offset) = self._servers[e.server], e.message
        made = self._value(server, self._part(server, key, step), offset, e.length)
        part, server.receiving = server.receiving, None
        return [*made, *self._received(part)] if part else made

    def _part(self, server: Contact, number: int, step: int) -> KeyPart:
        """The part that an answer is for."""
        part = server.parts.get(number)
        if part is None or part.answered or step < part.step:
            raise _unexpected(server, f"an answer to step {step}", part)
        return part

    def _value(self, server: Contact, part: KeyPart, offset: int, length: int) -> Iterable[Instruction]:
        hi = offset + length
        if not part.value or offset != part.got or hi > part.nbytes or server.receiving:
            raise _unexpected(server, f"bytes {offset} to {hi} of {part.shard.nbytes}", part)
        part.got = hi
        if not length:
            return self._received(part)
        server.receiving = part
        return [Receive(server.number, part.name, part.shard.lo + offset, part.shard.lo + hi)]

    def _on_received(self, e: Received) -> Iterable[Instruction]:
        server = self._servers[e.server]
        part, server.receiving = server.receiving, None
        return self._received(part) if part else ()

    def _on_delayed(self, e: Delayed) -> Iterable[Instruction]:
        if (part := self._servers[e.server].parts.get(e.key)) is not None and not part.answered:
            part.held = True
        return ()

    def _on_near(self, e: Near) -> Iterable[Instruction]:
        server = self._servers[e.server]
        server.frame = max(server.frame, LENT)
        return ()

    def _received(self, part: KeyPart) -> Iterable[Instruction]:
        self._keys[part.name].stirred = True
        part.answered = part.got == part.nbytes
        return self._ended(part) if part.ended else ()

    def _answered(self, server: Contact, what: KeyPart | Requested, message: Message) -> Iterable[Instruction]:
        """An answer to the oldest Init or Request."""
        if isinstance(what, Requested):
            if type(message) is not type(what.message):
                raise _unexpected(server, type(message).__name__)
            what.answers[server.number] = message
            return self._collected(what)
        if not isinstance(message, Init) or message.name != what.name or not message.key:
            raise _unexpected(server, f"{type(message).__name__}", what)
        key = self._keys[what.name]
        what.number = message.key
        what.step = message.step if key.declare.step is None else key.declare.step
        server.parts[message.key] = what
        key.steps = max(key.steps, what.step)
        if key.declare.step is not None:
            what.push, what.answered = False, True
            return self._ended(what)
        gives = self._first and not what.step
        return self._begin(what, gives, not gives)

    def _collected(self, request: Requested) -> list[Instruction]:
        if len(request.answers) < len(self._servers):
            return []
        del self._requests[request.number]
        by_server = tuple(request.answers[number] for number in sorted(request.answers))
        return [Answered(request.number, by_server, request.error)]

    def _refused(self, server: Contact, refused: Refused) -> Iterable[Instruction]:
        where = f"server {server.number}"
        error = PeerError(refused.reason, where=where, hint=refused.hint)
        part = server.parts.get(refused.key)
        if not refused.key:
            if not server.asked:
                return [self._fail(error)]
            what = server.asked.popleft()
            if isinstance(what, Requested):
                what.error, what.answers[server.number] = error, refused
                return self._collected(what)
            part = what
        if part is None or part.answered or (refused.key and refused.step != part.step):
            return ()  # a later frame of what has been refused already
        error.where = f"key {part.name!r} on {where}"
        self._keys[part.name].error = error
        part.answered, part.sent = True, part.shard.nbytes
        server.ready = [entry for entry in server.ready if entry[2] is not part]
        heapify(server.ready)
        return self._ended(part)

    def _ended(self, part: KeyPart) -> list[Instruction]:
        """End the operation of a key when all servers have answered and have all of it."""
        key = self._keys[part.name]
        key.stirred = True
        for each in key.parts.values():
            if not each.ended:
                return []
        operation = key.operations.popleft()
        if isinstance(operation, Declare) and key.error:
            del self._keys[part.name]
            failed = [Finish(part.name, key.steps, key.error) for _ in key.operations]
            return [Finish(part.name, 0, key.error), *failed]
        return [Finish(part.name, key.steps, key.error), *self._next(key)]

    # ------------------------------------------------------------------------------------------------ connections

    def _on_connected(self, e: Connected) -> Iterable[Instruction]:
        server = self._servers[e.server]
        if server.incarnation not in (None, e.incarnation):
            return [self._fail(PeerError(f"server {e.server} was started again, and its values are lost", hint=SEE))]
        server.incarnation, server.connected, server.lost, server.since = e.incarnation, True, "", None
        server.sending, server.receiving, server.ready = None, None, []
        made: list[Instruction] = [self._tell(server, what) for what in server.asked]
        for part in server.parts.values():
            if not part.ended:
                part.answered = False
                made += self._say(server, part)
        return made + self._pump(server)

    def _on_lost(self, e: Lost) -> Iterable[Instruction]:
        server = self._servers[e.server]
        server.connected, server.lost, server.receiving = False, e.reason, None
        if self._grace > 0:
            return ()
        return [self._fail(PeerError(f"server {e.server} is lost: {e.reason}", hint=SEE))]

    def _on_ticked(self, e: Ticked) -> Iterable[Instruction]:
        for server in self._servers:
            if server.lost:
                server.since = e.now if server.since is None else server.since
                if e.now - server.since >= self._grace:
                    why = f"server {server.number} is lost, and did not come back in {self._grace:g} s: {server.lost}"
                    return [self._fail(PeerError(why, hint=SEE))]
        for request in self._requests.values():
            request.since = e.now if request.since is None else request.since
            if e.now - request.since > self._deadline:
                late = [server.number for server in self._servers if server.number not in request.answers]
                return [self._unanswered(late, f"to {type(request.message).__name__}")]
        for name, key in self._keys.items():
            if key.stirred or not key.operations or key.since is None:
                key.since, key.stirred = e.now if key.operations else None, False
            elif e.now - key.since > self._deadline:
                parts = [part for part in key.parts.values() if not part.ended]
                late = [part.server for part in parts if not part.held]
                if not late and e.now - key.since > self._deadline + MERCY:
                    late = [part.server for part in parts]
                if late:
                    return [self._unanswered(late, f"in step {key.steps} of key {name!r}")]
        return ()

    def _unanswered(self, servers: Iterable[int], what: str) -> Fail:
        why = f"no answer from server {' and '.join(map(str, servers))} for {self._deadline:g} s, {what}"
        return self._fail(DeadlineError(why, hint="is it frozen, or busy? A longer wait is deadline="))


def _unexpected(server: Contact, what: str, part: KeyPart | None = None) -> WireError:
    about = f" of key {part.name!r} (step {part.step})" if part else ""
    return WireError(f"server {server.number} sent {what}{about} that no request waits for")
