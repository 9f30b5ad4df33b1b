"""Access control of a process of a job: a connection is closed, or handed on, when the handshake has ended.

`Gate` listens, in a loop; `enter` calls and waits. Until then nothing is read but the few bytes that the machine of
`protocol/handshake.py` asks for, no memory is taken for buffers, and time is limited.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable

from ..ops.errors import DeadlineError, MezzoError, PeerError
from .address import Address, connect, describe, written
from .environment import Environment, local
from .loop import Loop
from .protocol import handshake as h
from .stream import Door
from .user import stranger

MOST = 128  # connections whose handshake has not ended; one more, and the oldest is closed
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
    closed."""

    def __init__(
        self, loop: Loop, sock: socket.socket, environment: Environment, service: str, opened: Opened, refused: Refused
    ) -> None:
        self._loop, self._environment, self._service = loop, environment, service
        self._opened, self._refused = opened, refused
        self._patience = min(PATIENCE, environment.deadline)
        self._waiting: dict[_Caller, float] = {}  # in order of arrival: when their time is up
        self._timed = False
        self._door = Door(loop, sock, self._knocked)

    def _knocked(self, sock: socket.socket) -> None:
        if reason := stranger(sock):
            where = describe(sock)
            sock.close()
            self._refused(PeerError(reason, where=where, hint=ONE_USER))
            return
        if len(self._waiting) >= MOST:
            next(iter(self._waiting)).broke(f"{MOST} newer connections wait")
        caller = _Caller(self, self._loop, sock, _handshake("listener", sock, self._environment, self._service))
        self._waiting[caller] = time.monotonic() + self._patience
        if not self._timed:
            self._timed = True
            self._loop.after(self._patience, self._late)
        caller.begin()

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
        loop.watch(sock, self)

    def begin(self) -> None:
        self._handle(h.Began())

    def broke(self, reason: str) -> None:
        self._handle(h.Broke(reason))

    def readable(self) -> None:
        try:
            data = self.sock.recv(self._machine.wanted)
        except BlockingIOError:
            return
        except OSError as error:
            self.broke(str(error))
            return
        self._handle(h.HandshakeReceived(data) if data else h.Broke(_CLOSED))

    def writable(self) -> None: ...

    def _handle(self, event: h.Event) -> None:
        for instruction in self._machine.handle(event):
            if not isinstance(instruction, h.Say):
                self._gate.ended(self, instruction)
                return
            try:
                sent = self.sock.send(instruction.data)
            except OSError:
                sent = 0
            if sent < len(instruction.data):  # a few bytes always find room in a connection that is new
                self._gate.ended(self, h.HandshakeRefuse(_CLOSED))
                return


def enter(address: Address, deadline: float, environment: Environment, service: str, who: str) -> socket.socket:
    """A connection to a process of the job that listens at `address`, or soon will, its handshake done.

    Raises DeadlineError where nobody answers within `deadline` seconds, and PeerError where who answers is no member.
    """
    end = time.monotonic() + deadline
    sock, where = connect(address, deadline, who), f"{who} at {written(address)}"
    try:
        _prove(sock, _handshake("caller", sock, environment, service), end)
    except BaseException as error:
        sock.close()
        if isinstance(error, TimeoutError):
            why = f"the handshake has not ended within {deadline:g} s"
            raise DeadlineError(why, where=where, hint="is this the right port?") from error
        if isinstance(error, MezzoError):
            error.at(where)
        raise
    return sock


def _prove(sock: socket.socket, machine: h.Handshake, end: float) -> None:
    """Exchange messages until the machine says that the connection is open. Raises PeerError, or TimeoutError."""
    event: h.Event = h.Began()
    while True:
        try:
            for instruction in machine.handle(event):
                if isinstance(instruction, h.HandshakeRefuse):
                    raise PeerError(instruction.reason, hint=instruction.hint)
                # the kernel knows whose the other end is once it has been accepted, hence when it has said something
                if not isinstance(event, h.Began) and (reason := stranger(sock)):
                    raise PeerError(reason, hint=ONE_USER)
                match instruction:
                    case h.Open():
                        return
                    case h.Say(data):
                        sock.settimeout(max(0.001, end - time.monotonic()))
                        sock.sendall(data)
            sock.settimeout(max(0.001, end - time.monotonic()))
            data = sock.recv(machine.wanted)
            event = h.HandshakeReceived(data) if data else h.Broke(_CLOSED)
        except TimeoutError:
            raise
        except OSError as error:
            event = h.Broke(f"{_CLOSED} ({error})")


_CLOSED = "it closed the connection before the handshake had ended"


def _handshake(side: h.Side, sock: socket.socket, environment: Environment, service: str) -> h.Handshake:
    try:
        peer = sock.getpeername()
    except OSError:  # closed already, which the first read tells
        peer = ""
    here = not isinstance(peer, tuple) or local(peer[0])
    key = environment.key.encode("utf8", "surrogateescape")
    return h.Handshake(side, key, os.urandom(h.NONCE), service, here)
