"""Initialisers: PyTorch's, or by their definitions; one's own by a decorator, everywhere."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import mezzo as mz
from mezzo import nd
from mezzo.gluon import initializer, nn, rnn
from mezzo.gluon.initializer import KINDS, Bilinear, Initializer, LSTMBias, TruncatedNormal, create, register
from mezzo.gluon.parameter import Parameter
from mezzo.nd import random
from mezzo.ops.errors import InputError

from .peers import peer


def made(init: Any, shape: tuple[int, ...], dtype: str = "float32") -> Any:
    p = Parameter("weight", shape=shape, dtype=dtype, init=init)
    p.initialize()
    return p.data().asnumpy()


def test_truncated_normal_is_that_of_the_distribution() -> None:
    """The quantiles of a normal distribution cut at two deviations: no number was moved to the ends."""
    random.seed(0)
    found = np.sort((made(TruncatedNormal(stdev=0.5, mean=1.0), (200, 500), "float64").reshape(-1) - 1) / 0.5)
    assert np.abs(found).max() <= 2
    assert len(np.unique(found)) > 0.99 * found.size
    inside = math.erf(2 / math.sqrt(2))
    for z in np.linspace(-1.9, 1.9, 20):
        want = (math.erf(z / math.sqrt(2)) / inside + 1) / 2
        assert abs(np.searchsorted(found, z) / found.size - want) < 0.006
    random.seed(0)
    np.testing.assert_allclose(np.sort(made("truncnorm", (200, 500), "float64").reshape(-1)) / 0.01, found, atol=1e-12)


def test_bilinear_weights_enlarge_as_interpolation_does() -> None:
    torch = peer("torch")
    x = np.random.default_rng(0).standard_normal((1, 2, 5, 6)).astype(np.float32)
    net = nn.Conv2DTranspose(2, 4, 2, 1, groups=2, use_bias=False, weight_initializer="bilinear", in_channels=2)
    found = net.initialize()(nd.asarray(x)).asnumpy()
    want = torch.nn.functional.interpolate(torch.tensor(x), scale_factor=2, mode="bilinear").numpy()
    np.testing.assert_allclose(found[:, :, 1:-1, 1:-1], want[:, :, 1:-1, 1:-1], rtol=1e-5, atol=1e-6)
    with pytest.raises(InputError, match="Bilinear of shape"):
        made(Bilinear(), (3, 4))


def test_forget_gates_begin_open() -> None:
    """Of a cell, and of a layer: with large biases the memory stays as it was."""
    cell = rnn.LSTMCell(3, i2h_bias_initializer=LSTMBias(forget_bias=50.0), input_size=2).initialize("zeros")
    c = nd.asarray(np.arange(3.0, dtype=np.float32)[None])
    _, (_, after) = cell(nd.ones((1, 2)), [nd.zeros((1, 3)), c])
    np.testing.assert_allclose(after.asnumpy(), c.asnumpy())
    layer = rnn.LSTM(3, input_size=2).initialize("zeros")
    bias = layer.collect_params()["l0_bias"]
    bias.set_data(made("lstmbias", bias.data().shape) * 50)
    _, (_, after) = layer(nd.ones((4, 1, 2)), [nd.zeros((1, 1, 3)), nd.expand_dims(c, axis=0)])
    np.testing.assert_allclose(after.asnumpy()[0], c.asnumpy())
    with pytest.raises(InputError, match="four gates"):
        made("lstmbias", (6,))


@pytest.fixture
def diagonal() -> Iterator[type[Initializer]]:
    @register
    class Diagonal(Initializer):
        """A number on the diagonal."""

        value: float = 2.0

        def draw(self, shape: tuple[int, ...], ctx: Any) -> Any:
            return np.eye(shape[0], shape[1]) * self.value

    yield Diagonal
    KINDS.pop("diagonal", None)


def test_ones_own_by_name_and_by_class(diagonal: Any) -> None:
    for init in ("diagonal", "Diagonal", diagonal()):
        net = nn.Dense(3, weight_initializer=init, use_bias=False, in_units=2).initialize("zeros").cast("float64")
        assert np.array_equal(net.weight.data().asnumpy(), [[2, 0], [0, 2], [0, 0]])
    assert np.array_equal(
        nn.Dense(2, use_bias=False, in_units=2).initialize("diagonal").weight.data().asnumpy(), np.eye(2) * 2
    )
    assert create("diagonal") == diagonal()
    assert mz.gluon.initializer.create("xavier") == initializer.Xavier()


def test_what_is_refused(diagonal: Any) -> None:
    with pytest.raises(InputError, match="a name of Mezzo"):
        register(type("Xavier", (Initializer,), {}))
    with pytest.raises(InputError, match="no Initializer"):
        register(int)  # type: ignore[type-var]
    with pytest.raises(InputError, match=r"no initialiser 'wrong'.*\n.*diagonal"):
        create("wrong")

    class Short(Initializer):
        def draw(self, shape: tuple[int, ...], ctx: Any) -> Any:
            return np.zeros(1)

    with pytest.raises(InputError, match=r"made numbers of shape \(1,\)"):
        made(Short(), (2, 2))
