"""Operators that a GPU computes in parts, as whole programs on the stand-in for CuPy: equal to their references."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import mezzo as mz
from mezzo.ops import OPS, DType
from mezzo.runtime.backends.cuda.host import host_fallbacks
from mezzo.runtime.ir.interpreter import evaluate

from .cupy_standin import Standin
from .graphs import sample_graph

OPERATORS = """
    RNN GRU LSTM mezzo::RNNTrain mezzo::GRUTrain mezzo::LSTMTrain mezzo::RNNGrad mezzo::GRUGrad mezzo::LSTMGrad
    com.microsoft::Attention com.microsoft::MultiHeadAttention com.microsoft::EmbedLayerNormalization mezzo::Cofactors
"""


# operators, and the number of the sample of each that is run with every change
SAMPLES = {"RNN": 4, "GRU": 4, "LSTM": 4, "mezzo::GRUGrad": 4, "mezzo::LSTMTrain": 5,
           "com.microsoft::Attention": 7, "com.microsoft::MultiHeadAttention": 2, "mezzo::Cofactors": 4}  # fmt: skip


def cases() -> list[Any]:
    made = []
    for name in OPERATORS.split():
        domain, _, op = name.rpartition("::")
        for i in range(len(OPS[domain, op].samples)):
            now = SAMPLES.get(name) == i
            made.append(pytest.param(name, i, id=f"{name}-{i}", marks=() if now else pytest.mark.soak))
    return made


@pytest.mark.parametrize(("name", "number"), cases())
def test_samples_as_programs(name: str, number: int, standin: Standin) -> None:
    """A sample is launched step by step, then captured and replayed; nothing of it runs on the host."""
    domain, _, op = name.rpartition("::")
    graph, feeds = sample_graph(OPS[domain, op], OPS[domain, op].samples[number])
    want = evaluate(graph, dict(feeds))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        session = mz.Session(graph, device="gpu:0", instances=1)
        got = [session.run(dict(feeds)) for _ in range(3)][-1]
    assert not host_fallbacks(session.program)
    for made, y in want.items():
        z = np.asarray(got[made])
        assert (z.shape, z.dtype) == (y.shape, y.dtype), made
        if not DType.of(y.dtype).floating:
            np.testing.assert_array_equal(z, y, made)
        else:
            assert np.abs(z - y).max(initial=0) <= 1e-5 * np.abs(y).max(initial=0), made
