"""Tokens per second of a decoder from an empty cache: the first pass meets every length for the first time, the second
has met them.

Rows: `decode-first/MODEL` and `decode-second/MODEL`, greedy, for a GPT-2 of 2 layers of 64 and for the small GPT-2 with
random weights. Peers: ONNX Runtime fed by NumPy (`ort`), and with its caches bound from step to step (`ort-bound`).
Each engine runs in a process of its own, the rounds interleaved; two threads each. `shapes.py` shows these rows too.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rows import Row, arguments, machine, show

MODELS: dict[str, dict[str, int]] = {
    "toy": {"layers": 2, "width": 64, "heads": 2, "vocabulary": 1000},
    "gpt2": {},
}
COMMON = """
import json, sys, time
import numpy as np
path, count = sys.argv[1], int(sys.argv[2])
out = {}
def passes(text):
    for name in ("first", "second"):
        at = time.perf_counter(); tokens = text(); out[name] = count / (time.perf_counter() - at)
        assert len(tokens) == count
    out["tokens"] = tokens
    print(json.dumps(out))
"""
OURS = (
    COMMON
    + """
import mezzo as mz
session = mz.load(path, cache="auto", threads=2)
passes(lambda: list(mz.generate(session, [5, 6, 7], count)))
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
past = {i.name: np.zeros((1, i.shape[1], 0, i.shape[3]), np.float32) for i in session.get_inputs() if "past" in i.name}
present = {name: name.replace("past_key_values", "present") for name in past}
def feeds(ids, length):
    total = length + len(ids)
    around = {"attention_mask": np.ones((1, total), np.int64), "position_ids": np.arange(length, total)[None]}
    return {"input_ids": np.array([ids]), **around}
def fed():
    ids, length, caches, tokens = [5, 6, 7], 0, past, []
    names = ["logits", *present.values()]
    for _ in range(count):
        answers = dict(zip(names, session.run(names, {**feeds(ids, length), **caches})))
        caches = {name: answers[present[name]] for name in past}
        length, ids = length + len(ids), [int(answers["logits"][0, -1].argmax())]
        tokens += ids
    return tokens
def bound():
    ids, length, tokens = [5, 6, 7], 0, []
    caches = {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in past.items()}
    for _ in range(count):
        binding = session.io_binding()
        for name, array in feeds(ids, length).items():
            binding.bind_cpu_input(name, array)
        for name, value in caches.items():
            binding.bind_ortvalue_input(name, value)
        for name in ("logits", *present.values()):
            binding.bind_output(name)
        session.run_with_iobinding(binding)
        logits, *values = binding.get_outputs()
        caches = dict(zip(past, values))
        length, ids = length + len(ids), [int(logits.numpy()[0, -1].argmax())]
        tokens += ids
    return tokens
passes(bound if sys.argv[3] == "bound" else fed)
"""
)


def measured(code: str, *args: str) -> dict[str, Any]:
    """The line of JSON that a process of its own prints last."""
    done = subprocess.run([sys.executable, "-c", code, *args], capture_output=True, text=True, check=True)
    answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return answer


def decoding(quick: bool) -> tuple[list[Row], list[str]]:
    """The rows, and notes of tokens in which engines differ."""
    from mezzo.exporters import save_onnx
    from mezzo.models.convnets import random_weights
    from mezzo.models.gpt2 import gpt2

    count, rounds = ("64", 1) if quick else ("200", 3)
    rows, notes = list[Row](), list[str]()
    for model, sizes in MODELS.items():
        runs: dict[str, list[dict[str, Any]]] = {"ours": []}
        runs |= {"ort": [], "ort-bound": []} if find_spec("onnxruntime") else {}
        with TemporaryDirectory() as folder:
            path = Path(folder) / f"{model}.onnx"
            save_onnx(gpt2("batch", random_weights(), **sizes), path)
            for _ in range(rounds):
                for engine, answers in runs.items():
                    code = OURS if engine == "ours" else ORT
                    answers.append(measured(code, str(path), count, engine.partition("-")[2]))
        for when in ("first", "second"):
            speeds = {engine: statistics.median(run[when] for run in answers) for engine, answers in runs.items()}
            rows.append(Row(f"decode-{when}/{model}", "tok/s", speeds.pop("ours"), speeds))
        ours = runs["ours"][0]["tokens"]
        for engine, answers in runs.items():
            same = next((i for i, (a, b) in enumerate(zip(ours, answers[0]["tokens"], strict=True)) if a != b), None)
            notes += [f"{model}: {engine} draws other tokens from {same} on"] if same is not None else []
    return rows, notes


def main() -> None:
    args = arguments(__doc__)
    rows, notes = decoding(args.quick)
    show(rows, args, [*notes, machine()])


if __name__ == "__main__":
    main()
