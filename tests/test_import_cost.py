"""`import mezzo` is cheap and brings nothing that only some users need."""

from __future__ import annotations

import json
import subprocess
import sys

PROBE = """
import numpy, json, sys, time
before = set(sys.modules)
started = time.process_time()
import mezzo
taken, new = time.process_time() - started, set(sys.modules) - before
print(json.dumps([taken, sorted({m.split(".")[0] for m in new} | {m for m in new if m.startswith("mezzo.")})]))
"""
HEAVY = {"onnx", "google", "click", "rich", "PIL", "ml_dtypes", "onnxruntime", "torch", "cupy", "scipy", "mypy"}
HEAVY |= {"mezzo.train", "mezzo.exporters.model", "safetensors"}


def test_import_is_cheap_and_loads_no_readers() -> None:
    done = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, check=True, timeout=120)
    seconds, loaded = json.loads(done.stdout)
    assert not HEAVY & set(loaded)
    assert seconds < 1.5, "ten times the 150 ms that bench/import_time.py is held to"
