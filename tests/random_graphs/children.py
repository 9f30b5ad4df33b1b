"""Searches in processes of their own: at another instruction set, several at once, and where a dying one is told of."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
ISAS = ("", "AVX2", "AVX512_CORE", "AVX512_CORE_BF16")  # the first is the best that the machine has
PART = 250  # graphs of one process


@dataclass(frozen=True)
class Part:
    """What one process looks at."""

    first: int
    count: int
    focus: str = ""
    full: bool = False
    most: int = 8
    shrinks: bool = True
    stops: bool = False  # at the first failure
    died: bool = False  # what the one graph is looked at for: each try in a process of its own


@dataclass
class Report:
    """What a search has seen: as Counts, with failures as they are printed."""

    graphs: int = 0
    nodes: int = 0
    sessions: int = 0
    properties: Counter[str] = field(default_factory=Counter[str])
    refusals: Counter[str] = field(default_factory=Counter[str])
    failures: list[str] = field(default_factory=list[str])
    kinds: Counter[str] = field(default_factory=Counter[str])

    def add(self, said: dict[str, Any]) -> None:
        self.graphs += said["graphs"]
        self.nodes += said["nodes"]
        self.sessions += said["sessions"]
        self.properties.update(said["properties"])
        self.refusals.update(said["refusals"])

    def __str__(self) -> str:
        rows = [f"{self.graphs} graphs, {self.nodes} nodes, {self.sessions} sessions, {len(self.failures)} failures"]
        rows += [f"  {n:6} {name}" for name, n in self.properties.most_common()]
        rows += [f"  refused {n} times: {reason}" for reason, n in self.refusals.most_common()]
        return "\n".join(rows)


def run(
    parts: Sequence[Part],
    *,
    isa: str = "",
    jobs: int = 1,
    told: Callable[[str], None] = lambda _: None,
    root: Path = ROOT,
) -> Report:
    """Run parts in processes; `told` hears each failure as it is found. A process that dies has failed at its graph,
    and another goes on behind it. `root` is the checkout that is searched."""
    report, left, lock = Report(), list(reversed(parts)), threading.Lock()

    def worker() -> None:
        while True:
            with lock:
                if not left or (report.failures and parts[0].stops):
                    return
                part = left.pop()
            while part.count > 0:
                part = _one(part, isa, report, lock, told, root)

    threads = [threading.Thread(target=worker) for _ in range(jobs)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return report


def _one(
    part: Part, isa: str, report: Report, lock: threading.Lock, told: Callable[[str], None], root: Path, said: str = ""
) -> Part:  # fmt: skip
    """One process; returns what is left to do of the part. `said` is what one that died before wrote last."""
    path = os.pathsep.join(str(p) for p in (root / "src", ROOT))
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    if isa:
        environ["ONEDNN_MAX_CPU_ISA"] = isa
    command = [sys.executable, "-m", "tests.random_graphs", "--worker", json.dumps(asdict(part))]
    at, done = part.first, False
    with subprocess.Popen(
        command, env=environ, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        errors: list[str] = []
        drain = threading.Thread(target=lambda: errors.append(child.stderr.read()))  # type: ignore[union-attr]
        drain.start()
        for line in child.stdout:
            what, _, rest = line.partition(" ")
            if what == "at":
                at = int(rest)
            elif what == "failure":
                kind, text = json.loads(rest)
                with lock:
                    report.failures.append(text)
                    report.kinds[kind] += 1
                told(text)
            elif what == "counts":
                with lock:
                    report.add(json.loads(rest))
                done = True
        drain.join()
    if done:
        return Part(part.first, 0)
    last = errors[0][-2000:]
    if part.died:
        with lock:
            report.failures.append(f"    # seed {at}: the process died with {child.returncode}\n{last}\n{said}")
            report.kinds["died"] += 1
        told(report.failures[-1])
        return Part(at, 0)
    with lock:
        report.graphs += at - part.first
    _one(Part(**{**asdict(part), "first": at, "count": 1, "died": True}), isa, report, lock, told, root, last)
    left = 0 if part.stops else part.first + part.count - at - 1
    return Part(**{**asdict(part), "first": at + 1, "count": left})


def parts(first: int, graphs: int, **options: Any) -> list[Part]:
    """A range of seeds in parts."""
    return [Part(at, min(PART, first + graphs - at), **options) for at in range(first, first + graphs, PART)]


def work(part: Part) -> None:
    """What a child does: tells of each graph before it is looked at, of failures, and of what it has counted."""
    from .generate import generate
    from .printed import lines
    from .search import Counts, combinations, examine, isolated
    from .shrink import shrunk

    counts = Counts()
    for seed in range(part.first, part.first + part.count):
        print("at", seed, flush=True)
        if part.died:
            case = generate(seed, part.focus)
            rows = ((row, isolated(case, [row])) for row in combinations(case, full=part.full, most=part.most))
            failure = next((found for _, found in rows if found is not None and found.kind == "died"), None)
            if failure is None:
                sys.exit("it died, and does not die again")
            counts.graphs += 1
        else:
            failure = examine(seed, counts, focus=part.focus, full=part.full, most=part.most)
        if failure is not None:
            small = shrunk(failure) if part.shrinks else failure
            print("failure", json.dumps([small.kind, lines(small)]), flush=True)
            if part.stops:
                break
    said = {n: getattr(counts, n) for n in ("graphs", "nodes", "sessions", "properties", "refusals")}
    print("counts", json.dumps(said), flush=True)
