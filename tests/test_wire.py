"""Model files whose weights stay in the file until they are asked for: the same graphs and the same errors as of the
bytes of the file."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import mezzo as mz
from mezzo.importers import load_onnx, wire


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small files are walked over too."""
    monkeypatch.setattr(wire, "LEAST", 0)
    monkeypatch.setattr(wire, "LARGE", 64)


def proto() -> onnx.ModelProto:
    """Two layers with weights of several types, a small one, one in a subgraph's place, and metadata."""
    rng = np.random.default_rng(0)
    h, n = onnx.helper, onnx.numpy_helper
    weights: dict[str, np.ndarray[Any, Any]] = {
        "w": rng.standard_normal((8, 16)).astype(np.float32),
        "half": rng.standard_normal((16, 4)).astype(np.float16),
        "few": np.array([1, -1], np.int64),
        "bias": rng.standard_normal(4).astype(np.float64),
    }
    nodes = [
        h.make_node("MatMul", ["x", "w"], ["a"]),
        h.make_node("Cast", ["half"], ["whole"], to=1),
        h.make_node("MatMul", ["a", "whole"], ["b"]),
        h.make_node("Cast", ["bias"], ["c"], to=1),
        h.make_node("Add", ["b", "c"], ["sum"]),
        h.make_node("Reshape", ["sum", "few"], ["y"]),
    ]
    value = h.make_tensor_value_info
    graph = h.make_graph(
        nodes,
        "two layers",
        [value("x", 1, ["n", 8])],
        [value("y", 1, None)],
        [n.from_array(a, name) for name, a in weights.items()],
    )
    model = h.make_model(graph, opset_imports=[h.make_opsetid("", 17)], ir_version=8, producer_name="a test")
    h.set_model_props(model, {"author": "nobody"})
    return model


def outcome(load: Any) -> str:
    """What a load gives, to be compared."""
    try:
        graph = load()
    except mz.MezzoError as error:
        return f"{type(error).__name__}: {error.message}"
    weights = {n: (a.dtype.str, a.shape, a.tobytes()) for n, a in sorted(graph.initializers.items())}
    return repr((graph.nodes, graph.outputs, graph.metadata, weights))


def test_the_same_graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = proto().SerializeToString()
    path = tmp_path / "m.onnx"
    path.write_bytes(data)
    parsed: list[int] = []
    parse = mz.importers.source.parse

    def watched(light: bytes, where: str) -> onnx.ModelProto:
        parsed.append(len(light))
        return parse(light, where)

    monkeypatch.setattr("mezzo.importers.source.parse", watched)
    assert outcome(lambda: load_onnx(path)) == outcome(lambda: load_onnx(data)).replace('where="model', 'where="m.onnx')
    assert parsed[0] < len(data) - 500, "the weights were parsed"
    graph = load_onnx(path)
    path.unlink()
    assert graph.initializers["w"].shape == (8, 16), "nothing of the file is needed any more"


def test_damaged_files_are_told_as_before(tmp_path: Path) -> None:
    """Cut at any place, or with any byte changed: a graph or an error, the same as of the bytes."""
    data = proto().SerializeToString()
    luck, path = random.Random(0), tmp_path / "m.onnx"
    for _ in range(150):
        broken = bytearray(data)
        if luck.random() < 0.4:
            del broken[luck.randrange(len(broken)) :]
        for _ in range(luck.choice([0, 1, 3])):
            if broken:
                broken[luck.randrange(len(broken))] = luck.randrange(256)
        path.write_bytes(broken)
        whole, split = outcome(partial(load_onnx, bytes(broken))), outcome(partial(load_onnx, path))
        if whole.startswith(("ModelError", "UnsupportedModel", "BudgetError")):
            assert split.split(":")[0] == whole.split(":")[0]
        else:
            assert split.replace('where="m.onnx', 'where="model') == whole


def test_a_weight_of_other_bytes_than_its_dims_say(tmp_path: Path) -> None:
    model = proto()
    model.graph.initializer[0].dims[:] = [8, 17]
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(mz.ModelError, match="need 544 bytes, here are 512"):
        load_onnx(path)


def test_no_other_tensor_reads_the_file(tmp_path: Path) -> None:
    """A file cannot name its own bytes as external data, whatever offsets it guesses."""
    model = proto()
    place = model.SerializeToString().index(model.graph.initializer[0].raw_data)
    tensor = model.graph.initializer[1]
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", ""), ("offset", str(place))):
        tensor.external_data.add(key=key, value=value)
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(mz.ModelError, match="no file name of external data"):
        load_onnx(path)
