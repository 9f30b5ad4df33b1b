"""The user at the other end of a connection over loopback, as the kernel tells it.

A unix socket has SO_PEERCRED; over TCP the kernel is asked for the other end's socket, which is on the same machine: by
sock_diag (https://man7.org/linux/man-pages/man7/sock_diag.7.html), which finds one socket at once, or where that is
absent in /proc/net/tcp and tcp6, whose reading takes milliseconds.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import struct
import sys
from pathlib import Path
from typing import NamedTuple

from .environment import local

ESTABLISHED = 1  # state of a socket
# States of a socket that may still be held, half-closed by either end; one that is closed shows user 0 and no inode.
HELD = (ESTABLISHED, 4, 5, 8)  # FIN_WAIT1, FIN_WAIT2, CLOSE_WAIT
Place = tuple[str, int]  # address and port of one end
_NETLINK_SOCK_DIAG, _BY_FAMILY, _ERROR = 4, 20, 2
_HEAD = struct.Struct("=IHHII")  # length, type, flags, number, port
_QUESTION = struct.Struct("=BBBxI")  # family, protocol, extensions, states
_ENDS = struct.Struct("!HH16s16sI8s")  # ports, addresses, interface, any cookie
_ANSWER = struct.Struct("=BBBB48sIIIII")  # family, state, timer, retransmits, ends, expires, queues, user, inode
_told = False


class Owner(NamedTuple):
    """The state of a socket, its user, and its inode, which is 0 while nobody has accepted it."""

    state: int
    user: int
    inode: int


def stranger(sock: socket.socket) -> str:
    """Return why the other end of a connection may not speak with this process, or an empty text.

    Over loopback it must belong to the same user; root is no exception, since a job has one user. Where the system
    does not tell, that is said once, and the job's key alone decides.
    """
    try:
        mine, theirs = sock.getsockname(), sock.getpeername()
    except OSError:
        return _GONE
    if not isinstance(theirs, tuple) or not local(theirs[0]):
        return ""
    try:
        found = _owner(mine[:2], theirs[:2])
    except OSError as error:
        _tell(error)
        return ""
    if found is None or found.state not in HELD or not found.inode:
        return _GONE
    if found.user != os.geteuid():
        return f"it belongs to user {found.user}, and this process runs as {os.geteuid()}"
    return ""


_GONE = "it closed the connection before the handshake had ended"


def _tell(error: OSError) -> None:
    global _told
    if not _told:
        _told = True
        why = f"the system does not tell whose processes connect over loopback ({error})"
        print(f"mezzo: {why}; the job's key alone decides", file=sys.stderr, flush=True)


def _owner(mine: Place, theirs: Place) -> Owner | None:
    """Return who owns the other end of a connection; None where it is gone. Raises OSError where nobody tells."""
    error = OSError("it knows no socket of this process")
    for ask in (_asked, _listed):
        try:
            found = ask(theirs, mine)
            if found is not None or ask(mine, theirs) is not None:  # our own end is there if any is
                return found
        except OSError as problem:
            error = problem
    raise error


def _packed(address: str) -> bytes:
    """Return the bytes of an address; those of version 4 are four, however they are written."""
    found = ipaddress.ip_address(address.partition("%")[0])
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return (mapped or found).packed


def _asked(here: Place, there: Place) -> Owner | None:
    """Ask sock_diag for the socket that is bound to `here` and connected to `there`."""
    source, target = _packed(here[0]), _packed(there[0])
    family = socket.AF_INET if len(source) == 4 else socket.AF_INET6
    ends = _ENDS.pack(here[1], there[1], source, target, 0, b"\xff" * 8)
    question = _QUESTION.pack(family, socket.IPPROTO_TCP, 0, 0xFFFFFFFF) + ends
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG) as kernel:
        kernel.settimeout(1.0)
        kernel.sendto(_HEAD.pack(_HEAD.size + len(question), _BY_FAMILY, 1, 0, 0) + question, (0, 0))
        answer = kernel.recv(4096)
    _, kind, *_ = _HEAD.unpack_from(answer)
    if kind == _ERROR or len(answer) < _HEAD.size + _ANSWER.size:
        return None
    _, state, *_, user, inode = _ANSWER.unpack_from(answer, _HEAD.size)
    return Owner(state, user, inode)


def _listed(here: Place, there: Place) -> Owner | None:
    """Look the same up in the kernel's tables of all sockets."""
    wanted = [_written(here, mapped).encode() + b" " + _written(there, mapped).encode() for mapped in (False, True)]
    found = None
    for name in ("tcp", "tcp6"):
        table = Path(f"/proc/net/{name}")
        if name == "tcp6" and not table.exists():
            continue
        text = table.read_bytes()
        for ends in wanted:
            at = text.find(ends)
            if at >= 0:
                state, _, _, _, user, _, inode = text[at + len(ends) :].split(None, 7)[:7]
                found = Owner(int(state, 16), int(user), int(inode))
    return found


def _written(place: Place, mapped: bool) -> str:
    """Return an end as these tables have it: words of the machine, and as one of version 6 where that is `mapped`."""
    packed = _packed(place[0])
    if mapped and len(packed) == 4:
        packed = bytes(10) + b"\xff\xff" + packed
    words = struct.unpack(f"={len(packed) // 4}I", packed)
    return "".join(f"{word:08X}" for word in words) + f":{place[1]:04X}"
