"""`mezzo doctor --gpu`: a self-test of a GPU and of our kernels on it, in less than a minute, as a report to attach.

Each family of kernels computes samples of its operators and is compared with the CPU; the same is asked again and
again, as a captured graph and from two threads at once, and has to give the same bits; memory has to hold what is
written to it, and runs must not take more and more of it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from time import monotonic
from typing import Any
from warnings import catch_warnings, simplefilter

import numpy as np

from ..ops import OPS, DType, Tensor
from ..ops.errors import MezzoError
from ..ops.types import Array
from ..runtime.backends.cuda.driver import LOADED, index_of
from ..runtime.backends.cuda.host import HostSteps
from ..runtime.backends.cuda.launch import Source, Written
from ..runtime.backends.cuda.memory import gpu_memory_info
from ..runtime.backends.cuda.present import libraries
from ..runtime.backends.cuda.target import GpuTarget
from ..runtime.devices import device_named
from ..runtime.execution.session import Session
from ..runtime.ir.graph import Graph, GraphBuilder
from .gpu_paths import path_tables
from .numbers import draws
from .report import Report, Table
from .samples import hosted, sample_graph

EACH = 3  # samples of a family
AGAIN = 10  # runs that have to give the same bits
TOLERANCE = {"float64": 1e-9, "float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2}  # of the largest magnitude
PATTERN = 16 << 20  # bytes that are written to the device and read back

NARROW = ("attention", "convolution", "matmul")  # kinds of operators that tensor cores compute
NARROWED = {"tf32": 4e-3, "fp16": 2e-2}  # precisions that these are tried in too, with what they may be off by

Answers = dict[str, Array]


@dataclass(frozen=True, slots=True)
class GpuSample:
    """One sample of an operator: a graph, its feeds, the precision that it is computed with."""

    name: str
    graph: Graph
    feeds: Mapping[str, Any]
    precision: str = "fp32"

    def session(self, device: str, **how: Any) -> Session:
        return Session(self.graph, device=device, precision=self.precision, **how)


@dataclass(slots=True)
class GpuTrial:
    """One sample on the device: its session, its feeds, and what the first run answered."""

    name: str
    session: Session
    feeds: Mapping[str, Any]
    first: Answers = field(default_factory=dict)


@dataclass(slots=True)
class Findings:
    """Rows of the report: what was checked, `passed`, `failed` or `not run`, and a note."""

    rows: list[tuple[str, str, str]] = field(default_factory=list)

    def check(self, what: str, does: Callable[[], str]) -> bool:
        """Do something, which says what it saw; an exception fails."""
        try:
            self.rows.append((what, "passed", does()))
        except Exception as error:  # whatever a broken device raises belongs into the report
            lines = str(error).strip().splitlines() or [""]
            self.rows.append((what, "failed", f"{type(error).__name__}: {lines[0]}"))
            return False
        return True

    def count(self, state: str) -> int:
        return sum(row[1] == state for row in self.rows)


def self_test(device: str = "gpu:0", seconds: float = 50.0, only: Collection[str] = ()) -> tuple[Report, int]:
    """The report, and an exit code: 0 where all passed, 3 where something failed. What there is no time for is `not
    run`; `only` names the families to look at. Raises MissingPackage where there is no such device."""
    began, findings = monotonic(), Findings()
    target = device_named(device).target
    assert isinstance(target, GpuTarget)
    trials: list[GpuTrial] = []
    host = 0
    with catch_warnings():
        simplefilter("ignore", HostSteps)
        families = {f: g for f, g in by_family(device, target.sm).items() if not only or f in only}
        findings.check("compilation", lambda: _compiled(families, target))
        for family, graphs in families.items():
            if family == "host":
                host = len(graphs)
                continue
            if monotonic() - began > seconds * 0.7:
                findings.rows.append((family, "not run", "no time was left"))
                continue
            family_trials: list[GpuTrial] = []
            findings.check(family, lambda g=graphs, m=family_trials: _family(device, g, m))  # type: ignore[misc]
            trials += family_trials
        findings.check("two threads at once", lambda: _together(trials, began + seconds * 0.85))
        findings.check("memory", lambda: _memory(device, trials))
    facts = {
        "device": str(device),
        "architecture": f"sm_{target.sm}",
        "passed": findings.count("passed"),
        "failed": findings.count("failed"),
        "not_run": findings.count("not run"),
        "operators_on_the_host": host,
        "seconds": round(monotonic() - began, 1),
    }
    tables = (
        Table("Checks", ("check", "state", "note"), findings.rows),
        Table("Libraries of GPUs", ("library", "state", "why"), libraries()),
        *path_tables(),
    )
    return Report("mezzo doctor --gpu", facts, tables), 3 if findings.count("failed") else 0


def by_family(device: str, sm: int) -> dict[str, list[GpuSample]]:
    """Samples of operators as graphs, a few for each kernel that serves them; under "host" those without one."""
    by_kernel: dict[str, list[GpuSample]] = {}
    for asked in _samples():
        try:
            program = asked.session(f"{device}@sm_{sm}").program
        except MezzoError:  # sizes that only a run knows
            continue
        kernels = {s.choice.kernel for s in program.steps}
        for kernel in kernels if program.steps else ():
            held = by_kernel.setdefault(kernel, [])
            if len(held) < EACH or kernel == "host":
                held.append(asked)
    return by_kernel


def _compiled(families: Mapping[str, list[GpuSample]], target: GpuTarget) -> str:
    """All kernels of the samples, which are compiled faster together."""
    sources: dict[str, Source] = {}
    for graphs in families.values():
        for asked in graphs:
            program = asked.session(f"gpu:{target.index}@sm_{target.sm}").program
            written = [p for s in program.steps for p in s.choice.primitives if isinstance(p, Written)]
            sources |= {launch.source.name: launch.source for w in written for launch in w.launches}
    with target.current():
        LOADED.load(sources.values(), target.index, target.sm)
    return f"{len(sources)} kernels"


def _attention() -> GpuSample:
    """Attention of the size that libraries have kernels for: 2 heads of 64 numbers, 16 places."""
    g, rng = GraphBuilder("attention"), np.random.default_rng(0)
    feeds = {name: rng.standard_normal((1, 2, 16, 64)).astype(np.float16) for name in ("q", "k", "v")}
    y = g.Attention(*(g.input(n, Tensor(DType.FLOAT16, x.shape)) for n, x in feeds.items()))
    return GpuSample("Attention", g.graph([y]), feeds)


def _followed() -> GpuSample:
    """A product followed by Gelu of the error function, which a library computes as one."""
    g, rng = GraphBuilder("product and Gelu"), np.random.default_rng(0)
    x, w = (rng.standard_normal((64, 64)).astype(np.float16) / 8 for _ in range(2))
    y = g.Gelu(g.MatMul(g.input("x", Tensor(DType.FLOAT16, x.shape)), g.const(w)))
    return GpuSample("MatMul and Gelu", g.graph([y]), {"x": x})


def _samples() -> Iterator[GpuSample]:
    yield _attention()
    yield _followed()
    for record in OPS.values():
        for sample in record.samples[:2]:
            if hosted(record, sample) or not sample.inputs:
                continue
            graph, feeds = sample_graph(record, sample, fed="types")
            if not feeds:  # something has to be unknown
                graph, feeds = sample_graph(record, sample)
            if feeds and not any(draws(n) for _, n in graph.walk()):
                yield GpuSample(record.name, graph, feeds)
                if record.kind in NARROW and not record.domain and record.mixed == "low":
                    yield from (GpuSample(record.name, graph, feeds, how) for how in NARROWED)


def _family(device: str, graphs: list[GpuSample], trials: list[GpuTrial]) -> str:
    worst, kept = 0.0, 0
    for asked in graphs:
        name, feeds = f"{asked.name} in {asked.precision}", asked.feeds
        want = Session(asked.graph).run(dict(feeds))
        trial = GpuTrial(name, asked.session(device, instances=2), feeds)
        trial.first = {n: np.array(y) for n, y in trial.session.run(dict(feeds)).items()}
        at_least = NARROWED.get(asked.precision, 0.0)
        worst = max([worst, *(_apart(f"{name}: {n}", trial.first[n], y, at_least) for n, y in want.items())])
        for run in range(AGAIN):
            _same(trial, f"run {run + 2}")
        refused = [
            why for i, why in trial.session.uncaptured() if trial.session.program.steps[i].choice.kernel != "host"
        ]
        if refused:
            raise AssertionError(f"{name} was not captured: {refused[0]}")
        trials.append(trial)
        kept += 1
    return f"{kept} samples, {worst:.0e} from the CPU, {AGAIN} runs alike"


def _same(trial: GpuTrial, when: str) -> None:
    """Another run gives the same bits."""
    for name, y in trial.session.run(dict(trial.feeds)).items():
        if np.asarray(y).tobytes() != trial.first[name].tobytes():
            raise AssertionError(f"{trial.name}: {when} answers otherwise than the first")


def _apart(what: str, got: Array, want: Array, at_least: float) -> float:
    """Return the distance of answers over the largest magnitude. AssertionError beyond the tolerance of their type."""
    got, want = np.asarray(got), np.asarray(want)
    if (got.shape, got.dtype) != (want.shape, want.dtype):
        raise AssertionError(f"{what} is {got.dtype}{list(got.shape)}, not {want.dtype}{list(want.shape)}")
    tolerance = TOLERANCE.get(str(want.dtype))
    if tolerance is None:
        if got.tobytes() != want.tobytes():
            raise AssertionError(f"{what} differs")
        return 0.0
    tolerance = max(tolerance, at_least)
    a, b = got.astype(np.float64), want.astype(np.float64)
    finite = np.isfinite(b)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        raise AssertionError(f"{what}: infinities or NaN differ")
    gap, most = np.abs(a[finite] - b[finite]).max(initial=0.0), np.abs(b[finite]).max(initial=0.0)
    if gap > tolerance * most:
        raise AssertionError(f"{what} is {gap / most if most else gap:.1e} away from the CPU")
    return float(gap / most) if most else 0.0


def _together(trials: list[GpuTrial], until: float) -> str:
    """Every session from two threads at once, each in an instance and on a stream of its own."""
    count = 0
    with ThreadPoolExecutor(2) as threads:
        for trial in trials:
            if monotonic() > until:
                break
            for again in range(3):
                list(threads.map(lambda i, t=trial, a=again: _same(t, f"thread {i}, run {a}"), range(2)))
            count += 1
    return f"{count} sessions, 3 runs of each thread"


def _memory(device: str, trials: list[GpuTrial]) -> str:
    """Check that the device gives back what is written to it, and that runs take no memory."""
    from .. import nd

    index = index_of(device)
    pattern = np.random.default_rng(0).integers(0, 1 << 31, PATTERN // 4).astype(np.int32)
    there = nd.asarray(pattern, device=device)
    if not np.array_equal(np.asarray(there.asnumpy()), pattern):
        raise AssertionError("bytes that were written to the device are others when they are read back")
    del there
    before = gpu_memory_info(index).in_use
    for trial in trials[:8]:
        for _ in range(5):
            trial.session.run(dict(trial.feeds))
    after = gpu_memory_info(index)
    if after.in_use > before:
        raise AssertionError(f"runs have taken {after.in_use - before} bytes")
    return f"{PATTERN >> 20} MiB written and read, {after.free >> 20} of {after.total >> 20} MiB free"
