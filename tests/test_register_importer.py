"""Importers of one's own: files of a registered format are read wherever a model is named."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mezzo as mz
from mezzo.gluon import SymbolBlock
from mezzo.importers import load_graph, register_importer
from mezzo.importers.registry import IMPORTERS
from mezzo.ops.budget import Budget
from mezzo.ops.errors import BudgetError, InputError, ModelError
from mezzo.ops.types import f32
from mezzo.runtime.ir.graph import Graph, GraphBuilder

HEAD = b"ACME"
WEIGHTS = np.arange(6, dtype=np.float32).reshape(3, 2)


def read(source: Any, budget: Budget) -> Graph:
    """A linear layer of the numbers behind the head."""
    content = source if isinstance(source, bytes) else Path(source).read_bytes()
    budget.check("file_bytes", len(content), "bytes of the model", where="acme")
    if len(content) != len(HEAD) + WEIGHTS.nbytes:
        raise ModelError("no six numbers", where="acme", hint="write the file again")
    g = GraphBuilder("acme")
    weights = np.frombuffer(content, np.float32, offset=len(HEAD)).reshape(3, 2)
    return g.graph([g.MatMul(g.input("x", f32("n", 3)), g.const(weights))])


@pytest.fixture
def acme(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "model.acme"
    path.write_bytes(HEAD + WEIGHTS.tobytes())
    register_importer("acme", lambda head: head.startswith(HEAD), read)
    yield path
    del IMPORTERS["acme"]


def test_it_is_loaded_trained_quantised_and_becomes_a_block(acme: Path) -> None:
    x = np.ones((4, 3), np.float32)
    for source in (acme, str(acme), acme.read_bytes()):
        np.testing.assert_array_equal(mz.load(source)(x), x @ WEIGHTS)
    trainer = mz.Trainer(acme, loss="mse")
    feeds = {"x": x, "target": np.zeros((4, 2), np.float32)}
    assert trainer.step(feeds) > trainer.step(feeds)
    assert mz.quantize(acme, [{"x": x}]).inputs == ("x",)
    np.testing.assert_array_equal(SymbolBlock.imports(acme)(mz.nd.array(x)).asnumpy(), x @ WEIGHTS)


def test_other_formats_stay(acme: Path, tmp_path: Path) -> None:
    graph = load_graph(acme)
    mz.onnx.save(graph, tmp_path / "model.onnx")
    assert load_graph(tmp_path / "model.onnx").inputs == graph.inputs
    with pytest.raises(ModelError):
        mz.load(tmp_path)
    with pytest.raises(InputError, match="'onnx' is a format of Mezzo"):
        register_importer("onnx", lambda head: True, read)


def fails(source: Any, budget: Budget) -> Any:
    raise KeyError("layers")


@pytest.mark.parametrize(
    ("reader", "said"), [(fails, "importer 'acme' failed: KeyError"), (lambda *_: 3, "returned int")]
)
def test_a_defect_of_an_importer_is_told_as_its_own(acme: Path, reader: Callable[..., Any], said: str) -> None:
    register_importer("acme", lambda head: head.startswith(HEAD), reader)
    with pytest.raises(ModelError, match=said):
        mz.load(acme)


def test_its_own_errors_pass(acme: Path) -> None:
    with pytest.raises(ModelError, match="no six numbers"):
        mz.load(HEAD)
    with pytest.raises(BudgetError):
        mz.load(acme, budget=Budget(file_bytes=8))
