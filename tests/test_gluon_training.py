"""Training with blocks: losses and recurrent layers against PyTorch, the Trainer, imported models, the loop on the
whole."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mezzo as mz
from mezzo import nd
from mezzo.gluon import Trainer, loss, nn, rnn
from mezzo.gluon.symbol_block import SymbolBlock
from mezzo.models.digits import digits_model, held_out
from mezzo.nd import autograd, random
from mezzo.nd.array import Array
from mezzo.ops.errors import InputError
from mezzo.runtime.optimizer import SGD, Adam

from .models import referee
from .peers import peer

RNG = np.random.default_rng(3)


def close(a: Any, b: Any, tolerance: float = 1e-5) -> None:
    a, b = np.asarray(a), np.asarray(b)
    assert a.shape == b.shape
    assert np.abs(a - b).max(initial=0) <= tolerance * max(np.abs(b).max(initial=0), 1e-12)


LOSSES: dict[str, tuple[loss.Loss, str, str]] = {
    "l2": (loss.L2Loss(), "F.mse_loss(p, t, reduction='none').mean(1) / 2", "same"),
    "l1": (loss.L1Loss(), "F.l1_loss(p, t, reduction='none').mean(1)", "same"),
    "huber": (loss.HuberLoss(), "F.huber_loss(p, t, reduction='none').mean(1)", "same"),
    "bce": (loss.SigmoidBCELoss(), "F.binary_cross_entropy_with_logits(p, t, reduction='none').mean(1)", "unit"),
    "ce": (loss.SoftmaxCELoss(), "F.cross_entropy(p, t, reduction='none')", "class"),
    "ce of distributions": (loss.SoftmaxCELoss(sparse_label=False), "F.cross_entropy(p, t, reduction='none')", "unit"),
    "kl": (loss.KLDivLoss(from_logits=False), "F.kl_div(p.log_softmax(1), t, reduction='none').mean(1)", "unit"),
    "weighed": (loss.L2Loss(weight=3.0), "3 * F.mse_loss(p, t, reduction='none').mean(1) / 2", "same"),
}


@pytest.mark.parametrize("name", LOSSES)
def test_losses_are_those_of_pytorch(name: str) -> None:
    referee()
    torch = peer("torch")
    block, expected, kind = LOSSES[name]
    p = RNG.standard_normal((4, 3)).astype(np.float32)
    unit = RNG.random((4, 3)).astype(np.float32)
    t = {"same": p[::-1].copy(), "unit": unit / unit.sum(1, keepdims=True), "class": np.array([0, 2, 1, 2])}[kind]
    theirs = torch.tensor(p, requires_grad=True)
    want = eval(expected, {"F": torch.nn.functional, "p": theirs, "t": torch.tensor(t)})  # noqa: S307
    want.sum().backward()
    for hybrid in (False, True):
        block.hybridize(hybrid)
        mine = nd.asarray(p)
        mine.attach_grad()
        with autograd.record():
            found = block(mine, nd.asarray(t))
        found.backward()
        assert mine.grad is not None
        close(found.asnumpy(), want.detach().numpy())
        close(mine.grad.asnumpy(), theirs.grad.numpy())


@pytest.mark.parametrize("kind", ["RNN", "LSTM", "GRU"])
def test_recurrent_layers_are_those_of_pytorch(kind: str) -> None:
    referee()
    torch = peer("torch")
    orders = {"LSTM": (0, 3, 1, 2), "GRU": (1, 0, 2), "RNN": (0,)}  # ours, by the number that PyTorch has
    x = RNG.standard_normal((5, 2, 4)).astype(np.float32)
    theirs = getattr(torch.nn, kind)(4, 3, num_layers=2, bidirectional=True)
    net = getattr(rnn, kind)(3, 2, bidirectional=True).initialize()
    net(nd.asarray(x))

    def gates(a: Any) -> Any:
        parts = np.split(a.detach().numpy(), len(orders[kind]))
        return np.concatenate([parts[i] for i in orders[kind]])

    for i in range(2):
        ends = ("", "_reverse")
        sides = [[gates(getattr(theirs, f"{n}_l{i}{e}")) for e in ends] for n in ("weight_ih", "weight_hh")]
        biases = [[gates(getattr(theirs, f"{n}_l{i}{e}")) for n in ("bias_ih", "bias_hh")] for e in ends]
        params = net.collect_params()
        params[f"l{i}_i2h_weight"].set_data(np.stack(sides[0]))
        params[f"l{i}_h2h_weight"].set_data(np.stack(sides[1]))
        params[f"l{i}_bias"].set_data(np.stack([np.concatenate(b) for b in biases]))
    want, last = theirs(torch.tensor(x))
    want.square().sum().backward()
    for hybrid in (False, True):
        net.hybridize(hybrid)
        y, ends_of_ours = net(nd.asarray(x), net.begin_state(2))
        close(y.asnumpy(), want.detach().numpy())
        for a, b in zip(ends_of_ours, last if kind == "LSTM" else [last], strict=True):
            close(a.asnumpy(), b.detach().numpy())
        with autograd.record():
            z = net(nd.asarray(x))
            total = (z * z).sum()
        total.backward()
        mine = net.collect_params()["l0_i2h_weight"].grad().asnumpy()[0]
        close(mine, gates(theirs.weight_ih_l0.grad), 1e-4)


def small() -> nn.HybridSequential:
    return nn.HybridSequential(nn.Dense(8, "tanh", in_units=4), nn.BatchNorm(in_channels=8), nn.Dense(3, in_units=8))


def data() -> tuple[Array, Array]:
    rng = np.random.default_rng(8)
    return nd.asarray(rng.standard_normal((16, 4))), nd.asarray(rng.integers(0, 3, 16))


def trained(net: Any, trainer: Trainer, steps: int = 5) -> list[float]:
    x, label = data()
    measure, losses = loss.SoftmaxCrossEntropyLoss(), []
    for _ in range(steps):
        with autograd.record():
            found = measure(net(x), label)
        found.backward()
        trainer.step(16)
        losses.append(float(found.asnumpy().mean()))
    return losses


@pytest.mark.parametrize("optimizer", [SGD(rate=0.5, momentum=0.9), Adam(rate=0.05, weight_decay=0.01)])
def test_eager_and_hybridized_training_are_one(optimizer: Any, tmp_path: Path) -> None:
    random.seed(2)
    start = small().initialize("xavier").cast("float64")
    start.save_parameters(tmp_path / "start.npz")
    ends, histories = [], []
    for hybrid in (False, True):
        net = small().initialize().cast("float64")
        net.load_parameters(tmp_path / "start.npz")
        net.hybridize(hybrid)
        histories.append(trained(net, Trainer(net.collect_params(), optimizer)))
        ends.append({n: p.data().asnumpy() for n, p in net.collect_params().items()})
    assert histories[0][-1] < histories[0][0]
    close(histories[1], histories[0], 1e-9)
    for n, a in ends[0].items():
        close(ends[1][n], a, 1e-9)


def test_the_trainer_keeps_its_states(tmp_path: Path) -> None:
    random.seed(2)
    one = small().initialize("xavier").cast("float64")
    one.save_parameters(tmp_path / "start.npz")
    whole = trained(one, Trainer(one.collect_params(), "adam", {"learning_rate": 0.05}), 6)
    net = small().initialize().cast("float64")
    net.load_parameters(tmp_path / "start.npz")
    first = Trainer(net.collect_params(), "adam", {"learning_rate": 0.05})
    before = trained(net, first, 3)
    first.save_states(tmp_path / "states.npz")
    second = Trainer(net.collect_params(), "adam", {"learning_rate": 0.05})
    second.load_states(tmp_path / "states.npz")
    assert [*before, *trained(net, second, 3)] == whole
    with pytest.raises(InputError, match="other states"):
        Trainer(net.collect_params(), "sgd", {"momentum": 0.9}).load_states(tmp_path / "states.npz")


def test_rates_of_single_parameters() -> None:
    net = nn.Dense(1, in_units=1).initialize("ones")
    net.weight.lr_mult = 0.0
    trainer = Trainer(net.collect_params(), "sgd", {"learning_rate": 1.0, "wd": 0.0})
    with autograd.record():
        y = net(nd.ones((1, 1)))
    y.backward()
    trainer.step()
    assert (net.weight.data().item(), net.bias.data().item() if net.bias else None) == (1, -1)
    with pytest.raises(InputError, match="no optimizer"):
        Trainer(net.collect_params(), "wrong")


@pytest.mark.parametrize("on_store", [False, True])
def test_a_store_in_between(on_store: bool) -> None:
    random.seed(4)
    found = []
    for kv in (None, "local"):
        random.seed(4)
        net = small().initialize("xavier").cast("float64")
        how = {} if kv is None else {"kvstore": kv, "update_on_kvstore": on_store}
        found.append(trained(net, Trainer(net.collect_params(), SGD(rate=0.1), **how)))
    close(found[1], found[0], 1e-9)


def test_an_imported_model_learns() -> None:
    net = SymbolBlock.imports(digits_model())
    images, labels = held_out().inputs[:64], held_out().labels[:64]
    session = mz.load(digits_model())
    close(net(nd.asarray(images)).asnumpy(), session(images), 1e-5)
    head = nn.HybridSequential(net, nn.Dense(10, in_units=10)).initialize("xavier").hybridize()
    trainer, measure = Trainer(head.collect_params(), Adam(rate=0.01)), loss.SoftmaxCrossEntropyLoss()
    losses = []
    for _ in range(8):
        with autograd.record():
            found = measure(head(nd.asarray(images)), nd.asarray(labels))
        found.backward()
        trainer.step(64)
        losses.append(float(found.asnumpy().mean()))
    assert losses[-1] < losses[0] / 2
    with pytest.raises(InputError, match="inputs for"):
        net()


def test_the_front_door() -> None:
    assert mz.gluon.nn is nn
    assert mz.gluon.Trainer is Trainer
    with pytest.raises(AttributeError):
        _ = mz.gluon.wrong
    names = "nn rnn loss initializer symbols Block HybridBlock GraphBroken SymbolBlock Parameter Trainer".split()
    code = f"import mezzo as mz\nfor name in {names}: assert getattr(mz.gluon, name)\nfrom mezzo.gluon import nn"
    subprocess.run([sys.executable, "-c", code], check=True)
