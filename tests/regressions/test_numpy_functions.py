"""NumPy's functions on arrays of ours that have another meaning under the same name."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

import mezzo as mz

from .cases import numbers


def same(made: Any, wanted: Any) -> None:
    assert isinstance(made, mz.nd.Array)
    assert made.shape == np.shape(wanted)
    assert np.allclose(made.asnumpy(), wanted, rtol=1e-4)


@pytest.mark.parametrize(
    "shapes", [((2, 3, 4), (4, 3)), ((2, 3), (5, 3, 4)), ((3,), (5, 3, 4)), ((4,), (4,)), ((), (2, 3))]
)
def test_dot(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    a, b = (numbers(*s) for s in shapes)
    same(np.dot(mz.nd.asarray(a), mz.nd.asarray(b)), np.dot(a, b))  # was matmul


def test_dot_of_mxnet_is_over_the_first_axis() -> None:
    a, b = numbers(2, 3, 4), numbers(4, 3, 2)
    same(mz.nd.dot(mz.nd.asarray(a), mz.nd.asarray(b)), np.tensordot(a, b, 1))


@pytest.mark.parametrize("order", [None, 1, 2, -1, -2, np.inf, -np.inf, "fro", "nuc"])
def test_norms_of_matrices(order: Any) -> None:
    x = numbers(2, 3, 4)
    for axis, kept in product([(0, 1), (2, 0), (-1, -2)], [False, True]):
        same(np.linalg.norm(mz.nd.asarray(x), order, axis, kept), np.linalg.norm(x, order, axis, kept))
    same(np.linalg.norm(mz.nd.asarray(x[0]), order), np.linalg.norm(x[0], order))  # were of all elements


def test_norms_of_vectors() -> None:
    x = numbers(2, 3, 4)
    for order in (None, 0, 1, 2, 3, np.inf):
        same(np.linalg.norm(mz.nd.asarray(x), order, 1), np.linalg.norm(x, order, 1))
    same(np.linalg.norm(mz.nd.asarray(x)), np.linalg.norm(x))
    with pytest.raises(TypeError):
        np.linalg.norm(mz.nd.asarray(x), 2)


@pytest.mark.parametrize("name", ["atan2", "hypot", "logaddexp", "copysign", "nextafter"])
def test_what_complex_numbers_do_not_have(name: str) -> None:
    z, x = mz.nd.asarray([1 + 2j, 3]), mz.nd.asarray([1.0, 2.0])
    for one, other in ((z, z), (z, x), (x, z)):
        with pytest.raises(mz.ShapeError, match="complex"):  # were numbers without a meaning, and a KeyError
            getattr(mz.nd, name)(one, other)
    with pytest.raises(mz.ShapeError, match="no sign"):
        mz.nd.signbit(z)
