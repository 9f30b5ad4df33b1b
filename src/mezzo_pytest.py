"""The pytest plugin: `pytest --mezzo-onnx models/*.onnx`, and the fixture `mezzo_check`.

It stands beside the package, and not in it, so that pytest runs which check no model do not import mezzo: pytest loads
every installed plugin before the first conftest.py.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from mezzo.tools.verdict import Verdict

SUFFIXES = (".onnx", ".mezzo")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("mezzo", "checking models with Mezzo")
    group.addoption("--mezzo-onnx", action="store_true", help="collect .onnx and .mezzo files: one test for each")
    group.addoption("--mezzo-train", action="store_true", help="they have to be trainable too")
    group.addoption("--mezzo-opset", type=int, metavar="N", help="they have to be exportable at this opset too")
    group.addoption(
        "--mezzo-import",
        action="append",
        default=[],
        metavar="MODULE",
        help="import it first",
    )
    group.addoption("--mezzo-against", metavar="WHOM", help="compare numbers: onnxruntime, reference, a model, an .npz")
    group.addoption(
        "--mezzo-tolerance", action="append", default=[], metavar="[TYPE=]NUMBER", help="for --mezzo-against"
    )


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> ModelFile | None:
    if file_path.suffix in SUFFIXES and parent.config.getoption("mezzo_onnx"):
        return ModelFile.from_parent(parent, path=file_path)
    return None


class NotCovered(AssertionError):
    """A check that found problems; the message is its report."""


class ModelFile(pytest.File):
    """A model file: a collector of one test."""

    def collect(self) -> Iterable[pytest.Item]:
        yield ModelCheck.from_parent(self, name="mezzo check")


class ModelCheck(pytest.Item):
    """The check of one model with the options of the command line."""

    def runtest(self) -> None:
        given = {name: self.config.getoption(f"mezzo_{name}") for name in ("train", "opset", "against")}
        lists = {"tolerance": "mezzo_tolerance", "modules": "mezzo_import"}
        checked(self.path, **given, **{n: tuple(self.config.getoption(o)) for n, o in lists.items()})

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        if isinstance(excinfo.value, NotCovered):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[os.PathLike[str] | str, int | None, str]:
        return self.path, None, f"mezzo check {self.path.name}"


def checked(path: str | os.PathLike[str], **options: Any) -> Verdict:
    """Check a model; NotCovered with the report where there are problems."""
    from mezzo.tools.check import check
    from mezzo.tools.check_options import Options
    from mezzo.tools.report import text

    verdict = check(Path(path), Options(**options))
    if verdict.code:
        raise NotCovered(text(verdict.report()))
    return verdict


@pytest.fixture
def mezzo_check() -> Callable[..., Verdict]:
    """`mezzo_check(path, **options)` checks a model file, and fails the test with the report where there are problems.

    The options are those of `mezzo.tools.check_options.Options`: `against="onnxruntime"`, `opset=17`, `train=True`, ...
    Returns the verdict.
    """
    return checked
