"""Fair comparison of engines: each in a process of its own that stays alive, run in turn, round after round.

In one process they disturb each other (the waiting threads of one engine take the processors of the next), and one
after the other they meet different states of the machine: so ratios are taken round by round, and their median is told.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from time import sleep
from typing import Any

import numpy as np

from ..ops.dataclasses import dataclass, field
from ..ops.errors import ExecutionError, InputError, MezzoError
from ..ops.types import Array
from .report import Report, Table

CHILD = Path(__file__).with_name("compare_child.py")
OURS = "mezzo"
PATIENCE = 900.0  # seconds for an answer: a compiler may have to run


class EngineFailed(ExecutionError):
    """The process of an engine failed to answer a request."""


def command(name: str) -> list[str]:
    """Return the command line that starts one of the engines of `compare_engines`."""
    return [sys.executable, "-m", "mezzo.tools.compare_engines", name]


class Engine:
    """The process of one engine."""

    def __init__(self, name: str, command: Sequence[str], *, threads: int, environment: Mapping[str, str]) -> None:
        self.name, self.threads = name, threads
        counts = {v: str(threads) for v in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
        # compiled modules are kept, as users have it
        kept = {n: v for n, v in os.environ.items() if n != "PYTHONDONTWRITEBYTECODE"}
        self._errors = TemporaryFile()  # noqa: SIM115 - closed in close()
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env={**kept, **counts, **environment},
        )

    def ask(self, do: str, **how: Any) -> dict[str, Any]:
        """Send a request and wait for the answer; EngineFailed with the reason if there is none."""
        assert self._process.stdin and self._process.stdout
        late = threading.Timer(PATIENCE, self._process.kill)
        late.start()
        try:
            self._process.stdin.write(json.dumps({"do": do, **how}) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            late.cancel()
        if not line:
            raise EngineFailed(self._last_words(), where=self.name)
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise EngineFailed(answer["error"], where=self.name)
        return answer

    def _last_words(self) -> str:
        code = self._process.wait()
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else f"its process ended with code {code}"

    def close(self) -> None:
        """End the process."""
        with contextlib.suppress(BrokenPipeError):
            self._process.communicate(timeout=None)  # the end of its input ends it
        self._errors.close()


@dataclass(slots=True)
class Measured:
    """Measurements of one engine in one comparison; times in seconds. `failed` is the reason why some are missing."""

    engine: str
    facts: dict[str, str] = field(default_factory=dict[str, str])
    load: float | None = None
    first: float | None = None
    rounds: list[float] = field(default_factory=list[float])
    p50: float | None = None
    p99: float | None = None
    peak_bytes: int | None = None
    error: float | None = None  # of the outputs, against those of the engine they are compared with
    failed: str | None = None

    @property
    def median(self) -> float | None:
        """Median time of the rounds."""
        return statistics.median(self.rounds) if self.rounds else None


def ratios(ours: Measured, peer: Measured) -> list[float]:
    """The peer's time over ours, round by round: above 1 where we are faster."""
    return [theirs / mine for mine, theirs in zip(ours.rounds, peer.rounds, strict=False)]


def relative_error(actual: Sequence[Any], expected: Sequence[Any]) -> float:
    """The largest difference over the largest magnitude of that output; infinite where shapes or kinds differ."""
    if len(actual) != len(expected):
        return float("inf")
    return max((error(a, b)[0] for a, b in zip(actual, expected, strict=True)), default=0.0)


def error(actual: Any, expected: Any) -> tuple[float, float]:
    """The largest and the mean difference of one output, each over the largest magnitude."""
    a, b = np.asarray(actual), np.asarray(expected)
    if a.shape != b.shape:
        return float("inf"), float("inf")
    if b.dtype.kind not in "biufV":
        same = bool(np.all(a == b))
        return (0.0, 0.0) if same else (float("inf"), float("inf"))
    if not b.size:
        return 0.0, 0.0
    wide, reference = a.astype(np.float64), b.astype(np.float64)
    gaps = np.abs(wide - reference)
    if not np.all(np.isfinite(gaps)):
        alike = bool(np.array_equal(wide, reference, equal_nan=True))
        return (0.0, 0.0) if alike else (float("inf"), float("inf"))
    scale = float(np.max(np.abs(reference))) or 1.0
    return float(np.max(gaps)) / scale, float(np.mean(gaps)) / scale


@dataclass(frozen=True, slots=True)
class Contestant:
    """One engine of a comparison: its command line, and the settings it loads with (`model`, `precision`, ...), which
    may have `threads` of their own."""

    name: str
    command: Sequence[str]
    settings: Mapping[str, Any]
    environment: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class Agreement:
    """Comparison of answers before times are taken: those of the first `runs` runs against those of `judge` (by default
    the first peer that answers, or Mezzo if none does). An engine whose error exceeds `tolerance` has failed."""

    runs: int = 1
    judge: str = ""
    tolerance: float = float("inf")


ONE_ANSWER = Agreement()
Told = Callable[[str], None]


def silent(_: str) -> None:
    """Tells nobody."""


@contextlib.contextmanager
def lined_up(
    contestants: Sequence[Contestant],
    feeds: Mapping[str, Array],
    *,
    threads: int,
    agreement: Agreement = ONE_ANSWER,
    tell: Told = silent,
) -> Iterator[tuple[dict[str, Measured], dict[str, Engine]]]:
    """Load, run and compare all engines; those that failed are among the measurements, with the reason, and not among
    the engines."""
    measured = {c.name: Measured(c.name) for c in contestants}
    engines: dict[str, Engine] = {}
    answers: dict[str, list[Array]] = {}
    with contextlib.ExitStack() as stack, TemporaryDirectory() as folder:
        inputs = str(Path(folder) / "feeds.npz")
        np.savez(inputs, **feeds)
        for c in contestants:
            tell(f"loading {c.name}")
            engine = Engine(c.name, c.command, threads=threads, environment=c.environment)
            stack.callback(engine.close)
            it = measured[c.name]
            try:
                loaded = engine.ask("load", **{"feeds": inputs, "threads": threads, **c.settings})
                it.load, it.facts = loaded["load_seconds"], loaded["facts"]
                outputs = str(Path(folder) / f"{c.name}.npz")
                it.first = engine.ask("answer", to=outputs, runs=agreement.runs)["first_seconds"]
            except EngineFailed as failed:
                it.failed = failed.message
                continue
            with np.load(outputs, allow_pickle=False) as stored:
                answers[c.name] = [stored[n] for n in sorted(stored.files)]
            engines[c.name] = engine
        judges = [agreement.judge] if agreement.judge in answers else [n for n in answers if n != OURS]
        judge = next(iter(judges), OURS)
        for name, arrays in answers.items():
            if name == judge:
                continue
            gap = measured[name].error = relative_error(arrays, answers[judge])
            if gap > agreement.tolerance:
                measured[name].failed = f"its answers are {gap:.1e} away from those of {judge}"
                del engines[name]
        yield measured, engines


def race(
    contestants: Sequence[Contestant],
    feeds: Mapping[str, Array],
    *,
    threads: int,
    rounds: int = 15,
    seconds: float = 0.2,
    agreement: Agreement = ONE_ANSWER,
    tell: Told = silent,
) -> dict[str, Measured]:
    """Rounds of at least `seconds` (at least one call) of each engine in turn."""
    with lined_up(contestants, feeds, threads=threads, agreement=agreement, tell=tell) as (measured, engines):
        for number in range(rounds):
            tell(f"round {number + 1} of {rounds}")
            for name, engine in list(engines.items()):
                sleep(0.02)  # until the threads of the engine before have stopped waiting for more work
                try:
                    measured[name].rounds.append(engine.ask("run", seconds=seconds)["median"])
                except EngineFailed as failed:
                    measured[name].failed = failed.message
                    del engines[name]
        for name, engine in engines.items():
            stats = engine.ask("stats")
            it = measured[name]
            it.p50, it.p99, it.peak_bytes = stats.get("p50"), stats.get("p99"), stats["peak_bytes"]
    return measured


def milliseconds(seconds: float | None) -> float | str:
    """Return milliseconds for a table, with the significant digits.

    >>> milliseconds(0.00001234567), milliseconds(0.1234567), milliseconds(None)
    (0.01235, 123.5, '')
    """
    return "" if seconds is None else float(f"{seconds * 1e3:.4g}")


def against(
    model: Path,
    feeds: Mapping[str, Array],
    peers: Sequence[str],
    *,
    threads: int,
    rounds: int,
    seconds: float = 0.2,
    precision: str = "fp32",
    onnx: Path | None = None,
    tell: Told = silent,
) -> Report:
    """Our engine and others on one model; `onnx` is the file that the peers read, if it is another."""
    ours = Contestant(OURS, command(OURS), {"model": str(model), "precision": precision})
    others = [Contestant(p, command(p), {"model": str(onnx or model)}) for p in peers]
    measured = race([ours, *others], feeds, threads=threads, rounds=rounds, seconds=seconds, tell=tell)
    for m in measured.values():
        if m.failed:
            raise EngineFailed(m.failed, where=m.engine, hint=_HINTS.get(m.engine, "it ran in a process of its own"))
    rows: list[tuple[Any, ...]] = []
    for m in measured.values():
        spans = (milliseconds(s) for s in (m.median, m.p50, m.p99, m.load, m.first))
        peak = "" if m.peak_bytes is None else m.peak_bytes
        rows.append((f"{m.engine} {m.facts['version']}", m.facts["precision"], *spans, peak))
    columns = ("engine", "precision", "median ms", "p50 ms", "p99 ms", "load ms", "first ms", "peak bytes")
    tables = [Table("Engines", columns, rows)]
    if peers:
        compared = []
        for peer in peers:
            of = ratios(measured[OURS], measured[peer])
            gap = max(m.error or 0.0 for m in (measured[OURS], measured[peer]))
            compared.append((peer, *(round(v, 3) for v in (statistics.median(of), min(of), max(of))), f"{gap:.1e}"))
        names = ("peer", "its time over ours", "lowest round", "highest round", "outputs differ by")
        tables.append(Table("Ratios", names, compared))
    shapes = ", ".join(f"{n} {a.dtype}{list(a.shape)}" for n, a in feeds.items())
    return Report(str(model), {"inputs": shapes, "threads": threads, "rounds": rounds}, tables)


_HINTS = {"ort": "pip install onnxruntime, if that is what is missing"}


def accuracy(model: Path, feeds: Mapping[str, Array], precisions: Sequence[str], *, threads: int) -> Report:
    """Return a report of the difference of each output in each precision from the run in fp32."""
    from .load import load

    settings: dict[str, Any] = {"threads": threads}
    reference = load(model, **settings).run(feeds)
    rows: list[tuple[Any, ...]] = []
    for precision in precisions:
        try:
            outputs = load(model, **settings, precision=precision).run(feeds)
        except MezzoError as refused:
            rows.append((precision, "refused", refused.message, ""))
            continue
        for name, expected in reference.items():
            most, mean = error(outputs[name], expected)
            rows.append((precision, name, f"{most:.2e}", f"{mean:.2e}"))
    if not rows:
        raise InputError("no precision to compare", where="bench", hint="give --precision bf16")
    columns = ("precision", "output", "max relative error", "mean relative error")
    return Report(str(model), {"against": "fp32", "threads": threads}, [Table("Accuracy", columns, rows)])
