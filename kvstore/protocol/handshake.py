"""The handshake on every connection between processes of a job: both ends prove that they know its key.

Every message has SIZE bytes: magic, version, kind, side, whether its sender has a key, and 32 bytes that are a fresh
nonce or a proof. The *caller* is who has connected, the *listener* who has accepted:

| | caller | listener |
|---|---|---|
| 1 | Greeting, with a nonce | |
| 2 | | Greeting, with another |
| 3 | Proof | |
| 4 | | Proof, or Refusal where the caller's is wrong |

A proof is the HMAC-SHA256 under the key of this format's name and version, the side that proves, both nonces, what the
caller wants to reach, and the digest of the listener's certificate as the prover sees it (empty without TLS). So a
proof that was recorded, sent back to who made it, made for another process of the job, or given to who stands in the
middle of the connection is worth nothing; TLS cannot be taken away; and who listens proves nothing to strangers. A job
without a key stops after the greetings, and only on addresses that never leave the machine.

The machine knows no socket and no clock: it asks for `wanted` bytes, and whoever drives it reads no more than that.
"""

from __future__ import annotations

import hmac
import struct
from dataclasses import dataclass
from typing import Literal

MAGIC, VERSION = b"MZHS", 9  # of all that is said over a connection: what comes behind a handshake, too
NONCE = 32  # bytes, as many as a proof has
_LAYOUT = struct.Struct(f"<4sBBBB{NONCE}s")
SIZE = _LAYOUT.size
GREETING, PROOF, REFUSAL = 1, 2, 3  # kinds
Side = Literal["caller", "listener"]
_SIDES: tuple[Side, Side] = ("caller", "listener")

KEYS_DIFFER = "its key is not that of this process"
_TLS = (b"\x15", b"\x16")  # how an alert and a handshake of TLS begin
SAME_KEY = "give every process of the job the same secret as MEZZO_JOB_KEY or MEZZO_JOB_KEY_FILE"
ANOTHER = "is this the right port, with the same Mezzo and the same MEZZO_TLS everywhere?"
SAME_TLS = "give every process the same MEZZO_TLS: tunnels and translated addresses need MEZZO_TLS=1"


@dataclass(frozen=True, slots=True)
class Began:
    """The connection is established."""


@dataclass(frozen=True, slots=True)
class HandshakeReceived:
    """Bytes have arrived, at most `wanted`."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Broke:
    """Nothing more will arrive: the connection is closed, or time is up."""

    reason: str


Event = Began | HandshakeReceived | Broke


@dataclass(frozen=True, slots=True)
class Say:
    """Send these bytes."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Open:
    """The other end belongs to the job: its messages may be read."""


@dataclass(frozen=True, slots=True)
class HandshakeRefuse:
    """Close the connection once all earlier data is sent: the other end is no member of the job."""

    reason: str
    hint: str = ""


Instruction = Say | Open | HandshakeRefuse


class Handshake:
    """One end of a connection, until it is open or refused.

    `key` is the secret of the job, empty where it has none; `nonce` NONCE fresh random bytes; `service` what the caller
    wants to reach, as both ends name it; `local` whether the other end is on this machine; `certificate` the digest of
    the listener's certificate, empty where the connection is not encrypted.

    >>> caller = Handshake("caller", b"secret", b"1" * NONCE, "scheduler")
    >>> listener = Handshake("listener", b"secret", b"2" * NONCE, "scheduler")
    >>> made = caller.handle(Began())
    >>> for end in (listener, caller, listener, caller):
    ...     made = end.handle(HandshakeReceived(made[0].data))
    >>> made
    (Open(),)
    """

    def __init__(
        self, side: Side, key: bytes, nonce: bytes, service: str, local: bool = True, certificate: bytes = b""
    ) -> None:
        if len(nonce) != NONCE:
            raise ValueError(f"a nonce of {len(nonce)} bytes")
        self._certificate = certificate
        self._side, self._key, self._nonce, self._service, self._local = side, key, nonce, service, local
        self._other: Side = "listener" if side == "caller" else "caller"
        self._expected = GREETING
        self._theirs = b""  # the nonce of the other end
        self._got = b""
        self.over = False

    @property
    def wanted(self) -> int:
        """Number of bytes that may be read now."""
        return 0 if self.over else SIZE - len(self._got)

    def handle(self, event: Event) -> tuple[Instruction, ...]:
        """Return the instructions for an event."""
        if self.over:
            return ()
        match event:
            case Began():
                return self._began()
            case Broke(reason):
                return self._refuse(reason, ANOTHER)
            case HandshakeReceived(data):
                if len(data) > self.wanted:
                    return self._refuse(f"{len(data)} bytes where {self.wanted} were wanted")
                self._got += data
                if self._got[:1] in _TLS:
                    return self._refuse("it speaks TLS, and this process does not", SAME_TLS)
                if MAGIC[: len(self._got)] != self._got[: len(MAGIC)]:  # told at the first byte that is wrong
                    return self._refuse("it does not begin as a process of a job does", "is this the right port?")
                if len(self._got) < SIZE:
                    return ()
                message, self._got = self._got, b""
                return self._heard(message)

    def _began(self) -> tuple[Instruction, ...]:
        if not self._key and not self._local:
            return self._refuse("it is outside of this machine, and the job has no key", SAME_KEY)
        return (self._message(GREETING, self._nonce),) if self._side == "caller" else ()

    def _heard(self, message: bytes) -> tuple[Instruction, ...]:
        _, version, kind, side, keyed, body = _LAYOUT.unpack(message)
        if self._expected == GREETING and kind == GREETING:
            # whoever listens always answers with a greeting, so that both ends can say what is wrong
            mine = (self._message(GREETING, self._nonce),) if self._side == "listener" else ()
            return (*mine, *self._greeted(version, side, keyed, body))
        if kind == REFUSAL and self._side == "caller" and self._theirs:
            reason = f"it says that the key of this process is not that of the job{self._or_between}"
            return self._refuse(reason, SAME_KEY)
        if kind != self._expected or side != _SIDES.index(self._other) or keyed != 1 or version != VERSION:
            return self._refuse("it does not follow the handshake of a job")
        if not hmac.compare_digest(body, self._proof(self._other)):
            told = (self._message(REFUSAL, bytes(NONCE)),) if self._side == "listener" else ()
            return (*told, *self._refuse(KEYS_DIFFER + self._or_between, SAME_KEY))
        mine = (self._message(PROOF, self._proof(self._side)),) if self._side == "listener" else ()
        self.over = True
        return (*mine, Open())

    def _greeted(self, version: int, side: int, keyed: int, nonce: bytes) -> tuple[Instruction, ...]:
        if version != VERSION:
            hint = "install the same Mezzo on every host of the job"
            return self._refuse(f"what it speaks has version {version}, that of this process {VERSION}", hint)
        if side != _SIDES.index(self._other) or nonce == self._nonce:
            return self._refuse("it sends back what this process says")
        if keyed != bool(self._key):
            who = "it demands a key, and this process has" if keyed else "this job demands a key, and it has"
            return self._refuse(f"{who} none", SAME_KEY)
        self._theirs = nonce
        if not self._key:
            self.over = True
            return (Open(),)
        self._expected = PROOF
        return (self._message(PROOF, self._proof("caller")),) if self._side == "caller" else ()

    def _message(self, kind: int, body: bytes) -> Say:
        return Say(_LAYOUT.pack(MAGIC, VERSION, kind, _SIDES.index(self._side), bool(self._key), body))

    def _proof(self, side: Side) -> bytes:
        """Return the proof that this side of the connection has to present."""
        nonces = (self._nonce, self._theirs) if self._side == "caller" else (self._theirs, self._nonce)
        name = (b"MEZZO_JOB_KEY", bytes((VERSION,)))
        said = (*name, side.encode(), *nonces, self._service.encode(), self._certificate)
        return hmac.digest(self._key, b"".join(len(part).to_bytes(4, "little") + part for part in said), "sha256")

    @property
    def _or_between(self) -> str:
        return ", or another process stands between the two" if self._certificate else ""

    def _refuse(self, reason: str, hint: str = "") -> tuple[Instruction, ...]:
        self.over = True
        return (HandshakeRefuse(reason, hint),)
