"""Blocks in mixed precision: products in 16 bits, all else as it was; loss scaling; exported with its casts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mezzo as mz
from mezzo import nd
from mezzo.gluon import Trainer, loss, nn
from mezzo.importers import load_onnx
from mezzo.nd import autograd, random
from mezzo.ops import DType
from mezzo.ops.errors import InputError
from mezzo.runtime.execution.session import Session

from .models import ort_run, referee

RNG = np.random.default_rng(7)
X, LABELS = RNG.standard_normal((8, 2, 10, 10)).astype(np.float32), np.arange(8) % 3
NARROW = {"bf16": DType.BFLOAT16, "fp16": DType.FLOAT16}


def convnet() -> nn.HybridSequential:
    random.seed(1)
    net = nn.HybridSequential(
        nn.Conv2D(4, 3, use_bias=False), nn.BatchNorm(), nn.Activation("relu"), nn.Dense(16, "tanh"), nn.Dense(3)
    )
    net.initialize("xavier")
    net(nd.asarray(X))
    return net


def slopes(net: Any) -> tuple[Any, dict[str, Any]]:
    with autograd.record():
        found = loss.SoftmaxCrossEntropyLoss()(net(nd.asarray(X)), nd.asarray(LABELS)).sum()
    found.backward()
    return found, {n: p.grad() for n, p in net.collect_params().items() if p.grad_req != "null"}


@pytest.mark.parametrize("amp", NARROW)
def test_products_are_narrow_and_all_else_is_not(amp: str, tmp_path: Path) -> None:
    net = convnet()
    plain, (_, exact) = net(nd.asarray(X)).asnumpy(), slopes(convnet())
    exact = {n: g.asnumpy() for n, g in exact.items()}
    net.export(tmp_path / "plain.onnx", nd.asarray(X))
    net.hybridize(amp=amp)
    found = net(nd.asarray(X))
    assert found.dtype == np.float32
    off = np.abs(found.asnumpy() - plain).max() / np.abs(plain).max()
    assert 1e-6 < off < 3e-2
    same = Session(mz.amp.mixed(load_onnx(tmp_path / "plain.onnx"), mz.amp.policy_named(amp)))
    np.testing.assert_allclose(same(X), found.asnumpy(), rtol=1e-6, atol=1e-6)
    _, grads = slopes(net)
    for name, gradient in grads.items():
        assert gradient.dtype == np.float32
        off = np.linalg.norm(gradient.asnumpy() - exact[name]) / np.linalg.norm(exact[name])
        assert off < 0.08, name
    assert any(not np.array_equal(g.asnumpy(), exact[n]) for n, g in grads.items())
    (traced,) = [s.traced for several in net._traces.values() for t in several[:1] for s in t.stretches()][:1]
    assert traced is not None
    types = {n.op: {traced.graph.types[i].dtype for i in n.inputs[:1]} for n in traced.graph.nodes}  # type: ignore[union-attr]
    assert types["Conv"] == types["Gemm"] == {NARROW[amp]}
    for p in net.collect_params().values():
        assert p.data().dtype == np.float32
    net.hybridize(False)
    wide = net(nd.asarray(X)).asnumpy()
    np.testing.assert_allclose(net.hybridize()(nd.asarray(X)).asnumpy(), wide, rtol=1e-5, atol=1e-5)


def test_it_is_exported_with_its_casts(tmp_path: Path) -> None:
    referee()
    net = convnet().hybridize(amp="fp16")
    net.export(tmp_path / "half.onnx", nd.asarray(X), dynamic={0: "batch"})
    graph = load_onnx(tmp_path / "half.onnx")
    assert sum(n.op == "Cast" for n in graph.nodes) > 3
    (found,) = ort_run(tmp_path / "half.onnx", {"x0": X[:3]}).values()
    want = net(nd.asarray(X[:3])).asnumpy()
    np.testing.assert_allclose(found, want, atol=2e-3 * np.abs(want).max())


def test_losses_fall_and_overflows_are_left_out() -> None:
    net, measure = convnet().hybridize(amp="fp16"), loss.SoftmaxCrossEntropyLoss()
    scaling = mz.amp.Scaling(first=2.0**24, patience=3)
    trainer = Trainer(net.collect_params(), "adam", {"lr": 0.01}, clip_norm=10.0, scaling=scaling)
    losses, scales, moved = [], [], []
    for _ in range(24):
        before = net[4].weight.data().asnumpy()
        with autograd.record():
            found = measure(net(nd.asarray(X)), nd.asarray(LABELS)).mean()
            with mz.amp.scale_loss(found, trainer) as scaled:
                scaled.backward()
        trainer.step(1)
        losses.append(found.item())
        scales.append(trainer.loss_scale)
        moved.append(not np.array_equal(net[4].weight.data().asnumpy(), before))
    left = moved.index(True)
    assert left > 0
    assert scales[:left] == [2.0 ** (23 - i) for i in range(left)]
    assert trainer.updates == sum(moved)
    assert max(scales[left:]) > scales[left], "it doubles again after good updates"
    assert losses[-1] < losses[0] / 2
    assert np.isfinite(losses).all()


def test_the_scale_changes_no_number() -> None:
    """It is a power of two: in float32 updates are the same bits with and without."""
    ends = []
    for scaling in (False, mz.amp.Scaling(first=2.0**10)):
        net = convnet()
        trainer = Trainer(net.collect_params(), "sgd", {"lr": 0.1, "momentum": 0.9}, scaling=scaling)
        for _ in range(3):
            with autograd.record():
                found = loss.SoftmaxCrossEntropyLoss()(net(nd.asarray(X)), nd.asarray(LABELS)).sum()
                if scaling:
                    with mz.amp.scale_loss([found], trainer) as several:
                        several[0].backward()
                else:
                    found.backward()
            trainer.step(8)
        ends.append({n: p.data().asnumpy() for n, p in net.collect_params().items()})
    for name, a in ends[0].items():
        np.testing.assert_allclose(ends[1][name], a, rtol=1e-5, atol=1e-6, err_msg=name)


def test_what_is_refused() -> None:
    with pytest.raises(InputError, match="precision 'int8'"):
        convnet().hybridize(amp="int8")
    trainer = Trainer(convnet().collect_params())
    with pytest.raises(InputError, match="scales no loss"), mz.amp.scale_loss(nd.ones(1), trainer):
        pass
    with pytest.raises(InputError, match="all workers together"):
        Trainer(convnet().collect_params(), kvstore="local", update_on_kvstore=True, scaling=True)
