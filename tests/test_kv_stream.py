"""Frames over real sockets: whatever the kernel cuts, they arrive as they were sent, and nothing wrong passes."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mezzo as mz
from mezzo.kvstore import wire
from mezzo.kvstore.address import connect, listen, parse_address
from mezzo.kvstore.loop import Loop
from mezzo.kvstore.protocol import messages as m
from mezzo.kvstore.stream import Door, Frame, Stream


class Ear:
    """Keeps what arrives; of the payloads that are not here at once it pauses those that `pauses` says."""

    def __init__(self, pauses: Sequence[bool] = ()) -> None:
        self.heard: list[tuple[m.Message, bytes]] = []
        self.reason = ""
        self.pauses = iter(pauses)
        self.waiting: Stream | None = None

    def place(self, stream: Stream, frame: Frame) -> memoryview | None:
        if next(self.pauses, False):
            self.waiting = stream
            return None
        return memoryview(bytearray(frame.header.length))

    def arrived(self, stream: Stream, frame: Frame, payload: memoryview) -> None:
        self.heard.append((frame.message, bytes(payload)))

    def lost(self, stream: Stream, reason: str) -> None:
        self.reason = reason


@contextmanager
def pair(ear: Ear, buffer: int = 0) -> Iterator[tuple[Loop, Stream, Stream]]:
    """A loop, a stream and its other end, where `ear` listens."""
    loop = Loop()
    ends = socket.socketpair()
    for sock in ends if buffer else ():
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer)
    a, b = Stream(loop, ends[0], Ear()), Stream(loop, ends[1], ear)
    try:
        yield loop, a, b
    finally:
        a.close()
        b.close()
        loop.close()


def run(loop: Loop, ear: Ear, count: int) -> None:
    for _ in range(10_000):
        if len(ear.heard) >= count or ear.reason:
            return
        if ear.waiting is not None:
            stream, ear.waiting = ear.waiting, None
            stream.resume()
        loop.step(0)
    raise AssertionError(f"{len(ear.heard)} of {count} frames came")


SIZES = st.sampled_from([0, 1, 47, 4096, 70_000, 130_000, wire.FRAME]) | st.integers(0, 5000)
MESSAGES = st.tuples(SIZES, st.booleans())


@settings(max_examples=60, deadline=None)
@given(st.lists(MESSAGES, max_size=12), st.sampled_from([0, 4096]), st.lists(st.booleans(), max_size=12))
def test_frames_arrive_as_they_were_sent(given_: list[tuple[int, bool]], buffer: int, pauses: list[bool]) -> None:
    ear = Ear(pauses)
    rng = np.random.default_rng(len(given_))
    sent: list[tuple[m.Message, bytes]] = []
    left: list[int] = []
    with pair(ear, buffer) as (loop, a, b):
        for i, (size, control) in enumerate(given_):
            payload = b"" if control else rng.bytes(size)
            message: m.Message = m.Barrier(f"b{i}", 3) if control else m.Push(i + 1, i, 0, 0)
            a.send(wire.encode(message, len(payload)), memoryview(payload), sent=partial(left.append, i))
            sent.append((message, payload))
        run(loop, ear, len(sent))
        assert ear.heard == sent
        assert left == list(range(len(sent)))
        assert a.waiting == 0
        assert not b.closed


def test_what_sent_calls_send_follows() -> None:
    ear = Ear()
    with pair(ear) as (loop, a, _):

        def more(number: int) -> None:
            if number < 3000:  # would be too deep for recursion
                a.send(wire.encode(m.Done(1, number, 0)), sent=lambda: more(number + 1))

        more(0)
        run(loop, ear, 3000)
        assert [message.step for message, _ in ear.heard if isinstance(message, m.Done)] == list(range(3000))


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"GET / HTTP/1.1\r\n\r\n" * 4, "does not speak the protocol"),
        (wire.encode(m.Heartbeat())[:20], "closed the connection"),
        (wire.encode(m.Push(1, 1, 0), 200_000) + b"x" * 150_000, "amid a value"),
        (wire.encode(m.Push(1, 1, 0), wire.FRAME + 1), "bytes of payload"),
    ],
)
def test_what_is_wrong_ends_the_stream(data: bytes, told: str) -> None:
    ear = Ear()
    with pair(ear) as (loop, a, b):
        a.send(data)
        for _ in range(5):
            loop.step(0)
        a.close()
        run(loop, ear, 1)
        assert told in ear.reason
        assert b.closed


def test_a_finished_stream_is_heard_to_the_end() -> None:
    ear = Ear()
    with pair(ear, 4096) as (loop, a, _):
        payload = bytes(400_000)
        a.send(wire.encode(m.Push(1, 1, 0), len(payload)), payload)
        a.finish()
        run(loop, ear, 1)
        assert ear.heard[0][1] == payload
        run(loop, ear, 2)
        assert ear.reason == "it closed the connection"


def test_addresses() -> None:
    loop = Loop()
    opened: list[socket.socket] = []
    door = Door(loop, listen(("127.0.0.1", 0)), opened.append)
    try:
        sock = connect(door.sock.getsockname(), 5.0, "server")
        loop.step(1)
        assert len(opened) == 1
        for each in (sock, *opened):
            each.close()
        with pytest.raises(mz.InputError, match="cannot listen"):
            listen(door.sock.getsockname())
    finally:
        door.close()
        loop.close()
    with pytest.raises(mz.DeadlineError, match=r"scheduler at 127.0.0.1:1: nobody answers within 0.1 s"):
        connect(("127.0.0.1", 1), 0.1, "scheduler")
    with pytest.raises(mz.InputError, match="is no address"):
        parse_address("nowhere")


def test_timers_and_idle_calls() -> None:
    loop = Loop()
    called: list[str] = []
    try:
        loop.after(0.02, lambda: called.append("late"))
        loop.after(0.0, lambda: called.append("soon"))
        loop.after(0.01, lambda: called.append("never")).cancel()
        loop.when_idle(lambda: called.append("idle"))
        loop.run(lambda: len(called) == 3)
        assert called == ["idle", "soon", "late"]
    finally:
        loop.close()


def test_calls_that_take_long_leave_time_for_others() -> None:
    """One that is due again before it has ended waits for the next look at the sockets."""
    loop, calls = Loop(), list[float]()

    def again() -> None:
        calls.append(time.monotonic())
        assert len(calls) < 50, "it is all that the loop does"
        loop.after(0.001, again)
        time.sleep(0.002)

    loop.after(0.0, again)
    for _ in range(3):
        loop.step(0.01)
    loop.close()
    assert 1 <= len(calls) <= 3
