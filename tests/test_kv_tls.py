"""TLS between processes of a job: what it carries and how fast it ends, certificates, and who is in the middle."""

from __future__ import annotations

import os
import socket
import ssl
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mezzo as mz
from mezzo.kvstore import gate, tls, wire
from mezzo.kvstore.address import listen
from mezzo.kvstore.environment import Environment
from mezzo.kvstore.loop import Loop
from mezzo.kvstore.protocol import handshake as h
from mezzo.kvstore.protocol import messages as m
from mezzo.kvstore.stream import Stream

from .test_kv_environment import GIVEN
from .test_kv_handshake import LONG, Place
from .test_kv_stream import MESSAGES, Ear, run

needs_certificates = pytest.mark.skipif(find_spec("cryptography") is None, reason="certificates need cryptography")
pytestmark = needs_certificates
KEY = "the right key"
JOB = Environment("worker", ("127.0.0.1", 1), 1, 0, "h", deadline=LONG, key=KEY, tls=True)


class SecurePlace(Place):
    """A gate that speaks TLS on 127.0.0.1."""

    def __init__(self, loop: Loop, job: Environment) -> None:
        self.loop = loop
        sock = listen(("127.0.0.1", 0))
        self.address = sock.getsockname()
        self.job = replace(job, root=self.address)
        self.opened: list[socket.socket] = []
        self.refused: list[mz.MezzoError] = []
        identity = tls.listening(self.job, "127.0.0.1") if self.job.tls else None
        self.gate = gate.Gate(
            loop, sock, self.job, "scheduler", self.opened.append, self.refused.append, identity=identity
        )


@contextmanager
def place(job: Environment = JOB) -> Iterator[SecurePlace]:
    loop = Loop()
    made = SecurePlace(loop, job)
    try:
        yield made
    finally:
        made.gate.close()
        for sock in made.opened:
            sock.close()
        loop.close()


def entered(made: SecurePlace, job: Environment | None = None) -> socket.socket | mz.MezzoError:
    """Somebody enters as this job says, on a thread of its own."""
    found: list[socket.socket | mz.MezzoError] = []

    def enter() -> None:
        try:
            found.append(gate.enter(made.address, LONG, job or made.job, "scheduler", "scheduler"))
        except mz.MezzoError as error:
            found.append(error)

    thread = threading.Thread(target=enter)
    thread.start()
    made.until(lambda: bool(found))
    thread.join()
    return found[0]


@contextmanager
def pair(ear: Ear, buffer: int = 0) -> Iterator[tuple[Loop, Stream, Stream]]:
    """A loop, a stream under TLS and its other end, where `ear` listens."""
    with place() as made:
        mine = entered(made)
        assert isinstance(mine, tls.Secure)
        made.until(lambda: bool(made.opened))
        if buffer:
            mine.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer)
        a, b = Stream(made.loop, mine, Ear()), Stream(made.loop, made.opened[0], ear)
        try:
            yield made.loop, a, b
        finally:
            a.close()
            b.close()


@settings(max_examples=15, deadline=None)
@given(st.lists(MESSAGES, max_size=12), st.sampled_from([0, 4096]), st.lists(st.booleans(), max_size=12))
def test_frames_arrive_as_they_were_sent(given_: list[tuple[int, bool]], buffer: int, pauses: list[bool]) -> None:
    ear = Ear(pauses)
    rng = np.random.default_rng(len(given_))
    sent: list[tuple[m.Message, bytes]] = []
    left: list[int] = []
    with pair(ear, buffer) as (loop, a, b):
        for i, (size, control) in enumerate(given_):
            payload = bytearray(b"" if control else rng.bytes(size))
            message: m.Message = m.Barrier(f"b{i}", 3) if control else m.Push(i + 1, i, 0, 0)
            sent.append((message, bytes(payload)))

            def done(i: int = i, payload: bytearray = payload) -> None:
                left.append(i)
                payload[:] = bytes(len(payload))  # it may change again

            a.send(wire.encode(message, len(payload)), memoryview(payload), sent=done)
        run(loop, ear, len(sent))
        assert ear.heard == sent
        assert left == list(range(len(sent)))
        assert a.waiting == 0
        assert not b.closed


def test_what_arrived_with_the_last_proof_is_read() -> None:
    """It is inside of TLS already when the stream begins, and the loop hears of nothing more."""
    ear = Ear()
    with place() as made:
        mine = tls.secured(socket.create_connection(made.address), tls.calling(JOB), listener=False)
        patiently(made, mine.shake)
        caller = h.Handshake("caller", KEY.encode(), b"n" * h.NONCE, "scheduler", certificate=mine.digest)
        (greeting,) = caller.handle(h.Began())
        assert isinstance(greeting, h.Say)
        mine.send(greeting.data)
        (proof,) = caller.handle(h.HandshakeReceived(patiently(made, lambda: mine.recv(h.SIZE))))
        assert isinstance(proof, h.Say)
        mine.send(proof.data + wire.encode(m.Barrier("first", 0)))
        made.until(lambda: bool(made.opened))
        Stream(made.loop, made.opened[0], ear)
        run(made.loop, ear, 1)
        assert ear.heard == [(m.Barrier("first", 0), b"")]
        patiently(made, lambda: mine.recv(h.SIZE))
        mine.close()
        run(made.loop, ear, 2)
        assert ear.reason == "it closed the connection"


def test_connections_that_break_before_tls_begins_hurt_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel no longer knows the other end of them."""
    monkeypatch.setattr(gate, "spoken", lambda *_: True)
    monkeypatch.setattr(gate, "stranger", lambda _: "")
    with place() as made:
        for said in (b"", b"some words"):
            sock = socket.create_connection(made.address)
            sock.send(said)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # its end is a reset
            sock.close()
            for _ in range(3):
                made.loop.step(0.05)
        mine = entered(made)
        assert isinstance(mine, tls.Secure)
        mine.close()


_T = TypeVar("_T")


def patiently(made: SecurePlace, call: Callable[[], _T]) -> _T:
    """What a call returns when it no longer waits for the other end."""
    end = time.monotonic() + LONG
    while True:
        try:
            return call()
        except BlockingIOError:
            assert time.monotonic() < end
            made.loop.step(0.01)


def test_only_what_leaves_the_machine_is_encrypted_unless_all_is() -> None:
    for job, address, wanted in [
        (JOB, "127.0.0.1", True),
        (replace(JOB, tls=False), "127.0.0.1", False),
        (replace(JOB, tls=False), "::ffff:127.0.0.1", False),
        (replace(JOB, tls=False), "10.0.0.1", True),
        (replace(JOB, tls=False), "0.0.0.0", True),
        (replace(JOB, tls=False), "node7", True),
        (replace(JOB, key=""), "10.0.0.1", False),  # refused elsewhere
    ]:
        assert tls.needed(job, address) == wanted
        assert (tls.listening(job, address) is not None) == wanted


def test_members_meet_under_tls_1_3() -> None:
    with place() as made:
        mine = entered(made)
        assert isinstance(mine, tls.Secure)
        made.until(lambda: bool(made.opened))
        assert mine.version() == "TLSv1.3"
        assert isinstance(made.opened[0], tls.Secure)
        mine.close()
    with place() as one, place() as other:
        assert one.gate._identity is not None
        assert other.gate._identity is not None
        assert one.gate._identity.digest != other.gate._identity.digest, "each has a certificate of its own"


def test_another_key_is_an_error_at_both_ends() -> None:
    with place() as made:
        error = entered(made, replace(made.job, key="another key"))
        made.until(lambda: bool(made.refused))
        assert isinstance(error, mz.PeerError)
        assert "the key of this process is not that of the job, or another process stands" in error.message
        assert "its key is not that of this process, or another" in made.refused[0].message
        for text in (str(error), repr(made.job), str(made.refused[0])):
            assert KEY not in text


@pytest.mark.parametrize("listener", [True, False])
def test_both_ends_speak_tls_or_none_does(listener: bool) -> None:
    with place(replace(JOB, tls=listener)) as made:
        error = entered(made, replace(made.job, tls=not listener))
        made.until(lambda: bool(made.refused))
        assert isinstance(error, mz.PeerError)
        told = "it does not speak TLS" if listener else "it speaks TLS, and this process does not"
        assert told in made.refused[0].message
        assert "closed the connection" in error.message
        assert "MEZZO_TLS" in made.refused[0].hint
        assert "MEZZO_TLS" in error.hint
        assert not made.opened


def test_older_tls_is_refused() -> None:
    with place() as made:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        told: list[str] = []

        def call() -> None:
            try:
                context.wrap_socket(socket.create_connection(made.address)).close()
            except OSError as error:
                told.append(str(error))

        thread = threading.Thread(target=call)
        thread.start()
        made.until(lambda: bool(made.refused))
        thread.join()
        assert "it does not speak TLS 1.3" in made.refused[0].message
        assert "VERSION" in told[0].upper()


def test_a_proof_of_the_same_key_for_another_certificate_is_worth_nothing() -> None:
    digests = (b"one".ljust(32), b"other".ljust(32), b"")
    for mine in digests:
        for theirs in digests:
            one = h.Handshake("caller", b"key", b"c" * h.NONCE, "scheduler", certificate=mine)
            other = h.Handshake("listener", b"key", b"l" * h.NONCE, "scheduler", certificate=theirs)
            made: tuple[h.Instruction, ...] = one.handle(h.Began())
            for end in (other, one, other):
                (word,) = made
                assert isinstance(word, h.Say)
                made = end.handle(h.HandshakeReceived(word.data))
            assert (h.Open() in made) == (mine == theirs)


# --------------------------------------------------------------------------------------------- who is in the middle


class Middle:
    """A process between two, which relays what it gets, changed by `change(bytes, count)`; it keeps all of it."""

    def __init__(self, target: Any, change: Any = lambda data, before: data) -> None:
        self.door = socket.create_server(("127.0.0.1", 0))
        self.address = self.door.getsockname()
        self.seen = bytearray()
        self._target, self._change = target, change
        self._socks: list[socket.socket] = [self.door]
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self.door.accept()
                far = socket.create_connection(self._target)
                self._socks += [near, far]
                for a, b in ((near, far), (far, near)):
                    self._threads.append(threading.Thread(target=self._relay, args=(a, b), daemon=True))
                    self._threads[-1].start()

    def _relay(self, a: socket.socket, b: socket.socket) -> None:
        before = 0
        with suppress(OSError):
            while data := a.recv(1 << 16):
                self.seen += data
                b.sendall(self._change(data, before))
                before += len(data)
        with suppress(OSError):
            b.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        for sock in self._socks:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()
        for thread in self._threads:
            thread.join(LONG)


@contextmanager
def through(middle: Middle, made: SecurePlace, ear: Ear) -> Iterator[Stream]:
    """A stream to `made` by way of the process in the middle; at its end `ear` listens."""
    mine = entered_at(middle.address, made)
    assert isinstance(mine, tls.Secure), mine
    made.until(lambda: bool(made.opened))
    a, b = Stream(made.loop, mine, Ear()), Stream(made.loop, made.opened[0], ear)
    try:
        yield a
    finally:
        a.close()
        b.close()
        middle.close()


def entered_at(address: Any, made: SecurePlace) -> socket.socket | mz.MezzoError:
    aside = SecurePlace.__new__(SecurePlace)
    aside.__dict__.update({**made.__dict__, "address": address})
    return entered(aside)


SECRET = b"the weights that nobody may see " * 64


def test_who_is_in_the_middle_learns_nothing() -> None:
    ear = Ear()
    with place() as made:
        middle = Middle(made.address)
        with through(middle, made, ear) as stream:
            stream.send(wire.encode(m.Barrier("a name that tells", 1)))
            stream.send(wire.encode(m.Push(1, 1, 0), len(SECRET)), SECRET)
            made.until(lambda: len(ear.heard) == 2)
        assert ear.heard[1][1] == SECRET
        assert len(middle.seen) > len(SECRET)
        for part in (SECRET[:16], b"a name that tells", wire.MAGIC, h.MAGIC, KEY.encode(), b"scheduler", b"mezzo"):
            assert part not in middle.seen


@pytest.mark.parametrize("at", [0, 100, 5000, 60_000])
def test_who_is_in_the_middle_changes_nothing(at: int) -> None:
    """One bit on its way, after the handshake: an error that says so at both ends, and no changed value."""
    ear, switch = Ear(), [False]

    def change(data: bytes, before: int) -> bytes:
        if not switch[0] or len(data) < 50:
            return data
        switch[0] = False
        flipped = bytearray(data)
        flipped[at % len(data)] ^= 1
        return bytes(flipped)

    with place() as made:
        middle = Middle(made.address, change)
        with through(middle, made, ear) as stream:
            back = stream.receiver
            assert isinstance(back, Ear)
            payload = os.urandom(60_000)
            for number in range(5):
                stream.send(wire.encode(m.Push(1, number, 0), len(payload)), payload)
                if number == 0:
                    made.until(lambda: bool(ear.heard))
                    switch[0] = True
            made.until(lambda: bool(ear.reason and back.reason))
        assert {data for _, data in ear.heard} == {payload}
        assert "what it sent was changed on its way" in ear.reason or "TLS has failed" in ear.reason
        assert "changed on its way" in back.reason or "TLS has failed" in back.reason or "closed" in back.reason


def test_who_is_in_the_middle_with_a_certificate_of_its_own_is_found_out() -> None:
    """It ends TLS towards both, and relays the handshake of the job; with and without TLS on the far side."""
    for far in (True, False):
        with place(replace(JOB, tls=far)) as made, socket.create_server(("127.0.0.1", 0)) as door:
            own = tls.listening(JOB, "127.0.0.1")
            assert own is not None

            def relay(door: socket.socket = door, own: tls.Identity = own, made: SecurePlace = made) -> None:
                near, _ = door.accept()
                outer = own.context.wrap_socket(near, server_side=True)
                inner = socket.create_connection(made.address)
                if made.job.tls:
                    inner = tls.calling(JOB).wrap_socket(inner)
                with suppress(OSError), outer, inner:
                    for a, b in ((outer, inner), (inner, outer), (outer, inner), (inner, outer)):
                        b.sendall(a.recv(h.SIZE))

            thread = threading.Thread(target=relay)
            thread.start()
            aside = replace(made.job, tls=True)
            error = entered_with(door.getsockname(), made, aside)
            made.until(lambda made=made: bool(made.refused))  # type: ignore[misc]
            thread.join(LONG)
            assert isinstance(error, mz.PeerError)
            assert "another process stands between the two" in error.message
            assert h.KEYS_DIFFER in made.refused[0].message
            assert not made.opened


def entered_with(address: Any, made: SecurePlace, job: Environment) -> socket.socket | mz.MezzoError:
    aside = SecurePlace.__new__(SecurePlace)
    aside.__dict__.update({**made.__dict__, "address": address})
    return entered(aside, job)


# ------------------------------------------------------------------------------------------------------ certificates


def written(folder: Path, name: str, certificate: bytes, private: bytes, mode: int = 0o600) -> dict[str, str]:
    (folder / f"{name}.pem").write_bytes(certificate)
    (folder / f"{name}.key").write_bytes(private)
    (folder / f"{name}.key").chmod(mode)
    return {"tls_cert": str(folder / f"{name}.pem"), "tls_key": str(folder / f"{name}.key")}


def test_certificates_that_are_given(tmp_path: Path) -> None:
    files = written(tmp_path, "one", *tls._made())
    with place(replace(JOB, **files)) as made:  # type: ignore[arg-type]
        mine = entered(made, JOB)
        assert isinstance(mine, tls.Secure)
        assert made.gate._identity is not None
        assert mine.digest == made.gate._identity.digest
        mine.close()


def test_an_authority_is_demanded_of_both_ends(tmp_path: Path) -> None:
    """A certificate that signs itself is its own authority."""
    mine, other = written(tmp_path, "one", *tls._made()), written(tmp_path, "two", *tls._made())
    job = replace(JOB, tls_ca=mine["tls_cert"], **mine)  # type: ignore[arg-type]
    with place(job) as made:
        sock = entered(made)
        assert isinstance(sock, tls.Secure)
        sock.close()
        for stranger in (JOB, replace(JOB, tls_ca=other["tls_cert"], **other)):  # type: ignore[arg-type]
            made.refused.clear()
            before = len(made.opened)
            error = entered(made, stranger)
            made.until(lambda: bool(made.refused))
            assert isinstance(error, mz.PeerError)
            assert len(made.opened) == before
            assert "MEZZO_TLS_CA" in made.refused[0].message
            assert made.refused[0].hint == error.hint == tls.CERTIFICATES


def test_certificates_out_of_their_time(tmp_path: Path) -> None:
    good = written(tmp_path, "one", *tls._made())
    job = replace(JOB, tls_ca=good["tls_cert"], **good)  # type: ignore[arg-type]
    for name, since, until, told, heard in [
        ("late", 2000, 2001, "has expired", "the certificate of this process has expired"),
        ("early", 2100, 2101, "is not valid yet", "is that valid yet"),
    ]:
        files = written(tmp_path, name, *tls._made(since, until))
        away = replace(JOB, tls_ca=good["tls_cert"], **files)  # type: ignore[arg-type]
        with place(replace(job, tls_ca=files["tls_cert"])) as made:
            error = entered(made, away)
            made.until(lambda made=made: bool(made.refused))  # type: ignore[misc]
            assert isinstance(error, mz.PeerError)
            assert f"its certificate {told}" in made.refused[0].message
            assert heard in error.message
            assert made.refused[0].hint == error.hint == tls.CERTIFICATES


def test_files_that_hold_no_certificate(tmp_path: Path) -> None:
    certificate, private = tls._made()
    good = written(tmp_path, "one", certificate, private)
    _, other = tls._made()
    for files, told in [
        (written(tmp_path, "open", certificate, private, 0o644), "its mode is 0644"),
        (written(tmp_path, "mixed", certificate, other), "the private key that the certificate was made with"),
        (written(tmp_path, "noise", b"noise", private), "they cannot be used"),
        *(
            ({**good, file: str(tmp_path / "none")}, "none' cannot be read")
            for file in ("tls_cert", "tls_key", "tls_ca")
        ),
        ({**good, "tls_ca": str(tmp_path / "one.key")}, "MEZZO_TLS_CA"),
    ]:
        with pytest.raises(mz.InputError, match="MEZZO_TLS_") as caught:
            tls.listening(replace(JOB, **files), "127.0.0.1")  # type: ignore[arg-type]
        assert told in str(caught.value)


def test_without_the_package_nothing_is_sent_in_the_clear(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(mz.MissingPackage, match=r"pip install 'mezzo\[tls\]'"):
        tls.listening(JOB, "127.0.0.1")


WRONG: Sequence[tuple[dict[str, str], str]] = (
    ({"MEZZO_TLS": "1"}, "protects nothing without MEZZO_JOB_KEY"),
    ({"MEZZO_TLS": "yes", "MEZZO_JOB_KEY": "k"}, "MEZZO_TLS='yes' is not 1"),
    ({"MEZZO_TLS_CERT": "/c"}, "belong together"),
    ({"MEZZO_TLS_KEY": "/k"}, "belong together"),
    ({"MEZZO_TLS_CA": "/a"}, "needs them"),
)


@pytest.mark.parametrize("given_", WRONG)
def test_variables_that_make_no_sense(given_: tuple[dict[str, str], str]) -> None:
    more, told = given_
    with pytest.raises(mz.InputError, match=told):
        Environment.read({**GIVEN, **more})


def test_what_is_read_can_be_handed_on() -> None:
    files = {"MEZZO_TLS_CERT": "/c", "MEZZO_TLS_KEY": "/k", "MEZZO_TLS_CA": "/a"}
    mine = Environment.read({**GIVEN, "MEZZO_JOB_KEY": "k", "MEZZO_TLS": "1", **files})
    assert mine.tls
    assert Environment.read(mine.variables()) == mine


def test_a_flight_without_an_end_is_cut_off() -> None:
    """A stranger that begins TLS and never finishes takes neither memory nor time."""
    with place(replace(JOB, deadline=2.0)) as made:
        sock = socket.create_connection(made.address)
        sock.setblocking(False)
        begin, record = time.monotonic(), b"\x16\x03\x01\x40\x00" + b"\x01\x01\xff\xff" + bytes((1 << 14) - 4)
        while not made.refused:
            assert time.monotonic() < begin + LONG
            with suppress(OSError):
                sock.send(record)
            made.loop.step(0.01)
        assert not made.opened
        sock.close()
