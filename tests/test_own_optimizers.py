"""An optimizer of one's own is one class: it trains, steps on servers that have no such class, is saved, read back and
exported. So are initialisers of one's own."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mezzo as mz
from mezzo import nd
from mezzo.gluon import Trainer, nn
from mezzo.kvstore.updater import UpdateRule, flat, nested
from mezzo.models.digits import digits_model, held_out
from mezzo.nd import autograd, random
from mezzo.ops.core.expr import Expr, Expressions
from mezzo.ops.errors import InputError
from mezzo.runtime.optimizer import KINDS, Group, Optimizer, create, from_dict, register

from .models import ort_run, referee

MODULE = '''
import mezzo as mz


@mz.optimizer.register
class Signed(mz.optimizer.Optimizer):
    """Steps of one length against a running mean, which warms up; faster where the gradient is large."""

    share: float = 0.75
    gain: float = 0.1
    slots = ("mean",)
    first = 0.5

    def numbers(self, e, t):
        return (1.0 - e.pow(self.share, t + 1.0),)

    def update(self, e, W, dW, rate, unbias, mean):
        slope = self.decayed(W, dW)
        m = mean * self.share + slope * (1 - self.share)
        fast = e.where(e.greater(e.abs(slope), 1.0), e.abs(slope) * self.gain + 1.0, 1.0)
        return W - rate * e.sign(m / unbias) * fast, m
'''
GROUPS = (Group(("*bias*",), 0.5, 0.1),)


@pytest.fixture
def signed() -> Iterator[Any]:
    space: dict[str, Any] = {}
    exec(MODULE, space)
    yield space["Signed"]
    KINDS.pop("Signed", None)


def stepped(o: Any, w: Any, dw: Any, mean: Any, t: int, decay: float, scale: float) -> tuple[Any, Any]:
    """The same by hand; the number of the update counts from 1."""
    slope = dw + decay * w
    mean = o.share * mean + (1 - o.share) * slope
    fast = np.where(np.abs(slope) > 1, o.gain * np.abs(slope) + 1, 1)
    return w - scale * o.rate * np.sign(mean / (1 - o.share**t)) * fast, mean


def by_hand(o: Any, w: Any, gradients: Any, decay: float = 0.0, scale: float = 1.0) -> Any:
    mean = np.full_like(w, 0.5)
    for t, dw in enumerate(gradients, 1):
        w, mean = stepped(o, w, dw, mean, t, decay, scale)
    return w


def test_it_trains_in_a_trainer_and_goes_on_from_a_checkpoint(signed: Any, tmp_path: Path) -> None:
    digits = held_out()
    batch = {"image": digits.inputs[:64], "target": digits.labels[:64]}

    def trainer() -> mz.Trainer:
        return mz.Trainer(digits_model(), optimizer=signed(rate=0.0005, groups=GROUPS))

    whole, first, second = trainer(), trainer(), trainer()
    losses = [whole.step(batch) for _ in range(8)]
    assert len({*losses}) == 8
    before = [first.step(batch) for _ in range(4)]
    first.save(tmp_path / "kept")
    second.resume(tmp_path / "kept")
    assert [*before, *(second.step(batch) for _ in range(4))] == losses
    other = mz.Trainer(digits_model(), optimizer=signed(rate=0.0005, share=0.5))
    with pytest.raises(InputError, match="another graph"):
        other.resume(tmp_path / "kept")


def test_its_step_is_exported_as_standard_operators(signed: Any, tmp_path: Path) -> None:
    referee()
    digits = held_out()
    batch = {"image": digits.inputs[:16], "target": digits.labels[:16].astype(np.int64)}
    trainer = mz.Trainer(digits_model(), optimizer=signed(rate=0.0005))
    trainer.export_step(tmp_path / "step.onnx")
    session = mz.load(tmp_path / "step.onnx")
    every: dict[str, Any] = {**batch, **{n: np.array(a) for n, a in trainer.states.items()}}
    feeds = {p.name: every[p.name] for p in session.inputs}
    found = session.run(feeds)
    theirs = ort_run(tmp_path / "step.onnx", feeds)
    assert float(found[session.outputs[0].name]) == pytest.approx(trainer.step(batch), rel=1e-5)
    for name, value in theirs.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-3, atol=2e-3, err_msg=name)


@pytest.mark.parametrize("how", [{}, {"kvstore": "local"}, {"kvstore": "local", "update_on_kvstore": True}])
def test_it_trains_blocks_alone_and_on_a_store(signed: Any, how: dict[str, Any], tmp_path: Path) -> None:
    random.seed(1)
    net = nn.Dense(3, in_units=4).initialize("xavier").cast("float64")
    first = {n: p.data().asnumpy() for n, p in net.collect_params().items()}
    optimizer = signed(rate=0.05, groups=GROUPS)
    trainer = Trainer(net.collect_params(), optimizer, **how)
    rng, gradients = np.random.default_rng(0), []
    for _ in range(5):
        x = rng.standard_normal((2, 4))
        with autograd.record():
            loss = (net(nd.asarray(x)) * nd.asarray(np.arange(3.0))).sum()
        loss.backward()
        gradients.append({n: p.grad().asnumpy() / 2 for n, p in net.collect_params().items()})
        trainer.step(2)
    for name, decay, scale in (("weight", 0.0, 1.0), ("bias", 0.1, 0.5)):
        want = by_hand(optimizer, first[name], [g[name] for g in gradients], decay, scale)
        np.testing.assert_allclose(net.collect_params()[name].data().asnumpy(), want, rtol=1e-12)
    if not how:
        trainer.save_states(tmp_path / "states.npz")
        again = Trainer(net.collect_params(), "signed", {"learning_rate": 0.05})
        again.load_states(tmp_path / "states.npz")
        assert again.updates == 5


def test_a_process_without_the_class_steps_the_same_bits(signed: Any) -> None:
    optimizer = signed(rate=mz.schedule.Cosine(0.1, 9), groups=GROUPS)
    data = nested(flat(optimizer.to_dict()))  # what travels
    here = UpdateRule(data)
    assert here.optimizer == optimizer
    del KINDS["Signed"]
    there = UpdateRule(data)
    assert there.optimizer != optimizer
    assert there.optimizer.kind == "Signed"
    assert flat(there.data) == flat(here.data)
    rng = np.random.default_rng(0)
    for name in ("w", "bias"):
        values = [np.linspace(-1, 1, 50) for _ in range(2)]
        states = [rule.states(name, value) for rule, value in zip((here, there), values, strict=True)]
        for update in range(4):
            dw = rng.standard_normal(50) * 2
            for rule, value, state in zip((here, there), values, states, strict=True):
                rule.step(name, update, value, dw, state)
        np.testing.assert_array_equal(values[0], values[1])
    with pytest.raises(InputError, match=r"'Signed' is not known here.*\n.*register"):
        from_dict({n: v for n, v in data.items() if n != "rules"})


SCRIPT = (
    MODULE
    + """
import numpy as np
with mz.kv.create("dist_sync") as kv:
    kv.init("w", np.linspace(-1, 1, 40))
    kv.set_optimizer(Signed(rate=0.125, weight_decay=0.5))
    for update in range(3):
        kv.push("w", np.full(40, 0.25 * (kv.rank + 1) * (update + 1)))
        value = kv.pull("w")
    kv.save_optimizer_states("states.safetensors")
    kv.load_optimizer_states("states.safetensors")
    if kv.rank == 0:
        np.save("found.npy", value)
"""
)


@pytest.mark.parametrize("servers", [0, 1])
def test_servers_step_it_without_knowing_it(signed: Any, servers: int, tmp_path: Path) -> None:
    """The processes of servers run no script: all that they know is what travels."""
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "mezzo", "launch", "-n", "2", "-s", str(servers), "script.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    gradients = [np.full(40, 0.25 * 3 * (update + 1)) for update in range(3)]
    want = by_hand(signed(rate=0.125), np.linspace(-1, 1, 40), gradients, 0.5)
    np.testing.assert_allclose(np.load(tmp_path / "found.npy"), want, rtol=1e-12)


def test_a_data_class_of_the_standard_library_is_an_optimizer_too() -> None:
    @register
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Halving(Optimizer):
        share: float = 0.5

        def update(self, e: Any, W: Any, dW: Any, rate: Any) -> Any:
            return (W - rate * dW * self.share,)

    @register
    class Thirding(Halving):
        share: float = 1 / 3

    try:
        graph, data = digits_model(), held_out()
        feeds = {"image": data.inputs[:32], "target": data.labels[:32]}
        ours, theirs = (mz.Trainer(graph, optimizer=o) for o in (Halving(rate=0.02), mz.optimizer.SGD(rate=0.01)))
        assert [theirs.step(feeds) for _ in range(3)] == pytest.approx([ours.step(feeds) for _ in range(3)])
        assert from_dict(Thirding(rate=0.3).to_dict()) == create("thirding", rate=0.3)
    finally:
        del KINDS["Halving"], KINDS["Thirding"]


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("Adam", {"update": lambda self, *_: ()}, "there is an optimizer 'Adam' already"),
    ("adam", {"update": lambda self, *_: ()}, "there is an optimizer 'Adam' already"),
    ("Empty", {}, "Empty has no rule"),
]


@pytest.mark.parametrize(("name", "body", "said"), WRONG)
def test_what_cannot_be_registered(name: str, body: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        register(type(name, (Optimizer,), body))


def test_a_rule_that_gives_too_little_is_told() -> None:
    @register
    class Short(Optimizer):
        slots = ("a", "b")

        def update(self, e: Expressions, W: Expr, dW: Expr, rate: Expr, a: Expr, b: Expr) -> tuple[Expr, ...]:
            return W - rate * dW, a

    try:
        with pytest.raises(InputError, match="the rule of Short gives 2 results for the tensor and 2 states"):
            mz.Trainer(digits_model(), optimizer=Short())
    finally:
        del KINDS["Short"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"texts": [[0.0, "mul W dW -> #0"]]}, "other results"),
        ({"texts": [[1.0, "sub W dW -> #0 s0"]]}, "no rule for a weight decay of 0.0"),
        ({"numbers": "eval t -> #0"}, "no rule"),
        ({"draws": 1000}, "1000 draws"),
        ({"slots": 3}, "describes no optimizer"),
    ],
)
def test_rules_of_others_are_looked_at(signed: Any, change: dict[str, Any], said: str) -> None:
    data = signed().to_dict()
    del KINDS["Signed"]
    with pytest.raises(InputError, match=said):
        from_dict({**data, "rules": {**data["rules"], **change}})


def test_another_rule_under_the_same_name_is_told(signed: Any) -> None:
    data = signed().to_dict()
    space: dict[str, Any] = {}
    exec(MODULE.replace("gain + 1.0", "gain + 2.0"), space)
    with pytest.raises(InputError, match="'Signed' has another rule here"):
        from_dict(data)
    assert from_dict(space["Signed"]().to_dict()) == space["Signed"]()


def test_names_and_settings() -> None:
    assert create("NADAM", beta1=0.8) == mz.optimizer.Nadam(beta1=0.8)
    with pytest.raises(InputError, match=r"did you mean 'adagrad'"):
        create("adagrat")
    with pytest.raises(InputError, match=r"Adam has no setting 'speed'.*\n.*beta1"):
        create("adam", speed=3)


# -- the trainer of blocks --------------------------------------------------------------------------------------------


def dense(seed: int = 3) -> Any:
    random.seed(seed)
    return nn.Dense(2, in_units=3).initialize("xavier").cast("float64")


def learned(net: Any, trainer: Trainer, batches: Any) -> Any:
    for x in batches:
        with autograd.record():
            loss = (net(nd.asarray(x)) ** 2).sum()
        loss.backward()
        trainer.step(len(x))
    return net.weight.data().asnumpy()


BATCHES = [np.random.default_rng(i).standard_normal((3, 3)) for i in range(6)]


def test_gathered_gradients_are_those_of_one_large_batch() -> None:
    whole = [np.concatenate(BATCHES[i : i + 3]) for i in (0, 3)]
    net, other = dense(), dense()
    want = learned(net, Trainer(net.collect_params(), "adam", {"lr": 0.1}), whole)
    trainer = Trainer(other.collect_params(), "adam", {"lr": 0.1}, gather=3)
    np.testing.assert_allclose(learned(other, trainer, BATCHES), want, rtol=1e-12)
    assert trainer.updates == 2
    learned(other, trainer, BATCHES[:1])
    with pytest.raises(InputError, match="1 of 3 calls"):
        trainer.save_states("nowhere.npz")
    other.weight.grad_req = "add"
    with pytest.raises(InputError, match="gradients that are added"):
        Trainer(other.collect_params(), gather=2)


@pytest.mark.parametrize("clip", [{"clip_norm": 0.1}, {"clip_value": 0.05}])
def test_clipped_gradients(clip: dict[str, float]) -> None:
    net = dense()
    w, b = (p.data().asnumpy() for p in net.collect_params().values())
    found = learned(net, Trainer(net.collect_params(), "sgd", {"lr": 1.0}, **clip), BATCHES[:1])
    y = 2 * (BATCHES[0] @ w.T + b) / 3
    dw, db = y.T @ BATCHES[0], y.sum(0)
    if "clip_norm" in clip:
        dw *= 0.1 / (np.sqrt((dw**2).sum() + (db**2).sum()) + 1e-6)
    np.testing.assert_allclose(found, w - np.clip(dw, -0.05, 0.05) if "clip_value" in clip else w - dw, rtol=1e-6)
    with pytest.raises(InputError, match="all workers together"):
        Trainer(net.collect_params(), kvstore="local", update_on_kvstore=True, **clip)


def test_the_rate_can_be_read_and_set() -> None:
    net, other = dense(), dense()
    trainer = Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1, "momentum": 0.9})
    learned(net, trainer, BATCHES[:2])
    function = trainer._function
    trainer.learning_rate = 0.01
    assert trainer.learning_rate == 0.01
    learned(net, trainer, BATCHES[2:4])
    assert trainer._function is function, "another number is no other program"
    trainer.set_learning_rate(mz.schedule.Exponential(0.32, 0.5))
    assert trainer.learning_rate == 0.32 / 16
    found = learned(net, trainer, BATCHES[4:])
    plan = mz.schedule.MultiStep(0.1, (2,), 0.1)
    optimizer = mz.optimizer.SGD(rate=plan, momentum=0.9)
    same = Trainer(other.collect_params(), optimizer)
    learned(other, same, BATCHES[:4])
    same.set_learning_rate(0.02)
    learned(other, same, BATCHES[4:5])
    same.learning_rate /= 2
    np.testing.assert_allclose(learned(other, same, BATCHES[5:]), found, rtol=1e-12)
    on_store = Trainer(net.collect_params(), kvstore="local", update_on_kvstore=True)
    with pytest.raises(InputError, match="on the store"):
        on_store.learning_rate = 0.1


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"clip_gradient": 1.0}, "clip_value="),
        ({"betas": (0.9, 0.99)}, "beta1= and beta2="),
        ({"rescale_grad": 0.1}, "batch_size"),
        ({"speed": 1}, "no setting 'speed'"),
    ],
)
def test_names_of_others_are_answered(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        Trainer(dense().collect_params(), "adam", settings)
