"""The handshake of a job: the machine message by message, and the doors behind which it stands, over real sockets."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import mezzo as mz
from mezzo.kvstore import gate
from mezzo.kvstore.address import listen
from mezzo.kvstore.environment import Environment
from mezzo.kvstore.loop import Loop
from mezzo.kvstore.protocol import handshake as h

KEY, OTHER = b"the right key", b"another key"
LONG = 60.0  # seconds that nothing here needs


def caller(key: bytes = KEY, nonce: bytes = b"c", service: str = "scheduler", local: bool = True) -> h.Handshake:
    return h.Handshake("caller", key, nonce * h.NONCE, service, local)


def listener(key: bytes = KEY, nonce: bytes = b"l", service: str = "scheduler", local: bool = True) -> h.Handshake:
    return h.Handshake("listener", key, nonce * h.NONCE, service, local)


def said(made: tuple[h.Instruction, ...]) -> bytes:
    return b"".join(i.data for i in made if isinstance(i, h.Say))


def ends(made: tuple[h.Instruction, ...]) -> list[h.Instruction]:
    return [i for i in made if not isinstance(i, h.Say)]


Ends = tuple[list[h.Instruction], list[h.Instruction]]


def talk(one: h.Handshake, other: h.Handshake) -> Ends:
    """How both ends of a connection end, what each says handed to the other."""
    found: Ends = ([], [])
    data = [said(one.handle(h.Began())), said(other.handle(h.Began()))]
    while any(data):
        for number, machine in enumerate((other, one)):
            words, data[number] = data[number], b""
            while words and machine.wanted:
                part, words = words[: machine.wanted], words[machine.wanted :]
                made = machine.handle(h.HandshakeReceived(part))
                data[1 - number] += said(made)
                found[1 - number].extend(ends(made))
            assert not words, "bytes that nobody wants"
    return found


def refusal(made: Any) -> h.HandshakeRefuse:
    (end,) = made
    assert isinstance(end, h.HandshakeRefuse)
    return end


@pytest.mark.parametrize("key", [KEY, b""])
def test_members_of_a_job_meet(key: bytes) -> None:
    assert talk(caller(key), listener(key)) == ([h.Open()], [h.Open()])


def test_outside_of_the_machine_a_key_is_needed() -> None:
    assert talk(caller(local=False), listener(local=False)) == ([h.Open()], [h.Open()])
    for end in (caller(b"", local=False), listener(b"", local=False)):
        assert "outside of this machine" in refusal(end.handle(h.Began())).reason
        assert end.wanted == 0


DIFFER: dict[str, tuple[Callable[[], h.Handshake], Callable[[], h.Handshake], str, str]] = {
    "keys": (partial(caller, OTHER), listener, "the key of this process is not", "its key is not"),
    "only the listener has one": (partial(caller, b""), listener, "demands a key, and this process", "and it has none"),
    "only the caller has one": (caller, partial(listener, b""), "and it has none", "demands a key, and this process"),
    "wanted": (partial(caller, service="server 1.2.3.4:5"), listener, "the key of this process", "its key is not"),
}


@pytest.mark.parametrize("how", DIFFER)
def test_both_ends_say_what_is_wrong(how: str) -> None:
    one, other, mine, theirs = DIFFER[how]
    found = talk(one(), other())
    for made, told in zip(found, (mine, theirs), strict=True):
        end = refusal(made)
        assert told in end.reason
        assert end.hint == h.SAME_KEY
        assert OTHER.decode() not in repr(end)


def test_who_listens_without_the_key_is_found_out() -> None:
    """It cannot check the proof of who calls, and says that it was right."""
    for forged in (bytes(h.NONCE), None):
        one = caller()
        one.handle(h.Began())
        proof = said(one.handle(h.HandshakeReceived(said(_greeted(listener(OTHER))))))
        body = proof[-h.NONCE :] if forged is None else forged
        answer = h._LAYOUT.pack(h.MAGIC, h.VERSION, h.PROOF, 1, 1, body)
        assert refusal(one.handle(h.HandshakeReceived(answer))).reason == h.KEYS_DIFFER


def test_what_a_process_says_proves_nothing_when_it_is_sent_back() -> None:
    for machine in (caller(), listener()):
        mine = said(machine.handle(h.Began())) or said(
            listener(b"").handle(h.HandshakeReceived(said(caller().handle(h.Began()))))
        )
        assert "sends back" in refusal(ends(machine.handle(h.HandshakeReceived(mine)))).reason
    # the same nonce under the other side's name
    one = caller()
    one.handle(h.Began())
    assert "sends back" in refusal(one.handle(h.HandshakeReceived(said(_greeted(listener(nonce=b"c")))))).reason
    # the proof itself, under the other side's name
    two = caller()
    two.handle(h.Began())
    proof = bytearray(said(two.handle(h.HandshakeReceived(said(_greeted(listener()))))))
    assert proof[5] == h.PROOF
    proof[6] = 1  # the side
    assert refusal(two.handle(h.HandshakeReceived(bytes(proof)))).reason == h.KEYS_DIFFER


def _greeted(machine: h.Handshake) -> tuple[h.Instruction, ...]:
    """What a listener answers to a greeting of the right key."""
    return machine.handle(h.HandshakeReceived(said(caller(nonce=b"x").handle(h.Began()))))


def test_what_was_recorded_is_worth_nothing_later() -> None:
    one, first = caller(), listener()
    greeting = said(one.handle(h.Began()))
    proof = said(one.handle(h.HandshakeReceived(said(first.handle(h.HandshakeReceived(greeting))))))
    assert ends(first.handle(h.HandshakeReceived(proof))) == [h.Open()]
    later = listener(nonce=b"m")
    later.handle(h.HandshakeReceived(greeting))
    made = later.handle(h.HandshakeReceived(proof))
    assert refusal(ends(made)).reason == h.KEYS_DIFFER
    assert said(made)[5] == h.REFUSAL


def test_messages_have_an_order() -> None:
    one, other = caller(), listener()
    greeting = said(one.handle(h.Began()))
    answer = said(other.handle(h.HandshakeReceived(greeting)))
    proof = said(one.handle(h.HandshakeReceived(answer)))
    for machine, data in [
        (listener(), proof),
        (caller(), h._LAYOUT.pack(h.MAGIC, h.VERSION, h.PROOF, 1, 1, bytes(h.NONCE))),
        (caller(), h._LAYOUT.pack(h.MAGIC, h.VERSION, h.REFUSAL, 1, 1, bytes(h.NONCE))),
        (other, greeting),
        (one, answer),
    ]:
        assert "does not follow" in refusal(ends(machine.handle(h.HandshakeReceived(data)))).reason
        assert machine.handle(h.HandshakeReceived(proof)) == machine.handle(h.Began()) == ()


def test_another_version_is_told_to_both() -> None:
    newer = bytearray(said(caller().handle(h.Began())))
    newer[4] = h.VERSION + 1
    made = listener().handle(h.HandshakeReceived(bytes(newer)))
    assert f"has version {h.VERSION + 1}" in refusal(ends(made)).reason
    assert said(made)[4] == h.VERSION


@given(st.binary(max_size=200), st.sampled_from(["caller", "listener"]), st.data())
def test_nothing_that_a_stranger_says_opens(noise: bytes, side: h.Side, data: Any) -> None:
    """Noise, or what a process with another key says, with a byte of it changed, in pieces: never more is wanted than a
    message has, nothing is kept beyond it, and the connection never opens."""
    machine = caller() if side == "caller" else listener()
    made = machine.handle(h.Began())
    if data.draw(st.booleans(), "begins as it should"):
        stranger = listener(OTHER, b"s") if side == "caller" else caller(OTHER, b"s")
        words = said(stranger.handle(h.Began())) or said(stranger.handle(h.HandshakeReceived(said(made))))
        at = data.draw(st.integers(0, 2 * h.SIZE), "the byte that is changed")
        noise = words[:at] + noise[:1] + words[at + 1 :] + noise
    while noise and machine.wanted:
        assert machine.wanted <= h.SIZE
        count = data.draw(st.integers(1, machine.wanted), "bytes at a time")
        made, noise = machine.handle(h.HandshakeReceived(noise[:count])), noise[count:]
        assert h.Open() not in made
        assert len(machine._got) < h.SIZE
    made = machine.handle(h.Broke("it is gone"))
    assert machine.over
    assert made in ((), (h.HandshakeRefuse("it is gone", h.ANOTHER),))


def test_more_than_is_wanted_is_refused() -> None:
    assert "were wanted" in refusal(listener().handle(h.HandshakeReceived(bytes(h.SIZE + 1)))).reason


# --------------------------------------------------------------------------------------------------- real sockets


class Place:
    """A gate on 127.0.0.1, and what came of who knocked."""

    def __init__(self, loop: Loop, key: str, deadline: float) -> None:
        self.loop = loop
        sock = listen(("127.0.0.1", 0))
        self.address = sock.getsockname()
        self.job = Environment("worker", self.address, 1, 0, "h", deadline=deadline, key=key)
        self.opened: list[socket.socket] = []
        self.refused: list[mz.MezzoError] = []
        self.gate = gate.Gate(loop, sock, self.job, "scheduler", self.opened.append, self.refused.append)

    def until(self, ready: Callable[[], bool]) -> None:
        end = time.monotonic() + LONG
        while not ready():
            assert time.monotonic() < end
            self.loop.step(0.05)

    def call(self, key: str, service: str = "scheduler", deadline: float = LONG) -> socket.socket | mz.MezzoError:
        """Somebody with this key enters, on a thread of its own; the connection, or the error of it."""
        found: list[socket.socket | mz.MezzoError] = []

        def run() -> None:
            try:
                found.append(gate.enter(self.address, deadline, replace(self.job, key=key), service, "scheduler"))
            except mz.MezzoError as error:
                found.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        self.until(lambda: bool(found))
        thread.join()
        return found[0]

    def knock(self) -> socket.socket:
        return socket.create_connection(self.address)


@contextmanager
def place(key: str = KEY.decode(), deadline: float = LONG) -> Iterator[Place]:
    loop = Loop()
    made = Place(loop, key, deadline)
    try:
        yield made
    finally:
        made.gate.close()
        for sock in made.opened:
            sock.close()
        loop.close()


def test_who_has_the_key_enters_and_what_it_says_next_arrives() -> None:
    with place() as made, place("") as bare:
        for each, key in ((made, KEY.decode()), (bare, "")):
            mine = each.call(key)
            assert isinstance(mine, socket.socket)
            each.until(lambda each=each: bool(each.opened))  # type: ignore[misc]
            mine.sendall(b"hello")
            each.opened[0].settimeout(LONG)
            assert each.opened[0].recv(5) == b"hello"
            mine.close()


@pytest.mark.parametrize(
    ("have", "give", "mine", "theirs"),
    [
        (KEY.decode(), OTHER.decode(), "the key of this process is not", "its key is not"),
        (KEY.decode(), "", "demands a key, and this process has none", "demands a key, and it has none"),
        ("", KEY.decode(), "demands a key, and it has none", "demands a key, and this process has none"),
    ],
)
def test_another_key_is_an_error_at_both_ends(have: str, give: str, mine: str, theirs: str) -> None:
    with place(have) as made:
        error = made.call(give)
        made.until(lambda: bool(made.refused))
        (told,) = made.refused
        assert isinstance(error, mz.PeerError)
        assert isinstance(told, mz.PeerError)
        assert (error.where, error.hint) == (f"scheduler at 127.0.0.1:{made.address[1]}", h.SAME_KEY)
        assert told.where.startswith("127.0.0.1:")
        assert mine in error.message
        assert theirs in told.message
        for text in (str(error), str(told), repr(error), repr(made.job)):
            assert KEY.decode() not in text
            assert OTHER.decode() not in text
        assert not made.opened


def test_a_connection_for_a_server_does_not_open_another_one() -> None:
    with place() as made:
        assert isinstance(made.call(KEY.decode(), gate.server("127.0.0.1:9")), mz.PeerError)
        assert not made.opened


def test_the_silent_and_those_who_babble_are_sent_away() -> None:
    with place(deadline=0.3) as made:
        quiet, slow, loud, gone = (made.knock() for _ in range(4))
        slow.sendall(h.MAGIC)
        loud.sendall(b"GET / HTTP/1.1\r\n" * 10_000)
        gone.close()
        made.until(lambda: len(made.refused) == 4)
        reasons = sorted(error.message for error in made.refused)
        late = "it has not proven the job's key within 0.3 s"
        assert reasons == [
            "it closed the connection before the handshake had ended",
            "it does not begin as a process of a job does",
            late,
            late,
        ]
        for sock in (quiet, slow, loud):
            sock.settimeout(LONG)
            with suppress(ConnectionResetError):  # of what was not read
                assert sock.recv(1) == b""
            sock.close()
        member = made.call(KEY.decode())
        assert isinstance(member, socket.socket)
        member.close()


def test_many_strangers_take_no_more_than_their_places() -> None:
    with place() as made:
        strangers = [made.knock() for _ in range(gate.SHARE)]
        made.until(lambda: len(made.gate._waiting) == gate.SHARE)
        member = made.call(KEY.decode())
        assert isinstance(member, socket.socket)
        assert [error.message for error in made.refused] == [f"{gate.SHARE} newer connections of its host wait"]
        assert len(made.gate._waiting) == gate.SHARE - 1
        for sock in (member, *strangers):
            sock.close()


def test_who_never_answers_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        job = Environment("worker", silent.getsockname(), 1, 0, "h", key="k")
        with pytest.raises(
            mz.DeadlineError, match=r"scheduler at 127.0.0.1:\d+: the handshake has not ended within 0.1"
        ):
            gate.enter(job.root, 0.1, job, "scheduler", "scheduler")


def test_only_the_first_refusals_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    told = gate.Told("server 0")
    for number in range(100):
        told(mz.PeerError("no", where=str(number)))
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "server 0 refused a connection from 0: no"
    assert lines[-1] == "server 0 tells of no further ones"
    assert len(lines) == gate.TOLD + 1


def test_the_deadline_that_is_told_is_the_one_that_was_set() -> None:
    job = Environment("worker", ("127.0.0.1", 1), 1, 0, "h", key="k")
    with pytest.raises(mz.DeadlineError, match=r"scheduler at 127\.0\.0\.1:1: nobody answers within 0\.1 s \("):
        gate.enter(job.root, 0.1, job, "scheduler", "scheduler")
