"""What ONNX Runtime's options, bindings and functions do on our sessions."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import mezzo as mz
from mezzo import onnxruntime as ours
from mezzo.models.digits import digits_model, held_out
from mezzo.ops.errors import ArgumentError
from mezzo.tools.ort.log import Default
from mezzo.tools.ort.process import Process

from .api_calls import MODEL, X, bound, broken, nodes, same
from .models import model, node, referee, value
from .processor import native_bfloat16


@pytest.fixture(autouse=True)
def unchanged() -> Iterator[None]:
    """Settings of the process are those from before."""
    before = (Default.severity, Default.verbosity, Default.callback, Process.seed, Process.threads)
    yield
    Default.severity, Default.verbosity, Default.callback, Process.seed, Process.threads = before


def test_answers_are_those_of_the_session() -> None:
    session = ours.InferenceSession(MODEL)
    y, z, _ = session.run(None, {"x": X})
    assert (y == np.maximum(X + np.array([1, -2, 3], np.float32), 0)).all()
    assert z.shape == ()
    assert session.get_provider_options() == {"CPUExecutionProvider": {}}
    assert session.get_modelmeta().custom_metadata_map == {"who": "me"}


def test_runs_take_the_short_way(monkeypatch: pytest.MonkeyPatch) -> None:
    session = ours.InferenceSession(digits_model())
    image, logits = held_out().inputs[:2], np.empty((2, 10), np.float32)
    (want,) = session.run(None, {"image": image})
    binding = session.io_binding()
    binding.bind_cpu_input("image", image)
    binding.bind_ortvalue_output("logits", ours.OrtValue.ortvalue_from_numpy(logits))

    def checked(*_: Any) -> Any:
        raise AssertionError("the run was checked again")

    monkeypatch.setattr(session.session, "_unguarded", checked)
    for names in (None, [], ["logits"]):
        assert (session.run(names, {"image": image})[0] == want).all()
    session.run_with_iobinding(binding)
    assert (logits == want).all()


def test_errors_have_both_names() -> None:
    session, given = ours.InferenceSession(MODEL), ours.RunOptions()
    with pytest.raises(ours.InvalidArgument, match="is float64, expected float32") as caught:
        session.run(None, {"x": X.astype(np.float64)})
    assert isinstance(caught.value.__cause__, mz.InputError)
    given.terminate = True
    for run in (lambda: session.run(None, {"x": X}, given), lambda: bound_run(session, given)):
        with pytest.raises(ours.Fail) as ended:
            run()
        assert isinstance(ended.value, mz.Cancelled)
    with pytest.raises(ours.NoSuchFile, match=r"/nowhere/m\.onnx: there is no such file"):
        ours.InferenceSession("/nowhere/m.onnx")
    with pytest.raises(ours.InvalidGraph, match="nothing"):
        ours.InferenceSession(broken(reads="nothing"))
    with pytest.raises(mz.UnsupportedModel) as unsupported:
        ours.InferenceSession(broken(op="Nope"))
    assert isinstance(unsupported.value, (ours.NotImplemented, ours.Fail))
    indices = helper.make_graph(
        [helper.make_node("Gather", ["x", "i"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", 1, [3]), helper.make_tensor_value_info("i", 7, [1])],
        [helper.make_tensor_value_info("y", 1, [1])],
    )
    gather = helper.make_model(indices, opset_imports=[helper.make_opsetid("", 18)], ir_version=8).SerializeToString()
    with pytest.raises(ours.RuntimeException) as outside:
        ours.InferenceSession(gather).run(None, {"x": np.zeros(3, np.float32), "i": np.array([7])})
    assert isinstance(outside.value, mz.OutOfRange)
    assert isinstance(outside.value, ours.InvalidArgument), "as ONNX Runtime calls it"


def bound_run(session: Any, given: Any) -> None:
    session.run_with_iobinding(bound(ours, session, "y"), given)


def test_a_result_of_a_size_that_data_decide_is_bound(tmp_path: Path) -> None:
    graph = helper.make_graph(
        [helper.make_node("NonZero", ["x"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", 1, [4])],
        [helper.make_tensor_value_info("y", 7, [1, "found"])],
    )
    content = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8).SerializeToString()
    session, x = ours.InferenceSession(content), np.array([1, 0, 2, 0], np.float32)
    binding, room = session.io_binding(), ours.OrtValue.ortvalue_from_shape_and_type([1, 2], np.int64)
    binding.bind_cpu_input("x", x)
    binding.bind_ortvalue_output("y", room)
    for _ in range(3):
        session.run_with_iobinding(binding)
        assert room.numpy().tolist() == [[0, 2]]
        assert binding.get_outputs()[0] is room
        room.numpy()[...] = 9
    x[1] = 5
    with pytest.raises(ours.InvalidArgument, match=r"the result is int64\[1,3\]"):
        session.run_with_iobinding(binding)


def test_external_data_of_bytes_are_in_the_folder_of_an_entry(tmp_path: Path) -> None:
    entry, weight = "session.model_external_initializers_file_folder_path", np.arange(6, dtype=np.float32).reshape(3, 2)
    product = model(
        [node("MatMul", "x w", "y")], [value("x", "n", 3)], [value("y", "n", 2)], initializers={"w": weight}
    )
    onnx.save(product, tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    content, x = (tmp_path / "m.onnx").read_bytes(), np.eye(3, dtype=np.float32)

    def answer(api: Any, source: Any, folder: Path) -> Any:
        options = api.SessionOptions()
        options.add_session_config_entry(entry, str(folder))
        return api.InferenceSession(source, options, providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]

    assert (answer(ours, content, tmp_path) == weight).all()
    with pytest.raises(ours.Fail, match="not given as a path"):
        ours.InferenceSession(content)
    with pytest.raises(ArgumentError, match="would be ignored"):
        answer(ours, content, tmp_path / "nowhere")
    with pytest.raises(ArgumentError, match="would be ignored"):
        answer(ours, tmp_path / "m.onnx", tmp_path)
    (tmp_path / "other").mkdir()
    with pytest.raises(ours.Fail, match=r"m\.data"):
        answer(ours, content, tmp_path / "other")
    assert (answer(referee(), content, tmp_path) == weight).all()


@native_bfloat16
def test_a_precision_is_an_entry() -> None:
    given = ours.SessionOptions()
    given.add_session_config_entry("mezzo.precision", "bf16-math")
    assert ours.InferenceSession(digits_model(), given).session._options.precision == "bf16-math"


def test_entries_are_done_or_refused() -> None:
    given = ours.SessionOptions()
    given.add_session_config_entry("mezzo.precision", "fp32")
    given.add_session_config_entry("mezzo.max_memory", str(1 << 30))
    given.add_session_config_entry("mezzo.instances", "1")
    given.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    made = ours.InferenceSession(digits_model(), given)
    assert made.session._options.precision == "fp32"
    assert made.session._arenas.most == 1
    made.run(None, {"image": held_out().inputs[:1]})
    found = [(s.ep_name, len(s.get_nodes())) for s in made.get_provider_graph_assignment_info()]
    assert found == [("CPUExecutionProvider", 1)] * len(made.session.graph.nodes)
    for entry in (("session.intra_op.allow_spinning", "0"), ("mezzo.max_memory", "much"), ("what", "ever")):
        with pytest.raises(ArgumentError, match="would be ignored") as caught:
            given.add_session_config_entry(*entry)
        assert caught.value.hint
    small = ours.SessionOptions()
    small.add_session_config_entry("mezzo.max_memory", "64")
    with pytest.raises(mz.BudgetError):
        ours.InferenceSession(digits_model(), small).run(None, {"image": held_out().inputs[:64]})


def test_memory_is_given_back_where_it_is_asked_for() -> None:
    feeds = {"image": held_out().inputs[:8]}
    kept, given = ours.InferenceSession(digits_model()), ours.SessionOptions()
    given.enable_cpu_mem_arena = False
    freed = ours.InferenceSession(digits_model(), given)
    assert (kept.run(None, feeds)[0] == freed.run(None, feeds)[0]).all()
    assert kept.session.stats().arena_bytes > 0 == freed.session.stats().arena_bytes
    shrinking = ours.RunOptions()
    shrinking.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    kept.run(None, feeds, shrinking)
    assert kept.session.stats().arena_bytes == 0


def test_profiles_read_like_onnx_runtimes(tmp_path: Path) -> None:
    """What a script finds in one, it finds in the other: operators, their types and sizes, runs."""
    content = digits_model().read_bytes()

    def profiled(api: Any) -> list[dict[str, Any]]:
        options = api.SessionOptions()
        options.enable_profiling, options.profile_file_prefix = True, str(tmp_path / api.__name__)
        options.graph_optimization_level = api.GraphOptimizationLevel.ORT_DISABLE_ALL  # operators as they stand
        session = api.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        session.run(None, {"image": held_out().inputs[:2]})
        made: list[dict[str, Any]] = json.loads(Path(session.end_profiling()).read_text())
        return made

    def nodes(events: list[dict[str, Any]]) -> dict[str, Any]:
        alike = ("op_name", "provider", "input_type_shape", "output_type_shape", "activation_size", "output_size")
        found = {e["name"]: [e["args"][key] for key in alike] for e in events if e["cat"] == "Node"}
        return {name: about for name, about in found.items() if about[0] != "Gemm"}  # whose weight it packs

    mine, theirs = profiled(ours), profiled(referee())
    assert {*mine[0]} == {*theirs[0]}
    assert {e["ph"] for e in mine} == {e["ph"] for e in theirs} == {"X"}
    assert {e["name"] for e in mine if e["cat"] == "Session"} <= {e["name"] for e in theirs if e["cat"] == "Session"}
    assert nodes(mine) == nodes(theirs) != {}


def test_names_of_numbers_and_optimisers_by_name() -> None:
    assert str(ours.ExecutionMode.ORT_PARALLEL) == "ExecutionMode.ORT_PARALLEL"
    assert f"{ours.SessionOptions().graph_optimization_level}" == "GraphOptimizationLevel.ORT_ENABLE_ALL"
    ours.InferenceSession(digits_model(), disabled_optimizers=[], read_config_from_model=0)
    with pytest.raises(ValueError, match="ConstantFolding would be ignored"):
        ours.InferenceSession(digits_model(), disabled_optimizers=["ConstantFolding"])
    ours.InferenceSession(digits_model(), read_config_from_model=True)


def test_profiles_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = ours.SessionOptions()
    given.enable_profiling, given.profile_file_prefix = True, str(tmp_path / "told")
    before = time.monotonic_ns()
    session = ours.InferenceSession(digits_model(), given)
    assert before <= session.get_profiling_start_time_ns() <= time.monotonic_ns()
    for _ in range(2):
        session.run(None, {"image": held_out().inputs[:1]})
    path = session.end_profiling()
    first, *lines, last = Path(path).read_text().splitlines()
    assert (first, last) == ("[", "]")
    events = [json.loads(line.removesuffix(",")) for line in lines]
    assert events == json.loads(Path(path).read_text())
    assert all(e["ph"] == "X" and {"pid", "tid", "dur", "ts", "name", "args"} <= e.keys() for e in events)
    steps = [e for e in events if e["cat"] == "Node"]
    assert len(steps) == 2 * len(session.session.program.steps)
    assert [e["name"] for e in events if e["cat"] == "Session"] == ["session_initialization", "model_run", "model_run"]
    assert any("digits.onnx: node" in e["args"]["where"] and e["args"]["kernel"] for e in steps)
    assert session.end_profiling() == ""
    monkeypatch.setattr(session, "_watch", None)  # who looks on looks no more
    session.run(None, {"image": held_out().inputs[:1]})
    assert [*tmp_path.iterdir()] == [Path(path)]


def test_messages_have_a_severity(capsys: pytest.CaptureFixture[str]) -> None:
    got: list[tuple[int, str, str, str, str]] = []
    ours.set_default_logger_callback(lambda *told: got.append(told), 1)
    given = ours.SessionOptions()
    given.logid = "mine"
    session = ours.InferenceSession(digits_model(), given)
    assert [(s, category, logid) for s, category, logid, _, _ in got] == [(1, "mezzo", "mine")]
    for count in (1, 1, 2):
        session.run(None, {"image": held_out().inputs[:count]})
    assert ["planned for new sizes" in message for *_, message in got[1:]] == [True, True]
    loud, quiet = ours.RunOptions(), ours.RunOptions()
    loud.log_severity_level, quiet.log_severity_level, loud.logid = 0, 4, "this one"
    session.run(None, {"image": held_out().inputs[:2]}, loud)
    assert (got[-1][0], got[-1][2]) == (0, "this one")
    session.run(None, {"image": held_out().inputs[:3]}, quiet)
    assert len(got) == 4
    ours.set_default_logger_callback(None)
    ours.InferenceSession(digits_model())
    assert re.search(r"\[I:mezzo:, InferenceSession\] .* loaded in", capsys.readouterr().err)
    ours.set_default_logger_severity(2)
    ours.InferenceSession(digits_model())
    assert not capsys.readouterr().err


def test_no_passes_are_no_fused_steps() -> None:
    given = ours.SessionOptions()
    given.graph_optimization_level = ours.GraphOptimizationLevel.ORT_DISABLE_ALL
    plain, best = ours.InferenceSession(digits_model(), given), ours.InferenceSession(digits_model())
    feeds = {"image": held_out().inputs[:4]}
    np.testing.assert_allclose(plain.run(None, feeds)[0], best.run(None, feeds)[0], 1e-4, 1e-4)
    assert not [s.choice.kernel for s in plain.session.program.steps if s.choice.implementation]
    assert len(plain.session.program.steps) > len(best.session.program.steps)
    with pytest.raises(ArgumentError, match="ORT_DISABLE_ALL none"):
        given.graph_optimization_level = ours.GraphOptimizationLevel.ORT_ENABLE_BASIC


def test_the_model_after_the_passes_is_written(tmp_path: Path) -> None:
    given, path = ours.SessionOptions(), tmp_path / "optimised.onnx"
    given.optimized_model_filepath = str(path)
    first = ours.InferenceSession(MODEL, given)
    again = ours.InferenceSession(path)
    assert nodes(again.get_outputs())[0][0] == "y"
    assert same(again.run(None, {"x": X}), first.run(None, {"x": X}))


def test_threads_and_seeds_of_the_process() -> None:
    graph = helper.make_graph(
        [helper.make_node("RandomNormal", [], ["y"], shape=[4])], "g", [], [helper.make_tensor_value_info("y", 1, [4])]
    )
    content = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8).SerializeToString()
    drawn = []
    for seed in (3, 3, 4):
        ours.set_seed(seed)
        drawn.append(ours.InferenceSession(content).run(None, {})[0])
    assert (drawn[0] == drawn[1]).all()
    assert (drawn[0] != drawn[2]).any()
    ours.set_global_thread_pool_sizes(1)
    given = ours.SessionOptions()
    given.use_per_session_threads = False
    assert ours.InferenceSession(content, given).session._options.threads == 1


def test_options_of_a_session_are_those_it_was_made_with() -> None:
    given = ours.SessionOptions()
    given.logid = "before"
    session = ours.InferenceSession(MODEL, given)
    given.logid = session.get_session_options().logid + " and after"
    session.get_session_options().logid = "of a copy"
    assert session.get_session_options().logid == "before"
    assert "logid='before'" in repr(session.get_session_options())
    given.add_provider("CPUExecutionProvider", {"arena_extend_strategy": "kSameAsRequested"})
    with pytest.warns(UserWarning, match="SessionOptions have providers too"):
        ours.InferenceSession(MODEL, given, ["CPUExecutionProvider"])
    given.add_provider("Nope", {})
    with pytest.raises(ArgumentError, match="Unknown Provider Type: Nope"):
        ours.InferenceSession(MODEL, given)


def test_a_session_whose_new_providers_are_refused_stays() -> None:
    session = ours.InferenceSession(MODEL)
    want = session.run(None, {"x": X})
    with pytest.raises(ArgumentError, match="Unknown Provider Type"):
        session.set_providers(["Nope"])
    assert same(session.run(None, {"x": X}), want)
    assert session.get_providers() == ["CPUExecutionProvider"]


def test_what_a_file_says_of_itself(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(MODEL)
    session = ours.InferenceSession(path)
    want = ours.ModelMetadata({"who": "me"}, "of the model", "of tests", "of the graph", "told", "a test", 7)
    assert session.get_modelmeta() == want == ours.InferenceSession(MODEL).get_modelmeta()
    path.unlink()  # what the graph knows is left
    left = session.get_modelmeta()
    assert (left.graph_name, left.domain, left.version) == ("told", "of tests", 7)
    mz.load(MODEL).save(tmp_path / "model.mezzo")
    assert ours.InferenceSession(tmp_path / "model.mezzo").get_modelmeta() == left
    for end in range(0, len(MODEL), 7):  # a part of a file is no file
        assert ours.InferenceSession(MODEL).get_modelmeta() == want
        with pytest.raises(mz.MezzoError):
            ours.InferenceSession(MODEL[:end] + b"\xff")


def test_operators_written_in_python() -> None:
    from mezzo.ops import Sample
    from mezzo.ops.types import f32

    @mz.pointwise("Sevenfold", domain="test.onnxruntime", since=1, samples=[Sample([f32(2)])])
    def sevenfold(e: Any, X: Any) -> Any:
        return X * 7.0

    graph = helper.make_graph(
        [helper.make_node("Sevenfold", ["x"], ["y"], domain="test.onnxruntime")],
        "g",
        [helper.make_tensor_value_info("x", 1, ["n"])],
        [helper.make_tensor_value_info("y", 1, ["n"])],
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("test.onnxruntime", 1)]
    content = helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
    (y,) = ours.InferenceSession(content).run(None, {"x": np.array([1, 2], np.float32)})
    assert y.tolist() == [7, 14]


def test_texts_are_texts() -> None:
    """An array of objects: what is no text was handed on as it was, and equal to no text of the model."""
    strings = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", 8, ["n"])],
        [helper.make_tensor_value_info("y", 8, ["n"])],
    )
    model = helper.make_model(strings, opset_imports=[helper.make_opsetid("", 18)], ir_version=8).SerializeToString()
    fed = {"x": np.array(["a", 1, None, "é".encode()], object)}
    assert ours.InferenceSession(model).run(None, fed)[0].tolist() == ["a", "1", "None", "é"], "as ONNX Runtime does"
    assert mz.load(model).run({"x": fed["x"][[0, 3]]})["y"].tolist() == ["a", "é"]
    with pytest.raises(mz.InputError, match="element 1 is 1, a int and no text"):
        mz.load(model).run(fed)
