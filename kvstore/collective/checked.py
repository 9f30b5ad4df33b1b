"""A communicator that checks how it is used, for tests of whoever uses one."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from ...ops.errors import ExecutionError, MezzoError
from .calls import BROADCAST, RECEIVE, SEND, Call, named
from .communicator import Work
from .threads import DEADLINE, Ledger, Threads


class Checked(Threads):
    """One rank of a team of threads that checks its calls. The first error ends the communicator on every rank.

    Besides what every communicator refuses (another order, size, type or name on one rank, a missing call, use after
    the end), these are errors: a call on another stream than the calls before it; an operand that is written before
    `wait()`; arrays of two calls under way that share memory; work that nobody has waited for.
    """

    kind = "checked"

    def __init__(self, rank: int, ledger: Ledger, deadline: float = DEADLINE) -> None:
        super().__init__(rank, ledger, deadline)
        self.log: list[Call] = []
        self._stream: tuple[Any, Call] | None = None
        self._under_way: list[_CheckedWork] = []

    def _start(self, call: Call, x: Any, out: Any, stream: Any) -> Work:
        if self._stream is None:
            self._stream = stream, call
        elif self._stream[0] != stream:
            before = self._stream
            self._wrong(f"{call} is on stream {stream}, and {before[1]} was on stream {before[0]}", "use one stream")
        for other in self._under_way:
            if x.size and any(np.may_share_memory(a, b) for a in (x, out) for b in other.arrays):
                self._wrong(f"{call} has memory that {other.call} has already", "wait for the former call first")
        self.log.append(call)
        work = _CheckedWork(self, call, x, out)
        self._under_way.append(work)
        work.inner = super()._start(call, x, out, stream)
        return work

    def ended(self, work: _CheckedWork) -> None:
        if work in self._under_way:
            self._under_way.remove(work)

    def close(self) -> None:
        left = [str(work.call) for work in self._under_way if work.call.verb != SEND]
        if left and self.failure is None and self._ledger.failure is None and not self.closed:
            try:
                self._wrong(f"nobody has waited for {left[0]}", "call wait() of what each call returns")
            finally:
                super().close()
        super().close()

    def _wrong(self, what: str, hint: str) -> None:
        error: MezzoError = ExecutionError(f"rank {self.rank}: {what}", where="communicator", hint=hint)
        self._ledger.fail(error)
        self.failure = error
        raise error


class CheckingLedger(Ledger):
    """Record of calls with digests of their operands."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self._digests: dict[tuple[int, int], int] = {}

    def enter(self, number: int, rank: int, call: Call, x: Any, out: Any) -> None:
        with self.changed:
            if call.verb not in (SEND, RECEIVE):
                self._digests[number, rank] = _digest(x)
            super().enter(number, rank, call, x, out)

    def _do(self, number: int, call: Call, arrays: Mapping[int, tuple[Any, Any]]) -> None:
        before = {r: self._digests.pop((number, r)) for r in arrays}
        # what a broadcast overwrites is no operand
        read = [r for r in arrays if call.verb != BROADCAST or r == call.root]
        written = [r for r in read if _digest(arrays[r][0]) != before[r]]
        if written:
            what = f"{named(written)}: the operand of {call} was written before wait()"
            self.fail(ExecutionError(what, where="communicator", hint="write into another array"))
            return
        super()._do(number, call, arrays)


class _CheckedWork:
    """A call under way: an error if nobody calls `wait`."""

    def __init__(self, rank: Checked, call: Call, x: Any, out: Any) -> None:
        self._rank, self.call, self.arrays = rank, call, (x, out)
        self.inner: Work | None = None

    def wait(self) -> Any:
        assert self.inner is not None
        result = self.inner.wait()
        self._rank.ended(self)
        return result


def _digest(x: Any) -> int:
    return zlib.crc32(np.ascontiguousarray(x).view(np.uint8).tobytes()) if x.size else 0


def checked(size: int, deadline: float = DEADLINE) -> list[Checked]:
    """The checking communicators of `size` threads of this process."""
    ledger = CheckingLedger(size)
    return [Checked(r, ledger, deadline) for r in range(size)]
