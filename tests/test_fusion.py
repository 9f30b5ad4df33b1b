"""Fused operators: the same answers from less memory."""

from __future__ import annotations

import numpy as np
import pytest

from mezzo.models.convnets import alexnet_owt, random_weights, vgg
from mezzo.ops.types import f32
from mezzo.runtime.compile.specialize import compile_graph, specialise
from mezzo.runtime.devices import options_for
from mezzo.runtime.execution.session import Session
from mezzo.runtime.ir.graph import GraphBuilder
from mezzo.runtime.ir.infer import infer
from mezzo.runtime.passes.fusions import FUSIONS
from mezzo.runtime.passes.rewrite import RewriteDeclined, rewrite

MIB = 1 << 20


def test_one_image_of_vgg_16_needs_less_than_16_mib() -> None:
    plain = specialise(compile_graph(vgg("d"), options=options_for("cpu", onednn=False)), {}).program.plan
    fused = specialise(compile_graph(vgg("d"), options=options_for("cpu", fuse=True, onednn=False)), {}).program
    assert plain.size > 24 * MIB
    assert fused.plan.size < 16 * MIB
    assert sum(s.choice.kernel == "numpy.conv_relu_pool" for s in fused.steps) == 5


def test_fused_networks_answer_alike() -> None:
    graph = alexnet_owt(2, random_weights())
    x = np.random.default_rng(0).standard_normal((2, 3, 224, 224), np.float32)
    plain, fused = Session(graph, onednn=False), Session(graph, fuse=True, onednn=False)
    a, b = plain(x), fused(x)
    assert np.abs(a - b).max() <= 1e-5 * np.abs(a).max()
    assert fused.plan.size < plain.plan.size
    assert fused.program.allocating < plain.program.allocating


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"group": 2}, "group=2"),
        ({"dilations": (2, 2)}, "dilations"),
        ({"auto_pad": "SAME_UPPER"}, "auto_pad"),
        ({"ceil_mode": 1}, "ceil_mode"),
        ({"pool_pads": (1, 1, 1, 1)}, "pads"),
    ],
)
def test_what_the_kernel_lacks_is_declined(change: dict[str, object], reason: str) -> None:
    g = GraphBuilder()
    x = g.input("x", f32(1, 4, 9, 9))
    w = g.const(np.zeros((4, 4 // (2 if "group" in change else 1), 3, 3), np.float32))
    pool = {"ceil_mode": change.pop("ceil_mode", 0), "pads": change.pop("pool_pads", (0, 0, 0, 0))}
    graph = infer(g.graph([g.MaxPool(g.Relu(g.Conv(x, w, **change)), kernel_shape=(2, 2), **pool)]))
    declined: list[RewriteDeclined] = []
    assert rewrite(graph, FUSIONS, declined) is graph
    assert reason in declined[0].reason


def test_a_value_that_others_read_is_kept() -> None:
    g = GraphBuilder()
    y = g.Relu(g.Conv(g.input("x", f32(1, 2, 6, 6)), g.const(np.ones((2, 2, 3, 3), np.float32))))
    graph = infer(g.graph([g.MaxPool(y, kernel_shape=(2, 2)), y]))
    assert rewrite(graph, FUSIONS) is graph
