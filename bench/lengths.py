"""Every length from 1 to 512 of BERT in random order, each met for the first time, then once more.

Rows: `walk/MODEL` is the seconds of the whole first walk, `new-length/MODEL` the median milliseconds that a first run
took beyond the second one of the same length. Models: BERT-base and one of 2 layers of 64, random weights. `buckets` in
a row's name: lengths are rounded up (`buckets="auto"`). Each engine runs in a process of its own, the rounds
interleaved; two threads each. `shapes.py` shows these rows too.
"""

from __future__ import annotations

import statistics
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from decoding import measured
from rows import Row, arguments, machine, show

MODELS: dict[str, dict[str, int]] = {
    "bert-2x64": {"layers": 2, "width": 64, "heads": 2, "vocabulary": 1000},
    "bert-base": {},
}
COMMON = """
import json, sys, time
import numpy as np
path, count = sys.argv[1], int(sys.argv[2])
def walk(run):
    lengths = [int(n) for n in np.random.default_rng(0).permutation(512)[:count] + 1]
    times = []
    for _ in range(2):
        for n in lengths:
            ids = np.random.default_rng(n).integers(0, 1000, (1, n))
            feeds = {"input_ids": ids, "token_type_ids": np.zeros_like(ids), "attention_mask": np.ones_like(ids)}
            at = time.perf_counter(); run(feeds); times.append(time.perf_counter() - at)
    first, second = np.array(times).reshape(2, -1)
    print(json.dumps({"walk": first.sum(), "new-length": float(np.median(first - second)) * 1e3}))
"""
OURS = (
    COMMON
    + """
import mezzo as mz
walk(mz.load(path, threads=2, buckets="auto" if sys.argv[3] == "buckets" else None).run)
"""
)
ORT = (
    COMMON
    + """
import onnxruntime as ort
options = ort.SessionOptions()
options.intra_op_num_threads = 2
options.log_severity_level = 3
session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
walk(lambda feeds: session.run(None, feeds))
"""
)


def lengths(quick: bool) -> list[Row]:
    """The rows of both models."""
    from mezzo.exporters import save_onnx
    from mezzo.models.bert import bert
    from mezzo.models.convnets import random_weights

    count, rounds = ("64", 1) if quick else ("512", 3)
    rows = list[Row]()
    for model, sizes in MODELS.items():
        runs: dict[str, list[dict[str, Any]]] = {"": [], "buckets": []}
        runs |= {"ort": []} if find_spec("onnxruntime") else {}
        with TemporaryDirectory() as folder:
            path = Path(folder) / f"{model}.onnx"
            save_onnx(bert("batch", random_weights(), length="length", **sizes), path)
            for _ in range(rounds):
                for engine, answers in runs.items():
                    answers.append(measured(ORT if engine == "ort" else OURS, str(path), count, engine))
        for row, unit in (("walk", "s"), ("new-length", "ms")):
            middle = {engine: statistics.median(run[row] for run in answers) for engine, answers in runs.items()}
            peers = {"ort": middle.pop("ort")} if "ort" in middle else {}
            rows += [
                Row("/".join(filter(None, (row, model, how))), unit, value, peers) for how, value in middle.items()
            ]
    return rows


def main() -> None:
    args = arguments(__doc__)
    show(lengths(args.quick), args, [machine()])


if __name__ == "__main__":
    main()
