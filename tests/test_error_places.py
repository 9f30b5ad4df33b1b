"""Errors of models that were read from files name the file, whatever the graph in it is called."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import mezzo as mz
from mezzo import onnxruntime
from mezzo.ops.errors import MezzoError

from .models import INT64, model, node, value

X = np.ones((2, 3), np.float32)


@pytest.fixture
def two(tmp_path: Path) -> tuple[Path, Path]:
    """Two models whose graphs have one name, as exporters give it; the second has a value between its nodes, which
    lies in an arena whatever else the kernels of a processor need."""
    rows = [value("x", "n", 3), value("i", "m", kind=INT64)], [value("y", None, 3)]
    products = [value("x", "n", "k"), value("w", "j", "l")], [value("y", "n", "l")]
    onnx.save(model([node("Gather", "x i", "y")], *rows), tmp_path / "rows.onnx")
    onnx.save(model([node("MatMul", "x w", "h"), node("MatMul", "h h", "y")], *products), tmp_path / "products.onnx")
    return tmp_path / "rows.onnx", tmp_path / "products.onnx"


def place(call: Callable[[], Any]) -> str:
    with pytest.raises(MezzoError) as caught:
        call()
    return caught.value.where


@pytest.mark.parametrize("suffix", [".onnx", ".mezzo"])
def test_runs_of_two_models(two: tuple[Path, Path], suffix: str) -> None:
    if suffix == ".mezzo":
        for path in two:
            mz.load(path).save(path.with_suffix(suffix))
    files = [path.with_suffix(suffix) for path in two]
    rows, products = map(mz.load, files)
    cancel = threading.Event()
    cancel.set()
    for session, path in zip((rows, products), files, strict=True):
        calls = [
            partial(session.run, {}),
            partial(session.run, {"x": X, "i": [0], "q": X}),
            partial(session, X, X, X),
            partial(session.run, {"x": X, "i": [0], "w": X.T}, names=["nothing"]),
            partial(session.warmup, {"q": (1,)}),
        ]
        assert [place(call) for call in calls] == [path.name] * len(calls)
        assert path.name in repr(session)
    fed = {"x": X, "w": np.ones((3, 2), np.float32)}
    for outputs in ({"q": X}, {"y": X}, {"y": np.empty((2, 2))}):
        assert place(partial(products.run, fed, outputs=outputs)).startswith(f"{files[1].name}: outputs")
    large = {"x": np.ones((99, 99), np.float32), "w": np.ones((99, 99), np.float32)}
    assert place(lambda: mz.load(files[1], max_memory=100).run(large)) == files[1].name
    # what fails at a node tells the file that the node came from
    assert place(lambda: rows.run({"x": X, "i": np.array([7])})).startswith("rows.onnx: node 0")
    assert place(lambda: products.run({"x": X, "w": X})).startswith("products.onnx: node 0")
    assert place(lambda: products.run(fed, cancel=cancel)).startswith("products.onnx: node 0")


def test_sessions_by_the_names_of_onnx_runtime(two: tuple[Path, Path]) -> None:
    options = onnxruntime.SessionOptions()
    options.add_free_dimension_override_by_name("n", 2)
    for made in (onnxruntime.InferenceSession(two[0]), onnxruntime.InferenceSession(str(two[0]), options)):
        assert place(partial(made.run, None, {"x": X})) == "rows.onnx"
    assert place(lambda: onnxruntime.InferenceSession(two[0].read_bytes()).run(None, {"x": X})) == "made"


def test_loads(tmp_path: Path) -> None:
    bad = {
        "operator.onnx": model([node("Nope", "x", "y")], [value("x", 2)], [value("y", 2)]).SerializeToString(),
        "unread.onnx": model([node("Relu", "z", "y")], [value("x", 2)], [value("y", 2)]).SerializeToString(),
        "sizes.onnx": model([node("MatMul", "x x", "y")], [value("x", 2, 3)], [value("y", 2)]).SerializeToString(),
        "broken.onnx": b"\x08broken" * 9,
        "broken.mezzo": b"MEZZO" * 99,
    }
    for name, content in bad.items():
        (tmp_path / name).write_bytes(content)
        assert place(partial(mz.load, tmp_path / name)).startswith(name)
    assert "none.onnx" in place(lambda: mz.load(tmp_path / "none.onnx"))
