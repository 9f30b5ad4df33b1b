"""Attackers of a job: each is refused and told of, memory does not grow, and the job goes on to its right result."""

from __future__ import annotations

import os
import resource
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

import mezzo as mz
from mezzo.kvstore import gate, wire
from mezzo.kvstore.address import parse_address
from mezzo.kvstore.environment import Environment
from mezzo.kvstore.protocol import handshake as h
from mezzo.kvstore.protocol import messages as m

from .test_kv_handshake import place
from .test_kv_key import KEY, OTHER, job, wait_for
from .test_kv_network import LONG, SHORT, SLACK, Job
from .test_kv_tls import Middle, needs_certificates
from .test_kv_user import needs_root, of_another_user

GROWTH = 64 << 20  # bytes that a process may take while it is attacked: a tenth of what keeping all would take
PICKLED = b"cposix\nsystem\n(S'touch /tmp/attacked'\ntR."  # what would run a command
PLACES = gate.MOST + 64  # descriptors of a listener: those who wait for their handshake, and those of a small job

# So many connections at once, each closed one made again at once, until somebody ends this; with a greeting or without.
FLOOD = """
import resource, select, socket, sys, time
host, port, count, words = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), bytes.fromhex(sys.argv[4])
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
count = min(count, hard - 100)
poll, socks, made = select.epoll(), {}, 0

def knock():
    global made
    sock = socket.socket()
    sock.setblocking(False)
    sock.connect_ex((host, port))
    socks[sock.fileno()] = sock
    poll.register(sock, select.EPOLLOUT | select.EPOLLONESHOT)
    made += 1

while True:
    for _ in range(min(100, count - len(socks))):
        knock()
    for fd, events in poll.poll(0.01):
        sock = socks[fd]
        if events & (select.EPOLLHUP | select.EPOLLERR | select.EPOLLRDHUP):
            poll.unregister(fd)
            socks.pop(fd).close()
            continue
        try:
            sock.send(words)
        except OSError:
            pass
        poll.modify(fd, select.EPOLLRDHUP | select.EPOLLONESHOT)
    if made >= count:
        print(made, flush=True)
        count, made = min(count, 400), 0  # and then again and again
        time.sleep(0.001)
"""


def said(machine: h.Handshake, event: h.Event) -> bytes:
    return b"".join(i.data for i in machine.handle(event) if isinstance(i, h.Say))


def recorded(key: bytes, service: str) -> tuple[bytes, bytes]:
    """What a member said in an earlier handshake: its greeting and its proof."""
    one, other = (h.Handshake(side, key, os.urandom(h.NONCE), service) for side in h._SIDES)
    greeting = said(one, h.Began())
    return greeting, said(one, h.HandshakeReceived(said(other, h.HandshakeReceived(greeting))))


def heard(address: str, *words: bytes, pause: float = 0.0) -> bytes:
    """What a process answers to these words until it closes the connection."""
    place = parse_address(address)
    assert not isinstance(place, str)
    data = b""
    with socket.create_connection(place, LONG) as sock, suppress(ConnectionError):
        for word in words:
            sock.sendall(word)
            time.sleep(pause)
        while part := sock.recv(4096):
            data += part
    return data


def attack(job: Environment, address: str, service: str) -> None:
    """Every way in that needs no time: each is refused."""
    place = parse_address(address)
    assert not isinstance(place, str)
    for key in ("", OTHER):
        with pytest.raises(mz.PeerError):
            gate.enter(place, LONG, replace(job, key=key, tls=job.tls and key != ""), service, "process")
    with pytest.raises(mz.PeerError):  # TLS taken away, or where there is none
        gate.enter(place, LONG, replace(job, tls=not job.tls), service, "process")
    greeting, proof = recorded(KEY.encode(), service)
    older, newer = (bytes((*greeting[:4], version, *greeting[5:])) for version in (h.VERSION - 1, h.VERSION + 1))
    large = bytearray(wire.encode(m.Push(1, 1, 0), 1))
    large[32:40] = (1 << 62).to_bytes(8, "little")
    for words in ((greeting, proof), (older,), (newer,), (bytes(large),), (PICKLED,), (os.urandom(1 << 16),)):
        answer = heard(address, *words, pause=0.01)
        assert len(answer) <= 2 * h.SIZE, "more than a greeting and a refusal"
        assert wire.MAGIC not in answer
    if not job.tls:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        with pytest.raises(OSError), socket.create_connection(place, LONG) as sock:  # noqa: PT011
            context.wrap_socket(sock)


@contextmanager
def dripping(address: str) -> Iterator[None]:
    """Connections that send a byte of a header from time to time."""
    place, enough = parse_address(address), threading.Event()
    assert not isinstance(place, str)

    def drip() -> None:
        socks = [socket.create_connection(place) for _ in range(8)]
        for number in range(h.SIZE // 2):
            for sock in socks:
                with suppress(OSError):
                    sock.send(recorded(KEY.encode(), gate.SCHEDULER)[0][number : number + 1])
            if enough.wait(1.0):
                break
        for sock in socks:
            sock.close()

    thread = threading.Thread(target=drip)
    thread.start()
    try:
        yield
    finally:
        enough.set()
        thread.join()


@contextmanager
def flooded(address: str, count: int, words: bytes) -> Iterator[None]:
    """A flood from a process of its own, of so many connections as the limit on descriptors lets it have."""
    host, port = address.rsplit(":", 1)
    command = [sys.executable, "-S", "-c", FLOOD, host, port, str(count), words.hex()]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert int(process.stdout.readline()) >= min(count, resource.getrlimit(resource.RLIMIT_NOFILE)[1] - 100)
        yield
    finally:
        process.kill()
        process.communicate()


def resident(pid: int) -> int:
    (line,) = [each for each in Path(f"/proc/{pid}/status").read_text().splitlines() if each.startswith("VmRSS")]
    return int(line.split()[1]) << 10


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def attacked(made: Job, folder: Path, count: int) -> None:
    """A job of two workers and a server: everything is tried at the scheduler and at the server while `count`
    connections flood one after the other; the second worker joins meanwhile."""
    made.start("scheduler", "scheduler")
    scheduler = f"127.0.0.1:{made.environment.root[1]}"
    until_listens(scheduler)
    made.start("server0", "server")
    made.start("worker0", "worker", "a", 0)
    number = made.processes["scheduler"].pid
    before = resident(number)
    greeting = recorded(KEY.encode(), gate.SCHEDULER)[0]
    with dripping(scheduler), flooded(scheduler, count, greeting):
        made.start("worker1", "worker", "b", 1)  # it joins while strangers say all that they can say
        wait_for(made, 2)
        where = (folder / "runs-0").read_text()
        assert descriptors(number) < PLACES
        attack(made.environment, scheduler, gate.SCHEDULER)
    assert resident(number) - before < GROWTH
    server = made.processes["server0"].pid
    before = resident(server)
    with dripping(where), flooded(where, count // 5, b""):
        attack(made.environment, where, gate.server(where))
        assert descriptors(server) < PLACES
    assert resident(server) - before < GROWTH
    if os.geteuid() == 0:
        for address in (scheduler, where):
            with of_another_user(KNOCKER, *address.split(":"), greeting.hex()) as other:
                assert other.stdout is not None
                assert other.stdout.readline().strip() == "nothing"
    (folder / "enough").touch()
    codes = made.wait(LONG + SLACK)
    assert set(codes.values()) == {0}, made.said()
    assert [result["steps"] > 3 for result in made.results()] == [True, True]
    for name in ("scheduler", "server0"):
        told = (folder / f"{name}.err").read_text()
        assert "refused a connection from 127.0.0.1" in told
        assert told.endswith("tells of no further ones\n")
        assert "Traceback" not in told
    assert KEY not in made.said()
    assert OTHER not in made.said()
    assert not [name for name in ("worker0", "worker1") if (folder / f"{name}.err").stat().st_size]


KNOCKER = """
import os, socket, sys
"".encode("idna")
os.setuid(int(sys.argv[1]))
data = b""
try:
    sock = socket.create_connection((sys.argv[2], int(sys.argv[3])))
    sock.sendall(bytes.fromhex(sys.argv[4]))
    while part := sock.recv(4096):
        data += part
except ConnectionError:
    pass
print(data.hex() or "nothing", flush=True)
"""


def until_listens(address: str) -> None:
    place, end = parse_address(address), time.monotonic() + LONG
    assert not isinstance(place, str)
    while True:
        with suppress(ConnectionError):
            return socket.create_connection(place).close()
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_job_goes_on_while_it_is_attacked(tmp_path: Path) -> None:
    with job(tmp_path, "until_told", 2, 1) as made:
        attacked(made, tmp_path, 5000)


@needs_certificates
@pytest.mark.soak
def test_a_job_under_tls_goes_on_while_it_is_attacked(tmp_path: Path) -> None:
    with job(tmp_path, "until_told", 2, 1) as made:
        made.environment = replace(made.environment, tls=True)
        attacked(made, tmp_path, 5000)


@needs_root
def test_a_flood_from_another_account_takes_no_place() -> None:
    with place(KEY) as made:
        code = FLOOD.replace("while True:\n", '"".encode("idna")\n__import__("os").setuid(12345)\nwhile True:\n')
        command = [sys.executable, "-S", "-c", code, *map(str, made.address), "300", "00"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            made.until(lambda: len(made.refused) > 300)
            assert {error.hint for error in made.refused} == {gate.ONE_USER}
            assert not made.gate._waiting
            member = made.call(KEY)
            assert isinstance(member, socket.socket)
            member.close()
        finally:
            process.kill()
            process.wait()


def begun(sock: socket.socket) -> tuple[socket.socket, h.Handshake]:
    """A member that has said its greeting, and reads nothing yet."""
    machine = h.Handshake("caller", KEY.encode(), os.urandom(h.NONCE), gate.SCHEDULER)
    sock.sendall(said(machine, h.Began()))
    return sock, machine


@pytest.mark.parametrize("words", ["nothing", "a greeting, from another address"])
def test_a_slow_member_keeps_its_place_in_a_flood(words: str) -> None:
    """Strangers who say nothing lose theirs first; those of one other address never take all."""
    with place(KEY) as made:
        mine, machine = begun(made.knock())
        made.until(lambda: any(caller.greeted for caller in made.gate._waiting))
        strangers = []
        greeting, source = recorded(KEY.encode(), gate.SCHEDULER)[0], ("127.0.0.2", 0)
        for number in range(1, 2 * gate.MOST):
            if words == "nothing":
                strangers.append(made.knock())
            else:
                strangers.append(socket.create_connection(made.address, source_address=source))
                strangers[-1].sendall(greeting)
            made.until(lambda number=number: len(made.refused) + len(made.gate._waiting) == number + 1)  # type: ignore[misc]
            assert len(made.gate._waiting) <= gate.SHARE + 1
        mine.settimeout(LONG)
        for _ in range(2):
            mine.sendall(said(machine, h.HandshakeReceived(mine.recv(h.SIZE, socket.MSG_WAITALL))))
            made.until(lambda: bool(made.opened))
        for sock in (mine, *strangers):
            sock.close()


def test_half_a_header_a_little_at_a_time_is_cut_off() -> None:
    with place(KEY, deadline=1.0) as made:
        socks, greeting = [made.knock() for _ in range(4)], recorded(KEY.encode(), gate.SCHEDULER)[0]
        begin, at = time.monotonic(), 0
        while len(made.refused) < len(socks):
            for sock in socks:
                with suppress(OSError):
                    sock.send(greeting[at : at + 1] if at < h.SIZE // 2 else b"")
            at += 1
            made.loop.step(0.05)
            assert time.monotonic() - begin < LONG
        assert time.monotonic() - begin > 0.9
        assert {error.message for error in made.refused} == {"it has not proven the job's key within 1 s"}
        for sock in socks:
            sock.close()


def test_a_member_that_is_closed_without_a_word_tries_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Strangers may have had its place."""
    monkeypatch.setattr(gate, "PAUSE", 0.001)
    sent_away = 0

    def away(sock: socket.socket) -> None:
        nonlocal sent_away
        sent_away += 1
        sock.close()

    with place(KEY) as made:
        let_in = made.gate._knocked
        made.gate._door._opened = lambda sock: away(sock) if sent_away < gate.TRIES - 1 else let_in(sock)
        member = made.call(KEY)
        assert isinstance(member, socket.socket)
        member.close()
        assert sent_away == gate.TRIES - 1
        made.gate._door._opened = away
        error = made.call(KEY)
        assert isinstance(error, mz.PeerError)
        assert "closed the connection before the handshake had ended" in error.message
        assert sent_away == 2 * gate.TRIES - 1


@needs_certificates
def test_who_is_in_the_middle_ends_a_job_and_is_told_of(tmp_path: Path) -> None:
    """Between one host and the scheduler: it relays and sees nothing, until it changes one bit. Then the job ends on
    every process, with the name of who was at the other end."""
    changes = threading.Event()

    def change(data: bytes, before: int) -> bytes:
        return bytes((*data[:-1], data[-1] ^ 1)) if changes.is_set() else data

    with job(tmp_path, "until_told", 2, 1, SHORT) as made:
        made.environment = replace(made.environment, tls=True)
        scheduler = made.environment.root
        made.start("scheduler", "scheduler")
        until_listens(f"127.0.0.1:{scheduler[1]}")
        made.start("server0", "server")
        made.start("worker0", "worker", "a", 0)
        middle = Middle(scheduler, change)
        try:
            made.environment = replace(made.environment, root=middle.address)
            made.start("worker1", "worker", "b", 1)
            wait_for(made, 2)
            assert len(middle.seen) > 1000
            for part in (KEY.encode(), h.MAGIC, wire.MAGIC, b"worker", b"agent", b"sequential"):
                assert part not in middle.seen
            changes.set()
            codes = made.wait(SHORT * 3 + SLACK)
        finally:
            middle.close()
        assert codes["scheduler"] == codes["server0"] == 1
        one, other = (result["error"] for result in made.results())
        assert "host 'b'" in one
        # who reads a changed record first says so and closes; its farewell reaches the other end changed, or not at all
        changed, cut = "what it sent was changed on its way", ("EOF occurred", "reset by peer", "Broken pipe", "closed")
        assert changed in one or changed in other
        assert all(changed in told or any(end in told for end in cut) for told in (one, other)), (one, other)
