"""Settings that a caller gets wrong easily, and that were taken for something else."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import mezzo as mz
from mezzo.ops.types import f32
from mezzo.runtime.ir.graph import Graph, GraphBuilder

from .cases import numbers


def two_layers() -> Graph:
    g = GraphBuilder()
    y = g.MatMul(g.Relu(g.MatMul(g.input("x", f32("n", 4)), g.const(numbers(4, 8)))), g.const(numbers(8, 3)))
    return g.graph([y])


def test_threads_as_text() -> None:
    """Text from the environment became an address, taken for a number of threads: oneDNN did not end."""
    code = (
        "import mezzo as mz, numpy as np\n"
        "from mezzo.models.digits import digits_model\n"
        "for threads in ('2', 1.5, -1, None, 0, np.int64(1)):\n"
        "    try:\n"
        "        mz.load(digits_model(), threads=threads)(np.zeros((1, 1, 8, 8), np.float32))\n"
        "        print('ran')\n"
        "    except mz.InputError as error:\n"
        "        print('refused' if 'a whole number' in str(error) else error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["refused"] * 3 + ["ran"] * 3


@pytest.mark.parametrize("given", [{"instances": 0}, {"max_programs": -1}, {"max_memory": "1GiB"}, {"max_memory": 1e9}])
def test_counts(given: dict[str, Any]) -> None:
    with pytest.raises(mz.InputError, match="a whole number"):
        mz.Session(two_layers(), **given)


def test_one_pattern_is_not_its_letters() -> None:
    """`*` is among the letters of most patterns, and stands for all names."""
    group = mz.optimizer.Group("*bias*", weight_decay=0.0)
    adamw = mz.optimizer.AdamW(weight_decay=0.1, groups=(group,))
    assert (adamw.decay("layer.weight"), adamw.decay("layer.bias")) == (0.1, 0.0)
    first, second = mz.Trainer(two_layers()).trained
    assert mz.Trainer(two_layers(), train=f"*{first[-2:]}").trained == [first]
    assert mz.Trainer(two_layers(), freeze=f"*{first[-2:]}").trained == [second]
    whole, x = two_layers(), numbers(5, 4)
    quantized = mz.quantize(whole, [x], skip="MatMul")
    assert "QuantizeLinear" not in {n.op for n in quantized.nodes}  # was passed over in silence, as a wrong name was
    with pytest.raises(mz.InputError, match="Matmul"):
        mz.quantize(whole, [x], skip=["Matmul"])


@pytest.mark.parametrize(
    "wrong",
    [
        {"rate": -0.1},
        {"rate": np.nan},
        {"rate": "0.1"},
        {"momentum": -0.9},
        {"weight_decay": -1.0},
        {"weight_decay": np.inf},
    ],
    ids=str,
)
def test_optimizers(wrong: dict[str, Any]) -> None:
    with pytest.raises(mz.InputError, match=next(iter(wrong))):
        mz.optimizer.SGD(**wrong)
    with pytest.raises(mz.InputError, match="beta2"):
        mz.optimizer.Adam(beta2=1.0)
    assert mz.optimizer.SGD(rate=np.float32(0.5)).rate == 0.5


@pytest.mark.parametrize(
    "wrong", [{"clip_norm": -1.0}, {"clip_norm": np.nan}, {"clip_value": 0.0}, {"gather": 0}, {"gather": 1.5}], ids=str
)
def test_steps(wrong: dict[str, Any]) -> None:
    """A norm below zero turned the gradients around."""
    with pytest.raises(mz.InputError, match=next(iter(wrong))):
        mz.Trainer(two_layers(), **wrong)


def test_sizes_are_whole() -> None:
    x = mz.nd.ones(6)
    with pytest.raises(mz.ShapeError, match="is no shape"):
        mz.nd.zeros((2.7, 3))
    with pytest.raises(mz.ShapeError, match="is no shape"):
        x.reshape((2.9, 3))
    with pytest.raises(mz.ShapeError, match="is no shape"):
        x.reshape(6 / 2, 2)
