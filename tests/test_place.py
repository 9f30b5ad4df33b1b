"""Models whose parts are on several devices: the bits of one device, copies that are shown, and what is refused."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mezzo as mz
from mezzo.models.digits import digits_model, held_out
from mezzo.ops.errors import InputError, MezzoError, MissingPackage
from mezzo.ops.types import f32
from mezzo.runtime.compile.parts import copies
from mezzo.runtime.ir.graph import GraphBuilder

from .cupy_standin import Standin

digits = held_out()
BATCH = {"image": digits.inputs[:24], "target": digits.labels[:24]}


def places(kind: str) -> dict[str, str]:
    return {"[03].*": f"{kind}:0", "7.*": f"{kind}:1", "13.*": f"{kind}:1"}


def learned(**how: Any) -> mz.Trainer:
    trainer = mz.Trainer(digits_model(), optimizer="adamw", **how)
    for _ in range(3):
        trainer.step(BATCH)
    return trainer


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"gather": 2, "metrics": ["accuracy"]},
        {"clip_norm": 0.1},
        {"clip_norm": 0.1, "clip_value": 0.01},
        {"amp": "fp16", "clip_norm": 0.1},
    ],
    ids=str,
)
def test_a_training_has_the_bits_of_one_device(how: dict[str, object]) -> None:
    alone, apart = learned(**how), learned(**how, place=places("cpu"))
    for name, array in alone.states.items():
        np.testing.assert_array_equal(apart.states[name], array, name)
    assert str(apart.last) == str(alone.last), "its norm is NaN where a loss scale is too large"
    assert apart.evaluate([BATCH]).loss == alone.evaluate([BATCH]).loss
    large = [c for c in copies(apart._update.program) if c.type.dims]
    samples = [(c.source, c.device) for c in large if c.type.sizes[0] == 24]
    assert sorted(samples) == [("cpu:0", "cpu:1"), ("cpu:1", "cpu:0")], "an activation, and its gradient"
    if "amp" not in how:  # whose test for overflow is fused with a gradient of the other device
        assert len(large) == 2, "no gradient of a weight"


def test_a_session_shows_its_copies() -> None:
    session = mz.Session(mz.load(digits_model()).graph, place=places("cpu"))
    x = {"image": BATCH["image"]}
    expected = mz.load(digits_model()).run(x)
    for _ in range(2):
        for name, found in session.run(x).items():
            np.testing.assert_array_equal(found, expected[name])
    shown = str(session.program)
    assert shown.count("on cpu:") == 2
    assert shown.count("= Copy(") == 2
    assert [(c.source, c.device) for c in copies(session.program)] == [("cpu:0", "cpu:1")]


def test_gpus_have_the_bits_of_one(standin: Standin) -> None:
    standin.devices = 2
    alone, apart = learned(device="gpu:0"), learned(place=places("gpu"))
    for name in alone.trained:
        np.testing.assert_array_equal(np.asarray(apart.states[name]), np.asarray(alone.states[name]), name)
    assert standin.races == []
    assert {standin._owners[p] for p in standin._blocks} == {0, 1}


def test_an_error_on_one_device_ends_the_run() -> None:
    g = GraphBuilder()
    x = g.input("x", f32(3))
    first = g.Reshape(g.Relu(x), g.input("shape", mz.ops.types.Tensor(mz.ops.DType.INT64, (1,))))
    session = mz.Session(g.graph([g.Neg(x), first]), place={"Relu*": "cpu:0", "Neg*": "cpu:1"})
    with pytest.raises(MezzoError):
        session.run({"x": np.ones(3, np.float32), "shape": np.array([7])})


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"place": {"nothing.*": "cpu:0"}}, "no node and no weight matches 'nothing"),
        ({"place": {}}, "no pattern is given"),
        ({"place": {"0.*": "cpu:0", "*": "cpu:1"}}, "is told several devices, by '0..': 'cpu:0', '.': 'cpu:1'"),
        ({"place": {"0.*": 1}}, "maps no patterns to devices"),
        ({"place": places("cpu"), "recompute": True}, "place= beside recompute="),
        ({"place": places("cpu"), "device": "cpu:0,cpu:1"}, "place= beside device="),
        ({"place": places("cpu"), "kvstore": "local"}, "place= beside kvstore="),
    ],
)
def test_what_placements_cannot_do_is_refused(how: dict[str, object], said: str) -> None:
    with pytest.raises(InputError, match=said):
        learned(**how)


def test_a_value_of_unknown_size_does_not_travel() -> None:
    g = GraphBuilder()
    found = g.NonZero(g.input("x", f32(4)))
    with pytest.raises(MezzoError, match="only known when it is made"):
        mz.Session(g.graph([g.Neg(found)]), place={"NonZero*": "cpu:0", "Neg*": "cpu:1"})


def test_a_device_that_is_not_there_is_named() -> None:
    with pytest.raises(MissingPackage, match="device 'tpu' is not available") as raised:
        mz.Session(mz.load(digits_model()).graph, place={"*": "tpu"})
    assert raised.value.where == "place= on 'tpu'"
    with pytest.raises(InputError, match="device='gpu:0' beside place="):
        mz.load(digits_model(), place=places("cpu"), device="gpu:0")
    with pytest.raises(InputError, match="place= beside cache="):
        mz.load(digits_model(), place=places("cpu"), cache="auto")


def test_a_file_has_the_model_with_its_placement(tmp_path: Path) -> None:
    session, x = mz.load(digits_model(), place=places("cpu")), BATCH["image"]
    expected = session(x)
    session.save(tmp_path / "m.mezzo")
    again, alone = mz.load(tmp_path / "m.mezzo"), mz.load(tmp_path / "m.mezzo", place={"*": "cpu"})
    assert (again.device.name, alone.device.name) == ("cpu:0,cpu:1", "cpu")
    np.testing.assert_array_equal(again(x), expected)
    np.testing.assert_array_equal(alone(x), expected)
    assert copies(again.program)
    assert again.bound_from == "graph"
    with pytest.raises(InputError, match="device='gpu:0' beside a model with devices of its own"):
        mz.load(tmp_path / "m.mezzo", device="gpu:0")


def test_a_convolution_and_what_follows_it_elsewhere_have_the_bits_of_one_device() -> None:
    """A kernel that computes both at once has other last bits than two: it is the same one on two devices."""
    g, rng = GraphBuilder(), np.random.default_rng(0)
    weight = g.const(rng.standard_normal((4, 1, 1)).astype(np.float32))
    convolved = g.Conv(g.input("x", f32(1, 4, 33)), weight, group=4)
    active = g.Mish(convolved)
    graph, fed = g.graph([active]), {"x": rng.standard_normal((1, 4, 33)).astype(np.float32)}
    apart = mz.Session(graph, place={convolved: "cpu:0", active: "cpu:1"}).run(fed)
    np.testing.assert_array_equal(apart[active], mz.Session(graph).run(fed)[active])


def test_an_alarm_without_a_reason_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor's flag may be up for no reason: the run is made again without a look at it, on every device. The
    threads of the others looked, and so on until Python gave up."""
    monkeypatch.setattr("mezzo.runtime.execution.exact_rerun._odd", lambda array, known: False)
    g = GraphBuilder()
    x = g.input("x", f32(64, 64))
    first = g.Relu(g.MatMul(x, x))
    second = g.Relu(g.MatMul(g.Neg(first), x))
    session = mz.Session(g.graph([second]), place={first: "cpu:0", second: "cpu:1"})
    fed = np.ones((64, 64), np.float32)
    fed[3, 5] = np.nan
    for _ in range(2):
        assert next(iter(session.run({"x": fed}).values())).shape == (64, 64)


def test_an_observer_sees_one_step_at_a_time() -> None:
    g = GraphBuilder()
    x, running, seen = g.input("x", f32(3, 3)), list[int](), list[int]()
    place = {g.MatMul(x, x): "cpu:0", g.MatMul(x, g.Relu(x)): "cpu:1"}
    session = mz.Session(g.graph([*place]), place=place)

    def observe(phase: str, index: int, step: Any, instance: Any) -> None:
        if phase == "before":
            assert not running, "a step of another device goes on"
            running.append(index)
            time.sleep(0.01)
        else:
            seen.append(running.pop())

    session.run({"x": np.ones((3, 3), np.float32)}, observe=observe)
    assert sorted(seen) == list(range(len(session.program.steps)))


def test_a_checkpoint_goes_on_with_another_placement(tmp_path: Path) -> None:
    apart, alone = learned(place=places("cpu")), mz.Trainer(digits_model(), optimizer="adamw")
    apart.save(tmp_path)
    alone.resume(tmp_path)
    assert alone.step(BATCH) == apart.step(BATCH)
    assert mz.Session(apart.graph()).device.name == "cpu"
