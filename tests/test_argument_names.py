"""Arguments of blocks, losses and optimizers under the names of other libraries are refused, with ours."""

from __future__ import annotations

import re
from inspect import signature
from types import FunctionType
from typing import Any

import pytest

from mezzo import metrics, nd, optimizer
from mezzo.gluon import Block, Trainer, loss, nn, rnn
from mezzo.gluon.names import OURS
from mezzo.gluon.names import TRAINER as GLUON
from mezzo.nd.names import OURS as ARRAYS
from mezzo.ops.errors import InputError
from mezzo.runtime.optimizer.names import ELSEWHERE, RENAMED
from mezzo.train.names import METRIC

CLASSES = [c for room in (nn, loss, rnn) for c in vars(room).values() if isinstance(c, type) and issubclass(c, Block)]
REFUSED: list[tuple[Any, tuple[Any, ...], dict[str, Any], str]] = [
    (nn.Dense, (2,), {"bias": False}, "use_bias= here"),
    (nn.Conv2D, (3, 3), {"stride": 2}, "strides= here"),
    (nn.MaxPool2D, (2,), {"stride": 2}, "strides= here"),
    (nn.Dense, (2,), {"use_bais": False}, "use_bias= here"),
    (rnn.LSTM, (4,), {"batch_first": True}, "NTC"),
    (nn.SyncBatchNorm, (), {"eps": 1e-3}, "epsilon= here"),
    (loss.L2Loss, (), {"reduction": "mean"}, "mean()"),
    (nn.Flatten, (), {"axis": 1}, "there are"),
    (Trainer, ({},), {"lr": 0.1}, 'optimizer_params={"learning_rate": ...}'),
    (Trainer, ({}, "sgd"), {"clip_gradient": 1.0}, "clip_value= here"),
    (metrics.Accuracy, (), {"topk": 5}, "TopK(k)"),
    (metrics.F1, (), {"num_classes": 5}, "classes= here"),
    (metrics.Accuracy, (), {"treshold": 5}, "threshold= here"),
    (nd.sum, (nd.ones(2),), {"dim": 0}, "axis= here"),
    (nd.ones(2).sum, (), {"dim": 0}, "axis= here"),
    (nd.sum, (nd.ones(2), 0), {}, "give axis="),
    (nd.ones(2).softmax, (), {"dim": 0}, "axis= here"),
    (nd.ones(2).max, (), {"keepdim": True}, "keepdims= here"),
    (nd.softmax, (nd.ones(2),), {"dim": 0}, "axis= here"),
    (nd.std, (nd.ones(2),), {"ddof": 1}, "correction= here"),
    (nd.linalg.qr, (nd.ones((2, 2)),), {"some": True}, "there are mode"),
    (nd.fft.fft, (nd.ones(2),), {"dim": 0}, "axis= here"),
    (nd.random.normal, (), {"std": 2.0}, "scale= here"),
    (nd.sum, (), {"x": nd.ones(2)}, "without its name"),
    (optimizer.SGD, (0.1,), {}, "SGD(rate=0.1)"),
    (optimizer.Adam, (), {"lr": 0.1}, "rate= here"),
    (optimizer.Adam, (), {"betas": (0.9, 0.99)}, "beta1="),
    (optimizer.SGD, (), {"schedule_decay": 0.1}, "there are rate"),
]


@pytest.mark.parametrize(("kind", "given", "named", "hint"), REFUSED)
def test_a_name_of_another_library_is_answered_with_ours(
    kind: Any, given: tuple[Any, ...], named: dict[str, Any], hint: str
) -> None:
    with pytest.raises(InputError) as caught:
        kind(*given, **named)
    assert hint in caught.value.hint


def test_what_is_answered_is_there() -> None:
    arguments = {name for cls in CLASSES for name in signature(cls).parameters}
    answers = {name for text in OURS.values() for name in re.findall(r"(\w+)=", text)}
    assert answers <= arguments
    assert not {name for name in OURS if f"{name}=" in OURS.values()}, "a name that is ours"
    settings = {name for kind in optimizer.KINDS.values() for name in signature(kind).parameters}
    assert {*RENAMED.values()} <= settings
    assert not settings & {*RENAMED, *ELSEWHERE}
    of_arrays = {n for f in vars(nd).values() if isinstance(f, FunctionType) for n in signature(f).parameters}
    of_arrays |= {n for f in vars(nd.random).values() if isinstance(f, FunctionType) for n in signature(f).parameters}
    assert {n for text in ARRAYS.values() for n in re.findall(r"^(\w+)=", text)} <= of_arrays
    assert {n for text in GLUON.values() for n in re.findall(r"^(\w+)=", text)} <= {*signature(Trainer).parameters}
    measures = {
        n
        for kind in vars(metrics).values()
        if isinstance(kind, type) and "__init__" in vars(kind)
        for n in signature(vars(kind)["__init__"]).parameters
    }
    assert {n for text in METRIC.values() for n in re.findall(r"^(\w+)=$", text)} <= measures


def test_functions_of_arrays_stay_what_they_are() -> None:
    assert (nd.softmax.__module__, nd.softmax.__name__) == ("mezzo.nd", "softmax")
    assert [*signature(nd.sum).parameters] == ["x", "axis", "dtype", "keepdims"]
    with pytest.raises(TypeError, match="missing"):
        nd.sum()  # type: ignore[call-arg]


def test_blocks_of_users_take_what_they_want() -> None:
    class Mine(nn.Dense):
        def __init__(self, **options: Any) -> None:
            super().__init__(2, use_bias=not options["bias"])

    assert Mine(bias=True).bias is None
