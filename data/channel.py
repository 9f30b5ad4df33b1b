"""Messages between a trainer and its worker processes: msgpack over a socket pair, with descriptors beside them."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Sequence
from typing import Any

from ..ops.errors import WireError
from .tree import from_bytes, to_bytes

HEAD = struct.Struct("<IB")  # bytes of the message, descriptors with it
MOST_DESCRIPTORS = 64
LONGEST = 1 << 30


class Closed(Exception):
    """The other side is gone."""


def send(sock: socket.socket, message: Any, descriptors: Sequence[int] = ()) -> None:
    """Send a message, and descriptors, which stay open here. Raises Closed."""
    data = to_bytes(message)
    try:
        head = HEAD.pack(len(data), len(descriptors))
        if descriptors:
            socket.send_fds(sock, [head], descriptors)
        else:
            sock.sendall(head)
        sock.sendall(data)
    except OSError as error:
        raise Closed from error


def receive(sock: socket.socket) -> tuple[Any, list[int]]:
    """Wait for a message; returns it and descriptors that are the caller's. Raises Closed, WireError."""
    descriptors = list[int]()
    try:
        try:
            head, descriptors, _, _ = socket.recv_fds(sock, HEAD.size, MOST_DESCRIPTORS)
            while 0 < len(head) < HEAD.size:
                head += _more(sock, HEAD.size - len(head))
            if not head:
                raise Closed
            size, count = HEAD.unpack(head)
            if size > LONGEST or count != len(descriptors):
                raise WireError(f"a message of {size} bytes with {len(descriptors)} descriptors", where="DataLoader")
            data = bytearray()
            while len(data) < size:
                data += _more(sock, size - len(data))
        except OSError as error:
            raise Closed from error
        return from_bytes(bytes(data)), descriptors
    except BaseException:
        for fd in descriptors:
            os.close(fd)
        raise


def _more(sock: socket.socket, count: int) -> bytes:
    data = sock.recv(count)
    if not data:
        raise Closed
    return data
