"""From a file to a session that is ready: ours from `.mezzo` beside ONNX Runtime's from `.onnx`.

`load/NET` is the time until the session is made (the file mapped and its digest checked, nothing run), without imports;
`first/NET` until the first answer, so that it has what loading leaves for later: reading and confirming the program;
`process/NET` a whole process, from start to end, that loads, answers once and stops. Each round starts fresh processes,
interleaved. The floor of `process` is a process that only imports numpy. ResNet-50 has 25.6 million real random float32
values as initialisers.

`onnx/NET` and `peak/NET` are the first answer and the most memory that the process had resident, both engines from the
same `.onnx`, for ResNet-50 and BERT-base; `nodes/OPERATOR` the first answer of a chain of 20,000 nodes.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import numpy as np
from rows import Row, arguments, machine, show, users_environment

CHILD = """
import json, sys, time
import numpy as np
path, feeds = sys.argv[1], {{n: np.load(f) for n, f in json.loads(sys.argv[2]).items()}}
{imports}
at = time.perf_counter()
session = {make}
ready = time.perf_counter()
{run}
first = time.perf_counter() - at
with open("/proc/self/status") as file:  # ru_maxrss has that of the parent before exec
    peak = next(int(line.split()[1]) / 1024 for line in file if line.startswith("VmHWM"))
print(json.dumps([ready - at, first, peak]))
"""
ENGINES = {
    "mezzo": CHILD.format(imports="import mezzo as mz", make="mz.load(path)", run="session.run(feeds)"),
    "ort": CHILD.format(
        imports="import onnxruntime as ort; ort.set_default_logger_severity(3)",
        make="ort.InferenceSession(path, providers=['CPUExecutionProvider'])",
        run="session.run(None, feeds)",
    ),
    "numpy": "import numpy; print([0, 0, 0])",
}


def timed(code: str, path: Path, feeds: Path) -> tuple[float, float, float, float]:
    """Ready, first answer and whole process, in milliseconds, and the most memory, in MiB."""
    inputs = {p.stem: str(p) for p in feeds.glob("*.npy")}
    at = perf_counter()
    command = [sys.executable, "-c", code, str(path), json.dumps(inputs)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=users_environment())
    whole = perf_counter() - at
    ready, first, peak = json.loads(done.stdout.strip().splitlines()[-1])
    return ready * 1e3, first * 1e3, whole * 1e3, peak


def models(folder: Path) -> dict[str, tuple[Path, Path, Path]]:
    """Name to the .onnx file, the .mezzo file with a variant for the feeds, and the folder of feeds."""
    from mezzo.exporters import save_onnx
    from mezzo.importers import load_onnx
    from mezzo.models.convnets import mlp, random_weights, resnet50
    from mezzo.runtime.execution.session import Session

    rng, found = np.random.default_rng(0), {}
    sources = {"resnet50": folder / "resnet50.onnx", "mlp": folder / "mlp.onnx"}
    save_onnx(resnet50(1, random_weights()), sources["resnet50"])
    save_onnx(mlp(1, random_weights()), sources["mlp"])
    feeds = {
        "resnet50": {"data": rng.standard_normal((1, 3, 224, 224), np.float32)},
        "mlp": {"data": rng.standard_normal((1, 784), np.float32)},
        "silero": {
            "input": 0.1 * rng.standard_normal((1, 576), np.float32),
            "state": np.zeros((2, 1, 128), np.float32),
            "sr": np.array(16000),
        },
    }
    speech = find_spec("silero_vad")
    if speech and speech.submodule_search_locations:
        sources["silero"] = Path(next(iter(speech.submodule_search_locations))) / "data" / "silero_vad.onnx"
    for name, path in sources.items():
        session = Session(load_onnx(path))
        session.run(feeds[name])
        compiled = folder / f"{name}.mezzo"
        session.save(compiled)
        inputs = folder / f"{name}.feeds"
        inputs.mkdir()
        for n, x in feeds[name].items():
            np.save(inputs / f"{n}.npy", x)
        found[name] = (path, compiled, inputs)
    return found


NODES = 20_000


def plain(folder: Path) -> dict[str, tuple[Path, Path]]:
    """Name to an .onnx file that every engine reads, and the folder of its feeds."""
    from mezzo.exporters import save_onnx
    from mezzo.models.workloads import WORKLOADS
    from mezzo.ops.types import f32
    from mezzo.runtime.ir.graph import GraphBuilder

    found = {}

    def add(name: str, graph: Any, feeds: dict[str, Any]) -> None:
        inputs = folder / f"plain-{name.replace('/', '-')}.feeds"
        inputs.mkdir()
        for n, x in feeds.items():
            np.save(inputs / f"{n}.npy", x)
        found[name] = (inputs.with_suffix(".onnx"), inputs)
        save_onnx(graph, found[name][0])

    for name in ("resnet50", "bert"):
        workload = WORKLOADS[name]
        add(name, workload.build(1), workload.feeds(1))
    for op in ("Softmax", "MatMul", "Relu"):
        g = GraphBuilder()
        y = g.input("x", f32(4, 4))
        weights = g.const(np.eye(4, dtype=np.float32))
        for _ in range(NODES):
            y = g.op(op, *([y, weights] if op == "MatMul" else [y]))
        add(f"nodes/{op}", g.graph([y]), {"x": np.ones((4, 4), np.float32)})
    return found


def main() -> None:
    args = arguments(__doc__)
    engines = {n: c for n, c in ENGINES.items() if n != "ort" or find_spec("onnxruntime")}
    rows: list[Row] = []
    with TemporaryDirectory() as folder:
        found = models(Path(folder))
        for name in ("resnet50", "silero", "mlp"):
            if name not in found:
                continue
            onnx, compiled, feeds = found[name]
            taken: dict[str, list[tuple[float, float, float]]] = {e: [] for e in engines}
            for _ in range(3 if args.quick else 15):
                for engine, code in engines.items():
                    taken[engine].append(timed(code, compiled if engine == "mezzo" else onnx, feeds))
            for i, what in enumerate(("load", "first", "process")):
                middle = {e: statistics.median(t[i] for t in times) for e, times in taken.items()}
                floor = middle["numpy"] if what == "process" else None
                peers = {"ort": middle["ort"]} if "ort" in middle else {}
                rows.append(Row(f"{what}/{name}", "ms", middle["mezzo"], peers, floor))
        for name, (onnx, feeds) in plain(Path(folder)).items():
            both = [e for e in engines if e != "numpy"]
            times: dict[str, list[tuple[float, ...]]] = {e: [] for e in both}
            for _ in range(1 if args.quick else 3 if "/" in name else 15):
                for engine in both:
                    times[engine].append(timed(engines[engine], onnx, feeds))
            for i, what, unit in ((1, "", "ms"), (3, "peak", "MiB")):
                if what and "/" in name:
                    continue
                figures = {e: statistics.median(t[i] for t in times[e]) for e in both}
                case = name if "/" in name else f"{what or 'onnx'}/{name}"
                rows.append(Row(case, unit, figures.pop("mezzo"), figures))
    show(rows, args, [machine(), f"{os.cpu_count()} processors"])


if __name__ == "__main__":
    main()
