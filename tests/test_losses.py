"""What a Trainer learns by: several outputs and losses, weights, functions; and what it tells of each step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mezzo as mz
from mezzo.ops import DType, Tensor
from mezzo.ops.errors import InputError
from mezzo.ops.types import f32
from mezzo.runtime.ir.graph import Graph, GraphBuilder
from mezzo.runtime.optimizer import SGD, Adagrad, Adam
from mezzo.runtime.optimizer.schedule import Step
from mezzo.train.building import RATE
from mezzo.train.loss import OTHER_NAMES, cross_entropy, custom, loss_named
from mezzo.train.metrics import LossOf
from mezzo.train.names import FIT, TRAINER
from mezzo.train.trainer import Trainer

from .networks import batch_for, mlp
from .peers import peer

Array = np.ndarray[Any, Any]


def heads(dtype: DType = DType.DOUBLE) -> Graph:
    """A body of one layer and three linear heads: scores of three classes, two numbers, one logit."""
    rng, g = np.random.default_rng(0), GraphBuilder("heads")
    x = g.input("x", f32("n", 4).to(dtype))
    body = g.Tanh(g.MatMul(x, g.const(rng.standard_normal((4, 6)).astype(dtype.numpy))))
    ends = [g.MatMul(body, g.const(rng.standard_normal((6, n)).astype(dtype.numpy))) for n in (3, 2, 1)]
    names = dict(zip(ends, ("kind", "where", "there"), strict=True))
    graph = g.graph(ends)
    nodes = [n for n in graph.nodes if n.outputs[0] not in names]
    from dataclasses import replace

    nodes += [replace(n, outputs=(names[n.outputs[0]],)) for n in graph.nodes if n.outputs[0] in names]
    return graph.but(nodes=tuple(nodes), outputs=tuple(names.values()))


def batch(n: int = 5, seed: int = 0) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    return {
        "x": rng.standard_normal((n, 4)), "kind_target": rng.integers(0, 3, n),
        "where_target": rng.standard_normal((n, 2)), "there_target": rng.integers(0, 2, (n, 1)).astype(float),
    }  # fmt: skip


LOSSES: dict[Any, Any] = {"kind": "cross_entropy", "where": (0.5, "l1"), "there": (2.0, "binary_cross_entropy")}


# Several outputs


def test_several_losses_with_weights_are_those_of_pytorch(tmp_path: Path) -> None:
    torch = peer("torch")
    functions = torch.nn.functional
    trainer = Trainer(heads(), loss=LOSSES, optimizer=SGD(rate=0.1, momentum=0.9))
    mine = {n: torch.tensor(a, requires_grad=True) for n, a in trainer.parameters.items()}
    stepper = torch.optim.SGD(mine.values(), lr=0.1, momentum=0.9)
    for number in range(6):
        feeds = batch(4 + number, number)
        x, kind, where, there = (torch.tensor(a) for a in feeds.values())
        body, *ends = mine.values()
        ys = [torch.tanh(x @ body) @ end for end in ends]
        terms = (
            functions.cross_entropy(ys[0], kind), functions.l1_loss(ys[1], where),
            functions.binary_cross_entropy_with_logits(ys[2], there),
        )  # fmt: skip
        loss = terms[0] + 0.5 * terms[1] + 2.0 * terms[2]
        stepper.zero_grad()
        loss.backward()
        trainer.reset_metrics()
        assert trainer.step(feeds) == pytest.approx(float(loss.detach()), rel=1e-12)
        told = trainer.metrics()
        assert [*told.losses.values()] == pytest.approx([float(t.detach()) for t in terms], rel=1e-12)
        assert told.accuracy == (ys[0].argmax(1) == kind).double().mean()
        norm = torch.sqrt(sum((p.grad**2).sum() for p in mine.values()))
        assert trainer.last.norm == pytest.approx(float(norm), rel=1e-12)
        stepper.step()
    for name, p in mine.items():
        np.testing.assert_allclose(trainer.parameters[name], p.detach().numpy(), rtol=1e-12, atol=1e-14)
    assert trainer.evaluate([feeds]).losses.keys() == {"kind", "where", "there"}
    trainer.export(tmp_path / "heads.onnx")
    assert mz.load(tmp_path / "heads.onnx").run({"x": feeds["x"]}).keys() == {"kind", "where", "there"}


def test_a_loss_of_several_outputs_and_one_without_a_target() -> None:
    def off(where: Any, there: Any, target: Any) -> Any:
        return mz.sym.mean((where - target) ** 2, axis=1) * mz.sym.sigmoid(there).Squeeze(np.array([1]))

    def small(kind: Any) -> Any:
        return kind * kind

    losses = {("where", "there"): off, "kind": (0.25, small)}
    trainer = Trainer(heads(), loss=losses, optimizer=SGD(rate=0.0))
    feeds = batch()
    kind, where, there = mz.Session(heads()).run({"x": feeds["x"]}).values()
    each = ((where - feeds["where_target"]) ** 2).mean(1) / (1 + np.exp(-there[:, 0]))
    asked = {"x": feeds["x"], "where_there_target": feeds["where_target"]}
    assert trainer.step(asked) == pytest.approx(each.mean() + 0.25 * (kind**2).mean(), rel=1e-12)


def test_what_does_not_fit_is_told() -> None:
    for how, what in (
        ({"loss": {"nowhere": "mse"}}, "'nowhere'"),
        ({"loss": {}}, "no loss"),
        ({"loss": LOSSES, "output": "kind"}, "output beside losses"),
        ({"loss": {"kind": ("much", "mse")}}, "weight 'much'"),
        ({"loss": "mse"}, "which output"),
        ({"loss": {"where": lambda a, b, c: a}}, "takes 3 operands"),
        ({"loss": {"where": lambda a, t: 3}}, "returns int"),
        ({"loss": {"where": lambda a, t: mz.nd.abs(mz.sym.abs(a - t))}}, "mz.sym"),
        ({"loss": LOSSES, "metrics": ["accuracy"]}, "which output"),
        ({"loss": LOSSES, "metrics": {"nowhere": ["mae"]}}, "'nowhere'"),
        ({"loss": LOSSES, "metrics": {"kind": ["topk"]}}, "'top_k' here"),
    ):
        with pytest.raises(InputError, match=what):
            Trainer(heads(), **how)


# Weights of samples, classes, labels


def test_a_weight_of_two_is_a_sample_that_is_there_twice() -> None:
    graph = mlp(DType.DOUBLE)
    feeds = batch_for(graph, 0)
    twice = {n: np.concatenate([a, a[:1]]) for n, a in feeds.items()}
    weights = np.ones(8)
    weights[0] = 2
    one = Trainer(graph, optimizer=SGD(rate=0.1), sample_weights=True)
    other = Trainer(graph, optimizer=SGD(rate=0.1 * 9 / 8))  # a mean over 9
    loss = one.step({**feeds, "sample_weight": weights})
    assert loss == pytest.approx(other.step(twice) * 9 / 8, rel=1e-12)
    for name, array in one.parameters.items():
        np.testing.assert_allclose(array, other.parameters[name], rtol=1e-12)
    with pytest.raises(InputError, match="sample_weight"):
        one.step(feeds)
    with pytest.raises(InputError, match="one number"):
        Trainer(graph, loss=custom(lambda y, t: mz.sym.mean(abs(y - t))), sample_weights=True)


@pytest.mark.parametrize("pixels", [False, True])
@pytest.mark.parametrize(
    "how",
    [
        {"ignore_index": -100}, {"class_weights": [0.5, 1.0, 2.0]}, {"label_smoothing": 0.1},
        {"ignore_index": 1, "class_weights": [0.5, 1.0, 2.0], "label_smoothing": 0.2},
    ],
)  # fmt: skip
def test_cross_entropies_of_pytorch(how: dict[str, Any], *, pixels: bool) -> None:
    """Ignored labels, weights of classes and smoothed labels, of samples and of pixels, alone and with weights."""
    torch = peer("torch")
    rng = np.random.default_rng(1)
    shape = (6, 3, 4) if pixels else (6, 3)
    g = GraphBuilder()
    y = g.Mul(g.input("x", f32("n", *shape[1:]).to(DType.DOUBLE)), g.const(np.full(shape[1:], 0.7)))
    graph, x = g.graph([y]), rng.standard_normal(shape)
    target = rng.integers(0, 3, (6, *shape[2:]))
    if "ignore_index" in how:
        target[:2] = how["ignore_index"]
    names = {"class_weights": "weight"}
    given = {names.get(n, n): torch.tensor(v, dtype=torch.float64) if n in names else v for n, v in how.items()}
    scores = (0.7 * torch.tensor(x)).requires_grad_()
    want = torch.nn.functional.cross_entropy(scores, torch.tensor(target), **given)
    trainer = Trainer(graph, loss=cross_entropy(**how), optimizer=SGD(rate=1.0))
    before = {n: a.copy() for n, a in trainer.parameters.items()}
    assert trainer.step({"x": x, "target": target}) == pytest.approx(float(want.detach()), rel=1e-12)
    want.backward()
    (moved,) = (before[n] - a for n, a in trainer.parameters.items())
    np.testing.assert_allclose(moved, (scores.grad.numpy() * x).sum(0), rtol=1e-9, atol=1e-14)
    kept = target != how.get("ignore_index")
    right = (0.7 * x).argmax(1) == target
    assert trainer.metrics().accuracy == pytest.approx(right[kept].mean(), abs=0.5 / 6)
    weighed = Trainer(graph, loss=cross_entropy(**how), optimizer=SGD(rate=1.0), sample_weights=True)
    assert weighed.step({"x": x, "target": target, "sample_weight": np.ones(6)}) == pytest.approx(
        float(want.detach()), rel=1e-12
    )
    with pytest.raises(InputError, match="share"):
        cross_entropy(label_smoothing=1.0)


def test_a_plain_function_is_a_loss() -> None:
    def quantile(y: Any, target: Any) -> Any:
        off = target - y
        return mz.sym.maximum(0.9 * off, -0.1 * off)

    def the_same(y: Any, target: Any) -> Any:
        space = y.__array_namespace__()
        off = target - y
        return space.mean(space.where(off > 0, 0.9 * off, -0.1 * off))

    graph = mlp(DType.DOUBLE)
    feeds = {**batch_for(graph, 0), "target": np.random.default_rng(0).standard_normal((8, 5))}
    (y,) = mz.Session(graph).run({"x": feeds["x"]}).values()
    off = feeds["target"] - y
    want = np.maximum(0.9 * off, -0.1 * off).mean()
    one, other = (Trainer(graph, loss=f, optimizer=Adam(rate=0.01)) for f in (quantile, the_same))
    first = one.step(feeds)
    assert first == pytest.approx(want, rel=1e-12)
    assert other.step(feeds) == pytest.approx(want, rel=1e-12)
    for _ in range(30):
        assert one.step(feeds) == pytest.approx(other.step(feeds), rel=1e-9)
    assert one.step(feeds) < 0.8 * first
    assert one.evaluate([feeds]).loss == pytest.approx(one.step(feeds), rel=1e-6)
    classes = custom(
        lambda y, t: -mz.sym.log_softmax(y, axis=1).GatherElements(t.Unsqueeze(np.array([1])), axis=1), "classes"
    )
    feeds = batch_for(graph, 0)
    assert Trainer(graph, loss=classes).step(feeds) == pytest.approx(Trainer(graph).step(feeds), rel=1e-12)


# Rates, norms, names


def test_the_rate_can_be_read_and_set() -> None:
    graph = mlp(DType.DOUBLE)
    feeds = batch_for(graph, 0)
    trainer = Trainer(graph, optimizer=SGD(rate=0.1))
    assert trainer.rate == 0.1
    before = {n: a.copy() for n, a in trainer.parameters.items()}
    trainer.step(feeds)
    first = {n: a - before[n] for n, a in trainer.parameters.items()}
    assert trainer.last.rate == 0.1
    again = Trainer(graph, optimizer=SGD(rate=0.1))
    again.rate = 0.025
    again.step(feeds)
    for n, a in again.parameters.items():
        np.testing.assert_allclose(a - before[n], first[n] / 4, rtol=1e-9, atol=1e-15)
    assert (again.rate, again.last.rate) == (0.025, 0.025)
    for bad in (-1.0, float("nan"), float("inf")):
        with pytest.raises(InputError, match="a rate of"):
            again.rate = bad


def test_a_schedule_goes_on_from_the_rate_that_is_set(tmp_path: Path) -> None:
    graph = mlp()
    feeds = batch_for(graph, 0)
    trainer = Trainer(graph, optimizer=SGD(rate=Step(0.1, every=2, factor=0.5)))
    rates = []
    for number in range(6):
        if number == 3:
            trainer.rate = 0.4
        rates.append(trainer.rate)
        trainer.step(feeds)
        assert trainer.last.rate == pytest.approx(rates[-1])
    assert rates == pytest.approx([0.1, 0.1, 0.05, 0.4, 0.2, 0.2])
    trainer.save(tmp_path / "kept")
    other = Trainer(graph, optimizer=SGD(rate=Step(0.1, every=2, factor=0.5)))
    other.resume(tmp_path / "kept")
    assert other.rate == pytest.approx(trainer.rate) == pytest.approx(0.1)
    assert other.step(feeds) == trainer.step(feeds)
    adagrad = Trainer(graph, optimizer=Adagrad(rate=0.5, rate_decay=0.1))
    assert adagrad.rate == 0.5


def test_a_batch_of_ignored_labels_moves_nothing() -> None:
    """As in PyTorch: its loss is NaN, its gradient is not."""
    for smooth in (0.0, 0.1):
        trainer = Trainer(mlp(), loss=cross_entropy(ignore_index=-1, label_smoothing=smooth), optimizer=SGD(rate=0.1))
        before = {n: a.copy() for n, a in trainer.parameters.items()}
        feeds = batch_for(trainer.source, 0)
        assert np.isnan(trainer.step({**feeds, "target": np.full_like(feeds["target"], -1)}))
        for n, a in trainer.parameters.items():
            np.testing.assert_array_equal(a, before[n])
        assert np.isfinite(trainer.step(feeds))


@pytest.mark.parametrize("pixels", [False, True], ids=["labels", "pixels"])
@pytest.mark.parametrize(
    "how",
    [{"ignore_index": -100}, {"class_weights": [0.5, 1.0, 7.0]},
     {"ignore_index": -100, "class_weights": [0.5, 1.0, 7.0], "label_smoothing": 0.1}],
    ids=["ignored", "weights", "both"],
)  # fmt: skip
def test_the_loss_of_an_epoch_is_that_of_its_data(how: dict[str, Any], *, pixels: bool) -> None:
    """However labels that count lie in batches: one loss, or two whose weights add up."""
    rng, more = np.random.default_rng(5), (4,) if pixels else ()
    x = rng.standard_normal((12, 3, *more)).astype(np.float32)
    target = rng.integers(0, 3, (12, *more))
    if "ignore_index" in how:
        target[0:2], target[2, ..., None], target[4:8] = -100, -100, -100  # the second batch has none that counts
    parts = [slice(0, 4), slice(4, 8), slice(8, 12)]
    g = GraphBuilder()
    read = g.input("x", Tensor(DType.FLOAT, ("n", 3, *more)))
    weights = (np.ones((1, 3, *(1 for _ in more)), np.float32) * k for k in (2, -1))
    a, b = (g.Mul(read, g.const(w)) for w in weights)
    one = Trainer(g.graph([a]), loss=cross_entropy(**how), optimizer=SGD(rate=0.0))
    two = Trainer(
        g.graph([a, b]), loss={a: (0.5, cross_entropy(**how)), b: (2.0, "cross_entropy")}, optimizer=SGD(rate=0.0)
    )
    known = np.maximum(target, 0)
    feeds: dict[str, Array] = {"x": x, f"{a}_target": target, f"{b}_target": known}
    whole: tuple[list[dict[str, Array]], ...] = [{"x": x, "target": target}], [feeds]
    apart = ([{n: v[part] for n, v in fed[0].items()} for part in parts] for fed in whole)
    for trainer, all_, batches in zip((one, two), whole, apart, strict=True):
        expected = trainer.step(all_[0])
        assert np.isfinite(expected)
        once = trainer.evaluate(all_)
        found = [once, trainer.evaluate(batches), trainer.fit(batches)[0], trainer.fit(batches, validate=batches)[0]]
        for metrics in found:
            assert metrics.samples == 12
            assert metrics.loss == pytest.approx(expected, rel=1e-5)
            assert metrics.losses == pytest.approx(once.losses, rel=1e-5)
            assert metrics.accuracies == pytest.approx(once.accuracies, rel=1e-5)
            assert metrics.accuracy == (None if trainer is two else pytest.approx(once.accuracy, rel=1e-5))
        metric = LossOf(cross_entropy(**how))
        for part in parts:
            metric.update(preds=2 * x[part], labels=target[part])
        assert trainer is two or metric.value == pytest.approx(expected, rel=1e-5)
    kept = target != -100
    assert one.evaluate(whole[0]).accuracy == pytest.approx((x.argmax(1) == target)[kept].mean())
    if "ignore_index" in how:
        assert np.isnan(one.evaluate([{"x": x[4:8], "target": target[4:8]}]).loss)


def test_accuracy_counts_parts_of_samples() -> None:
    """Of each sample's places a share is right; it was rounded to whole samples in each batch."""
    g = GraphBuilder()
    y = g.Mul(g.input("x", Tensor(DType.FLOAT, ("n", 2, 100))), g.const(np.ones((1, 2, 1), np.float32)))
    trainer = Trainer(g.graph([y]), optimizer=SGD(rate=0.0))
    x, target = np.zeros((1, 2, 100), np.float32), np.zeros((1, 100), np.int64)
    x[:, 0], target[:, :40] = 1, 1
    trainer.fit([{"x": x, "target": target}] * 3)
    assert trainer.history[-1][0].accuracy == pytest.approx(0.6)


def test_each_step_tells_the_norm_of_its_gradients() -> None:
    graph = mlp(DType.DOUBLE)
    feeds = batch_for(graph, 0)
    trainer = Trainer(graph, optimizer=SGD(rate=1.0))
    before = {n: a.copy() for n, a in trainer.parameters.items()}
    trainer.step(feeds)
    norm = np.sqrt(sum(((before[n] - a) ** 2).sum() for n, a in trainer.parameters.items()))
    assert trainer.last.norm == pytest.approx(norm, rel=1e-9)
    clipped = Trainer(graph, optimizer=SGD(rate=1.0), clip_norm=0.01)
    clipped.step(feeds)
    assert clipped.last.norm == pytest.approx(norm, rel=1e-9), "before clipping"
    scaled = Trainer(mlp(), optimizer=SGD(rate=1.0), amp="fp16")
    scaled.step({**feeds, "x": feeds["x"].astype(np.float32)})
    assert scaled.last.norm == pytest.approx(norm, rel=2e-2), "without the loss scale"
    halves = Trainer(graph, optimizer=SGD(rate=1.0), gather=2)
    halves.step(feeds)
    assert halves.last.norm is None, "no update was made"
    halves.step(feeds)
    assert halves.last.norm == pytest.approx(norm, rel=1e-9)
    assert RATE in halves.states
    quiet = Trainer(graph, norm=False)
    quiet.step(feeds)
    assert quiet.last.norm is None


def test_names_of_others_are_answered_with_ours() -> None:
    fit: Any = Trainer(mlp()).fit
    make: Any = Trainer
    for name in ("clip_gradient", "learning_rate", "accumulate_grad_batches", "criterion", "ctx", "num_epoch"):
        place, table = (make, TRAINER) if name in TRAINER else (fit, FIT)
        with pytest.raises(InputError) as caught:
            place(mlp(), **{name: 1})
        assert table[name] in str(caught.value)
    with pytest.raises(InputError, match="it is clip_norm= here"):
        Trainer(mlp(), clip_nrom=1.0)
    with pytest.raises(InputError, match="'dropout'"):
        Trainer(mlp(), dropout=1.0)
    for theirs, ours in OTHER_NAMES.items():
        with pytest.raises(InputError, match=f"'{ours}' here"):
            loss_named(theirs)
    with pytest.raises(InputError, match="'cross_entropy' here"):
        loss_named("crossentropy")


def test_an_empty_batch_is_an_error() -> None:
    trainer = Trainer(mlp())
    feeds = {n: a[:0] for n, a in batch_for(mlp(), 0).items()}
    for call in (trainer.step, lambda f: trainer.evaluate([f]), trainer.overflow):
        with pytest.raises(InputError, match="without samples"):
            call(feeds)
    assert trainer.updates == 0
