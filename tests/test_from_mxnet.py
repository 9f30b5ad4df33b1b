"""The table of docs/from-mxnet.md: every name in it is there."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mezzo
import mezzo.compat.mxnet as mx

PAGE = Path(__file__).parents[1] / "docs/from-mxnet.md"
ROWS = [line.strip().strip("|").split("|") for line in PAGE.read_text("utf8").splitlines() if line.startswith("| ")]
OLD = sorted({n for row in ROWS[1:] for n in re.findall(r"`([\w.]+)`", row[1])})
NEW = sorted({n for row in ROWS[1:] for n in re.findall(r"`([\w.]+)`", row[2])})


def looked_up(root: Any, name: str) -> Any:
    for part in name.split("."):
        root = getattr(root, part)
    return root


@pytest.mark.parametrize(("root", "names"), [(mx, OLD), (mezzo, NEW)], ids=["old", "new"])
def test_every_name_is_there(root: Any, names: list[str]) -> None:
    assert len(names) > 60
    missing = []
    for name in names:
        try:
            looked_up(root, name)
        except AttributeError:
            missing.append(name)
    assert not missing


def test_what_is_not_there_is_missing() -> None:
    with pytest.raises(AttributeError):
        looked_up(mx, "nd.no_such_function")


def test_refused_operators_are_named() -> None:
    """The list of docs/mxnet.md is MXNet's registry without what is carried."""
    path = PAGE.parents[2] / "shared/mxnet-fixtures/op_registry_1.9.1.json"
    if not path.exists():
        pytest.skip("../shared is not here")
    from mezzo.importers.mxnet.operators import RULES

    registry = json.loads(path.read_text("utf8"))
    names: dict[str, list[str]] = {}
    for name, known in registry.items():
        names.setdefault(known["canonical"], []).append(name)
    forward = {n for n in names if "backward" not in n}
    refused = {n for n in forward if RULES.keys().isdisjoint(names[n])}
    text = (PAGE.parent / "mxnet.md").read_text("utf8")
    section = text.split("## What is refused")[1].split("## ")[0]
    assert refused == {n for n in re.findall(r"`(\w+)`", section) if n in forward}
    numpys = {n for n in forward if n.startswith("_np")}
    others = forward - numpys
    told = f"{len(others - refused)} of the {len(others)}", f"{len(numpys - refused)} of the {len(numpys)}"
    assert all(t in text for t in told), told


def test_schedules_count_updates_from_1() -> None:
    """Rates of a real MXNet 1.9.1; a trainer's first update has number 1."""
    schedules = mx.lr_scheduler
    poly, cosine = (k(max_update=10, base_lr=0.1) for k in (schedules.PolyScheduler, schedules.CosineScheduler))
    assert [round(poly(n), 5) for n in (0, 1, 5, 10, 11)] == [0.1, 0.081, 0.025, 0.0, 0.0]
    assert [round(cosine(n), 5) for n in (0, 1, 5, 10)] == [0.1, 0.09755, 0.05, 0.0]
    steps = schedules.FactorScheduler(step=2, factor=0.5, base_lr=0.1)
    assert [steps(n) for n in (0, 1, 2, 3, 4, 5)] == [0.1, 0.1, 0.1, 0.05, 0.05, 0.025]
    chosen = mx.optimizer.create("sgd", learning_rate=0.1, lr_scheduler=poly)
    assert round(chosen.learning_rate, 5) == 0.081
    assert mezzo.optimizer.from_dict(chosen.rule.to_dict()) == chosen.rule


def test_arrays_in_the_manner_of_mxnet() -> None:
    x = mx.nd.arange(6).reshape((2, 3))
    assert mx.nd.ones((2, 3, 4)).reshape((0, -1)).shape == (2, 12)
    assert mx.nd.dot(x, x, transpose_b=True).asnumpy().tolist() == [[5, 14], [14, 50]]
    assert mx.nd.dot(x, x, transpose_a=True).shape == (3, 3)
    rows = mx.nd.where(mx.nd.array([1, 0]), x, mx.nd.zeros((2, 3)))
    assert rows.asnumpy().tolist() == [[0, 1, 2], [0, 0, 0]]
    masked = mx.nd.SequenceMask(x, mx.nd.array([1, 2, 0]), use_sequence_length=True, value=-1)
    assert masked.asnumpy().tolist() == [[0, 1, -1], [-1, 4, -1]]
    assert x[mx.nd.array([1, 0])].asnumpy().tolist() == [[3, 4, 5], [0, 1, 2]]
    with pytest.raises(mezzo.MezzoError, match="an index of float32"):
        x[mx.nd.array([0.5])]


def test_control_flow_over_arrays() -> None:
    data = mx.nd.arange(3)
    out, state = mx.nd.contrib.foreach(lambda d, s: (d + s, d + s), data, mx.nd.zeros(1))
    assert (out.asnumpy().ravel().tolist(), state.asnumpy().tolist()) == ([0, 1, 3], [3])
    out, values = mx.nd.contrib.while_loop(lambda i: i < 2, lambda i: (i * 10, [i + 1]), [mx.nd.zeros(1)], 3)
    assert (out.asnumpy().ravel().tolist(), values[0].asnumpy().tolist()) == ([0, 10, 0], [2])
    assert mx.nd.contrib.cond(mx.nd.ones(1), lambda: "then", lambda: "else") == "then"


def test_arrays_have_mxnets_keywords_and_rounding() -> None:
    from mezzo.compat.mxnet import nd

    x = nd.array([0.5, 1.5, -0.5, -2.4, 0.49999997])
    assert nd.round(x).asnumpy().tolist() == [1, 2, -1, -2, 0], "halves go away from zero"
    assert nd.sort(nd.array([1, 3, 2]), is_ascend=False).asnumpy().tolist() == [3, 2, 1]
    assert nd.clip(nd.array([1, 5]), a_min=2, a_max=3).asnumpy().tolist() == [2, 3]
    assert nd.repeat(nd.array([1, 2]), repeats=2).asnumpy().tolist() == [1, 1, 2, 2]
    assert nd.tile(nd.array([1, 2]), reps=(2,)).asnumpy().tolist() == [1, 2, 1, 2]


def test_names_are_counted_in_each_scope() -> None:
    def named() -> list[str]:
        return [mx.sym.FullyConnected(mx.sym.var("x"), num_hidden=2).name for _ in range(2)]

    scopes: list[Any] = [mx.name.NameManager(), mx.name.NameManager(), mx.name.Prefix("p_")]
    outside, counted = named(), []
    for scope in scopes:
        with scope:
            counted.append(named())
    own = ["fullyconnected0", "fullyconnected1"]
    assert counted == [own, own, [f"p_{name}" for name in own]]
    assert not {*named()} & {*outside}


def test_decay_of_a_rule_of_mxnet() -> None:
    """A module takes rules that have no name of ours, and leaves biases without decay."""
    symbol = mx.sym.LinearRegressionOutput(mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=1, name="fc"))
    rows = mx.io.NDArrayIter(
        np.zeros((4, 2), np.float32), np.zeros((4, 1), np.float32), 4, label_name=symbol.list_arguments()[-1]
    )
    module = mx.mod.Module(symbol, label_names=[rows.provide_label[0].name])
    module.bind(rows.provide_data, rows.provide_label)
    module.init_params(mx.init.One(), arg_params={"fc_bias": mx.nd.zeros(1)}, allow_missing=True)
    module.init_optimizer(optimizer="adagrad", optimizer_params={"learning_rate": 0.5, "wd": 0.1})
    module.forward_backward(next(rows))
    module.update()
    params = module.get_params()[0]
    np.testing.assert_allclose(params["fc_weight"].asnumpy(), 1 - 0.5 * 0.1, rtol=1e-6)
    assert params["fc_bias"].asnumpy() == 0


def test_initialisers_in_the_manner_of_mxnet() -> None:
    """Numbers of a real MXNet 1.9.1: only weights are asked about, and both spreads can be Gaussian."""
    init = mx.init

    def filled(by: Any, name: str, *shape: int) -> Any:
        array = mx.nd.zeros(shape)
        by(init.InitDesc(name), array)
        return array.asnumpy()

    assert filled(init.Zero(), "bn_gamma", 2).tolist() == [1, 1]
    assert filled(init.Mixed([".*bias", ".*"], [init.Constant(2), init.One()]), "x_bias", 2).tolist() == [0, 0]
    assert filled(init.LSTMBias(2.0), "a_bias", 4).tolist() == [0, 0, 0, 0]
    assert filled(init.Xavier("gaussian", "in", 2), "a_weight", 400, 300).std() == pytest.approx(0.0816, abs=0.002)
    assert filled(init.MSRAPrelu(), "a_weight", 400, 300).std() == pytest.approx(0.0733, abs=0.002)


@pytest.mark.parametrize(
    ("settings", "first"),
    [({}, 0.05), ({"normalization": "batch"}, 0.025), ({"normalization": "valid"}, 0.025), ({"grad_scale": 3}, 0.15)],
)
def test_softmax_of_many_places(settings: dict[str, Any], first: float) -> None:
    """Each place has a class; the gradient is divided by the places, as in MXNet (softmax_output-inl.h)."""
    head = mx.sym.SoftmaxOutput(mx.sym.var("data"), multi_output=True, name="softmax", **settings)
    run = head.simple_bind(mx.cpu(), data=(2, 10, 2))
    run.arg_dict["softmax_label"][:] = mx.nd.ones((2, 2))
    run.forward(is_train=True)
    run.backward()
    assert run.grad_dict["data"].asnumpy()[:, 0] == pytest.approx(np.full((2, 2), first), rel=1e-5)


def test_symbols_that_are_composed_and_copied_into() -> None:
    layer = mx.sym.FullyConnected(mx.sym.var("in"), name="old", num_hidden=2)
    made = layer(mx.sym.var("data"), name="new")
    assert (made.name, made.list_outputs()) == ("new", ["new_output"])
    assert made.list_arguments() == ["data", "old_weight", "old_bias"]
    run = made.simple_bind(mx.cpu(), data=(1, 3))
    given = {"old_weight": mx.nd.ones((2, 3)), "none": mx.nd.ones(1)}
    run.copy_params_from(given, allow_extra_params=True)
    assert run.forward(data=mx.nd.ones((1, 3)))[0].asnumpy().tolist() == [[3, 3]]
    with pytest.raises(mezzo.MezzoError, match="none"):
        run.copy_params_from(given)


def test_an_optimizer_names_the_setting_that_is_not_there() -> None:
    with pytest.raises(mezzo.MezzoError, match="clip_weights"):
        mx.optimizer.create("rmsprop", clip_weights=0.25)


def test_missing_names_say_what_to_do() -> None:
    from mezzo.tools.mx.absent import ABSENT

    for module, names in ABSENT.items():
        root = looked_up(mx, module) if module else mx
        for name, told in names.items():
            with pytest.raises(AttributeError, match=f"{name} is not there") as e:
                getattr(root, name)
            assert told in str(e.value)
    assert not hasattr(mx.mod, "no_such_name")
    assert not hasattr(mx, "no_such_name")


def test_a_store_scales_and_clips_gradients() -> None:
    """Numbers of a real MXNet 1.9.1."""
    store = mx.kv.create("local")
    store.set_optimizer(mx.optimizer.create("sgd", learning_rate=0.1, rescale_grad=0.5, clip_gradient=2))
    store.init("w", mx.nd.ones(3))
    store.push("w", [mx.nd.array([1, 2, 3]), mx.nd.array([1, 0, 9])])
    out = mx.nd.zeros(3)
    store.pull("w", out=out)
    np.testing.assert_allclose(out.asnumpy(), [0.9, 0.9, 0.8], rtol=1e-6)


def test_fit_begins_again_behind_each_epoch() -> None:
    """As in MXNet, where an iterator that shuffles is not asked to do so before the first epoch."""

    base: Any = mx.io.NDArrayIter

    class Rows(base):  # type: ignore[misc]
        resets = 0

        def reset(self) -> None:
            self.resets += 1
            super().reset()

    rows = Rows(np.zeros((4, 2), np.float32), np.zeros(4, np.float32), 2)
    symbol = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=2), name="softmax")
    mx.mod.Module(symbol).fit(rows, num_epoch=3)
    assert rows.resets == 3


@pytest.mark.parametrize(
    ("name", "at", "slopes"),
    [
        ("gammaln", [0.3, 1, 2], [-3.502524, -0.5772157, 0.42278433]),
        ("gamma", [0.3, 1, 2], [-10.478042, -0.5772157, 0.42278433]),
        ("erfinv", [0, 0.5, -0.9, 1], [0.88622695, 1.112585, 3.4280424, np.inf]),
    ],
)
def test_slopes_where_a_form_changes(name: str, at: list[float], slopes: list[float]) -> None:
    """Numbers of a real MXNet 1.9.1."""
    x = mx.nd.array(at)
    x.attach_grad()
    with mx.autograd.record():
        y = getattr(mx.nd, name)(x)
    y.backward()
    np.testing.assert_allclose(x.grad.asnumpy(), slopes, rtol=1e-4)


def test_remainders_of_nothing_are_nothing() -> None:
    """Numbers of a real MXNet 1.9.1: 0 where the divisor is 0, else the sign of the divisor."""
    a, b = mx.nd.array([5, -5, 5, 0, 7.5]), mx.nd.array([0, 3, -3, 0, 2])
    for made in (a % b, mx.nd.modulo(a, b), mx.nd.broadcast_mod(a, b)):
        assert made.asnumpy().tolist() == [0, 1, -1, 0, 1.5]
    assert (a % 0).asnumpy().tolist() == [0] * 5
    assert (7 % b).asnumpy().tolist() == [0, 1, -2, 0, 1]
    whole = mx.nd.array([5, -5, 5], dtype="int32")
    assert (whole % mx.nd.array([0, 3, -3], dtype="int32")).asnumpy().tolist() == [0, 1, -1]
    assert (whole % 2.7).asnumpy().tolist() == [1, 1, 1]


def test_a_schedule_of_ones_own_is_asked_once_an_update() -> None:
    asked = []

    base: Any = mx.lr_scheduler.LRScheduler

    class Own(base):  # type: ignore[misc]
        def __call__(self, num_update: int) -> float:
            asked.append(num_update)
            return 0.1

    net = mx.gluon.nn.Dense(1, in_units=1)
    net.initialize()
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"lr_scheduler": Own()})
    asked.clear()
    for _ in range(2):
        with mx.autograd.record():
            loss = net(mx.nd.ones((1, 1)))
        loss.backward()
        trainer.allreduce_grads()
        trainer.step(1)
    assert asked == [1, 2]


def test_rates_as_a_trainer_tells_them() -> None:
    """Numbers of a real MXNet 1.9.1: that of the last update; Adam's own rate takes the place of the schedule's."""
    net = mx.gluon.nn.Dense(1, in_units=1)
    net.initialize()
    schedule = mx.lr_scheduler.FactorScheduler(2, 0.5, base_lr=0.1)
    trainer = mx.gluon.Trainer(net.collect_params(), "adam", {"lr_scheduler": schedule})
    rates = []
    for _ in range(5):
        with mx.autograd.record():
            loss = net(mx.nd.ones((1, 1)))
        loss.backward()
        trainer.step(1)
        rates.append(trainer.learning_rate)
    assert rates == pytest.approx([0.001, 0.001, 0.0005, 0.0005, 0.00025])


@pytest.mark.parametrize("average", ["macro", "micro"])
def test_correlations_of_batches(average: str) -> None:
    """The mean over batches, or that of all elements."""
    metric = mx.metric.PearsonCorrelation(average=average)
    for label, pred in (([0, 1], [0, 1]), ([0, 1, 0, 1], [0, 0, 1, 1])):
        metric.update([mx.nd.array(label)], [mx.nd.array(pred)])
    joined = np.corrcoef([0, 1, 0, 1, 0, 1], [0, 1, 0, 0, 1, 1])[0, 1]
    assert metric.get()[1] == pytest.approx(0.5 if average == "macro" else joined)


def test_accuracy_along_another_axis() -> None:
    metric = mx.metric.Accuracy(axis=2)
    metric.update([mx.nd.array([[0, 1, 1]])], [mx.nd.array([[[0.9, 0.1], [0.9, 0.1], [0.2, 0.8]]])])
    assert metric.get()[1] == pytest.approx(2 / 3)


def test_recurrent_layers_share_parameters() -> None:
    first = mx.gluon.rnn.LSTM(3, input_size=2)
    first.initialize()
    second = mx.gluon.rnn.LSTM(3, input_size=2, params=first.params)
    assert second.l0_i2h_weight is first.l0_i2h_weight


def test_parts_of_what_does_not_divide() -> None:
    parts = mx.gluon.utils.split_data(mx.nd.ones((5, 2)), 3, even_split=False)
    assert [p.shape[0] for p in parts] == [2, 2, 1]
