"""Arrays and blocks that could not be copied, draws beyond a distribution's domain, and states under MXNet's names."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mezzo as mz
from mezzo import gluon
from mezzo.ops.errors import InputError


def test_a_copy_is_an_array_of_its_own_with_a_gradient_of_its_own() -> None:
    x = mz.nd.asarray([1.0, 2.0])
    x.attach_grad("add")
    for copied in (copy.copy(x), copy.deepcopy(x)):
        copied[0] = 5
        assert copied.tolist() == [5, 2]
        assert x.tolist() == [1, 2]
    other = copy.deepcopy(x)
    for _ in range(2):
        with mz.autograd.record():
            y = (other * 3).sum()
        y.backward()
    assert other.grad.tolist() == [6, 6]
    assert x.grad.tolist() == [0, 0]


def test_a_copy_of_a_result_hands_its_gradient_on() -> None:
    x = mz.nd.asarray([1.0, 2.0])
    x.attach_grad()
    with mz.autograd.record():
        y = copy.deepcopy(x * 2).sum()
    y.backward()
    assert x.grad.tolist() == [2, 2]


def test_what_a_pickle_of_an_array_would_hold_is_numpys() -> None:
    make, parts = mz.nd.asarray([[1, 2]], dtype="int16").__reduce__()
    assert [type(p) for p in parts] == [np.ndarray]
    again = make(*parts)
    assert (again.dtype, again.tolist()) == (np.int16, [[1, 2]])


@pytest.mark.parametrize("hybrid", [False, True])
def test_a_copied_block_learns_alone(hybrid: bool) -> None:
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(3, activation="tanh"), gluon.nn.BatchNorm(), gluon.nn.Dense(2))
    net.initialize()
    if hybrid:
        net.hybridize()
    x = mz.nd.asarray([[1.0, 2], [3, 5]])
    before = [net(x).asnumpy() for _ in range(2)][1]  # the first call is traced: its operators run one by one
    twin = copy.deepcopy(net)
    np.testing.assert_array_equal(twin(x).asnumpy(), before)
    trainer = gluon.Trainer(twin.collect_params(), "sgd", {"learning_rate": 0.5})
    with mz.autograd.record():
        loss = ((twin(x) - 1) ** 2).sum()
    loss.backward()
    trainer.step(1)
    np.testing.assert_array_equal(net(x).asnumpy(), before)
    assert np.abs(twin(x).asnumpy() - before).max() > 0.01


@pytest.mark.parametrize(
    "draw",
    [
        lambda r: r.normal((2,), scale=-1),
        lambda r: r.normal((2,), loc=np.nan),
        lambda r: r.normal((2,), scale=np.inf),
        lambda r: r.uniform(1, 0, (2,)),
        lambda r: r.uniform(0, np.inf, (2,)),
        lambda r: r.bernoulli(1.5, (2,)),
        lambda r: r.bernoulli(-0.5, (2,)),
        lambda r: r.bernoulli(np.nan, (2,)),
        lambda r: r.permutation(-1),
    ],
)
def test_draws_beyond_the_domain(draw: Callable[[Any], Any]) -> None:
    with pytest.raises(InputError, match=r"mezzo\.random"):
        draw(mz.random)


def test_the_ends_of_the_domain() -> None:
    assert mz.random.normal((2,), 3, 0).tolist() == [3, 3]
    assert mz.random.uniform(2, 2, (2,)).tolist() == [2, 2]
    assert mz.random.bernoulli(1, (3,)).tolist() == [True] * 3
    assert mz.random.permutation(0).shape == (0,)


@pytest.mark.parametrize("name", ["x.states", "trainer", "x.bin", "x.npz", "x.safetensors"])
def test_states_under_any_name(name: str, tmp_path: Path) -> None:
    def begun() -> gluon.Trainer:
        weight = gluon.Parameter("w", shape=(2,))
        weight.initialize("ones")
        return gluon.Trainer({"w": weight}, "sgd", {"learning_rate": 0.5, "momentum": 0.5})

    def stepped(trainer: gluon.Trainer) -> list[float]:
        trainer.params["w"].set_grad(mz.nd.ones((2,)))
        trainer.step(1)
        values: list[float] = trainer.params["w"].data().tolist()
        return values

    first, second = begun(), begun()
    stepped(first)
    first.save_states(tmp_path / name)
    second.load_states(tmp_path / name)
    second.params["w"].set_data(first.params["w"].data())
    assert second.updates == 1
    assert stepped(second) == stepped(first) == [-0.25, -0.25]
