"""Models that are written for sessions to come, by ONNX Runtime's ModelCompiler, on ours, and on ONNX Runtime where it
is here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from mezzo import onnxruntime as ours
from mezzo.ops.errors import ArgumentError
from mezzo.tools.ort.hints import Overlooking

from .models import model, node, value
from .peers import peer

W, B = np.arange(32, dtype=np.float32).reshape(4, 8), np.arange(8, dtype=np.float32)
X = np.array([[1, -2, 3, -4]], np.float32)
MADE = model(
    [node("MatMul", "x w", "m"), node("Add", "m b", "s"), node("Identity", "s", "i"), node("Relu", "i", "y")],
    [value("x", "n", 4)],
    [value("y", "n", 8)],
    initializers={"w": W, "b": B},
)
CONTENT, WANT = MADE.SerializeToString(), np.maximum(X @ W + B, 0)


@pytest.fixture(params=["ours", "theirs"])
def api(request: pytest.FixtureRequest) -> Any:
    return ours if request.param == "ours" else peer("onnxruntime")


@pytest.fixture
def given(tmp_path: Path) -> Path:
    path = tmp_path / "given.onnx"
    path.write_bytes(CONTENT)
    return path


def compiler(api: Any, source: Any, **options: Any) -> Any:
    return api.ModelCompiler(api.SessionOptions(), str(source) if isinstance(source, Path) else source, **options)


def ran(api: Any, source: Any) -> Any:
    session = api.InferenceSession(str(source) if isinstance(source, Path) else source)
    return session.run(None, {"x": X})[0]


def test_a_model_is_written(api: Any, given: Path) -> None:
    for source in (given, CONTENT):
        made = compiler(api, source, embed_compiled_data_into_model=True, external_initializers_file_path=None)
        path = given.with_name("made.onnx")
        made.compile_to_file(str(path))
        assert (ran(api, path) == WANT).all()
        assert [n.op_type for n in onnx.load(path).graph.node] == ["MatMul", "Add", "Identity", "Relu"]
        content, parts = made.compile_to_bytes(), list[bytes]()
        assert isinstance(content, bytes)
        assert (ran(api, content) == WANT).all()
        made.compile_to_stream(parts.append)
        assert (ran(api, b"".join(parts)) == WANT).all()


def test_its_name_is_made_of_the_models(given: Path) -> None:
    """As ONNX Runtime says, whose 1.32 has an error there."""
    compiler(ours, given).compile_to_file()
    assert (ran(ours, given.with_name("given_ctx.onnx")) == WANT).all()
    with pytest.raises(ours.InvalidArgument, match="the model has no path"):
        compiler(ours, CONTENT).compile_to_file()


def test_passes_are_done_where_they_are_asked_for(api: Any, given: Path) -> None:
    level, path = api.GraphOptimizationLevel.ORT_ENABLE_ALL, given.with_name("made.onnx")
    compiler(api, given, graph_optimization_level=level).compile_to_file(str(path))
    assert "Identity" not in {n.op_type for n in onnx.load(path).graph.node}
    assert np.allclose(ran(api, path), WANT)


def test_levels_between_are_refused_and_overlooked_in_programs_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    level = ours.GraphOptimizationLevel.ORT_ENABLE_BASIC
    with pytest.raises(ArgumentError, match="would be ignored"):
        compiler(ours, CONTENT, graph_optimization_level=level)
    monkeypatch.setattr(Overlooking, "told", set())
    monkeypatch.setattr(Overlooking, "tell", told.append)
    assert compiler(ours, CONTENT, graph_optimization_level=level).compile_to_bytes()
    assert "ORT_ENABLE_BASIC" in told[0]


def test_flags_are_followed(api: Any, given: Path) -> None:
    failed, path = api.capi.onnxruntime_pybind11_state.Fail, given.with_name("made.onnx")
    flags = api.OrtCompileApiFlags
    with pytest.raises(failed, match="Unable to compile any nodes"):
        compiler(api, given, flags=flags.ERROR_IF_NO_NODES_COMPILED).compile_to_file(str(path))
    assert not path.exists()
    once = compiler(api, given, flags=flags.ERROR_IF_OUTPUT_FILE_EXISTS)
    once.compile_to_file(str(path))
    with pytest.raises(failed, match="exists already"):
        once.compile_to_file(str(path))


def test_a_function_that_raises_is_a_failure(api: Any) -> None:
    def full(_: bytes) -> None:
        raise ValueError("no room")

    with pytest.raises(api.capi.onnxruntime_pybind11_state.Fail, match="no room"):
        compiler(api, CONTENT).compile_to_stream(full)


def test_weights_lie_beside_the_model(given: Path) -> None:
    path, beside = given.with_name("made.onnx"), given.with_name("made.bin")
    asked = {"external_initializers_file_path": beside.name, "external_initializers_size_threshold": B.nbytes}
    compiler(ours, given, **asked).compile_to_file(path)
    assert {t.name: bool(t.external_data) for t in onnx.load(path, load_external_data=False).graph.initializer} == {
        "w": True,
        "b": False,
    }
    for api in (ours, peer("onnxruntime")):
        assert (ran(api, path) == WANT).all()
    with pytest.raises(ArgumentError, match="lies beside no file"):
        compiler(ours, given, **asked).compile_to_bytes()
    with pytest.raises(ArgumentError, match="is in another folder"):
        compiler(ours, given, external_initializers_file_path="/elsewhere/w.bin").compile_to_file(path)


def test_weights_lie_where_a_function_says(api: Any, given: Path) -> None:
    path, beside, seen = given.with_name("made.onnx"), given.with_name("weights.bin"), dict[str, Any]()
    with beside.open("wb") as file:

        def place(name: str, held: Any, info: Any) -> Any:
            seen[name] = (held.numpy().copy(), info)
            if name != "w":
                return None
            at = file.tell()
            file.write(held.numpy().tobytes())
            return api.OrtExternalInitializerInfo(str(beside), at, held.tensor_size_in_bytes())

        compiler(api, given, get_initializer_location_func=place).compile_to_file(str(path))
    assert {name: info for name, (_, info) in seen.items()} == {"w": None, "b": None}
    assert (seen["w"][0] == W).all()
    assert [t.name for t in onnx.load(path, load_external_data=False).graph.initializer if t.external_data] == ["w"]
    assert beside.stat().st_size == W.nbytes
    if api is ours:  # ONNX Runtime writes the whole path, which it does not read
        for other in (ours, peer("onnxruntime")):
            assert (ran(other, path) == WANT).all()


def test_weights_stay_where_they_are(given: Path) -> None:
    apart = given.with_name("apart.onnx")
    onnx.save(onnx.load(given), apart, save_as_external_data=True, location="apart.bin", size_threshold=100)
    seen: list[Any] = []

    def keep(name: str, held: Any, info: Any) -> Any:
        seen.append(info)
        return info

    path = given.with_name("made.onnx")
    compiler(ours, apart, get_initializer_location_func=keep).compile_to_file(path)
    (info,) = (found for found in seen if found is not None)
    assert (info.filepath, info.byte_size) == ("apart.bin", W.nbytes)
    for api in (ours, peer("onnxruntime")):
        assert (ran(api, path) == WANT).all()
    (given.parent / "below").mkdir()
    with pytest.raises(ArgumentError, match="is not in the folder of the model"):
        compiler(ours, apart, get_initializer_location_func=keep).compile_to_file(given.parent / "below" / "made.onnx")


def test_options_change_what_is_written(given: Path) -> None:
    options = ours.SessionOptions()
    options.add_free_dimension_override_by_name("n", 1)
    options.add_initializer("b", ours.OrtValue.ortvalue_from_numpy(0 * B))
    content = ours.ModelCompiler(options, given).compile_to_bytes()
    assert (ran(ours, content) == np.maximum(X @ W, 0)).all()
    assert ours.InferenceSession(content).get_inputs()[0].shape == [1, 4]


def test_a_planned_model_is_written(given: Path) -> None:
    path = given.with_name("made.mezzo")
    compiler(ours, given).compile_to_file(path)
    assert (ran(ours, path) == WANT).all()
    with pytest.raises(ArgumentError, match="holds all weights"):
        compiler(ours, given, external_initializers_file_path="w.bin").compile_to_file(path)


def test_what_is_no_model_is_refused(api: Any) -> None:
    for source, kind in ((3, TypeError), ("", ValueError), (b"", ValueError)):
        with pytest.raises(kind):
            compiler(api, source)
    with pytest.raises(TypeError):
        api.ModelCompiler(3, CONTENT)
    with pytest.raises(ValueError, match="get_initializer_location_func"):
        compiler(api, CONTENT, external_initializers_file_path="w", get_initializer_location_func=lambda *_: None)


def test_what_no_provider_has_is_refused() -> None:
    made = compiler(ours, CONTENT)
    made.clear_ep_context_data_write_func()
    for name, asked in (("set_ep_context_data_write_func", [print]), ("set_ep_context_binary_information", ["a", "b"])):
        with pytest.raises(ArgumentError) as caught:
            getattr(made, name)(*asked)
        assert caught.value.hint
