"""Floors of `bench/kvstore.py` over TCP: the same bytes over the same sockets, and nothing else.

`bare_stream.py server PORT` takes two connections, and receives a chunk of each and sends as much to both in turn;
`bare_stream.py threads PORT` gives each what it has received from it by two threads for each. `bare_stream.py worker
PORT` sends an array and receives as much. `bare_stream.py ring PORT RANK` are two workers that send each other an
array, as the ring of gloo does, and `tls-ring` the same under TLS, a connection for each direction: nearly all of it
happens in OpenSSL, one call for a whole array that is sent and one for each record of 16 KiB that is received.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from socket import IPPROTO_TCP, TCP_NODELAY, socket

from teams import answer

from mezzo.kvstore import tls
from mezzo.kvstore.address import connect, listen
from mezzo.kvstore.environment import LOOPBACK, Environment

CHUNK = 1 << 20  # bytes of one turn, as long as a frame


def receive(sock: socket, into: memoryview) -> bool:
    """Fill this memory; False where the other end has closed."""
    have = 0
    while have < len(into):
        count = sock.recv_into(into[have:])
        if not count:
            return False
        have += count
    return True


def give_back(sock: socket) -> None:
    """Send what is received, while more is received: as a server does, without a sum."""
    rooms = [memoryview(bytearray(CHUNK)) for _ in range(4)]
    free, full = threading.Semaphore(len(rooms)), threading.Semaphore(0)
    at = 0

    def send() -> None:
        number = 0
        while True:
            full.acquire()
            try:
                sock.sendall(rooms[number % len(rooms)])
            except OSError:
                return
            number += 1
            free.release()

    threading.Thread(target=send, daemon=True).start()
    while True:
        free.acquire()
        if not receive(sock, rooms[at % len(rooms)]):
            return
        at += 1
        full.release()


def serve(port: int) -> None:
    door = listen(("127.0.0.1", port))
    both = [accepted(door) for _ in range(2)]
    room = memoryview(bytearray(CHUNK))
    while all(receive(sock, room) for sock in both):
        for sock in both:
            sock.sendall(room)


def serve_by_threads(port: int) -> None:
    door = listen(("127.0.0.1", port))
    threads = [threading.Thread(target=give_back, args=(accepted(door),)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def accepted(door: socket) -> socket:
    sock, _ = door.accept()
    sock.setsockopt(IPPROTO_TCP, TCP_NODELAY, 1)
    return sock


def secured(rank: int, port: int) -> tuple[socket, socket]:
    """Connections under TLS: over which this end sends, and over which it receives."""
    environment = Environment("worker", (LOOPBACK, port), 2, 0, "bench", key="the key of a bench", tls=True)
    if rank:
        calling = tls.calling(environment)
        made = [calling.wrap_socket(called(port)) for _ in range(2)]
    else:
        identity, door = tls.listening(environment, LOOPBACK), listen((LOOPBACK, port))
        assert identity is not None
        made = [identity.context.wrap_socket(accepted(door), server_side=True) for _ in range(2)]
    return made[rank], made[1 - rank]


def called(port: int) -> socket:
    sock = connect((LOOPBACK, port), 30.0, "other end")
    sock.settimeout(None)
    sock.setsockopt(IPPROTO_TCP, TCP_NODELAY, 1)
    return sock


def exchange(sock: socket, other: socket | None = None) -> Callable[[int, str], Callable[[], object]]:
    """What a worker measures: so many bytes there, and as many back at one time, over another connection if one is
    given."""

    def measure(size: int, how: str) -> Callable[[], object]:
        given, found = memoryview(bytearray(size)), memoryview(bytearray(size))

        def call() -> None:
            sender = threading.Thread(target=sock.sendall, args=(given,))
            sender.start()
            receive(other or sock, found)
            sender.join()

        return call

    return measure


def main() -> None:
    what, port, rank = sys.argv[1], int(sys.argv[2]), int((*sys.argv, "0")[3])
    if what == "server":
        serve(port)
    elif what == "threads":
        serve_by_threads(port)
    elif what == "tls-ring":
        answer(exchange(*secured(rank, port)))
    elif what == "ring" and rank == 0:
        answer(exchange(accepted(listen((LOOPBACK, port)))))
    else:
        answer(exchange(called(port)))


if __name__ == "__main__":
    main()
