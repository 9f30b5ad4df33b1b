"""What is fed by ONNX Runtime's calls: scalars, optional inputs, maps, sizes of one name, and names of outputs; on
ours, and on ONNX Runtime where it is here."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from mezzo import onnxruntime as ours
from mezzo.ops.errors import ArgumentError, InputError
from mezzo.runtime.execution.session import Session
from mezzo.tools.ort.hints import Overlooking

from .models import model, node, value
from .peers import peer

LEFT, RIGHT = np.ones(2, np.float32), np.arange(3, dtype=np.float32)
# each input says that it has n elements
TWO_SIZES = model(
    [node("Concat", "x z", "all", axis=0), node("Neg", "all", "y")],
    [value("x", "n"), value("z", "n")],
    [value("y", None)],
).SerializeToString()


@pytest.fixture(params=["ours", "theirs"])
def api(request: pytest.FixtureRequest) -> Any:
    return ours if request.param == "ours" else peer("onnxruntime")


def looking_up(kind: int, **words: Any) -> bytes:
    """A model that makes a vector of a dict."""
    single = helper.make_tensor_type_proto(TensorProto.FLOAT, None)
    given = helper.make_value_info("d", helper.make_map_type_proto(kind, single))
    made = node("DictVectorizer", "d", "y", domain="ai.onnx.ml", **words)
    return bytes(model([made], [given], [value("y", 1, 2)], opset=9, domains={"ai.onnx.ml": 1}).SerializeToString())


def optional(op: str, *result: Any) -> bytes:
    """A model of one operator, whose input may have no value."""
    held = helper.make_optional_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, [2]))
    given = helper.make_value_info("x", held)
    results = list(result) or [helper.make_value_info("y", held)]
    return bytes(model([node(op, "x", "y")], [given], results).SerializeToString())


def test_one_element_is_fed_to_a_scalar(api: Any) -> None:
    """As a rate of samples is, which programs give as an array of one."""
    session = api.InferenceSession(
        model([node("Mul", "x rate", "y")], [value("x", "n"), value("rate")], [value("y", "n")]).SerializeToString()
    )
    for rate in (np.array(3, np.float32), np.array([3], np.float32), [3.0]):
        (result,) = session.run(None, {"x": RIGHT, "rate": rate})
        assert (result == 3 * RIGHT).all()
        assert result.shape == (3,)


def test_several_elements_are_no_scalar() -> None:
    session = ours.InferenceSession(model([node("Neg", "x", "y")], [value("x")], [value("y")]).SerializeToString())
    with pytest.raises(ours.InvalidArgument, match="expected rank 0"):
        session.run(None, {"x": RIGHT})


def test_an_optional_input_may_be_left_out(api: Any) -> None:
    session = api.InferenceSession(optional("OptionalHasElement", value("y", kind=TensorProto.BOOL)))
    assert not session.run(None, {})[0]
    assert session.run(None, {"x": LEFT})[0]


def test_an_optional_tensor_has_a_shape(api: Any) -> None:
    (given,) = api.InferenceSession(optional("Identity")).get_inputs()
    assert (given.type, given.shape) == ("optional(tensor(float))", [2])


def test_sizes_of_one_name_may_differ(api: Any, capsys: pytest.CaptureFixture[str]) -> None:
    session = api.InferenceSession(TWO_SIZES)
    want = -np.concatenate([LEFT, RIGHT])
    for x, z in ((LEFT, LEFT), (LEFT, RIGHT), (RIGHT, LEFT), (LEFT, LEFT)):
        (result,) = session.run(None, {"x": x, "z": z})
        assert (result == -np.concatenate([x, z])).all()
    assert [port.shape for port in session.get_inputs()] == [["n"], ["n"]]
    binding = session.io_binding()
    binding.bind_cpu_input("x", LEFT)
    binding.bind_cpu_input("z", RIGHT)
    binding.bind_output("y")
    session.run_with_iobinding(binding)
    assert (binding.copy_outputs_to_cpu()[0] == want).all()
    if api is ours:
        told = capsys.readouterr().err
        assert "the dim 'n' is 2 in the input 'x' and 3 in 'z': from now on each has a size of its own" in told
        assert told.count("\n") == 1


def test_what_does_not_fit_for_another_reason_too_is_still_an_error() -> None:
    session = ours.InferenceSession(TWO_SIZES)
    with pytest.raises(ours.InvalidArgument, match="'z' is float64, expected float32"):
        session.run(None, {"x": LEFT, "z": RIGHT.astype(np.float64)})
    adding = model([node("Add", "x z", "y")], [value("x", "n"), value("z", "n")], [value("y", None)])
    with pytest.raises(ours.Fail, match="broadcast"):
        ours.InferenceSession(adding.SerializeToString()).run(None, {"x": LEFT, "z": RIGHT})


@pytest.mark.parametrize(
    ("kind", "words", "fed", "wrong"),
    [
        (TensorProto.STRING, {"string_vocabulary": ["a", "b"]}, {"b": 2.0}, {3: 2.0}),
        (TensorProto.INT64, {"int64_vocabulary": [4, 5]}, {np.int64(5): np.float64(2)}, {5: 2.0, "4": 1.0}),
        (TensorProto.INT64, {"int64_vocabulary": [4, 5]}, {5: np.array(2)}, {5.0: 2.0}),
        (TensorProto.INT64, {"int64_vocabulary": [4, 5]}, {5: 2}, {5: "2"}),
    ],
)
def test_keys_and_values_of_maps_are_looked_at(kind: int, words: Any, fed: Any, wrong: Any, api: Any) -> None:
    """What is looked up under a key of another kind is not there, and zero would be the answer."""
    session = api.InferenceSession(looking_up(kind, **words))
    (result,) = session.run(None, {"d": fed})
    assert (result.tolist(), result.dtype) == ([[0, 2]], np.float32)
    with pytest.raises((RuntimeError, api.capi.onnxruntime_pybind11_state.InvalidArgument)):
        session.run(None, {"d": wrong})


def test_keys_of_a_map_are_looked_at_by_every_session() -> None:
    session = Session(ours.InferenceSession(looking_up(TensorProto.INT64, int64_vocabulary=[4, 5])).session.graph)
    with pytest.raises(InputError, match="its key '5' is a str, and the model looks up int64"):
        session({"5": 1.0})


def test_an_unexpected_key_is_said_in_the_words_of_onnx_runtime(api: Any) -> None:
    session = api.InferenceSession(looking_up(TensorProto.INT64, int64_vocabulary=[4, 5]))
    words = "Unexpected key type  <class 'str'>, it cannot be linked to C type int64_t"
    with pytest.raises(RuntimeError, match=words):
        session.run(None, {"d": {4: 1.0, "a": 2.0}})


def test_outputs_are_named_by_any_iterable(api: Any) -> None:
    session = api.InferenceSession(TWO_SIZES)
    for names in (["y"], ("y",), (n for n in ["y"])):
        assert len(session.run(names, {"x": LEFT, "z": LEFT})) == 1


def test_a_name_is_no_list_of_names() -> None:
    with pytest.raises(TypeError, match="'y' is no list of outputs"):
        ours.InferenceSession(TWO_SIZES).run("y", {"x": LEFT, "z": LEFT})


def test_numbers_of_numpy_are_numbers(api: Any) -> None:
    options = api.SessionOptions()
    options.intra_op_num_threads = np.int64(2)
    options.add_free_dimension_override_by_name("n", np.int32(2))
    session = api.InferenceSession(TWO_SIZES, options)
    assert session.get_session_options().intra_op_num_threads == 2
    assert session.get_inputs()[0].shape == [2]


def test_a_value_is_updated_by_arrays(api: Any) -> None:
    with pytest.raises(TypeError):
        api.OrtValue.ortvalue_from_numpy(LEFT.copy()).update_inplace([1.0, 2.0])


def test_a_session_stays_in_its_process(api: Any) -> None:
    session = api.InferenceSession(TWO_SIZES)
    assert len(copy.copy(session).run(None, {"x": LEFT, "z": LEFT})) == 1
    with pytest.raises(TypeError):  # by what pickles it, too
        copy.deepcopy(session)


def test_names_that_packages_read(api: Any) -> None:
    session = api.InferenceSession(TWO_SIZES)
    assert session._model_bytes == TWO_SIZES
    assert session._sess_options.intra_op_num_threads == 0
    assert [port.name for port in session._inputs_meta + session._outputs_meta] == ["x", "z", "y"]
    assert session._model_meta.graph_name == session.get_modelmeta().graph_name


def test_more_hints_are_overlooked_in_programs_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(Overlooking, "told", set())
    run, session = ours.RunOptions(), ours.SessionOptions()
    for options, call, key in (
        (run, "add_run_config_entry", "gpu_graph_id"),
        (run, "add_run_config_entry", "disable_synchronize_execution_providers"),
        (session, "add_session_config_entry", "session.set_denormal_as_zero"),
        (session, "add_session_config_entry", "session.intra_op.spin_duration_us"),
    ):
        with pytest.raises(ArgumentError, match="would be ignored"):
            getattr(options, call)(key, "1")
        with monkeypatch.context() as patched:
            patched.setattr(Overlooking, "tell", told.append)
            getattr(options, call)(key, "1")
        assert key in told[-1]


@pytest.mark.parametrize(
    "key", ["session.disable_quant_qdq", "optimization.enable_gelu_approximation", "ep.context_enable"]
)
def test_entries_may_say_what_is_so(key: str) -> None:
    options = ours.SessionOptions()
    options.add_session_config_entry(key, "0")
    with pytest.raises(ArgumentError, match=key):
        options.add_session_config_entry(key, "1")
