"""Training beside PyTorch, from the same start on the same batches: five networks, three optimizers.

In float64 both take their own steps, and end at the same parameters. In float32 rounding drives two trainings apart,
whoever runs them: there each step starts from PyTorch's parameters, and loss and gradients are compared.
"""

from __future__ import annotations

from typing import Any

import pytest

from mezzo.ops import DType
from mezzo.ops.types import type_of
from mezzo.runtime.execution.session import Session
from mezzo.runtime.ir.autodiff import grad
from mezzo.runtime.ir.graph import Graph
from mezzo.runtime.optimizer import SGD, Adam, AdamW, Optimizer
from mezzo.runtime.passes import modes
from mezzo.train.trainer import Trainer

from .networks import NETWORKS, batch_for, distance
from .peers import peer

RATE = 0.003
OPTIMIZERS: dict[str, tuple[Optimizer, dict[str, Any]]] = {
    "SGD": (SGD(rate=RATE, momentum=0.9), {"lr": RATE, "momentum": 0.9}),
    "Adam": (Adam(rate=RATE), {"lr": RATE}),
    "AdamW": (AdamW(rate=RATE, weight_decay=0.1), {"lr": RATE, "weight_decay": 0.1}),
}
networks = pytest.mark.parametrize("name", NETWORKS)
optimizers = pytest.mark.parametrize("optimizer", OPTIMIZERS)


def beside() -> Any:
    """The same networks in PyTorch."""
    peer("torch")
    from . import torch_networks

    return torch_networks


# In float64


def same_way(name: str, optimizer: str, steps: int) -> None:
    """Loss and every parameter to 1e-6 after each step."""
    nets = beside()
    graph = NETWORKS[name](DType.DOUBLE)
    module = nets.twin(name, graph, nets.torch.float64)
    plan, options = OPTIMIZERS[optimizer]
    trainer = Trainer(graph, optimizer=plan)
    assert set(trainer.trained) == set(nets.parameters(module))
    theirs = getattr(nets.torch.optim, optimizer)(module.parameters(), **options)
    first = nets.parameters(module)
    for i in range(steps):
        feeds = batch_for(graph, i % 50)
        want = nets.step_of(module, theirs, feeds)
        assert trainer.step(feeds) == pytest.approx(want, rel=1e-6), f"loss of step {i}"
        now = nets.parameters(module)
        for n, p in trainer.parameters.items():
            assert distance(p, now[n]) <= 1e-6, f"{n} after step {i}"
    assert all(distance(p, first[n]) > 1e-4 for n, p in trainer.parameters.items()), "nothing moved"


@optimizers
@networks
def test_twenty_steps_in_float64(name: str, optimizer: str) -> None:
    same_way(name, optimizer, 20)


@pytest.mark.soak
@optimizers
@networks
def test_hundred_steps_in_float64(name: str, optimizer: str) -> None:
    same_way(name, optimizer, 100)


def test_running_statistics_follow() -> None:
    """PyTorch keeps the variance of a sample, ONNX that of a population: n - 1 in place of n."""
    nets = beside()
    graph = NETWORKS["resnet18"](DType.DOUBLE)
    module = nets.twin("resnet18", graph, nets.torch.float64)
    trainer = Trainer(graph, optimizer=SGD(rate=0.0))
    feeds = batch_for(graph, 0)
    trainer.step(feeds)
    nets.loss_of(module, feeds)
    count = 8 * 16 * 16
    ours, theirs = trainer.states, module.state_dict()
    assert distance(ours["bn.running_mean"], theirs["bn.running_mean"].numpy()) < 1e-12
    before = 0.9 * graph.initializers["bn.running_var"]
    of_sample = (ours["bn.running_var"] - before) * count / (count - 1) + before
    assert distance(of_sample, theirs["bn.running_var"].numpy()) < 1e-12


# In float32


def learning(graph: Graph, names: list[str]) -> tuple[Session, str, dict[str, str]]:
    """Loss and gradients of a network in training mode, whose parameters are fed; names of the loss and of the
    gradients."""
    trainer = Trainer(graph, optimizer=SGD(rate=0.0))
    judged, loss = trainer._judged(modes.training(trainer.source))
    kinds = {n: type_of(graph.initializers[n]) for n in names}  # their elements are not known any more
    fed = judged.but(inputs=(*judged.inputs, *names), types={**judged.types, **kinds})
    made = grad(fed, loss, names)
    grads = dict(zip(names, made.outputs[len(fed.outputs) :], strict=True))
    return Session(made), loss, grads


def led_by_the_hand(name: str, optimizer: str, steps: int) -> None:
    """Each step starts from PyTorch's parameters; loss and every gradient to 1e-4, of those that have one: what
    normalisation makes independent of the loss has rounding errors for a gradient. In one step of twenty a rectifier
    may stand so close to its kink that rounding decides."""
    nets = beside()
    graph = NETWORKS[name](DType.FLOAT)
    module, exact = (nets.twin(name, graph, dtype) for dtype in (nets.torch.float32, nets.torch.float64))
    names = [*nets.parameters(module)]
    session, loss, grads = learning(graph, names)
    theirs = getattr(nets.torch.optim, optimizer)(module.parameters(), **OPTIMIZERS[optimizer][1])
    listed, compared, kinks = set[str](), 0, 0
    for i in range(steps):
        feeds, now = batch_for(graph, i), nets.parameters(module)
        exact.load_state_dict(module.state_dict())
        true = nets.torch.autograd.grad(nets.loss_of(exact, feeds), list(exact.parameters()))
        sizes = {n: float(t.norm()) for n, t in zip(names, true, strict=True)}
        got = session.run({**feeds, **now})
        want = nets.step_of(module, theirs, feeds)
        assert float(got[loss]) == pytest.approx(want, rel=1e-4)
        small = {n for n in names if sizes[n] < 1e-7 * max(sizes.values())}
        listed |= small
        apart = {n: distance(got[grads[n]], p.grad.numpy()) for n, p in module.named_parameters() if n not in small}
        far = {n: d for n, d in apart.items() if d > 1e-4}
        if far:
            kinks += 1
            assert kinks <= 1 + steps // 20, f"gradients in step {i}: {far}"
            assert nets.at_kink(exact, feeds, dict(zip(names, true, strict=True)), max(far, key=lambda n: far[n])), far
        compared += len(apart) - len(far)
    assert compared >= steps * len(names) * 2 // 3
    if listed:
        print(f"{name} with {optimizer}: not compared: {', '.join(sorted(listed))}")


@networks
def test_gradients_in_float32(name: str) -> None:
    led_by_the_hand(name, "Adam", 5)


@pytest.mark.soak
@optimizers
@networks
def test_gradients_in_float32_over_twenty_steps(name: str, optimizer: str) -> None:
    led_by_the_hand(name, optimizer, 20)


@pytest.mark.soak
@optimizers
@networks
@pytest.mark.filterwarnings("ignore:TF32 acceleration")  # PyTorch's, whenever its oneDNN is switched
def test_how_far_free_steps_in_float32_go_apart(name: str, optimizer: str) -> None:
    """Printed beside how far PyTorch goes from itself when it leaves out oneDNN."""
    nets = beside()
    graph = NETWORKS[name](DType.FLOAT)
    trainer = Trainer(graph, optimizer=OPTIMIZERS[optimizer][0])
    ends = []
    for onednn in (True, False):
        module = nets.twin(name, graph, nets.torch.float32)
        theirs = getattr(nets.torch.optim, optimizer)(module.parameters(), **OPTIMIZERS[optimizer][1])
        with nets.torch.backends.mkldnn.flags(enabled=onednn):
            for i in range(100):
                nets.step_of(module, theirs, batch_for(graph, i))
        ends.append(nets.parameters(module))
    for i in range(100):
        trainer.step(batch_for(graph, i))
    ours = max(distance(p, ends[0][n]) for n, p in trainer.parameters.items())
    own = max(distance(p, ends[0][n]) for n, p in ends[1].items())
    print(f"{name} with {optimizer}, the furthest parameter after 100 steps: {ours:.2g}; PyTorch's own: {own:.2g}")
    assert ours < 10 * own + 1e-3
