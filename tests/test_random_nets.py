"""Networks of Gluon at random: as written, hybridized, and exported and loaded; what they answer, how they learn, and
what they answer then."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mezzo import nd
from mezzo.gluon import Trainer
from mezzo.nd import autograd, random
from mezzo.tools.load import load

from .random_nets import BATCHES, Array, Drawn, drawn

TOLERANCE = {"float32": 2e-4, "float64": 1e-10}  # of what is largest, and no less than of one
STORED = 1e-7  # the same of what a file in float64 answers: numbers among ONNX's attributes are float32
MOVED = {"float32": 2.0**-21, "float64": 2.0**-50}  # how far the parameters of a network are moved that shows its noise
NOISE = 100  # times as far as that may answers be apart
Answers = dict[str, Array]


def answered(net: Any, batches: list[list[Array]]) -> Answers:
    found: Answers = {}
    for i, batch in enumerate(batches):
        for name, y in zip(("answer", "loss"), net(*map(nd.asarray, batch)), strict=True):
            found[f"{name} {i}"] = y.asnumpy()
    return found


def exported(net: Any, case: Drawn, path: Path) -> Answers:
    """What a file of it answers."""
    net.export(path, *map(nd.asarray, case.batches[1]), dynamic={i: {0: "batch"} for i in range(5)})
    session, found = load(path), Answers()
    for i, batch in enumerate(case.batches):
        feeds = {port.name: batch[int(port.name.removeprefix("x"))] for port in session.inputs}
        for name, y in zip(("answer", "loss"), session.run(feeds).values(), strict=True):
            found[f"{name} {i}"] = np.asarray(y)
    return found


def trained(net: Any, case: Drawn, seed: int) -> Answers:
    """Losses and gradients of each step, and what has become of the parameters."""
    random.seed(seed)
    name, settings = case.optimizer
    parameters, found = net.collect_params(), Answers()
    trainer = Trainer(parameters, name, dict(settings))
    for i, batch in enumerate(case.batches):
        x, *others = map(nd.asarray, batch)
        x.attach_grad()
        with autograd.record():
            _, loss = net(x, *others)
        loss.backward()
        found |= {f"loss of step {i}": loss.asnumpy(), f"gradient of x {i}": x.grad.asnumpy()}
        found |= {f"gradient of {n} {i}": p.grad().asnumpy() for n, p in parameters.items() if p.grad_req != "null"}
        trainer.step(len(batch[0]))
    return found | {n: p.data().asnumpy() for n, p in parameters.items()}


def moved(net: Any) -> Any:
    """A copy whose parameters are off by a few roundings."""
    other, rng = deepcopy(net), np.random.default_rng(0)
    for p in other.collect_params().values():
        x = p.data().asnumpy()
        p.set_data(nd.asarray((x * (1 + MOVED[x.dtype.name] * rng.standard_normal(x.shape))).astype(x.dtype)))
    return other


def off(a: Answers, b: Answers) -> dict[str, float]:
    """How far answers are apart, in parts of the largest number, of its kind of answer where it is a gradient: some are
    zero but for rounding."""
    assert a.keys() == b.keys()
    largest = max((np.abs(x).max(initial=0) for n, x in b.items() if n.startswith("gradient")), default=0.0)
    found = {}
    for name, x in a.items():
        y = b[name]
        assert (x.shape, x.dtype) == (y.shape, y.dtype), name
        assert np.array_equal(np.isfinite(x), np.isfinite(y)), name
        scale = max(np.abs(y).max(initial=0), largest if name.startswith("gradient") else 1)
        found[name] = float(np.abs(np.nan_to_num(x) - np.nan_to_num(y)).max(initial=0) / (scale or 1))
    return found


def same(got: Answers, want: Answers, near: Any, least: float = 0.0) -> None:
    """These answers are those, but for what a network moved by roundings answers otherwise too."""
    tolerance = max(TOLERANCE[next(iter(want.values())).dtype.name], least)
    apart = {n: d for n, d in off(got, want).items() if d > tolerance}
    noise = off(near(), want) if apart else {}
    wrong = {n: (d, noise[n]) for n, d in apart.items() if d > tolerance + NOISE * noise[n]}
    assert not wrong, wrong


def check(case: Drawn, seed: int, path: Path) -> None:
    eager, hybrid = deepcopy(case.net), deepcopy(case.net)
    hybrid.hybridize()
    want = answered(eager, case.batches)
    near = moved(case.net)
    same(answered(hybrid, case.batches), want, lambda: answered(near, case.batches))
    same(exported(hybrid, case, path), want, lambda: answered(near, case.batches), STORED)
    same(trained(hybrid, case, seed), trained(eager, case, seed), lambda: trained(near, case, seed))
    want = answered(hybrid, case.batches)
    same(exported(hybrid, case, path), want, lambda: answered(moved(hybrid), case.batches), STORED)
    assert not hybrid.breaks


def check_all(seeds: range, path: Path) -> None:
    for seed in seeds:
        case = drawn(seed)
        try:
            check(case, seed, path / "net.onnx")
        except Exception as error:
            error.add_note(f"seed {seed}: {case.net}, {case.optimizer}")
            raise


def test_random_nets(tmp_path: Path) -> None:
    check_all(range(6), tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("part", range(30))
def test_many_random_nets(part: int, tmp_path: Path) -> None:
    check_all(range(1000 + 100 * part, 1100 + 100 * part), tmp_path)


def test_they_differ_and_have_batches_of_several_sizes() -> None:
    assert len({type(drawn(seed).net.net) for seed in range(8)}) == 3
    assert len({*BATCHES}) > 3
