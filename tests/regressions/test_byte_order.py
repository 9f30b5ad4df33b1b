"""Numbers in the other order of bytes, as files of the network and of old formats have them: kernels read their bytes
as this machine's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import mezzo as mz
from mezzo.ops.types import f32
from mezzo.runtime.execution.session import Session
from mezzo.runtime.ir.graph import GraphBuilder

from .cases import numbers

SWAPPED = numbers(64, 64).astype(np.dtype(np.float32).newbyteorder())


def test_arrays_are_of_this_machine(tmp_path: Path) -> None:
    np.savez(tmp_path / "w.npz", w=SWAPPED)
    for x in (mz.nd.asarray(SWAPPED), mz.nd.load(tmp_path / "w.npz")["w"], mz.nd.asarray([[1.5]], dtype=SWAPPED.dtype)):
        assert x.dtype == mz.nd.float32
        assert x.asnumpy().dtype.isnative
    x = mz.nd.asarray(SWAPPED)
    assert np.array_equal(x.asnumpy(), SWAPPED)
    assert np.allclose(mz.nd.matmul(x, x).asnumpy(), SWAPPED @ SWAPPED, atol=1e-3)  # was of other numbers
    assert np.isclose(mz.nd.sum(x).item(), SWAPPED.sum(), atol=1e-3)  # was NumPy's TypeError
    assert mz.nd.zeros((2,), SWAPPED.dtype).dtype == mz.nd.float32
    with pytest.raises(mz.InputError, match="without a copy"):
        mz.nd.asarray(SWAPPED, copy=False)


@pytest.mark.parametrize("onednn", [True, False])
def test_constants_of_graphs_are_of_this_machine(onednn: bool, tmp_path: Path) -> None:
    g = GraphBuilder()
    graph = g.graph([g.MatMul(g.input("x", f32("n", 64)), g.const(SWAPPED)), g.Neg("x")])
    mz.onnx.save(graph, tmp_path / "m.onnx")
    x = numbers(3, 64)
    for session in (Session(graph, onednn=onednn), mz.load(tmp_path / "m.onnx", onednn=onednn)):
        for fed in (x, x.astype(SWAPPED.dtype)):
            answers = [*session.run({"x": fed}).values()]
            assert np.allclose(answers[0], x @ SWAPPED, atol=1e-3)  # were products with other numbers
            assert np.array_equal(answers[1], -x)
            assert all(a.dtype is np.dtype(np.float32) for a in answers)
