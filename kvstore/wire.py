"""Messages as bytes: a fixed header, small metadata, a raw payload. No input is trusted.

| bytes | field | |
|---|---|---|
| 0-3 | magic | `MZKV` |
| 4 | version | of this format; a newer one is refused by name |
| 5 | kind | number of the message in `KINDS` |
| 6-7 | flags | bit 0: `Push.pull`; others are 0 |
| 8-11 | rank | signed |
| 12-15 | key | |
| 16-23 | step | signed |
| 24-31 | offset | of the payload in its shard |
| 32-39 | length | of the payload |
| 40-43 | metadata | its length |
| 44-47 | | 0 |

All little endian. Metadata is one msgpack map (https://github.com/msgpack/msgpack/blob/master/spec.md) of exactly the
fields in `KINDS`. A reader takes HEADER bytes, calls `parse`, then `check` (which knows how long a payload may be),
reads the metadata (at most MOST_METADATA bytes), calls `decode`, and only then finds memory for the payload. Every step
raises WireError, whereupon the connection is closed: nothing after a malformed message can be understood.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgpack

from ..ops.errors import InputError, WireError
from .protocol import messages as m
from .protocol.handshake import VERSION
from .protocol.keys import Shard, element

MAGIC = b"MZKV"
_LAYOUT = struct.Struct("<4sBBHiIqQQII")
HEADER = _LAYOUT.size  # bytes
MOST_METADATA = 64 << 10  # bytes
FRAME = m.FRAME
_PULL = 1  # flag

Check = Callable[[Any], Any]  # a value as msgpack gives it -> as the dataclass has it; ValueError says what it is not


class Header(NamedTuple):
    """The fixed part of a message; `kind` is a number of KINDS, lengths are in bytes."""

    kind: int
    flags: int = 0
    rank: int = 0
    key: int = 0
    step: int = 0
    offset: int = 0
    length: int = 0
    metadata: int = 0

    @property
    def type(self) -> type[m.Message]:
        return KINDS[self.kind].type


@dataclass(frozen=True, slots=True)
class Kind:
    """Wire format of one message: the fields in the header, and the checks of those in the metadata."""

    type: type[m.Message]
    header: tuple[str, ...] = ()
    metadata: Mapping[str, Check] = field(default_factory=dict[str, Check])
    payload: bool = False

    @property
    def absent(self) -> tuple[int, ...]:
        """Places in a Header that must be 0."""
        return tuple(Header._fields.index(name) for name in _FRAME if name not in self.header)


def _int(low: int, high: int) -> Check:
    def check(value: Any) -> int:
        if type(value) is not int or not low <= value <= high:
            raise ValueError(f"an integer from {low} to {high}")
        return value

    return check


def _text(most: int = 256) -> Check:
    def check(value: Any) -> str:
        if type(value) is not str or len(value) > most:
            raise ValueError(f"a text of at most {most} characters")
        return value

    return check


def _one_of(*names: str) -> Check:
    def check(value: Any) -> str:
        if type(value) is not str or value not in names:
            raise ValueError(f"one of {', '.join(names)}")
        return value

    return check


def _scalar(value: Any) -> m.Scalar:
    if type(value) not in (bool, int, float, str):
        raise ValueError("a number, a text or a truth value")
    return value  # type: ignore[no-any-return]


def _truth(value: Any) -> bool:
    if type(value) is not bool:
        raise ValueError("a truth value")
    return value


def _seconds(value: Any) -> float:
    if type(value) not in (int, float) or not 0 <= value < 1 << 40:
        raise ValueError("a number of seconds")
    return float(value)


def _real(value: Any) -> float:
    if type(value) not in (int, float):
        raise ValueError("a number")
    return float(value)


def _map(check: Check) -> Check:
    def check_all(value: Any) -> dict[str, Any]:
        if type(value) is not dict or not all(type(name) is str for name in value):
            raise ValueError("a map of names")
        return {name: check(each) for name, each in value.items()}

    return check_all


def _list(check: Check) -> Check:
    def check_all(value: Any) -> tuple[Any, ...]:
        if type(value) is not tuple:
            raise ValueError("a list")
        return tuple(check(each) for each in value)

    return check_all


def _tuple(*checks: Check) -> Check:
    def check_all(value: Any) -> tuple[Any, ...]:
        if type(value) is not tuple or len(value) != len(checks):
            raise ValueError(f"a list of {len(checks)}")
        return tuple(check(each) for check, each in zip(checks, value, strict=True))

    return check_all


_STEP = ("key", "step", "rank")
_FRAME = (*_STEP, "offset")
_rank, _count, _role = _int(-1, 1 << 30), _int(0, (1 << 63) - 1), _one_of("scheduler", "server", "worker", "agent")
_number = _int(0, (1 << 31) - 1)
_ranks, _shape, _reason = _list(_rank), _list(_count), _text(4096)

# The order gives the numbers on the wire, from 1: new messages come last.
KINDS: dict[int, Kind] = dict(
    enumerate(
        (
            Kind(
                m.Hello,
                ("rank",),
                {
                    "role": _role,
                    "host": _text(),
                    "lane": _count,
                    "incarnation": _count,
                    "address": _text(),
                    "consistency": _text(),
                    "deadline": _seconds,
                    "gathering": _count,
                    "num_workers": _count,
                    "num_servers": _count,
                },
            ),
            Kind(
                m.Welcome,
                ("rank",),
                {
                    "num_workers": _count,
                    "servers": _list(_text()),
                    "hosts": _list(_tuple(_text(), _ranks)),
                    "consistency": _text(),
                    "incarnation": _count,
                    "gathering": _count,
                },
            ),
            Kind(m.Init, _STEP, {"name": _text(4096), "dtype": _text(), "shape": _shape, "lo": _count, "hi": _count}),
            Kind(m.Push, _FRAME, payload=True),
            Kind(m.Pull, _STEP),
            Kind(m.Value, _FRAME, payload=True),
            Kind(m.Done, _STEP),
            Kind(m.SetOptimizer, ("rank",), {"name": _text(), "scalars": _map(_scalar)}),
            Kind(
                m.States,
                ("key", "rank", "offset"),
                {"arrays": _list(_tuple(_text(), _text(), _shape))},
                payload=True,
            ),
            Kind(m.Barrier, ("rank",), {"name": _text(), "said": _reason}),
            Kind(m.ServerStats, (), {"counts": _map(_count)}),
            Kind(m.Refused, _STEP, {"reason": _reason, "hint": _reason}),
            Kind(m.Failed, (), {"ranks": _ranks, "reason": _reason, "role": _role, "hint": _reason}),
            Kind(m.Heartbeat),
            Kind(m.Bye, ("rank",), {"code": _int(-(1 << 31), 1 << 31), "reason": _reason}),
            Kind(m.Slices, ("key", "rank"), {"width": _int(1, FRAME)}, payload=True),
            Kind(m.Rows, _FRAME, {"total": _count, "first": _count}, payload=True),
            Kind(
                m.Lend,
                ("rank",),
                {
                    "number": _number,
                    "process": _count,
                    "file": _number,
                    "kernel": _text(),
                    "node": _count,
                    "size": _count,
                },
            ),
            Kind(
                m.Offer,
                _FRAME,
                {
                    "length": _count,
                    "source": _number,
                    "at": _count,
                    "pull": _truth,
                    "target": _number,
                    "to": _count,
                },
            ),
            Kind(m.Written, _FRAME, {"length": _count}),
            Kind(
                m.Packed,
                _FRAME,
                {"nbytes": _int(1, FRAME), "scheme": _text(), "pull": _truth, "era": _count},
                payload=True,
            ),
            Kind(m.PackedValue, _FRAME, {"nbytes": _int(1, FRAME), "scheme": _text()}, payload=True),
            Kind(m.Report, ("rank",), {"counts": _map(_real)}),
            Kind(
                m.Overview,
                (),
                {
                    "first": _count,
                    "total": _count,
                    "members": _list(_tuple(_role, _rank, _text(), _seconds, _map(_real))),
                    "workers": _count,
                },
            ),
            Kind(m.Gather, (), {"number": _count, "ranks": _ranks, "reason": _reason}),
            Kind(m.Late, _STEP),
        ),
        1,
    )
)
_NUMBERS = {kind.type: number for number, kind in KINDS.items()}
_PUSH, _VALUE = _NUMBERS[m.Push], _NUMBERS[m.Value]
# What is looked at for every message, by number: longest payload, whether there is metadata, places that must be 0.
_LIMITS = {number: (FRAME if kind.payload else 0, bool(kind.metadata), kind.absent) for number, kind in KINDS.items()}


def encode(message: m.Message, length: int = 0) -> bytes:
    """The header and metadata of a message whose payload of `length` bytes follows.

    >>> sent = encode(m.Pull(key=3, step=7, rank=1))
    >>> decode(parse(sent), sent[HEADER:])
    Pull(key=3, step=7, rank=1)
    """
    number = _NUMBERS[message.__class__]
    if number in (_PUSH, _VALUE):  # nearly always
        key, step, rank, offset = message[:4]  # type: ignore[index]
        flags = _PULL if number == _PUSH and message.pull else 0  # type: ignore[union-attr]
        return _LAYOUT.pack(MAGIC, VERSION, number, flags, rank, key, step, offset, length, 0, 0)
    kind = KINDS[number]
    given: dict[str, Any] = {name: getattr(message, name) for name in kind.header}
    metadata = b""
    if kind.metadata:
        metadata = msgpack.packb({name: getattr(message, name) for name in kind.metadata}, default=dict)
        if len(metadata) > MOST_METADATA:
            raise WireError(
                f"{len(metadata)} bytes of metadata are more than {MOST_METADATA}", where=type(message).__name__
            )
    places = (given.get(name, 0) for name in ("rank", "key", "step", "offset"))
    return _LAYOUT.pack(MAGIC, VERSION, number, 0, *places, length, len(metadata), 0) + metadata


def parse(data: bytes | bytearray | memoryview, at: int = 0) -> Header:
    """The header in the HEADER bytes from `at`. Raises WireError."""
    if len(data) - at < HEADER:
        raise WireError(f"a header has {HEADER} bytes, here are {len(data) - at}")
    magic, version, number, flags, rank, key, step, offset, length, metadata, zero = _LAYOUT.unpack_from(data, at)
    if magic != MAGIC:
        raise WireError("the other end does not speak the protocol of a KVStore", hint="is this the right port?")
    if version != VERSION:
        raise WireError(
            f"the message has version {version}, this process speaks version {VERSION}",
            hint="install the same Mezzo on every host of the job",
        )
    limits = _LIMITS.get(number)
    if limits is None:
        raise WireError(f"there is no message of kind {number}")
    most, more, absent = limits
    header = Header(number, flags, rank, key, step, offset, length, metadata)
    if zero or (flags and (number != _PUSH or flags != _PULL)):
        raise _wrong(header, f"unknown flags {flags:#x}, {zero:#x}")
    if metadata > MOST_METADATA or (metadata > 0) != more:
        raise _wrong(header, f"{metadata} bytes of metadata")
    if length > most:
        raise _wrong(header, f"{length} bytes of payload")
    if rank < m.NOBODY or step < m.NEWEST:
        raise _wrong(header, f"rank {rank}, step {step}")
    for place in absent:
        if header[place]:
            raise _wrong(header, f"{Header._fields[place]} {header[place]} where none belongs")
    return header


def _wrong(header: Header, what: str) -> WireError:
    return WireError(what, where=header.type.__name__)


def decode(header: Header, metadata: bytes | bytearray | memoryview = b"") -> m.Message:
    """The message of a parsed header and its metadata, every field checked. Raises WireError."""
    number, flags, rank, key, step, offset, _, _ = header
    if number == _PUSH:
        return m.Push(key, step, rank, offset, flags == _PULL)
    if number == _VALUE:
        return m.Value(key, step, rank, offset)
    kind = KINDS[number]
    where = kind.type.__name__
    fields: dict[str, Any] = {name: getattr(header, name) for name in kind.header}
    if kind.metadata:
        if len(metadata) != header.metadata:
            raise WireError(f"{len(metadata)} bytes of metadata, {header.metadata} were promised", where=where)
        found = _unpacked(metadata, where)
        if type(found) is not dict or found.keys() != kind.metadata.keys():
            raise WireError(f"its fields are not {', '.join(kind.metadata)}", where=where)
        for name, check in kind.metadata.items():
            try:
                fields[name] = check(found[name])
            except ValueError as error:
                raise WireError(f"{name} is not {error}", where=where) from None
    return kind.type(**fields)


def _unpacked(metadata: bytes | bytearray | memoryview, where: str) -> Any:
    try:  # lengths inside are bounded by the bytes that are there
        return msgpack.unpackb(metadata, use_list=False, strict_map_key=True, ext_hook=_no_extension)
    except (ValueError, TypeError, OverflowError, RecursionError, msgpack.UnpackException) as error:
        raise WireError(f"its metadata cannot be read ({type(error).__name__})", where=where) from None


def _no_extension(code: int, data: bytes) -> Any:
    raise ValueError(f"extension {code}")


def check(header: Header, known: Mapping[int, Shard]) -> None:
    """The payload that a header announces fits into the shard that Init declared. Raises WireError.

    Of `Push` and `Value` only; states are checked against `arrays` by `check_states`.

    >>> check(parse(encode(m.Push(1, 1, 0), length=16)), {1: Shard("w", "float32", (4,), 0, 16)})
    >>> check(parse(encode(m.Push(1, 1, 0), length=17)), {1: Shard("w", "float32", (4,), 0, 16)})
    Traceback (most recent call last):
    mezzo.ops.errors.WireError: Push of key 'w': bytes 0 to 17 do not lie in its 16 bytes (float32[4])
    """
    if header.kind != _PUSH and header.kind != _VALUE:
        kind = KINDS[header.kind]
        if "key" in kind.header and kind.type is not m.Init and (header.key or kind.payload):
            _shard(header, known)
        return
    shard = known.get(header.key)
    lo, length, size = header.offset, header.length, 0 if shard is None else shard.nbytes
    if lo == 0 and length == size > 0:  # a whole shard in one frame
        return
    shard = _shard(header, known)
    where = f"{header.type.__name__} of key {shard.name!r}"
    hi = lo + length
    if hi > size or (not length and size):
        raise WireError(f"bytes {lo} to {hi} do not lie in its {size} bytes ({shard})", where=where)
    itemsize = element(shard.dtype).itemsize
    if lo % itemsize or hi % itemsize:
        raise WireError(f"bytes {lo} to {hi} cut an element of {itemsize} bytes", where=where)


def as_push(header: Header, packed: m.Packed) -> Header:
    """The header that a packed push would have if it were none."""
    return header._replace(kind=_PUSH, flags=_PULL * packed.pull, length=packed.nbytes, metadata=0)


def _shard(header: Header, known: Mapping[int, Shard]) -> Shard:
    shard = known.get(header.key)
    if shard is None:
        raise WireError(f"key number {header.key} was never declared", where=header.type.__name__)
    return shard


def check_states(header: Header, states: m.States, most_bytes: int) -> int:
    """Bytes of all arrays of `states`, at most `most_bytes`, the frame's among them. Raises WireError."""
    total = 0
    for name, dtype, shape in states.arrays:
        try:
            size = element(dtype).itemsize
        except InputError as error:
            raise WireError(error.message, where=f"state {name!r}") from None
        if len(shape) > 32:
            raise WireError(f"{len(shape)} dimensions", where=f"state {name!r}")
        for dim in shape:
            size *= dim
        total += size
    if total > most_bytes or header.offset + header.length > total:
        raise WireError(
            f"bytes {header.offset} to {header.offset + header.length} of {total}, at most {most_bytes}", where="States"
        )
    return total
