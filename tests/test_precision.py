"""Reduced precision: what is narrowed, what it costs in accuracy, and what is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import mezzo as mz
from mezzo.models.digits import digits_model, held_out
from mezzo.models.transformer import encoder
from mezzo.ops import DType, Tensor
from mezzo.ops.types import f32
from mezzo.runtime.backends.onednn.library import library
from mezzo.runtime.execution.session import Session
from mezzo.runtime.ir.graph import Graph, GraphBuilder
from mezzo.runtime.ir.infer import infer
from mezzo.runtime.ir.interpreter import evaluate
from mezzo.runtime.passes.precision import narrowed

found = library()
native = pytest.mark.skipif(found is None or not found.bf16, reason="no oneDNN here that computes bfloat16")


def convolved() -> tuple[Graph, dict[str, Any]]:
    g, rng = GraphBuilder(), np.random.default_rng(0)
    x = g.input("x", f32(1, 16, 12, 12))

    def weights(*shape: int) -> str:
        return g.const(rng.standard_normal(shape, np.float32) / np.float32(np.prod(shape[1:]) ** 0.5))

    number = {n: g.const(np.float32(n)) for n in (0, 0.5, 6)}
    y = g.Clip(g.Conv(x, weights(32, 16, 3, 3), pads=(1, 1, 1, 1)), number[0], number[6])
    y = g.Mul(y, number[0.5])
    z = g.Add(g.Conv(y, weights(32, 32, 1, 1)), y)
    parts = g.Concat(
        g.MaxPool(z, kernel_shape=(2, 2), strides=(2, 2)), g.AveragePool(z, kernel_shape=(2, 2), strides=(2, 2)), axis=1
    )
    logits = g.Gemm(g.Flatten(g.GlobalAveragePool(parts)), weights(10, 64), transB=1)
    return g.graph([logits, g.Exp(z)]), {"x": rng.standard_normal((1, 16, 12, 12), np.float32)}


def encoded() -> tuple[Graph, dict[str, Any]]:
    graph = encoder(2, 64, 4, batch=1, length=24)
    return graph, {"x": np.random.default_rng(0).standard_normal((1, 24, 64)).astype(np.float32)}


@native
@pytest.mark.parametrize("precision", ["bf16-math", "bf16"])
@pytest.mark.parametrize("model", [convolved, encoded])
def test_answers_stay_near_those_of_float32(model: Any, precision: str) -> None:
    graph, feeds = model()
    session = Session(graph, precision=precision)
    for name, want in evaluate(graph, feeds).items():
        got = session.run(feeds)[name]
        assert got.dtype == np.float32
        assert np.abs(got - want).max() <= 0.02 * np.abs(want).max()
    heavy = [s for s in session.program.steps if s.choice.kernel in ("onednn.conv", "onednn.matmul", "onednn.gemm")]
    assert heavy
    if precision == "bf16":
        assert all("bf16" in s.choice.implementation or "amx" in s.choice.implementation for s in heavy)
        types = session.program.types.values()
        assert any(isinstance(t, Tensor) and t.dtype is DType.BFLOAT16 for t in types)
        casts = [s for s in session.program.steps if s.node.op == "Cast"]
        assert len(casts) <= len(graph.inputs) + len(graph.outputs) + 1  # nothing is cast back and forth inside


@native
def test_digits_are_told_apart_as_well() -> None:
    data = held_out()
    plain, narrow = mz.load(digits_model()), mz.load(digits_model(), precision="bf16")
    assert (plain(data.inputs).argmax(1) == narrow(data.inputs).argmax(1)).mean() > 0.99


def test_only_what_a_kernel_takes_is_narrowed() -> None:
    g = GraphBuilder()
    x = g.input("x", f32(2, 4))
    y = g.Sqrt(g.MatMul(g.Relu(x), g.const(np.ones((4, 4), np.float32))))
    graph = infer(g.graph([g.Neg(y)]))
    made = infer(narrowed(graph, lambda around, node: "not this" if node.op == "Sqrt" else None), {})
    dtypes = {n.op: made.types[n.outputs[0]].dtype for n in made.nodes if n.op != "Cast"}  # type: ignore[union-attr]
    # the Relu comes before the product, the Sqrt is refused, and the Neg follows something wide
    assert dtypes == {"Relu": DType.FLOAT, "MatMul": DType.BFLOAT16, "Sqrt": DType.FLOAT, "Neg": DType.FLOAT}
    assert narrowed(graph, lambda around, node: "nothing") is graph


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(mz.InputError, match="none of auto, fp32"):
        mz.load(digits_model(), precision="fp64")
    with pytest.raises(mz.InputError, match="computes no bfloat16"):
        mz.load(digits_model(), precision="bf16", onednn=False)
    with pytest.raises(mz.InputError, match="needs data"):
        mz.load(digits_model(), precision="int8")
    code = "import mezzo as mz, sys; mz.load(sys.argv[1], precision='bf16')"
    off = {**os.environ, "MEZZO_ONEDNN": "off"}
    done = subprocess.run([sys.executable, "-c", code, digits_model()], env=off, capture_output=True, text=True)
    assert "InputError" in done.stderr
    assert "MEZZO_ONEDNN=off" in done.stderr


def test_int8_takes_the_ranges_of_the_data() -> None:
    data = held_out()
    narrow = mz.load(digits_model(), precision="int8", calibration=[data.inputs[:64]])
    plain = mz.load(digits_model())
    assert (plain(data.inputs).argmax(1) == narrow(data.inputs).argmax(1)).mean() > 0.98
