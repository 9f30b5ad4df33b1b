"""Packages that import onnxruntime, and its own tests, on our sessions, which stand in its place."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mezzo.models.digits import digits_model

from .calls_that_differ import DIFFERS, MODULES, SPARSE, reason
from .peers import peer


def in_its_place(script: str, *args: str, shim: bool = True, told: list[str] | None = None, **more: Any) -> str:
    """The standard output of a script in whose process onnxruntime is ours; `told` gets what it says of that."""
    ours = ["-m", "mezzo.as_onnxruntime"] if shim else []
    ran: subprocess.CompletedProcess[str] = subprocess.run(
        [sys.executable, *ours, "-c", script, *args], capture_output=True, text=True, timeout=600, **more
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    if told is not None:
        told += ran.stderr.splitlines()
    return ran.stdout


SCRIPT = """
import importlib.metadata, importlib.util, sys
import onnxruntime, onnxruntime as rt, mezzo
from onnxruntime import GraphOptimizationLevel, InferenceSession, SessionOptions
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument, OrtValueVector
from onnxruntime.capi import _pybind_state as C, onnxruntime_inference_collection
import onnxruntime.capi.onnxruntime_pybind11_state as state
import numpy as np
session = InferenceSession(sys.argv[1], providers=rt.get_available_providers())
try:
    session.run(None, {"image": np.zeros((1, 1, 8, 8))})
except InvalidArgument as error:
    print(type(error).__module__, state.Fail is C.Fail is mezzo.onnxruntime.Fail, OrtValueVector([1]))
(logits,) = session.run(None, {"image": np.zeros((1, 1, 8, 8), np.float32)})
print(logits.shape, InferenceSession is rt.InferenceSession, rt.__spec__.name)
print(importlib.metadata.version("onnxruntime") == rt.__version__, bool(importlib.util.find_spec("onnxruntime")),
      "onnxruntime" in importlib.metadata.packages_distributions())
try:
    from onnxruntime.quantization import quantize_dynamic
except ImportError as error:
    print(type(error).__name__, error.name, isinstance(error, mezzo.MezzoError), error.hint)
options = SessionOptions()
options.inter_op_num_threads, options.enable_mem_pattern = 4, False
options.inter_op_num_threads = 4
options.add_session_config_entry("session.intra_op.allow_spinning", "0")
assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"
InferenceSession(sys.argv[1], options, providers=[("CPUExecutionProvider", {"use_arena": "0"})])
try:
    options.add_session_config_entry("session.qdqisint8allowed", "1")
except ValueError as error:
    print("still refused")
"""


def test_onnxruntime_is_ours() -> None:
    told: list[str] = []
    lines = in_its_place(SCRIPT, str(digits_model()), told=told).splitlines()
    assert lines[:3] == ["mezzo.tools.ort.errors True [1]", "(1, 10) True mezzo.onnxruntime", "True True True"]
    assert re.fullmatch(r"NoSuchPart onnxruntime.quantization True mz.quantize.*", lines[3])
    assert lines[4] == "still refused"
    first, *hints = told
    assert re.match(r"mezzo.as_onnxruntime: Mezzo \S+ answers `import onnxruntime` of __main__, <string>:3", first)
    names = ("inter_op_num_threads", "enable_mem_pattern", "session.intra_op.allow_spinning", "use_arena")
    assert len(hints) == len(names), "each is told once"
    assert all(name in hint and "overlooked" in hint for name, hint in zip(names, hints, strict=True))


def test_what_is_installed_is_named() -> None:
    peer("onnxruntime")
    told: list[str] = []
    in_its_place("import onnxruntime", told=told)
    assert re.search(r"\(onnxruntime \S+ is installed, and not used\)$", told[0])


def test_a_module_that_was_imported_before_stays(tmp_path: Path) -> None:
    (tmp_path / "onnxruntime.py").write_text("")
    script = """
import onnxruntime, mezzo as mz
try:
    mz.as_onnxruntime()
except mz.ArgumentError as error:
    print(error)
"""
    path = os.pathsep.join((str(tmp_path), *sys.path))
    said = in_its_place(script, shim=False, env={**os.environ, "PYTHONPATH": path})
    assert "is imported already" in said
    assert str(tmp_path) in said


def test_a_process_begins_with_the_call() -> None:
    script = """
import mezzo as mz, mezzo.as_onnxruntime
mz.as_onnxruntime()
mz.as_onnxruntime()
import onnxruntime
print(onnxruntime.get_build_info())
"""
    told: list[str] = []
    assert "mezzo" in in_its_place(script, shim=False, told=told)
    assert len(told) == 1


@pytest.mark.parametrize("kind", ["file", "folder", "module", "command"])
def test_programs(kind: str, tmp_path: Path) -> None:
    """Each begins as it does without us: with its arguments, its folder, its name and its exit code."""
    text = "import sys, onnxruntime, beside\nprint = __builtins__.print\n"
    text += "print(__name__, sys.argv[1:], onnxruntime.__name__)\nsys.exit(7)"
    name = {"folder": "__main__.py"}.get(kind, "program.py")
    (tmp_path / name).write_text(text)
    (tmp_path / "beside.py").write_text("")
    program = {
        "file": [str(tmp_path / name)],
        "folder": [str(tmp_path)],
        "module": ["-m", "program"],
        "command": ["mezzo", "--version"],
    }[kind]
    more = ["--option", "x"] if kind != "command" else []
    command = [sys.executable, "-m", "mezzo.as_onnxruntime", *program, *more]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    if kind == "command":
        assert "version" in ran.stdout
        assert ran.returncode == 0
    else:
        assert ran.stdout == "__main__ ['--option', 'x'] mezzo.onnxruntime\n", ran.stderr
        assert ran.returncode == 7


@pytest.mark.parametrize("arguments", [[], ["nothing-of-this-name"], ["--unknown"]])
def test_calls_that_run_nothing(arguments: list[str]) -> None:
    ran = subprocess.run([sys.executable, "-m", "mezzo.as_onnxruntime", *arguments], capture_output=True, timeout=120)
    assert ran.returncode == 2
    assert ran.stderr


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


# Runs the tests of a module, and prints how each has ended.
RUNNER = """
import json, sys, unittest
sys.path.insert(0, "")

class Told(unittest.TestResult):
    def __init__(self):
        super().__init__()
        self.ends = {}
    def end(self, test, how, why=""):
        test = getattr(test, "test_case", test).id()
        if self.ends.get(test, ["passed"])[0] != "failed":
            self.ends[test] = [how, why]
    def addSuccess(self, test):
        self.end(test, *self.ends.get(test.id(), ["passed"]))
    def addSkip(self, test, reason):
        self.end(test, "skipped", reason)
    def addFailure(self, test, error):
        self.end(test, "failed", self._exc_info_to_string(error, test))
    addError = addFailure
    def addSubTest(self, test, part, error):
        if error is not None:
            self.addFailure(test, error)

told = Told()
try:
    unittest.defaultTestLoader.loadTestsFromName(sys.argv[1]).run(told)
except ImportError as error:
    told.ends[sys.argv[1]] = ["failed", str(error)]
print(json.dumps(told.ends))
"""
Ends = dict[str, tuple[str, str]]  # by a test: passed, skipped or failed, and why


def own_tests(folder: Path, module: str, *, ours: bool) -> Ends:
    """How the tests of a module of ONNX Runtime's end on our sessions, or on its own."""
    path = os.pathsep.join(filter(None, (*sys.path, os.environ.get("PYTHONPATH", ""))))
    said = in_its_place(RUNNER, module, shim=ours, cwd=folder, env={**os.environ, "PYTHONPATH": path})
    return {test: (how, why) for test, (how, why) in json.loads(said.strip().splitlines()[-1]).items()}


def differing(mine: Ends, theirs: Ends) -> dict[str, str]:
    """The tests that pass on ONNX Runtime, and on ours do not, with what was said there."""
    passed = [test for test, (how, _) in theirs.items() if how == "passed"]
    return {test: mine.get(test, ("", "it was not run"))[1] for test in passed if mine.get(test, ("",))[0] != "passed"}


def test_tests_of_others_are_run_on_ours(tmp_path: Path) -> None:
    (tmp_path / "told_test.py").write_text(
        "import unittest, onnxruntime as ort\n"
        "class Told(unittest.TestCase):\n"
        "    def test_ours(self): self.assertIn('mezzo', ort.get_build_info())\n"
        "    def test_skipped(self): self.skipTest('not here')\n"
        "    def test_wrong(self): self.assertEqual(ort.get_device(), 'TPU')\n"
        "    def test_parts(self):\n"
        "        for n in range(3):\n"
        "            with self.subTest(n=n): self.assertNotEqual(n, 1)\n"
    )
    (tmp_path / "absent_test.py").write_text("from onnxruntime import datasets\n")
    ends = own_tests(tmp_path, "told_test", ours=True)
    assert {test.rpartition("_")[2]: how for test, (how, _) in ends.items()} == {
        "ours": "passed",
        "skipped": "skipped",
        "wrong": "failed",
        "parts": "failed",
    }
    theirs = dict.fromkeys(ends, ("passed", "")) | {"told_test.Told.test_absent": ("passed", "")}
    found = differing(ends, theirs)
    assert [test.rpartition("_")[2] for test in found] == ["parts", "skipped", "wrong", "absent"]
    assert "1 == 1" in found["told_test.Told.test_parts"]
    (how, why), *_ = own_tests(tmp_path, "absent_test", ours=True).values()
    assert (how, "datasets" in why) == ("failed", True)


def test_reasons_are_of_tests_that_are_run() -> None:
    assert all(name.partition(".")[0] in MODULES and why for name, why in DIFFERS.items())
    assert reason("onnxruntime_test_python_sparse_matmul.TestSparseToDenseMatmul.test_any") == SPARSE
    assert reason("onnxruntime_test_python.TestInferenceSession.test_run_model") is None


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the folder that ORT_TESTS names, into which its tests write: onnxruntime/test/python of ONNX Runtime's
    repository, with the models of onnxruntime/test/testdata in a folder testdata inside."""
    peer("onnxruntime")
    named = os.environ.get("ORT_TESTS")
    if not named:
        pytest.xfail("ORT_TESTS names no folder with ONNX Runtime's own tests")
    return Path(shutil.copytree(named, tmp_path_factory.mktemp("ort") / "tests"))


@pytest.mark.soak
@pytest.mark.parametrize("module", MODULES)
def test_onnxruntimes_own_tests(module: str, folder: Path) -> None:
    """Those of its Python API end as on ONNX Runtime, but for those in `DIFFERS`, which all do end otherwise."""
    mine, theirs = (own_tests(folder, module, ours=ours) for ours in (True, False))
    found = differing(mine, theirs)
    assert not {test: why[-2000:] for test, why in found.items() if reason(test) is None}
    stale = [name for name in DIFFERS if name.partition(".")[0] == module]
    assert [name for name in stale if not any(f"{test}.".startswith(f"{name}.") for test in found)] == []
