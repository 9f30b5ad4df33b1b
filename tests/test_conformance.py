"""The official suite of ONNX through `mezzo.onnx.Backend`: its runner, its cases, its tolerances.

What cannot pass is an xfail with its reason; xfails are strict, so the table shrinks by itself. Beyond the official
comparison, lists must be as long as expected. `make test ARGS=tests/test_conformance.py` runs it alone.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import TestCase

import pytest

from mezzo.tools.backend import Backend

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its cases are computed when they are imported, infinities and all
    import onnx.backend.test

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:onnx", "ignore::RuntimeWarning:numpy")

DRAWN = "it compares with a draw of NumPy's generator that no seed in the model leads to"
XFAIL = {
    "test_bernoulli": DRAWN,
    "test_bernoulli_expanded": DRAWN,
    "test_bernoulli_double": DRAWN,
    "test_bernoulli_double_expanded": DRAWN,
    "test_bernoulli_seed": DRAWN,
    "test_bernoulli_seed_expanded": DRAWN,
    "test_loop16_seq_none": "the official comparison takes the length of arrays without dims, and fails on any answer",
}
KNOWN = 2033  # cases of onnx 1.23.2
EACH = int(os.environ.get("MEZZO_SUITE_EACH", "1"))  # 5: only each fifth case


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


class Suite(onnx.backend.test.BackendTest):
    """The official runner, which also looks at what its comparison passes over, and at the answers without oneDNN."""

    inside = False

    @classmethod
    def assert_similar_outputs(cls, ref_outputs: Any, outputs: Any, *args: Any, **kwargs: Any) -> None:
        if cls.inside:  # it calls itself for the elements of lists
            super().assert_similar_outputs(ref_outputs, outputs, *args, **kwargs)
            return
        cls.inside = True
        try:
            for found in (outputs, TwoWays.plain):
                super().assert_similar_outputs(ref_outputs, found, *args, **kwargs)
                same_lists(list(ref_outputs), list(found))
        finally:
            cls.inside = False


def same_lists(expected: list[Any], found: list[Any]) -> None:
    """Lists stand where lists are expected, and are as long."""
    assert len(found) == len(expected)
    for a, b in zip(expected, found, strict=True):
        assert isinstance(a, (list, tuple)) == isinstance(b, (list, tuple))
        if isinstance(a, (list, tuple)):
            same_lists(list(a), list(b))


def on_the_cpu() -> dict[str, type[TestCase]]:
    """The classes of test cases, for the one device that the backend has."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made: dict[str, type[TestCase]] = Suite(Both, __name__).test_cases
    number = 0
    for case in made.values():
        for name in [n for n in vars(case) if n.startswith("test_")]:
            number += name.endswith("_cpu")
            if not name.endswith("_cpu") or number % EACH:
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
    less = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2", "MEZZO_SUITE_EACH": "5"}
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "-k", "Onnx", __file__]
    done = subprocess.run(command, env=less, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed
    assert int(passed[1]) >= (KNOWN - len(XFAIL)) // 5 - 5


def test_lists_are_looked_at() -> None:
    with pytest.raises(AssertionError):
        same_lists([[1, 2]], [[1]])
