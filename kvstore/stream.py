"""Framed connections that never block: heads go into a small buffer, payloads straight to their target.

A frame is a head (`wire.py`) and a payload. Small frames come whole with one call of the kernel, several of them at a
time; a payload that is not here yet is received by `recv_into` at the place which the receiver names, which may answer
"not now": then the bytes wait in the kernel's buffers and hold the sender back.
"""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import NamedTuple, Protocol

from ..ops.errors import MezzoError
from . import wire
from .address import describe
from .loop import READ, WRITE, Loop
from .protocol.messages import Message
from .tls import Secure
from .wire import HEADER, Header

SMALL = 128 << 10  # bytes of the buffer for heads and small frames; the longest head fits
AT_ONCE = 16  # buffers for one call of the kernel


class Receiver(Protocol):
    """Handler of the frames of a stream."""

    def arrived(self, stream: Stream, frame: Frame, payload: memoryview) -> None:
        """A frame is complete. The payload is where `place` said, or in a buffer that is reused after this call."""

    def place(self, stream: Stream, frame: Frame) -> memoryview | None:
        """Return the memory for a payload that has not arrived yet, or None to wait for `resume`."""

    def lost(self, stream: Stream, reason: str) -> None:
        """The other end has closed, died, or sent what cannot be understood; the stream is closed.

        A MezzoError that `arrived` or `place` raises ends the stream likewise."""


class Frame(NamedTuple):
    """The part of a message before its payload."""

    header: Header
    message: Message


class Stream:
    """One connection over TCP, with TLS or without, or a unix socket, with a name for messages."""

    def __init__(self, loop: Loop, sock: socket.socket, receiver: Receiver, name: str = "") -> None:
        sock.setblocking(False)
        if sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.loop, self.sock, self.receiver = loop, sock, receiver
        self.name = name or describe(sock)
        self.closed = False
        self.paused: Frame | None = None  # its payload has no place yet
        self.taken = 0  # bytes that the kernel took from us
        self._out: deque[memoryview] = deque()
        self._given = 0  # bytes given to `send`
        self._told: deque[tuple[int, Callable[[], None]]] = deque()
        self._small = memoryview(bytearray(SMALL))
        self._wanted = SMALL  # how far to fill it: heads alone while long payloads follow each other
        self._have = 0  # bytes in it
        self._read = 0  # of which handled
        self._frame: Frame | None = None  # whose payload is being received
        self._body = self._small[:0]
        self._at = 0
        self._giving = False
        self._finishing = False
        self._events = READ
        self._secure = sock if isinstance(sock, Secure) else None  # which may hold bytes that the loop knows nothing of
        if self._secure is not None:
            loop.after(0, self.readable)
        loop.watch(sock, self)

    # --- sending

    def send(self, *parts: bytes | memoryview, sent: Callable[[], None] | None = None) -> None:
        """Send these buffers, in order; `sent` is called when the kernel has taken them, and they may change again."""
        if self.closed:
            return
        if not self._out and not self._giving:
            parts = self._give(parts)
            if self.closed:
                return
            if not parts:  # as nearly always
                if sent is not None:
                    self._giving = True
                    sent()
                    self._giving = False
                    if self._out:
                        self.writable()
                return
            self._want(READ | WRITE)
        for part in parts:
            view = memoryview(part)
            if len(view):
                self._out.append(view)
                self._given += len(view)
        if sent is not None:
            self._told.append((self._given, sent))

    def _give(self, parts: tuple[bytes | memoryview, ...]) -> tuple[bytes | memoryview, ...]:
        """Give these buffers to the kernel; what it does not take."""
        try:
            count = self.sock.sendmsg(parts)
        except BlockingIOError:
            return parts
        except OSError as error:
            self._lose(str(error))
            return ()
        self.taken += count
        self._given += count
        for number, part in enumerate(parts):
            if count < len(part):
                return (memoryview(part)[count:], *parts[number + 1 :])
            count -= len(part)
        return ()

    @property
    def waiting(self) -> int:
        """Bytes that the kernel has not taken yet."""
        return self._given - self.taken

    def writable(self) -> None:
        """Give the kernel what it takes. What `sent` calls send further is given too, without recursion."""
        out, self._giving = self._out, True
        while out and not self.closed:
            try:
                count = self.sock.sendmsg(out if len(out) <= AT_ONCE else list(islice(out, AT_ONCE)))
            except BlockingIOError:
                break
            except OSError as error:
                self._giving = False
                self._lose(str(error))
                return
            self.taken += count
            while count:
                size = len(out[0])
                if count < size:
                    out[0] = out[0][count:]
                    break
                count -= size
                out.popleft()
            while self._told and self._told[0][0] <= self.taken:
                self._told.popleft()[1]()
        self._giving = False
        if self._finishing and not out and not self.closed:
            self._finish()
        self._want(READ | WRITE if out else READ)

    # --- receiving

    def readable(self) -> None:
        """Receive what is there, until there is no more or a payload has no place."""
        while not self.closed and self.paused is None:
            try:
                more = self._receive_head() if self._frame is None else self._receive_body()
            except BlockingIOError:
                return
            except OSError as error:
                self._lose(str(error))
                return
            if not more and (self._secure is None or self._secure.drained):
                return

    def _receive_head(self) -> bool:
        """Fill the small buffer and handle whole frames in it; whether it is worth trying again at once."""
        have, wanted = self._have, max(self._wanted, self._have + 1)
        count = self.sock.recv_into(self._small[have:wanted] if have or wanted < SMALL else self._small)
        if not count:
            self._lose("it closed the connection")
            return False
        self._have = have + count
        self._parse()
        return self._frame is not None

    def _receive_body(self) -> bool:
        body = self._body
        count = self.sock.recv_into(body[self._at :] if self._at else body)
        if not count:
            self._lose("it closed the connection amid a value")
            return False
        self._at += count
        if self._at < len(body):
            return False
        self._deliver()
        return True

    def _deliver(self) -> None:
        frame, body = self._frame, self._body
        assert frame is not None
        self._frame, self._body = None, self._small[:0]
        try:
            self.receiver.arrived(self, frame, body)
        except MezzoError as error:
            self._lose(str(error))

    def _parse(self) -> None:
        small = self._small
        while self._have - self._read >= HEADER and not self.closed and self.paused is None and self._frame is None:
            start = self._read + HEADER
            try:
                header = wire.parse(small, self._read)
                after = start + header.metadata
                if after > self._have:
                    self._wanted = SMALL
                    break
                frame = Frame(header, wire.decode(header, small[start:after] if header.metadata else b""))
                stop = after + header.length
                if stop <= self._have:
                    self._read = stop
                    self._wanted = SMALL
                    self.receiver.arrived(self, frame, small[after:stop])
                else:
                    self._read = after
                    self._start(frame)
            except MezzoError as error:
                self._lose(str(error))
                return
        if self.paused is None:
            self._compact()

    def _compact(self) -> None:
        """Bytes that are not handled yet go to the front of the small buffer."""
        rest = self._have - self._read
        if rest and self._read:
            self._small[:rest] = bytes(self._small[self._read : self._have])
        self._read, self._have = 0, rest

    def _start(self, frame: Frame) -> None:
        """Receive a payload at its place, or wait for one. What is here of it stands at `_read`."""
        try:
            place = self.receiver.place(self, frame)
        except MezzoError as error:
            self._lose(str(error))
            return
        if self.closed:
            return
        if place is None:
            self.paused = frame
            self._want(self._events)
            return
        self._at = self._have - self._read
        place[: self._at] = self._small[self._read : self._have]
        self._read = self._have
        self._wanted = HEADER
        self._frame, self._body = frame, place

    def resume(self) -> None:
        """Ask again for the place of a payload that had none."""
        frame, self.paused = self.paused, None
        if frame is None or self.closed:
            return
        self._start(frame)
        if self.paused is None:
            self._compact()
            self._want(self._events | READ)
            self.readable()

    # --- ending

    def _want(self, events: int) -> None:
        if self.paused is not None:
            events &= ~READ
        if events != self._events and not self.closed:
            if not events:
                self.loop.forget(self.sock)
            elif not self._events:
                self.loop.watch(self.sock, self, events)
            else:
                self.loop.change(self.sock, events)
            self._events = events

    def _lose(self, reason: str) -> None:
        if not self.closed:
            self.close()
            self.receiver.lost(self, reason)

    def finish(self) -> None:
        """Send nothing after the data so far; the other end is told, and its close is waited for (`lost`)."""
        self._finishing = True
        if not self._out and not self.closed:
            self._finish()

    def _finish(self) -> None:
        try:
            self.sock.shutdown(socket.SHUT_WR)
        except OSError as error:
            self._lose(str(error))

    def close(self) -> None:
        """Close the connection; nobody is told."""
        if self.closed:
            return
        if self._events:
            self.loop.forget(self.sock)
        self.closed = True
        self.sock.close()
        self._out.clear()
        self._told.clear()


class Door:
    """A listening socket in a loop; `opened` gets accepted connections."""

    def __init__(self, loop: Loop, sock: socket.socket, opened: Callable[[socket.socket], None]) -> None:
        sock.setblocking(False)
        self.loop, self.sock, self._opened = loop, sock, opened
        loop.watch(sock, self)

    def readable(self) -> None:
        try:
            sock, _ = self.sock.accept()
        except OSError:
            return  # gone again
        self._opened(sock)

    def writable(self) -> None: ...

    def close(self) -> None:
        if self.sock.fileno() >= 0:
            self.loop.forget(self.sock)
            self.sock.close()
