"""Access control of a process of a job: a connection is closed, or handed on, when the handshake has ended.

`Gate` listens, in a loop; `enter` calls and waits. Until then nothing is read but what TLS needs, where it is spoken,
and the few bytes that the machine of `protocol/handshake.py` asks for, no memory is taken for buffers, and time is
limited.
"""

from __future__ import annotations

import os
import random
import select
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from ..ops.errors import DeadlineError, MezzoError, PeerError
from .address import Address, connect, describe, written
from .environment import Environment, local
from .loop import Loop
from .protocol import handshake as h
from .stream import Door
from .tls import Identity, Secure, TlsError, calling, secured, spoken
from .user import stranger

MOST = 256  # connections whose handshake has not ended; one more, and an older one is closed
SHARE = 128  # of these, at most so many of one address
TRIES = 5  # to be heard by who listens
PAUSE = 0.02  # seconds before the second one, twice as many before the third; a part of it is left to chance
PATIENCE = 30.0  # seconds that a handshake may take where this process listens, or the job's deadline if that is less
TOLD = 10  # refusals that a process tells of
SCHEDULER = "scheduler"  # what callers want to reach
ONE_USER = "run all processes of a job on one machine as one user"
Opened = Callable[[socket.socket], None]
Refused = Callable[[MezzoError], None]


def server(address: str) -> str:
    """Return the service name that callers expect at this address of a server."""
    return f"server {address}"


class Told:
    """Log on standard error of refused connections: the first TOLD of them, since strangers may be many."""

    def __init__(self, name: str) -> None:
        self._name, self._count = name, 0

    def __call__(self, error: MezzoError) -> None:
        self._count += 1
        if self._count <= TOLD:
            print(f"{self._name} refused a connection from {error}", file=sys.stderr, flush=True)
        if self._count == TOLD:
            print(f"{self._name} tells of no further ones", file=sys.stderr, flush=True)


class Gate:
    """A listening socket in a loop: `opened` gets connections of the job, `refused` the reasons why others were
    closed. `identity` is its certificate, where connections are encrypted.

    Places are limited. Who comes when they are taken gets that of the oldest who has said nothing, else of the oldest;
    those of one address have half of all, so that no single host keeps others out.
    """

    def __init__(
        self,
        loop: Loop,
        sock: socket.socket,
        environment: Environment,
        service: str,
        opened: Opened,
        refused: Refused,
        identity: Identity | None = None,
    ) -> None:
        self._loop, self._environment, self._service, self._identity = loop, environment, service, identity
        self._opened, self._refused = opened, refused
        self._patience = min(PATIENCE, environment.deadline)
        self._waiting: dict[_Caller, float] = {}  # in order of arrival: when their time is up
        self._timed = False
        self._door = Door(loop, sock, self._knocked)

    def _knocked(self, sock: socket.socket) -> None:
        who, reason = describe(sock), stranger(sock)
        if reason:
            sock.close()
            self._refused(PeerError(reason, where=who, hint=ONE_USER))
            return
        caller = self._caller(sock)
        self._make_room(caller.address)
        self._waiting[caller] = time.monotonic() + self._patience
        if not self._timed:
            self._timed = True
            self._loop.after(self._patience, self._late)
        caller.begin()

    def _caller(self, sock: socket.socket) -> _Caller:
        machine = partial(_handshake, "listener", sock, self._environment, self._service)
        if self._identity is None or not spoken(self._environment, sock):
            return _Caller(self, self._loop, sock, machine())
        ready = machine(self._identity.digest)
        return _Caller(self, self._loop, secured(sock, self._identity.context, listener=True), ready)

    def _make_room(self, address: str) -> None:
        neighbours = [caller for caller in self._waiting if caller.address == address]
        if len(neighbours) >= SHARE:
            those, what = neighbours, f"{SHARE} newer connections of its host wait"
        elif len(self._waiting) >= MOST:
            those, what = list(self._waiting), f"{MOST} newer connections wait"
        else:
            return
        next((caller for caller in those if not caller.greeted), those[0]).broke(what)

    def _late(self) -> None:
        """Close what has had its time; one timer serves all, since the oldest is the first."""
        now, self._timed = time.monotonic(), False
        for caller, due in list(self._waiting.items()):
            if due > now:
                self._timed = True
                self._loop.after(due - now, self._late)
                return
            caller.broke(f"it has not proven the job's key within {self._patience:g} s")

    def ended(self, caller: _Caller, end: h.Open | h.HandshakeRefuse) -> None:
        """The handshake of a connection has ended."""
        del self._waiting[caller]
        self._loop.forget(caller.sock)
        if isinstance(end, h.Open):
            self._opened(caller.sock)
            return
        who = describe(caller.sock)
        caller.sock.close()
        self._refused(PeerError(end.reason, where=who, hint=end.hint))

    def close(self) -> None:
        """Listen no longer; connections that were not handed on are closed."""
        self._door.close()
        for caller in self._waiting:
            self._loop.forget(caller.sock)
            caller.sock.close()
        self._waiting.clear()


class _Caller:
    """An accepted connection that has not been handed on."""

    def __init__(self, gate: Gate, loop: Loop, sock: socket.socket, machine: h.Handshake) -> None:
        sock.setblocking(False)
        self.sock, self._gate, self._machine = sock, gate, machine
        self.address = describe(sock).rpartition(":")[0]
        self.greeted = False
        self._shaken = not isinstance(sock, Secure)
        loop.watch(sock, self)

    def begin(self) -> None:
        self._handle(h.Began())
        self.readable()  # who belongs to the job has said something already

    def broke(self, reason: str) -> None:
        self._handle(h.Broke(reason))

    def readable(self) -> None:
        while not self._machine.over:
            try:
                if isinstance(self.sock, Secure) and not self._shaken:
                    self.sock.shake()
                    self._shaken = True
                data = self.sock.recv(self._machine.wanted)
            except BlockingIOError:
                return
            except TlsError as error:
                self._end(str(error), error.hint)
            except OSError as error:
                self.broke(str(error))
            else:
                self._handle(h.HandshakeReceived(data) if data else h.Broke(CLOSED))

    def writable(self) -> None: ...

    def _handle(self, event: h.Event) -> None:
        for instruction in self._machine.handle(event):
            if not isinstance(instruction, h.Say):
                self._gate.ended(self, instruction)
                return
            self.greeted = True
            try:
                sent = self.sock.send(instruction.data)
            except OSError:
                sent = 0
            if sent < len(instruction.data):  # a few bytes always find room in a connection that is new
                self._end(CLOSED)
                return

    def _end(self, reason: str, hint: str = "") -> None:
        self._machine.handle(h.Broke(reason))
        self._gate.ended(self, h.HandshakeRefuse(reason, hint))


def enter(
    address: Address,
    deadline: float,
    environment: Environment,
    service: str,
    who: str,
    patience: float | None = None,
) -> socket.socket:
    """A connection to a process of the job that listens at `address`, or will within `patience` seconds (by default the
    deadline), its handshake done.

    Where it closes the connection without a word it may have had to: strangers may have taken all places. So that is
    tried again, TRIES times in all. Raises DeadlineError where nobody answers within `deadline` seconds, and PeerError
    where who answers is no member.
    """
    end, left = time.monotonic() + deadline, deadline
    for again in reversed(range(TRIES)):
        where = f"{who} at {written(address)}"
        sock = connect(address, left if patience is None else min(left, patience), who)
        try:
            return _entered(sock, environment, service, end)
        except _Unheard as error:
            if not again or time.monotonic() >= end:
                raise PeerError(f"{error}, {TRIES} times", where=where, hint=h.ANOTHER) from error
            time.sleep(random.uniform(PAUSE, 2 * PAUSE) * 2 ** (TRIES - 1 - again))
            left = max(0.001, end - time.monotonic())
        except TimeoutError as error:
            why = f"the handshake has not ended within {deadline:g} s"
            raise DeadlineError(why, where=where, hint="is this the right port?") from error
        except TlsError as error:
            raise PeerError(str(error), where=where, hint=error.hint) from error
        except MezzoError as error:
            error.at(where)
            raise
    raise AssertionError("unreachable")


class _Unheard(Exception):
    """The listener has closed a connection without a word."""


def _entered(sock: socket.socket, environment: Environment, service: str, end: float) -> socket.socket:
    """Prove who this is, within the time; the connection. Otherwise it is closed."""
    try:
        sock.setblocking(False)
        certificate = b""
        if spoken(environment, sock):
            sock = secured(sock, calling(environment), listener=False)
            _shake(sock, end)
            certificate = sock.digest
        _prove(sock, _handshake("caller", sock, environment, service, certificate), end)
    except BaseException:
        sock.close()
        raise
    return sock


def _shake(sock: Secure, end: float) -> None:
    while True:
        try:
            return sock.shake()
        except BlockingIOError:
            _wait(sock, select.POLLIN, end)
        except TlsError:
            raise
        except OSError as error:
            raise _Unheard(f"{CLOSED} ({error})") from error


def _prove(sock: socket.socket, machine: h.Handshake, end: float) -> None:
    """Exchange messages until the machine says that the connection is open. Raises PeerError, or TimeoutError."""
    event: h.Event = h.Began()
    while True:
        for instruction in machine.handle(event):
            if isinstance(instruction, h.HandshakeRefuse):
                raise PeerError(instruction.reason, hint=instruction.hint)
            # the kernel knows whose the other end is once it has been accepted, hence when it has said something
            if not isinstance(event, h.Began) and (reason := stranger(sock)):
                raise PeerError(reason, hint=ONE_USER)
            if isinstance(instruction, h.Open):
                return
            with suppress(OSError):  # who has closed it may have said why, which is read next
                sock.send(instruction.data)  # so few bytes always find room in a connection that is new
        try:
            event = h.HandshakeReceived(_received(sock, machine.wanted, end))
        except (TimeoutError, TlsError):
            raise
        except OSError as error:
            raise _Unheard(f"{CLOSED} ({error})") from error


def _received(sock: socket.socket, size: int, end: float) -> bytes:
    while True:
        try:
            data = sock.recv(size)
        except BlockingIOError:
            _wait(sock, select.POLLIN, end)
            continue
        if not data:
            raise _Unheard(CLOSED)
        return data


def _wait(sock: socket.socket, event: int, end: float) -> None:
    poll = select.poll()
    poll.register(sock, event)
    if not poll.poll(max(0.0, (end - time.monotonic()) * 1000)):
        raise TimeoutError


CLOSED = "it closed the connection before the handshake had ended"


def _handshake(
    side: h.Side, sock: socket.socket, environment: Environment, service: str, certificate: bytes = b""
) -> h.Handshake:
    try:
        peer = sock.getpeername()
    except OSError:  # closed already, which the first read tells
        peer = ""
    here = not isinstance(peer, tuple) or local(peer[0])
    key = environment.key.encode("utf8", "surrogateescape")
    return h.Handshake(side, key, os.urandom(h.NONCE), service, here, certificate)
