"""Whole numbers that were another number: in other layouts, in means, at the end of their range."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from mezzo.ops import DType, Tensor
from mezzo.runtime.execution.session import Session
from mezzo.runtime.ir.graph import GraphBuilder

NAMES = [DType.INT8, DType.UINT8, DType.INT32, DType.UINT32, DType.INT64, DType.UINT64]


def whole(dtype: DType, *dims: int) -> np.ndarray:
    """Numbers of the whole range, the ends among them."""
    ends = np.iinfo(dtype.numpy)
    made = np.random.default_rng(0).integers(ends.min, ends.max, dims, dtype.numpy, endpoint=True)
    made.reshape(-1)[::5], made.reshape(-1)[1::7] = ends.max, ends.min
    return made


@pytest.mark.parametrize("onednn", [True, False])
@pytest.mark.parametrize("dtype", [DType.INT32, DType.INT8], ids=str)
@pytest.mark.parametrize("then", ["", "Concat", "Split"])
def test_transposed(dtype: DType, then: str, onednn: bool) -> None:
    """oneDNN's reorder of int32 went through float32 where axes of eight are exchanged: 100000001 was 100000000."""
    dims = (8, 8, 8)
    x = whole(dtype, *dims)
    for order in permutations(range(3)):
        g = GraphBuilder()
        y: tuple[str, ...] = (g.Transpose(g.input("x", Tensor(dtype, dims)), perm=order),)
        want = x.transpose(order)
        wanted = [want]
        if then == "Concat":
            y, wanted = (g.Concat(*y, g.const(np.ascontiguousarray(want)), axis=1),), [np.concatenate([want] * 2, 1)]
        elif then == "Split":
            y, wanted = g.Split(*y, axis=1, num_outputs=2, outputs=2), np.split(want, 2, 1)
        got = Session(g.graph(list(y)), onednn=onednn).run({"x": x}).values()
        for one, other in zip(got, wanted, strict=True):
            assert (one == other).all(), order


@pytest.mark.parametrize("dtype", NAMES, ids=str)
def test_means(dtype: DType) -> None:
    """A sum that did not fit was divided as it had wrapped around, and the most negative one has no absolute value."""
    dims = (3, 4, 5)
    x = whole(dtype, *dims) // (1 if dtype.bits < 64 else 60)
    for axes in ((0,), (1, 2), (0, 1, 2)):
        g = GraphBuilder()
        got = Session(g.graph([g.ReduceMean(g.input("x", Tensor(dtype, dims)), g.const(list(axes)), keepdims=0)]))(x)
        sums, count = x.astype(object).sum(axes), np.prod([dims[a] for a in axes])
        assert got.tolist() == np.vectorize(lambda s, n=int(count): abs(s) // n * (-1 if s < 0 else 1))(sums).tolist()
    low = np.array([np.iinfo(dtype.numpy).min] * 2 + [0], dtype.numpy)
    g = GraphBuilder()
    assert Session(g.graph([g.ReduceMean(g.input("x", Tensor(dtype, (3,))))]))(low // 2) == -(
        abs(int(low[0]) // 2 * 2) // 3
    )
