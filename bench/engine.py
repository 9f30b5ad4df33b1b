"""What the dependency engine costs: empty workloads, one after the other.

`workload/64-variables` is wall time per workload over a million that each read two and write one of 64 variables, drawn
at random; `workload/cpu` the processor time of it, over all threads; `memory/growth` by how much the process grew from
the first tenth to the end. `wait/inline` pushes one workload and waits for it at once, which the waiting thread runs
itself; `wait/handoff` waits with a deadline, so that a thread of the engine has to run it. Each round starts fresh
processes, interleaved; the row is the best one of the rounds (a loaded machine only adds), for growth the worst.

Peers: `naive` is this engine with MEZZO_ENGINE=naive; `futures` is concurrent.futures.ThreadPoolExecutor with as many
threads, which knows no dependencies and no bound. The floor of the first row is a loop that calls the empty function.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from random import Random
from time import perf_counter, process_time
from typing import Any

from rows import Row, arguments, machine, show, users_environment

VARIABLES, PATTERN = 64, 4096
SINGLE = 20_000  # workloads that are waited for one by one
Taken = dict[str, float]


def nothing() -> None:
    """An empty workload."""


def choices() -> list[tuple[tuple[int, int], int]]:
    """Which two variables are read and which is written, for some thousand workloads."""
    rng = Random(0)
    return [((rng.randrange(VARIABLES), rng.randrange(VARIABLES)), rng.randrange(VARIABLES)) for _ in range(PATTERN)]


def resident() -> float:
    """Bytes of this process in memory, in MiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1]) if sys.platform == "linux" else 0
    return pages * 4096 / 2**20


def each(count: int, push: Callable[[int], Any], wait: Callable[[], Any]) -> Taken:
    """Time per workload in microseconds, wall and processor; growth in MiB."""
    for i in range(PATTERN):
        push(i)
    wait()
    early, wall, busy = 0.0, perf_counter(), process_time()
    for _part in range(10):
        for i in range(count // 10):
            push(i)
        early = early or resident()
    wait()
    wall, busy = perf_counter() - wall, process_time() - busy
    return {"wall": wall / count * 1e6, "cpu": busy / count * 1e6, "growth": resident() - early}


def single(one: Callable[[], Any]) -> float:
    """Microseconds of one push and wait; the best of five."""
    best = float("inf")
    for _ in range(5):
        began = perf_counter()
        for _ in range(SINGLE // 5):
            one()
        best = min(best, (perf_counter() - began) / (SINGLE // 5) * 1e6)
    return best


def of_engine(mode: str, count: int) -> Taken:
    """This engine."""
    from mezzo.runtime.engine import Engine

    with Engine(mode) as engine:
        variables = [engine.variable(f"v{i}") for i in range(VARIABLES)]
        chosen = [((variables[a], variables[b]), (variables[c],)) for (a, b), c in choices()]

        def push(i: int) -> None:
            reads, writes = chosen[i % PATTERN]
            engine.push(nothing, reads, writes)

        taken = each(count, push, engine.wait_all)
        one = (variables[0],)

        def inline() -> None:
            engine.push(nothing, (), one)
            engine.wait(one[0])

        taken["inline"] = single(inline)
        taken["handoff"] = single(lambda: engine.push(nothing, (), one).wait(60))
    return taken


def of_futures(count: int) -> Taken:
    """The executor of the standard library; its queue is emptied as often as ours is full."""
    from mezzo.runtime.environment import processors

    with ThreadPoolExecutor(processors()) as pool:
        under_way: deque[Future[None]] = deque()

        def push(_: int) -> None:
            under_way.append(pool.submit(nothing))
            if len(under_way) > PATTERN:
                under_way.popleft().result()

        def wait() -> None:
            while under_way:
                under_way.popleft().result()

        taken = each(count, push, wait)
        taken["inline"] = taken["handoff"] = single(lambda: pool.submit(nothing).result())
    return taken


def of_calls(count: int) -> Taken:
    """Plain calls, with the same choice before each."""
    chosen = choices()

    def push(i: int) -> None:
        _reads, _writes = chosen[i % PATTERN]
        nothing()

    return each(count, push, nothing)


ENGINES: dict[str, Callable[[int], Taken]] = {
    "mezzo": lambda count: of_engine("threaded", count),
    "naive": lambda count: of_engine("naive", count),
    "futures": of_futures,
    "calls": of_calls,
}


def taken_by(name: str, count: int) -> Taken:
    """What a fresh process measured."""
    command = [sys.executable, __file__, "--run", name, "--count", str(count)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=users_environment())
    found: Taken = json.loads(done.stdout)
    return found


def more(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--run", choices=ENGINES, help=argparse.SUPPRESS)
    parser.add_argument("--count", type=int, default=1_000_000, help="workloads in a row")


def main() -> None:
    args = arguments(__doc__, more)
    if args.run:
        print(json.dumps(ENGINES[args.run](args.count)))
        return
    rounds: dict[str, list[Taken]] = {name: [] for name in ENGINES}
    for _ in range(2 if args.quick else 5):
        for name, taken in rounds.items():
            taken.append(taken_by(name, args.count))

    def best(name: str, what: str) -> float:
        return (max if what == "growth" else min)(t[what] for t in rounds[name])

    def row(case: str, unit: str, what: str, floor: float | None = None) -> Row:
        return Row(case, unit, best("mezzo", what), {n: best(n, what) for n in ("naive", "futures")}, floor)

    rows = [
        row("workload/64-variables", "us", "wall", best("calls", "wall")),
        row("workload/cpu", "us", "cpu", best("calls", "cpu")),
        row("memory/growth", "MiB", "growth"),
        row("wait/inline", "us", "inline"),
        row("wait/handoff", "us", "handoff"),
    ]
    show(rows, args, [machine(), f"{args.count} workloads"])


if __name__ == "__main__":
    main()
