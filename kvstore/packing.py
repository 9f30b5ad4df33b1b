"""Schemes that make values smaller where they travel between hosts: records, found by name, that know no store.

A scheme packs the numbers (float32) of one frame by themselves, so that frames are packed, sent, summed and answered
one after the other. What it loses is kept by whoever packs, and added to what is packed next (error feedback, Seide et
al., INTERSPEECH 2014; Karimireddy et al., arXiv 1901.09847): each scheme here loses less than it is given, so that what
is kept stays bounded. Numbers that are not finite come out as such, and are not kept.

| scheme | a number becomes | bytes |
|---|---|---|
| `fp16`, `bf16` | that type | 1/2 |
| `2bit` | -a, 0 or a; a for each run of numbers, the mean of those beyond a threshold | 1/16 |
| `1bit` | -a or a, a the mean of a run | 1/31 |
| `topk RATIO` | the largest ones of a frame, exact; the others nothing | 2 RATIO |
| `powersgd RANK` | that of a product of two matrices of this rank (Vogels et al., arXiv 1905.13727) | RANK / 256 |
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np

from ..ops.errors import InputError, WireError
from ..ops.types import Array, DType

RUN = 2048  # numbers of one scale
LEAST = 64 << 10  # bytes of a value that is worth the time
BEYOND = 0.7  # of the mean: what lies below becomes 0 (Li et al., arXiv 1605.04711)
ITEM = 4  # bytes of a number


class Scheme(Protocol):
    """A way to pack numbers. `text` names it with its number, and is what travels."""

    name: ClassVar[str]

    @property
    def text(self) -> str: ...

    def size(self, count: int) -> int:
        """Bytes of so many packed numbers."""
        ...

    def pack(self, numbers: Array) -> bytes: ...

    def unpack(self, data: Array, count: int) -> Array:
        """So many numbers (float32), the same bits on every machine; `data` has `size` bytes. Raises WireError where it
        packs nothing."""
        ...


SCHEMES: dict[str, Callable[..., Scheme]] = {}
_S = TypeVar("_S", bound=type[Any])


def register(made: _S) -> _S:
    """Have a scheme found by its name."""
    SCHEMES[made.name] = made
    return made


@lru_cache(64)
def parse(text: str) -> Scheme:
    """The scheme of this text. Raises InputError.

    >>> parse("topk 0.05").size(1000)
    400
    """
    name, _, number = text.partition(" ")
    made = SCHEMES.get(name)
    try:
        if made is not None:
            return made(float(number)) if number else made()
        why = f"there is no scheme {name[:40]!r}"
    except (TypeError, ValueError) as error:
        why = f"{text[:40]!r}: {error}"
    raise InputError(
        why, where="compression", hint=f"there are {', '.join(SCHEMES)}; topk takes a ratio, powersgd a rank"
    )


@dataclass(frozen=True, slots=True)
class _Cast:
    """Numbers of a shorter type; those beyond its range become its largest."""

    name: ClassVar[str]
    type: ClassVar[DType]

    @property
    def text(self) -> str:
        return self.name

    def size(self, count: int) -> int:
        return 2 * count

    def pack(self, numbers: Array) -> bytes:
        most = np.float32(65504 if self.type is DType.FLOAT16 else 2.0**128 - 2.0**120)
        beyond = np.isfinite(numbers) & (np.abs(numbers) > most)
        if beyond.any():
            numbers = np.where(beyond, np.copysign(most, numbers), numbers)
        packed: bytes = numbers.astype(self.type.numpy).tobytes()
        return packed

    def unpack(self, data: Array, count: int) -> Array:
        return data.view(self.type.numpy).astype(np.float32)


@register
@dataclass(frozen=True, slots=True)
class Fp16(_Cast):
    """IEEE half precision."""

    name: ClassVar[str] = "fp16"
    type: ClassVar[DType] = DType.FLOAT16


@register
@dataclass(frozen=True, slots=True)
class Bf16(_Cast):
    """The upper half of float32."""

    name: ClassVar[str] = "bf16"
    type: ClassVar[DType] = DType.BFLOAT16


def _runs(numbers: Array) -> Array:
    """Runs of RUN numbers, the last one filled up with zeros."""
    short = -numbers.size % RUN
    return (np.concatenate([numbers, np.zeros(short, np.float32)]) if short else numbers).reshape(-1, RUN)


@register
@dataclass(frozen=True, slots=True)
class TwoBits:
    """Two planes of bits, those above the threshold and those below its negative, behind a scale for each run."""

    name: ClassVar[str] = "2bit"

    @property
    def text(self) -> str:
        return self.name

    def size(self, count: int) -> int:
        return ITEM * -(-count // RUN) + 2 * -(-count // 8)

    def pack(self, numbers: Array) -> bytes:
        runs, count = _runs(numbers), numbers.size
        least = np.abs(runs).mean(1, keepdims=True) * np.float32(BEYOND)
        above, below = runs > least, runs < -least
        signs = (above.view(np.int8) - below.view(np.int8)).astype(np.float32)
        beyond = np.maximum(np.einsum("ij,ij->i", signs, signs), 1)
        scales = np.einsum("ij,ij->i", runs, signs) / beyond
        planes = [np.packbits(plane.reshape(-1)[:count]).tobytes() for plane in (above, below)]
        packed: bytes = b"".join([scales.astype(np.float32).tobytes(), *planes])
        return packed

    def unpack(self, data: Array, count: int) -> Array:
        many, plane = -(-count // RUN), -(-count // 8)
        scales, bits = data[: ITEM * many].view(np.float32), data[ITEM * many :]
        found = np.unpackbits(bits[:plane], count=count).view(np.int8)
        found -= np.unpackbits(bits[plane:], count=count).view(np.int8)
        return _scaled(found, scales, count)


def _scaled(signs: Array, scales: Array, count: int) -> Array:
    made = _runs(signs.astype(np.float32))
    made *= scales[:, None]
    return made.reshape(-1)[:count]


@register
@dataclass(frozen=True, slots=True)
class OneBit:
    """Signs, behind a scale for each run."""

    name: ClassVar[str] = "1bit"

    @property
    def text(self) -> str:
        return self.name

    def size(self, count: int) -> int:
        return ITEM * -(-count // RUN) + -(-count // 8)

    def pack(self, numbers: Array) -> bytes:
        runs, last = _runs(numbers), numbers.size % RUN
        scales = np.abs(runs).mean(1)
        if last:
            scales[-1] *= np.float32(RUN / last)
        packed: bytes = scales.astype(np.float32).tobytes() + np.packbits(numbers < 0).tobytes()
        return packed

    def unpack(self, data: Array, count: int) -> Array:
        many = -(-count // RUN)
        signs = np.unpackbits(data[ITEM * many :], count=count).view(np.int8)
        signs *= -2
        signs += 1
        return _scaled(signs, data[: ITEM * many].view(np.float32), count)


@register
@dataclass(frozen=True, slots=True)
class TopK:
    """The largest numbers, behind their places."""

    ratio: float = 0.01
    name: ClassVar[str] = "topk"

    def __post_init__(self) -> None:
        if not 0 < self.ratio <= 0.5:
            raise ValueError(f"a ratio above 0, and at most 0.5, is no {self.ratio:g}")

    @property
    def text(self) -> str:
        return f"{self.name} {self.ratio!r}"

    def _kept(self, count: int) -> int:
        return min(count, max(1, math.ceil(count * self.ratio)))

    def size(self, count: int) -> int:
        return 2 * ITEM * self._kept(count)

    def pack(self, numbers: Array) -> bytes:
        kept = self._kept(numbers.size)
        at = np.sort(np.argpartition(np.abs(numbers), numbers.size - kept)[numbers.size - kept :])
        packed: bytes = at.astype(np.uint32).tobytes() + numbers[at].tobytes()
        return packed

    def unpack(self, data: Array, count: int) -> Array:
        at, numbers = np.split(data, 2)
        places = at.view(np.uint32)
        if len(places) and (int(places[-1]) >= count or (places[1:] <= places[:-1]).any()):
            raise WireError("places that do not ascend, or lie outside", where="topk")
        made = np.zeros(count, np.float32)
        made[places] = numbers.view(np.float32)
        return made


@register
@dataclass(frozen=True, slots=True)
class PowerSGD:
    """Numbers as a square matrix M, and that as P (P'M), where P is an orthonormal basis that two steps of the power
    method find. Frames are packed by themselves, so that servers sum what comes from hosts, not P and Q."""

    rank: float = 4
    name: ClassVar[str] = "powersgd"

    def __post_init__(self) -> None:
        if not (self.rank == int(self.rank) and 1 <= self.rank <= 64):
            raise ValueError(f"a rank from 1 to 64 is no {self.rank:g}")

    @property
    def text(self) -> str:
        return f"{self.name} {int(self.rank)}"

    def _shape(self, count: int) -> tuple[int, int]:
        """The side of the matrix, and the columns of P and Q."""
        side = math.isqrt(count - 1) + 1 if count else 0
        return side, min(side, int(self.rank))

    def size(self, count: int) -> int:
        side, rank = self._shape(count)
        return 2 * ITEM * side * rank

    def pack(self, numbers: Array) -> bytes:
        side, rank = self._shape(numbers.size)
        if not np.isfinite(numbers).all():
            return np.full(2 * side * rank, np.nan, np.float32).tobytes()
        room = np.zeros(side * side, np.float32)
        room[: numbers.size] = numbers
        matrix = room.reshape(side, side)
        guess = _guess(side, rank)
        for _ in range(2):
            basis = np.linalg.qr(matrix @ guess)[0]
            guess = matrix.T @ basis
        return np.concatenate([basis.T.reshape(-1), guess.T.reshape(-1)]).astype(np.float32).tobytes()

    def unpack(self, data: Array, count: int) -> Array:
        side, rank = self._shape(count)
        left, right = data.view(np.float32).reshape(2, rank, side)
        made = np.zeros((side, side), np.float32)
        for p, q in zip(left, right, strict=True):  # not by a product of matrices, whose bits depend on the machine
            made += p[:, None] * q
        return made.reshape(-1)[:count]


@lru_cache(16)
def _guess(side: int, rank: int) -> Array:
    return np.random.default_rng(side).standard_normal((side, rank)).astype(np.float32)


def unpacked(text: str, data: Any, nbytes: int) -> memoryview:
    """The bytes of packed numbers. Raises WireError where the scheme is unknown or `data` does not have its size."""
    try:
        scheme = parse(text)
    except InputError as error:
        raise WireError(error.message, where="compression") from None
    given, count = np.frombuffer(data, np.uint8), nbytes // ITEM
    if nbytes % ITEM or not count or given.size != scheme.size(count):
        raise WireError(f"{given.size} bytes are no {count} numbers of {text}", where="compression")
    with np.errstate(all="ignore"):
        made: memoryview = scheme.unpack(given, count).view(np.uint8).data
    return made


class Packer:
    """Packs the frames of one value, each once in a step, however often it is sent; keeps what that loses."""

    def __init__(self, scheme: Scheme, nbytes: int) -> None:
        self.scheme = scheme
        self.kept = np.zeros(nbytes // ITEM, np.float32)
        self._step = -1
        self._packets: dict[int, bytes] = {}

    def packet(self, step: int, offset: int, given: memoryview) -> bytes:
        """The packed frame that begins at this byte of the value."""
        if step != self._step:
            self._step = step
            self._packets.clear()
        packet = self._packets.get(offset)
        if packet is None:
            with np.errstate(all="ignore"):
                packet = self._packets[offset] = self._packed(offset // ITEM, np.frombuffer(given, np.float32))
        return packet

    def _packed(self, low: int, numbers: Array) -> bytes:
        kept = self.kept[low : low + numbers.size]
        kept += numbers
        packet = self.scheme.pack(kept)
        kept -= self.scheme.unpack(np.frombuffer(packet, np.uint8), kept.size)
        if not np.isfinite(kept.sum()):
            kept[~np.isfinite(kept)] = 0
        return packet


@dataclass(frozen=True, slots=True)
class Packings:
    """The schemes of a store: of a value the one with the largest least size that it reaches.

    >>> chosen = Packings.of({"fp16": 64 << 10, "2bit": 1 << 20})
    >>> [chosen.scheme("float32", size) for size in (1000, 100_000, 2_000_000)]
    ['', 'fp16', '2bit']
    """

    least: Mapping[str, int] = field(default_factory=dict[str, int])

    @classmethod
    def of(cls, given: str | Mapping[str, int] | None) -> Packings:
        """One scheme for values of LEAST bytes or more, or several with the bytes from which on they count. Raises
        InputError."""
        least = {given: LEAST} if isinstance(given, str) else dict(given or {})
        for scheme, size in least.items():
            if size.__class__ is not int or size < 0:
                raise InputError(f"{scheme}: {size!r} is no number of bytes", where="compression")
        return cls({parse(scheme).text: size for scheme, size in least.items()})

    def scheme(self, dtype: str, nbytes: int) -> str:
        """The text of the scheme for a value; empty for those that go as they are."""
        fit = [(size, text) for text, size in self.least.items() if size <= nbytes]
        return max(fit)[1] if fit and dtype == "float32" and nbytes else ""
