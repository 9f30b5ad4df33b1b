"""A service whose processors others use too: the latency of single calls beside busy loops, beside a computing Python
thread of the same process, and under a quota of processor time.

Rows `NET/CONDITION`: p50, p99 and p99.9 in milliseconds. Each engine runs in a process of its own with its defaults;
windows of every engine and condition are interleaved, and a row has the medians over the rounds. Quotas need a control
group that this process may make (as root): without one their rows are left out, and a note says so.

    python bench/neighbours.py --rounds 15 --seconds 1.5
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from cases import Case, model
from rows import Row, arguments, machine, show

CASE = Case("mobilenetv2/b1/fp32", "mobilenetv2", 1)
LOOPS = {"alone": 0, "1 loop": 1, "2 loops": 2, "4 loops": 4}
QUOTAS = {"quota 0.5": 0.5, "quota 1.5": 1.5}
PERIOD = 100_000  # microseconds of a quota
CHILD = """
import json, sys, threading, time
import numpy as np
engine, path = sys.argv[1:]
x = np.random.default_rng(0).standard_normal((1, 3, 224, 224)).astype(np.float32)
if engine == "mezzo":
    import mezzo
    session = mezzo.load(path)
    name = session.inputs[0].name
    run = lambda: session.run({name: x})
else:
    import onnxruntime
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    run = lambda: session.run(None, {name: x})
for _ in range(20):
    run()
print("ready", flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    done = threading.Event()
    def compute():
        n = 0
        while not done.is_set():
            for _ in range(10000):
                n += 1
    thread = threading.Thread(target=compute) if asked["python"] else None
    if thread:
        thread.start()
    times, end = [], time.perf_counter() + asked["seconds"]
    while time.perf_counter() < end:
        at = time.perf_counter()
        run()
        times.append(time.perf_counter() - at)
    done.set()
    if thread:
        thread.join()
    print(json.dumps([float(p) * 1e3 for p in np.percentile(times, [50, 99, 99.9])]), flush=True)
"""


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=0, help="windows of each engine and condition (default: 15)")
    parser.add_argument("--seconds", type=float, default=1.5, help="of a window (default: 1.5)")


@contextmanager
def busy(loops: int) -> Iterator[None]:
    """Processes that do nothing but compute."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(loops)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


class Group:
    """A control group with a quota, of either version; None of it where this process may make none."""

    def __init__(self, name: str, processors: float) -> None:
        second = Path("/sys/fs/cgroup/cgroup.controllers")
        self.folder = (second.parent if second.exists() else Path("/sys/fs/cgroup/cpu")) / f"mezzo-bench-{name}"
        self.folder.mkdir(exist_ok=True)
        time = int(processors * PERIOD)
        if second.exists():
            (self.folder / "cpu.max").write_text(f"{time} {PERIOD}")
        else:
            (self.folder / "cpu.cfs_period_us").write_text(str(PERIOD))
            (self.folder / "cpu.cfs_quota_us").write_text(str(time))

    def enter(self) -> None:
        """Move this process into the group, before an engine is loaded."""
        (self.folder / "cgroup.procs").write_text(str(os.getpid()))

    def remove(self) -> None:
        """Remove the group, whose processes have ended."""
        self.folder.rmdir()


class Engine:
    """A process that runs the model for as long as it is told."""

    def __init__(self, name: str, path: str, group: Group | None = None) -> None:
        enter = None if group is None else group.enter
        command = [sys.executable, "-c", CHILD, name, path]
        self.process: Any = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, preexec_fn=enter
        )
        if self.process.stdout.readline().strip() != "ready":
            raise SystemExit(f"{name} did not start")

    def window(self, seconds: float, python: bool) -> list[float]:
        """p50, p99 and p99.9 of the calls of a window, in milliseconds."""
        self.process.stdin.write(json.dumps({"seconds": seconds, "python": python}) + "\n")
        self.process.stdin.flush()
        found: list[float] = json.loads(self.process.stdout.readline())
        return found

    def close(self) -> None:
        """End the process."""
        self.process.stdin.close()
        self.process.wait(30)


def main() -> None:
    args = arguments(__doc__, options)
    rounds, seconds = args.rounds or (2 if args.quick else 15), 0.5 if args.quick else args.seconds
    path, notes = str(model(CASE)), [machine()]
    names = ["mezzo", *(["ort"] if find_spec("onnxruntime") else [])]
    taken: dict[tuple[str, str], list[list[float]]] = {}
    with ExitStack() as stack:
        groups: dict[str, Group] = {}
        for condition, processors in QUOTAS.items():
            try:
                groups[condition] = Group(condition.replace(" ", "-"), processors)
            except OSError as error:
                notes.append(f"no row {condition!r}: {error}")
                continue
            stack.callback(groups[condition].remove)

        def started(name: str, group: Group | None = None) -> Engine:
            engine = Engine(name, path, group)
            stack.callback(engine.close)
            return engine

        free = {name: started(name) for name in names}
        bounded = {(c, name): started(name, group) for c, group in groups.items() for name in names}
        for _ in range(rounds):
            for condition, loops in LOOPS.items():
                with busy(loops):
                    for name in names:
                        taken.setdefault((condition, name), []).append(free[name].window(seconds, False))
            for name in names:
                taken.setdefault(("Python thread", name), []).append(free[name].window(seconds, True))
            for (condition, name), engine in bounded.items():
                taken.setdefault((condition, name), []).append(engine.window(seconds, False))
    rows = []
    for condition in dict.fromkeys(c for c, _ in taken):
        for i, quantile in enumerate(("p50", "p99", "p99.9")):
            figures = {n: statistics.median(w[i] for w in taken[condition, n]) for n in names}
            ours = figures.pop("mezzo")
            rows.append(Row(f"mobilenetv2/{condition}/{quantile}", "ms", ours, figures))
    show(rows, args, notes)


if __name__ == "__main__":
    main()
