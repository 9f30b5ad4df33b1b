"""The official suite of ONNX (onnx.backend.test): its runner, its cases, its tolerances, and what it passes over."""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import TestCase

import onnx.backend.test

KNOWN = 2033  # cases of onnx 1.23.2
DRAWN = "it compares with a draw of NumPy's generator that no seed in the model leads to"
CANNOT_PASS = {
    "test_bernoulli": DRAWN,
    "test_bernoulli_expanded": DRAWN,
    "test_bernoulli_double": DRAWN,
    "test_bernoulli_double_expanded": DRAWN,
    "test_bernoulli_seed": DRAWN,
    "test_bernoulli_seed_expanded": DRAWN,
    "test_loop16_seq_none": "the official comparison takes the length of arrays without dims, and fails on any answer",
}


class Suite(onnx.backend.test.BackendTest):
    """The official runner, which also looks at what its comparison passes over: lists are as long as expected."""

    inside = False

    def __init__(self, backend: Any, module: str) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # cases are computed when they are first imported, infinities and all
            super().__init__(backend, module)

    @classmethod
    def assert_similar_outputs(cls, ref_outputs: Any, outputs: Any, *args: Any, **kwargs: Any) -> None:
        if cls.inside:  # it calls itself for the elements of lists
            super().assert_similar_outputs(ref_outputs, outputs, *args, **kwargs)
            return
        cls.inside = True
        try:
            for found in cls.answers(outputs):
                super().assert_similar_outputs(ref_outputs, found, *args, **kwargs)
                same_lists(list(ref_outputs), list(found))
        finally:
            cls.inside = False

    @classmethod
    def answers(cls, outputs: Any) -> tuple[Any, ...]:
        """All answers to the case at hand that are to be compared."""
        return (outputs,)


def same_lists(expected: list[Any], found: list[Any]) -> None:
    """Lists stand where lists are expected, and are as long."""
    assert len(found) == len(expected)
    for a, b in zip(expected, found, strict=True):
        assert isinstance(a, (list, tuple)) == isinstance(b, (list, tuple))
        if isinstance(a, (list, tuple)):
            same_lists(list(a), list(b))


def classes_of(suite: onnx.backend.test.BackendTest) -> dict[str, type[TestCase]]:
    """The classes of its test cases, by name; of the devices that it names only the one that the backend has."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made: dict[str, type[TestCase]] = suite.test_cases
    for case in made.values():
        for name in [n for n in vars(case) if n.startswith("test_") and not n.endswith("_cpu")]:
            delattr(case, name)
    return made


def cases_of(suite: onnx.backend.test.BackendTest) -> Iterator[tuple[str, Callable[[], None]]]:
    """Each case by name, as a function that raises where it fails."""
    for made in classes_of(suite).values():
        for name in [n for n in vars(made) if n.startswith("test_")]:
            yield name.removesuffix("_cpu"), getattr(made(name), name)


def in_fifth(name: str) -> bool:
    """Whether a case belongs to the fixed fifth that each run of the tests takes."""
    return zlib.crc32(name.encode()) % 5 == 0
