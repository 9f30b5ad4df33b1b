"""The official suite of ONNX through `mezzo.onnx.Backend`: its runner, its cases, its tolerances.

What cannot pass is an xfail with its reason; xfails are strict, so the table shrinks by itself. Beyond the official
comparison, lists must be as long as expected. `make test ARGS=tests/test_conformance.py` runs it alone.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import TestCase

import pytest

import mezzo as mz

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
    "test_gradient_of_add": "Gradient comes with differentiation",
    "test_gradient_of_add_and_mul": "Gradient comes with differentiation",
}
KNOWN = 2033  # cases of onnx 1.23.2


class Suite(onnx.backend.test.BackendTest):
    """The official runner, which also looks at what its comparison passes over."""

    @classmethod
    def assert_similar_outputs(cls, ref_outputs: Any, outputs: Any, *args: Any, **kwargs: Any) -> None:
        super().assert_similar_outputs(ref_outputs, outputs, *args, **kwargs)
        same_lists(list(ref_outputs), list(outputs))


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
        made: dict[str, type[TestCase]] = Suite(mz.onnx.Backend, __name__).test_cases
    for case in made.values():
        for name in [n for n in vars(case) if n.startswith("test_")]:
            if not name.endswith("_cpu"):
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
    assert len(names()) - len(XFAIL) >= 2024


def test_lists_are_looked_at() -> None:
    with pytest.raises(AssertionError):
        same_lists([[1, 2]], [[1]])
