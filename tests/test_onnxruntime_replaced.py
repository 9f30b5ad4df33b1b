"""Packages that import onnxruntime, and its own tests, on our sessions: three lines put ours in its place."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mezzo.models.digits import digits_model

from .peers import peer

PAGE = Path(__file__).parents[1] / "docs/from-onnxruntime.md"
SHIM = re.search(r"^# as_onnxruntime\.py\n(.*?)^```", PAGE.read_text("utf8"), re.S | re.M)


def in_its_place(script: str, *args: str, shim: bool = True, **more: Any) -> str:
    """The standard output of a script in whose process onnxruntime is ours."""
    assert SHIM is not None
    text = f"{SHIM[1] if shim else ''}\n{script}"
    made: subprocess.CompletedProcess[str] = subprocess.run(
        [sys.executable, "-c", text, *args], capture_output=True, text=True, timeout=600, **more
    )
    assert made.returncode == 0, made.stderr[-4000:]
    return made.stdout


def test_three_lines_put_ours_in_the_place_of_onnxruntime() -> None:
    assert SHIM is not None
    assert len([line for line in SHIM[1].splitlines() if line]) == 3
    script = """
import onnxruntime, onnxruntime as rt, sys
from onnxruntime import GraphOptimizationLevel, InferenceSession, SessionOptions
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument, OrtValueVector
from onnxruntime.capi import _pybind_state as C, onnxruntime_inference_collection
import onnxruntime.capi.onnxruntime_pybind11_state as state
import numpy as np
session = InferenceSession(sys.argv[1])
try:
    session.run(None, {"image": np.zeros((1, 1, 8, 8))})
except InvalidArgument as error:
    print(type(error).__module__, state.Fail is C.Fail, OrtValueVector([1]))
(logits,) = session.run(None, {"image": np.zeros((1, 1, 8, 8), np.float32)})
print(logits.shape, InferenceSession is rt.InferenceSession)
"""
    told = in_its_place(script, str(digits_model()))
    assert told.splitlines() == ["mezzo.tools.ort.errors True [1]", "(1, 10) True"]


PACKAGES = {
    "magika": """
from magika import Magika
texts = [b"import os\\nfor i in range(3):\\n    print(os.getcwd(), i)\\n" * 4, b"<!doctype html><p>hello</p>" * 9,
         b"#include <stdio.h>\\nint main(void) { return 0; }\\n" * 5, b'{"a": [1, 2, {"b": null}]}' * 3,
         bytes(range(256))]
found = [Magika().identify_bytes(text) for text in texts]
print([(str(f.output.label), round(float(f.score), 3)) for f in found])
""",
    "silero_vad": """
import numpy as np, torch
from silero_vad import load_silero_vad
sound = np.random.default_rng(0).standard_normal(512 * 20).astype(np.float32) * np.linspace(0, 1, 512 * 20)
for opset in (15, 16):
    model = load_silero_vad(onnx=True, opset_version=opset)
    print([round(float(model(torch.tensor(sound[i : i + 512], dtype=torch.float32), 16000)), 3)
           for i in range(0, sound.size, 512)])
""",
    "rapidocr_onnxruntime": """
import numpy as np
from PIL import Image, ImageDraw, ImageFont
from rapidocr_onnxruntime import RapidOCR
page = Image.new("RGB", (640, 200), "white")
ImageDraw.Draw(page).text((20, 20), "Hello world 2026", fill="black", font=ImageFont.load_default(36))
print([(box, text, round(float(score), 2)) for box, text, score in RapidOCR()(np.array(page))[0]])
""",
}


@pytest.mark.soak
@pytest.mark.parametrize("package", PACKAGES)
def test_packages_answer_the_same(package: str) -> None:
    """Models and all: the package runs once on ONNX Runtime, once on ours."""
    peer("onnxruntime")
    peer(package)
    mine, theirs = (in_its_place(PACKAGES[package], shim=shim) for shim in (True, False))
    assert mine == theirs
    assert mine.strip()


RUNNER = """
import json, sys, unittest
sys.path.insert(0, "")
found = unittest.TestResult()
unittest.defaultTestLoader.loadTestsFromName(sys.argv[1]).run(found)
bad = {str(test): trace for test, trace in [*found.failures, *found.errors]}
print(json.dumps([found.testsRun, bad]))
"""
REFUSALS = ("would be ignored", "this is not built", "ArgumentError", "UnsupportedModel", "UnsupportedGraph")


def own_tests(folder: str, module: str) -> tuple[int, dict[str, str]]:
    """How many tests of a module of ONNX Runtime's ran, and those that fail for another reason than a refusal."""
    path = os.pathsep.join(filter(None, (*sys.path, os.environ.get("PYTHONPATH", ""))))
    told = in_its_place(RUNNER, module, cwd=folder, env={**os.environ, "PYTHONPATH": path})
    count, bad = json.loads(told.strip().splitlines()[-1])
    return count, {test: trace for test, trace in bad.items() if not any(r in trace for r in REFUSALS)}


def test_tests_of_others_are_run_on_ours(tmp_path: Path) -> None:
    (tmp_path / "told_test.py").write_text(
        "import unittest, onnxruntime as ort\n"
        "class Told(unittest.TestCase):\n"
        "    def test_ours(self): self.assertIn('mezzo', ort.get_build_info())\n"
        "    def test_refused(self): ort.SessionOptions().register_custom_ops_library('x')\n"
        "    def test_wrong(self): self.assertEqual(ort.get_device(), 'TPU')\n"
    )
    count, bad = own_tests(str(tmp_path), "told_test")
    assert count == 3
    assert [test.partition(" ")[0] for test in bad] == ["test_wrong"]


@pytest.mark.soak
def test_onnxruntimes_own_tests() -> None:
    """Those of its Python API, from the folder that ORT_TESTS names: onnxruntime/test/python of its repository, with
    the models of onnxruntime/test/testdata in a folder testdata inside."""
    folder = os.environ.get("ORT_TESTS")
    if not folder:
        pytest.xfail("ORT_TESTS names no folder with ONNX Runtime's own tests")
    count, bad = own_tests(folder, "onnxruntime_test_python")
    assert count
    assert not bad
