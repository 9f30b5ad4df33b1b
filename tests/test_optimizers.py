"""Optimizers, schedules, clipping and accumulation: as in PyTorch, or by the formulas of their papers."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mezzo.ops import DType, Tensor
from mezzo.ops.errors import InputError
from mezzo.ops.types import f32
from mezzo.runtime.execution.session import Session
from mezzo.runtime.ir.graph import Graph, GraphBuilder
from mezzo.runtime.optimizer import (
    DCASGD,
    KINDS,
    LAMB,
    LARS,
    LBFGS,
    NAG,
    SGD,
    SGLD,
    Adadelta,
    Adagrad,
    Adam,
    AdamW,
    Ftrl,
    Group,
    Lion,
    Nadam,
    Optimizer,
    RMSprop,
    Signum,
    from_dict,
)
from mezzo.runtime.optimizer.schedule import Constant, Cosine, Exponential, MultiStep, OneCycle, Polynomial, WarmUp, at
from mezzo.runtime.optimizer.schedule import Step as Falling
from mezzo.train.building import COUNT, Scaling, Step
from mezzo.train.step import training_step, update_graph

from .peers import peer

Array = np.ndarray[Any, Any]
STEPS, BATCH = 20, 8
NAMES = ("hidden.weight", "hidden.bias", "out.weight", "out.bias")
CLOSE = {"float64": 1e-12, "float32": 2e-5}  # relative L2 distance of a tensor after all steps


def start(seed: int = 0) -> dict[str, Array]:
    """The parameters of a small network, in float64."""
    rng = np.random.default_rng(seed)
    return {n: rng.standard_normal(s) * 0.5 for n, s in zip(NAMES, ((7, 6), (7,), (4, 7), (4,)), strict=True)}


def network(dtype: str = "float64") -> tuple[Graph, str]:
    """Two dense layers and a cross-entropy, and the name of the loss."""
    g = GraphBuilder("mlp")
    x, t = g.input("x", Tensor(DType.of(np.dtype(dtype)), ("n", 6))), g.input("t", Tensor(DType.INT64, ("n",)))
    made = {n: g.const(a.astype(dtype)) for n, a in start().items()}
    w1, b1, w2, b2 = made.values()
    h = g.Tanh(g.Gemm(x, w1, b1, transB=1))
    loss = g.SoftmaxCrossEntropyLoss(g.Gemm(h, w2, b2, transB=1), t)
    graph = g.graph([loss])
    names = {old: new for new, old in made.items()}
    constants = {names.get(n, n): a for n, a in graph.initializers.items()}
    return graph.rename(names).but(initializers=constants).verify(), loss


def batch(number: int, dtype: str = "float64") -> dict[str, Array]:
    rng = np.random.default_rng([7, number])
    return {"x": rng.standard_normal((BATCH, 6)).astype(dtype), "t": rng.integers(0, 4, BATCH)}


def ours(step: Step, dtype: str = "float64", names: Sequence[str] = NAMES) -> list[dict[str, Array]]:
    """The parameters after each of our steps."""
    graph, loss = network(dtype)
    session = Session(training_step(graph, loss, names, step))
    found = []
    for i in range(STEPS):
        session.run(batch(i, dtype))
        now = {**graph.initializers, **session.states}
        found.append({n: now[n].copy() for n in NAMES})
    return found


class Peer:
    """The same network in PyTorch."""

    def __init__(self, dtype: str = "float64") -> None:
        self.torch = peer("torch")
        self.dtype = dtype
        self.params = {n: self.torch.tensor(a.astype(dtype), requires_grad=True) for n, a in start().items()}

    def loss(self, number: int) -> Any:
        torch, p = self.torch, self.params
        feeds = {n: torch.tensor(a) for n, a in batch(number, self.dtype).items()}
        h = torch.tanh(torch.nn.functional.linear(feeds["x"], p[NAMES[0]], p[NAMES[1]]))
        return torch.nn.functional.cross_entropy(torch.nn.functional.linear(h, p[NAMES[2]], p[NAMES[3]]), feeds["t"])

    def gradients(self, number: int) -> dict[str, Array]:
        made = self.torch.autograd.grad(self.loss(number), list(self.params.values()))
        return {n: g.numpy() for n, g in zip(self.params, made, strict=True)}

    def now(self) -> dict[str, Array]:
        return {n: p.detach().numpy().copy() for n, p in self.params.items()}

    def train(
        self, optimizer: Any, scheduler: Any = None, clip: Callable[[Any], Any] | None = None
    ) -> list[dict[str, Array]]:
        """The parameters after each of its steps."""
        found = []
        for i in range(STEPS):
            optimizer.zero_grad()
            self.loss(i).backward()
            if clip is not None:
                clip(list(self.params.values()))
            optimizer.step()
            if scheduler is not None:
                scheduler.step()
            found.append(self.now())
        return found


def follows(mine: list[dict[str, Array]], theirs: list[dict[str, Array]], dtype: str = "float64") -> None:
    """Every tensor after every step; and it moved."""
    for i, (a, b) in enumerate(zip(mine, theirs, strict=True)):
        for name in NAMES:
            assert a[name].dtype == b[name].dtype == np.dtype(dtype)
            off = np.linalg.norm(a[name] - b[name]) / np.linalg.norm(b[name])
            assert off <= CLOSE[dtype], f"{name} after step {i}: {off}"
    assert all(np.abs(mine[-1][n] - mine[0][n]).max() > 0 for n in NAMES)


# Our optimizer, and PyTorch's name of it with its arguments.
TORCH: list[tuple[Optimizer, str, dict[str, Any]]] = [
    (SGD(rate=0.1), "SGD", {"lr": 0.1}),
    (SGD(rate=0.1, weight_decay=0.02), "SGD", {"lr": 0.1, "weight_decay": 0.02}),
    (SGD(rate=0.1, momentum=0.9), "SGD", {"lr": 0.1, "momentum": 0.9}),
    (SGD(rate=0.1, momentum=0.8, weight_decay=0.02), "SGD", {"lr": 0.1, "momentum": 0.8, "weight_decay": 0.02}),
    (SGD(rate=0.1, momentum=0.9, dampening=0.3), "SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.3}),
    (SGD(rate=0.1, momentum=0.9, nesterov=True), "SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    (Adam(rate=0.01), "Adam", {"lr": 0.01}),
    (Adam(rate=0.01, beta1=0.8, beta2=0.95, epsilon=1e-3), "Adam", {"lr": 0.01, "betas": (0.8, 0.95), "eps": 1e-3}),
    (Adam(rate=0.01, weight_decay=0.1), "Adam", {"lr": 0.01, "weight_decay": 0.1}),
    (AdamW(rate=0.01), "AdamW", {"lr": 0.01}),
    (AdamW(rate=0.01, weight_decay=0.2), "AdamW", {"lr": 0.01, "weight_decay": 0.2}),
    (Adagrad(rate=0.1), "Adagrad", {"lr": 0.1}),
    (
        Adagrad(rate=0.1, rate_decay=0.1, initial=0.2, weight_decay=0.02),
        "Adagrad",
        {"lr": 0.1, "lr_decay": 0.1, "initial_accumulator_value": 0.2, "weight_decay": 0.02},
    ),
    (RMSprop(rate=0.01), "RMSprop", {"lr": 0.01}),
    (RMSprop(rate=0.01, alpha=0.9, weight_decay=0.1), "RMSprop", {"lr": 0.01, "alpha": 0.9, "weight_decay": 0.1}),
    (RMSprop(rate=0.01, centered=True), "RMSprop", {"lr": 0.01, "centered": True}),
    (RMSprop(rate=0.01, momentum=0.9), "RMSprop", {"lr": 0.01, "momentum": 0.9}),
    (RMSprop(rate=0.01, momentum=0.5, centered=True), "RMSprop", {"lr": 0.01, "momentum": 0.5, "centered": True}),
    (Adadelta(), "Adadelta", {}),
    (Adadelta(rate=0.5, rho=0.8, epsilon=1e-4), "Adadelta", {"lr": 0.5, "rho": 0.8, "eps": 1e-4}),
    (Adadelta(weight_decay=0.1), "Adadelta", {"weight_decay": 0.1}),
    (NAG(rate=0.1), "SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    (Nadam(rate=0.01), "NAdam", {"lr": 0.01}),
    (
        Nadam(rate=0.01, beta1=0.8, momentum_decay=0.1, weight_decay=0.05),
        "NAdam",
        {"lr": 0.01, "betas": (0.8, 0.999), "momentum_decay": 0.1, "weight_decay": 0.05},
    ),
    (Nadam(rate=0.01, momentum_decay=0.0), "NAdam", {"lr": 0.01, "momentum_decay": 0.0}),
]


@pytest.mark.parametrize("dtype", CLOSE)
@pytest.mark.parametrize(("optimizer", "name", "options"), TORCH)
def test_as_in_pytorch(optimizer: Optimizer, name: str, options: dict[str, Any], dtype: str) -> None:
    peer = Peer(dtype)
    usual = peer.torch.get_default_dtype()
    peer.torch.set_default_dtype(getattr(peer.torch, dtype))  # in which it keeps numbers such as NAdam's product
    try:
        theirs = peer.train(getattr(peer.torch.optim, name)(peer.params.values(), **options))
    finally:
        peer.torch.set_default_dtype(usual)
    follows(ours(Step(optimizer), dtype), theirs, dtype)


# Formulas of papers: a step for one tensor, with its states and the number of the step (from 1).


def lamb(o: LAMB, w: Array, dw: Array, s: list[Array], t: int) -> Array:
    """Algorithm 2 of arXiv 1904.00962, phi being the identity."""
    s[0] = o.beta1 * s[0] + (1 - o.beta1) * dw
    s[1] = o.beta2 * s[1] + (1 - o.beta2) * dw**2
    m, v = s[0] / (1 - o.beta1**t), s[1] / (1 - o.beta2**t)
    way = m / (np.sqrt(v) + o.epsilon) + o.weight_decay * w
    return w - at(o.rate, t - 1) * np.linalg.norm(w) / np.linalg.norm(way) * way


def lars(o: LARS, w: Array, dw: Array, s: list[Array], t: int) -> Array:
    """Algorithm 1 of arXiv 1708.03888, with the epsilon that keeps implementations from dividing by zero."""
    own = o.trust * np.linalg.norm(w) / (np.linalg.norm(dw) + o.weight_decay * np.linalg.norm(w) + o.epsilon)
    s[0] = o.momentum * s[0] + at(o.rate, t - 1) * own * (dw + o.weight_decay * w)
    return w - s[0]


def lion(o: Lion, w: Array, dw: Array, s: list[Array], t: int) -> Array:
    """Program 1 of arXiv 2302.06675."""
    step = np.sign(o.beta1 * s[0] + (1 - o.beta1) * dw) + o.weight_decay * w
    s[0] = o.beta2 * s[0] + (1 - o.beta2) * dw
    return w - at(o.rate, t - 1) * step


def ftrl(o: Ftrl, w: Array, dw: Array, s: list[Array], t: int) -> Array:
    """Algorithm 1 of McMahan et al. 2013, per coordinate; sigma moves the centre from w to w."""
    rate = at(o.rate, t - 1)
    sigma = (np.sqrt(s[1] + dw**2) - np.sqrt(s[1])) / rate
    s[0], s[1] = s[0] + dw - sigma * w, s[1] + dw**2
    kept = -(s[0] - np.sign(s[0]) * o.lamda1) / ((o.beta + np.sqrt(s[1])) / rate + o.weight_decay)
    return np.where(np.abs(s[0]) <= o.lamda1, 0, kept)


def signum(o: Signum, w: Array, dw: Array, s: list[Array], t: int) -> Array:
    """Algorithm 1 of arXiv 1802.04434, with decays inside and outside of the sign."""
    rate, m = at(o.rate, t - 1), dw + o.weight_decay * w
    if o.momentum:
        s[0] = m = o.momentum * s[0] + (1 - o.momentum) * m
    return (1 - rate * o.wd_lh) * w - rate * np.sign(m)


def dcasgd(o: DCASGD, w: Array, dw: Array, s: list[Array], t: int) -> Array:
    """Equation 10 of arXiv 1609.08326 with the velocity that MXNet adds; s is the tensor before and the velocity."""
    before, v = (w, np.zeros_like(w)) if t == 1 else (s[0], s[0 if len(s) == 1 else 1])
    v = v if t > 1 else np.zeros_like(w)
    v = o.momentum * v - at(o.rate, t - 1) * (dw + o.weight_decay * w + o.lamda * dw * dw * (w - before))
    s[:] = [w, v]
    made: Array = w + v
    return made


PAPERS: list[tuple[Any, Callable[..., Array]]] = [
    (Ftrl(), ftrl),
    (Ftrl(rate=Cosine(0.5, 40), lamda1=0.02, beta=0.5, weight_decay=0.1), ftrl),
    (Signum(), signum),
    (Signum(rate=0.02, momentum=0.5, wd_lh=0.1, weight_decay=0.1), signum),
    (Signum(momentum=0.0), signum),
    (DCASGD(rate=0.5, lamda=0.5), dcasgd),
    (DCASGD(rate=0.2, momentum=0.8, lamda=2.0, weight_decay=0.1), dcasgd),
    (LAMB(rate=0.02), lamb),
    (LAMB(rate=Cosine(0.02, 20), beta1=0.8, beta2=0.99, weight_decay=0.1), lamb),
    (LARS(rate=3.0), lars),
    (LARS(rate=3.0, momentum=0.5, trust=0.01, epsilon=1e-3, weight_decay=0.1), lars),
    (Lion(rate=0.01), lion),
    (Lion(rate=0.01, beta1=0.8, beta2=0.95, weight_decay=0.1), lion),
]


@pytest.mark.parametrize("dtype", CLOSE)
@pytest.mark.parametrize(("optimizer", "formula"), PAPERS)
def test_as_in_the_paper(optimizer: Optimizer, formula: Callable[..., Array], dtype: str) -> None:
    """The gradients are PyTorch's, in float64; a sign in float32 may differ where the gradient is nearly zero."""
    peer, found = Peer(), []
    states = {n: [np.zeros_like(w) for _ in optimizer.slots] for n, w in start().items()}
    for t in range(1, STEPS + 1):
        for n, dw in peer.gradients(t - 1).items():
            made = formula(optimizer, peer.params[n].detach().numpy(), dw, states[n], t)
            peer.params[n].data = peer.torch.from_numpy(made)
        found.append({n: w.astype(dtype) for n, w in peer.now().items()})
    follows(ours(Step(optimizer), dtype), found, dtype)


@pytest.mark.parametrize("history", [2, 10])
def test_newton_directions_as_in_pytorch(history: int) -> None:
    """One tensor, the same examples at every update: a rotated quadratic, which LBFGS walks down."""
    torch = peer("torch")
    q, _ = np.linalg.qr(np.random.default_rng(1).standard_normal((6, 6)))
    bent = q @ np.diag([1, 2, 5, 10, 20, 50]) @ q.T
    w = torch.tensor(np.ones(6), requires_grad=True)
    theirs = torch.optim.LBFGS([w], lr=0.8, max_iter=1, history_size=history, tolerance_grad=0, tolerance_change=0)

    def closure() -> Any:
        theirs.zero_grad()
        loss = w @ torch.tensor(bent) @ w / 2
        loss.backward()
        return loss

    g = GraphBuilder()
    x, weight = g.input("x", Tensor(DType.DOUBLE, (6, 6))), g.const(np.ones((6, 1)))
    loss = g.ReduceSum(g.Mul(g.Mul(weight, g.MatMul(x, weight)), g.const(0.5, DType.DOUBLE)), keepdims=0)
    graph = g.graph([loss])
    (name,) = [n for n, a in graph.initializers.items() if a.shape == (6, 1)]
    session = Session(training_step(graph, loss, [name], Step(LBFGS(rate=0.8, history=history))))
    for i in range(25):
        session.run({"x": bent})
        theirs.step(closure)
        off = np.abs(session.states[name][:, 0] - w.detach().numpy()).max()
        assert off <= 1e-9 * max(np.abs(w.detach().numpy()).max(), 1e-3), i
    assert np.abs(session.states[name]).max() < (1e-6 if history == 10 else 1e-2)


def test_langevin_noise_has_the_variance_of_the_rate() -> None:
    g = GraphBuilder()
    x = g.input("x", Tensor(DType.DOUBLE, (20000,)))
    weight = g.const(np.zeros(20000))
    loss = g.ReduceSum(g.Mul(weight, x), keepdims=0)
    graph = g.graph([loss])
    (name,) = [n for n, a in graph.initializers.items() if a.shape == (20000,)]
    session = Session(training_step(graph, loss, [name], Step(SGLD(rate=0.04))))
    before, steps = np.zeros(20000), []
    for run in range(2):
        session.next_run = run
        session.run({"x": np.full(20000, 3.0)})
        steps.append(session.states[name] - before)
        before = session.states[name].copy()
    for step in steps:
        assert abs(step.mean() + 0.04 / 2 * 3) < 4 * 0.2 / np.sqrt(20000)
        assert abs(step.std() - 0.2) < 0.005
    assert abs(np.corrcoef(*steps)[0, 1]) < 0.04


@pytest.mark.parametrize("optimizer", [LAMB(rate=0.1), LARS(rate=0.1)])
def test_tensors_of_zeros_move(optimizer: Optimizer) -> None:
    """No rate can follow the norm of a tensor that has none: it is 1 then."""
    g = GraphBuilder()
    x = g.input("x", f32(3))
    loss = g.ReduceSum(g.Mul(x, g.const(np.zeros(3, np.float32))), keepdims=0)
    graph = g.graph([loss])
    (name,) = [n for n, a in graph.initializers.items() if a.shape == (3,)]
    session = Session(training_step(graph, loss, [name], Step(optimizer)))
    session.run({"x": np.ones(3, np.float32)})
    np.testing.assert_allclose(session.states[name], -0.1, rtol=1e-5)


# Groups, freezing, accumulation, clipping


def test_groups_have_rates_and_decays_of_their_own() -> None:
    peer = Peer()
    groups = (Group(("*.bias",), weight_decay=0.0), Group(("out.*", "never"), scale=0.1))
    theirs = [
        {"params": [p for n, p in peer.params.items() if n.endswith("bias")], "weight_decay": 0.0},
        {"params": [peer.params["out.weight"]], "lr": 0.001},
        {"params": [peer.params["hidden.weight"]]},
    ]
    optimizer = AdamW(rate=0.01, weight_decay=0.1, groups=groups)
    follows(ours(Step(optimizer)), peer.train(peer.torch.optim.AdamW(theirs, lr=0.01, weight_decay=0.1)))
    assert optimizer.decay("out.bias") == 0, "the first group that fits counts"
    assert optimizer.group("out.bias").scale == 1
    assert optimizer.decay("hidden.weight") == 0.1


def test_frozen_parameters_stay() -> None:
    peer = Peer()
    free = [n for n in NAMES if not n.startswith("hidden")]
    mine = ours(Step(Adam(rate=0.01, weight_decay=0.1)), names=free)
    theirs = peer.train(peer.torch.optim.Adam([peer.params[n] for n in free], lr=0.01, weight_decay=0.1))
    for a, b in zip(mine, theirs, strict=True):
        for n in NAMES:
            np.testing.assert_allclose(a[n], b[n], rtol=1e-12)
    np.testing.assert_array_equal(mine[-1]["hidden.weight"], start()["hidden.weight"])


@pytest.mark.parametrize("gather", [2, 5])
def test_gathered_batches_make_one_update(gather: int) -> None:
    peer, graph_and_loss = Peer(), network()
    step = Step(Adam(rate=0.05), gather=gather)
    whole = Session(training_step(*graph_and_loss, NAMES, step))
    part = Session(training_step(*graph_and_loss, NAMES, step, updates=False), states=whole.states)
    optimizer = peer.torch.optim.Adam(peer.params.values(), lr=0.05)
    for i in range(STEPS):
        before = {n: whole.states[n].copy() for n in NAMES}
        last = i % gather == gather - 1
        (whole if last else part).run(batch(i))
        (peer.loss(i) / gather).backward()
        if last:
            optimizer.step()
            optimizer.zero_grad()
        for n, theirs in peer.now().items():
            np.testing.assert_allclose(whole.states[n], theirs, rtol=1e-11)
            assert last != np.array_equal(whole.states[n], before[n])
    assert whole.states[COUNT] == STEPS // gather


@pytest.mark.parametrize("bound", [0.05, 0.5, 1e9])
def test_clipping_the_norm_of_all_gradients(bound: float) -> None:
    peer = Peer()
    clip = peer.torch.nn.utils.clip_grad_norm_
    theirs = peer.train(peer.torch.optim.SGD(peer.params.values(), lr=0.5), clip=lambda ps: clip(ps, bound))
    follows(ours(Step(SGD(rate=0.5), clip_norm=bound)), theirs)


@pytest.mark.parametrize("bound", [1e-3, 0.05, 1e9])
def test_clipping_the_elements_of_gradients(bound: float) -> None:
    peer = Peer()
    clip = peer.torch.nn.utils.clip_grad_value_
    theirs = peer.train(peer.torch.optim.SGD(peer.params.values(), lr=0.5), clip=lambda ps: clip(ps, bound))
    follows(ours(Step(SGD(rate=0.5), clip_value=bound)), theirs)


def test_a_loss_scale_that_never_overflows_changes_nothing() -> None:
    """It is a power of two, and clipping sees the gradients without it."""
    plain = Step(SGD(rate=0.1, momentum=0.9), clip_norm=0.3)
    scaled = replace(plain, scaling=Scaling(first=2.0**12, patience=3))
    for a, b in zip(ours(plain, "float32"), ours(scaled, "float32"), strict=True):
        for n in NAMES:
            np.testing.assert_allclose(a[n], b[n], rtol=1e-6, atol=1e-7)


# Schedules

SCHEDULES: list[tuple[Any, Callable[[Any, Any], Any]]] = [
    (Constant(0.1), lambda s, o: s.ConstantLR(o, 1.0)),
    (Falling(0.1, 3, 0.5), lambda s, o: s.StepLR(o, 3, 0.5)),
    (MultiStep(0.1, (2, 5, 11), 0.3), lambda s, o: s.MultiStepLR(o, [2, 5, 11], 0.3)),
    (Exponential(0.1, 0.9), lambda s, o: s.ExponentialLR(o, 0.9)),
    (Cosine(0.1, 20, 0.01), lambda s, o: s.CosineAnnealingLR(o, 20, 0.01)),
    (Polynomial(0.1, 15, 2.0), lambda s, o: s.PolynomialLR(o, 15, 2.0)),
    (Polynomial(0.1, 30), lambda s, o: s.PolynomialLR(o, 30)),
    (WarmUp(0.1, 8, first=0.25), lambda s, o: s.LinearLR(o, 0.25, 1.0, 8)),
    (
        WarmUp(Exponential(0.1, 0.9), 8, first=0.25, inside=True),
        lambda s, o: s.ChainedScheduler([s.ExponentialLR(o, 0.9), s.LinearLR(o, 0.25, 1.0, 8)]),
    ),
    (
        WarmUp(Cosine(0.1, 20), 5, first=0.1),
        lambda s, o: s.SequentialLR(o, [s.LinearLR(o, 0.1, 1.0, 5), s.CosineAnnealingLR(o, 20)], [5]),
    ),
    (OneCycle(0.1, 20), lambda s, o: s.OneCycleLR(o, 0.1, 20, cycle_momentum=False)),
    (
        OneCycle(0.1, 25, rising=0.5, first=10.0, last=100.0),
        lambda s, o: s.OneCycleLR(o, 0.1, 25, pct_start=0.5, div_factor=10.0, final_div_factor=100.0,
                                  cycle_momentum=False),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("rate", "theirs"), SCHEDULES)
@pytest.mark.filterwarnings("ignore:.*epoch parameter")  # SequentialLR's own call
def test_schedules_as_in_pytorch(rate: Any, theirs: Callable[[Any, Any], Any]) -> None:
    """The rates that `at` tells, and those inside of a program, which show in the steps of SGD."""
    peer = Peer()
    optimizer = peer.torch.optim.SGD(peer.params.values(), lr=0.1)
    scheduler = theirs(peer.torch.optim.lr_scheduler, optimizer)
    rates: list[float] = []
    found = peer.train(optimizer, Recording(scheduler, optimizer, rates))
    assert [at(rate, t) for t in range(STEPS)] == pytest.approx(rates[:STEPS], rel=1e-12, abs=1e-17)
    follows(ours(Step(SGD(rate=rate))), found)


class Recording:
    """A scheduler that notes the rate that each step had."""

    def __init__(self, scheduler: Any, optimizer: Any, rates: list[float]) -> None:
        self.scheduler, self.optimizer, self.rates = scheduler, optimizer, rates
        self.rates.append(optimizer.param_groups[0]["lr"])

    def step(self) -> None:
        self.scheduler.step()
        self.rates.append(self.optimizer.param_groups[0]["lr"])


@given(value=st.floats(1e-6, 10), end=st.floats(0, 1), total=st.integers(1, 1000), t=st.integers(0, 2000))
def test_schedules_go_from_one_end_to_the_other_and_stay(value: float, end: float, total: int, t: int) -> None:
    low, high = sorted((value, end))
    for made in (Cosine(value, total, end), Polynomial(value, total, 1.5, end)):
        assert at(made, 0) == pytest.approx(value)
        assert at(made, total + t) == pytest.approx(end, abs=1e-12)
        assert low - 1e-9 <= at(made, t) <= high + 1e-9
    half = at(Cosine(value, total, end), total // 2) if total % 2 == 0 else (value + end) / 2
    assert half == pytest.approx((value + end) / 2)
    assert at(WarmUp(value, total), t) == pytest.approx(value * min(t / total, 1))
    assert at(Exponential(value, 0.5), t) == pytest.approx(value * math.pow(0.5, t))


def test_schedules_of_nothing_are_refused() -> None:
    for made in (
        lambda: Falling(0.1, 0),
        lambda: Cosine(0.1, 0),
        lambda: Polynomial(0.1, -1),
        lambda: WarmUp(0.1, 0),
        lambda: OneCycle(0.1, 1),
        lambda: OneCycle(0.1, 5, rising=0.0),
    ):
        with pytest.raises(InputError, match="must be above 0"):
            made()


# As plain data

numbers = st.floats(0, 1, exclude_min=True)
simple = st.one_of(
    numbers,
    st.builds(Constant, numbers),
    st.builds(Falling, numbers, st.integers(1, 9), numbers),
    st.builds(MultiStep, numbers, st.lists(st.integers(1, 9), max_size=3).map(tuple), numbers),
    st.builds(Exponential, numbers, numbers),
    st.builds(Cosine, numbers, st.integers(1, 9), numbers),
    st.builds(Polynomial, numbers, st.integers(1, 9), numbers, numbers),
    st.builds(OneCycle, numbers, st.integers(2, 9), numbers),
)
rates = st.recursive(simple, lambda r: st.builds(WarmUp, r, st.integers(1, 9), numbers, st.booleans()), max_leaves=3)
groups = st.lists(
    st.builds(Group, st.lists(st.text(), min_size=1).map(tuple), numbers, st.none() | numbers), max_size=2
).map(tuple)
kinds = st.sampled_from(list(KINDS.values()))
optimizers = st.builds(lambda kind, r, d, g: kind(rate=r, weight_decay=d, groups=g), kinds, rates, numbers, groups)


@given(optimizer=optimizers)
def test_plain_data_and_back(optimizer: Optimizer) -> None:
    assert from_dict(json.loads(json.dumps(optimizer.to_dict()))) == optimizer


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"kind": "Adam"},
        {"kind": "Nothing", "rate": 0.1, "groups": []},
        {**Adam().to_dict(), "speed": 3},
        {**Adam().to_dict(), "rate": {"kind": "Nothing"}},
        {**Adam().to_dict(), "groups": [3]},
        {**SGD().to_dict(), "nesterov": True},
    ],
)
def test_what_describes_no_optimizer_is_refused(data: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        from_dict(data)


def test_a_schedule_of_ones_own() -> None:
    class Slower:
        def rate(self, g: Any, t: Any) -> Any:
            return g.Div(g.const(0.1, DType.DOUBLE), g.Add(t, g.const(1.0, DType.DOUBLE)))

    assert [at(Slower(), t) for t in range(3)] == pytest.approx([0.1, 0.05, 0.1 / 3])
    peer = Peer()
    optimizer = peer.torch.optim.SGD(peer.params.values(), lr=0.1)
    theirs = peer.train(optimizer, peer.torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: 1 / (t + 1)))
    follows(ours(Step(SGD(rate=Slower()))), theirs)
    described = SGD(rate=Slower()).to_dict()
    assert described["rate"] == {"kind": "Slower"}
    with pytest.raises(InputError):
        from_dict(described)


# What a training step refuses


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_rate_of_0_moves_nothing(kind: str) -> None:
    """As a warm-up begins, and some schedules end: Ftrl divides by the rate, and made every weight NaN."""
    first = {"w": np.array([0.5, -2.0, 0.0, 3.0])}
    session = Session(update_graph(first, Step(KINDS[kind](rate=WarmUp(0.01, updates=2))), "gradient of {}".format))
    for moves in (False, True):
        session.states["gradient of w"][...] = [1.0, 0.0, 2.0, -1.0]
        session.run({"scale": np.array(1.0)})
        assert np.isfinite(session.states["w"]).all()
        assert moves or (session.states["w"] == first["w"]).all()


def test_what_cannot_be_trained_is_told() -> None:
    graph, loss = network()
    for names, wrong, what in (
        (["nothing"], loss, "no initialiser 'nothing'"),
        (NAMES, "nowhere", "no value 'nowhere'"),
        (NAMES, "t", "'t' is int64"),
    ):
        with pytest.raises(InputError, match=what):
            training_step(graph, wrong, names, Step(SGD()))
    unused = graph.but(initializers={**graph.initializers, "spare": np.zeros(3)})
    with pytest.raises(InputError, match="does not depend on spare"):
        training_step(unused, loss, [*NAMES, "spare"], Step(SGD()))
    with pytest.raises(InputError, match="momentum"):
        SGD(nesterov=True)
