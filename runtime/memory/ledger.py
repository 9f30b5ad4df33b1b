"""Bookkeeping of a memory pool, without its memory: sizes of blocks, owners, and the blocks that are kept or
released."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from ...ops.dataclasses import dataclass
from ...ops.errors import BudgetError, InputError

KINDS = ("naive", "round", "unpooled")
LARGEST_CUTOFF = 40


@dataclass(frozen=True, slots=True)
class Rounding:
    """Rounding of block sizes: the strategies of MXNet's pools (its MXNET_GPU_MEM_POOL_TYPE).

    `naive` takes what is asked, `round` the next power of two up to 2**cutoff bytes and multiples of 2**cutoff above;
    neither less than a page. `unpooled` takes what is asked, and keeps nothing. A block that has come back serves
    whoever asks for its size. Raises InputError where there is no such rounding.

    >>> [Rounding("round", cutoff=20).size(n) for n in (3000, 5000, 2**20, 2**20 + 1)]
    [4096, 8192, 1048576, 2097152]
    >>> print(Rounding("naive"), Rounding("naive").size(5000), Rounding.parse("round:26"))
    naive 5000 round:26
    """

    kind: Literal["naive", "round", "unpooled"] = "naive"
    cutoff: int = 24
    page: int = 4096

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InputError(f"rounding {self.kind!r}", where="memory pool", hint=f"give one of {', '.join(KINDS)}")
        if not self.page.bit_length() <= self.cutoff <= LARGEST_CUTOFF:
            raise InputError(
                f"a cutoff of {self.cutoff}",
                where="memory pool",
                hint=f"it is the exponent of a size, from {self.page.bit_length()} to {LARGEST_CUTOFF}",
            )

    @classmethod
    def parse(cls, text: str) -> Rounding:
        """Parse the result of `str`: naive, round, round:26, unpooled. Raises InputError."""
        kind, _, cutoff = text.lower().partition(":")
        if cutoff and not (cutoff.isdecimal() and kind == "round"):
            raise InputError(f"rounding {text!r}", where="memory pool", hint="give naive, unpooled, round or round:26")
        return cls(kind, *([int(cutoff)] if cutoff else []))  # type: ignore[arg-type]

    def size(self, nbytes: int) -> int:
        """The bytes of the block for so many."""
        if self.kind == "unpooled":
            return nbytes
        if self.kind == "naive":
            return max(nbytes, self.page)
        if nbytes <= 1 << self.cutoff:
            return max(self.page, 1 << max(nbytes - 1, 0).bit_length())
        return -(-nbytes >> self.cutoff) << self.cutoff

    def __str__(self) -> str:
        return f"round:{self.cutoff}" if self.kind == "round" else self.kind


@dataclass(frozen=True, slots=True)
class PoolStats:
    """Bytes of a pool: in blocks in use, those requested of them, and all that it took from the system; the peaks of
    these; the largest free block; the number of requests served by a free block (`hits`) or a new one (`misses`).
    `owners` has the bytes in use of each."""

    in_use: int
    asked: int
    reserved: int
    peak: int
    peak_asked: int
    peak_reserved: int
    largest_free_block: int
    hits: int
    misses: int
    owners: Mapping[str, int]
    rounding: Rounding
    limit: int | None
    keep: int

    @property
    def idle(self) -> int:
        """Bytes that lie ready."""
        return self.reserved - self.in_use

    @property
    def waste(self) -> float:
        """The part of what was reserved at the most that was never asked for at once, from 0 to 1."""
        return 1 - self.peak_asked / self.peak_reserved if self.peak_reserved else 0.0

    def __str__(self) -> str:
        kib = 1 << 10
        lines = [
            f"{self.reserved // kib} KiB reserved, {self.in_use // kib} KiB in use, largest free block "
            f"{self.largest_free_block // kib} KiB",
            f"at the most {self.peak_reserved // kib} KiB reserved, {self.peak // kib} KiB in use, "
            f"{self.peak_asked // kib} KiB asked for ({self.rounding}: {self.waste:.1%} waste)",
            f"{self.hits} blocks lay ready, {self.misses} were made",
        ]
        owners = sorted(self.owners.items(), key=lambda item: (-item[1], item[0]))
        return "\n".join([*lines, *(f"  {nbytes // kib:>10} KiB  {owner}" for owner, nbytes in owners)])


class Ledger:
    """Bookkeeping of a pool: the blocks in use, the free ones, and those returned to the system.

    Of what lies ready, sizes that were used longest ago go first. What a block is does not matter here. Not for
    several threads at once.
    """

    def __init__(self, rounding: Rounding, limit: int | None, keep: int, what: str = "this pool") -> None:
        self.rounding, self.limit, self.keep, self.what = rounding, limit, keep, what
        self.in_use = self.idle = self.asked = self.hits = self.misses = 0
        self.peak = self.peak_asked = self.peak_reserved = 0
        self.owners: dict[str, int] = {}
        self._ready: dict[int, list[Any]] = {}

    def take(self, nbytes: int, owner: str, size: int | None = None) -> tuple[int, Any]:
        """The size of the block for so many bytes, and one that lies ready; None in its place where one must be made.

        `size` is that of a block that is there already. Raises BudgetError where the limit would be passed.
        """
        block = None
        if size is None:
            size = self.rounding.size(nbytes)
            kept = self._ready.get(size)
            if kept:
                block = kept.pop()
                self.idle -= size
                if not kept:
                    del self._ready[size]
        if self.limit is not None and self.in_use + self.idle + size > self.limit:
            self.trim(max(self.limit - self.in_use - size, 0))
            if self.in_use + size > self.limit:
                raise BudgetError(
                    f"{size} bytes more than the {self.in_use} in use would pass the limit of {self.limit} bytes for "
                    f"{self.what}",
                    hint="raise the limit (Budget(dynamic_bytes=...), max_memory, mz.memory.set_pool), or compute with "
                    "smaller arrays",
                )
        if block is None:
            self.misses += 1
        else:
            self.hits += 1
        self.in_use += size
        self.asked += nbytes
        self.peak, self.peak_asked = max(self.peak, self.in_use), max(self.peak_asked, self.asked)
        self.peak_reserved = max(self.peak_reserved, self.in_use + self.idle)
        if size:  # arrays without elements are nobody's
            self.owners[owner] = self.owners.get(owner, 0) + size
        return size, block

    def give(self, size: int, nbytes: int, owner: str, block: Any = None) -> None:
        """A block is seen by nobody any more; without one, the memory was another's."""
        self.in_use -= size
        self.asked -= nbytes
        if size:
            left = self.owners[owner] - size
            if left:
                self.owners[owner] = left
            else:
                del self.owners[owner]
        if block is None or self.rounding.kind == "unpooled" or size > self.keep:
            return
        kept = self._ready.pop(size, None) or []  # to the end of those that were used
        kept.append(block)
        self._ready[size] = kept
        self.idle += size
        if self.idle > self.keep:
            self.trim(self.keep)

    def trim(self, most: int = 0) -> int:
        """Let go of what lies ready until that is `most` bytes; returns how many were let go of."""
        before = self.idle
        while self.idle > most:
            size, kept = next(iter(self._ready.items()))
            kept.pop(0)
            self.idle -= size
            if not kept:
                del self._ready[size]
        return before - self.idle

    def stats(self) -> PoolStats:
        return PoolStats(
            self.in_use, self.asked, self.in_use + self.idle, self.peak, self.peak_asked, self.peak_reserved,
            max(self._ready, default=0), self.hits, self.misses, dict(self.owners), self.rounding, self.limit,
            self.keep,
        )  # fmt: skip
