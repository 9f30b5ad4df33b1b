"""Micro-batches over the devices of a placed model (1F1B): the schedule, the numbers of the whole batch, the order in
which each device computes, memory, and what is refused."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mezzo as mz
from mezzo.models.digits import digits_model, held_out
from mezzo.ops import DType, Tensor
from mezzo.ops.errors import InputError
from mezzo.runtime.ir.graph import Graph, GraphBuilder, Node, State
from mezzo.runtime.optimizer import SGD, AdamW
from mezzo.train.pipeline import Pipeline

from .cupy_standin import Standin
from .test_cli import DIGITS, as_json, mezzo

digits = held_out()


def batch(count: int) -> dict[str, Any]:
    return {"image": digits.inputs[:count], "target": digits.labels[:count]}


def places(kind: str) -> dict[str, str]:
    return {"[03].*": f"{kind}:0", "7.*": f"{kind}:1", "13.*": f"{kind}:1"}


@pytest.mark.parametrize(("devices", "parts"), [*product(range(1, 6), range(1, 10))])
def test_a_schedule_keeps_its_order_and_its_bounds(devices: int, parts: int) -> None:
    pipeline = Pipeline(tuple(f"gpu:{i}" for i in range(devices)), parts)
    done = set[tuple[int, bool, int]]()
    for time in range(1 + pipeline.turns[-1].time):
        now = [t for t in pipeline.turns if t.time == time]
        assert len({t.stage for t in now}) == len(now), "one turn at a time"
        for t in now:
            before = (t.stage - 1, True) if t.forward else (t.stage + 1, False)
            assert before[0] in (-1, devices) or (*before, t.part) in done
            assert t.forward or (t.stage, True, t.part) in done
            assert not t.part or (t.stage, t.forward, t.part - 1) in done
        done |= {(t.stage, t.forward, t.part) for t in now}
    assert len(done) == len(pipeline.turns) == 2 * devices * parts
    assert 1 + pipeline.turns[-1].time == 2 * (parts + devices - 1), "no device waits longer than it has to"
    for i, device in enumerate(pipeline.devices):
        assert pipeline.in_flight(device) == min(parts, devices - i)


def random_model(seed: int, stages: int) -> tuple[Graph, dict[str, str]]:
    """A graph in float64, and the device of each node: layers of several kinds, of which some read earlier ones, on the
    same device or one before."""
    rng, g, place = np.random.default_rng(seed), GraphBuilder(f"model {seed}"), dict[str, str]()
    width = int(rng.integers(3, 9))
    values = [g.input("x", Tensor(DType.DOUBLE, ("batch", width)))]

    def weight(*shape: int) -> str:
        return g.const(rng.normal(size=shape) / 2)

    for i in range(3 * stages):
        x, other = values[-1], values[int(rng.integers(len(values)))]
        made = [g.MatMul(x, weight(width, width))]
        kind = int(rng.integers(5))
        if kind == 0:
            made.append(g.Tanh(made[-1]))
        elif kind == 1:
            made += [(b := g.Add(made[-1], weight(width))), g.Sigmoid(b)]
        elif kind == 2:
            made += [(s := g.Softmax(made[-1], axis=-1)), g.Mul(s, other)]
        elif kind == 3:
            made.append(g.Add(made[-1], other))
        else:
            made.append(g.LayerNormalization(made[-1], weight(width)))
        place |= dict.fromkeys(made, f"cpu:{i // 3}")
        values.append(made[-1])
    return g.graph([values[-1]]), place


@pytest.mark.parametrize(("stages", "parts"), [*product((2, 3), (2, 3, 4, 7))])
def test_the_numbers_are_those_of_the_whole_batch(stages: int, parts: int) -> None:
    for seed in range(3):
        graph, place = random_model(7 * stages + seed, stages)
        rng = np.random.default_rng(seed)
        count = int(rng.integers(parts, 3 * parts + 2))
        kind: Any = graph.types["x"]
        shape = count, kind.dims[1]
        feeds = [{n: rng.normal(size=shape) for n in ("x", "target")} for _ in range(3)]
        how: dict[str, Any] = {"loss": "mse", "optimizer": SGD(rate=0.05, momentum=0.9), "clip_norm": 1.0}
        alone, apart = mz.Trainer(graph, **how), mz.Trainer(graph, place=place, micro_batches=parts, **how)
        for one in feeds:
            np.testing.assert_allclose(apart.step(one), alone.step(one), rtol=1e-12)
        assert apart.last.norm == pytest.approx(alone.last.norm, rel=1e-12)
        for name in alone.trained:
            np.testing.assert_allclose(apart.states[name], alone.states[name], rtol=1e-10, atol=1e-13, err_msg=name)
        assert apart.metrics().loss == pytest.approx(alone.metrics().loss, rel=1e-12)
        assert apart.pipeline is not None
        assert apart.pipeline.devices == tuple(f"cpu:{i}" for i in range(stages))
        assert [*apart._update.program.parts] == [*apart.pipeline.devices]


def test_devices_compute_in_the_order_of_the_schedule() -> None:
    trainer = mz.Trainer(digits_model(), place=places("cpu"), micro_batches=4)
    trainer.step(batch(26))
    assert str(trainer.pipeline) == (
        "4 micro-batches over 2 devices, in 10 turns\n"
        "cpu:0  F0 F1 .. B0 F2 B1 F3 B2 .. B3  2 in flight\n"
        "cpu:1  .. F0 B0 F1 B1 F2 B2 F3 B3 ..  1 in flight"
    )
    assert trainer.pipeline is not None
    for device, part in trainer._update.program.parts.items():
        seen = list[str]()
        for step in part.steps:
            name, _, number = step.node.name.partition("#")
            if number.isdecimal() and step.node.op != "Copy" and step.node.name.rpartition(":")[2] != "abcd":
                turn = f"{'B' if name.startswith('train/') else 'F'}{number}"
                seen += [turn] if turn not in seen[-1:] else []
        assert seen == [str(t) for t in trainer.pipeline.of(device)]


@pytest.mark.parametrize("onednn", [False, True])
def test_memory_is_that_of_what_is_in_flight(onednn: bool) -> None:
    def arenas(parts: int) -> list[int]:
        trainer = mz.Trainer(digits_model(), place=places("cpu"), micro_batches=parts, onednn=onednn)
        trainer._update.warmup({"image": (256, 1, 8, 8), "target": (256,)})
        return [p.arena_bytes for p in trainer._update.program.parts.values()]

    one, four, sixteen = arenas(1), arenas(4), arenas(16)
    for whole, some, many in zip(one, four, sixteen, strict=True):
        assert some < 0.7 * whole, "two of four are in flight, and one on the last device"
        assert many < some, "gradients are added up as they come"


def test_one_device_takes_micro_batches_as_gathered_ones() -> None:
    """Of as many samples each: the same numbers as separate calls, statistics of batch normalisation among them."""
    g = GraphBuilder()
    x = g.input("x", Tensor(DType.FLOAT, ("batch", 3, 4, 4)))
    rng = np.random.default_rng(0)
    w = g.const(rng.normal(size=(4, 3, 3, 3)).astype(np.float32))
    scale, bias, mean = (g.const(np.full(4, v, np.float32)) for v in (1, 0, 0))
    variance = g.const(np.ones(4, np.float32))
    normal = g.BatchNormalization(g.Conv(x, w), scale, bias, mean, variance)
    graph = g.graph([g.Flatten(g.Relu(normal))])
    feeds: dict[str, Any] = {"x": rng.normal(size=(12, 3, 4, 4)).astype(np.float32), "target": np.arange(12)}
    how: dict[str, Any] = {"optimizer": SGD(rate=0.1), "metrics": ["accuracy"]}
    gathered, parts = mz.Trainer(graph, gather=3, **how), mz.Trainer(graph, micro_batches=3, **how)
    for _ in range(2):
        for i in range(0, 12, 4):
            gathered.step({n: a[i : i + 4] for n, a in feeds.items()})
        parts.step(feeds)
    for name, array in parts.states.items():
        np.testing.assert_allclose(array, gathered.states[name], rtol=1e-5, atol=1e-6, err_msg=name)
    assert str(parts.metrics()) == str(gathered.metrics())
    whole = mz.Trainer(graph, **how)
    whole.step(feeds)
    assert not np.allclose(whole.states[variance], mz.Trainer(graph, **how).states[variance])
    assert not np.allclose(whole.states[variance], gathered.states[variance]), "statistics are those of each part"


def test_with_all_else_that_steps_have(tmp_path: Path) -> None:
    def made(**how: Any) -> mz.Trainer:
        return mz.Trainer(digits_model(), optimizer=AdamW(rate=0.01), amp="fp16", gather=2, clip_norm=1.0, **how)

    alone, apart = made(), made(place=places("cpu"), micro_batches=3)
    for trainer in (alone, apart):
        for _ in range(4):
            trainer.step(batch(20))
    for name in alone.trained:
        np.testing.assert_allclose(apart.states[name], alone.states[name], rtol=0, atol=2e-2, err_msg=name)
    assert apart.evaluate([batch(2)]).loss == pytest.approx(alone.evaluate([batch(2)]).loss, rel=0.1)
    apart.save(tmp_path)
    again = made(place=places("cpu"), micro_batches=3)
    again.resume(tmp_path)
    elsewhere = made(micro_batches=3)
    elsewhere.resume(tmp_path)
    losses = [apart.step(batch(20)) for _ in range(2)]
    assert losses == [again.step(batch(20)) for _ in range(2)]
    assert losses == [elsewhere.step(batch(20)) for _ in range(2)], "with another placement"
    with pytest.raises(InputError, match="a training of another graph"):
        made(micro_batches=2).resume(tmp_path)


def test_each_micro_batch_is_a_run_of_its_own() -> None:
    """It draws numbers of its own, where they depend on no input, too; and states go from one to the next."""
    g = GraphBuilder()
    x = g.input("x", Tensor(DType.FLOAT, ("batch", 64)))
    kept = g.Dropout(g.Mul(x, g.const(np.ones(64, np.float32))), g.const(0.5, DType.FLOAT))
    noise = g.RandomUniform(shape=[64])
    graph = g.graph([g.Add(g.Add(kept, noise), g.Mul(x, g.const(0.0, DType.FLOAT)))])
    graph = graph.but(
        nodes=(*graph.nodes, Node("Add", ("runs", "one"), ("more",), name="more")),
        initializers={**graph.initializers, "runs": np.zeros((), np.float32), "one": np.ones((), np.float32)},
        states=(State("runs", "runs", "more"),),
    )
    trainer = mz.Trainer(graph, loss="mse", micro_batches=2, metrics=["mse"])
    feeds = {"x": np.ones((2, 64), np.float32), "target": np.zeros((2, 64), np.float32)}
    found = trainer._update.run(feeds)[graph.outputs[0]]
    assert found.shape == (2, 64)
    drawn = found % 1
    assert (drawn[0] != drawn[1]).all(), "noise"
    assert (found[0] - drawn[0] != found[1] - drawn[1]).any(), "dropout"
    assert trainer.states["runs"] == 2


def test_gpus_have_the_bits_of_one(standin: Standin) -> None:
    standin.devices = 2
    alone, apart = (mz.Trainer(digits_model(), micro_batches=3, **how)
                    for how in ({"device": "gpu:0"}, {"place": places("gpu")}))  # fmt: skip
    for trainer in (alone, apart):
        for _ in range(2):
            trainer.step(batch(7))
    for name in alone.trained:
        np.testing.assert_array_equal(np.asarray(apart.states[name]), np.asarray(alone.states[name]), name)
    assert standin.races == []


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"micro_batches": 0}, "micro_batches=0"),
        ({"micro_batches": 2, "device": "cpu:0,cpu:1"}, "micro_batches= beside kvstore= or several devices"),
        ({"micro_batches": 2, "recompute": True}, "micro_batches= beside recompute="),
        ({"micro_batches": 2, "optimizer": SGD(rate=0.1, lazy_update=True)}, "micro_batches= beside lazy_update"),
        ({"micro_batches": 2, "place": {"0.*": "cpu:0", "3.*": "cpu:1", "7.*": "cpu:0", "13.*": "cpu:1"}},
         "in a circle: cpu:0, cpu:1"),
    ],
)  # fmt: skip
def test_what_has_no_micro_batches_is_refused(how: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        mz.Trainer(digits_model(), **how)


def test_batches_that_cannot_be_split_are_refused() -> None:
    trainer = mz.Trainer(digits_model(), micro_batches=4)
    with pytest.raises(InputError, match="a batch of 3 in 4 micro-batches"):
        trainer.step(batch(3))
    g = GraphBuilder()
    x = g.input("x", Tensor(DType.FLOAT, (4, 3)))
    fixed = g.graph([g.MatMul(x, g.const(np.ones((3, 2), np.float32)))])
    with pytest.raises(InputError, match="the batch of the model is 4 samples"):
        mz.Trainer(fixed, loss="mse", micro_batches=2)


def test_explain_shows_turns_and_memory() -> None:
    asked = ["explain", DIGITS, "--micro-batches", "4", "--optimizer", "adamw"]
    given = [f"--place={pattern}={device}" for pattern, device in places("gpu").items()]
    report = as_json(
        *asked, "--dim", "batch=64", *(p.replace(":0", ":0@sm_90").replace(":1", ":1@sm_90") for p in given)
    )
    assert [row["turns"] for row in report["turns"]] == ["F0 F1 B0 F2 B1 F3 B2 B3", "F0 B0 F1 B1 F2 B2 F3 B3"]
    assert [row["in flight"] for row in report["devices"]] == [2, 1]
    assert all(row["arena bytes"] and row["states bytes"] for row in report["devices"])
    assert "a batch of" in mezzo(*asked, code=2)
    found = as_json(*asked, "--dim", "batch=64", "--place", "auto", "--room", "cpu:0=1MB", "--room", "cpu:1=1MB")
    assert all(row["bytes"] <= row["room"] == 1000000 for row in found["devices"])


def memory_model(first: bool = False) -> Graph:
    """Rows of a memory, of which there may be as many as there are samples, or others."""
    g, rng = GraphBuilder(), np.random.default_rng(0)
    names = ("memory", "x") if first else ("x", "memory")
    given = {n: g.input(n, Tensor(DType.DOUBLE, ("k" if n == "memory" else "n", 6))) for n in names}
    seen = g.Softmax(g.MatMul(given["x"], g.Transpose(given["memory"], perm=[1, 0])))
    return g.graph([g.MatMul(g.MatMul(seen, given["memory"]), g.const(rng.normal(size=(6, 4))))])


def other_axis() -> Graph:
    g = GraphBuilder()
    x = g.input("x", Tensor(DType.DOUBLE, ("time", "n", 6)))
    w = g.const(np.random.default_rng(0).normal(size=(6, 4)))
    return g.graph([g.ReduceMean(g.MatMul(x, w), g.const([0]), keepdims=0)])


def names_of_their_own() -> Graph:
    """Both inputs have samples first, and no dim tells so: exporters name each."""
    g = GraphBuilder()
    one, other = (g.input(n, Tensor(DType.DOUBLE, (f"{n}_0", 6))) for n in ("x", "y"))
    return g.graph([g.MatMul(g.Add(one, other), g.const(np.random.default_rng(0).normal(size=(6, 4))))])


@pytest.mark.parametrize("how", [{"micro_batches": 3}, {"device": "cpu:0,cpu:1"}], ids=["parts", "devices"])
@pytest.mark.parametrize(
    ("graph", "shapes"),
    [
        (memory_model(), {"x": (8, 6), "memory": (8, 6)}),
        (memory_model(), {"x": (8, 6), "memory": (5, 6)}),
        (memory_model(first=True), {"x": (8, 6), "memory": (11, 6)}),
        (other_axis(), {"x": (8, 8, 6)}),
        (other_axis(), {"x": (5, 8, 6)}),
        (names_of_their_own(), {"x": (8, 6), "y": (8, 6)}),
    ],
)
def test_what_has_no_samples_is_not_split(graph: Graph, shapes: dict[str, Any], how: dict[str, Any]) -> None:
    rng = np.random.default_rng(1)
    feeds = {n: rng.normal(size=shape) for n, shape in shapes.items()} | {"target": rng.integers(0, 4, 8)}
    alone, apart = (mz.Trainer(graph, optimizer=SGD(rate=0.1), **more) for more in ({}, how))
    assert apart.step(feeds) == pytest.approx(alone.step(feeds), rel=1e-9)
    for name in alone.trained:
        np.testing.assert_allclose(apart.states[name], alone.states[name], rtol=1e-9, atol=1e-12, err_msg=name)


def test_feeds_of_other_sizes_than_the_batch_are_refused() -> None:
    trainer = mz.Trainer(names_of_their_own(), micro_batches=2)
    feeds = {"x": np.ones((8, 6)), "y": np.ones((7, 6)), "target": np.zeros(8, int)}
    with pytest.raises(InputError, match=r"its shape is \[7, 6\], and the batch of 8 is split along axis 0"):
        trainer.step(feeds)


@pytest.mark.parametrize("how", [{"micro_batches": 2}, {"device": "cpu:0,cpu:1"}], ids=["parts", "devices"])
def test_losses_that_add_samples_up_are_refused(how: dict[str, Any]) -> None:
    def squares(y: Any, target: Any) -> Any:
        return ((y - target) ** 2).sum()

    with pytest.raises(InputError, match="the loss adds samples up"):
        mz.Trainer(digits_model(), loss=squares, **how)
    mz.Trainer(digits_model(), loss=lambda y, t: ((y - t) ** 2).mean(), **how)
    mz.Trainer(digits_model(), loss=lambda y, t: ((y - t) ** 2).sum(1), **how)


LOSSES = [
    mz.loss.cross_entropy(ignore_index=-100),
    mz.loss.cross_entropy(class_weights=[*range(1, 11)]),
    mz.loss.cross_entropy(ignore_index=-100, class_weights=[*range(1, 11)], label_smoothing=0.2),
]


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("weighed", [False, True])
def test_parts_count_by_what_counts_in_them(loss: mz.loss.Loss, weighed: bool) -> None:
    how: dict[str, Any] = {"loss": loss, "optimizer": SGD(rate=0.05), "sample_weights": weighed}
    alone, apart = (mz.Trainer(digits_model(), **how, **more)
                    for more in ({}, {"place": places("cpu"), "micro_batches": 3}))  # fmt: skip
    for ignored in (slice(None, None, 3), slice(0, 5), slice(0, 0)):
        one = {n: a.astype(np.int64) if n == "target" else a for n, a in batch(13).items()}
        one["target"][ignored] = -100 if loss.ignored is not None else 1
        if weighed:
            one["sample_weight"] = np.linspace(0, 2, 13, dtype=np.float32)
        assert apart.step(one) == pytest.approx(alone.step(one), rel=1e-5)
        assert apart.last.norm == pytest.approx(alone.last.norm, rel=1e-4)
    for name in alone.trained:
        np.testing.assert_allclose(apart.states[name], alone.states[name], rtol=0, atol=1e-6, err_msg=name)
    if loss.ignored is not None:
        one["target"][:] = -100
        before = apart.snapshot()
        assert np.isnan(apart.step(one))
        for name in apart.trained:
            np.testing.assert_array_equal(apart.states[name], before[name], err_msg="it moves nothing")
