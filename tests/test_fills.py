"""Open sizes that a model leaves to us: what is filled in for batches, lengths and the caches of decoders."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from mezzo.ops.types import f32, i64
from mezzo.runtime.compile.program import Port
from mezzo.tools.check import check
from mezzo.tools.check_options import Options
from mezzo.tools.load import load
from mezzo.tools.roles import Role, Roles

from .models import INT64, model, node, referee, value
from .test_cli import as_json, mezzo


@pytest.fixture
def decoder(tmp_path: Path) -> str:
    """One head of attention over a cache; its mask must be as long as the cache and the new tokens together."""
    return str(write_decoder(tmp_path / "decoder.onnx", "b", "s", "t", "p"))


def write_decoder(path: Path, b: str | None, s: str | None, t: str | None, p: str | None) -> Path:
    rng = np.random.default_rng(0)
    nodes = [
        node("Gather", "table ids", "rows"),
        node("Unsqueeze", "rows one", "q"),
        node("Concat", "past_key_values.0.key q", "present.0.key", axis=2),
        node("Shape", "present.0.key", "length", start=2, end=3),
        node("Concat", "copied length", "wide", axis=0),
        node("Reshape", "attention_mask wide", "mask"),
        node("Cast", "mask", "open", to=onnx.TensorProto.FLOAT),
        node("Transpose", "present.0.key", "k", perm=[0, 1, 3, 2]),
        node("MatMul", "q k", "scores"),
        node("Add", "scores open", "masked"),
        node("Softmax", "masked", "weights"),
        node("MatMul", "weights present.0.key", "y"),
    ]
    inputs = [
        value("ids", b, s, kind=INT64),
        value("attention_mask", b, t, kind=INT64),
        value("past_key_values.0.key", b, 1, p, 4),
    ]
    outputs = [value("y", None, 1, None, 4), value("present.0.key", None, 1, None, 4)]
    table = rng.standard_normal((9, 4)).astype(np.float32)
    held = {"table": table, "one": np.array([1]), "copied": np.array([0, 1, 1])}
    onnx.save(model(nodes, inputs, outputs, initializers=held), path)
    return path


def test_explain_chooses_sizes_for_caches_and_says_which(decoder: str) -> None:
    report = as_json("explain", decoder)
    assert report["sizes_chosen"] == "b=1, s=64, t=64, p=0"
    assert "past_key_values.0.key: float32[1,1,0,4]" in report["inputs"]
    report = as_json("explain", decoder, "--dim", "p=7", "--dim", "s=2", "--kernels")
    assert report["sizes_chosen"] == "b=1, t=9"
    assert "ids: int64[1,2], attention_mask: int64[1,9]" in report["inputs"]
    report = as_json("explain", decoder, "--dim", "t=9", "--dim", "p=8", "--dim", "b=3", "--device", "gpu:0@sm_90")
    assert report["sizes_chosen"] == "s=1"
    assert "largest_batch" in as_json("explain", decoder, "--budget", "1MiB")
    report = as_json("explain", decoder, "--dim", "ids=1,2", "--dim", "t=11")
    assert report["sizes_chosen"] == "p=9"
    assert "none of the sizes" in mezzo("explain", decoder, "--dim", "ids=1,2", "--dim", "t=1", code=2)


def test_explain_says_nothing_where_nothing_is_chosen(decoder: str) -> None:
    dims = [text for name in ("b=1", "s=1", "t=3", "p=2") for text in ("--dim", name)]
    assert "sizes_chosen" not in as_json("explain", decoder, *dims)


@pytest.mark.parametrize("named", [True, False], ids=["named dims", "dims without names"])
def test_check_compares_empty_caches_and_filled_ones(tmp_path: Path, *, named: bool) -> None:
    referee()
    path = write_decoder(tmp_path / "decoder.onnx", *("bstp" if named else (None,) * 4))
    verdict = check(path, Options(against="onnxruntime"))
    assert not verdict.problems, verdict.problems
    (table,) = (t for t in verdict.tables if t.title == "Outputs")
    sizes = {row[0] for row in table.rows}
    if named:
        assert sizes == {"b=2, s=32, t=32, p=0", "b=2, s=1, t=32, p=31"}
    else:
        assert any("past_key_values.0.key=2,1,0,4" in text for text in sizes)
        assert any("past_key_values.0.key=2,1,31,4" in text for text in sizes)


def test_roles_by_the_habits_of_exporters() -> None:
    """Optimum, the older one of transformers, and ONNX Runtime's own exporter."""
    new, total = "sequence_length", "past_sequence_length + 1"
    ports = [
        Port("input_ids", i64("batch", new)),
        Port("position_ids", i64("batch", new)),
        Port("attention_mask", i64("batch", total)),
        Port("past_key_values.0.key", f32("batch", 4, "past_sequence_length", 64)),
        Port("past_0", f32(2, "batch", 4, "past_sequence_length", 64)),
        Port("past_key_0", f32("batch", 4, 64, 32)),
        Port("use_cache_branch", i64(1)),
    ]
    roles = Roles.of(ports).of_input
    b, n, p, t = Role.BATCH, Role.NEW, Role.PAST, Role.TOTAL
    assert roles["input_ids"] == roles["position_ids"] == (b, n)
    assert roles["attention_mask"] == (b, t)
    assert [r for r in roles["past_key_values.0.key"] if r in (b, p)] == [b, p]
    assert roles["past_0"][1] is b
    assert roles["past_0"][3] is p
    assert p not in roles["past_key_0"]
    assert not Roles.of([Port("x", f32(None, 3, None, None)), Port("mask", i64("n", "m"))]).caches


def test_models_without_caches_are_filled_as_before(tmp_path: Path) -> None:
    plain = model([node("Relu", "x", "y")], [value("x", "n", 3, "h")], [value("y", "n", 3, "h")])
    onnx.save(plain, tmp_path / "x.onnx")
    roles = Roles.of(load(tmp_path / "x.onnx").inputs)
    assert [*roles.ways([(2, 32)], {"h": "5"})] == [dict.fromkeys(Role, 32) | {Role.BATCH: 2}]
