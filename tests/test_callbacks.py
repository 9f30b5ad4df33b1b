"""What happens beside training: callbacks, plateaus, early stopping, and metrics as scikit-learn has them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mezzo as mz
from mezzo import gluon, nd
from mezzo.gluon import nn
from mezzo.models.digits import digits_model, held_out
from mezzo.ops.errors import InputError, ModelError
from mezzo.runtime.optimizer import SGD, Adam
from mezzo.train.callbacks import OTHER_NAMES as OTHER_NAMES_OF_METHODS
from mezzo.train.callbacks import Callback, EarlyStopping, Log, Plateau, Resumed, Run, Save, states_of
from mezzo.train.metrics import (
    F1,
    MAE,
    MCC,
    METRICS,
    OTHER_NAMES,
    RMSE,
    Accuracy,
    ConfusionMatrix,
    Correlation,
    LossOf,
    Metric,
    Metrics,
    Own,
    Perplexity,
    TopK,
    metric_named,
    register,
)  # fmt: skip
from mezzo.train.trainer import Trainer

from .networks import batch_for, mlp
from .peers import peer

Array = np.ndarray[Any, Any]


def digits(start: int, stop: int) -> dict[str, Array]:
    held = held_out()
    return {"image": held.inputs[start:stop], "target": held.labels[start:stop]}


class Diary(Callback):
    """Notes what it is told."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        for what in ("fit_begin", "epoch_begin", "step_begin", "step_end", "epoch_end", "fit_end"):
            setattr(self, what, self._noting(what))

    def _noting(self, what: str) -> Callable[[Run], None]:
        return lambda run: self.lines.append(f"{what} {run.epoch} {run.step}")


def test_callbacks_are_told_the_begin_and_the_end_of_everything() -> None:
    diary, trainer = Diary(), Trainer(digits_model(), optimizer=SGD(rate=0.0))
    trainer.fit([digits(0, 8), digits(8, 16)], epochs=2, validate=[digits(16, 32)], callbacks=[diary])
    steps = ["step_begin {0} {1}", "step_end {0} {1}", "step_begin {0} {2}", "step_end {0} {2}"]
    expected = [
        "fit_begin 0 0",
        *(
            line.format(e, 2 * e + 1, 2 * e + 2)
            for e in (0, 1)
            for line in (f"epoch_begin {{0}} {2 * e}", *steps, "epoch_end {0} {2}")
        ),
        "fit_end 1 4",
    ]
    assert diary.lines == expected
    assert [v.samples for _, v in trainer.history if v is not None] == [16, 16]


def test_a_callback_ends_the_training() -> None:
    class Third(Callback):
        def step_end(self, run: Run) -> None:
            if run.step == 3:
                run.stop("enough")

    seen, trainer = iter(range(100)), Trainer(digits_model(), optimizer=SGD(rate=0.0))

    def batches(epoch: int) -> Any:
        for _ in range(5):
            next(seen)
            yield digits(0, 8)

    diary = Diary()
    (metrics,) = trainer.fit(batches, epochs=4, callbacks=[Third(), diary])
    assert metrics.samples == 24
    assert next(seen) == 3, "no batch is fetched in vain"
    assert diary.lines[-1] == "fit_end 0 3"
    with pytest.raises(ZeroDivisionError):
        trainer.fit(lambda epoch: iter([{"image": 1 // 0}]), callbacks=[diary])
    assert diary.lines[-1].startswith("fit_end"), "the end is told whatever happens"


class Script:
    """A trainer of which only the rate counts."""

    rate = 1.0
    state = 0

    def snapshot(self) -> int:
        return self.state

    def restore(self, snapshot: int) -> None:
        self.state = snapshot

    def save(self, folder: Any) -> None: ...


def told(callback: Callback, values: list[float]) -> list[float]:
    """The rates behind each epoch with these losses."""
    run = Run(Script(), len(values))
    callback.fit_begin(run)
    rates = []
    for run.epoch, value in enumerate(values):
        run.trainer.state = run.epoch  # type: ignore[attr-defined]
        run.metrics = Metrics(1, value, None)
        callback.epoch_end(run)
        rates.append(run.trainer.rate)
        if run.stopping:
            break
    callback.fit_end(run)
    told.state = run.trainer.state  # type: ignore[attr-defined]
    return rates


@pytest.mark.parametrize(
    "how",
    [{"patience": 1}, {"patience": 0, "cooldown": 2}, {"patience": 2, "mode": "max"}, {"factor": 0.5, "least": 0.2}],
)
def test_plateaus_are_those_of_pytorch(how: dict[str, Any]) -> None:
    torch = peer("torch")
    rng = np.random.default_rng(0)
    losses = [*np.maximum(1 / np.arange(1, 12), 0.2), *rng.uniform(0.1, 0.3, 40), 0.1, float("nan"), 0.1]
    how = {"patience": 3, **how}
    (p,) = [torch.nn.Parameter(torch.zeros(1))]
    stepper = torch.optim.SGD([p], lr=1.0)
    names = {"least": "min_lr"}
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(stepper, **{names.get(n, n): v for n, v in how.items()})
    want = []
    for loss in losses:
        plateau.step(loss)
        want.append(stepper.param_groups[0]["lr"])
    assert told(Plateau(**how), losses) == pytest.approx(want)
    assert len({*want}) > 2


def test_early_stopping_goes_back_to_the_best() -> None:
    losses = [3.0, 2.0, 2.5, 1.0, 1.2, 1.1, 1.05, 0.5]
    assert len(told(EarlyStopping(patience=3), losses)) == 7
    assert told.state == 3  # type: ignore[attr-defined]
    assert len(told(EarlyStopping(patience=4), losses)) == 8
    assert len(told(EarlyStopping(patience=1), losses)) == 3
    assert len(told(EarlyStopping(patience=2, mode="max", restore=False), losses)) == 3
    assert told.state == 2  # type: ignore[attr-defined]
    for bad in (lambda: EarlyStopping(mode="least"), lambda: EarlyStopping(patience=-1), lambda: Plateau(factor=1.0)):
        with pytest.raises(InputError):
            bad()


def test_a_trainer_stops_early_and_lowers_its_rate(tmp_path: Path) -> None:
    """At a rate that leads away from what was learned, the first epoch is the best."""
    trainer = Trainer(digits_model(), optimizer=Adam(rate=0.05), metrics=["accuracy", TopK(2)])
    lines: list[str] = []
    stop, plateau = EarlyStopping("accuracy", mode="max", patience=2), Plateau(patience=0, factor=0.5)
    callbacks = [stop, plateau, Log(every=1, write=lines.append), Save(tmp_path / "kept")]
    found = trainer.fit([digits(0, 64)] * 2, epochs=9, validate=[digits(64, 360)], callbacks=callbacks)
    assert stop.epoch + 3 == len(found) < 9
    assert trainer.evaluate([digits(64, 360)]).accuracy == stop.best
    assert trainer.rate <= 0.05
    assert any("rate" in line for line in lines)
    assert any("validation loss" in line for line in lines)
    assert found[0].values.keys() == {"accuracy", "top_2"}
    assert found[0].values["top_2"] >= found[0].values["accuracy"] == found[0].accuracy
    other = Trainer(digits_model(), optimizer=Adam(rate=0.05), metrics=["accuracy", TopK(2)])
    other.resume(tmp_path / "kept")
    assert other.updates == trainer.updates or stop.epoch + 1 == other.updates // 2
    with pytest.raises(InputError, match="'acuracy'"):
        trainer.fit([digits(0, 8)], callbacks=[EarlyStopping("acuracy")])
    with pytest.raises(InputError, match="once"):
        trainer.fit([digits(0, 8)], validate=iter([digits(0, 8)]))


def test_blocks_have_the_same_callbacks(tmp_path: Path) -> None:
    """A plateau lowers the rate of a trainer of blocks, and early stopping gives the best parameters back."""
    nd.random.seed(0)
    net = nn.HybridSequential(nn.Dense(16, "tanh"), nn.Dense(10))
    net.initialize("xavier")
    data = [(held_out().inputs[i : i + 32].reshape(-1, 64), held_out().labels[i : i + 32]) for i in range(0, 256, 32)]
    trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.02})
    stop, diary, lines = EarlyStopping("accuracy", mode="max", patience=2), Diary(), list[str]()
    log, loss = Log(every=1, write=lines.append), gluon.loss.SoftmaxCrossEntropyLoss()
    callbacks = [
        stop,
        Plateau("train/loss", patience=0, factor=0.5, threshold=0.5),
        diary,
        log,
        Save(tmp_path / "kept"),
    ]
    found = gluon.fit(
        net, loss, trainer, data[:6], epochs=12, validate=data[6:], metrics=["accuracy"], callbacks=callbacks
    )
    assert stop.best > 0.3
    assert trainer.learning_rate < 0.02
    assert [len(found), found[0][0].samples] == [sum("epoch_begin" in line for line in diary.lines), 192]
    assert found[-1][0].loss < found[0][0].loss
    assert "rate 0.02" in lines[0]
    (first,) = gluon.fit(
        net, loss, trainer, data[:6], epochs=1, validate=data[6:], metrics=["accuracy"], callbacks=[Still()]
    )
    net.load_parameters(tmp_path / "kept" / "net.safetensors")
    labels = np.concatenate([label for _, label in data[6:]])
    answers = np.concatenate([net(nd.asarray(x)).asnumpy() for x, _ in data[6:]]).argmax(1)
    assert (answers == labels).mean() == pytest.approx(stop.best)
    assert first[1] is not None
    with pytest.raises(InputError, match="without samples"):
        gluon.fit(net, loss, trainer, [(data[0][0][:0], data[0][1][:0])])
    unknown: Any = gluon.fit
    with pytest.raises(InputError, match="epochs="):
        unknown(net, loss, trainer, data, num_epoch=3)


def followed_blocks(folder: Path, *epochs: int) -> tuple[dict[str, Any], list[float], list[Any]]:
    """A training of blocks in several fits, each with new objects: its parameters, all rates, and the callbacks."""
    data = [(held_out().inputs[i : i + 32].reshape(-1, 64), held_out().labels[i : i + 32]) for i in range(0, 96, 32)]
    rates: list[float] = []
    for i, many in enumerate(epochs):
        nd.random.seed(i)
        net = nn.HybridSequential(nn.Dense(16, "tanh", in_units=64), nn.Dense(10, in_units=16)).initialize("xavier")
        trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.5, "momentum": 0.9})
        saves = Saves(folder)
        callbacks = [Steps(), Plateau(patience=0, factor=0.5, threshold=0.2), EarlyStopping(patience=3), saves]
        loss = gluon.loss.SoftmaxCrossEntropyLoss()
        gluon.fit(net, loss, trainer, data[:2], epochs=many, validate=data[2:], callbacks=callbacks,
                  resume=folder if i else None)  # fmt: skip
        rates += saves.rates
    return {n: p.data().asnumpy() for n, p in net.collect_params().items()}, rates, callbacks


@pytest.mark.parametrize("epochs", [(1, 40), (6, 3, 40)])
def test_a_training_of_blocks_that_is_resumed_counts_on(tmp_path: Path, epochs: tuple[int, ...]) -> None:
    """The same rates, the same end, and the same best parameters as without an interruption."""
    want, rates, counted = followed_blocks(tmp_path / "one", 40)
    assert sum(epochs[:-1]) < len(rates) < 40, "early stopping ended it, behind the last interruption"
    assert len({*rates}) > 2, "the rate was lowered, more than once"
    found, others, resumed = followed_blocks(tmp_path / "several", *epochs)
    assert others == rates
    for name, array in want.items():
        np.testing.assert_array_equal(found[name], array)
    assert resumed[0].count == counted[0].count
    assert [(c.best, c.waited) for c in resumed[1:3]] == [(c.best, c.waited) for c in counted[1:3]]


def test_files_of_several_saves_are_not_resumed(tmp_path: Path) -> None:
    followed_blocks(tmp_path / "one", 2)
    followed_blocks(tmp_path / "two", 1)
    (tmp_path / "two" / "trainer.safetensors").replace(tmp_path / "one" / "trainer.safetensors")
    with pytest.raises(ModelError, match=r"have had 2 updates, and the counts 4(.|\n)*a save was interrupted"):
        followed_blocks(tmp_path / "one", 0, 1)
    with pytest.raises(ModelError, match="no checkpoint can be read"):
        followed_blocks(tmp_path / "three", 0, 1)


class Still(Callback):
    """Nothing is learned."""

    def fit_begin(self, run: Run) -> None:
        run.trainer.rate = 0.0


# Metrics


def in_parts(metric: Metric, preds: Array, labels: Array) -> Any:
    """The metric over three batches of unequal sizes."""
    metric.reset()
    for part in (slice(0, 7), slice(7, 8), slice(8, None)):
        metric.update(preds=preds[part], labels=labels[part])
    return metric.value


def test_metrics_of_classes_are_those_of_scikit_learn() -> None:
    sk = peer("sklearn.metrics")
    rng = np.random.default_rng(0)
    scores, labels = rng.standard_normal((40, 4)), rng.integers(0, 4, 40)
    found = scores.argmax(1)
    assert in_parts(Accuracy(), scores, labels) == sk.accuracy_score(labels, found)
    for k in (1, 2, 3):
        want = sk.top_k_accuracy_score(labels, scores, k=k)
        assert in_parts(TopK(k), scores, labels) == pytest.approx(want)
    np.testing.assert_array_equal(in_parts(ConfusionMatrix(4), scores, labels), sk.confusion_matrix(labels, found))
    for average in ("macro", "micro"):
        want = sk.f1_score(labels, found, average=average)
        assert in_parts(F1(4, average=average), scores, labels) == pytest.approx(want)
    assert in_parts(MCC(4), scores, labels) == pytest.approx(sk.matthews_corrcoef(labels, found))
    two, logits = labels % 2, scores[:, 0]
    assert in_parts(F1(), logits, two) == pytest.approx(sk.f1_score(two, logits > 0))
    assert in_parts(MCC(), logits, two) == pytest.approx(sk.matthews_corrcoef(two, logits > 0))
    assert in_parts(MCC(), np.ones(40), two) == 0 == sk.matthews_corrcoef(two, np.ones(40))
    assert in_parts(Accuracy(), logits[:, None], two[:, None]) == ((logits > 0) == two).mean()
    assert in_parts(Perplexity(), scores, labels) == pytest.approx(
        np.exp(sk.log_loss(labels, np.exp(scores) / np.exp(scores).sum(1, keepdims=True)))
    )
    ignored = np.where(np.arange(40) < 9, -100, labels)
    assert in_parts(Accuracy(ignore_index=-100), scores, ignored) == sk.accuracy_score(labels[9:], found[9:])
    assert in_parts(TopK(2, ignore_index=-100), scores, ignored) == in_parts(TopK(2), scores[9:], labels[9:])
    assert in_parts(Perplexity(ignore_index=-100), scores, ignored) == pytest.approx(
        in_parts(Perplexity(), scores[9:], labels[9:])
    )


def test_metrics_of_numbers_and_losses() -> None:
    rng = np.random.default_rng(0)
    preds, labels = rng.standard_normal((2, 30, 3))
    off = preds - labels
    assert in_parts(MAE(), preds, labels) == pytest.approx(np.abs(off).mean())
    assert in_parts(metric_named("mse"), preds, labels) == pytest.approx((off**2).mean())
    assert in_parts(RMSE(), preds, labels) == pytest.approx(np.sqrt((off**2).mean()))
    assert in_parts(Correlation(), preds, labels) == pytest.approx(np.corrcoef(preds.ravel(), labels.ravel())[0, 1])
    assert in_parts(LossOf("l1"), preds, labels) == pytest.approx(np.abs(off).mean())
    classes = rng.integers(0, 3, 30)
    assert np.exp(in_parts(metric_named("cross_entropy"), preds, classes)) == pytest.approx(
        in_parts(Perplexity(), preds, classes)
    )
    assert in_parts(Own(lambda y, t: float((y > t).mean()), "over"), preds, labels) == pytest.approx((off > 0).mean())
    assert np.isnan(MAE().value)
    assert MAE().get()[0] == "mae"


def test_names_and_shapes_of_metrics() -> None:
    for name in METRICS:
        assert metric_named(name).value != 0
    for theirs, ours in OTHER_NAMES.items():
        with pytest.raises(InputError, match=f"'{ours}' here"):
            metric_named(theirs)
    with pytest.raises(InputError, match="outputs"):
        Accuracy().update(preds=np.zeros((3, 4)), labels=np.zeros((2,)))
    with pytest.raises(InputError, match="classes="):
        F1().update(preds=np.eye(3), labels=np.arange(3))
    with pytest.raises(TypeError):
        Accuracy().update(np.zeros(3), np.zeros(3))  # type: ignore[call-arg]

    @register
    class Largest(Metric):
        name = "largest"

        def sums(self, preds: Array, labels: Array) -> Array:
            return np.array([preds.max()])

        def of(self, total: Array) -> Any:
            return total[0]

    try:
        trainer = Trainer(digits_model(), metrics=["largest", lambda y, t: 2.0])
        assert trainer.evaluate([digits(0, 20)]).values["largest"] == pytest.approx(held_out().logits[:20].max())
        assert mz.metrics.METRICS["largest"] is Largest
    finally:
        del METRICS["largest"]


# What checkpoints have of them


class Steps(Callback):
    """Counts steps, by a state of its own."""

    def __init__(self) -> None:
        self.count, self.sums = 0, np.zeros(2)

    def step_end(self, run: Run) -> None:
        assert run.last is not None
        self.count += 1
        self.sums += run.last.loss, run.last.rate

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count, "deep": {"sums": self.sums}}

    def load_state_dict(self, state: Any) -> None:
        self.count, self.sums = state["count"], state["deep"]["sums"]


class Saves(Callback):
    """Writes a checkpoint after each epoch, and notes the rates."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.rates = folder, list[float]()

    def epoch_end(self, run: Run) -> None:
        run.trainer.save(self.folder)
        self.rates.append(run.trainer.rate)


def followed(folder: Path, *epochs: int) -> tuple[Trainer, list[float], list[float], list[Any]]:
    """A training in several fits, each resumed by new objects: the last trainer, all rates and losses, callbacks."""
    batches = [batch_for(mlp(), i) for i in range(3)]
    rates, losses = [], []
    for i, many in enumerate(epochs):
        trainer = Trainer(mlp(), optimizer=SGD(rate=0.1, momentum=0.9))
        if i:
            trainer.resume(folder)
        saves, stops = Saves(folder), [EarlyStopping(patience=4), EarlyStopping("accuracy", mode="max", patience=99)]
        told = [Steps(), Plateau(patience=1, factor=0.5), *stops, saves]
        trainer.fit(batches[:2], epochs=many, validate=batches[1:], callbacks=told)
        rates += saves.rates
        losses += [v.loss for _, v in trainer.history if v is not None]
    return trainer, rates, losses, told


def test_callbacks_take_the_counts_of_what_they_watch() -> None:
    """In whatever order they stand."""
    several = [EarlyStopping(), EarlyStopping("accuracy", mode="max"), EarlyStopping("accuracy", mode="max"), Plateau()]
    for i, callback in enumerate(several):
        callback.waited = i
    states = states_of(several)
    assert [*states] == [
        "EarlyStopping of loss",
        "EarlyStopping of accuracy",
        "EarlyStopping of accuracy 2",
        "Plateau of loss",
    ]
    others = [Plateau(), EarlyStopping("accuracy", mode="max"), EarlyStopping()]
    with pytest.warns(UserWarning, match="the counts of EarlyStopping of accuracy 2, and"):
        Resumed(others, states).fit_begin(Run(Script(), 1))
    assert [c.waited for c in others] == [3, 1, 0]


def test_names_of_other_libraries_are_answered() -> None:
    for name, ours in OTHER_NAMES_OF_METHODS.items():
        with pytest.raises(InputError, match=rf"nobody calls {name}(.|\n)*it is {ours}\(run\) here"):
            type("Theirs", (Callback,), {name: lambda self, run: None})
    half: Any = type("Half", (), {"epoch_end": lambda self, run: None})()
    with pytest.raises(InputError, match=r"Half has no fit_begin(.|\n)*inherit from Callback"):
        Trainer(digits_model()).fit([digits(0, 8)], callbacks=[half])


@pytest.mark.parametrize("epochs", [(1, 30), (10, 30), (2, 3, 4, 30)])
def test_a_training_that_is_resumed_counts_on(tmp_path: Path, epochs: tuple[int, ...]) -> None:
    """The same rates, the same end, and the same best parameters as without an interruption."""
    want, rates, losses, counted = followed(tmp_path / "one", 30)
    assert sum(epochs[:-1]) + 2 < len(rates) < 20, "early stopping ended it, behind the last interruption"
    assert len({*rates}) > 2, "the rate was lowered, more than once"
    assert int(np.argmin(losses)) < len(losses) - 1, "its best parameters are not the last ones"
    found, *others = followed(tmp_path / "several", *epochs)
    assert others[0] == rates
    assert others[1] == losses
    assert all(np.array_equal(a, found.parameters[n]) for n, a in want.parameters.items())
    steps, plateau, *stops, _ = others[2]
    assert steps.count == counted[0].count
    assert np.array_equal(steps.sums, counted[0].sums)
    assert [(c.best, c.waited) for c in (plateau, *stops)] == [(c.best, c.waited) for c in counted[1:4]]


def test_a_checkpoint_of_the_end_has_the_best_parameters(tmp_path: Path) -> None:
    """Early stopping has gone back to them; a training that goes on from there, and gets worse, does so too."""

    class Worse(EarlyStopping):
        def epoch_end(self, run: Run) -> None:
            assert run.metrics is not None
            run.metrics = Metrics(1, float(losses.pop(0)), None)
            super().epoch_end(run)

    trainer = Trainer(digits_model(), optimizer=SGD(rate=0.1))
    losses = [3, 1, 2, 4, 5]
    trainer.fit([digits(0, 32)], epochs=3, callbacks=[Worse(), Save(tmp_path)])
    best = trainer.snapshot()
    other = Trainer(digits_model(), optimizer=SGD(rate=0.1))
    other.resume(tmp_path)
    other.fit([digits(0, 32)], epochs=9, callbacks=[stop := Worse()])
    assert (stop.best, stop.waited, losses) == (1, 3, [])
    assert all(np.array_equal(a, other.states[n]) for n, a in best.items() if not n.startswith("metrics/"))


def test_what_becomes_of_counts_that_nobody_takes(tmp_path: Path) -> None:
    trainer = Trainer(digits_model(), optimizer=SGD(rate=0.1))
    trainer.fit([digits(0, 8)], callbacks=[Steps(), Diary()])
    trainer.save(tmp_path)
    other = Trainer(digits_model(), optimizer=SGD(rate=0.1))
    other.resume(tmp_path)
    other.step(digits(0, 8))
    other.save(tmp_path)  # before any fit: they are kept
    other.resume(tmp_path)
    with pytest.warns(UserWarning, match="has the counts of Steps, and this fit has no such callback"):
        other.fit([digits(0, 8)], callbacks=[Plateau()])
    other.fit([digits(0, 8)], callbacks=[steps := Steps()])
    assert steps.count == 1, "they are given back once"

    class Odd(Callback):
        def state_dict(self) -> dict[str, Any]:
            return {"set": {1, 2}}

    with pytest.raises(mz.MezzoError, match="cannot be written"):
        trainer.fit([digits(0, 8)], callbacks=[Odd(), Save(tmp_path)])
