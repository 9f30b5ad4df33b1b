"""The front door: every name that it lists is there, and comes only when it is asked for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import mezzo as mz
from mezzo.gluon import nn
from mezzo.gluon.block import Block
from mezzo.gluon.hybrid import HybridBlock
from mezzo.ops.errors import InputError


def test_every_name_is_there() -> None:
    assert dir(mz) == sorted(mz.__all__)
    assert {"nd", "sym", "gluon", "autograd", "Trainer", "kv", "profiler", "viz"} <= set(dir(mz))
    for space in (mz, mz.data, mz.gluon, mz.models, mz.nd, mz.sym):
        for name in {*dir(space), *space.__all__}:
            assert hasattr(space, name), name
    with pytest.raises(AttributeError, match="no attribute 'ndarray'"):
        _ = mz.ndarray


def test_blocks_without_a_forward() -> None:
    class Empty(Block):
        pass

    class Older(HybridBlock):
        def hybrid_forward(self, F: object, x: object) -> object:
            return x

    with pytest.raises(InputError, match=r"(?s)Empty has no forward.*takes and returns arrays"):
        Empty()(mz.nd.ones((2,)))
    with pytest.raises(InputError, match=r"(?s)Older has no forward.*is now forward\(self, x\)"):
        Older()(mz.nd.ones((2,)))


def test_export_for_the_latest_call(tmp_path: Path) -> None:
    net = nn.Dense(3).initialize("ones").hybridize()
    with pytest.raises(InputError, match=r"(?s)shapes of the inputs are not known.*net\.export\(path, x\)"):
        net.export(tmp_path / "net.onnx")
    for _ in range(2):  # the first call tells the shapes
        net(mz.nd.ones((2, 5)))
    net.export(tmp_path / "net.onnx")
    assert (mz.load(tmp_path / "net.onnx")(np.ones((2, 5), np.float32)) == 5).all()
