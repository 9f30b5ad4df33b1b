"""Addresses of processes, and the sockets that listen on them or connect to them."""

from __future__ import annotations

import errno
import socket
import time
from contextlib import suppress

from ..ops.errors import DeadlineError, InputError
from .environment import LOOPBACK, local

Address = tuple[str, int] | str  # host and port, or the path of a unix socket

BUFFER = 1 << 20  # bytes, of which the kernel takes twice as many


def describe(sock: socket.socket) -> str:
    """The other end, for people."""
    try:
        peer = sock.getpeername()
    except OSError:
        return "a closed connection"
    return f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else str(peer) or "this host"


def parse_address(text: str) -> Address:
    """ "10.0.0.7:4321" as the socket module wants it; a path is that of a unix socket.

    >>> parse_address("127.0.0.1:80"), parse_address("/run/agent")
    (('127.0.0.1', 80), '/run/agent')
    """
    if text.startswith(("/", "\0")):
        return text
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit():
        raise InputError(f"{text!r} is no address", hint="write HOST:PORT")
    return host, int(port)


def written(address: Address) -> str:
    """Return an address as the text that `parse_address` reads."""
    return address if isinstance(address, str) else f"{address[0]}:{address[1]}"


_WHY = {
    errno.EADDRINUSE: "another process has the address: give the job another port (DMLC_PS_ROOT_PORT)",
    errno.EADDRNOTAVAIL: "it is no address of this machine: see DMLC_PS_ROOT_URI and MEZZO_BIND",
    socket.EAI_NONAME: "nobody knows the name: see DMLC_PS_ROOT_URI and MEZZO_BIND",
}


def listen(address: Address) -> socket.socket:
    """A socket that accepts connections at this address (port 0: any)."""
    sock = _socket(address)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind(address)
        sock.listen(1024)  # strangers who come all at once keep nobody waiting for longer than they last
    except OSError as error:
        sock.close()
        hint = _WHY.get(error.errno or 0, "")
        raise InputError(f"cannot listen: {error}", where=written(address), hint=hint) from error
    return sock


class ReservedPort:
    """A free port of an address of this machine that nobody else gets until `close`, or until this is collected.

    The socket is bound and does not listen: the kernel gives its port neither to who asks for any nor to who connects,
    and `listen` may have it.
    """

    def __init__(self, address: str = LOOPBACK) -> None:
        self._socket = socket.socket(_family((address, 0)))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind((address, 0))
        self.number = int(self._socket.getsockname()[1])

    def close(self) -> None:
        self._socket.close()

    __del__ = close


def connect(address: Address, deadline: float, who: str) -> socket.socket:
    """A connection to who listens there, or soon will: tries again until `deadline` (seconds from now) has passed.

    Raises DeadlineError that names the address and `who`.
    """
    end, pause = time.monotonic() + deadline, 0.005
    while True:
        left = end - time.monotonic()
        sock = _socket(address)
        try:
            sock.settimeout(max(left, 0.001))
            sock.connect(address)
            return sock
        except OSError as error:
            sock.close()
            if time.monotonic() + pause >= end:
                raise DeadlineError(
                    f"nobody answers within {deadline:g} s ({error})",
                    where=f"{who} at {written(address)}",
                    hint=f"start the {who}, or check DMLC_PS_ROOT_URI and DMLC_PS_ROOT_PORT",
                ) from error
        time.sleep(pause)
        pause = min(0.2, pause * 2)


def _socket(address: Address) -> socket.socket:
    """A socket for an address. Over loopback both ends share the caches of one machine: buffers that grow to many
    megabytes, as the kernel's do by themselves, send every frame through main memory; and there is no link whose speed
    would have to be found out, as algorithms against congestion do by holding bytes back (BBR above all)."""
    sock = socket.socket(_family(address))
    if not isinstance(address, str) and local(address[0]):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER)
        with suppress(OSError):  # the kernel has it, but a sandbox may not
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")
    return sock


def _family(address: Address) -> socket.AddressFamily:
    if isinstance(address, str):
        return socket.AF_UNIX
    return socket.AF_INET6 if ":" in address[0] else socket.AF_INET
