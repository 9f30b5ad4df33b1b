"""`mezzo convert`: the same model in another file, at another opset, in 16 bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import mezzo as mz
from mezzo.exporters import save_onnx
from mezzo.models.digits import digits_model, held_out
from mezzo.ops import DType
from mezzo.ops.errors import InputError, UnsupportedModel
from mezzo.ops.types import f32
from mezzo.runtime.ir.graph import Graph, GraphBuilder
from mezzo.tools.check import check
from mezzo.tools.check_options import Options
from mezzo.tools.convert import convert
from mezzo.tools.halve import policy
from mezzo.tools.report import text

from .models import OTHERS, referee
from .test_cli import as_json, mezzo

DIGITS = digits_model()


def answers(path: Path) -> Any:
    return next(iter(mz.load(path).run({"image": held_out().inputs[:64]}).values()))


def opset_of(path: Path) -> int:
    return int(onnx.load(str(path), load_external_data=False).opset_import[0].version)


def test_there_and_back(tmp_path: Path) -> None:
    convert(DIGITS, tmp_path / "m.mezzo")
    convert(tmp_path / "m.mezzo", tmp_path / "m.onnx")
    np.testing.assert_array_equal(answers(tmp_path / "m.onnx"), answers(DIGITS))
    names = [[n.name for n in onnx.load(str(p)).graph.node] for p in (DIGITS, tmp_path / "m.onnx")]
    assert names[0] == names[1]


@pytest.mark.parametrize("opset", [13, 14, 17, 21, 26, 28])
def test_opsets_up_and_down(opset: int, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    convert(DIGITS, path, opset=opset)
    assert opset_of(path) == opset
    np.testing.assert_allclose(answers(path), answers(DIGITS), rtol=1e-5, atol=1e-5)
    with pytest.raises(UnsupportedModel, match="opset 6 is not written"):
        convert(DIGITS, path, opset=6)
    assert opset_of(path) == opset, "the former file is left"


def test_weights_inside_and_beside(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    beside = convert(DIGITS, path, external_data="always").facts["beside_it"]
    assert (tmp_path / str(beside)).stat().st_size > path.stat().st_size
    np.testing.assert_array_equal(answers(path), answers(DIGITS))
    convert(path, tmp_path / "again.onnx", external_data="never")
    np.testing.assert_array_equal(answers(tmp_path / "again.onnx"), answers(DIGITS))
    convert(path, path, external_data="never")  # over the file that is being read
    assert [p.name for p in tmp_path.glob("*.data")] == []
    np.testing.assert_array_equal(answers(path), answers(DIGITS))


@pytest.mark.parametrize(("precision", "tolerance"), [("fp16", 1e-2), ("bf16", 5e-2)])
@pytest.mark.parametrize("keep_io", [True, False])
def test_sixteen_bits(precision: str, tolerance: float, keep_io: bool, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    report = convert(DIGITS, path, precision=precision, keep_io=keep_io)
    assert (report.facts["nodes_in_16_bits"], report.facts["nodes_in_32_bits"]) == (10, 0)
    assert path.stat().st_size < 0.6 * DIGITS.stat().st_size
    wanted = DType.FLOAT if keep_io else {"fp16": DType.FLOAT16, "bf16": DType.BFLOAT16}[precision]
    made = onnx.load(str(path)).graph
    kinds = {i.type.tensor_type.elem_type for i in (*made.input, *made.output)}
    assert kinds == {wanted.onnx}
    assert [t.name for t in made.initializer] == [t.name for t in onnx.load(str(DIGITS)).graph.initializer]
    assert sum(n.op_type == "Cast" for n in made.node) == 2 * keep_io
    images = held_out().inputs[:64].astype(wanted.numpy)
    found = np.asarray(next(iter(mz.load(path).run({"image": images}).values()))).astype(np.float32)
    expected = answers(DIGITS)
    assert np.abs(found - expected).max() <= tolerance * np.abs(expected).max()
    if precision == "fp16":
        referee()
        verdict = check(path, Options(against="onnxruntime"))
        assert not verdict.code, text(verdict.report())


def ends() -> Graph:
    """An input that is read in both widths and is an output, and operators that ONNX has in 32 bits alone."""
    g = GraphBuilder()
    x = g.input("x", f32(2, 4, 4, 1))
    y = g.Relu(x)
    z = g.Resize(y, None, g.const(np.array([1, 2, 2, 1], np.float32)), mode="nearest")
    kept = g.Cast(x, to=DType.DOUBLE.onnx)
    return g.graph([y, g.Add(z, z), kept, g.Identity(y), g.ReduceSum(kept)])


@pytest.mark.parametrize("keep_io", [True, False])
def test_every_kind_of_end(keep_io: bool, tmp_path: Path) -> None:
    save_onnx(ends(), tmp_path / "m.onnx")
    report = convert(tmp_path / "m.onnx", tmp_path / "half.onnx", precision="fp16", keep_io=keep_io)
    assert "(Resize)" in text(report)
    x = np.linspace(-1, 1, 32, dtype=np.float32).reshape(2, 4, 4, 1)
    full = mz.load(tmp_path / "m.onnx").run({"x": x})
    half = mz.load(tmp_path / "half.onnx").run({"x": x if keep_io else x.astype(np.float16)})
    assert list(half) == list(full)
    for name, value in full.items():
        np.testing.assert_allclose(half[name].astype(np.float64), value.astype(np.float64), rtol=1e-2, atol=1e-2)
        narrow = value.dtype == np.float32 and not keep_io
        assert half[name].dtype == (np.float16 if narrow else value.dtype)


def test_weights_that_do_not_fit(tmp_path: Path) -> None:
    g = GraphBuilder()
    save_onnx(g.graph([g.Add(g.input("x", f32(2)), g.const(np.array([1e6, 1], np.float32)))]), tmp_path / "m.onnx")
    with pytest.raises(UnsupportedModel, match="1 weights do not fit float16"):
        convert(tmp_path / "m.onnx", tmp_path / "half.onnx", precision="fp16")
    convert(tmp_path / "m.onnx", tmp_path / "half.onnx", precision="bf16")


def test_what_masks_becomes_the_lowest_number_of_float16(tmp_path: Path) -> None:
    """-inf would make NaN of a row that is masked throughout."""
    g = GraphBuilder()
    masks = np.array([0, -3.4e38, -1e9, -np.inf, -60000], np.float32)
    save_onnx(g.graph([g.Add(g.input("x", f32(5)), g.const(masks))]), tmp_path / "m.onnx")
    convert(tmp_path / "m.onnx", tmp_path / "half.onnx", precision="fp16")
    (held,) = onnx.load(tmp_path / "half.onnx").graph.initializer
    assert onnx.numpy_helper.to_array(held).tolist() == [0, -65504, -65504, -np.inf, -60000]


def test_a_real_model_in_sixteen_bits(tmp_path: Path) -> None:
    real = next(r for r in OTHERS if "cls" in r.name)
    report = convert(real.path(), tmp_path / "half.onnx", precision="fp16", external_data="always")
    assert report.facts["beside_it"] != "nothing", "weights of Constant nodes too"
    onnx.checker.check_model(str(tmp_path / "half.onnx"), full_check=True)
    assert report.facts["nodes_in_16_bits"] > 9 * report.facts["nodes_in_32_bits"]
    (full,), (half,) = (mz.load(p).run(real.feeds()).values() for p in (real.path(), tmp_path / "half.onnx"))
    assert np.abs(full - half).max() < 0.02  # probabilities
    referee()
    verdict = check(tmp_path / "half.onnx", Options(against="onnxruntime", round_trip=False))
    assert not verdict.code, text(verdict.report())


def test_which_operators_take_sixteen_bits() -> None:
    found = policy(DType.FLOAT16)
    assert {"Conv", "MatMul", "Softmax", "LSTM", "BatchNormalization", "Concat", "Gather"} <= found.low
    assert {"Cast", "Resize", "NonMaxSuppression", "DequantizeLinear"} <= found.wide
    assert not {"Shape", "Less", "ArgMax"} & (found.low | found.wide)


def test_the_command(tmp_path: Path) -> None:
    out = str(tmp_path / "m.onnx")
    report = as_json("convert", str(DIGITS), out, "--opset", "17", "--precision", "fp16", "--keep-io", "false")
    assert (report["opset"], report["nodes_in_16_bits"]) == ("ai.onnx 17", 10)
    assert "neither .onnx nor .mezzo" in mezzo("convert", str(DIGITS), str(tmp_path / "m.txt"), code=2)
    with pytest.raises(InputError, match="the opset of its runtime"):
        convert(DIGITS, tmp_path / "m.mezzo", opset=17)
