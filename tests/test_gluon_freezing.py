"""Parameters that cease to learn in the middle of a training, and learn again; weights of rates that change; several
trainers on one store."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mezzo as mz
from mezzo import nd
from mezzo.gluon import Trainer, nn
from mezzo.gluon.hybrid import HybridBlock
from mezzo.nd import autograd
from mezzo.ops.errors import InputError

from .models import referee
from .peers import peer

X = np.random.default_rng(5).standard_normal((12, 6, 4)).astype(np.float32)


def network(seed: int = 3) -> nn.HybridSequential:
    mz.random.seed(seed)
    net = nn.HybridSequential(nn.Dense(5, "tanh", in_units=4), nn.Dense(2, in_units=5))
    net.initialize("xavier")
    return net


def stepped(net: Any, trainer: Trainer, x: np.ndarray) -> None:
    with autograd.record():
        loss = (net(nd.asarray(x)) ** 2).sum()
    loss.backward()
    trainer.step(len(x))


def numbers(net: Any) -> dict[str, np.ndarray]:
    return {n: p.data().asnumpy().copy() for n, p in net.collect_params().items()}


OPTIMIZERS: dict[str, tuple[dict[str, Any], str]] = {
    "sgd": ({"learning_rate": 0.05, "momentum": 0.9}, "SGD(params, 0.05, momentum=0.9)"),
    "adam": ({"learning_rate": 0.01}, "Adam(params, 0.01)"),
    "adamw": ({"learning_rate": 0.01, "weight_decay": 0.1}, "AdamW(params, 0.01, weight_decay=0.1)"),
}


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("hybrid", [False, True])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_frozen_parameter_stays_and_goes_on_as_in_pytorch(
    name: str, hybrid: bool, first: bool, tmp_path: Path
) -> None:
    referee()
    torch = peer("torch")
    net = network().hybridize(hybrid)
    theirs = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2))
    for p, (_, own) in zip(theirs.parameters(), net.collect_params().items(), strict=True):
        p.data = torch.from_numpy(own.data().asnumpy().copy())
    settings, text = OPTIMIZERS[name]
    if first:
        net[0].weight.grad_req = "null"
        theirs[0].weight.requires_grad_(False)
    trainer = Trainer(net.collect_params(), name, settings)
    optimizer = eval(f"torch.optim.{text}", {"torch": torch, "params": theirs.parameters()})  # noqa: S307
    for i, x in enumerate(X):
        if i in (3, 7):
            net[0].weight.grad_req = ("null", "write")[i == 7]
            net[1].bias.grad_req = ("write", "null")[i == 7]
            theirs[0].weight.requires_grad_(i == 7)
            theirs[2].bias.requires_grad_(i != 7)
        if i in (5, 9):  # saved and taken up by another trainer, while something does not learn
            trainer.save_states(tmp_path / "states")
            trainer = Trainer(net.collect_params(), name, settings)
            trainer.load_states(tmp_path / "states")
        optimizer.zero_grad()
        (theirs(torch.from_numpy(x)) ** 2).sum().div(len(x)).backward()
        optimizer.step()
        stepped(net, trainer, x)
        for ours, w in zip(numbers(net).values(), theirs.parameters(), strict=True):
            assert np.abs(ours - w.detach().numpy()).max() <= 1e-5, i


def test_nothing_that_learns_is_no_error() -> None:
    net = network()
    trainer = Trainer(net.collect_params(), "adam")
    before = numbers(net)
    for p in net.collect_params().values():
        p.grad_req = "null"
    trainer.step(4)
    assert all((a == before[n]).all() for n, a in numbers(net).items())


@pytest.mark.parametrize("how", [{}, {"kvstore": "local"}, {"kvstore": "local", "update_on_kvstore": True}])
def test_freezing_over_a_store(how: dict[str, Any]) -> None:
    def trained(**how: Any) -> dict[str, np.ndarray]:
        net = network()
        net[1].weight.grad_req = "null"
        trainer = Trainer(net.collect_params(), "adam", {"learning_rate": 0.01}, **how)
        for i, x in enumerate(X):
            if i == 4:
                net[0].weight.grad_req, net[1].weight.grad_req = "null", "write"
            if i == 8:
                net[0].weight.grad_req = "write"
            stepped(net, trainer, x)
        return numbers(net)

    want = trained()
    assert all(np.abs(a - want[n]).max() <= 1e-6 for n, a in trained(**how).items())


def test_weights_of_rates_are_those_of_the_update() -> None:
    net = network()
    trainer = Trainer(net.collect_params(), mz.optimizer.SGD(rate=0.1, groups=mz.optimizer.Group("0.*", scale=0.5)))
    net[0].weight.lr_mult = 0.0
    before = numbers(net)
    stepped(net, trainer, X[0])
    now = numbers(net)
    assert (now["0.weight"] == before["0.weight"]).all()
    moved = now["1.weight"] - before["1.weight"]
    net[0].weight.lr_mult, net[1].weight.wd_mult = 1.0, 2.0
    stepped(net, trainer, X[0])
    assert (numbers(net)["0.weight"] != before["0.weight"]).any()
    assert np.abs(moved).max() > 0


def test_a_weight_of_a_rate_multiplies_that_of_its_group() -> None:
    moved = []
    for scale, mult in ((0.5, 0.5), (0.25, 1.0)):
        net = network()
        before = numbers(net)
        net[0].weight.lr_mult = mult
        trainer = Trainer(net.collect_params(), mz.optimizer.SGD(rate=1.0, groups=mz.optimizer.Group("0.*", scale)))
        stepped(net, trainer, X[0])
        moved.append(numbers(net)["0.weight"] - before["0.weight"])
    assert np.abs(moved[0] - moved[1]).max() < 1e-6


def test_weights_of_rates_that_a_store_does_not_hear_of_are_refused() -> None:
    net = network()
    trainer = Trainer(net.collect_params(), "sgd", kvstore="local", update_on_kvstore=True)
    net[0].weight.lr_mult = 0.5
    with pytest.raises(InputError, match="the store steps by the lr_mult and wd_mult that parameters had at first"):
        stepped(net, trainer, X[0])


@pytest.mark.parametrize("on_store", [False, True])
def test_groups_hold_for_the_second_trainer_on_a_store(on_store: bool) -> None:
    with mz.kv.create("local") as kv:
        Trainer(network().collect_params(), "sgd", kvstore=kv, update_on_kvstore=on_store)
        net = network()
        net[0].weight.lr_mult = 0.0
        before = numbers(net)
        stepped(net, Trainer(net.collect_params(), "sgd", kvstore=kv, update_on_kvstore=on_store), X[0])
        now = numbers(net)
        assert (now["0.weight"] == before["0.weight"]).all()
        assert (now["1.weight"] != before["1.weight"]).any()


@pytest.mark.parametrize(
    ("one", "other"),
    [(("sgd", True), ("adam", True)), (("sgd", True), ("sgd", False)), (("sgd", False), ("sgd", True))],
)
def test_trainers_that_need_a_store_otherwise_are_refused(one: tuple[str, bool], other: tuple[str, bool]) -> None:
    with mz.kv.create("local") as kv:
        first = Trainer(network().collect_params(), one[0], kvstore=kv, update_on_kvstore=one[1])
        with pytest.raises(InputError, match="while a push means one thing"):
            Trainer(network().collect_params(), other[0], kvstore=kv, update_on_kvstore=other[1])
        del first  # nobody needs it any more
        if one[1] and not other[1]:  # the store has its optimizer still, and sums would be steps
            with pytest.raises(InputError, match="this trainer needs sums"):
                Trainer(network().collect_params(), other[0], kvstore=kv)
        else:
            Trainer(network().collect_params(), other[0], kvstore=kv, update_on_kvstore=other[1])


PROGRAM = """
import sys
import numpy as np
import mezzo as mz
from mezzo import nd
from mezzo.gluon import Trainer, nn
from mezzo.gluon.hybrid import HybridBlock
from mezzo.nd import autograd

def trained(kv):
    mz.random.seed(3)
    norm = nn.SyncBatchNorm(kv, in_channels=3) if kv else nn.BatchNorm(in_channels=3)
    net = nn.HybridSequential(norm, nn.Dense(2, in_units=3)).initialize("ones")
    net[1].weight.lr_mult = 0.5
    trainer = Trainer(net.collect_params(), "sgd", {"learning_rate": 0.05}, kv, update_on_kvstore=kv is not None)
    for x in np.random.default_rng(0).standard_normal((4, 8, 3)).astype(np.float32):
        mine = x[kv.rank :: 2] if kv else x
        with autograd.record():
            loss = (net(nd.asarray(mine)) ** 2).sum()
        loss.backward()
        trainer.step(len(mine))
    return {n: p.data().asnumpy() for n, p in net.collect_params().items()}

with mz.kv.create("dist_sync") as kv:
    ours = trained(kv)
    want = trained(None)
    assert all(np.abs(ours[n] - want[n]).max() < 1e-5 for n in want), (ours, want)
"""


def test_statistics_of_all_workers_are_sums_where_the_store_has_an_optimizer(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "mezzo", "launch", "-n", "2", "-s", "0", str(tmp_path / "job.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


class Fork(HybridBlock):
    """Two layers, of which a call uses one."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Dense(2, in_units=4), nn.Dense(2, in_units=4)

    def forward(self, x: Any, left: bool) -> Any:
        return self.left(x) if left else self.right(x)


@pytest.mark.parametrize("gather", [1, 2])
@pytest.mark.parametrize("hybrid", [False, True])
def test_a_gradient_of_an_earlier_step_is_not_used_again(hybrid: bool, gather: int) -> None:
    """As in MXNet it is an error, or the parameter rests: with `ignore_stale_grad` as in PyTorch, whose gradients are
    none then."""
    referee()
    torch = peer("torch")
    mz.random.seed(1)
    net = Fork().initialize("xavier").hybridize(hybrid)
    theirs = [torch.tensor(a, requires_grad=True) for a in numbers(net).values()]
    optimizer = torch.optim.Adam(theirs, 0.05, weight_decay=0.1)
    trainer = Trainer(net.collect_params(), "adam", {"learning_rate": 0.05, "wd": 0.1}, gather=gather)
    for i, left in enumerate([True, True, False, False, True, True, False, False]):
        with autograd.record():
            loss = (net(nd.asarray(X[i]), left) ** 2).sum()
        loss.backward()
        with pytest.raises(InputError, match=r"no backward has written the gradients of \w+\.weight, \w+\.bias since"):
            trainer.step(6)
        trainer.step(6, ignore_stale_grad=True)
        weight, bias = theirs[:2] if left else theirs[2:]
        ((torch.tensor(X[i]) @ weight.T + bias) ** 2).sum().div(6 * gather).backward()
        if i % gather == gather - 1:
            optimizer.step()
            optimizer.zero_grad()
    for array, other in zip(numbers(net).values(), theirs, strict=True):
        np.testing.assert_allclose(array, other.detach().numpy(), rtol=0, atol=1e-5)
    before = numbers(net)
    with pytest.raises(InputError, match="no backward has written"):
        trainer.step(6)
    trainer.step(6, ignore_stale_grad=True)
    assert all((before[n] == a).all() for n, a in numbers(net).items())


def test_gradients_that_the_user_writes_are_new() -> None:
    net = nn.Dense(1, use_bias=False, in_units=2).initialize("ones")
    trainer = Trainer(net.collect_params(), "sgd", {"learning_rate": 1.0})
    for _ in range(2):
        net.weight.set_grad(nd.ones((1, 2)))
        trainer.step()
    assert net.weight.data().tolist() == [[-1, -1]]
