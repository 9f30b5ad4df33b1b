"""A server's process: it holds shards of keys, receives pushes, adds and applies them, and answers.

One loop, non-blocking sockets, no threads. What happens is decided by `protocol/rounds.py`; bytes go from the sockets
straight to where they are summed (shards.py), and from there to the sockets. Started by `mezzo launch`, by a script in
the role of a server, or as `python -m mezzo.kvstore.role`.
"""

from __future__ import annotations

import socket
import time
from collections import deque
from collections.abc import Iterable
from functools import partial

import numpy as np

from ..ops.errors import MezzoError, PeerError, WireError
from . import lent, tls, wire
from .address import describe, listen, written
from .environment import TICK, Environment
from .gate import Gate, Told
from .gate import server as at
from .held import HeldBack
from .kept import Kept, MemoryFile
from .kept_shards import KeptShards
from .lent import within
from .levels import Levels
from .loop import Loop
from .member import JobEnded, Member
from .packed_values import PackedValues
from .peer import Peer
from .protocol import messages as m
from .protocol import serving as s
from .protocol.keys import Keys, element
from .protocol.pace import EVERY
from .protocol.rounds import Rounds
from .protocol.waits import BEHIND_HOSTS, beyond
from .shards import Budget, Shards
from .stream import Frame, Stream
from .updater import UpdateRule, nested

MOST_SEGMENTS = 1 << 14  # that one agent may lend


class Server:
    """Serve until the scheduler reports that the job has ended."""

    def __init__(self, environment: Environment) -> None:
        self._loop = Loop()
        self._peers: dict[Stream, Peer] = {}
        self._speakers: dict[tuple[int, int], Peer] = {}  # by rank and lane
        self._events: deque[s.Event] = deque()
        self._busy, self._arrivals = False, 0
        self._announcing: Peer | None = None  # whose push the machine is told of
        self._payload: memoryview | None = None  # of that push, where it is here
        self._due: deque[Stream] = deque()
        self._early: set[Stream] = set()
        self._host, self._held, self._rejoins = environment.host, HeldBack(), environment.rejoin > 0
        identity = tls.listening(environment, environment.check_address(environment.bind))
        listening = listen((environment.bind, 0))
        address = written(listening.getsockname()[:2])
        try:
            self._member = Member(self._loop, environment, "server", address=address)
        except BaseException:
            listening.close()
            self._loop.close()
            raise
        told = Told(self._member.name)
        self._gate = Gate(self._loop, listening, environment, at(address), self._opened, told, identity)
        welcome = self._member.welcome
        self._levels = Levels.parse(welcome.consistency)
        self._member.failed = self._tell_failure
        self._keys = Keys(environment.most_bytes, self._levels.names(welcome))
        self._shards = self._taken(environment, self._levels.speakers(welcome))
        self._packed_values = PackedValues(self._shards, again=environment.incarnation > 0)
        self._rounds = Rounds(
            range(self._levels.speakers(welcome)), self._levels.between, environment.deadline, left=self._shards.left,
            answers=beyond(environment.deadline, BEHIND_HOSTS), names=self._levels.names(welcome),
        )  # fmt: skip
        self._go_on()
        self._told_deadlines: list[float] = []
        self._tick = min(TICK, environment.deadline / 10)

    def _taken(self, environment: Environment, ranks: int) -> Shards:
        """The memory of this server; with what it had committed where it is started again."""
        budget = Budget(environment.most_bytes)
        if environment.kept is None:
            return Shards(self._keys, budget, self._levels.between.by_staleness)
        kept = Kept(MemoryFile(environment.kept), ranks, self._member.welcome.gathering)
        return KeptShards(self._keys, budget, kept, self._levels.between.by_staleness)

    def _go_on(self) -> None:
        """Tell the machine what was committed."""
        if self._shards.optimizer is not None:
            self._rounds.handle(s.Configured(self._shards.elementwise))
        for key in self._shards:
            self._rounds.handle(self._declared_as(key))

    def _declared_as(self, key: int, rank: int = m.NOBODY, lane: int = 0) -> s.KeyDeclared:
        held = self._shards[key]
        shard, counts, applied = held.shard, self._shards.counts(key), held.applied
        return s.KeyDeclared(key, shard.nbytes, shard.name, shard.whole, held.step, rank, lane, counts, applied)

    def run(self) -> bool:
        """Serve until the job has ended, or (True) gathers again. Raises what it failed with."""
        try:
            self._ticked()
            self._report()
            with np.errstate(all="ignore"):
                self._loop.run(lambda: self._member.ended or self._member.failure is not None)
            failure = self._member.failure
            if failure is None:
                for peer in list(self._peers.values()):  # one that has gone leaves them as it is told
                    self._tell(peer, m.Bye(self._member.welcome.rank))
            self._drain(2.0)
            if failure is not None and self._rejoins and self._member.gathers():
                return True
            self._member.leave(0 if failure is None else 1, "" if failure is None else failure.message)
            if failure is not None:
                raise failure
            return False
        finally:
            self._close()

    def _drain(self, seconds: float) -> None:
        """Let the last words leave: a connection that is closed with bytes unread loses what was sent."""
        end = time.monotonic() + seconds
        for stream in list(self._peers):
            stream.finish()
        while self._peers and time.monotonic() < end:
            self._loop.step(max(0.0, end - time.monotonic()))

    def _close(self) -> None:
        for stream in self._peers:
            stream.close()
        self._gate.close()
        self._loop.close()

    def _ticked(self) -> None:
        self._handle(s.ServerTicked(time.monotonic()))
        self._loop.after(self._tick, self._ticked)

    def _report(self) -> None:
        self._member.say(m.Report(self._member.welcome.rank, self._held.counts()))
        self._loop.after(EVERY, self._report)

    def _opened(self, sock: socket.socket) -> None:
        stream = Stream(self._loop, sock, self, describe(sock))
        self._arrivals += 1
        self._peers[stream] = peer = Peer(stream, self._arrivals)
        if self._member.failure is not None:  # the others have been told
            self._tell(peer, m.Failed((), self._member.failure.message[:4000], "server"))
            stream.finish()

    # --- what streams report

    def place(self, stream: Stream, frame: Frame) -> memoryview | None:
        peer = self._peers[stream]
        if not isinstance(frame.message, m.Push):
            return memoryview(bytearray(frame.header.length))
        if peer.receiving is None:
            receiving = self._announced(peer, frame)
            if receiving.early and stream not in self._early:
                self._wait_for_others(stream)
                return None
        return self._target(peer)

    def arrived(self, stream: Stream, frame: Frame, payload: memoryview) -> None:
        peer = self._peers[stream]
        header, message = frame
        if message.__class__ is not m.Push:
            self._heard(peer, frame, payload)
            return
        if peer.packings:
            peer.packings.pop(header.key, None)
        self._come(peer, frame, payload)

    def _come(self, peer: Peer, frame: Frame, payload: memoryview) -> None:
        """A frame of a push has come whole."""
        header = frame.header
        if peer.receiving is None and not header.offset:
            self._pushed(peer, frame, payload)
        else:
            if peer.receiving is None:
                self._announced(peer, frame)
                self._target(peer)[:] = payload
            self._complete(peer)

    def lost(self, stream: Stream, reason: str) -> None:
        peer = self._peers.pop(stream)
        self._early.discard(stream)
        if self._speakers.get((peer.rank, peer.lane)) is peer:
            del self._speakers[peer.rank, peer.lane]
            self._held.left(peer.rank)
            if peer.said_bye:
                self._gone(peer)
            else:
                self._handle(s.Left(peer.rank, f"is lost: {reason}", lane=peer.lane, who=peer.name))

    # --- pushes

    def _pushed(self, peer: Peer, frame: Frame, payload: memoryview) -> None:
        """A push has come with its payload."""
        header, push = frame
        assert isinstance(push, m.Push)
        if push.rank != peer.rank:
            peer.check(push.rank)
        wire.check(header, self._keys)
        if peer.targets:
            peer.targets.pop(push.key, None)
        if push.step and header.length == self._keys[push.key].nbytes:
            self._held.complete(push.rank, push.key)
        self._announcing, self._payload = peer, payload
        self._handle(s.Pushed(push.rank, push.key, push.step, header.length, push.pull, peer.lane))
        self._payload = None

    def _announced(self, peer: Peer, frame: Frame) -> s.ServerReceive:
        """Tell the machine of a push, and keep what it says about the payload."""
        push = frame.message
        assert isinstance(push, m.Push)
        peer.check(push.rank)
        wire.check(frame.header, self._keys)
        hi = push.offset + frame.header.length
        peer.targets.pop(push.key, None)
        self._announcing = peer
        self._handle(s.Opened(push.rank, push.key, push.step, push.offset, hi, push.pull, peer.lane))
        if peer.receiving is None:  # the job has failed
            peer.receiving = s.ServerReceive(push.rank, push.key, push.step, push.offset, hi, "nothing")
        return peer.receiving

    def _target(self, peer: Peer) -> memoryview:
        r = peer.receiving
        assert r is not None
        return self._shards.place(r.key, r.rank, r.lo, r.hi, r.into)

    def _complete(self, peer: Peer) -> None:
        """The payload of a push is in memory."""
        r, peer.receiving = peer.receiving, None
        assert r is not None
        self._given(r)
        if r.step and r.hi == self._keys[r.key].nbytes:
            self._held.complete(r.rank, r.key)
        self._handle(s.Arrived(r.rank, r.key, r.step, r.hi))

    def _offered(self, peer: Peer, frame: Frame, offer: m.Offer) -> None:
        """Bytes of a push lie in lent memory."""
        peer.check(offer.rank)
        peer.packings.pop(offer.key, None)
        shard = self._keys.get(offer.key)
        lo, hi = offer.offset, offer.offset + offer.length
        if shard is None or not lo < hi <= shard.nbytes:
            raise WireError(f"bytes {lo} to {hi} of key number {offer.key}", where="Offer")
        size = element(shard.dtype).itemsize
        if lo % size or hi % size:
            raise WireError(f"bytes {lo} to {hi} cut an element of {size} bytes", where="Offer")
        inside = partial(within, peer.segments, peer.name, nbytes=shard.nbytes, itemsize=size)
        source = inside(offer.source, offer.at)
        target = inside(offer.target, offer.to) if offer.pull else None
        self._announcing = peer
        self._handle(s.Opened(offer.rank, offer.key, offer.step, lo, hi, offer.pull, peer.lane))
        r = peer.receiving
        if r is None:  # the job has failed
            return
        if target is not None and r.into != "nothing":
            peer.targets[offer.key] = target
        self._shards.lend(r.key, r.rank, r.lo, r.hi, r.into, r.keep, source)
        self._complete(peer)

    def _packed(self, peer: Peer, frame: Frame, packed: m.Packed, payload: memoryview) -> None:
        """A frame of a push has come packed."""
        peer.check(packed.rank)
        self._packed_values.check()
        header = wire.as_push(frame.header, packed)
        wire.check(header, self._keys)
        plain = self._packed_values.unpack(packed, payload)
        peer.packings[packed.key] = packed.scheme
        push = m.Push(packed.key, packed.step, packed.rank, packed.offset, packed.pull)
        self._come(peer, Frame(header, push), plain)

    def _lent(self, peer: Peer, message: m.Lend) -> None:
        """Map a segment that the agent of this host lends, or forget it."""
        peer.check(message.rank)
        if not message.size:
            peer.segments.pop(message.number, None)
            return
        place = lent.Place(message.process, message.file, message.kernel, message.node, message.size)
        able = peer.beside and lent.near(peer.stream) and len(peer.segments) < MOST_SEGMENTS
        memory = lent.reach(place) if able else None
        if memory is not None:
            peer.segments[message.number] = memory
        self._tell(peer, m.Lend(message.number, peer.rank, size=0 if memory is None else message.size))

    def _wait_for_others(self, stream: Stream) -> None:
        """Leave an early payload in the kernel's buffers for now."""
        if not self._early:
            self._loop.when_idle(self._read_early)
        self._early.add(stream)

    def _read_early(self) -> None:
        """Stage the early payloads when there is nothing else to do, since another key may be behind them."""
        early, self._early = self._early, set()
        for stream in early:
            stream.resume()

    # --- everything else

    def _heard(self, peer: Peer, frame: Frame, payload: memoryview) -> None:
        message = frame.message
        if self._member.failure is not None:
            return
        if peer.rank == m.NOBODY and not isinstance(message, m.Hello):
            raise WireError(f"{type(message).__name__} before Hello", where=peer.name)
        match message:
            case m.Hello():
                self._joined(peer, message)
            case m.Init():
                self._declared(peer, message)
            case m.Offer():
                self._offered(peer, frame, message)
            case m.Lend():
                self._lent(peer, message)
            case m.Packed():
                self._packed(peer, frame, message, payload)
            case m.Pull(key, step, rank):
                peer.targets.pop(key, None)
                peer.check(rank)
                wire.check(frame.header, self._keys)
                self._handle(s.Asked(rank, key, step, peer.lane))
            case m.SetOptimizer():
                self._configured(peer, message)
            case m.States():
                self._states(peer, frame, message, payload)
            case m.Rows():
                self._rows(peer, frame, message, payload)
            case m.Slices():
                self._slices(peer, frame, message, payload)
            case m.ServerStats():
                self._tell(peer, m.ServerStats(self._rounds.stats()))
            case m.Bye(_, code, reason):
                peer.said_bye = code == 0
                if code:
                    self._handle(s.Left(peer.rank, f"failed: {reason}", lane=peer.lane, who=peer.name))
            case m.Late(key, step, rank):
                peer.check(rank)
                self._handle(s.Excused(rank, key, step))
            case m.Failed(_, reason):
                self._member.fail(PeerError(reason, where=peer.name))
            case m.Heartbeat():
                pass
            case _:
                raise WireError(f"{type(message).__name__} is no message for a server", where=peer.name)

    def _joined(self, peer: Peer, hello: m.Hello) -> None:
        if peer.rank != m.NOBODY:
            raise WireError("a second Hello", where=peer.name)
        most = self._levels.speakers(self._member.welcome)
        if not 0 <= hello.rank < most:
            raise WireError(f"rank {hello.rank} of {most}", where=peer.name)
        name, place = self._named(hello), (hello.rank, hello.lane)
        before = self._speakers.get(place)
        if before is not None and before.number > peer.number:
            raise WireError("a newer connection has taken its place", where=name)
        peer.rank, peer.lane, peer.name = *place, name
        peer.beside = hello.role == "agent" and hello.host == self._host
        self._speakers[place] = peer
        if hello.deadline > 0:  # of kv.create, which this process cannot know
            self._told_deadlines.append(hello.deadline)
            self._rounds.deadline = max(self._told_deadlines)
        takes_part = self._rounds.takes_part(hello.rank)
        if self._handle(s.Joined(hello.rank, hello.incarnation, hello.lane)):
            del self._speakers[place]  # who has been told that it is refused
            if before is not None:
                self._speakers[place] = before
            peer.stream.finish()
            return
        if not takes_part:
            self._shards.come(hello.rank, {key: self._rounds.counted(hello.rank, key) for key in self._shards})
        if before is not None:  # what it has said and was not read is said again
            del self._peers[before.stream]
            self._early.discard(before.stream)
            before.stream.close()
        self._tell(peer, m.Welcome(self._member.welcome.rank))

    def _named(self, hello: m.Hello) -> str:
        """Return the name of a peer in messages; at level 2 a rank may be that of a host."""
        if hello.role == "agent":
            return f"the agent of host {hello.host!r}"
        ranks: tuple[int, ...] = (hello.rank,)
        if self._levels.sums:
            _, ranks = self._member.welcome.hosts[hello.rank]
        if not 1 <= hello.lane <= len(ranks):
            raise WireError(f"lane {hello.lane} of {len(ranks)} workers", where=hello.host)
        return f"worker {ranks[hello.lane - 1]} on host {hello.host!r}"

    def _declared(self, peer: Peer, init: m.Init) -> None:
        peer.check(init.rank)
        known = len(self._keys)
        try:
            key = self._keys.admit(init)
            self._shards.declare(key)
        except MezzoError as error:
            if len(self._keys) > known:
                self._keys.withdraw(len(self._keys))
            self._tell(peer, m.Refused(error.message[:4000], error.hint, rank=init.rank))
            return
        if not self._handle(self._declared_as(key, init.rank, peer.lane)):
            step = self._rounds.counted(init.rank, key)
            self._tell(peer, m.Init(init.name, init.dtype, init.shape, init.lo, init.hi, init.rank, key, step))

    def _configured(self, peer: Peer, message: m.SetOptimizer) -> None:
        """Take an optimizer; every rank sends it, and only the first that differs changes anything."""
        given = m.SetOptimizer(message.name, message.scalars)
        if given != self._shards.optimizer:
            try:
                rule = UpdateRule({"kind": message.name, **nested(message.scalars)})
            except MezzoError as error:
                self._tell(peer, m.Refused(error.message[:4000], error.hint, rank=peer.rank))
                return
            if self._handle(s.Configured(rule.elementwise, peer.rank, peer.lane)):
                return
            self._shards.set_rule(rule, given)
        self._tell(peer, message)

    def _states(self, peer: Peer, frame: Frame, message: m.States, payload: memoryview) -> None:
        """Tell the states of a shard, or take them."""
        key, length = message.key, frame.header.length
        if key not in self._keys:
            raise WireError(f"key number {key} was never declared", where=peer.name)
        if not message.arrays:
            arrays, parts = self._shards.states(key)
            flat = b"".join(parts)
            for lo in range(0, len(flat), wire.FRAME):
                part = flat[lo : lo + wire.FRAME]
                answer = m.States(key, peer.rank, lo, arrays)
                peer.stream.send(wire.encode(answer, len(part)), part)
            return
        total = wire.check_states(frame.header, message, self._shards.most_states(key))
        if message.offset == 0:
            peer.loading = bytearray(total)
        if len(peer.loading) != total:
            raise WireError("states that do not fit together", where=peer.name)
        peer.loading[message.offset : message.offset + length] = payload
        if message.offset + length < total:
            return
        try:
            self._shards.load_states(key, message.arrays, peer.loading)
            self._tell(peer, m.States(key, peer.rank))
        except MezzoError as error:
            self._tell(peer, m.Refused(error.message[:4000], error.hint, key, rank=peer.rank))

    def _rows(self, peer: Peer, frame: Frame, message: m.Rows, payload: memoryview) -> None:
        """Step some rows of a value when all of them have arrived."""
        peer.check(message.rank)
        wire.check(frame.header, self._keys)
        key, lo = message.key, message.offset
        if message.total > self._shards.most_rows(key) or lo + len(payload) > message.total:
            raise WireError(f"bytes {lo} to {lo + len(payload)} of {message.total} of rows", where=peer.name)
        if lo == 0:
            peer.loading = bytearray(message.total)
        if len(peer.loading) != message.total:
            raise WireError("rows that do not fit together", where=peer.name)
        peer.loading[lo : lo + len(payload)] = payload
        if lo + len(payload) < message.total:
            return
        loaded, peer.loading = peer.loading, bytearray()
        try:
            self._shards.step_rows(key, loaded, message.first, message.rank, message.step)
            self._tell(peer, m.Rows(key, peer.rank, message.step))
        except MezzoError as error:
            self._tell(peer, m.Refused(error.message[:4000], error.hint, key, rank=peer.rank))

    def _slices(self, peer: Peer, frame: Frame, message: m.Slices, payload: memoryview) -> None:
        """Answer a request for some bytes of a value. Earlier pushes of its rank have been answered, so there is
        nothing to wait for; in a sequential store no round of the key is open."""
        peer.check(message.rank)
        wire.check(frame.header, self._keys)
        if len(payload) % 8:
            raise WireError(f"{len(payload)} bytes of slices", where=peer.name)
        data = self._shards.slices(message.key, np.frombuffer(payload, np.int64), message.width, message.rank)
        peer.stream.send(wire.encode(message, len(data)), data)

    def _gone(self, peer: Peer) -> None:
        """A rank has closed its store. In a sequential job it is still missed where others push on."""
        if not self._levels.between.sums:
            self._handle(s.Left(peer.rank, "it has left", orderly=True, lane=peer.lane))
            if not self._rounds.takes_part(peer.rank):
                self._shards.leave(peer.rank)

    # --- what the machine wants

    def _handle(self, event: s.Event) -> bool:
        """Tell the machine, and do what it says; whether it refused something. Events that come meanwhile follow."""
        if self._busy:
            self._events.append(event)
            return False
        self._busy, refused = True, False
        try:
            refused = self._do(self._rounds.handle(event))
            while self._events:
                refused |= self._do(self._rounds.handle(self._events.popleft()))
        except MezzoError as error:
            self._member.fail(error)
        finally:
            self._busy = False
        while self._due:
            self._due.popleft().resume()
        return refused

    def _do(self, instructions: Iterable[s.Instruction]) -> bool:
        refused = False
        for i in instructions:  # matching by pattern costs microseconds
            if isinstance(i, s.ServerReceive):
                self._receive(i)
            elif isinstance(i, s.Send):
                self._send(i)
            elif isinstance(i, s.Add):
                key, _, rank, lo, hi, first = i
                self._shards.add(key, rank, lo, hi, first)
            elif isinstance(i, s.Apply):
                self._shards.apply(*i)
            else:
                refused |= self._do_else(i)
        return refused

    def _do_else(self, i: s.Instruction) -> bool:
        match i:
            case s.Due(rank):
                self._due.extend(stream for stream in self._early if self._peers[stream].rank == rank)
            case s.Acknowledge(rank, key, step, lane):
                self._held.answered(rank, key)
                self._tell(self._speakers.get((rank, lane)), m.Done(key, step, rank))
            case s.Refuse(rank, key, step, reason, hint, lane):
                self._tell(self._speakers.get((rank, lane)), m.Refused(reason, hint, key, step, rank))
                return True
            case s.Ask(rank, key, step):
                for peer in (peer for peer in self._peers.values() if peer.rank == rank):
                    self._tell(peer, m.Late(key, step, rank))
            case s.ServerFail(ranks, reason):
                self._member.say(m.Failed(ranks, reason))
                self._member.fail(PeerError(reason, where=self._member.name))
        return False

    def _receive(self, i: s.ServerReceive) -> None:
        peer, payload, self._payload = self._announcing, self._payload, None
        assert peer is not None
        if payload is None:
            peer.receiving = i
        else:
            self._shards.place(i.key, i.rank, i.lo, i.hi, i.into)[:] = payload
            self._given(i)

    def _given(self, i: s.ServerReceive) -> None:
        """An initial value is complete with its last bytes, before anybody is told."""
        if i.into == "value" and i.hi == self._shards[i.key].nbytes:
            self._shards.given(i.key)

    def _send(self, i: s.Send) -> None:
        if i.hi == self._keys[i.key].nbytes:
            self._held.answered(i.rank, i.key)
            self._shards.read(i.key, i.rank)
        peer = self._speakers.get((i.rank, i.lane))
        if peer is None:
            return
        target = peer.targets.get(i.key)
        if target is not None and i.hi > i.lo:
            target[i.lo : i.hi] = self._shards.view(i.key, i.step, i.lo, i.hi)
            self._tell(peer, m.Written(i.key, i.step, i.rank, i.lo, i.hi - i.lo))
            return
        packing = peer.packings.get(i.key) if i.step and peer.packings else None
        if packing is not None and self._levels.between.sums and self._shards.optimizer is None:
            for head, packet in self._packed_values.frames(i, packing, peer.answered):
                peer.stream.send(wire.encode(head, len(packet)), packet)
            return
        for lo in range(i.lo, max(i.hi, i.lo + 1), wire.FRAME):
            part = self._shards.view(i.key, i.step, lo, min(i.hi, lo + wire.FRAME))
            part = self._packed_values.with_losses(i, lo, part)
            peer.stream.send(wire.encode(m.Value(i.key, i.step, i.rank, lo), len(part)), part)

    def _tell(self, peer: Peer | None, message: m.Message) -> None:
        if peer is not None:
            peer.stream.send(wire.encode(message))

    def _tell_failure(self, error: MezzoError) -> None:
        """Everybody hears at once why nothing comes any more."""
        for peer in list(self._peers.values()):
            self._tell(peer, m.Failed((), error.message[:4000], "server"))


def serve(environment: Environment) -> None:
    """Be a server of a job until it ends, one after the other if it gathers again. Raises what it failed with."""
    again = True
    while again:
        try:
            server = Server(environment)
        except JobEnded:
            if not environment.incarnation:
                raise
            return  # the one in whose place it is was killed when nobody needed it any more
        again = server.run()
