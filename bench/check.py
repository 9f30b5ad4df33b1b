"""The static part of `mezzo check` on real models: valid, every operator covered to run, to train and to export at 17.

Each round is a process of its own, and the time is that of the check alone, after imports; `process` is the whole
process from start to end, beside that of onnx.checker with shape inference, which tells only whether the file is valid.
It is held to about one second.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter

from rows import Row, arguments, machine, show, users_environment

OURS = """
import sys
from pathlib import Path
from mezzo.tools.check import check
from mezzo.tools.check_options import Options
import onnx.checker, mezzo.importers.load, mezzo.exporters.model
print(check(Path(sys.argv[1]), Options(train=True, opset=17)).seconds)
"""
CHECKER = """
import sys, time
import onnx, onnx.checker
at = time.perf_counter()
onnx.checker.check_model(sys.argv[1], full_check=True)
print(time.perf_counter() - at)
"""
MODELS = {
    "rapidocr-det": ("rapidocr_onnxruntime", "models/ch_PP-OCRv4_det_infer.onnx"),
    "resnet50-light": ("onnx", "backend/test/data/light/light_resnet50.onnx"),
}


def timed(code: str, path: Path) -> tuple[float, float]:
    """The check and its whole process, in milliseconds."""
    at = perf_counter()
    command = [sys.executable, "-c", code, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=users_environment())
    return float(done.stdout) * 1e3, (perf_counter() - at) * 1e3


def models() -> dict[str, Path]:
    """Those that are installed."""
    found = {}
    for name, (package, file) in MODELS.items():
        spec = find_spec(package)
        if spec is not None and spec.submodule_search_locations:
            found[name] = Path(next(iter(spec.submodule_search_locations))) / file
    return found


def main() -> None:
    args = arguments(__doc__)
    rows: list[Row] = []
    for name, path in models().items():
        taken: dict[str, list[tuple[float, float]]] = {"mezzo": [], "onnx.checker": []}
        for _ in range(3 if args.quick else 10):
            for engine, code in (("mezzo", OURS), ("onnx.checker", CHECKER)):
                taken[engine].append(timed(code, path))
        for i, what in enumerate(("check", "process")):
            middle = {e: statistics.median(t[i] for t in times) for e, times in taken.items()}
            rows.append(Row(f"{what}/{name}", "ms", middle.pop("mezzo"), middle))
    show(rows, args, [machine()])


if __name__ == "__main__":
    main()
