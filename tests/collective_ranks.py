"""Processes that call a communicator, for test_collective.py: `python -m tests.collective_ranks SCENARIO COUNT NAME`
forks COUNT ranks (of a process that has run nothing) and prints what each says as a line of JSON."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from mezzo.kvstore.collective.communicator import Communicator
from mezzo.kvstore.collective.shared import Shared
from mezzo.kvstore.host.mesh import called, join
from mezzo.ops import DType
from mezzo.ops.errors import MezzoError

from .forked import print_answers

SCENARIOS: dict[str, Callable[[Communicator], Any]] = {}
LARGE = 70_001  # elements: they do not travel with a call


def scenario(function: Callable[[Communicator], Any]) -> Callable[[Communicator], Any]:
    SCENARIOS[function.__name__] = function
    return function


def operand(rank: int, count: int, dtype: Any, seed: int = 0) -> Any:
    rng = np.random.default_rng([rank, count, seed])
    return (rng.standard_normal(count) * 100).astype(dtype)


@scenario
def verbs(c: Communicator) -> Any:
    """Every verb, small and large, in every type: the bits that NumPy has for the sums in rank order."""
    wrong = []

    def same(what: str, found: Any, expected: Any) -> None:
        if found.tobytes() != expected.tobytes():
            wrong.append(what)

    for dtype in (np.float32, np.float64, np.float16, DType.BFLOAT16.numpy, np.int32, np.int64):
        for count in (1, 7 * c.size, LARGE * c.size):
            all_of_them = [operand(r, count, dtype) for r in range(c.size)]
            wide = np.float32 if np.dtype(dtype).itemsize == 2 else dtype
            total = all_of_them[0].astype(wide)
            for other in all_of_them[1:]:
                total = total + other.astype(wide)
            total = total.astype(dtype)
            mine = all_of_them[c.rank]
            same(f"all_reduce {dtype} {count}", c.all_reduce(mine.copy()).wait(), total)
            shared = c.empty(count, dtype)
            shared[...] = mine
            same(f"in place {dtype} {count}", c.all_reduce(shared).wait(), total)
            gathered = np.empty(count * c.size, dtype)
            same(f"gather {dtype} {count}", c.all_gather(mine, gathered).wait(), np.concatenate(all_of_them))
            same(f"operand {dtype}", mine, operand(c.rank, count, dtype))
            root = c.size - 1
            same(f"broadcast {dtype} {count}", c.broadcast(mine.copy(), root).wait(), all_of_them[root])
            if count % c.size == 0:
                part = count // c.size
                found = c.reduce_scatter(mine, np.empty(part, dtype)).wait()
                same(f"scatter {dtype} {count}", found, total[c.rank * part : (c.rank + 1) * part])
    c.barrier()
    return wrong


@scenario
def under_way(c: Communicator) -> Any:
    """Many calls before the first wait, and sends around a ring."""
    arrays = [operand(c.rank, 5000 + n, np.float64, n) for n in range(20)]
    works = [c.all_reduce(x, name=f"bucket {n}") for n, x in enumerate(arrays)]
    wrong = 0
    for n, work in enumerate(works):
        parts = [operand(r, 5000 + n, np.float64, n) for r in range(c.size)]
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        wrong += not np.array_equal(work.wait(), total)
    for count in (3, LARGE):
        for turn in range(3):
            sent = c.send(operand(c.rank, count, np.float32, turn), (c.rank + 1) % c.size)
            before = (c.rank - 1) % c.size
            found = c.receive(np.empty(count, np.float32), before).wait()
            sent.wait()
            wrong += not np.array_equal(found, operand(before, count, np.float32, turn))
    return wrong


def refused(call: Callable[[], Any]) -> list[Any]:
    began = time.monotonic()
    try:
        call()
    except MezzoError as error:
        return [type(error).__name__, error.message, time.monotonic() - began]
    return ["", "", time.monotonic() - began]


def forever(c: Communicator) -> None:
    while True:
        c.all_reduce(np.ones(LARGE)).wait()


@scenario
def killed(c: Communicator) -> Any:
    """Rank 1 dies in the middle of its work."""
    if c.rank == 1:
        signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        signal.setitimer(signal.ITIMER_REAL, 0.3)
    return refused(lambda: forever(c))


@scenario
def frozen(c: Communicator) -> Any:
    """Rank 1 stands still; a child of it, which is not frozen, ends it later."""
    if c.rank == 1:
        c.deadline = 60
        if not os.fork():
            time.sleep(0.3)
            os.kill(os.getppid(), signal.SIGSTOP)
            time.sleep(4)
            os.kill(os.getppid(), signal.SIGKILL)
            os._exit(0)
    c.deadline = 1.0
    return refused(lambda: forever(c))


@scenario
def order(c: Communicator) -> Any:
    sizes = (3, 5) if c.rank != 2 else (5, 3)
    return refused(lambda: [c.all_reduce(np.ones(n), name=f"bucket {n}").wait() for n in sizes])


@scenario
def aborted(c: Communicator) -> Any:
    """One rank ends it for all, in the middle of a call, and says why."""
    if c.rank == 0:
        time.sleep(0.2)
        c.abort("MemoryError: no room")
        return refused(lambda: c.barrier())
    return refused(lambda: forever(c))


@scenario
def slowed(c: Communicator) -> Any:
    """Rank 1 takes longer than the others wait."""
    for _ in range(3):
        c.all_reduce(np.ones(LARGE)).wait()
    c.deadline = 1.0 if c.rank != 1 else 60
    time.sleep(2.5 if c.rank == 1 else 0)
    return refused(lambda: forever(c))


def main() -> int:
    name, count, mesh = sys.argv[1], int(sys.argv[2]), sys.argv[3]

    def run(me: int) -> Any:
        with Shared(join(mesh, me, called(range(count)), 20), count, 20) as communicator:
            return SCENARIOS[name](communicator)

    return print_answers(count, run)


if __name__ == "__main__":
    sys.exit(main())
