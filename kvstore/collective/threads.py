"""Communicators of the threads of one process: of the devices that one process drives, and of tests."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from threading import Condition
from typing import Any

from ...ops.errors import DeadlineError, ExecutionError, InputError, MezzoError, PeerError
from ...ops.types import Array
from .calls import ALL_GATHER, BARRIER, BROADCAST, RECEIVE, REDUCE_SCATTER, SEND, Call, differences, named
from .communicator import Communicator, Work
from .sums import sum_in_order

DEADLINE = 120.0


@dataclass(slots=True)
class _Round:
    """The calls of one number, by rank, and their operands and results."""

    calls: dict[int, Call] = field(default_factory=dict[int, Call])
    arrays: dict[int, tuple[Any, Any]] = field(default_factory=dict[int, tuple[Any, Any]])
    done: bool = False


class Ledger:
    """Record of the calls of the ranks of one process. The last rank of a call does it for all."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.changed = Condition()
        self.failure: MezzoError | None = None
        self.left: set[int] = set()
        self.latest: dict[int, str] = {}
        self._rounds: dict[int, _Round] = {}
        self._sent: dict[tuple[int, int], deque[tuple[Call, Any]]] = {}

    def enter(self, number: int, rank: int, call: Call, x: Any, out: Any) -> None:
        """Record a rank's call of this number; the last rank's call does the operation."""
        with self.changed:
            self.latest[rank] = f"{call}, its call {number}"
            if call.verb == SEND:
                self._sent.setdefault((rank, call.root), deque()).append((call, self._held(rank, x)))
                self.changed.notify_all()
                return
            if call.verb == RECEIVE:
                return
            turn = self._rounds.setdefault(number, _Round())
            turn.calls[rank], turn.arrays[rank] = call, (x, out)
            if len(turn.calls) < self.size:
                return
            if difference := differences(number, turn.calls):
                self.fail(InputError(f"the ranks do not call the same: {difference}", where="communicator",
                                     hint="every rank makes the same calls in the same order"))  # fmt: skip
            else:
                del self._rounds[number]
                self._do(number, call, turn.arrays)
                turn.done = self.failure is None
                self.changed.notify_all()

    def fail(self, error: MezzoError) -> None:
        """End the communicator with an error; the first one stays."""
        with self.changed:
            self.failure = self.failure or error
            self.changed.notify_all()

    def turn(self, number: int) -> _Round | None:
        return self._rounds.get(number)

    def absent(self, number: int) -> list[int]:
        """The ranks that have not made this call."""
        turn = self._rounds.get(number)
        return [] if turn is None else [r for r in range(self.size) if r not in turn.calls]

    def received(self, source: int, rank: int, call: Call, out: Any) -> bool:
        """Write what `source` has sent to `rank` into `out`. False if nothing has been sent; a call that does not match
        ends the communicator."""
        waiting = self._sent.get((source, rank))
        if not waiting:
            return False
        sent, x = waiting.popleft()
        if (sent.dtype, sent.count, sent.name) != (call.dtype, call.count, call.name):
            self.fail(
                InputError(f"rank {source} calls {sent}, and rank {rank} {call}", where="communicator",
                           hint="give both the same size, type and name")
            )  # fmt: skip
            return True
        self._give(rank, x, out)
        return True

    # what is done with arrays, which is another thing where they lie on GPUs

    def _held(self, rank: int, x: Any) -> Any:
        """Keep what a rank has sent until it is received."""
        return x.copy()

    def _give(self, rank: int, sent: Any, out: Any) -> None:
        out[...] = sent.reshape(out.shape)

    def _do(self, number: int, call: Call, arrays: Mapping[int, tuple[Any, Any]]) -> None:
        pairs = [arrays[r] for r in range(self.size)]
        flat = [x.reshape(-1) for x, _ in pairs]
        if call.verb == BARRIER:
            return
        if call.verb == ALL_GATHER:
            _gather(flat, [out.reshape(-1) for _, out in pairs])
        elif call.verb == BROADCAST:
            for r, (_, out) in enumerate(pairs):
                if r != call.root:
                    out[...] = pairs[call.root][0]
        elif call.verb == REDUCE_SCATTER:
            each = call.count // self.size
            for r, (_, out) in enumerate(pairs):
                sum_in_order([x[r * each : (r + 1) * each] for x in flat], out.reshape(-1))
        else:
            sum_in_order(flat, flat[0])
            for x in flat[1:]:
                x[...] = flat[0]


def _gather(parts: Sequence[Array], outs: Sequence[Array]) -> None:
    each = len(parts[0])
    for out in outs:
        for r, part in enumerate(parts):
            out[r * each : (r + 1) * each] = part


class Threads(Communicator):
    """One rank of those that threads of this process have; `team` makes all of them.

    >>> first, second = team(2)
    >>> import numpy as np
    >>> work = first.all_reduce(np.array([1.0, 2.0]))
    >>> second.all_reduce(np.array([10.0, 20.0])).wait(), work.wait()
    (array([11., 22.]), array([11., 22.]))
    """

    kind = "threads"

    def __init__(self, rank: int, ledger: Ledger, deadline: float = DEADLINE) -> None:
        super().__init__(rank, ledger.size, deadline)
        self._ledger, self._number = ledger, 0

    def _start(self, call: Call, x: Any, out: Any, stream: Any) -> Work:
        number = self._number
        if call.verb not in (SEND, RECEIVE):
            self._number += 1
        self._ledger.enter(number, self.rank, call, x, out)
        return _ThreadWork(self, self._ledger, number, call, out)

    def _alive(self, what: str) -> None:
        self.failure = self.failure or self._ledger.failure
        super()._alive(what)

    def abort(self, reason: str) -> None:
        self._ledger.fail(PeerError(f"rank {self.rank} has ended it: {reason}", where="communicator"))

    def close(self) -> None:
        self.closed = True
        with self._ledger.changed:
            self._ledger.left.add(self.rank)
            self._ledger.changed.notify_all()


class _ThreadWork:
    """A call under way."""

    def __init__(self, rank: Threads, ledger: Ledger, number: int, call: Call, out: Any) -> None:
        self._rank, self._ledger, self._number, self._call, self._out = rank, ledger, number, call, out
        self._turn, self._ended = ledger.turn(number), False

    def wait(self) -> Any:
        if self._ended:
            return self._out
        ledger, rank, end = self._ledger, self._rank, time.monotonic() + self._rank.deadline
        with ledger.changed:
            while not self._done():
                if ledger.failure is not None:
                    break
                absent = self._absent()
                gone = [r for r in absent if r in ledger.left]
                late = time.monotonic() >= end
                if gone:
                    ledger.fail(PeerError(f"{named(gone)} left before {self._call}", where="communicator"))
                elif late:
                    last = "; ".join(f"rank {r} last called {ledger.latest.get(r, 'nothing')}" for r in absent)
                    ledger.fail(
                        DeadlineError(
                            f"{named(absent)} did not call {self._call}, call {self._number}, within "
                            f"{rank.deadline:g} s; {last}",
                            where="communicator",
                            hint="does it take another path, or has it ended? A longer wait is deadline=",
                        )
                    )
                else:
                    ledger.changed.wait(max(0.0, end - time.monotonic()))
            if ledger.failure is not None:
                rank.failure = ledger.failure
                raise type(ledger.failure)(ledger.failure.message, where=rank.where, hint=ledger.failure.hint)
            self._ended = True
        return self._out

    def _done(self) -> bool:
        call, rank = self._call, self._rank.rank
        if call.verb == SEND:
            return True
        if call.verb == RECEIVE:
            return self._ledger.received(call.root, rank, call, self._out)
        return self._turn is None or self._turn.done

    def _absent(self) -> list[int]:
        return [self._call.root] if self._call.verb == RECEIVE else self._ledger.absent(self._number)


def team(size: int, deadline: float = DEADLINE) -> list[Threads]:
    """The communicators of `size` ranks of this process, one for each thread."""
    if size < 1:
        raise ExecutionError(f"a team of {size}", where="communicator")
    ledger = Ledger(size)
    return [Threads(r, ledger, deadline) for r in range(size)]
