"""The user at the other end of a connection over loopback: told by the kernel, and another one is refused."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import mezzo as mz
from mezzo.kvstore import gate, user
from mezzo.kvstore.environment import Environment
from mezzo.kvstore.protocol import handshake as h

from .test_kv_handshake import LONG, place

OTHER = 12345  # a user that has nothing to do with this one
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a process of another user")
WAYS = {"sock_diag": user._asked, "tables": user._listed}

# What a process of another user does: it knocks, or it listens; what it is sent goes to its output.
KNOCKING = """
import os, socket, sys
"".encode("idna")  # loaded while this user may read it
os.setuid(int(sys.argv[1]))
sock = socket.create_connection((sys.argv[2], int(sys.argv[3])))
print("there", flush=True)
data = b""
try:
    sock.sendall(bytes.fromhex(sys.argv[4]))
    while part := sock.recv(4096):
        data += part
except ConnectionError:
    pass
print(data.hex(), flush=True)
"""
LISTENING = """
import os, socket, sys
"".encode("idna")  # loaded while this user may read it
os.setuid(int(sys.argv[1]))
door = socket.create_server(("127.0.0.1", 0))
print(door.getsockname()[1], flush=True)
sock, _ = door.accept()
heard = sock.recv(4096)
sock.sendall(bytes.fromhex(sys.argv[2]))
while part := sock.recv(4096):
    heard += part
print(heard.hex(), flush=True)
"""


@contextmanager
def of_another_user(code: str, *args: object) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-S", "-c", code, str(OTHER), *map(str, args)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@contextmanager
def pair(family: socket.AddressFamily, address: str, target: str) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of a connection over loopback, of which the first has called."""
    dual = family == socket.AF_INET6 and address == "::"
    with socket.create_server((address, 0), family=family, dualstack_ipv6=dual) as door:
        mine = socket.create_connection((target, door.getsockname()[1]))
        theirs, _ = door.accept()
        with mine, theirs:
            yield mine, theirs


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("family", "address", "target"),
    [
        (socket.AF_INET, "127.0.0.1", "127.0.0.1"),
        (socket.AF_INET6, "::1", "::1"),
        (socket.AF_INET6, "::", "127.0.0.1"),  # the listener sees an address of version 6
    ],
)
def test_the_kernel_tells_whose_the_other_end_is(
    family: socket.AddressFamily, address: str, target: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pair(family, address, target) as ends:
        for sock in ends:
            mine, theirs = sock.getsockname()[:2], sock.getpeername()[:2]
            found = WAYS[way](theirs, mine)
            assert found is not None
            assert (found.state, found.user) == (user.ESTABLISHED, os.geteuid())
            assert found.inode == os.fstat((ends[0] if sock is ends[1] else ends[1]).fileno()).st_ino
            assert user.stranger(sock) == ""
        monkeypatch.setattr(os, "geteuid", lambda: OTHER)
        assert [user.stranger(sock) for sock in ends] == [f"it belongs to user 0, and this process runs as {OTHER}"] * 2


@pytest.mark.parametrize("way", WAYS)
def test_an_end_that_nobody_holds_is_not_taken_for_root_s(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel shows user 0 for it."""
    for name in {"_asked", "_listed"} - {WAYS[way].__name__}:
        monkeypatch.setattr(user, name, _unknown)
    with socket.create_server(("127.0.0.1", 0)) as door, socket.create_connection(door.getsockname()) as mine:
        assert user.stranger(mine) == user._GONE, "nobody has accepted it yet"
        theirs, _ = door.accept()
        assert user.stranger(mine) == ""
        mine.close()
        assert user.stranger(theirs) == user._GONE
        theirs.close()


@pytest.mark.parametrize("way", WAYS)
def test_an_end_that_has_said_its_last_words_belongs_to_its_user(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scheduler says to who comes late how the job has ended, and nothing more."""
    for name in {"_asked", "_listed"} - {WAYS[way].__name__}:
        monkeypatch.setattr(user, name, _unknown)
    with pair(socket.AF_INET, "127.0.0.1", "127.0.0.1") as (mine, theirs):
        mine.shutdown(socket.SHUT_WR)
        assert [user.stranger(sock) for sock in (mine, theirs)] == ["", ""]
        monkeypatch.setattr(os, "geteuid", lambda: OTHER)
        assert all("it belongs to user 0" in user.stranger(sock) for sock in (mine, theirs))


def _unknown(here: user.Place, there: user.Place) -> None:
    raise PermissionError("not for this process")


def _nothing(here: user.Place, there: user.Place) -> None:
    return None


def test_where_nobody_tells_the_key_alone_decides(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for answer, told in ((_unknown, "not for this process"), (_nothing, "it knows no socket of this process")):
        monkeypatch.setattr(user, "_told", False)
        monkeypatch.setattr(user, "_asked", answer)
        monkeypatch.setattr(user, "_listed", answer)
        with pair(socket.AF_INET, "127.0.0.1", "127.0.0.1") as ends:
            assert [user.stranger(sock) for sock in ends] == ["", ""]
        (line,) = capsys.readouterr().err.splitlines()
        assert told in line
        assert "the job's key alone decides" in line


def test_connections_of_other_kinds_are_not_asked_about(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user, "_owner", _unknown)
    one, other = socket.socketpair()
    with one, other:
        assert user.stranger(one) == ""
    closed = socket.socket()
    assert user.stranger(closed) == user._GONE
    closed.close()


@needs_root
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("key", ["", "the key"])
def test_who_connects_from_another_account_is_refused(key: str, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a byte is read or said, with a job's key and without one."""
    if way != "sock_diag":
        monkeypatch.setattr(user, "_asked", _unknown)
    greeting = h.Handshake("caller", key.encode(), b"n" * h.NONCE, "scheduler").handle(h.Began())[0]
    assert isinstance(greeting, h.Say)
    with place(key) as made, of_another_user(KNOCKING, *made.address, greeting.data.hex()) as other:
        made.until(lambda: bool(made.refused))
        (error,) = made.refused
        assert f"it belongs to user {OTHER}, and this process runs as 0" in error.message
        assert error.where.startswith("127.0.0.1:")
        assert error.hint == gate.ONE_USER
        assert not made.gate._waiting
        assert said(other) == "there"
        assert said(other) == "", "it was told something"
        assert not made.opened
        member = made.call(key)
        assert isinstance(member, socket.socket)
        member.close()


@needs_root
@pytest.mark.parametrize("key", ["", "the key"])
def test_who_listens_from_another_account_is_refused(key: str) -> None:
    """Before anything is proven to it."""
    greeting = h._LAYOUT.pack(h.MAGIC, h.VERSION, h.GREETING, 1, bool(key), bytes(h.NONCE))
    with of_another_user(LISTENING, greeting.hex()) as other:
        job = Environment("worker", ("127.0.0.1", int(said(other))), 1, 0, "h", key=key)
        with pytest.raises(mz.PeerError, match=f"it belongs to user {OTHER}, and this process runs as 0"):
            gate.enter(job.root, LONG, job, "scheduler", "scheduler")
        heard = bytes.fromhex(said(other))
    assert len(heard) == h.SIZE, "more than the greeting was said"
