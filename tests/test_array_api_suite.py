"""The public suite of the array API standard, from a folder that the environment names.

git clone --recurse-submodules --branch 2026.02.26 https://github.com/data-apis/array-api-tests
pip install ndindex pytest-json-report
ARRAY_API_TESTS=array-api-tests make soak ARGS="-k test_the_public_suite"
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from xml.etree import ElementTree

import pytest

VARIABLE, VERSION = "ARRAY_API_TESTS", "2024.12"
ROOT = Path(__file__).parents[1]
XFAILS = Path(__file__).with_name("array_api_suite_xfails.txt")
LEAST = 1300  # tests that run; a release of the suite for 2024.12 has some more


def expected() -> dict[str, str]:
    """The tests that fail, with the reason."""
    found, reason = {}, ""
    for line in XFAILS.read_text("utf8").splitlines():
        if line.startswith("#"):
            reason = line.removeprefix("#").strip()
        elif line:
            found[line] = reason
    return found


def test_what_fails_is_told_in_the_docs() -> None:
    page = (ROOT / "docs/arrays.md").read_text("utf8")
    for name, reason in expected().items():
        assert f"`{name.rpartition('::')[2]}`" in page, name
        assert reason in page, reason


@pytest.mark.soak
def test_the_public_suite(tmp_path: Path) -> None:
    folder = os.environ.get(VARIABLE, "")
    if not folder:
        pytest.xfail(f"{VARIABLE} names no folder of the suite: see the top of {Path(__file__).name}")
    missing = [name for name in ("ndindex", "pytest_jsonreport") if find_spec(name) is None]
    if missing:
        pytest.xfail(f"the suite needs {' and '.join(missing)}: pip install ndindex pytest-json-report")
    report = tmp_path / "report.xml"
    plugins = ["-p", "no:cacheprovider", "-p", "no:mezzo_pytest"]
    options = [*plugins, "--disable-deadline", "--derandomize", "--max-examples=200"]
    files = ["-c", "pytest.ini", f"--xfails-file={XFAILS}", f"--junitxml={report}"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *options, *files, "array_api_tests"],
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])),
            "ARRAY_API_TESTS_MODULE": "mezzo.nd",
            "ARRAY_API_TESTS_VERSION": VERSION,
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert report.exists(), done.stdout + done.stderr
    cases = list(ElementTree.parse(report).getroot().iter("testcase"))
    failed = [c.get("name") for c in cases if c.find("failure") is not None or c.find("error") is not None]
    left_out = [c for c in cases if c.find("skipped") is not None]
    assert not failed, f"{failed}\n{done.stdout[-20_000:]}"
    assert len(cases) - len(left_out) >= LEAST
    print(f"{len(cases) - len(left_out)} of {len(cases)} tests pass, {len(left_out)} are left out or expected to fail")
