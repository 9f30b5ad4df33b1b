"""New shapes in service: what a first run with one costs, the slowest of many lengths, and memory that must not grow.

Rows: `specialise/MODEL` is the cost of planning for a new shape in steady runs of that shape; `p99/encoder` the 99th
percentile over 500 random lengths, each met for the first time or not; `growth/encoder` the growth of resident memory
over 2,000 runs of 500 random lengths, ours under `max_memory=`; `decode-*` are those of decoding.py, `walk/*` and
`new-length/*` those of lengths.py. Each engine runs in a process of its own, the rounds interleaved; two threads each.
"""

from __future__ import annotations

import statistics
from importlib.util import find_spec
from pathlib import Path

from decoding import decoding, measured
from lengths import lengths
from rows import Row, arguments, machine, show

COMMON = """
import json, os, sys, time
import numpy as np
quick = sys.argv[1] == "quick"
def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096
def lengths(count, kinds):
    rng = np.random.default_rng(0)
    some = rng.integers(8, 257, kinds)
    return [int(n) for n in rng.choice(some, count)]
def p99(run):
    times = []
    for n in lengths(100 if quick else 500, 500):
        x = np.random.default_rng(n).standard_normal((1, n, 256)).astype(np.float32)
        at = time.perf_counter(); run(x); times.append(time.perf_counter() - at)
    return float(np.percentile(times, 99)) * 1e3, float(np.median(times)) * 1e3
def growth(run):
    for n in (8, 64, 256):
        run(np.zeros((1, n, 256), np.float32))
    before = resident()
    for n in lengths(200 if quick else 2000, 500):
        run(np.zeros((1, n, 256), np.float32))
    return (resident() - before) / 2**20
"""
OURS = (
    COMMON
    + """
import mezzo as mz
from mezzo.models.transformer import encoder
from mezzo.runtime.execution.session import Session
ceiling = 64 << 20
free = Session(encoder())
session = Session(encoder(), max_memory=ceiling)
out = {}
def cost(session, name, shapes):
    ratios = []
    for shape in shapes:
        at = time.perf_counter(); session.warmup({name: shape}); planned = time.perf_counter() - at
        x, steady = np.random.default_rng(0).random(shape, np.float32), []
        session.run({name: x})
        for _ in range(5):
            at = time.perf_counter(); session.run({name: x}); steady.append(time.perf_counter() - at)
        ratios.append(planned / float(np.median(steady)))
    return float(np.median(ratios))
out["specialise/encoder"] = cost(free, "x", [(1, n, 256) for n in (31, 64, 100, 128, 200)])
import importlib.util
spec = importlib.util.find_spec("rapidocr_onnxruntime")
if spec:
    det = mz.load(os.path.join(spec.submodule_search_locations[0], "models", "ch_PP-OCRv4_det_infer.onnx"))
    out["specialise/pp-ocr-det"] = cost(det, "x", [(1, 3, h, w) for h, w in ((320, 320), (320, 480), (480, 640))])
out["p99"], out["median"] = p99(lambda x: session.run({"x": x}))
out["growth"] = growth(lambda x: session.run({"x": x}))
stats = session.stats()
assert stats.arena_bytes + stats.pool.reserved + stats.program_bytes <= ceiling
out["ceiling"], out["held"] = ceiling / 2**20, stats.arena_bytes / 2**20
print(json.dumps(out))
"""
)
ORT = (
    COMMON
    + """
import onnxruntime as ort
options = ort.SessionOptions()
options.intra_op_num_threads = 2
options.log_severity_level = 3
session = ort.InferenceSession(sys.argv[2], options, providers=["CPUExecutionProvider"])
out = {}
out["p99"], out["median"] = p99(lambda x: session.run(None, {"x": x}))
out["growth"] = growth(lambda x: session.run(None, {"x": x}))
print(json.dumps(out))
"""
)


def main() -> None:
    from tempfile import TemporaryDirectory

    from mezzo.exporters import save_onnx
    from mezzo.models.transformer import encoder

    args = arguments(__doc__)
    mode, rounds = ("quick", 1) if args.quick else ("full", 3)
    ours: list[dict[str, float]] = []
    theirs: list[dict[str, float]] = []
    with TemporaryDirectory() as folder:
        path = Path(folder) / "encoder.onnx"
        save_onnx(encoder(), path)
        for _ in range(rounds):
            ours.append(measured(OURS, mode))
            if find_spec("onnxruntime"):
                theirs.append(measured(ORT, mode, str(path)))

    def median(of: list[dict[str, float]], key: str) -> float:
        return statistics.median(r[key] for r in of)

    def peers(key: str) -> dict[str, float]:
        return {"ort": median(theirs, key)} if theirs else {}

    rows = [Row(k, "runs", median(ours, k)) for k in ours[0] if k.startswith("specialise/")]
    rows += [
        Row("p99/encoder", "ms", median(ours, "p99"), peers("p99")),
        Row("median/encoder", "ms", median(ours, "median"), peers("median")),
        Row("growth/encoder", "MiB", median(ours, "growth"), peers("growth")),
    ]
    tokens, notes = decoding(args.quick)
    rows += tokens + lengths(args.quick)
    held, ceiling = median(ours, "held"), median(ours, "ceiling")
    show(rows, args, [f"arenas held {held:.2f} MiB of max_memory {ceiling:.0f} MiB", *notes, machine()])


if __name__ == "__main__":
    main()
