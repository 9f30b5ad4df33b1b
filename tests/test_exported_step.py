"""The training step as an ONNX model: another runtime trains by it as ours does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from mezzo.importers import load_onnx
from mezzo.ops import DType
from mezzo.ops.errors import UnsupportedModel
from mezzo.runtime.execution.session import Session
from mezzo.runtime.optimizer import SGD, Adam
from mezzo.train.trainer import Trainer

from .networks import NETWORKS, WIDE, batch_for, encoder, mlp
from .peers import peer

Array = np.ndarray[Any, Any]


def step_in_onnx_runtime(name: str, path: Path, steps: int = 20) -> None:
    ort = peer("onnxruntime")
    trainer = Trainer(NETWORKS[name](DType.FLOAT), optimizer=Adam(rate=0.001), clip_norm=5.0)
    trainer.step(batch_for(trainer.source, 99))
    trainer.export_step(path)
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    assert [o.domain for o in model.opset_import] == [""]
    assert model.opset_import[0].version <= 26
    assert model.ir_version <= 13
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    theirs = ort.InferenceSession(str(path), options)
    ours = Session(load_onnx(path))
    names = [o.name for o in theirs.get_outputs()]
    after = {s.input: s.output for s in trainer.graph_of_step.states}
    states = {n: np.array(a) for n, a in trainer.states.items()}
    for i in range(steps):
        feeds = batch_for(trainer.source, i)
        given = {**feeds, **states} if i else feeds  # the file has the states that the training is in
        found = dict(zip(names, theirs.run(None, given), strict=True))
        if i == 0:
            again = ours.run({**feeds, **states})
            for n in names:
                assert np.abs(again[n] - found[n]).max(initial=0) <= 1e-4 * max(1.0, np.abs(found[n]).max(initial=0))
        states = {n: found[o] for n, o in after.items()}
        assert float(found[trainer.loss]) == pytest.approx(trainer.step(feeds), rel=1e-4)
    for n, p in trainer.parameters.items():
        assert np.linalg.norm(states[n] - p) <= 1e-4 * np.linalg.norm(p), n
    assert int(states["optimizer/updates"]) == trainer.updates == steps + 1


@pytest.mark.parametrize("name", ["mlp", "lenet", "lstm"])
def test_the_exported_step_trains_in_onnx_runtime(name: str, tmp_path: Path) -> None:
    step_in_onnx_runtime(name, tmp_path / "step.onnx")


def test_the_exported_step_of_an_older_opset(tmp_path: Path) -> None:
    trainer = Trainer(mlp(), optimizer=SGD(rate=0.1, momentum=0.9))
    trainer.export_step(tmp_path / "step.onnx", opset=21)
    assert onnx.load(tmp_path / "step.onnx").opset_import[0].version == 21
    with pytest.raises(UnsupportedModel, match="opset 7"):
        trainer.export_step(tmp_path / "step.onnx", opset=7)


def distance(a: Array, b: Array) -> float:
    return float(np.linalg.norm(np.asarray(a, np.float64) - b) / np.linalg.norm(np.asarray(b, np.float64)))


@pytest.mark.parametrize("name", ["resnet18", "encoder"])
def test_the_exported_step_in_float64(name: str, tmp_path: Path) -> None:
    """Where float32 runs part (decision 5), the standard operators of the file train as our kernels do all the same:
    in float64 both stay together, but for attributes, which files hold in float32 (momentum of running statistics)."""
    trainer = Trainer(NETWORKS[name](DType.DOUBLE), optimizer=Adam(rate=0.001), clip_norm=5.0)
    trainer.export_step(tmp_path / "step.onnx")
    standard = Session(load_onnx(tmp_path / "step.onnx"))
    assert {n.domain for n in standard.graph.nodes} == {""}
    after = {s.input: s.output for s in trainer.graph_of_step.states}
    states: dict[str, Array] = {}
    for i in range(5):
        feeds = batch_for(trainer.source, i)
        found = standard.run({**feeds, **states})
        states = {n: found[o] for n, o in after.items()}
        assert float(found[trainer.loss]) == pytest.approx(trainer.step(feeds), rel=1e-7)
    for n, p in trainer.parameters.items():
        assert distance(states[n], p) <= 2e-6, n


def test_what_parts_in_float32_is_what_the_loss_does_not_depend_on() -> None:
    """The bias of an encoder's keys has no gradient in exact arithmetic: softmax takes no notice of what is added to
    all scores of a query. Adam makes whole steps of what rounding leaves."""
    narrow = encoder()
    both = [Trainer(g, optimizer=Adam(rate=0.001)) for g in (narrow, encoder(DType.DOUBLE))]
    start = {n: a.astype(np.float64) for n, a in narrow.initializers.items() if a.dtype == np.float32}
    for n, p in both[1].parameters.items():
        p[...] = start[n]
    for i in range(10):
        feeds = batch_for(narrow, i)
        wide = {n: x.astype(np.float64) if n == "x" else x for n, x in feeds.items()}
        assert both[0].step(feeds) == pytest.approx(both[1].step(wide), rel=1e-6)
    for n, exact in both[1].parameters.items():
        found = np.array(both[0].parameters[n])
        if n.endswith("in_proj_bias"):
            keys = slice(WIDE, 2 * WIDE)
            assert distance(found[keys], exact[keys]) > 1e-4, "rounding is taken for a gradient"
            found[keys] = exact[keys]
        assert distance(found, exact) <= 2e-6, n
