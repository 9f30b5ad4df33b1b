"""Models as ONNX Runtime's optimiser and quantisers leave them: the same answers, at most a step apart."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import mezzo as mz

from .models import model, node, ort_run, referee, value
from .peers import peer

Array = np.ndarray[Any, Any]
Feeds = dict[str, Array]


def weights(**shapes: tuple[int, ...]) -> dict[str, Array]:
    rng = np.random.default_rng(0)
    return {n: (rng.standard_normal(s) * 0.3).astype(np.float32) for n, s in shapes.items()}


def network() -> tuple[onnx.ModelProto, Feeds]:
    """Convolutions with everything around them that has a quantised or fused form."""
    nodes = [
        node("Conv", "x w1 b1", "c1", pads=[1] * 4, kernel_shape=[3, 3]),
        node("Relu", "c1", "r1"),
        node("Conv", "r1 w2", "c2", pads=[1] * 4, kernel_shape=[3, 3]),
        node("Add", "c2 r1", "a"),
        node("Sigmoid", "a", "s"),
        node("Mul", "s a", "m"),
        # of nine elements: a mean of four often lies halfway between two steps, where the last bit of a sum decides
        node("AveragePool", "m", "p", kernel_shape=[3, 3], strides=[2, 2]),
        node("Concat", "p p", "cc", axis=1),
        node("GlobalAveragePool", "cc", "g"),
        node("Flatten", "g", "f"),
        node("MatMul", "f w3", "y"),
    ]
    made = weights(w1=(4, 3, 3, 3), b1=(4,), w2=(4, 4, 3, 3), w3=(8, 5))
    proto = model(nodes, [value("x", "n", 3, 8, 8)], [value("y", "n", 5)], initializers=made)
    return proto, {"x": np.random.default_rng(1).standard_normal((16, 3, 8, 8)).astype(np.float32)}


def recurrent() -> tuple[onnx.ModelProto, Feeds]:
    lstm = node("LSTM", "x w r b", "y", hidden_size=6)
    made = weights(w=(1, 24, 4), r=(1, 24, 6), b=(1, 48))
    proto = model([lstm], [value("x", 9, 4, 4)], [value("y", 9, 1, 4, 6)], initializers=made)
    return proto, {"x": np.random.default_rng(1).standard_normal((9, 4, 4)).astype(np.float32)}


def product() -> tuple[onnx.ModelProto, Feeds]:
    proto = model(
        [node("MatMul", "x w", "y")], [value("x", 5, 64)], [value("y", 5, 8)], initializers=weights(w=(64, 8))
    )
    return proto, {"x": np.random.default_rng(1).standard_normal((5, 64)).astype(np.float32)}


def optimised(source: Path, target: Path, feeds: Feeds) -> None:
    ort = referee()
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(target)
    ort.InferenceSession(str(source), options, providers=["CPUExecutionProvider"])


def static(layout: str) -> Callable[[Path, Path, Feeds], None]:
    def write(source: Path, target: Path, feeds: Feeds) -> None:
        tools = peer("onnxruntime.quantization")

        class Once(tools.CalibrationDataReader):  # type: ignore[misc,name-defined]  # untyped
            def __init__(self) -> None:
                self.left = [feeds]

            def get_next(self) -> Feeds | None:
                return self.left.pop() if self.left else None

        tools.quantize_static(source, target, Once(), quant_format=getattr(tools.QuantFormat, layout))

    return write


def dynamic(source: Path, target: Path, feeds: Feeds) -> None:
    peer("onnxruntime.quantization").quantize_dynamic(source, target)


def four_bits(source: Path, target: Path, feeds: Feeds) -> None:
    tools = peer("onnxruntime.quantization.matmul_nbits_quantizer")
    done = tools.MatMulNBitsQuantizer(onnx.load(source), block_size=32, is_symmetric=False)
    done.process()
    done.model.save_model_to_file(str(target))


STEP = 1 / 250  # of eight bits, some of which the range of the answers leaves unused
# network, what is done to it, operators that it then has, the share of its range that a step may be
CASES = [
    (network, optimised, "FusedConv QuickGelu", 1e-5),
    (network, static("QOperator"), "QLinearConv QLinearAdd QLinearMul QLinearSigmoid QLinearAveragePool", STEP),
    (network, static("QDQ"), "DequantizeLinear QuantizeLinear", STEP),
    (network, dynamic, "ConvInteger MatMulInteger", 1e-4),
    (recurrent, dynamic, "DynamicQuantizeLSTM", STEP),
    (product, four_bits, "MatMulNBits", 1e-5),
]  # fmt: skip


@pytest.mark.parametrize(("make", "change", "has", "step"), CASES, ids=lambda v: v if isinstance(v, str) else None)
def test_equal_to_onnx_runtime(tmp_path: Path, make: Any, change: Any, has: str, step: float) -> None:
    proto, feeds = make()
    source, target = tmp_path / "plain.onnx", tmp_path / "changed.onnx"
    onnx.save(proto, source)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        change(source, target, feeds)
    assert set(has.split()) <= {n.op_type for n in onnx.load(target).graph.node}
    theirs, ours = ort_run(target, feeds)["y"], mz.load(target).run(feeds)["y"]
    apart = np.abs(ours - theirs) / (theirs.max() - theirs.min())
    assert (apart > step).mean() <= 1e-3
    assert apart.max() <= 2 * step
