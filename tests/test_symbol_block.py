"""Imported models as blocks, trained further: as the block that they were exported from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mezzo import nd
from mezzo.gluon import Trainer, loss, nn
from mezzo.gluon.symbol_block import SymbolBlock
from mezzo.importers import load_onnx
from mezzo.nd import autograd, random
from mezzo.ops.errors import InputError
from mezzo.ops.types import f32
from mezzo.runtime.ir.graph import GraphBuilder
from mezzo.tools.load import load

from .models import ort_run, referee

RNG = np.random.default_rng(6)
X, LABELS = RNG.standard_normal((6, 2, 8, 8)).astype(np.float32), np.arange(6) % 3


def convnet() -> nn.HybridSequential:
    random.seed(4)
    net = nn.HybridSequential(
        nn.Conv2D(4, 3), nn.BatchNorm(), nn.Activation("relu"), nn.MaxPool2D(), nn.Dropout(0.5), nn.Dense(3)
    )
    net.initialize("xavier")
    net(nd.asarray(X))
    with autograd.train_mode():  # statistics that are not what they began as
        net(nd.asarray(X * 2 + 1))
    return net


def trained(net: Any, measure: Any, steps: int = 4) -> list[float]:
    trainer, losses = Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1, "momentum": 0.9}), []
    for i in range(steps):
        with autograd.record():
            found = measure(net(nd.asarray(X + i)), nd.asarray(LABELS)).mean()
        found.backward()
        trainer.step(1)
        losses.append(found.item())
    return losses


@pytest.mark.parametrize("hybrid", [False, True])
def test_it_learns_as_the_block_it_was(hybrid: bool, tmp_path: Path) -> None:
    """Statistics of the batch, and running ones that follow; the export has them all, under the names that it had."""
    net, measure = convnet(), loss.SoftmaxCrossEntropyLoss()
    net._children["4"] = nn.Identity()
    net.export(tmp_path / "net.onnx", nd.asarray(X), dynamic={0: "batch"})
    block = SymbolBlock.imports(tmp_path / "net.onnx")
    whole = nn.HybridSequential(block)  # inside of another block too
    for one in (block, whole):
        np.testing.assert_allclose(one(nd.asarray(X)).asnumpy(), net(nd.asarray(X)).asnumpy(), rtol=1e-5, atol=1e-6)
    if hybrid:
        whole.hybridize()
    np.testing.assert_allclose(trained(whole, measure), trained(net, measure), rtol=1e-4)
    theirs = block.collect_params()
    for name, p in net.collect_params().items():
        np.testing.assert_allclose(
            theirs[name].data().asnumpy(), p.data().asnumpy(), rtol=1e-3, atol=1e-5, err_msg=name
        )
    assert theirs["1.running_mean"].grad_req == "null"
    block.export(tmp_path / "tuned.onnx")
    before, after = (load_onnx(tmp_path / f"{n}.onnx") for n in ("net", "tuned"))
    assert before.inputs == after.inputs
    assert [n.op for n in before.nodes] == [n.op for n in after.nodes]
    want = block(nd.asarray(X[:2])).asnumpy()
    np.testing.assert_allclose(load(tmp_path / "tuned.onnx")(X[:2]), want, rtol=1e-5, atol=1e-6)
    with pytest.raises(InputError, match="sizes and names of its own"):
        block.export(tmp_path / "tuned.onnx", nd.asarray(X))


def test_elsewhere_it_answers_what_it_has_learned(tmp_path: Path) -> None:
    referee()
    convnet().export(tmp_path / "net.onnx", nd.asarray(X))
    block = SymbolBlock.imports(tmp_path / "net.onnx")
    losses = trained(block, loss.SoftmaxCrossEntropyLoss(), 3)
    assert len({*losses}) == 3
    block.export(tmp_path / "tuned.onnx")
    (found,) = ort_run(tmp_path / "tuned.onnx", {"x0": X}).values()
    np.testing.assert_allclose(found, block(nd.asarray(X)).asnumpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("statistics", [False, True])
def test_dropout_drops_and_statistics_may_stay(statistics: bool, tmp_path: Path) -> None:
    with autograd.train_mode():
        net = nn.HybridSequential(nn.BatchNorm(in_channels=3), nn.Dropout(0.5)).initialize()
    x = nd.asarray(RNG.standard_normal((400, 3)).astype(np.float32) + 5)
    net.export(tmp_path / "net.mezzo", x)
    graph = dropping(tmp_path, net, x)
    block = SymbolBlock(graph, statistics=statistics)
    with autograd.record():
        one, other = block(x).asnumpy(), block(x).asnumpy()
    assert 0.4 < (one == 0).mean() < 0.6
    assert not np.array_equal(one == 0, other == 0)
    kept = one[one != 0] / 2
    assert (abs(kept.mean()) < 0.2) == statistics
    assert (abs(kept.mean() - 5) < 0.2) != statistics
    plain = block(x).asnumpy()
    assert (plain != 0).all()
    names = {n.rpartition(".")[2] for n, p in block.collect_params().items() if p.grad_req == "null"}
    assert names == ({"running_mean", "running_var"} if statistics else set())


def test_a_file_in_training_mode_answers_for_inference(tmp_path: Path) -> None:
    """As PyTorch writes it for training: mode 1, statistics as outputs, Dropout on."""
    g = GraphBuilder()
    one = [g.const(np.full(3, v, np.float32)) for v in (2, 1, 5, 4)]
    y, *_ = g.op("BatchNormalization", g.input("x", f32("n", 3)), *one, training_mode=1, epsilon=0.0, outputs=3)
    y = g.Dropout(y, g.const(np.float32(0.5)), g.const(np.array(True)))
    block = SymbolBlock(g.graph([y]))
    x = nd.asarray(np.array([[5, 7, 3]], np.float32))
    np.testing.assert_allclose(block(x).asnumpy(), [[1, 3, -1]], rtol=1e-6)
    block.export(tmp_path / "out.onnx")
    assert load_onnx(tmp_path / "out.onnx").nodes[0].attrs.get("training_mode", 0) == 0
    np.testing.assert_allclose(load(tmp_path / "out.onnx")(x.asnumpy()), [[1, 3, -1]], rtol=1e-6)
    with autograd.record():
        assert not np.array_equal(block(x).asnumpy(), [[1, 3, -1]])


def dropping(folder: Path, net: Any, x: Any) -> Any:
    """The exported graph, with a Dropout behind, which an export in prediction leaves out."""
    from dataclasses import replace

    from mezzo.runtime.ir.graph import Node

    net.export(folder / "net.onnx", x)
    graph = load_onnx(folder / "net.onnx")
    *nodes, last = graph.nodes
    moved = replace(last, outputs=("before",))
    return graph.but(nodes=(*nodes, moved, Node("Dropout", ("before",), graph.outputs))).verify()
