"""Training beside PyTorch, from the same start on the same batches: five networks, three optimizers.

In float64 both take their own steps, and end at the same parameters. In float32 rounding drives two trainings apart,
whoever runs them: there each step starts from PyTorch's parameters, and loss and gradients are compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from mezzo.ops import DType
from mezzo.ops.types import type_of
from mezzo.runtime.autodiff import grad
from mezzo.runtime.graph import Graph
from mezzo.runtime.optimizer import SGD, Adam, AdamW, Optimizer
from mezzo.runtime.session import Session
from mezzo.train import modes
from mezzo.train.trainer import Trainer

from .networks import HEADS, HIDDEN, NETWORKS, WIDE, Array, batch_for

torch = pytest.importorskip("torch", reason="PyTorch is the referee: make install PEERS=1")
nn = torch.nn

RATE = 0.003
OPTIMIZERS: dict[str, tuple[Optimizer, dict[str, Any]]] = {
    "SGD": (SGD(rate=RATE, momentum=0.9), {"lr": RATE, "momentum": 0.9}),
    "Adam": (Adam(rate=RATE), {"lr": RATE}),
    "AdamW": (AdamW(rate=RATE, weight_decay=0.1), {"lr": RATE, "weight_decay": 0.1}),
}
networks = pytest.mark.parametrize("name", NETWORKS)
optimizers = pytest.mark.parametrize("optimizer", OPTIMIZERS)


class Block(nn.Module):  # type: ignore[misc, name-defined]
    """A residual block."""

    def __init__(self, wide: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(wide, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out)
        self.conv2, self.bn2 = nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out)
        self.short = nn.Sequential()
        if wide != out:
            self.short = nn.Sequential(nn.Conv2d(wide, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: Any) -> Any:
        y = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        return torch.relu(y + self.short(x))


class ResNet(nn.Module):  # type: ignore[misc, name-defined]
    """Eight blocks behind a stem."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)
        sizes = [width, *(width * 2 ** (i // 2) for i in range(8))]
        pairs = pairwise(sizes)
        self.blocks = nn.Sequential(*(Block(a, b, 1 if a == b else 2) for a, b in pairs))
        self.fc = nn.Linear(sizes[-1], 10)

    def forward(self, x: Any) -> Any:
        return self.fc(self.blocks(torch.relu(self.bn(self.conv(x)))).mean((2, 3)))


class Reader(nn.Module):  # type: ignore[misc, name-defined]
    """A body that reads a sequence, and a linear layer over what `summary` makes of it."""

    def __init__(self, body: Any, size: int, summary: Any) -> None:
        super().__init__()
        self.body, self.head, self.summary = body, nn.Linear(size, 5), summary

    def forward(self, x: Any) -> Any:
        return self.head(self.summary(self.body(x)))


def encoder() -> Any:
    layer = nn.TransformerEncoderLayer(WIDE, HEADS, 32, dropout=0.0, batch_first=True, activation="gelu")
    return Reader(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), WIDE, lambda y: y.mean(1))


def conv(wide: int, out: int, pad: int) -> list[Any]:
    return [nn.Conv2d(wide, out, 5, padding=pad), nn.ReLU(), nn.MaxPool2d(2)]


TWINS: dict[str, Any] = {
    "mlp": lambda: nn.Sequential(
        nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 5)
    ),
    "lenet": lambda: nn.Sequential(
        *conv(1, 6, 2), *conv(6, 16, 0), nn.Flatten(), nn.Linear(64, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(),
        nn.Linear(84, 10),
    ),
    "resnet18": ResNet,
    "encoder": encoder,
    "lstm": lambda: Reader(nn.LSTM(4, HIDDEN, batch_first=True), HIDDEN, lambda y: y[1][0][0]),
}  # fmt: skip


def twin(name: str, graph: Graph, dtype: Any) -> Any:
    """The network in PyTorch, in training mode, with the weights of the graph."""
    module = TWINS[name]().to(dtype).train()
    kept = {n: torch.tensor(a) for n, a in graph.initializers.items() if n in module.state_dict()}
    lacking, _ = module.load_state_dict(kept, strict=False)
    assert all(n.endswith("num_batches_tracked") for n in lacking)
    return module


def loss_of(module: Any, feeds: Mapping[str, Array]) -> Any:
    dtype = next(module.parameters()).dtype
    answer = module(torch.tensor(feeds["x"]).to(dtype))
    return nn.functional.cross_entropy(answer, torch.tensor(feeds["target"]))


def step_of(module: Any, optimizer: Any, feeds: Mapping[str, Array]) -> float:
    """One step of PyTorch's; the loss before it."""
    optimizer.zero_grad()
    loss = loss_of(module, feeds)
    loss.backward()
    optimizer.step()
    return float(loss.detach())


def distance(a: Array, b: Array) -> float:
    """Relative, in the L2 norm."""
    return float(np.linalg.norm(a - b)) / max(float(np.linalg.norm(b)), 1e-30)


def parameters(module: Any) -> dict[str, Array]:
    return {n: p.detach().numpy().copy() for n, p in module.named_parameters()}


# In float64


def same_way(name: str, optimizer: str, steps: int) -> None:
    """Loss and every parameter to 1e-6 after each step."""
    graph = NETWORKS[name](DType.DOUBLE)
    module = twin(name, graph, torch.float64)
    plan, options = OPTIMIZERS[optimizer]
    trainer = Trainer(graph, optimizer=plan)
    assert set(trainer.trained) == set(parameters(module))
    theirs = getattr(torch.optim, optimizer)(module.parameters(), **options)
    first = parameters(module)
    for i in range(steps):
        feeds = batch_for(graph, i % 50)
        want = step_of(module, theirs, feeds)
        assert trainer.step(feeds) == pytest.approx(want, rel=1e-6), f"loss of step {i}"
        now = parameters(module)
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
    graph = NETWORKS["resnet18"](DType.DOUBLE)
    module = twin("resnet18", graph, torch.float64)
    trainer = Trainer(graph, optimizer=SGD(rate=0.0))
    feeds = batch_for(graph, 0)
    trainer.step(feeds)
    loss_of(module, feeds)
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


def at_kink(module: Any, feeds: dict[str, Any], true: dict[str, Any], name: str) -> bool:
    """Whether the gradient of a parameter jumps when all parameters move by a few roundings of float32."""
    begun = {n: t.clone() for n, t in module.state_dict().items()}
    random = torch.Generator().manual_seed(0)
    for _ in range(20):
        module.load_state_dict(begun)
        with torch.no_grad():
            for p in module.parameters():
                p *= 1 + 2**-21 * torch.randn(p.shape, generator=random, dtype=p.dtype)
        moved = torch.autograd.grad(loss_of(module, feeds), list(module.parameters()))
        found = dict(zip(true, moved, strict=True))
        if distance(found[name].numpy(), true[name].numpy()) > 1e-4:
            return True
    return False


def led_by_the_hand(name: str, optimizer: str, steps: int) -> None:
    """Each step starts from PyTorch's parameters; loss and every gradient to 1e-4, of those that have one: what
    normalisation makes independent of the loss has rounding errors for a gradient. In one step of twenty a rectifier
    may stand so close to its kink that rounding decides."""
    graph = NETWORKS[name](DType.FLOAT)
    module, exact = (twin(name, graph, dtype) for dtype in (torch.float32, torch.float64))
    names = [*parameters(module)]
    session, loss, grads = learning(graph, names)
    theirs = getattr(torch.optim, optimizer)(module.parameters(), **OPTIMIZERS[optimizer][1])
    listed, compared, kinks = set[str](), 0, 0
    for i in range(steps):
        feeds, now = batch_for(graph, i), parameters(module)
        exact.load_state_dict(module.state_dict())
        true = torch.autograd.grad(loss_of(exact, feeds), list(exact.parameters()))
        sizes = {n: float(t.norm()) for n, t in zip(names, true, strict=True)}
        got = session.run({**feeds, **now})
        want = step_of(module, theirs, feeds)
        assert float(got[loss]) == pytest.approx(want, rel=1e-4)
        small = {n for n in names if sizes[n] < 1e-7 * max(sizes.values())}
        listed |= small
        apart = {n: distance(got[grads[n]], p.grad.numpy()) for n, p in module.named_parameters() if n not in small}
        far = {n: d for n, d in apart.items() if d > 1e-4}
        if far:
            kinks += 1
            assert kinks <= 1 + steps // 20, f"gradients in step {i}: {far}"
            assert at_kink(exact, feeds, dict(zip(names, true, strict=True)), max(far, key=lambda n: far[n])), far
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
    graph = NETWORKS[name](DType.FLOAT)
    trainer = Trainer(graph, optimizer=OPTIMIZERS[optimizer][0])
    ends = []
    for onednn in (True, False):
        module = twin(name, graph, torch.float32)
        theirs = getattr(torch.optim, optimizer)(module.parameters(), **OPTIMIZERS[optimizer][1])
        with torch.backends.mkldnn.flags(enabled=onednn):
            for i in range(100):
                step_of(module, theirs, batch_for(graph, i))
        ends.append(parameters(module))
    for i in range(100):
        trainer.step(batch_for(graph, i))
    ours = max(distance(p, ends[0][n]) for n, p in trainer.parameters.items())
    own = max(distance(p, ends[0][n]) for n, p in ends[1].items())
    print(f"{name} with {optimizer}, the furthest parameter after 100 steps: {ours:.2g}; PyTorch's own: {own:.2g}")
    assert ours < 10 * own + 1e-3
