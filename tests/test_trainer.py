"""Fine-tuning of imported models: what learns, what it learns by, modes, heads, precision, and the way back to ONNX."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mezzo
from mezzo.importers import load_onnx
from mezzo.models.digits import digits_model, held_out
from mezzo.ops import OPS, DType, Tensor, op
from mezzo.ops.errors import InputError, UnsupportedModel
from mezzo.ops.types import f32
from mezzo.runtime.execution.session import Session
from mezzo.runtime.ir.graph import Graph, GraphBuilder
from mezzo.runtime.optimizer import SGD, Adam
from mezzo.runtime.optimizer.schedule import OneCycle
from mezzo.train.amp import Policy, mixed
from mezzo.train.building import Scaling, Step
from mezzo.train.head import with_head
from mezzo.train.learning import weights
from mezzo.train.loss import LOSSES, Loss
from mezzo.train.overflow import _counts
from mezzo.train.step import training_step
from mezzo.train.trainer import Trainer

from .models import OTHERS, ort_run
from .networks import NETWORKS, Layers, batch_for, lenet, mlp, noisy
from .peers import peer

Array = np.ndarray[Any, Any]


def digits(start: int = 0, stop: int = 360) -> dict[str, Array]:
    """Some of the held-out digits, to train with."""
    held = held_out()
    return {"image": held.inputs[start:stop], "target": held.labels[start:stop]}


def lessons(trainer: Trainer, feeds: dict[str, Array], steps: int = 10) -> list[float]:
    return [trainer.step(feeds) for _ in range(steps)]


def agrees(trainer: Trainer, path: Path, feeds: dict[str, Array]) -> None:
    """The exported model answers in ONNX Runtime as our graph does here, and the graph knows what was learned."""
    trainer.export(path)
    graph = trainer.graph()
    inputs = {n: a for n, a in feeds.items() if n != "target"}
    ours, theirs = Session(graph).run(inputs), ort_run(path, inputs)
    assert list(ours) == list(theirs)
    for name, y in theirs.items():
        assert np.abs(ours[name] - y).max() <= 1e-4 * np.abs(y).max()
    for name, learned in trainer.parameters.items():
        np.testing.assert_array_equal(graph.initializers[name], learned)
        assert not np.array_equal(trainer.source.initializers[name], learned), f"{name} has not moved"


# Models of others


def test_the_digits_network(tmp_path: Path) -> None:
    """Its images turned by a quarter: what it knew helps little, and it learns the rest."""
    turned = {**digits(0, 256), "image": np.rot90(digits(0, 256)["image"], axes=(2, 3)).copy()}
    other = {**digits(256), "image": np.rot90(digits(256)["image"], axes=(2, 3)).copy()}
    trainer = Trainer(digits_model(), optimizer=Adam(rate=0.003))
    before = trainer.evaluate([other])
    parts = [{n: a[i : i + 64] for n, a in turned.items()} for i in range(0, 256, 64)]
    found = trainer.fit(lambda epoch: parts, epochs=8)
    after = trainer.evaluate([other])
    assert before.accuracy is not None
    assert after.accuracy is not None
    assert before.accuracy < 0.5 < 0.85 < after.accuracy
    assert found[-1].loss < 0.2 * found[0].loss
    assert [m.samples for m in found] == [256] * 8
    agrees(trainer, tmp_path / "digits.onnx", other)
    predicted = ort_run(tmp_path / "digits.onnx", {"image": other["image"]})["logits"].argmax(1)
    assert (predicted == other["target"]).mean() == pytest.approx(after.accuracy)


@pytest.mark.parametrize("clip", [None, 0.05])
def test_the_norm_of_all_gradients_is_one_step(clip: float | None) -> None:
    """Each parameter's squares, and their sum, would be steps of a microsecond each."""
    trainer = Trainer(digits_model(), optimizer=SGD(rate=0.5), clip_norm=clip, threads=1)
    before = {n: np.array(a) for n, a in trainer.parameters.items()}
    trainer.step({"image": held_out().inputs[:32], "target": held_out().labels[:32]})
    moved = np.sqrt(sum(float(((before[n] - a) ** 2).sum()) for n, a in trainer.parameters.items())) / 0.5
    norm = trainer.last.norm
    assert norm is not None
    assert moved == pytest.approx(norm if clip is None else clip, rel=1e-3)
    assert norm > 0.05
    kernels = [s.choice.kernel for s in trainer._update.program.steps if s.node.op in ("TotalNorm", "ReduceSumSquare")]
    assert kernels == ["numpy.total_norm"]


def test_a_classifier_of_text_directions(tmp_path: Path) -> None:
    """rapidocr's: weights are Constant nodes, 35 batch normalisations, a softmax of before opset 13 at its end."""
    (real,) = [m for m in OTHERS if "cls" in m.file]
    rng = np.random.default_rng(0)
    feeds = {"x": rng.standard_normal((4, 3, 48, 96)).astype(np.float32), "target": np.array([0, 1, 1, 0])}
    trainer = Trainer(real.path(), optimizer=Adam(rate=0.002))
    (shares,) = ort_run(real.path(), {"x": feeds["x"]}).values()
    told = -np.log(shares[np.arange(4), feeds["target"]]).mean()
    assert trainer.evaluate([feeds]).loss == pytest.approx(told, rel=1e-3), "the softmax is not taken twice"
    losses = lessons(trainer, feeds, 6)
    assert losses[-1] < 0.5 * losses[0]
    agrees(trainer, tmp_path / "cls.onnx", feeds)


def test_an_encoder_that_pytorch_exported(tmp_path: Path) -> None:
    """With a head for three classes in place of the one for five."""
    torch = peer("torch")
    from .torch_exports import exported

    class Classifier(torch.nn.Module):  # type: ignore[misc, name-defined]
        """An encoder, and a linear layer over the mean of what it says."""

        def __init__(self) -> None:
            super().__init__()
            layer = torch.nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, activation="gelu")
            self.body = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
            self.head = torch.nn.Linear(16, 5)

        def forward(self, x: Any) -> Any:
            return self.head(self.body(x).mean(1))

    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((12, 7, 16)).astype(np.float32)
    content = exported(Classifier().eval(), x[:2], {0: "batch", 1: "length"}, ["y"])
    graph = with_head(load_onnx(content), 3)
    trainer = Trainer(graph, optimizer=Adam(rate=0.01))
    feeds: dict[str, Array] = {"x": x, "target": rng.integers(0, 3, 12)}
    losses = lessons(trainer, feeds, 15)
    assert losses[-1] < 0.5 * losses[0]
    shorter = {"x": x[:5, :4].copy(), "target": feeds["target"][:5]}
    assert trainer.evaluate([shorter]).samples == 5
    agrees(trainer, tmp_path / "encoder.onnx", shorter)


def test_a_model_that_was_exported_while_training(tmp_path: Path) -> None:
    """Batch normalisation and dropout are in training mode in the file; what leaves is in inference mode."""
    torch = peer("torch")
    nn, made = torch.nn, io.BytesIO()
    norm, last = nn.BatchNorm2d(4), nn.Linear(144, 10)
    net = nn.Sequential(nn.Conv2d(1, 4, 3), norm, nn.ReLU(), nn.Flatten(), nn.Dropout(0.3), last)
    with pytest.warns():
        torch.onnx.export(
            net, (torch.zeros(2, 1, 8, 8),), made, dynamo=False, training=torch.onnx.TrainingMode.TRAINING,
            do_constant_folding=False, input_names=["image"], dynamic_axes={"image": {0: "n"}},
        )  # fmt: skip
    trainer = Trainer(made.getvalue(), optimizer=Adam(rate=0.01))
    assert set(trainer.trained) == {n for n, _ in net.named_parameters()}
    losses = lessons(trainer, digits(0, 128), 30)
    assert losses[-1] < 0.5 * losses[0]
    modes = {n.op: n for n in trainer.graph().nodes}
    assert modes["BatchNormalization"].attrs["training_mode"] == 0
    assert len(modes["BatchNormalization"].outputs) == 1
    assert len(modes["Dropout"].inputs) <= 2
    agrees(trainer, tmp_path / "trained.onnx", digits(0, 20))
    several, few = (ort_run(tmp_path / "trained.onnx", {"image": digits(0, n)["image"]}) for n in (20, 5))
    for name, y in few.items():
        np.testing.assert_allclose(several[name][:5], y, rtol=1e-4, atol=1e-5)


# Modes


def test_dropout_drops_while_training_alone() -> None:
    graph = noisy()
    feeds = batch_for(graph, 0, 16)
    first, second, other = (Trainer(graph, optimizer=SGD(rate=0.0), seed=s) for s in (0, 0, 1))
    losses = lessons(first, feeds, 5)
    assert len(set(losses)) == 5, "every step has its own mask"
    assert losses == lessons(second, feeds, 5)
    assert losses != lessons(other, feeds, 5)
    assert first.evaluate([feeds]) == first.evaluate([feeds])
    kept = Trainer(noisy(0.0), optimizer=SGD(rate=0.0))
    assert len(set(lessons(kept, feeds, 3))) == 1
    assert lessons(Trainer(noisy(None), optimizer=SGD(rate=0.0)), feeds, 5) == losses, "the ratio is 0.5 by default"


def test_normalisation_by_the_batch_and_by_what_it_ran_into() -> None:
    graph = noisy(0.0)
    feeds = {**batch_for(graph, 0, 64)}
    feeds["x"] = feeds["x"] * 3 + 2
    by_batch = Trainer(graph, optimizer=SGD(rate=0.0))
    by_running = Trainer(graph, optimizer=SGD(rate=0.0), statistics=False)
    assert by_running.step(feeds) == pytest.approx(by_running.evaluate([feeds]).loss, rel=1e-5)
    assert "norm.running_mean" not in by_running.states
    losses = lessons(by_batch, feeds, 100)
    assert len(set(losses)) == 1
    assert losses[0] != pytest.approx(by_running.step(feeds), rel=1e-3)
    assert by_batch.evaluate([feeds]).loss == pytest.approx(losses[0], rel=1e-2), "the running statistics have arrived"
    done = by_batch.graph()
    np.testing.assert_array_equal(done.initializers["norm.running_mean"], by_batch.states["norm.running_mean"])
    assert not done.states
    assert "norm.running_mean" not in by_batch.trained


# What learns


def test_names_that_freeze_and_names_that_learn() -> None:
    every = weights(load_onnx(digits_model()))
    for options, learned in (
        ({}, every),
        ({"freeze": ["0.*", "3.weight"]}, [n for n in every if not n.startswith("0.") and n != "3.weight"]),
        ({"train": ["13.*"]}, ["13.weight", "13.bias"]),
        ({"train": ["*bias"], "freeze": ["13.*"]}, [n for n in every if n.endswith("bias") and n[:2] != "13"]),
    ):
        trainer = Trainer(digits_model(), optimizer=SGD(rate=0.1, weight_decay=0.1), **options)  # type: ignore[arg-type]
        assert trainer.trained == learned
        before = {n: a.copy() for n, a in trainer.source.initializers.items()}
        trainer.step(digits(0, 32))
        after = trainer.graph().initializers
        assert {n for n in before if not np.array_equal(before[n], after[n])} == set(learned)


@pytest.mark.parametrize("name", NETWORKS)
def test_every_weight_is_found(name: str) -> None:
    graph = NETWORKS[name](DType.FLOAT)
    named = {n for n in graph.initializers if n.endswith(("weight", "bias", "_l0"))}
    assert set(weights(graph)) == named | {n for n in graph.initializers if "in_proj" in n}


def test_wrong_names_are_told() -> None:
    for options, what in (
        ({"freeze": ["conv*"]}, "no weight matches 'conv\\*'"),
        ({"train": ["nothing"]}, "no weight matches 'nothing'"),
        ({"freeze": ["*"]}, "nothing to learn"),
        ({"output": "answer"}, "which output"),
        ({"loss": "hinge"}, "no loss 'hinge'"),
        ({"amp": "int8"}, "precision 'int8'"),
    ):
        with pytest.raises(InputError, match=what):
            Trainer(digits_model(), **options)
    with pytest.raises(InputError, match="'target'"):
        Trainer(digits_model()).step({"image": digits()["image"]})
    g = GraphBuilder()
    target = g.input("target", f32(2, 3))
    with pytest.raises(InputError, match="'target' already"):
        Trainer(g.graph([g.MatMul(target, g.const(np.ones((3, 2), np.float32)))]))


@pytest.fixture
def blocked() -> Iterator[str]:
    """Two operators that have no derivative, in a domain of their own."""
    for name in ("Left", "Right"):

        @op(name, domain="test.blocked")
        def made(k: Any, x: Any) -> Any:
            return x + 1

    yield "test.blocked"
    for name in ("Left", "Right"):
        del OPS["test.blocked", name]


def test_every_operator_without_a_derivative_is_listed(blocked: str) -> None:
    g = GraphBuilder("two")
    y = g.MatMul(g.input("x", f32(2, 3)), g.const(np.ones((3, 4), np.float32)))
    y = g.op("Right", g.Relu(g.op("Left", y, domain=blocked)), domain=blocked)
    y = g.MatMul(y, g.const(np.ones((4, 2), np.float32)))
    graph = g.graph([y])
    with pytest.raises(UnsupportedModel) as caught:
        Trainer(graph)
    assert "Left" in str(caught.value)
    assert "Right" in str(caught.value)
    assert "freeze" in str(caught.value)
    first, last = weights(graph)
    assert Trainer(graph, freeze=[first]).trained == [last], "what lies behind them learns"


# Heads


def test_a_head_in_place_of_another() -> None:
    graph = load_onnx(digits_model())
    odd = with_head(graph, 2, seed=3)
    assert odd.outputs == graph.outputs
    assert str(odd.types["logits"]) == "float32[batch,2]"
    assert {n for n in graph.initializers if n.startswith("13.")} & set(odd.initializers) == set()
    trainer = Trainer(odd, optimizer=Adam(rate=0.01), train=["logits/*"])
    assert trainer.trained == ["logits/weight", "logits/bias"]
    feeds = {**digits(), "target": digits()["target"] % 2}
    trainer.fit([feeds] * 60)
    metrics = trainer.evaluate([feeds])
    assert metrics.accuracy is not None
    assert metrics.accuracy > 0.9
    np.testing.assert_array_equal(trainer.graph().initializers["0.weight"], graph.initializers["0.weight"])
    same, other = (with_head(graph, 2, seed=s).initializers["logits/weight"] for s in (3, 4))
    np.testing.assert_array_equal(same, odd.initializers["logits/weight"])
    assert not np.array_equal(other, same)


def test_a_head_on_features_of_images() -> None:
    """Pixels are averaged; the rest of the former network goes."""
    graph = load_onnx(digits_model())
    headed = with_head(graph, 3, at="relu_2")
    assert "GlobalAveragePool" in {n.op for n in headed.nodes}
    assert str(headed.types["logits"]) == "float32[batch,3]"
    assert len(headed.nodes) < len(graph.nodes) + 4
    losses = lessons(Trainer(headed, optimizer=Adam(rate=0.01)), {**digits(), "target": digits()["target"] % 3}, 20)
    assert losses[-1] < 0.7 * losses[0]


def test_a_head_behind_a_softmax_and_of_another_output() -> None:
    g = Layers(DType.FLOAT, 12)
    body = g.Relu(g.linear("body", g.x, 12, 8))
    graph = g.graph([g.Softmax(g.linear("a", body, 8, 4), axis=-1), g.linear("b", body, 8, 2)])
    first = graph.outputs[0]
    headed = with_head(graph, 7, output=first)
    assert [str(headed.types[o]) for o in headed.outputs] == ["float32[n,7]", "float32[n,2]"]
    assert "b.weight" in headed.initializers
    assert "a.weight" not in headed.initializers
    assert Trainer(headed, output=first).trained == ["body.weight", "body.bias", f"{first}/weight", f"{first}/bias"]
    with pytest.raises(InputError, match="which output"):
        with_head(graph, 3)
    with pytest.raises(InputError, match="'nowhere' are None"):
        with_head(graph, 3, output=first, at="nowhere")
    g = Layers(DType.FLOAT, 12)
    with pytest.raises(InputError, match="no linear layer"):
        with_head(g.graph([g.Relu(g.x)]), 3)


# Losses and metrics


def test_metrics_are_of_what_was_seen() -> None:
    trainer = Trainer(digits_model(), optimizer=SGD(rate=0.0))
    one, two = digits(0, 40), digits(40, 100)
    logits = held_out().logits.astype(np.float64)
    logs = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    want = -logs[np.arange(100), held_out().labels[:100]]
    assert trainer.step(one) == pytest.approx(want[:40].mean(), rel=1e-4)
    trainer.step(two)
    for metrics in (trainer.metrics(), trainer.evaluate([one, two])):
        assert metrics.samples == 100
        assert metrics.loss == pytest.approx(want.mean(), rel=1e-4)
        assert metrics.accuracy == (logits[:100].argmax(1) == held_out().labels[:100]).mean()
    assert str(trainer.metrics()) == f"loss {want.mean():.4f}, accuracy {trainer.metrics().accuracy:.2%}"
    trainer.reset_metrics()
    assert trainer.metrics().samples == 0


@pytest.mark.parametrize("name", LOSSES)
def test_losses_as_in_pytorch(name: str) -> None:
    torch = peer("torch")
    functions = torch.nn.functional
    theirs = {
        "cross_entropy": functions.cross_entropy,
        "mse": functions.mse_loss,
        "l1": functions.l1_loss,
        "huber": functions.huber_loss,
        "binary_cross_entropy": functions.binary_cross_entropy_with_logits,
    }[name]
    graph = mlp(DType.DOUBLE)
    feeds = batch_for(graph, 0)
    if name != "cross_entropy":
        feeds["target"] = np.random.default_rng(0).uniform(0, 1, (8, 5)) * (3 if name == "huber" else 1)
    trainer = Trainer(graph, loss=name, optimizer=SGD(rate=0.1))
    (answer,) = Session(graph).run({"x": feeds["x"]}).values()
    want = float(theirs(torch.tensor(answer), torch.tensor(feeds["target"])))
    assert trainer.evaluate([feeds]).loss == pytest.approx(want, rel=1e-10)
    losses = lessons(trainer, feeds)
    assert losses[0] == pytest.approx(want, rel=1e-10)
    assert losses[-1] < losses[0]
    assert (trainer.metrics().accuracy is None) == (name != "cross_entropy")


def test_a_loss_of_ones_own() -> None:
    loss = Loss(lambda g, y, t: g.ReduceMax(g.Abs(g.Sub(y, t)), keepdims=0), lambda t: t.forget())
    feeds = {**batch_for(mlp(), 0), "target": np.ones((8, 5), np.float32)}
    losses = lessons(Trainer(mlp(), loss=loss, optimizer=Adam(rate=0.01)), feeds, 60)
    assert losses[-1] < 0.7 * losses[0]


def test_training_ends_when_a_callback_says_so() -> None:
    trainer = Trainer(digits_model(), optimizer=SGD(rate=0.01))
    assert len(trainer.fit([digits(0, 32)] * 4, epochs=3, on_epoch=lambda epoch, metrics: epoch == 1)) == 2
    assert trainer.fit([digits(0, 32)] * 4, on_step=lambda number, loss: number == 10)[0].samples == 64
    assert trainer.updates == 10


def test_a_step_that_is_refused_does_not_count() -> None:
    steps = [Trainer(noisy(), optimizer=SGD(rate=0.1)) for _ in range(2)]
    feeds = batch_for(steps[0].source, 0)
    with pytest.raises(InputError):
        steps[0].step({**feeds, "x": feeds["x"][:, :3]})
    assert lessons(steps[0], feeds, 3) == lessons(steps[1], feeds, 3)


# Mixed precision


def classes_of_digits() -> tuple[Array, Array]:
    """The digits that are not held out."""
    datasets = peer("sklearn.datasets")
    found = datasets.load_digits()
    images = found.images.astype(np.uint8)[:, None]
    held = {image.tobytes() for image in held_out().images}
    seen = np.array([image.tobytes() not in held for image in images])
    return images[seen].astype(np.float32) / 16, found.target[seen]


def untrained(seed: int) -> Graph:
    """The digits network with weights drawn anew."""
    rng, graph = np.random.default_rng(seed), load_onnx(digits_model())

    def drawn(array: Array) -> Array:
        if array.dtype != np.float32 or not array.ndim:
            return array
        spread = np.sqrt(2 / np.prod(array.shape[1:])) if array.ndim > 1 else 0.0
        return np.asarray(rng.standard_normal(array.shape) * spread, np.float32)

    return graph.but(initializers={n: drawn(a) for n, a in graph.initializers.items()})


def accuracy(amp: str | None, seed: int, epochs: int = 4) -> float:
    images, labels = classes_of_digits()
    batches = len(images) // 64
    trainer = Trainer(untrained(seed), optimizer=Adam(rate=OneCycle(0.01, epochs * batches)), amp=amp, seed=seed)
    for epoch in range(epochs):
        order = np.random.default_rng([seed, epoch]).permutation(len(images))[: batches * 64].reshape(batches, 64)
        trainer.fit([{"image": images[b], "target": labels[b]} for b in order])
    found = trainer.evaluate([digits()]).accuracy
    assert found is not None
    return found


@pytest.mark.parametrize("amp", ["bf16", pytest.param("fp16", marks=pytest.mark.soak)])
def test_mixed_precision_reads_digits_as_well(amp: str) -> None:
    """Within half a percent over five seeds."""
    full, narrow = (np.mean([accuracy(kind, seed) for seed in range(5)]) for kind in (None, amp))
    print(f"accuracy in float32 {full:.2%}, in {amp} {narrow:.2%}")
    assert full > 0.96
    assert abs(full - narrow) <= 0.005


@pytest.mark.parametrize("amp", ["bf16", "fp16"])
def test_masters_stay_in_float32(amp: str) -> None:
    trainer = Trainer(lenet(), optimizer=SGD(rate=0.01), amp=amp)
    narrow = DType.BFLOAT16 if amp == "bf16" else DType.FLOAT16
    types = trainer.graph_of_step.types
    products = [n for n in trainer.graph_of_step.nodes if n.op in ("Conv", "Gemm")]
    assert len(products) >= 5
    assert {types[o].dtype for n in products for o in n.outputs} == {narrow}  # type: ignore[union-attr]
    assert all(p.dtype == np.float32 for p in trainer.parameters.values())
    feeds = batch_for(trainer.source, 0)
    plain = Trainer(lenet(), optimizer=SGD(rate=0.01))
    assert lessons(trainer, feeds) == pytest.approx(lessons(plain, feeds), rel=0.02)
    assert all(t.dtype is DType.FLOAT for o in trainer.graph().outputs for t in [trainer.graph().types[o]])  # type: ignore[union-attr]


def test_a_policy_of_ones_own() -> None:
    policy = Policy(DType.BFLOAT16, low=frozenset({"Gemm"}))
    graph = Trainer(lenet(), amp=policy).graph_of_step
    kinds = {n.op: graph.types[n.outputs[0]].dtype for n in graph.nodes if n.op in ("Conv", "Gemm")}  # type: ignore[union-attr]
    assert kinds == {"Conv": DType.FLOAT, "Gemm": DType.BFLOAT16}


def test_an_overflow_halves_the_scale_and_leaves_the_update_out() -> None:
    trainer = Trainer(mlp(), optimizer=Adam(rate=0.01), amp="fp16")
    feeds = batch_for(trainer.source, 0)
    assert trainer.loss_scale == 65536
    trainer.states["optimizer/scale"][...] = 2.0**30
    before = {n: a.copy() for n, a in trainer.states.items()}
    trainer.step(feeds)
    assert trainer.loss_scale == 2.0**29
    assert trainer.updates == 0
    for name, array in trainer.states.items():
        if not name.startswith("metrics/") and name != "optimizer/scale":
            np.testing.assert_array_equal(array, before[name], err_msg=name)
    for _ in range(30):
        trainer.step(feeds)
    assert 0 < trainer.updates < 31
    assert trainer.loss_scale < 2.0**29
    assert Trainer(mlp()).loss_scale is None


def test_the_scale_grows_with_patience() -> None:
    trainer = Trainer(mlp(), optimizer=SGD(rate=0.01), amp="fp16")
    made = Step(SGD(rate=0.01), scaling=Scaling(first=8.0, patience=3))
    judged, loss = trainer._judged(mixed(trainer.source, Policy(DType.FLOAT16)))
    graph = training_step(judged, loss, trainer.trained, made)
    session, feeds = Session(graph), batch_for(trainer.source, 0)
    scales = []
    for _ in range(7):
        session.run(feeds)
        scales.append(float(session.states["optimizer/scale"]))
    assert scales == [8, 8, 16, 16, 16, 32, 32]


def test_what_overflowed_is_named() -> None:
    trainer = Trainer(mlp(), optimizer=SGD(rate=0.01), amp="fp16")
    feeds = batch_for(trainer.source, 0)
    before = {n: a.copy() for n, a in trainer.states.items()}
    assert trainer.overflow(feeds) == ()
    first, *_ = trainer.overflow(feeds, loss_scale=2.0**40)
    assert first.place.startswith("the gradient of")
    assert first.infinite > 0
    large = {**feeds, "x": feeds["x"] * 1e5}
    first, *_ = trainer.overflow(large)
    assert "x" in first.value
    assert "float16" in first.value
    assert "infinite" in str(first)
    (fed,) = trainer.overflow({**feeds, "x": np.full((8, 12), np.nan, np.float32)})
    assert (fed.place, fed.undefined) == ("the input 'x'", 96)
    for name, array in trainer.states.items():
        np.testing.assert_array_equal(array, before[name], err_msg=name)
    trainer.states["0.weight"][0, 0] = np.inf
    first, *_ = trainer.overflow(feeds)
    assert first.place == "the state '0.weight'"
    with pytest.raises(InputError, match="no loss scale"):
        Trainer(mlp()).overflow(feeds, loss_scale=2.0)


def test_overflow_in_a_blocked_layout_is_seen() -> None:
    """Convolutions of oneDNN lay their results out in blocks, as bytes: elements are counted all the same."""
    block = np.array([1, np.inf, np.nan, -np.inf], np.float32).view(np.uint8)
    assert _counts(Tensor(DType.FLOAT, (1, 4), layout="aB4b"), block) == (2, 1)
    trainer = Trainer(digits_model(), optimizer=SGD(rate=0.01))
    trainer.states["3.weight"][...] = 3e38
    found = trainer.overflow(digits(0, 16))
    assert found
    assert all(o.operators for o in found)


def test_what_a_user_types(tmp_path: Path) -> None:
    """The names of the front door."""
    trainer = mezzo.Trainer(
        mezzo.with_head(mezzo.onnx.load(digits_model()), 10),
        optimizer=mezzo.optimizer.AdamW(rate=mezzo.schedule.WarmUp(0.003, 5)),
        clip_norm=1.0,
    )
    assert lessons(trainer, digits(), 20)[-1] < 1.5
    trainer.export(tmp_path / "new.onnx")
    answers = mezzo.load(tmp_path / "new.onnx")(digits()["image"])
    assert answers.shape == (360, 10)
    with pytest.raises(AttributeError, match="no attribute 'trainer'"):
        mezzo.trainer  # noqa: B018
