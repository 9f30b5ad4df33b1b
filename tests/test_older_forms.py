"""Attributes that a later opset added, written for older ones: the files are checked and run by others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from mezzo.exporters import to_onnx
from mezzo.ops import OPS, DType, Sample, Tensor
from mezzo.ops.errors import UnsupportedModel
from mezzo.ops.types import f32, i64
from mezzo.runtime.ir.interpreter import evaluate

from .graphs import sample_graph
from .models import INT64, model, node, ort_run, value
from .test_cli import mezzo

Array = np.ndarray[Any, Any]

SCALE = np.array([0.5, 0.25, 2], np.float32)
# operator, sample, opset, and the operators that it is written in there
FORMS: list[tuple[str, Sample, int, str]] = [
    ("Shape", Sample([f32(2, 3, 4)], {"start": 1}), 13, "Shape Slice"),
    ("Shape", Sample([f32(2, 3, 4)], {"start": -3, "end": -1}), 13, "Shape Slice"),
    ("Shape", Sample([f32(2, 3)], {"start": 1, "end": 9}), 7, "Shape Slice"),
    ("Shape", Sample([f32(2, 3)], {"start": 2, "end": 1}), 10, "Shape Slice"),
    ("LSTM", Sample([f32(2, 3, 4), f32(1, 8, 4), f32(1, 8, 2)], {"hidden_size": 2, "layout": 1}), 13, ""),
    ("Trilu", Sample([f32(3, 4)]), 13, ""),
    ("Trilu", Sample([f32(2, 4, 3), np.array(-1)], {"upper": 0}), 11, ""),
    ("Trilu", Sample([Tensor(DType.BOOL, (3, 3)), np.array([1])], {"upper": 0}), 12, ""),
    ("Trilu", Sample([i64(2, 2, 3), np.array(2)]), 12, ""),
    ("ArgMax", Sample([np.array([[1, 1, 0], [0, 2, 2]], np.float32)], {"axis": -1, "select_last_index": 1}), 11, ""),
    ("ArgMin", Sample([np.array([[1, 0], [1, 3], [1, 0]], np.float32)],
                      {"axis": 0, "select_last_index": 1, "keepdims": 0}), 11, ""),
    ("DepthToSpace", Sample([f32(2, 12, 2, 3)], {"blocksize": 2, "mode": "CRD"}), 9, ""),
    ("SpaceToDepth", Sample([f32(2, 3, 4, 6)], {"blocksize": 2, "mode": "CRD"}), 13, ""),
    ("Constant", Sample([], {"value_float": 0.5}), 11, "Constant"),
    ("Constant", Sample([], {"value_ints": [1, 2]}), 9, "Constant"),
    ("Constant", Sample([], {"value_string": "word"}), 11, "Constant"),
    ("QuantizeLinear", Sample([f32(2, 3), np.float32(0.1)], {"output_dtype": DType.UINT8.onnx}), 13, "QuantizeLinear"),
    ("QuantizeLinear", Sample([f32(2, 3), SCALE], {"axis": 1, "output_dtype": DType.INT8.onnx}), 13, "QuantizeLinear"),
    ("QuantizeLinear", Sample([f32(2), np.float32(0.1), np.int8(3)], {"output_dtype": 3}), 19, "QuantizeLinear"),
    ("Resize", Sample([f32(1, 2, 3, 4), None, np.array([2, 1.5], np.float32)], {"axes": [-1, 2]}), 13, "Resize"),
    ("Resize", Sample([f32(1, 2, 3, 4), None, None, np.array([5, 2])], {"axes": [2, 3], "mode": "linear"}), 11,
     "Resize"),
]  # fmt: skip


forms = pytest.mark.parametrize(
    ("op", "sample", "opset", "written"), FORMS, ids=[f"{f[0]} {f[2]} {dict(f[1].attrs)}" for f in FORMS]
)


def same(found: Any, want: Array) -> None:
    answer = np.asarray(found)
    assert answer.shape == want.shape
    if want.dtype == object:
        assert answer.tolist() == want.tolist()
    else:
        assert answer.dtype == want.dtype
        np.testing.assert_allclose(answer, want, rtol=1e-5, atol=1e-6)


def answer_of(made: onnx.ModelProto, feeds: dict[str, Any]) -> Any:
    """The first output, as onnx's evaluator has it."""
    from onnx.reference import ReferenceEvaluator

    answers: Any = ReferenceEvaluator(made).run(None, feeds)
    return answers[0]


@forms
def test_what_an_older_opset_says_otherwise(op: str, sample: Sample, opset: int, written: str) -> None:
    graph, feeds = sample_graph(OPS["", op], sample, fed="types")
    made = to_onnx(graph, opset=opset)
    onnx.checker.check_model(made, full_check=True)
    assert [o.version for o in made.opset_import if not o.domain] == [opset]
    if written:
        assert [n.op_type for n in made.graph.node] == written.split()
    same(answer_of(made, feeds), evaluate(graph, feeds)[graph.outputs[0]])


@forms
def test_onnx_runtime_reads_it_so(op: str, sample: Sample, opset: int, written: str) -> None:
    graph, feeds = sample_graph(OPS["", op], sample, fed="types")
    (answer,) = ort_run(to_onnx(graph, opset=opset), feeds).values()
    same(answer, evaluate(graph, feeds)[graph.outputs[0]])


def test_the_command_writes_a_part_of_a_shape(tmp_path: Path) -> None:
    shape = model([node("Shape", "x", "y", start=1)], [value("x", "n", 3, "w")], [value("y", 2, kind=INT64)])
    onnx.save(shape, tmp_path / "new.onnx")
    mezzo("convert", str(tmp_path / "new.onnx"), str(tmp_path / "old.onnx"), "--opset", "13")
    old = onnx.load(tmp_path / "old.onnx")
    assert [n.op_type for n in old.graph.node] == ["Shape", "Slice"]
    assert answer_of(old, {"x": np.zeros((2, 3, 5), np.float32)}).tolist() == [3, 5]


def test_what_no_older_form_says_is_refused() -> None:
    for op, sample, said in (
        (
            "Resize",
            Sample([f32(1, 1, 4, 4), None, np.array([2, 2], np.float32)], {"axes": [2, 3], "antialias": 1}),
            "antialias",
        ),
        ("QuantizeLinear", Sample([f32(2, 4), f32(2, 2)], {"block_size": 2}), "block_size"),
    ):
        graph, _ = sample_graph(OPS["", op], sample, fed="types")
        with pytest.raises(UnsupportedModel, match=said):
            to_onnx(graph, opset=13)
