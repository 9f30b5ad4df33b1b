"""Blocks: eager, hybridized and exported are one; what a trace has read is watched; breaks are told."""

from __future__ import annotations

import types
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mezzo import nd
from mezzo.gluon import nn
from mezzo.gluon.block import Block
from mezzo.gluon.hybrid import GraphBroken, HybridBlock
from mezzo.gluon.parameter import Parameter
from mezzo.nd import autograd, random
from mezzo.nd.array import Array
from mezzo.ops.errors import InputError
from mezzo.runtime.execution.session import Session
from mezzo.tools.load import load

from .models import ort_run, referee

RNG = np.random.default_rng(0)
FACTOR = 2.0
SETTINGS = types.SimpleNamespace(depth=1)


def numbers(*shape: int, dtype: Any = np.float32) -> Array:
    return nd.asarray(RNG.standard_normal(shape).astype(dtype))


class Residual(HybridBlock):
    """Two convolutions and a way around them."""

    def __init__(self, channels: int, strides: int = 1) -> None:
        super().__init__()
        self.body = nn.HybridSequential(
            nn.Conv2D(channels, 3, strides, 1, use_bias=False), nn.BatchNorm(), nn.Activation("relu"),
            nn.Conv2D(channels, 3, 1, 1, use_bias=False), nn.BatchNorm(),
        )  # fmt: skip
        self.around = nn.Conv2D(channels, 1, strides, use_bias=False) if strides > 1 else nn.Identity()

    def forward(self, x: Array) -> Array:
        return nd.maximum(self.body(x) + self.around(x), nd.zeros((), dtype=x.dtype))


class Transformer(HybridBlock):
    """One block of an encoder."""

    def __init__(self, units: int, heads: int) -> None:
        super().__init__()
        self.attention, self.one, self.two = nn.MultiHeadAttention(units, heads), nn.LayerNorm(), nn.LayerNorm()
        self.wide, self.back, self.two = (
            nn.Dense(2 * units, flatten=False),
            nn.Dense(units, flatten=False),
            nn.LayerNorm(),
        )
        self.bend = nn.GELU()

    def forward(self, x: Array) -> Array:
        x = self.one(x + self.attention(x))
        made: Array = self.two(x + self.back(self.bend(self.wide(x))))
        return made


def lenet() -> HybridBlock:
    return nn.HybridSequential(
        nn.Conv2D(4, 5, activation="tanh"), nn.MaxPool2D(), nn.Conv2D(6, 3, activation="tanh"), nn.MaxPool2D(),
        nn.Dense(10, "relu"), nn.Dense(5),
    )  # fmt: skip


def resnet() -> HybridBlock:
    return nn.HybridSequential(
        nn.Conv2D(4, 3, 1, 1), nn.BatchNorm(), Residual(4), Residual(8, 2), nn.GlobalAvgPool2D(), nn.Dense(3)
    )


NETS: dict[str, tuple[Callable[[], HybridBlock], tuple[int, ...]]] = {
    "lenet": (lenet, (3, 1, 20, 20)),
    "resnet": (resnet, (3, 3, 12, 12)),
    "transformer": (lambda: Transformer(8, 2), (2, 5, 8)),
}


def gradients(net: Block, x: Array) -> tuple[Any, dict[str, Any]]:
    """The output in training, and the gradients of a sum of squares."""
    with autograd.record():
        y = net(x)
        loss = (y * y).sum()
    loss.backward()
    params = net.collect_params()
    return y.asnumpy(), {n: p.grad().asnumpy() for n, p in params.items() if p.grad_req != "null"}


def close(a: Any, b: Any, tolerance: float) -> None:
    a, b = np.asarray(a), np.asarray(b)
    assert a.shape == b.shape
    # the floor is for gradients that are zero but for rounding: that of the keys' bias is
    assert np.abs(a - b).max(initial=0) <= tolerance * max(np.abs(b).max(initial=0), 1e-9)


@pytest.mark.parametrize("name", NETS)
def test_eager_and_hybridized_are_one(name: str) -> None:
    make, shape = NETS[name]
    random.seed(1)
    net = make().initialize("xavier")
    x = numbers(*shape, dtype=np.float64)
    net.cast("float64")
    net(x)  # shapes
    y, eager = gradients(net, x)
    statistics = {n: p.data().asnumpy() for n, p in net.collect_params().items() if p.grad_req == "null"}
    for n, p in net.collect_params().items():
        if n.endswith(("running_mean", "running_var")):
            p.set_data(np.zeros(p.data().shape) if "mean" in n else np.ones(p.data().shape))
    plain = net(x).asnumpy()
    net.hybridize()
    for _ in range(2):
        for n, p in net.collect_params().items():
            if n.endswith(("running_mean", "running_var")):
                p.set_data(np.zeros(p.data().shape) if "mean" in n else np.ones(p.data().shape))
        z, hybrid = gradients(net, x)
        close(z, y, 1e-9)
        for n, g in eager.items():
            close(hybrid[n], g, 1e-9)
    for n, value in statistics.items():
        close(net.collect_params()[n].data().asnumpy(), value, 1e-9)
        net.collect_params()[n].set_data(np.zeros(value.shape) if "mean" in n else np.ones(value.shape))
    close(net(x).asnumpy(), plain, 1e-9)
    assert net.report() == "everything is traced"


@pytest.mark.parametrize("name", NETS)
def test_exported_is_the_same(name: str, tmp_path: Path) -> None:
    referee()
    make, shape = NETS[name]
    net, x = make().initialize("xavier"), numbers(*shape)
    y = net(x).asnumpy()
    net.export(tmp_path / "net.onnx", x)
    net.export(tmp_path / "net.mezzo", x)
    (found,) = ort_run(tmp_path / "net.onnx", {"x0": x.asnumpy()}).values()
    close(found, y, 1e-5)
    close(load(tmp_path / "net.mezzo")(x.asnumpy()), y, 1e-5)
    net.hybridize()
    close(net(x).asnumpy(), y, 1e-5)


# -- what a trace has read --------------------------------------------------------------------------------------------


class Reads(HybridBlock):
    """Reads all sorts of things."""

    def __init__(self, extra: Callable[[], float]) -> None:
        super().__init__()
        self.scale, self.table, self.flags, self.array = 1.0, [1.0, 2.0], {"on": True}, np.ones(3, np.float32)
        self._extra = extra

    def forward(self, x: Array) -> Array:
        x = x * self.scale * FACTOR + len(self.table)
        for _ in range(SETTINGS.depth):
            x = x + self._extra()
        return x * 2 if self.flags["on"] else x + nd.asarray(self.array)


def changes(net: Reads, monkeypatch: pytest.MonkeyPatch, box: list[float]) -> dict[str, Callable[[], object]]:
    here = __import__(__name__, fromlist=["FACTOR"])
    return {
        "an attribute": lambda: setattr(net, "scale", 3.0),
        "a global": lambda: monkeypatch.setattr(here, "FACTOR", 5.0),
        "an object's attribute": lambda: monkeypatch.setattr(SETTINGS, "depth", 3),
        "the length of a list": lambda: net.table.append(1.0),
        "a dict": lambda: net.flags.update(on=False),
        "a closure": lambda: box.__setitem__(0, 7.0),
    }


@pytest.mark.parametrize(
    "what", ["an attribute", "a global", "an object's attribute", "the length of a list", "a dict", "a closure"]
)
def test_nothing_is_silently_stale(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    box = [1.0]
    net, x = Reads(lambda: box[0]), numbers(3)
    net.hybridize()
    first = net(x).asnumpy()
    assert np.array_equal(net(x).asnumpy(), first)
    changes(net, monkeypatch, box)[what]()
    expected = net.forward(x).asnumpy()
    assert not np.array_equal(expected, first)
    assert np.array_equal(net(x).asnumpy(), expected)


def test_another_dtype_or_shape_is_another_trace() -> None:
    net = Reads(lambda: 1.0).hybridize()
    for x in (numbers(3), numbers(4), numbers(3, dtype=np.float64)):
        assert np.array_equal(net(x).asnumpy(), net.forward(x).asnumpy())


def test_other_weights_count_at_once() -> None:
    net = nn.Dense(2, in_units=3).initialize().hybridize()
    x = numbers(1, 3)
    net(x)
    net.weight.set_data(np.ones((2, 3), np.float32))
    close(net(x).asnumpy(), np.full((1, 2), x.asnumpy().sum()), 1e-6)
    weight = net.weight.data()
    weight *= 2
    close(net(x).asnumpy(), np.full((1, 2), 2 * x.asnumpy().sum()), 1e-6)
    net.initialize("zeros", force_reinit=True)  # other arrays
    assert not net(x).asnumpy().any()
    net.cast("float64")
    net.weight.set_data(np.ones((2, 3)))
    assert net(x.astype("float64")).dtype == np.float64
    net.cast("float32")
    close(net(x).asnumpy(), np.full((1, 2), x.asnumpy().sum()), 1e-6)


def test_a_block_that_is_replaced() -> None:
    net = nn.HybridSequential(nn.Dense(2, in_units=2), nn.Activation("relu")).initialize().hybridize()
    x = numbers(2, 2)
    net(x)
    net._children["1"] = nn.Activation("tanh")
    close(net(x).asnumpy(), np.tanh(net[0](x).asnumpy()), 1e-5)


# -- breaks -----------------------------------------------------------------------------------------------------------


class Branches(HybridBlock):
    """A branch on numbers, over a block that can be traced."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Dense(3, in_units=3)

    def forward(self, x: Array) -> Array:
        y: Array = self.dense(x)
        if y.sum().item() > 0:
            return y
        return -y


def test_a_break_is_told_and_runs_imperatively() -> None:
    net = Branches().initialize().hybridize()
    x = numbers(2, 3)
    with pytest.warns(
        GraphBroken, match=r"Branches runs imperatively: the numbers .*test_gluon.py:\d+ in forward.*where"
    ):
        y = net(x).asnumpy()
    assert y.sum() >= 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # once is enough
        assert (-net(-x).asnumpy() - y).max() < 10
    (found,) = net.breaks
    assert found.calls == 2
    assert "Branches" in net.report()
    assert "%" in net.report()
    assert net.dense._traces  # what is below is traced by itself
    with pytest.raises(InputError, match=r"test_gluon.py:\d+"):
        net.hybridize(fullgraph=True)(x)


def test_a_region_that_is_kept_imperative() -> None:
    net = nn.HybridSequential(nn.Dense(3, in_units=3), Branches().keep_imperative("it branches")).initialize()
    net.hybridize()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GraphBroken)
        assert net(numbers(2, 3)).shape == (2, 3)
    assert "it branches" in net.breaks[0].reason


class Counts(HybridBlock):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Array) -> Array:
        self.calls += 1
        return x * 2


def test_effects_on_python_are_no_part_of_a_graph() -> None:
    net = Counts().hybridize()
    with pytest.warns(GraphBroken, match="changes an attribute"):
        net(numbers(2))
    for _ in range(3):
        net(numbers(2))
    assert net.calls >= 4


# -- parameters -------------------------------------------------------------------------------------------------------


def test_parameters_and_files(tmp_path: Path) -> None:
    net, other = (lenet().initialize() for _ in range(2))
    x = numbers(1, 1, 20, 20)
    y = net(x).asnumpy()
    with pytest.raises(InputError, match="not known yet"):
        other.collect_params()["0.weight"].data()
    for ending in ("safetensors", "npz"):
        net.save_parameters(tmp_path / f"w.{ending}")
        other.load_parameters(tmp_path / f"w.{ending}")
        assert np.array_equal(other(x).asnumpy(), y)
    wrong = nn.HybridSequential(nn.Dense(2, in_units=2), nn.Dense(2, in_units=2)).initialize()
    with pytest.raises(InputError, match=r"the file lacks '1.weight'.*the block has no '2.weight'"):
        wrong.load_parameters(tmp_path / "w.npz")
    with pytest.raises(InputError, match="has no numbers"):
        nn.Dense(2, in_units=2).weight.data()
    with pytest.raises(InputError, match="the input asks for"):
        net.collect_params()["0.weight"].finish((4, 2, 5, 5))


def test_initialisers_are_told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "mezzo.gluon")
    random.seed(5)
    first = nn.Dense(64, in_units=64).initialize("xavier").weight.data().asnumpy()
    assert "weight float32 (64, 64): Xavier" in caplog.text
    random.seed(5)
    assert np.array_equal(nn.Dense(64, in_units=64).initialize("xavier").weight.data().asnumpy(), first)
    assert abs(first.std() - np.sqrt(3 / 64 / 3)) < 0.01
    q = nn.Dense(8, in_units=16).initialize("orthogonal").weight.data().asnumpy()
    close(q @ q.T, np.eye(8) * 2, 1e-2)
    with pytest.raises(InputError, match="no initialiser"):
        nn.Dense(2).initialize("wrong")


def test_blocks_know_their_own() -> None:
    net = Transformer(8, 2)
    names = list(net.collect_params())
    assert "attention.query.weight" in names
    assert list(net.collect_params(r".*two\..*")) == ["two.gamma", "two.beta"]
    net.initialize()
    assert "in all" in net.summary(numbers(1, 3, 8))
    assert "(attention): MultiHeadAttention" in repr(net)

    class Late(Block):
        def __init__(self) -> None:
            self.weight = Parameter()

    with pytest.raises(InputError, match=r"super\(\).__init__"):
        Late()


def test_dropout() -> None:
    net, x = nn.HybridSequential(nn.Dropout(0.5)), nd.ones(1000)
    x.attach_grad()
    for hybrid in (False, True):
        net.hybridize(hybrid)
        assert net(x).asnumpy().tolist() == [1] * 1000
        seen = []
        for _ in range(2):
            with autograd.record():
                y = net(x)
            y.backward()
            assert x.grad is not None
            seen.append(y.asnumpy())
            assert 350 < (seen[-1] == 0).sum() < 650
            assert np.array_equal(x.grad.asnumpy(), seen[-1])
        assert not np.array_equal(*seen)


def test_second_derivatives_through_a_hybridized_block() -> None:
    net = nn.HybridSequential(nn.Dense(4, "tanh", in_units=3), nn.Dense(1, in_units=4)).initialize("xavier")
    x = numbers(2, 3)
    x.attach_grad()
    found = []
    for hybrid in (False, True):
        net.hybridize(hybrid)
        with autograd.record():
            y = net(x).sum()
            slope = autograd.grad(y, x, create_graph=True)
            (slope * slope).sum().backward()
        assert x.grad is not None
        found.append(x.grad.asnumpy())
    close(found[1], found[0], 1e-5)


def test_a_session_of_what_was_exported(tmp_path: Path) -> None:
    net = nn.Dense(2, in_units=3).initialize()
    net.export(tmp_path / "d.mezzo", numbers(1, 3))
    assert isinstance(load(tmp_path / "d.mezzo"), Session)
