"""What `make gpu-test` runs: the checks that need a GPU, as one table. No network, no pytest run, no fixed Python.

    python -m tests.gpu_checks --minutes 9 --json build/gpu-test.json

Each part is a list of named checks; a check that passed is not run again while the JSON file has it (`--again` does),
so that the whole can be made in runs of a few minutes. What a machine lacks is named, and its checks are `not run`. The
exit code is 0 only if nothing failed and nothing is left. With `--device cpu` the same checks try themselves out.
"""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import subprocess
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from importlib import import_module, metadata
from pathlib import Path
from time import monotonic
from typing import Any
from unittest.mock import patch

import numpy as np

Check = tuple[str, Callable[[], str]]  # its name, and what does it: an exception says what is wrong
Found = dict[str, list[str]]  # by check: "passed", "failed" or "not run", and a note
TOLERANCE = {"fp32": 1e-5, "tf32": 1e-2, "fp16": 2e-2, "bf16": 1e-1}
PACKAGES = ("cupy", "cudnn", "nvmath", "torch", "onnx", "numpy")


class Absent(Exception):
    """What a check needs is not on this machine."""


def close(got: Any, want: Any, tolerance: float) -> float:
    """How far apart two tensors are, over the largest magnitude; AssertionError beyond the tolerance."""
    got, want = np.asarray(got), np.asarray(want)
    assert got.shape == want.shape, f"{got.shape} is not {want.shape}"
    if want.dtype.kind not in "fiubV":
        assert np.array_equal(got, want)
        return 0.0
    odd = ~np.isfinite(want) if want.dtype.kind == "f" else np.zeros(want.shape, bool)
    assert np.array_equal(got[odd], want[odd].astype(got.dtype), equal_nan=True), "infinities or NaN differ"
    gap = np.abs(got[~odd].astype(np.float64) - want[~odd].astype(np.float64)).max(initial=0)
    scale = np.abs(want[~odd].astype(np.float64)).max(initial=0)
    assert gap <= tolerance * scale, f"{gap / scale if scale else gap:.1e} away"
    return float(gap / scale) if scale else 0.0


def samples(device: str) -> Iterator[Check]:
    """Every sample of every operator against the reference, in float64 where it computes in it."""
    from mezzo.ops import OPS
    from mezzo.runtime.execution.session import Session
    from mezzo.runtime.ir.interpreter import evaluate
    from mezzo.tools.numbers import draws

    from .graphs import hosted, in_float64, sample_graph, wide

    def check(record: Any, sample: Any) -> str:
        graph, feeds = sample_graph(record, sample)
        session = Session(graph, device=device, instances=1)
        found = [session.run(dict(feeds)) for _ in range(2)][-1]
        if any(draws(n) for _, n in graph.walk()) or hosted(record, sample):
            return "drawn or no tensors: run only"
        try:
            exact = evaluate(in_float64(graph), {n: wide(x) for n, x in feeds.items()})
        except Exception:  # it has no float64 form
            exact = evaluate(graph, dict(feeds))
        narrow = {str(np.asarray(y).dtype) for y in found.values()} & {"float16", "bfloat16"}
        worst = max((close(y, exact[n], 2e-2 if narrow else 1e-5) for n, y in found.items()), default=0.0)
        return f"{worst:.1e}, {', '.join(sorted({s.choice.kernel for s in session.program.steps}))}"

    for (domain, op), record in sorted(OPS.items()):
        for i, sample in enumerate(record.samples):
            yield f"{domain or 'onnx'}.{op}/{i}", lambda r=record, s=sample: check(r, s)  # type: ignore[misc]


def official(device: str) -> Iterator[Check]:
    """The official suite of ONNX with `device="CUDA"`."""
    from mezzo.tools.backend import Backend

    from .official import CANNOT_PASS, Suite, cases_of

    class There(Backend):
        @classmethod
        def prepare(cls, model: Any, device: str = "CPU", **options: Any) -> Any:
            return Backend.prepare(model, "CPU" if there == "cpu" else "CUDA", **options)

    there = device

    def check(case: Callable[[], None]) -> str:
        case()
        return ""

    for name, case in cases_of(Suite(There, __name__)):
        if name not in CANNOT_PASS:
            yield name, lambda c=case: check(c)  # type: ignore[misc]


def models(device: str) -> Iterator[Check]:
    """Models inside packages and the networks of mezzo.models against the same on the CPU."""
    from mezzo.importers import load_onnx
    from mezzo.models.workloads import WORKLOADS
    from mezzo.runtime.execution.session import Session

    def compared(graph: Any, feeds: dict[str, Any], precision: str) -> str:
        how: dict[str, Any] = {} if device == "cpu" else {"precision": precision}
        session = Session(graph, device=device, **how)
        want, got = Session(graph).run(dict(feeds)), session.run(dict(feeds))
        worst = max(close(got[n], y, max(TOLERANCE[precision], 1e-4)) for n, y in want.items())
        on_host = sum(s.choice.kernel == "host" for s in session.program.steps)
        return f"{worst:.1e}, {len(session.program.steps)} steps, {on_host} on the host"

    for name, work in WORKLOADS.items():
        for precision in TOLERANCE:
            yield (
                f"{name}/small/{precision}",
                lambda w=work, p=precision: compared(w.build(2, small=True), w.feeds(2, small=True), p),  # type: ignore[misc]
            )
        yield f"{name}/b1/fp32", lambda w=work: compared(w.build(1), w.feeds(1), "fp32")  # type: ignore[misc]
    from .models import LIGHT, OTHERS

    for real in (*LIGHT, *OTHERS):
        yield real.name, lambda r=real: compared(load_onnx(r.path()), r.feeds(), "fp32")  # type: ignore[misc]


def steady(device: str) -> Iterator[Check]:
    """Replays take no device memory, and the host waits once for each."""
    from mezzo.models.workloads import WORKLOADS
    from mezzo.runtime.execution.session import Session

    def check(name: str) -> str:
        if device == "cpu":
            raise Absent("the processor has no device memory")
        cupy = import_module("cupy")

        class Counted(cupy.cuda.MemoryHook):  # type: ignore[misc, name-defined]
            name = "counted"
            taken = 0

            def malloc_preprocess(self, **_: Any) -> None:
                self.taken += 1

        class Waited(cupy.cuda.Stream):  # type: ignore[misc, name-defined]
            waits = 0

            def synchronize(self) -> None:
                Waited.waits += 1
                super().synchronize()

        work = WORKLOADS[name]
        session, feeds = Session(work.build(1, small=True), device=device), work.feeds(1, small=True)
        inputs = {n: cupy.asarray(x) for n, x in feeds.items()}
        types = [(p.name, p.type) for p in session.program.outputs]
        outputs: dict[str, Any] = {n: cupy.empty(t.sizes, t.dtype.numpy) for n, t in types}  # type: ignore[union-attr]
        with patch.object(cupy.cuda, "Stream", Waited):  # the instance makes its streams in the first run
            for _ in range(3):
                session.run(inputs, outputs=outputs)
        Waited.waits = 0
        with Counted() as counted:
            for _ in range(100):
                session.run(inputs, outputs=outputs)
        assert not counted.taken, f"{counted.taken} allocations in 100 runs"
        assert Waited.waits == 100, (
            f"{Waited.waits} times the host waited in 100 runs, each of which ends with one wait"
        )
        return "100 runs, one wait each"

    for name in WORKLOADS:
        yield name, lambda n=name: check(n)  # type: ignore[misc]


def sanitizer(device: str) -> Iterator[Check]:
    """compute-sanitizer over small networks and samples, in a process of its own."""

    def check(tool: str) -> str:
        found = shutil.which("compute-sanitizer")
        if found is None or device == "cpu":
            raise Absent("compute-sanitizer is not on the path")
        few = "models/*/small/fp32,samples/*Softmax*,samples/*LayerNorm*,samples/*Reduce*,samples/*Pool*,samples/*Add/*"
        inner = [sys.executable, "-m", "tests.gpu_checks", "--device", device, "--only", few, "--minutes", "6"]
        ended = subprocess.run(
            [found, "--tool", tool, "--error-exitcode", "99", *inner], capture_output=True, text=True
        )
        last = " | ".join((ended.stdout + ended.stderr).strip().splitlines()[-3:])
        assert ended.returncode != 99, last
        assert "ERROR SUMMARY: 0 errors" in ended.stdout + ended.stderr, last
        return last

    for tool in ("memcheck", "racecheck"):
        yield tool, lambda t=tool: check(t)  # type: ignore[misc]


PARTS: dict[str, Callable[[str], Iterator[Check]]] = {
    "models": models, "samples": samples, "steady": steady, "sanitizer": sanitizer, "official": official,
}  # fmt: skip


def here(device: str) -> dict[str, str]:
    """Device, driver and versions."""
    told = {"device": device, "machine": platform.machine(), "python": platform.python_version()}
    for name in PACKAGES:
        try:
            module = import_module(name)
            told[name] = str(getattr(module, "__version__", "there"))
        except Exception as error:  # a library without its driver raises what it likes
            told[name] = f"absent ({type(error).__name__}: {error})".splitlines()[0]
    if device != "cpu" and not told["cupy"].startswith("absent"):
        runtime = import_module("cupy").cuda.runtime
        if import_module("cupy").cuda.is_available():
            told["card"] = runtime.getDeviceProperties(0)["name"].decode()
            told["driver"] = str(runtime.driverGetVersion())
        else:
            told["card"] = "none is visible"
    if "mezzo" in {d.name for d in metadata.distributions()}:
        told["mezzo"] = metadata.version("mezzo")
    return told


def result_of(check: Callable[[], str]) -> list[str]:
    """What became of a check, and a note."""
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            return ["passed", check()]
    except Absent as reason:
        return ["not run", str(reason)]
    except BaseException as error:  # pytest's skips are none of Exception's
        kind = type(error).__name__
        if isinstance(error, KeyboardInterrupt):
            raise
        if kind in ("Skipped", "SkipTest", "MissingPackage"):
            return ["not run", str(error).splitlines()[0][:300]]
        return ["failed", (f"{kind}: {error}".splitlines() or [kind])[0][:300]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="gpu:0")
    parser.add_argument("--parts", default=",".join(PARTS), help="with commas between (default: all)")
    parser.add_argument("--only", default="*", help="patterns of PART/CHECK, with commas between")
    parser.add_argument("--minutes", type=float, default=9, help="begin no check after so long")
    parser.add_argument("--json", metavar="FILE", help="what was found, by part and check; read first")
    parser.add_argument("--again", action="store_true", help="also what passed before")
    args = parser.parse_args()
    file = Path(args.json) if args.json else None
    known: dict[str, Any] = json.loads(file.read_text()) if file and file.exists() else {}
    kept: dict[str, Found] = known.get("parts", {})
    told, end, left = here(args.device), monotonic() + 60 * args.minutes, Counter[str]()
    only = args.only.split(",")

    def write() -> None:
        if file:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps({"here": told, "parts": kept}, indent=1) + "\n")

    for part in args.parts.split(","):
        found = kept.setdefault(part, {})
        try:
            checks = list(PARTS[part](args.device))
        except ImportError as error:
            print(f"{part}: not run: {error}")
            left[part] += 1
            continue
        for i, (name, check) in enumerate(checks):
            if not any(fnmatch(f"{part}/{name}", p) for p in only):
                continue
            if found.get(name, ["failed"])[0] == "passed" and not args.again:
                continue
            if monotonic() > end:
                left[part] += 1
                continue
            found[name] = result_of(check)
            if found[name][0] == "failed":
                print(f"{part}/{name}: {found[name][1]}", flush=True)
            if i % 50 == 0:
                write()
        write()
    print(", ".join(f"{n} {v}" for n, v in told.items()))
    print(f"{'part':<12}{'passed':>8}{'failed':>8}{'not run':>9}{'left':>6}")
    for part in args.parts.split(","):
        counts = Counter(r[0] for r in kept.get(part, {}).values())
        print(f"{part:<12}{counts['passed']:>8}{counts['failed']:>8}{counts['not run']:>9}{left[part]:>6}")
        for reason, count in Counter(r[1] for r in kept.get(part, {}).values() if r[0] == "not run").most_common(3):
            print(f"    not run, {count} times: {reason}")
    if left:
        print("time was up: run the same command again for what is left")
    return int(bool(left) or any(r[0] == "failed" for f in kept.values() for r in f.values()))


if __name__ == "__main__":
    sys.exit(main())
