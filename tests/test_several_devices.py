"""Several devices of one process: communicators of GPUs by copies, and trainings whose batches are split by device."""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mezzo as mz
from mezzo.exporters import save_onnx
from mezzo.importers import load_onnx
from mezzo.kvstore.collective.nccl import Nccl
from mezzo.kvstore.collective.peers import Peers, peers
from mezzo.kvstore.collective.threads import team
from mezzo.models.bert import bert
from mezzo.models.convnets import resnet50
from mezzo.ops import DType
from mezzo.ops.errors import InputError, PeerError, ShapeError
from mezzo.ops.types import f32
from mezzo.runtime.backends.cuda.host import HostSteps
from mezzo.runtime.execution.functions import FUNCTIONS
from mezzo.runtime.ir.graph import GraphBuilder
from mezzo.tools.cli import cli
from mezzo.train.shares import Samples, batch_axis
from mezzo.train.team import split

from .capture_tables import check, table
from .collective_lessons import OPTIMIZERS, Course, in_turn, learned, network, together
from .collective_ranks import operand
from .cupy_standin import Standin
from .nccl_ranks import FakeRanks
from .networks import mlp

Array = np.ndarray[Any, Any]
TYPES = (np.float32, np.float64, np.float16, np.int32, np.int64, DType.BFLOAT16.numpy)


@pytest.fixture
def three(standin: Standin) -> Iterator[Standin]:
    standin.devices, standin.quick = 3, True
    FUNCTIONS.clear()  # operators on arrays remember the device that they ran on
    yield standin
    FUNCTIONS.clear()


def with_nccl(standin: Standin, monkeypatch: pytest.MonkeyPatch) -> FakeRanks:
    made = FakeRanks(standin)
    monkeypatch.setitem(sys.modules, "cupy.cuda.nccl", standin.library["cupy.cuda.nccl"])
    return made


# -- communicators


@pytest.mark.parametrize("over", [Nccl, Peers])
def test_every_verb_between_gpus(three: Standin, monkeypatch: pytest.MonkeyPatch, over: Any) -> None:
    """The bits of sums in rank order, of any number of elements; nothing is read before it is written."""
    if over is Nccl:
        with_nccl(three, monkeypatch)
    cp = three.modules()["cupy"]

    def verbs(c: Any) -> None:
        c = Nccl(c, c.rank, deterministic=True) if over is Nccl else c
        with cp.cuda.Device(c.device), cp.cuda.Stream(non_blocking=True) as stream:
            for dtype in TYPES:
                every = [operand(r, 12, dtype) for r in range(3)]
                wide = np.float32 if np.dtype(dtype).itemsize == 2 else dtype
                total = every[0].astype(wide) + every[1].astype(wide) + every[2].astype(wide)
                found: dict[Any, Any] = {}
                for count in (12, 7, 2, 1):
                    found[count] = c.all_reduce(cp.asarray(every[c.rank][:count])), total[:count]
                    again = c.all_reduce(c.empty(count, dtype)).wait().get()
                    assert not again.any()
                one, whole = cp.empty((4,), dtype), cp.empty((36,), dtype)
                found["part"] = c.reduce_scatter(cp.asarray(every[c.rank]), one), total[4 * c.rank : 4 * c.rank + 4]
                found["whole"] = c.all_gather(cp.asarray(every[c.rank]), whole), np.concatenate(every)
                found["root"] = c.broadcast(cp.asarray(every[c.rank]), 2), every[2]
                if over is Peers:  # NCCL wants both in a group
                    c.send(cp.asarray(every[c.rank]), (c.rank + 1) % 3)
                    before = (c.rank + 2) % 3
                    found["sent"] = c.receive(cp.empty((12,), dtype), before), every[before]
                for what, (work, expected) in found.items():
                    got = work.wait()
                    stream.synchronize()
                    assert got.host.tobytes() == expected.astype(dtype).tobytes(), (what, dtype)
        c.barrier()
        c.close()

    ranks: Any = team(3, 60) if over is Nccl else peers(range(3), 60)
    together(ranks, verbs)
    assert not three.races
    assert over is Nccl or three.reached == {(a, b) for a in range(3) for b in range(3) if a != b}


# -- trainings, on the processor


def devices(course: Course, kind: str = "cpu", **how: Any) -> mz.Trainer:
    """The Trainer of a course with a device for each rank."""
    how.setdefault("kvstore", "device")  # which several devices are without being told
    return course.trainer(device=[f"{kind}:{r}" for r in range(course.ranks)], **how)


def whole(course: Course) -> list[dict[str, Array]]:
    """The batches of a course, of which each device is to take its share."""
    return [{n: np.concatenate([share[n] for share in batch]) for n in batch[0]} for batch in course.batches()]


COURSES = (
    Course("sgd", 2), Course("adam", 3, gather=2), Course("adamw", 4, buckets=200, wire="bf16"),
    Course("adamw", 3, zero=1, buckets=200), Course("adam", 2, zero=2, gather=2, clip_norm=None),
)  # fmt: skip


@pytest.mark.parametrize("course", COURSES, ids=str)
def test_devices_learn_the_bits_of_one_that_adds_in_turn(course: Course) -> None:
    """Uneven last batches included; all devices have the same parameters then."""
    trainer = devices(course)
    found, expected = learned(trainer, whole(course)), in_turn(course)
    for name, array in expected.items():
        for rank in trainer._ranks:
            np.testing.assert_array_equal(np.asarray(rank.states[name]), array, name)
    alone = learned(course.trainer(), whole(course))
    np.testing.assert_allclose(found["losses"], alone["losses"], rtol=1e-2 if course.wire else 1e-9)


def test_a_batch_of_fewer_samples_than_devices() -> None:
    """Devices without a sample add nothing: not to sums, and not to metrics."""
    course = Course("adam", 4)
    batch = whole(course)[0]
    few = {n: x[:2] for n, x in batch.items()}
    several, alone = devices(course, metrics=["accuracy"]), course.trainer(metrics=["accuracy"])
    for trainer in (several, alone):
        for fed in (batch, few, few):
            trainer.step(fed)
    for name in alone.trained:
        np.testing.assert_allclose(several.states[name], alone.states[name], rtol=1e-9, err_msg=name)
    found, expected = several.metrics(), alone.metrics()
    assert found.samples == expected.samples == 8 + 2 + 2
    assert found.loss == pytest.approx(expected.loss)
    assert found.values == expected.values
    assert several.metrics() == found, "metrics that were asked for go on counting"


@pytest.mark.parametrize("zero", [0, 2])
def test_checkpoints_and_exports_are_those_of_one_device(zero: int, tmp_path: Path) -> None:
    course = Course("adamw", 3, zero, buckets=200)
    batches, first = whole(course), devices(course)
    learned(first, batches[:2])
    first.notes = {"at": 2}
    first.save(tmp_path / "kept", keep=2)
    copy = first.snapshot()
    first.export(tmp_path / "model.onnx")
    first.export_step(tmp_path / "step.onnx")
    went_on = learned(first, batches[2:])

    again, alone = devices(course), course.trainer()
    for trainer in (again, alone):
        assert trainer.resume(tmp_path / "kept") == {"at": 2}
    second = learned(again, batches[2:])
    first.restore(copy)
    back = learned(first, batches[2:])
    for name, array in went_on.items():
        np.testing.assert_array_equal(second[name], array, name)
        np.testing.assert_array_equal(back[name], array, name)
    assert {n for n in copy if n.startswith("optimizer/")} == {n for n in alone.states if n.startswith("optimizer/")}

    exported = mz.load(tmp_path / "model.onnx")
    x = batches[0]["x"]
    expected = mz.Session(alone.graph()).run({"x": x})
    for found, want in zip(exported.run({"x": x}).values(), expected.values(), strict=True):
        np.testing.assert_array_equal(found, want)
    step = mz.load(tmp_path / "step.onnx").run(batches[2])
    assert float(step[first.loss]) == pytest.approx(alone.step(batches[2]), rel=1e-9)
    learned_by_one = np.asarray(next(v for n, v in step.items() if np.shape(v) == alone.states["1.weight"].shape))
    np.testing.assert_allclose(learned_by_one, alone.states["1.weight"], rtol=1e-9)
    one_device = learned(alone, batches[3:])
    for name in alone.trained:
        np.testing.assert_allclose(one_device[name], went_on[name], rtol=1e-9, err_msg=name)


@pytest.mark.parametrize("zero", [0, 2])
def test_callbacks_see_one_training(zero: int, tmp_path: Path) -> None:
    """Rates, snapshots that are restored, and metrics are those of all devices."""
    course = Course("adam", 2, zero)
    batches, several, alone = (
        whole(course)[:3],
        devices(course, metrics=["accuracy"]),
        course.trainer(metrics=["accuracy"]),
    )
    ends = []
    for trainer in (several, alone):
        stop = mz.callbacks.EarlyStopping("loss", patience=1, restore=True)
        metrics = trainer.fit(batches, epochs=3, callbacks=[stop], validate=batches[:2])
        metrics += [trainer.history[-1][1], trainer.evaluate(batches, everywhere=True)]
        trainer.rate = 0.5
        ends.append(metrics)
        trainer.save(tmp_path / str(len(ends)))
    for found, expected in zip(*ends, strict=True):
        assert found.samples == expected.samples
        assert found.loss == pytest.approx(expected.loss, rel=1e-9)
        assert found.values == expected.values
    assert [rank.rate for rank in several._ranks] == [0.5, 0.5] == [alone.rate] * 2
    for name in alone.trained:
        np.testing.assert_allclose(several.states[name], alone.states[name], rtol=1e-9, err_msg=name)


def test_feeds_that_do_not_fit_are_refused_before_a_device_begins() -> None:
    course = Course("adam", 2)
    trainer, alone, (batch, *_) = devices(course), course.trainer(), whole(course)
    for wrong in ({"x": batch["x"]}, {**batch, "x": batch["x"][:3]}, {**batch, "x": batch["x"][:, :2]},
                  {**batch, "z": batch["x"]}, {**batch, "target": batch["target"][:0]}):  # fmt: skip
        with pytest.raises((InputError, ShapeError)):
            trainer.step(wrong)
    assert trainer.step(batch) == pytest.approx(alone.step(batch))


def test_an_error_of_one_device_ends_the_step_of_all() -> None:
    """It is raised as it was, soon, and there is no way on but from a checkpoint."""
    course = Course("adam", 3)
    trainer, (batch, *_) = devices(course), whole(course)
    trainer.step(batch)
    session = trainer._ranks[1]._update

    def full(*_: Any, **__: Any) -> Any:
        raise mz.BudgetError("there is no room", where="cpu:1")

    session.run = full
    began = time.monotonic()
    with pytest.raises(mz.BudgetError, match="there is no room"):
        trainer.step(batch)
    assert time.monotonic() - began < 20
    with pytest.raises(PeerError, match="rank 1 has ended it: BudgetError: cpu:1: there is no room"):
        trainer.step(batch)


def test_random_numbers_differ_by_device() -> None:
    g = GraphBuilder()
    x = g.input("x", f32("n", 4))
    y = g.MatMul(g.Dropout(x, g.const(np.float32(0.5))), g.const(np.eye(4, 2, dtype=np.float32)))
    trainer = mz.Trainer(g.graph([y]), device="cpu:0,cpu:1", optimizer=mz.optimizer.SGD(rate=1.0))
    x_, target = np.ones((8, 4), np.float32), np.zeros(8, np.int64)
    trainer.step({"x": x_, "target": target})
    parts = {rank.exchange.part for rank in trainer._ranks}
    assert parts == {(0,), (1,)}
    losses = [rank.last.loss for rank in trainer._ranks]
    assert losses[1:] != losses[:1]


@pytest.mark.parametrize(
    ("device", "how", "said"),
    [
        ("cpu:0,cpu:0", {}, "'cpu:0' is there twice"),
        (["cpu:0", "gpu:0"], {}, "cpu and gpu together"),
        (["cpu:0", 1], {}, "1 is no device"),
        ([], {}, "no device"),
        ("cpu:0,cpu:1", {"kvstore": "dist_sync"}, "kvstore='dist_sync' beside 2 devices"),
        ("cpu:0,cpu:1", {"kvstore": "device", "update_on_kvstore": True}, "a communicator keeps no parameters"),
        ("cpu:0,cpu:1", {"optimizer": mz.optimizer.Adam(lazy_update=True)}, "Adam steps rows of tables alone"),
    ],
)
def test_what_several_devices_cannot_do_is_refused(device: Any, how: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        mz.Trainer(network(), device=device, **how)


def test_kvstores_of_one_process_are_for_several_devices() -> None:
    course = Course("sgd", 2)
    expected, held = learned(devices(course), whole(course)), mz.kv.create("device")
    plain = mz.Trainer(network(), optimizer=OPTIMIZERS["sgd"], device=[mz.cpu(0), mz.cpu(1)], threads=1)
    for trainer in (plain, devices(course, kvstore="local"), devices(course, kvstore=held)):
        found = learned(trainer, whole(course))
        for name, array in expected.items():
            np.testing.assert_array_equal(found[name], array, name)
    held.set_optimizer(mz.optimizer.SGD())
    with pytest.raises(InputError, match="the store has an optimizer"):
        devices(course, kvstore=held)


def test_the_command_on_several_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It learns what it does on one, metrics and checkpoints included; the last batch has 12 samples."""
    monkeypatch.chdir(tmp_path)
    save_onnx(mlp(), "mlp.onnx")
    x = np.random.default_rng(0).standard_normal((60, 12)).astype(np.float32)
    np.savez("data.npz", x=x, target=(x[:, 0] > 0).astype(np.int64))
    told = []
    for out, more in (("one", ()), ("three", ("--device", "cpu:0,cpu:1,cpu:2", "--checkpoint", "kept")),
                      ("again", ("--checkpoint", "kept", "--resume"))):  # fmt: skip
        cli.main(["train", "mlp.onnx", "data.npz", "--epochs", "3", "--optimizer", "sgd", "--rate", "0.05", *more,
                  "-o", f"{out}.onnx", "--json", "told.json", "--quiet"], standalone_mode=False)  # fmt: skip
        told.append(json.loads(Path("told.json").read_text()))
    one, three, again = told
    assert three["updates"] == one["updates"]
    assert again["resumed_at"] == "epoch 4, batch 1"
    for found, expected in zip(three["epochs"], one["epochs"], strict=True):
        assert found["loss"] == pytest.approx(expected["loss"], rel=1e-4)
        assert found["validation_accuracy"] == expected["validation_accuracy"]
    weights = [load_onnx(f"{out}.onnx").initializers for out in ("one", "three", "again")]
    for name, array in weights[1].items():
        np.testing.assert_array_equal(weights[2][name], array, name)
        np.testing.assert_allclose(weights[0][name], array, rtol=1e-3, atol=1e-5, err_msg=name)


# -- trainings, on GPUs that are not there


def test_gpus_learn_the_bits_of_one_that_adds_in_turn(three: Standin) -> None:
    """By copies from GPU to GPU; each has a program, streams and memory of its own."""
    course = Course("adam", 3, buckets=200, dtype=DType.FLOAT)
    with warnings.catch_warnings():
        warnings.simplefilter("error", HostSteps)
        trainer = devices(course, "gpu")
        learned(trainer, whole(course))
    expected = in_turn(course, "gpu:0")
    for name, array in expected.items():
        for rank in trainer._ranks:
            np.testing.assert_array_equal(np.asarray(rank.states[name]), array, name)
    assert {three._owners[p] for p in three._blocks} == {0, 1, 2}
    for rank in trainer._ranks:
        refused = {rank._update.program.steps[i].node.op: why for i, why in rank._update.uncaptured()}
        assert refused.keys() == {"Emit", "Await"}
        assert all("peer copies" in why for why in refused.values())
    three.log.clear()
    trainer.step(whole(course)[0])
    assert three.count("alloc") == three.count("pinned") == 0


@pytest.mark.parametrize(("ranks", "zero"), [(2, 0), (2, 2), (4, 0), (8, 0)])
def test_a_step_of_many_gpus_is_a_graph_of_each(
    three: Standin, monkeypatch: pytest.MonkeyPatch, ranks: int, zero: int
) -> None:
    """Over NCCL: every reduction is part of it, and begins while gradients are made; the bits are those of one GPU."""
    with_nccl(three, monkeypatch)
    three.devices = ranks
    course = Course("adam", ranks, zero, buckets=200 if zero == 0 else 100, dtype=DType.FLOAT)
    trainer, batches = devices(course, "gpu"), whole(course)
    learned(trainer, batches)
    for name, array in in_turn(course, "gpu:0").items():
        for rank in trainer._ranks:
            np.testing.assert_array_equal(np.asarray(rank.states[name]), array, name)
    three.log.clear()
    trainer.step(batches[0])
    assert three.count("launch") > 0 == three.count("alloc") + three.count("pinned")
    assert all(rank._update.uncaptured() == () for rank in trainer._ranks)
    check(table(trainer))


@pytest.mark.soak
@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("name", ["resnet50", "bert"])
def test_large_networks_on_many_gpus(name: str, ranks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their steps are recorded, and nothing is computed: one graph for each rank."""
    monkeypatch.setenv("MEZZO_CACHE", str(tmp_path))
    monkeypatch.setenv("MEZZO_KV_DEADLINE", "3600")  # the stand-in compares what each node touches with all others
    made = Standin(memory=1 << 40, devices=ranks)
    made.install(monkeypatch)
    with_nccl(made, monkeypatch)
    names, rng = [f"gpu:{r}" for r in range(ranks)], np.random.default_rng(0)
    how: dict[str, Any] = {"optimizer": mz.optimizer.SGD(rate=0.1), "device": names, "compare_every": 0}
    if name == "resnet50":
        trainer = mz.Trainer(resnet50("batch"), **how)
        images = rng.random((ranks, 3, 224, 224), np.float32)
        batch = {trainer.source.inputs[0]: images, "target": rng.integers(0, 1000, ranks)}
    else:
        trainer = mz.Trainer(bert("batch"), loss="mse", **how)
        batch = {n: np.ones((ranks, 128), np.int64) for n in trainer.source.inputs}
        batch["target"] = rng.random((ranks, 128, 768), np.float32)
    for _ in range(3):
        trainer.step(batch)
    rows = table(trainer)
    check(rows)
    print("\n".join(row.drawn() for row in rows))
    assert not made.races


@pytest.mark.parametrize("kind", ["local", "device"])
@pytest.mark.parametrize("many", [False, True])
def test_a_store_adds_up_what_lies_on_several_gpus(three: Standin, kind: str, many: bool) -> None:
    """The bits of sums in the order of the list, and the answer on every GPU; with an optimizer, its step."""
    rng = np.random.default_rng(5)
    given = [(rng.standard_normal((3, 5)) * 10**r).astype(np.float32) for r in range(3)]
    total = given[0] + given[1] + given[2]
    kv, first = mz.kv.create(kind), np.zeros((3, 5), np.float32)
    key: Any = ["w", "v"] if many else "w"
    kv.init(key, [first, first] if many else first)

    def there() -> Any:
        arrays = [mz.nd.asarray(x).to_device(mz.gpu(r)) for r, x in enumerate(given)]
        return [arrays, arrays] if many else arrays

    outs = [mz.nd.zeros((3, 5)).to_device(mz.gpu(r)) for r in range(3)]
    three.log.clear()
    kv.push(key, there())
    down = [e for e in three.log if e.what == "copy" and e.detail == "memcpyDeviceToHost"]
    assert len(down) == (1 if kind == "device" else 3) * (1 + many)
    kv.pull(key, out=[outs, outs] if many else outs)
    for r, out in enumerate(outs):
        assert (out.device.name, out.device.index) == ("gpu", r)
        np.testing.assert_array_equal(out.asnumpy(), total)
    here = np.zeros((3, 5), np.float32)
    kv.pushpull("w", mz.nd.asarray(given[0]).to_device(mz.gpu(1)), out=[outs[2], here])
    for found in (outs[2].asnumpy(), here):
        np.testing.assert_array_equal(found, given[0])
    kv.set_optimizer(mz.optimizer.SGD(rate=0.5))
    kv.push("w", there()[0] if many else there())
    np.testing.assert_array_equal(kv.pull("w"), given[0] - np.float32(0.5) * total)


# -- splitting


@pytest.mark.parametrize(
    ("dims", "batch", "shape", "sizes"),
    [
        (("n", 3), "n", (5, 3), [(3, 3), (2, 3)]),  # the batch's name
        (("time", "n", 2), "n", (4, 5, 2), [(4, 3, 2), (4, 2, 2)]),
        (("m", 3), "n", (5, 3), [(3, 3), (2, 3)]),  # an open dim of another name
        ((None, 3), None, (5, 3), [(3, 3), (2, 3)]),
        ((7,), "n", (7,), [(7,), (7,)]),  # of a fixed size that is not the batch's
        ((), "n", (), [(), ()]),
        ((5, 2), 5, (10, 2), [(5, 2), (5, 2)]),  # of the size that each device takes
    ],
)
def test_a_feed_is_split_along_its_batch_axis(dims: Any, batch: Any, shape: Any, sizes: Any) -> None:
    x = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    size = 10 if batch == 5 else 5
    axis = batch_axis(f32(*dims), batch)
    parts = split({"x": x}, size, Samples(batch, {} if axis is None else {"x": axis}), 2)
    assert [part.feeds["x"].shape for part in parts] == sizes
    assert [part.size for part in parts] == ([5, 5] if batch == 5 else [3, 2])


def test_samples_that_are_missing_are_told_before_they_are_split() -> None:
    with pytest.raises(InputError, match=r"its shape is \[4, 3\], and the batch of 5 is split along axis 0"):
        split({"x": np.zeros((4, 3))}, 5, Samples("n", {"x": 0}), 2)
    parts = split({"x": np.arange(2.0)}, 2, Samples("n", {"x": 0}), 4)
    assert [(part.size, part.feeds["x"].tolist()) for part in parts] == [(1, [0]), (1, [1]), (0, [1]), (0, [1])]
