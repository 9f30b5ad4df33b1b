"""The official suite of ONNX through `mezzo.onnx.Backend`: its runner, its cases, its tolerances.

What cannot pass is an xfail with its reason; xfails are strict, so the table shrinks by itself. Beyond the official
comparison, lists must be as long as expected. `make test ARGS=tests/test_conformance.py` runs it alone.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import TestCase

import pytest

from mezzo.tools.backend import Backend

from .official import CANNOT_PASS as XFAIL
from .official import KNOWN, Suite, classes_of, same_lists

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:onnx", "ignore::RuntimeWarning:numpy")

EACH = int(os.environ.get("SUITE_EACH", "1"))  # 5: only each fifth case


class TwoWays:
    """A model prepared with oneDNN and without; `plain` has the answers without of the latest run."""

    plain: tuple[Any, ...] = ()

    def __init__(self, model: Any, **options: Any) -> None:
        self._ways = [Backend.prepare(model, onednn=onednn, **options) for onednn in (True, False)]

    def run(self, inputs: Any, **options: Any) -> tuple[Any, ...]:
        answers, TwoWays.plain = (way.run(inputs, **options) for way in self._ways)
        return answers


class Both(Backend):
    """Our backend; each model runs twice."""

    @classmethod
    def prepare(cls, model: Any, device: str = "CPU", **options: Any) -> Any:
        return TwoWays(model, **options)


class SuiteTwice(Suite):
    """The official runner, which also looks at the answers without oneDNN."""

    @classmethod
    def answers(cls, outputs: Any) -> tuple[Any, ...]:
        return outputs, TwoWays.plain


def on_the_cpu() -> dict[str, type[TestCase]]:
    """The classes of test cases."""
    made = classes_of(SuiteTwice(Both, __name__))
    number = 0
    for case in made.values():
        for name in [n for n in vars(case) if n.startswith("test_")]:
            number += 1
            if number % EACH:
                delattr(case, name)
            elif (known := name.removesuffix("_cpu")) in XFAIL:
                setattr(case, name, pytest.mark.xfail(reason=XFAIL[known])(getattr(case, name)))
    return made


SUITE = on_the_cpu()
globals().update(SUITE)


@pytest.fixture(autouse=True, scope="module")
def _scratch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The runner lays files of its models down somewhere: not in the home of whoever runs this."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("models")
        patch.setenv("ONNX_MODELS", str(folder))
        yield folder


def names() -> list[str]:
    return [n.removesuffix("_cpu") for case in SUITE.values() for n in vars(case) if n.startswith("test_")]


def test_the_suite_is_whole() -> None:
    assert len(names()) >= KNOWN
    assert XFAIL.keys() <= set(names())


def test_all_but_a_handful_pass() -> None:
    """Every case either passes or is in the table."""
    assert len(names()) - len(XFAIL) >= 2026


def test_each_fifth_case_passes_with_avx2() -> None:
    """A processor without AVX512 has other kernels."""
    less = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2", "SUITE_EACH": "5"}
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "-k", "Onnx", __file__]
    done = subprocess.run(command, env=less, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed
    assert int(passed[1]) >= (KNOWN - len(XFAIL)) // 5 - 5


def test_lists_are_looked_at() -> None:
    with pytest.raises(AssertionError):
        same_lists([[1, 2]], [[1]])
