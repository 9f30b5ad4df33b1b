"""The suite in two runs (two_runs.py): what a run without peers leaves is what the run with them takes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = f"""
import os, sys
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
from tests import two_runs
two_runs.PEERS = ("json",) if "PEER" in os.environ else ("no_such_package",)
pytest_addoption, pytest_configure = two_runs.add_options, two_runs.begin
"""
SUITE = """
import os, pytest
HERE = "PEER" in os.environ
def test_passes(): pass
@pytest.mark.parametrize("x", [1, 2] if HERE else [1])
def test_more(x): pass
@pytest.mark.xfail(reason="known", strict=True)
def test_known(): assert False
def test_compared(): HERE or pytest.skip("no peer")
@pytest.fixture
def peer(): HERE or pytest.skip("no peer")
def test_fixture(peer): pass
@pytest.fixture
def ends(): yield; assert "BREAK" not in os.environ
def test_end(ends): pass
def test_fails(): assert "BREAK" not in os.environ
"""
ALL = {"passes", "more[1]", "more[2]", "known", "compared", "fixture", "end", "fails"}
LEFT = {"more[2]", "compared", "fixture"}


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    (tmp_path / "suite").mkdir()
    (tmp_path / "suite/conftest.py").write_text(CONFTEST)
    (tmp_path / "suite/test_it.py").write_text(SUITE)
    (tmp_path / "pytest.ini").write_text("[pytest]\ntestpaths = suite\naddopts = --import-mode=importlib\n")
    return tmp_path


def run(suite: Path, *options: str, **environment: str) -> tuple[int, set[str], str]:
    """The exit status, the tests that did something, and all that was said."""
    command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", "-p", "no:mezzo_pytest", *options]
    around = {n: v for n, v in os.environ.items() if not n.startswith("PYTEST_")}
    done = subprocess.run(command, cwd=suite, env={**around, **environment}, capture_output=True, text=True)
    ended = "(?:PASSED|XFAIL|FAILED)"
    ran = re.findall(rf"test_it\.py::test_(\S+) {ended}|{ended} \S*test_it\.py::test_(\S+)", done.stdout)
    return done.returncode, {a or b for a, b in ran}, done.stdout + done.stderr


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["one process", "workers"])
def test_two_runs_are_all_tests_once(suite: Path, workers: tuple[str, ...]) -> None:
    (suite / "ran.json").write_text('["suite/test_it.py::test_compared"]')  # of an earlier day
    status, ran, said = run(suite, "--bare=ran.json", *workers)
    assert (status, ran) == (0, ALL - LEFT), said
    assert {name.partition("test_it.py::test_")[2] for name in json.loads((suite / "ran.json").read_text())} == ran
    status, ran, said = run(suite, "--peers", "--rest=ran.json", *workers, PEER="here")
    assert (status, ran) == (0, LEFT), said
    assert "5 deselected" in said or workers


def test_what_failed_is_run_again(suite: Path) -> None:
    status, _, said = run(suite, "--bare=ran.json", BREAK="yes")
    assert status == 1, said
    status, ran, said = run(suite, "--peers", "--rest=ran.json", PEER="here")
    assert (status, ran) == (0, LEFT | {"end", "fails"}), said


def test_environments_and_files_that_are_not_what_they_should_be(suite: Path) -> None:
    for options, peer, words in (
        (["--bare=ran.json"], {"PEER": "here"}, "--bare, but json installed"),
        (["--peers"], {}, "--peers, but no_such_package not installed"),
        (["--rest=ran.json"], {}, "the run with --bare=ran.json comes first"),
    ):
        status, ran, said = run(suite, *options, **peer)
        assert (status, ran) == (4, set()), said
        assert words in said
