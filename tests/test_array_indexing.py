"""Arrays of indices, masks and numbers beside each other: NumPy's results, shapes and refusals, reading and writing."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
import pytest

import mezzo as mz

from .array_modes import every_mode  # noqa: F401 (a fixture)

nd: Any = mz.nd


def test_arrays_as_indices(mode: str) -> None:
    x = np.arange(24).reshape(2, 3, 4)
    a = nd.array(x)
    i, j = np.array([[0, 1], [1, 1]]), np.array([2, -1])
    mask = x[0, :, 0] > 3
    for key in (i, (i, j), (i, j, 1), (1, j), (i, j, slice(1, 3)), x > 7, (0, mask), (..., i, j), [1, 0]):
        np.testing.assert_array_equal(a[_ours(key)].asnumpy(), x[key])
    for key, value in ((i, 5), ((i, j), [6, 7, 8, 9]), (x > 7, 1), ((1, mask), 3), (x < 0, np.zeros(0))):
        y = x.copy()
        y[key] = np.array(value)
        b = nd.array(x)
        b[_ours(key)] = nd.array(value) if isinstance(value, list) else value
        np.testing.assert_array_equal(b.asnumpy(), y)


# What stands for an axis of a size beside others: NumPy's advanced indices with all that may be around them.
IJ, M3, M34 = np.array([[0, 1], [1, -1]]), np.array([True, False, True]), np.arange(12).reshape(3, 4) % 3 == 0
MIXED = [
    *((M3, 1), (M3, 1, 0), (slice(None), slice(None), np.arange(4) > 1), (1, M3), (slice(None), M34[0][:2])[:1]),
    *(
        (IJ, None, 1),
        (IJ, slice(None), 1),
        (IJ, slice(1, None), IJ),
        (slice(1, None), IJ),
        (slice(None, None, -1), IJ, 1),
    ),
    *(
        (1, slice(None), IJ),
        (..., IJ),
        (IJ, ..., IJ),
        (slice(None), IJ, ..., IJ),
        (None, IJ),
        (IJ, None),
        (0, None, IJ),
    ),
    *((M34,), (M34, 2), (M34, slice(1, None)), (slice(None), M34.T[:3]), (M3, None, IJ[0]), (M3, slice(None), IJ[0])),
    *((True,), (False,), (True, IJ), (..., True), (1, True), (np.bool_(True), slice(None), IJ), ([],), ([], 1)),
    *(([True, False, True], slice(None), [0, 3]), ([0, 2],), (M3, IJ[:1, :1]), (np.array(1), IJ), (np.array(2),)),
]


@pytest.mark.parametrize("key", MIXED, ids=lambda key: str(key).replace("\n", ""))
@pytest.mark.parametrize("shape", [(3, 3, 4), (3, 4, 5)], ids=str)
def test_arrays_beside_other_indices_are_numpys(key: Any, shape: tuple[int, ...], mode: str) -> None:
    x = np.arange(float(np.prod(shape))).reshape(shape)
    a = nd.array(x)
    try:
        expected = x[key]
    except IndexError:
        with pytest.raises(IndexError):
            a[_ours(key)].asnumpy()
        return
    found = a[_ours(key)].asnumpy()
    np.testing.assert_array_equal(found, expected)
    values: list[Any] = [7, np.float64(8), np.arange(expected.size).reshape(expected.shape) - 50.0, np.array([[[5.0]]])]
    values += [np.arange(float(expected.shape[-1]))] if expected.ndim else []
    for value in values:
        y, b = x.copy(), nd.array(x)
        y[key] = value
        b[_ours(key)] = nd.array(value) if isinstance(value, np.ndarray) else value
        np.testing.assert_array_equal(b.asnumpy(), y)


def test_numbers_of_python_are_written_as_they_are(mode: str) -> None:
    """Not by way of float32, which is what an array of them would be."""
    fine = 16777217.1
    keys: list[Any] = [slice(None), 1, nd.array([0, 1]), nd.array([True, True]), (nd.array([True, True]), None)]
    for key in keys:
        a = nd.zeros(2, dtype="float64")
        a[key] = fine
        assert fine in a.tolist()
    for key in keys[:1] + keys[2:4]:
        a = nd.zeros(2, dtype="float64")
        a[key] = [fine, 0.1]
        assert a.tolist() == [fine, 0.1]
    number = nd.asarray(0.0, dtype="float64")
    number[nd.asarray(True)] = fine
    assert number.item() == fine
    with pytest.raises(mz.InputError, match="no int64"):
        nd.arange(2)[...] = [1j, 2]


def test_arrays_as_indices_that_do_not_fit() -> None:
    a = nd.ones((3, 4))
    wrong: list[Any] = [
        (nd.array([True, False]),), (slice(None), nd.array(M3)), (nd.array(M3), 0, 0), (nd.array([0.5]),),
        (..., IJ, ...), (nd.array([0, 1]), nd.array([0, 1, 2])),
    ]  # fmt: skip
    for key in wrong:
        with pytest.raises(mz.ShapeError):
            a[key]
    with pytest.raises(mz.ShapeError, match="does not broadcast"):
        a[nd.array(M3)] = nd.ones((3, 4))
    assert a[nd.zeros((0, 4), dtype="bool")].shape == (0,)
    assert a[:, nd.zeros((0,), dtype="bool")].shape == (3, 0)


def test_a_number_where_a_mask_is_true_is_traced() -> None:
    """No size depends on the mask, so that it is one graph."""
    from mezzo.gluon.hybrid import HybridBlock

    class Cut(HybridBlock):
        def forward(self, x: Any, rows: Any, columns: Any) -> Any:
            y = x * 1
            y[rows, 1] = 5
            y[:, columns] = 0
            y[rows] = 7
            return y

    net = Cut().hybridize(fullgraph=True)
    rng = np.random.default_rng(0)
    for _ in range(3):
        x, rows, columns = rng.normal(size=(3, 4)), rng.random(3) > 0.5, rng.random(4) > 0.5
        expected = x.copy()
        expected[rows, 1], expected[:, columns], expected[rows] = 5, 0, 7
        np.testing.assert_array_equal(net(*map(nd.array, (x, rows, columns))).asnumpy(), expected)
    assert net.report() == "everything is traced"


@pytest.mark.parametrize("hybrid", [False, True])
@pytest.mark.parametrize("wrong", [5, -6])
def test_an_index_outside_is_one_error_everywhere(wrong: int, hybrid: bool) -> None:
    """NumPy's IndexError in eager code was an ExecutionError in a hybridized block."""
    from mezzo.gluon import nn

    net = nn.Embedding(5, 3)
    net.initialize()
    net.hybridize(hybrid)
    with pytest.raises(IndexError) as caught:
        net(mz.nd.array(np.array([1, wrong]))).asnumpy()
    assert isinstance(caught.value, mz.OutOfRange)
    assert "Gather" in str(caught.value)
    with suppress(mz.OutOfRange):  # the run that was traced failed as well
        mz.nd.waitall()


def _ours(key: Any) -> Any:
    if isinstance(key, tuple):
        return tuple(map(_ours, key))
    return nd.array(key) if isinstance(key, np.ndarray) else key
