"""Models in other people's CI: the pytest plugin, the hook definition, and the worked page as it is printed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from mezzo.models.digits import digits_model

from .models import model, node, referee, value

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/ci.md").read_text("utf8")
FIXTURE = """
import pytest

def test_good(mezzo_check):
    assert mezzo_check("good.onnx", opset=17, sizes=("batch=4",), round_trip=True).code == 0

def test_bad(mezzo_check):
    with pytest.raises(AssertionError, match="acme::Twist"):
        mezzo_check("bad.onnx")
"""


def run(command: list[str], folder: Path, code: int) -> str:
    """Run as a user would, with our commands on the path; returns what it printed."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    environment = {n: v for n, v in os.environ.items() if not n.startswith("PYTEST")}
    environment |= {"PATH": path, "GITHUB_STEP_SUMMARY": str(folder / "summary.md"), "GITHUB_ACTIONS": "true"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def pytest_in(folder: Path, *args: str, code: int) -> str:
    return run([sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *args], folder, code)


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A folder with a good and a bad model."""
    (tmp_path / "good.onnx").write_bytes(digits_model().read_bytes())
    bad = model([node("Twist", "x", "y", domain="acme")], [value("x", 2)], [value("y", 2)], domains={"acme": 1})
    (tmp_path / "bad.onnx").write_bytes(bad.SerializeToString())
    return tmp_path


def test_the_plugin_fails_a_bad_model_and_passes_a_good_one(models: Path) -> None:
    printed = pytest_in(models, "--mezzo-onnx", "good.onnx", "bad.onnx", "--junit-xml=out.xml", code=1)
    assert "1 failed, 1 passed" in printed
    assert "acme::Twist of opset 1 is not carried" in printed
    assert "Traceback" not in printed
    cases = ElementTree.parse(models / "out.xml").getroot().iter("testcase")
    assert {c.get("classname"): c.find("failure") is not None for c in cases} == {"good.onnx": False, "bad.onnx": True}


def test_its_options(models: Path) -> None:
    printed = pytest_in(models, "--mezzo-onnx", "good.onnx", "--mezzo-opset=6", "--mezzo-train", code=1)
    assert "opset 6 is not written" in printed
    again = ("--mezzo-onnx", "good.onnx", "--mezzo-against=good.onnx", "--mezzo-tolerance=1e-6")
    assert "1 passed" in pytest_in(models, *again, code=0)


def test_it_is_asked_for_by_the_name_of_its_module(models: Path) -> None:
    """As for any plugin: the module's name is the one that it is installed under, and that keeps it out."""
    one = ("--mezzo-onnx", "good.onnx")
    assert "1 passed" in pytest_in(models, "-p", "mezzo_pytest", *one, code=0)
    assert "1 passed" in pytest_in(models, "--disable-plugin-autoload", "-p", "mezzo_pytest", *one, code=0)
    assert "unrecognized arguments: --mezzo-onnx" in pytest_in(models, "-p", "no:mezzo_pytest", *one, code=4)


TWIST = """
import mezzo as mz

@mz.pointwise("Twist", domain="acme", since=1)
def twist(e, X):
    return -X
"""


def test_operators_of_ones_own_are_known(models: Path) -> None:
    (models / "my_twist.py").write_text(TWIST)
    assert "1 passed" in pytest_in(models, "--mezzo-onnx", "bad.onnx", "--mezzo-import=my_twist.py", code=0)
    run([sys.executable, "-m", "mezzo", "check", "bad.onnx", "good.onnx", "--import", "my_twist"], models, 0)
    printed = run([sys.executable, "-m", "mezzo", "check", "bad.onnx", "--import", "none.py"], models, 4)
    assert "none.py cannot be imported" in printed
    assert "Traceback" not in printed


def test_the_fixture_and_that_models_are_left_alone_unless_asked_for(models: Path) -> None:
    (models / "test_models.py").write_text(FIXTURE)
    assert "2 passed" in pytest_in(models, code=0)


def test_pytest_does_not_import_mezzo_for_others(tmp_path: Path) -> None:
    (tmp_path / "test_other.py").write_text("import sys\n\ndef test():\n    assert 'mezzo' not in sys.modules\n")
    assert "1 passed" in pytest_in(tmp_path, code=0)


def test_the_hook_definition() -> None:
    """It is plain enough to be read without a parser of YAML, which nothing here needs."""
    text = (ROOT / ".pre-commit-hooks.yaml").read_text("utf8")
    found = dict(re.findall(r"^[- ] (\w+): (.*?)(?: #.*)?$", text, re.M))
    assert (found["id"], found["entry"], found["language"]) == ("mezzo-check", "mezzo check", "python")
    assert re.search(found["files"], "models/digits.onnx")
    assert not re.search(found["files"], "models/digits.onnx.md")
    assert f"id: {found['id']}" in PAGE


def test_the_worked_page(tmp_path: Path) -> None:
    referee()
    (tmp_path / "models").mkdir()
    (tmp_path / "models/digits.onnx").write_bytes(digits_model().read_bytes())
    record = _block("", 1)
    run(["bash", "-ec", record], tmp_path, 0)
    script = re.search(r"- run: \|\n((?:          .*\n)+)", PAGE)
    assert script is not None
    job = ["bash", "-eo", "pipefail", "-c", script.group(1)]
    run(job, tmp_path, 0)
    assert "| `models/digits.onnx` | covered |" in (tmp_path / "summary.md").read_text()
    run([sys.executable, "-c", _block("python", 0)], tmp_path, 0)
    printed = run(job, tmp_path, 2)
    for line in _block("", 2).splitlines():
        for part in re.split(r"\.\.\.", line):
            assert part.strip() in printed
    assert "::error file=models/digits.onnx,title=mezzo check%3A numbers::" in printed


def _block(language: str, index: int) -> str:
    """A block of the page in this language."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", PAGE, re.S | re.M)
    found: str = [text for kind, text in blocks if kind == language][index]
    return found
