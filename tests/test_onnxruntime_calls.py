"""What ONNX Runtime's own tests ask of its Python API, on our sessions, and on its where they are here."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import mezzo as mz
from mezzo import onnxruntime as ours
from mezzo.importers import load_onnx
from mezzo.ops.errors import ArgumentError
from mezzo.tools.ort.backend import OnnxRuntimeBackend
from mezzo.tools.ort.extension import DeviceByNumber, SessionIOBinding
from mezzo.tools.ort.hints import Overlooking
from mezzo.tools.ort.process import Process
from mezzo.tools.ort.providers import check_and_normalize_provider_args
from mezzo.tools.ort.values import is_dlpack_uint8_tensor

from .models import model, node, value
from .peers import peer

W = np.arange(1, 7, dtype=np.float32).reshape(3, 2)
CONTENT = model(
    [node("Mul", "x w", "y")], [value("x", 3, 2)], [value("y", 3, 2)], initializers={"w": W}
).SerializeToString()


def product(path: Path | None = None) -> onnx.ModelProto:
    """The model; with a path, written there with its weights in a file beside it."""
    made = onnx.ModelProto()
    made.ParseFromString(CONTENT)
    if path is not None:
        onnx.save(made, path, save_as_external_data=True, location="w.data", size_threshold=0)
    return made


@pytest.fixture(params=["ours", "theirs"])
def api(request: pytest.FixtureRequest) -> Any:
    """The module that is asked."""
    return ours if request.param == "ours" else peer("onnxruntime")


@pytest.fixture
def stood_in() -> Iterator[list[str]]:
    """As in a program that was not written for Mezzo: what it is told."""
    told: list[str] = []
    before = Process.threads
    Overlooking.tell, Overlooking.told = told.append, set()
    yield told
    Overlooking.tell, Overlooking.told, Process.threads = None, set(), before


def opened(api: Any, source: Any, options: Any = None) -> Any:
    return api.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def test_initializers_of_early_files_are_no_inputs(api: Any) -> None:
    """As before version 4 of the format they had to be."""
    early = product()
    early.ir_version = 3
    (result,) = opened(api, early.SerializeToString()).run(None, {"x": W})
    assert (result == W * W).all()


def test_lists_and_maps_of_tensors_of_unknown_shapes(api: Any) -> None:
    maps = helper.make_sequence_type_proto(
        helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, None))
    )
    graph = helper.make_graph(
        [helper.make_node("ZipMap", ["x"], ["z"], domain="ai.onnx.ml", classlabels_int64s=[10, 20])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 2])],
        [helper.make_value_info("z", maps)],
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 3)]
    content = helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
    session = opened(api, content)
    assert session.get_outputs()[0].type == "seq(map(int64,tensor(float)))"
    assert session.run(None, {"x": W}) == [[{10: a, 20: b} for a, b in W.tolist()]]


@pytest.mark.parametrize("below", ["", "data"])
def test_models_of_hugging_faces_cache_are_links(below: str, api: Any, tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots/version"
    for folder in (blobs / below, snapshot):
        folder.mkdir(parents=True, exist_ok=True)
    product(tmp_path / "m.onnx")
    (tmp_path / "m.onnx").rename(blobs / "1a")
    (tmp_path / "w.data").rename(blobs / below / "2b")
    (snapshot / "m.onnx").symlink_to(os.path.relpath(blobs / "1a", snapshot))
    (snapshot / "w.data").symlink_to(os.path.relpath(blobs / below / "2b", snapshot))
    (result,) = opened(api, str(snapshot / "m.onnx")).run(None, {"x": W})
    assert (result == W * W).all()
    (tmp_path / "secret").write_bytes(W.tobytes())
    (snapshot / "w.data").unlink()
    (snapshot / "w.data").symlink_to(tmp_path / "secret")
    with pytest.raises(api.InvalidGraph if api is ours else Exception, match=r"(?i)external data"):
        opened(api, str(snapshot / "m.onnx"))


def test_a_link_gives_no_way_out_of_the_folder_of_its_file(tmp_path: Path) -> None:
    """A model that is no link may not use the folder of another one."""
    (tmp_path / "blobs").mkdir()
    (tmp_path / "here").mkdir()
    product(tmp_path / "blobs/m.onnx")
    (tmp_path / "here/m.onnx").write_bytes((tmp_path / "blobs/m.onnx").read_bytes())
    (tmp_path / "here/w.data").symlink_to(tmp_path / "blobs/w.data")
    with pytest.raises(mz.ModelError, match="outside of the model's folder"):
        load_onnx(tmp_path / "here/m.onnx")


def test_feeds_are_lists_and_bytes(api: Any) -> None:
    (result,) = opened(api, CONTENT).run([], {"x": W.tolist()})
    assert (result == W * W).all()
    kind, named = (helper.make_tensor_value_info(n, TensorProto.STRING, [2]) for n in "xy")
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "texts", [kind], [named])
    texts = opened(
        api, helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8).SerializeToString()
    )
    for fed in (np.array([b"a\0b\0", b"cccc"], np.void), np.array(["a\0b\0", "cccc"], object)):
        assert texts.run(None, {"x": fed})[0].tolist() == ["a\0b\0", "cccc"]


def test_what_is_missing_is_said_in_the_words_of_onnx_runtime(api: Any) -> None:
    session = opened(api, CONTENT)
    with pytest.raises(ValueError, match=r"Required inputs \(\['x'\]\) are missing from input feed \(\['z'\]\)"):
        session.run(None, {"z": W})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # theirs warns before it raises
        with pytest.raises(RuntimeError, match="Unknown Provider Type: Nowhere"):
            session.set_providers(["Nowhere"])
    with pytest.raises(RuntimeError, match="SessionOptions does not have configuration with key: absent"):
        api.SessionOptions().get_session_config_entry("absent")
    session = opened(api, CONTENT)
    with pytest.raises(Exception, match='must be set to "1"'):
        session.get_provider_graph_assignment_info()


def test_each_node_of_the_model_is_assigned(api: Any) -> None:
    chain = model(
        [node("Add", "x x", "a"), node("Mul", "a x", "b"), node("Add", "b a", "y")], [value("x", 2)], [value("y", 2)]
    )
    for number, each in enumerate(chain.graph.node):
        each.name = f"n{number}"
    options = api.SessionOptions()
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    found = opened(api, chain.SerializeToString(), options).get_provider_graph_assignment_info()
    assert {p.ep_name for p in found} == {"CPUExecutionProvider"}
    assert [[(n.op_type, n.name) for n in p.get_nodes()] for p in found] == [
        [("Add", "n0")],
        [("Mul", "n1")],
        [("Add", "n2")],
    ]


def test_the_model_after_the_passes_has_its_weights_apart(api: Any, tmp_path: Path) -> None:
    options, path = api.SessionOptions(), tmp_path / "made.onnx"
    options.optimized_model_filepath = str(path)
    options.add_session_config_entry("session.optimized_model_external_initializers_file_name", "made.bin")
    options.add_session_config_entry("session.optimized_model_external_initializers_min_size_in_bytes", "10")
    opened(api, CONTENT, options)
    assert W.tobytes() in (tmp_path / "made.bin").read_bytes()
    assert W.tobytes() not in path.read_bytes()
    (result,) = opened(ours, str(path)).run(None, {"x": W})
    assert (result == W * W).all()


@pytest.mark.parametrize("name", ["../m.bin", "/m.bin", "", "."])
def test_no_folder_of_another_is_written_to(name: str) -> None:
    with pytest.raises(ArgumentError, match="would be ignored"):
        ours.SessionOptions().add_session_config_entry("session.optimized_model_external_initializers_file_name", name)
    if name not in ("", "."):
        with pytest.raises(mz.ModelError, match="without a folder"):
            mz.onnx.save(load_onnx(CONTENT), "made.onnx", external_data="always", location=name)


def absent(tmp_path: Path) -> str:
    """A model whose external data are nowhere."""
    product(tmp_path / "m.onnx")
    (tmp_path / "w.data").unlink()
    return str(tmp_path / "m.onnx")


def test_external_data_come_from_values_and_from_memory(api: Any, tmp_path: Path) -> None:
    path = absent(tmp_path)
    values, files = api.SessionOptions(), api.SessionOptions()
    held = api.OrtValue.ortvalue_from_numpy(W + 1)
    values.add_external_initializers(["w"], [held])
    assert (opened(api, path, values).run(None, {"x": W})[0] == W * (W + 1)).all()
    content = (W + 2).tobytes() + b"more"
    files.add_external_initializers_from_files_in_memory(["w.data"], [content], [W.nbytes])
    for _ in range(2):
        assert (opened(api, path, files).run(None, {"x": W})[0] == W * (W + 2)).all()


def test_external_data_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    path = absent(tmp_path)
    for wrong in (W.T.copy(), W.astype(np.float64)):
        options = ours.SessionOptions()
        options.add_external_initializers(["w"], [ours.OrtValue.ortvalue_from_numpy(wrong)])
        with pytest.raises(ours.Fail, match="the value that is given for it"):
            opened(ours, path, options)
    options = ours.SessionOptions()
    with pytest.raises(TypeError, match="has no bytes"):
        options.add_external_initializers_from_files_in_memory(["w.data"], ["text"], [4])  # type: ignore[list-item]
    with pytest.raises(ArgumentError, match="9 bytes of 3"):
        options.add_external_initializers_from_files_in_memory(["w.data"], [b"abc"], [9])
    options.add_external_initializers_from_files_in_memory(["w.data"], [b"abc"], [3])
    with pytest.raises(ArgumentError, match="given twice"):
        options.add_external_initializers_from_files_in_memory(["w.data"], [b"abc"], [3])
    with pytest.raises(ours.Fail, match="cut short"):
        opened(ours, path, options)


def test_dims_have_sizes_by_their_meaning(api: Any) -> None:
    graph = onnx.ModelProto.FromString(
        model([node("Abs", "x", "y")], [value("x", "a", "b", 5)], [value("y", "a", "b", 5)]).SerializeToString()
    )
    for dim, meaning in zip(graph.graph.input[0].type.tensor_type.shape.dim, ("DATA_BATCH", "", ""), strict=True):
        dim.denotation = meaning
    options = api.SessionOptions()
    options.add_free_dimension_override_by_denotation("DATA_BATCH", 3)
    assert opened(api, graph.SerializeToString(), options).get_inputs()[0].shape == [3, "b", 5]
    if api is ours:
        options.add_free_dimension_override_by_denotation("DATA_CHANNEL", 2)
        with pytest.raises(ArgumentError, match=r"means 'DATA_CHANNEL'[\s\S]*DATA_BATCH"):
            opened(ours, graph.SerializeToString(), options)
        with pytest.raises(ArgumentError, match="is no size"):
            options.add_free_dimension_override_by_denotation("DATA_BATCH", -1)


def configured(said: str) -> bytes:
    told = product()
    told.metadata_props.add(key="ort_config", value=said)
    return bytes(told.SerializeToString())


def test_a_model_has_options_for_its_sessions(
    api: Any, stood_in: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = configured(
        '{"session_options": {"intra_op_num_threads": 1, "inter_op_num_threads": 5, "graph_optimization_level": 99}}'
    )
    monkeypatch.chdir(tmp_path)
    assert opened(api, content).get_session_options().intra_op_num_threads == 0
    monkeypatch.setenv("ORT_LOAD_CONFIG_FROM_MODEL", "1")
    said = opened(api, content).get_session_options()
    assert (said.intra_op_num_threads, said.inter_op_num_threads) == (1, 5)
    assert opened(api, CONTENT).get_session_options().intra_op_num_threads == 0


WRONG = ('{"intra_op_num_threads": -1}', '{"nothing": 1}', '{"execution_mode": 7}')


@pytest.mark.parametrize("said", ["{", "[]", "{}", *(f'{{"session_options": {each}}}' for each in WRONG)])
def test_options_of_a_model_are_checked_as_others(said: str) -> None:
    with pytest.raises(ArgumentError):
        ours.InferenceSession(configured(said), read_config_from_model=True)


def test_hints_of_memory_and_threads_are_overlooked_in_programs_of_others(stood_in: list[str]) -> None:
    place = ours.OrtMemoryInfo("Cpu", ours.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ours.OrtMemType.DEFAULT)
    ours.create_and_register_allocator(place, ours.OrtArenaCfg(8, 0, 4, 2))
    ours.create_and_register_allocator_v2("CPUExecutionProvider", place, {}, None)
    ours.enable_telemetry_events()
    ours.set_global_thread_pool_sizes(2, 3)
    assert [line.partition(" =")[0] for line in stood_in] == [
        "create_and_register_allocator",
        "create_and_register_allocator_v2",
        "enable_telemetry_events",
        "set_global_thread_pool_sizes: inter_op",
    ]


def test_arenas_are_described(api: Any) -> None:
    four, named = api.OrtArenaCfg(8, 0, 4, 2), api.OrtArenaCfg({"max_mem": 16, "max_power_of_two_extend_bytes": 17})
    assert (four.max_mem, four.arena_extend_strategy) == (8, 0)
    assert (four.initial_chunk_size_bytes, four.max_dead_bytes_per_chunk) == (4, 2)
    assert (named.max_mem, named.max_power_of_two_extend_bytes, named.arena_extend_strategy) == (16, 17, -1)
    for wrong in ((8,), (1, 2, 3, 4, 5), ({"size": 3},), ({"max_mem": "3"},)):
        with pytest.raises(ArgumentError if api is ours else Exception):
            api.OrtArenaCfg(*wrong)


def test_providers_are_normalized() -> None:
    normalize = check_and_normalize_provider_args
    assert normalize(None, None, ["a"]) == ([], [])
    assert normalize([("a", {1: 2}), "b"], None, ["a", "b"]) == (["a", "b"], [{"1": "2"}, {}])
    with pytest.warns(UserWarning, match="given twice"):
        assert normalize(["a", "a"], [{"x": 1}, {"y": 2}], ["a"]) == (["a"], [{"x": "1"}])
    with pytest.warns(UserWarning, match="c is not one of a"):
        assert normalize(["c"], None, ["a"]) == (["c"], [{}])
    wrong: list[tuple[Any, Any]] = [(3, None), ([3], None), (["a"], 3), (["a"], ["b"]), (["a", "b"], [{}])]
    for names, options in (*wrong, ([("a", {})], [{}])):
        with pytest.raises(ValueError, match=r"list|neither|options"):
            normalize(names, options, ["a", "b"])


def test_calls_of_the_extension_module(api: Any) -> None:
    session, fed = opened(api, CONTENT), api.OrtValue.ortvalue_from_numpy(W)
    made = session._sess.run_with_ort_values({"x": fed._get_c_value()}, ["y"], api.RunOptions())
    assert (made[0].numpy() == W * W).all()
    if api is not ours:
        return
    assert type(made) is ours.OrtValueVector
    place = DeviceByNumber(DeviceByNumber.cpu(), DeviceByNumber.default_memory(), 0)
    assert place.kind == "cpu"
    assert DeviceByNumber(DeviceByNumber.cuda(), 0, 1).kind == "gpu"
    given, room = ours.OrtValue.ortvalue_from_numpy(W, place), np.empty_like(W)
    binding = SessionIOBinding(session._sess)
    binding.bind_input("x", place, np.float32, W.shape, given.data_ptr())
    binding.bind_output("y", place, 1, room.shape, room.ctypes.data)
    session._sess.run_with_iobinding(binding, None)
    assert (room == W * W).all()
    binding.bind_input("x", W + 1)
    binding.bind_output("y", place)
    session.run_with_iobinding(binding)
    assert type(binding.get_outputs()) is ours.OrtValueVector
    assert (binding.get_outputs()[0].numpy() == W * (W + 1)).all()
    for texts in (TensorProto.STRING, np.dtype("U1"), np.dtype("S1"), np.dtype(object)):
        with pytest.raises(RuntimeError, match="Only binding non-string Tensors"):
            session.io_binding().bind_input("x", "cpu", 0, texts, [1], room.ctypes.data)


def test_truth_values_travel_as_bytes() -> None:
    truth = ours.OrtValue.ortvalue_from_numpy(np.array([True, False]))
    assert ours.OrtValue.from_dlpack(truth).numpy().dtype == bool
    raw = np.array([1, 0], np.uint8).__dlpack__()
    assert is_dlpack_uint8_tensor(raw)
    assert not is_dlpack_uint8_tensor(truth.to_dlpack())
    assert ours.OrtValue.from_dlpack(raw, True).numpy().tolist() == [True, False]
    with pytest.raises(ArgumentError):
        is_dlpack_uint8_tensor(3)
    for shape in ((0,), (1, 8, 0, 128)):
        assert ours.OrtValue.from_dlpack(np.zeros(shape, np.float32).__dlpack__()).shape() == [*shape]
    assert truth._ortvalue is truth
    target = ours.OrtValue.ortvalue_from_numpy(np.zeros(2, bool))
    target.update_inplace(truth)
    assert target.numpy().tolist() == [True, False]


def test_the_backend_of_onnx(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(CONTENT)
    for source in (str(path), CONTENT, product(), ours.InferenceSession(CONTENT)):
        made = OnnxRuntimeBackend.prepare(source, "CPU", intra_op_num_threads=1, nobodys="name")
        assert (made.run(W, logid="mine", nobodys="name")[0] == W * W).all()
        assert (OnnxRuntimeBackend.run_model(made, [W])[0] == W * W).all()
    written: list[dict[str, Any]] = [{"optimized_model_filepath": str(tmp_path / "x")}, {"enable_profiling": True}]
    for options in written:
        with pytest.raises(RuntimeError, match="not permitted"):
            OnnxRuntimeBackend.prepare(CONTENT, **options)
    with pytest.raises(RuntimeError, match="not permitted"):
        OnnxRuntimeBackend.run_model(CONTENT, [W], terminate=True)
    with pytest.raises(RuntimeError, match="there is no device 'TPU'"):
        OnnxRuntimeBackend.prepare(CONTENT, "TPU")
    with pytest.raises(RuntimeError, match="there are 1 inputs"):
        OnnxRuntimeBackend.run_model(CONTENT, [])
    assert OnnxRuntimeBackend.is_compatible(CONTENT)
    assert not OnnxRuntimeBackend.supports_device("TPU")
