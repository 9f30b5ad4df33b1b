"""Sockets between all pairs of members of a host: short tags, with file descriptors of memory beside them.

A tag is 24 bytes: kind, flags, three numbers of 32 bits and one of 64. A *note* is a tag with a body of msgpack behind
it, and sometimes a descriptor. A closed socket means that the process at its other end has died or left.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import msgpack

from ...ops.errors import DeadlineError, InputError
from ..loop import READ, WRITE, Loop

TAG = struct.Struct("<BBHIIIQ")
HELLO, NOTE, GONE, ABOVE, FIRST = range(5)  # kinds of tags; whoever uses a mesh has those from FIRST on
MAGIC = 0x4D5A4B31
LONGEST = 1 << 20  # bytes of a note
AT_ONCE = 1 << 16  # bytes of one call of the kernel
_FDS = 4 * 16 + 64  # room for so many descriptors, and their head
_WITH_FD = 1
LOOK = 0.1  # seconds between looks at something else while members are missing
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid


class Tag(NamedTuple):
    """A message from a member. The `body` is that of a note; `fd` is the caller's to close."""

    member: int
    kind: int
    a: int = 0
    b: int = 0
    c: int = 0
    d: int = 0
    body: Any = None
    fd: int = -1


class _Peer:
    """One socket: partly received messages, and data that is not sent yet."""

    __slots__ = ("fds", "got", "member", "out", "sock")

    def __init__(self, member: int, sock: socket.socket) -> None:
        self.member, self.sock = member, sock
        self.got = b""
        self.fds: deque[int] = deque()
        self.out: deque[tuple[bytes, int]] = deque()


class Mesh:
    """The sockets of one member to all others. One thread may send while another receives."""

    def __init__(self, me: int, socks: dict[int, socket.socket]) -> None:
        self.me = me
        self._own: Loop | None = Loop()
        self._epoll = self._own.epoll
        self._peers = {member: _Peer(member, sock) for member, sock in socks.items()}
        self._pids = {member: _credentials(sock)[0] for member, sock in socks.items()}  # of those that have gone, too
        self._by_fd: dict[int, _Peer] = {}
        for peer in self._peers.values():
            peer.sock.setblocking(False)
            self._by_fd[peer.sock.fileno()] = peer
            self._epoll.register(peer.sock, READ)
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._epoll.register(self._bell, READ)

    @property
    def members(self) -> tuple[int, ...]:
        """The others that are there."""
        return tuple(self._peers)

    @property
    def alone(self) -> bool:
        """True if all others have ended, whatever they have sent before; nothing is received."""
        sockets = select.poll()
        for peer in self._peers.values():
            sockets.register(peer.sock, 0)  # the kernel tells of the other end in any case
        return len(sockets.poll(0)) == len(self._peers)

    def pid(self, member: int) -> int:
        """The number of a member's process as the kernel tells it; 0 where it has none in this namespace."""
        return self._pids[member]

    def share(self, loop: Loop) -> None:
        """Let `receive` also wait for the sockets of this loop from now on."""
        self._epoll = loop.epoll
        for peer in self._peers.values():
            self._epoll.register(peer.sock, READ | WRITE if peer.out else READ)
        self._epoll.register(self._bell, READ)
        if self._own is not None:
            self._own.close()
            self._own = None

    # -- sending

    def tell(self, members: tuple[int, ...], kind: int, a: int = 0, b: int = 0, c: int = 0, d: int = 0) -> None:
        """Send a tag. What a socket does not take now leaves while something is received."""
        data = TAG.pack(kind, 0, 0, a, b, c, d)
        for member in members:
            peer = self._peers.get(member)
            if peer is not None:
                self._send(peer, data, -1)

    def note(self, members: tuple[int, ...], body: Any, fd: int = -1) -> None:
        """Send a note, with a descriptor if one is given, which stays the caller's."""
        packed = msgpack.packb(body)
        if len(packed) > LONGEST:
            raise InputError(f"{len(packed)} bytes are too long for a note", where="level 1")
        data = TAG.pack(NOTE, _WITH_FD if fd >= 0 else 0, 0, len(packed), 0, 0, 0) + packed
        for member in members:
            peer = self._peers.get(member)
            if peer is not None:
                self._send(peer, data, fd)

    def _send(self, peer: _Peer, data: bytes, fd: int) -> None:
        sent = 0
        if not peer.out:
            try:
                sent = socket.send_fds(peer.sock, [data], [fd]) if fd >= 0 else peer.sock.send(data)
                if sent == len(data):
                    return
                fd = -1
            except BlockingIOError:
                pass
            except OSError:  # it has gone, which whoever receives will see
                return
        peer.out.append((data[sent:], os.dup(fd) if fd >= 0 else -1))
        self._epoll.modify(peer.sock, READ | WRITE)

    def _flush(self, peer: _Peer) -> None:
        while peer.out:
            data, fd = peer.out.popleft()
            try:
                sent = socket.send_fds(peer.sock, [data], [fd]) if fd >= 0 else peer.sock.send(data)
            except BlockingIOError:
                peer.out.appendleft((data, fd))
                return
            except OSError:
                sent = len(data)
            if fd >= 0:
                os.close(fd)
            if sent < len(data):
                peer.out.appendleft((data[sent:], -1))
                return
        self._epoll.modify(peer.sock, READ)

    def flush(self, seconds: float) -> None:
        """Let what has been said leave, for at most so long."""
        end = time.monotonic() + seconds
        while any(peer.out for peer in self._peers.values()) and time.monotonic() < end:
            self._epoll.poll(0.01)
            for peer in self._peers.values():
                if peer.out:
                    self._flush(peer)

    # -- receiving

    def receive(self, seconds: float) -> list[Tag]:
        """Return the received tags, waiting at most `seconds` for the first. A tag of kind GONE says that a member's
        socket is closed; it is the last of that member. One of kind ABOVE is for the other user of the loop."""
        found: list[Tag] = []
        try:
            ready = self._epoll.poll(max(0.0, seconds))
        except ValueError:
            if self._bell >= 0:
                raise
            return found  # another thread has closed the store meanwhile
        for fd, events in ready:
            peer = self._by_fd.get(fd)
            if peer is None:
                if fd == self._bell:
                    os.eventfd_read(fd)
                elif self._own is None:
                    found.append(Tag(self.me, ABOVE, fd, events))
                continue
            if events & WRITE:
                self._flush(peer)
            if events & ~WRITE:
                self._read(peer, found)
        return found

    def ring(self) -> None:
        """Have a thread that is receiving return."""
        os.eventfd_write(self._bell, 1)

    def _read(self, peer: _Peer, found: list[Tag]) -> None:
        try:
            data, beside, _, _ = peer.sock.recvmsg(AT_ONCE, _FDS, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return
        except OSError:
            data, beside = b"", []
        for _, _, packed in beside:
            peer.fds.extend(memoryview(packed[: len(packed) // 4 * 4]).cast("i"))
        if not data:
            found.append(self._gone(peer))
            return
        if peer.got:
            data = peer.got + data
        at, end = 0, len(data)
        while end - at >= TAG.size:
            kind, flags, _, a, b, c, d = TAG.unpack_from(data, at)
            if kind != NOTE:
                found.append(Tag(peer.member, kind, a, b, c, d))
                at += TAG.size
                continue
            if a > LONGEST:
                found.append(self._gone(peer))
                return
            if end - at < TAG.size + a:
                break
            body = msgpack.unpackb(data[at + TAG.size : at + TAG.size + a])
            found.append(Tag(peer.member, NOTE, body=body, fd=peer.fds.popleft() if flags & _WITH_FD else -1))
            at += TAG.size + a
        peer.got = data[at:]

    def _gone(self, peer: _Peer) -> Tag:
        del self._peers[peer.member]
        self._drop(peer)
        return Tag(peer.member, GONE)

    def _drop(self, peer: _Peer) -> None:
        self._epoll.unregister(peer.sock)
        del self._by_fd[peer.sock.fileno()]
        peer.sock.close()
        for fd in (*peer.fds, *(fd for _, fd in peer.out if fd >= 0)):
            os.close(fd)

    def close(self) -> None:
        """Close all sockets."""
        for peer in self._peers.values():
            self._drop(peer)
        self._peers.clear()
        if self._bell >= 0:
            self._epoll.unregister(self._bell)
            os.close(self._bell)
            self._bell = -1
        if self._own is not None:
            self._own.close()


def called(ranks: Sequence[int], agent: bool = False) -> tuple[str, ...]:
    """Workers of a host, and perhaps their agent, as errors name them."""
    return (*(f"rank {rank}" for rank in ranks), *(["the agent of this host"] if agent else []))


def join(name: str, me: int, called: Sequence[str], deadline: float, look: Callable[[], None] = lambda: None) -> Mesh:
    """Find the other members: those that call this on the same host with the same name. `called` is what errors call
    each of them.

    The sockets have abstract names, which end with their processes, and take connections of the same user alone. Raises
    DeadlineError that names the members who have not come after `deadline` seconds, and whatever `look` raises, which
    is called now and then while some are missing.
    """
    end, members = time.monotonic() + deadline, len(called)
    found: dict[int, socket.socket] = {}
    door = socket.socket(socket.AF_UNIX)
    try:
        try:
            door.bind(f"\0{name}/{me}")
        except OSError as error:
            raise InputError(
                f"{called[me]} is there already: {error}", where=name, hint="does another job use the same port?"
            ) from error
        door.listen(members)
        try:
            for other in range(me):
                found[other] = _connect(f"\0{name}/{other}", me, members, end, look)
            while len(found) < members - 1:
                door.settimeout(max(0.001, min(LOOK, end - time.monotonic())))
                try:
                    sock, _ = door.accept()
                except TimeoutError:
                    if time.monotonic() >= end:
                        raise
                    look()
                    continue
                greeted = _greeted(sock, me, members, end)
                if greeted is None or greeted in found:
                    sock.close()
                else:
                    found[greeted] = sock
        except TimeoutError as error:
            raise late(name, called, {me, *found}, deadline) from error
        return Mesh(me, dict(sorted(found.items())))
    except BaseException:
        for sock in found.values():
            sock.close()
        raise
    finally:
        door.close()


def late(name: str, called: Sequence[str], here: Collection[int], deadline: float) -> DeadlineError:
    """The error where some members have not come."""
    missing = ", ".join(who for member, who in enumerate(called) if member not in here)
    return DeadlineError(
        f"{len(here)} of {len(called)} processes of this host met within {deadline:g} s; missing {missing}",
        where=name,
        hint="have they started, and do they see the same MEZZO_HOST?",
    )


def _connect(address: str, me: int, members: int, end: float, look: Callable[[], None]) -> socket.socket:
    pause = 0.001
    while True:
        sock = socket.socket(socket.AF_UNIX)
        try:
            sock.settimeout(max(0.001, end - time.monotonic()))
            sock.connect(address)
            if _same_user(sock):
                sock.send(TAG.pack(HELLO, 0, 0, me, members, MAGIC, os.getpid()))
                return sock
        except OSError:
            pass
        sock.close()
        if time.monotonic() + pause > end:
            raise TimeoutError
        look()
        time.sleep(pause)
        pause = min(0.05, 2 * pause)


def _greeted(sock: socket.socket, me: int, members: int, end: float) -> int | None:
    """Return the member that has connected; None for a process of somebody else."""
    try:
        sock.settimeout(max(0.001, min(5.0, end - time.monotonic())))
        if not _same_user(sock):
            return None
        data = sock.recv(TAG.size, socket.MSG_WAITALL)
        if len(data) != TAG.size:
            return None
    except OSError:
        return None
    kind, _, _, other, count, magic, _ = TAG.unpack(data)
    if kind != HELLO or magic != MAGIC or count != members or not me < other < members:
        return None
    return int(other)


def _same_user(sock: socket.socket) -> bool:
    return _credentials(sock)[1] == os.getuid()


def _credentials(sock: socket.socket) -> tuple[int, int, int]:
    """Process, user and group of the other end."""
    pid, uid, gid = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return pid, uid, gid
