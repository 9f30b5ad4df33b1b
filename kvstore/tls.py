"""TLS 1.3 between processes of a job: what a connection needs of certificates, and sockets that encrypt.

TLS hides and protects what is said; the job's key tells who is at the other end. Its proofs (protocol/handshake.py)
cover the certificate of who listens, as each end sees it: a process in the middle with a certificate of its own fails,
and no authority is needed. Who listens makes a certificate when it starts, unless one is given.

The end of a connection proves nothing, with TLS or without: anybody between two hosts can cut it. A process that leaves
says Bye.
"""

from __future__ import annotations

import hashlib
import os
import socket
import ssl
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from ..ops.errors import InputError, MissingPackage
from . import secret
from .environment import Environment, local
from .protocol.handshake import SAME_TLS

SENT = 1 << 20  # bytes of one call of `sendmsg`, at most
_T = TypeVar("_T")
CERTIFICATES = "every process needs a certificate of the authority in MEZZO_TLS_CA that is valid now, and a right clock"
RECORD = 16 << 10  # bytes of the longest record: what is shorter travels as one


class TlsError(ConnectionError):
    """A connection has ended because of what TLS found; `hint` says what to do."""

    def __init__(self, reason: str, hint: str = SAME_TLS) -> None:
        super().__init__(reason)
        self.hint = hint


@dataclass(frozen=True, slots=True)
class Identity:
    """The certificate of who listens, ready for use, and its SHA-256."""

    context: ssl.SSLContext = field(repr=False)
    digest: bytes


def needed(environment: Environment, address: str) -> bool:
    """Return whether connections with this address are encrypted: all that leave the machine, or all."""
    return bool(environment.key) and (environment.tls or not local(address))


def spoken(environment: Environment, sock: socket.socket) -> bool:
    """Return whether a connection is encrypted. Each end decides by itself: nothing is negotiated."""
    try:
        peer = sock.getpeername()
    except OSError:  # closed already, which the first read tells
        return False
    return isinstance(peer, tuple) and needed(environment, peer[0])


def listening(environment: Environment, address: str) -> Identity | None:
    """The certificate of a process that listens at this address; None where nobody will ask for it.

    Raises MissingPackage where it has to be made and cannot be, InputError for files that do not hold what they should.
    """
    if not needed(environment, address):
        return None
    context = _context(ssl.PROTOCOL_TLS_SERVER)
    context.num_tickets = 0  # no connection is resumed
    _trust(context, environment)
    if environment.tls_cert:
        return Identity(context, _load(context, environment))
    certificate, private = _made()
    # OpenSSL reads files alone: one that is nowhere but in memory
    file = os.memfd_create("certificate", os.MFD_CLOEXEC)
    try:
        os.write(file, certificate + private)
        context.load_cert_chain(f"/proc/self/fd/{file}")
    finally:
        os.close(file)
    return Identity(context, _digest(certificate))


def calling(environment: Environment) -> ssl.SSLContext:
    """The context of a process that calls. Raises InputError as `listening` does."""
    context = _context(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # the proofs tell who it is
    context.verify_mode = ssl.CERT_NONE
    _trust(context, environment)
    if environment.tls_ca:
        _load(context, environment)
    return context


def _context(protocol: int) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.options |= ssl.OP_NO_RENEGOTIATION
    return context


def _trust(context: ssl.SSLContext, environment: Environment) -> None:
    """With an authority, both ends demand a certificate of it."""
    if environment.tls_ca:
        _read(environment.tls_ca, "MEZZO_TLS_CA")
        _try("MEZZO_TLS_CA", lambda: context.load_verify_locations(environment.tls_ca))
        context.verify_mode = ssl.CERT_REQUIRED


def _load(context: ssl.SSLContext, environment: Environment) -> bytes:
    """Load the certificate that is given; its digest."""
    secret.read_private(environment.tls_key, "MEZZO_TLS_KEY", "give the private key of MEZZO_TLS_CERT", 1 << 20)

    chain = _read(environment.tls_cert, "MEZZO_TLS_CERT")

    def load() -> bytes:
        context.load_cert_chain(environment.tls_cert, environment.tls_key, password=_no_password)
        return _digest(chain)

    return _try("MEZZO_TLS_CERT and MEZZO_TLS_KEY", load)


def _read(path: str, where: str) -> bytes:
    """Read a file. Raises InputError that names it: OpenSSL's errors do not."""
    try:
        with open(path, "rb") as file:
            return file.read(1 << 20)
    except OSError as error:
        raise InputError(f"{path!r} cannot be read: {error.strerror}", where=where, hint="see the path") from error


def _try(where: str, call: Callable[[], _T]) -> _T:
    try:
        return call()
    except (OSError, ValueError) as error:  # of which SSLError is one
        mixed = getattr(error, "reason", "") == "KEY_VALUES_MISMATCH"
        hint = "give the private key that the certificate was made with" if mixed else "give files in the PEM format"
        raise InputError(f"they cannot be used: {error}", where=where, hint=hint) from error


def _no_password() -> str:
    raise ValueError("the private key is encrypted, and nobody is there to type its password")


def _digest(chain: bytes) -> bytes:
    """Return the SHA-256 of the first certificate of a file, as it travels."""
    begin, end = b"-----BEGIN CERTIFICATE-----", b"-----END CERTIFICATE-----"
    _, _, after = chain.partition(begin)
    text = (begin + after.partition(end)[0] + end).decode("ascii")
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(text)).digest()


def _made(since: int = 2020, until: int = 2120) -> tuple[bytes, bytes]:
    """A certificate that signs itself, of these years, and its private key, both PEM."""
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError as error:
        raise MissingPackage(
            "TLS needs a certificate, and making one needs the package cryptography",
            where="MEZZO_TLS_CERT",
            hint="pip install 'mezzo[tls]', or give every process MEZZO_TLS_CERT and MEZZO_TLS_KEY",
        ) from error
    from datetime import datetime

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "mezzo")])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime(since, 1, 1))  # it lives as long as its process; clocks of hosts need not agree
        .not_valid_after(datetime(until, 1, 1))
        .sign(key, hashes.SHA256())
    )
    pem, kind = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    return made.public_bytes(pem), key.private_bytes(pem, kind, serialization.NoEncryption())


def secured(sock: socket.socket, context: ssl.SSLContext, *, listener: bool) -> Secure:
    """This connection under TLS, which `shake` begins; the socket that is given is not to be used any more."""
    context.sslsocket_class = Secure
    made = context.wrap_socket(sock, server_side=listener, do_handshake_on_connect=False)
    assert isinstance(made, Secure)
    made.setblocking(False)
    return made


class Secure(ssl.SSLSocket):
    """A TCP connection under TLS, which does not block, with the calls of a socket that a stream makes. OpenSSL reads
    and writes the socket by itself, which buffers in memory between the two would make dearer by a third."""

    _begun: deque[memoryview] | None = None  # what is given and not sent: OpenSSL goes on with the first
    _given = 0  # bytes of it, those included that are sent
    _over = False  # the other end has closed

    @property
    def digest(self) -> bytes:
        """SHA-256 of the certificate of the other end, which has sent one."""
        return hashlib.sha256(self.getpeercert(True) or b"").digest()

    @property
    def drained(self) -> bool:
        """True if everything that was taken from the kernel has been read: more comes from there alone."""
        return not self.pending()

    def shake(self) -> None:
        """Go on with TLS's own handshake. Raises BlockingIOError until it has ended, TlsError where it cannot.

        OpenSSL takes no messages of more than 128 KiB, so that a stranger costs no more memory than that.
        """
        try:
            self.do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError from None
        except ssl.SSLEOFError as error:
            raise ConnectionAbortedError("it closed the connection before TLS was established") from error
        except ssl.SSLError as error:
            raise _ended(error) from error

    # --- receiving

    def recv(self, buflen: int = 1024, flags: int = 0) -> bytes:
        if self.version() is None:  # `wrap_socket` asks a connection that has broken already, as `shake` will tell
            return b""
        into = bytearray(buflen)
        return bytes(into[: self.recv_into(memoryview(into))])

    def recv_into(self, buffer: Any, nbytes: int | None = None, flags: int = 0) -> int:
        """Receive as much as is there; 0 where the other end has closed."""
        view = memoryview(buffer)
        got, size, read = 0, len(view), cast(Callable[[int, memoryview], int], self.read)
        while got < size and not self._over:  # a record at a time
            try:
                count = read(size, view[got:])  # into the view: how many bytes
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                if got:
                    return got
                raise BlockingIOError from None
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                count = 0
            except ssl.SSLError as error:
                raise _ended(error) from error
            if not count:
                self._over = True
            got += count
        return got

    # --- sending

    def send(self, data: Any, flags: int = 0) -> int:
        return self.sendmsg((data,))

    def sendmsg(self, buffers: Iterable[Any], *_: Any) -> int:  # type: ignore[override]
        """Send some of these buffers; how many bytes. After BlockingIOError the next call has to give the same bytes,
        maybe with more behind them, since some are encrypted already."""
        if not self._begun:
            self._begun = _parts(buffers)
            self._given = sum(map(len, self._begun))
        try:
            while self._begun:
                self.write(self._begun[0])
                self._begun.popleft()
        except (ssl.SSLWantWriteError, ssl.SSLWantReadError):
            raise BlockingIOError from None
        except ssl.SSLError as error:
            raise _ended(error) from error
        return self._given

    # --- ending

    def shutdown(self, how: int) -> None:
        """End a direction of the connection; what comes by the other one is still under TLS."""
        socket.socket.shutdown(self, how)

    def close(self) -> None:
        self._begun = None
        super().close()


def _ended(error: ssl.SSLError) -> TlsError:
    """The error for people; OpenSSL has told the other end why, if it listens."""
    reason = error.reason or str(error)
    found = reason
    if isinstance(error, ssl.SSLCertVerificationError):  # by this end
        reason = error.verify_message
        found = f"VERIFY_{error.verify_code}"
    told = next((text for word, text in _REASONS.items() if word in found), "TLS has failed")
    hint = CERTIFICATES if "certificate" in told else SAME_TLS
    return TlsError(f"{told} ({reason.replace('_', ' ').lower()})", hint)


def _parts(buffers: Iterable[Any]) -> deque[memoryview]:
    """The bytes of these buffers, at most SENT; together what is short."""
    views = [memoryview(buffer).cast("B") for buffer in buffers]
    if sum(map(len, views)) <= RECORD:
        return deque([memoryview(b"".join(views))])
    made, left = deque[memoryview](), SENT
    for view in views:
        if len(view) and left:
            made.append(view[:left])
            left -= len(made[-1])
    return made


_REASONS = {
    "ALERT_BAD_RECORD_MAC": "what this process sent was changed on its way",
    "BAD_RECORD_MAC": "what it sent was changed on its way",
    "WRONG_VERSION_NUMBER": "it does not speak TLS",
    "HTTP_REQUEST": "it does not speak TLS",
    "PROTOCOL": "it does not speak TLS 1.3",
    "VERIFY_10": "its certificate has expired",
    "VERIFY_9": "its certificate is not valid yet",
    "VERIFY_": "its certificate is not of the authority in MEZZO_TLS_CA",
    "CERTIFICATE_EXPIRED": "it says that the certificate of this process has expired",
    "UNKNOWN_CA": "it says that the certificate of this process is not of its MEZZO_TLS_CA",
    "NOT_RETURN_A_CERTIFICATE": "it has no certificate, and MEZZO_TLS_CA demands one",
    "CERTIFICATE_REQUIRED": "it demands a certificate of its MEZZO_TLS_CA, and this process has none",
    "CERTIFICATE": "it does not take the certificate of this process: is that valid yet?",
}
