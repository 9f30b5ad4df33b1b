"""The suite in two runs: all of it without peers, then with them what did not run there.

    pytest --bare=FILE            # in an environment without peers: FILE lists the tests that ran
    pytest --peers --rest=FILE    # in one that has them: only the tests that FILE does not list

A test that was skipped did not run, and neither did one that was collected for its peer alone. The sign of equality is
needed: before tests/conftest.py is found, pytest would take FILE alone for tests to run.
"""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from .peers import PEERS


def add_options(parser: pytest.Parser) -> None:
    parser.addoption("--peers", action="store_true", help="fail, instead of skipping, where a referee is not installed")
    parser.addoption("--bare", type=Path, metavar="FILE", help="fail where a referee is installed; list there what ran")
    parser.addoption("--rest", type=Path, metavar="FILE", help="run only what --bare=FILE does not list")


def begin(config: pytest.Config) -> None:
    """Look at the environment and the file, and keep what the options ask for."""
    here = [name for name in PEERS if find_spec(name)]
    missing = [name for name in PEERS if name not in here]
    bare, rest = config.getoption("--bare"), config.getoption("--rest")
    if config.getoption("--peers") and missing:
        raise pytest.UsageError(f"--peers, but {', '.join(missing)} not installed: make install PEERS=1")
    if bare is not None and here:
        raise pytest.UsageError(
            f"--bare, but {', '.join(here)} installed: take an environment without, VENV=.venv-bare"
        )
    if rest is not None and not rest.exists():
        raise pytest.UsageError(f"--rest {rest}, which is not there: the run with --bare={rest} comes first")
    if rest is not None:
        config.pluginmanager.register(Rest(rest))
    if bare is not None and not hasattr(config, "workerinput"):  # a worker's results are told to the process above it
        config.pluginmanager.register(Ran(bare))


class Ran:
    """Lists the tests that ran and did not fail."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._ran, self._failed = set[str](), set[str]()
        file.unlink(missing_ok=True)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed.add(report.nodeid)
        elif report.when == "call" and (report.passed or hasattr(report, "wasxfail")):
            self._ran.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._file.write_text(json.dumps(sorted(self._ran - self._failed), indent=0))


class Rest:
    """Leaves out the tests that a file lists."""

    def __init__(self, file: Path) -> None:
        self._ran = set(json.loads(file.read_text()))

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid in self._ran])
        items[:] = [item for item in items if item.nodeid not in self._ran]
