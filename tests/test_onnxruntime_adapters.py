"""Adapters by ONNX Runtime's names: files that both write and read, and runs that are given their values."""

from __future__ import annotations

import contextlib
import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mezzo import onnxruntime as ours
from mezzo.ops import DType
from mezzo.ops.errors import ArgumentError, ModelError
from mezzo.tools.ort.adapters import ADAPTER, IDENTIFIER, NUMBERS, fed_by

from .models import model, node, value
from .peers import peer

Array = np.ndarray[Any, Any]
BASE = np.arange(12, dtype=np.float32).reshape(4, 3)
DOWN, UP = np.ones((4, 2), np.float32), np.arange(6, dtype=np.float32).reshape(2, 3)
X = np.array([[1, 2, 3, 4]], np.float32)
LOW_RANK = model(
    [
        node("MatMul", "x base", "b"),
        node("MatMul", "x down", "d"),
        node("MatMul", "d up", "u"),
        node("Add", "b u", "y"),
    ],
    [value("x", "n", 4), value("down", 4, "rank"), value("up", "rank", 3)],
    [value("y", "n", 3)],
    initializers={"base": BASE, "down": np.zeros((4, 0), np.float32), "up": np.zeros((0, 3), np.float32)},
).SerializeToString()


@pytest.fixture(params=["ours", "theirs"])
def api(request: pytest.FixtureRequest) -> Any:
    return ours if request.param == "ours" else peer("onnxruntime")


def exported(api: Any, path: Path, arrays: dict[str, Array], versions: tuple[int, int] = (3, 4)) -> Path:
    adapter = api.AdapterFormat()
    adapter.set_adapter_version(versions[0])
    adapter.set_model_version(versions[1])
    adapter.set_parameters({name: api.OrtValue.ortvalue_from_numpy(array) for name, array in arrays.items()})
    adapter.export_adapter(str(path))
    return path


def loaded(api: Any, path: Path) -> Any:
    adapter = api.LoraAdapter()
    adapter.Load(str(path))
    return adapter


def running(api: Any, *adapters: Any) -> Any:
    options = api.RunOptions()
    for adapter in adapters:
        options.add_active_adapter(adapter)
    return options


@pytest.mark.parametrize("writer", ["ours", "theirs"])
def test_files_are_those_of_onnx_runtime(writer: str, api: Any, tmp_path: Path) -> None:
    writing = ours if writer == "ours" else peer("onnxruntime")
    # ONNX Runtime makes no values of element types that NumPy lacks
    kinds = [d for d in DType if d.onnx in NUMBERS and d.numpy.isbuiltin == 1]
    arrays = {d.name: np.arange(1, 4).astype(d.numpy) for d in kinds} | {"none": np.zeros((0, 4), np.float32)}
    read = api.AdapterFormat.read_adapter(str(exported(writing, tmp_path / "a.onnx_adapter", arrays, (-1, 7))))
    assert (read.get_format_version(), read.get_adapter_version(), read.get_model_version()) == (1, -1, 7)
    held = read.get_parameters()
    del read
    gc.collect()
    assert held.keys() == arrays.keys()
    for name, array in arrays.items():
        assert held[name].shape() == list(array.shape)
        assert held[name].numpy().dtype == array.dtype
        assert (held[name].numpy() == array).all()
        assert api is not ours or held[name].numpy().flags.aligned


def test_an_adapter_is_read_and_written_again(api: Any, tmp_path: Path) -> None:
    path = exported(api, tmp_path / "a.onnx_adapter", {"a": BASE})
    adapter = api.AdapterFormat.read_adapter(str(path))
    adapter.set_parameters({**adapter.get_parameters(), "b": api.OrtValue.ortvalue_from_numpy(2 * BASE)})
    adapter.export_adapter(str(tmp_path / "b.onnx_adapter"))
    held = api.AdapterFormat.read_adapter(str(tmp_path / "b.onnx_adapter")).get_parameters()
    assert sorted(held) == ["a", "b"]
    assert (held["a"].numpy() * 2 == held["b"].numpy()).all()


def test_values_of_a_file_are_written_to_and_the_file_is_not(tmp_path: Path) -> None:
    path = exported(ours, tmp_path / "a.onnx_adapter", {"a": BASE})
    before = path.read_bytes()
    held = ours.AdapterFormat.read_adapter(path).get_parameters()["a"]
    held.update_inplace(BASE + 1)
    assert (held.numpy() == BASE + 1).all()
    assert path.read_bytes() == before


def test_runs_are_given_its_values(api: Any, tmp_path: Path) -> None:
    adapter = loaded(api, exported(api, tmp_path / "a.onnx_adapter", {"down": DOWN, "up": UP}))
    session, options = api.InferenceSession(LOW_RANK), running(api, adapter)
    want = X @ (BASE + DOWN @ UP)
    (plain,), (adapted,) = session.run(None, {"x": X}), session.run(None, {"x": X}, options)
    assert (plain == X @ BASE).all()
    assert (adapted == want).all()
    (result,) = session.run_with_ort_values(["y"], {"x": api.OrtValue.ortvalue_from_numpy(X)}, options)
    assert (result.numpy() == want).all()


def test_runs_with_bindings_are_given_them_too(tmp_path: Path) -> None:
    """ONNX Runtime passes over them there, with a warning."""
    adapter = loaded(ours, exported(ours, tmp_path / "a.onnx_adapter", {"down": DOWN, "up": UP}))
    session = ours.InferenceSession(LOW_RANK)
    binding = session.io_binding()
    binding.bind_cpu_input("x", X)
    binding.bind_output("y")
    session.run_with_iobinding(binding, running(ours, adapter))
    assert (binding.get_outputs()[0].numpy() == X @ (BASE + DOWN @ UP)).all()


def test_sizes_of_one_name_may_differ_in_an_adapter(api: Any, tmp_path: Path) -> None:
    summed = model(
        [node("ReduceSum", "down", "d", keepdims=0), node("ReduceSum", "up", "u", keepdims=0), node("Add", "d u", "y")],
        [value("down", "rank"), value("up", "rank")],
        [value("y")],
        initializers={"down": np.zeros(1, np.float32), "up": np.zeros(1, np.float32)},
    )
    arrays = {"down": np.ones(2, np.float32), "up": np.ones(3, np.float32)}
    adapter = loaded(api, exported(api, tmp_path / "a.onnx_adapter", arrays))
    (result,) = api.InferenceSession(summed.SerializeToString()).run(None, {}, running(api, adapter))
    assert result == 5


def test_an_adapter_for_another_model_is_refused(api: Any, tmp_path: Path) -> None:
    adapter = loaded(api, exported(api, tmp_path / "a.onnx_adapter", {"what": DOWN}))
    invalid = api.capi.onnxruntime_pybind11_state.InvalidArgument
    with pytest.raises(invalid, match="what"):
        api.InferenceSession(LOW_RANK).run(None, {"x": X}, running(api, adapter))


def test_a_name_is_given_once(tmp_path: Path) -> None:
    adapter = loaded(ours, exported(ours, tmp_path / "a.onnx_adapter", {"down": DOWN, "up": UP}))
    session = ours.InferenceSession(LOW_RANK)
    for feeds, adapters in (({"x": X, "up": UP}, [adapter]), ({"x": X}, [adapter, adapter])):
        with pytest.raises(ArgumentError, match="is given twice"):
            session.run(None, feeds, running(ours, *adapters))
    assert fed_by([], {"x": X}) == {"x": X}


def test_what_is_no_adapter_is_refused(api: Any, tmp_path: Path) -> None:
    path = tmp_path / "what"
    for content in (b"", b"x" * 100, None):
        path.unlink(missing_ok=True)
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(RuntimeError):
            api.AdapterFormat.read_adapter(str(path))
        with pytest.raises(RuntimeError):
            loaded(api, path)
    with pytest.raises(TypeError):
        api.RunOptions().add_active_adapter(3)


def test_values_that_no_file_holds_are_refused(tmp_path: Path) -> None:
    adapter = ours.AdapterFormat()
    of = ours.OrtValue.ortvalue_from_numpy
    texts = ours.OrtValue(np.array(["a"], object))
    for held in (texts, of(np.array([True])), of(np.array(1.0)), ours.OrtValue([np.ones(3)])):
        adapter.set_parameters({"a": held})
        with pytest.raises(ArgumentError, match="'a' is"):
            adapter.export_adapter(tmp_path / "a.onnx_adapter")
    assert not list(tmp_path.iterdir())
    with pytest.raises(TypeError, match="'a' is a list"):
        adapter.set_parameters({"a": [1]})  # type: ignore[dict-item]
    version: Any
    for version in ("1", 1 << 31, True):
        with pytest.raises(ArgumentError, match="is no version"):
            adapter.set_model_version(version)
    with pytest.raises(ArgumentError, match="has no values"):
        ours.RunOptions().add_active_adapter(ours.LoraAdapter())


@given(at=st.integers(0, 10**6), change=st.integers(1, 255), cut=st.booleans())
@settings(max_examples=300)
def test_a_broken_file_is_an_error_or_read(at: int, change: int, cut: bool, tmp_path_factory: Any) -> None:
    path, whole = (tmp_path_factory.getbasetemp() / f"{name}.onnx_adapter" for name in ("broken", "whole"))
    if not whole.exists():
        exported(ours, whole, {"down": DOWN, "up": UP})
    content = bytearray(whole.read_bytes())
    assert content[4:8] == IDENTIFIER
    assert ADAPTER.fields.keys() >= {"parameters"}
    at %= len(content)
    content[at] ^= change
    path.write_bytes(content[:at] if cut else content)
    with contextlib.suppress(ModelError):
        held = ours.AdapterFormat.read_adapter(path).get_parameters()
        assert all(v.is_tensor() for v in held.values())
