"""Trainings that learned something else than they were given, or nothing, and said so nowhere."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import mezzo as mz
from mezzo.gluon import Trainer, loss, nn
from mezzo.ops.errors import OutOfRange
from mezzo.ops.types import f32
from mezzo.runtime.ir.graph import Graph, GraphBuilder

from .cases import numbers


def scores() -> Graph:
    g = GraphBuilder()
    return g.graph([g.MatMul(g.input("x", f32("n", 4)), g.const(numbers(4, 200)))])


def batch(labels: list[int]) -> dict[str, Any]:
    return {"x": numbers(len(labels), 4), "target": np.array(labels)}


@pytest.mark.parametrize("onednn", [True, False])
@pytest.mark.parametrize(
    "how", [{}, {"label_smoothing": 0.1}, {"class_weights": [1.0] * 200}, {"ignore_index": -1}], ids=str
)
def test_labels_that_are_no_class(how: dict[str, Any], onednn: bool) -> None:
    """-100, which PyTorch leaves out, was the hundredth class from the end."""
    trainer = mz.Trainer(scores(), loss=mz.loss.cross_entropy(**how), onednn=onednn)
    for wrong in (-100, 200):
        with pytest.raises(OutOfRange, match="ignore_index"):
            trainer.step(batch([3, wrong, 5]))
    trainer.step(batch([3, 199, 0]))
    if how.get("ignore_index") == -1:
        assert trainer.step(batch([3, -1, 5])) > 0


def test_labels_that_are_no_class_in_eager_code() -> None:
    x = mz.nd.asarray(numbers(3, 200))
    with pytest.raises(OutOfRange, match="from -1 to 5"):
        loss.SoftmaxCrossEntropyLoss()(x, mz.nd.asarray([3, -1, 5])).asnumpy()


def test_batches_that_are_gone_after_one_epoch() -> None:
    """Later epochs had no batch, and a loss of 0."""
    trainer = mz.Trainer(scores())

    def once() -> Iterator[dict[str, Any]]:
        yield batch([1, 2])

    with pytest.raises(mz.InputError, match="only once"):
        trainer.fit(once(), epochs=2)
    assert trainer.updates == 0
    assert [m.samples for m in trainer.fit(once())] == [2]
    assert [m.samples for m in trainer.fit(lambda epoch: once(), epochs=2)] == [2, 2]
    with pytest.raises(mz.InputError, match="without a batch"):
        trainer.fit([])
    gone = once()
    assert trainer.evaluate(gone).samples == 2
    with pytest.raises(mz.InputError, match="no batches"):
        trainer.evaluate(gone)


def test_batches_of_blocks_that_are_gone_after_one_epoch() -> None:
    net = nn.Dense(3).initialize()
    pairs = [(mz.nd.ones((2, 4)), mz.nd.asarray([0, 1]))]
    how = net, loss.SoftmaxCrossEntropyLoss(), Trainer(net.collect_params(), "sgd")
    with pytest.raises(mz.InputError, match="only once"):
        mz.gluon.fit(*how, iter(pairs), epochs=2)
    assert len(mz.gluon.fit(*how, pairs, epochs=2, validate=pairs)) == 2
    with pytest.raises(mz.InputError, match="no batches"):
        mz.gluon.fit(*how, pairs, validate=[])


def test_masked_elements_are_no_numbers() -> None:
    """Arrays had what lies under the mask."""
    masked = np.ma.array([1.0, 2.0], mask=[False, True])
    for use in (mz.nd.asarray, mz.nd.ones(2).__add__, lambda x: mz.nd.zeros(2).__setitem__(slice(None), x)):
        with pytest.raises(mz.InputError, match="masked"):
            use(masked)
    assert mz.nd.asarray(np.ma.array([1.0, 2.0])).tolist() == [1, 2]


@pytest.mark.parametrize("method", ["minmax", "percentile", "entropy"])
def test_quantising_what_is_always_zero(method: Any) -> None:
    """A Relu that nothing reaches: the range of least divergence was a ValueError of NumPy's."""
    g = GraphBuilder()
    y = g.MatMul(g.Relu(g.MatMul(g.input("x", f32("n", 4)), g.const(-np.ones((4, 8), np.float32)))), numbers(8, 3))
    x = np.ones((5, 4), np.float32)
    assert not mz.Session(mz.quantize(g.graph([y]), [x], method=method))(x).any()
