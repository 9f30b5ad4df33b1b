"""Providers that are chosen by devices, by policies and by functions, and questions whether compiled models fit; on
ours, and on ONNX Runtime where it is here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest

from mezzo import onnxruntime as ours
from mezzo.ops.errors import ArgumentError
from mezzo.tools.ort import process
from mezzo.tools.ort.providers import CPU, CUDA
from mezzo.tools.ort.selection import selected

from .api_calls import MODEL, X
from .peers import peer


@pytest.fixture(params=["ours", "theirs"])
def api(request: pytest.FixtureRequest) -> Any:
    return ours if request.param == "ours" else peer("onnxruntime")


@pytest.fixture
def with_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "get_available_providers", lambda: [CUDA, CPU])


def saying(api: Any, call: str, *given: Any) -> Any:
    options = api.SessionOptions()
    getattr(options, call)(*given)
    return options


def test_a_device_is_chosen(api: Any) -> None:
    (device,) = (d for d in api.get_ep_devices() if d.ep_name == CPU)
    options = saying(api, "add_provider_for_devices", [device], {})
    assert options.has_providers()
    session = api.InferenceSession(MODEL, options)
    assert session.get_providers() == [CPU]
    assert len(session.run(None, {"x": X})) == 3


@pytest.mark.parametrize("name", list(ours.OrtExecutionProviderDevicePolicy.__members__))
def test_policies_choose_what_is_here(name: str, api: Any) -> None:
    policy = api.OrtExecutionProviderDevicePolicy.__members__[name]
    options = saying(api, "set_provider_selection_policy", policy)
    assert options.has_providers()
    assert api.InferenceSession(MODEL, options).get_providers()[-1] == CPU


def test_a_function_chooses(api: Any) -> None:
    asked: list[Any] = []

    def choose(*given: Any) -> Any:
        asked.append(given)
        return [given[0][-1]]

    options = saying(api, "set_provider_selection_policy_delegate", choose)
    assert not asked
    assert api.InferenceSession(MODEL, options).get_providers() == [CPU]
    ((devices, model, more, most),) = asked
    assert [d.ep_name for d in devices][-1] == CPU
    want = {"who": "me", "graph_name": "told", "domain": "of tests", "doc_string": "of the model", "model_version": "7"}
    assert want.items() <= model.items()
    assert (more, most) == ({}, 8)


def test_a_function_that_chooses_nothing_is_an_error(api: Any) -> None:
    def broken(*_: Any) -> Any:
        raise ValueError("no taste")

    failed = api.capi.onnxruntime_pybind11_state.Fail
    for choose, words in ((broken, "no taste"), *((lambda *_, f=found: f, "delegate") for found in ([], 3, [3]))):
        options = saying(api, "set_provider_selection_policy_delegate", choose)
        with pytest.raises(failed, match=words):
            api.InferenceSession(MODEL, options)


def test_providers_that_are_given_go_before_a_choice(api: Any) -> None:
    options = saying(api, "set_provider_selection_policy_delegate", lambda *_: [])
    with pytest.warns(UserWarning, match="providers"):
        assert api.InferenceSession(MODEL, options, providers=[CPU]).get_providers() == [CPU]


def test_what_is_no_choice_is_refused(api: Any) -> None:
    options, (*_, device) = api.SessionOptions(), api.get_ep_devices()
    for call, given in (
        ("add_provider_for_devices", ([3], {})),
        ("set_provider_selection_policy", (3,)),
        ("set_provider_selection_policy_delegate", (3,)),
    ):
        with pytest.raises(TypeError):
            getattr(options, call)(*given)
    assert not options.has_providers()
    with pytest.raises(api.capi.onnxruntime_pybind11_state.InvalidArgument):
        options.add_provider_for_devices([], {})
    if api is ours:  # ONNX Runtime says so when the session is made, and passes over options of the CPU's
        with pytest.raises(ours.InvalidArgument, match="2 devices"):
            options.add_provider_for_devices([device] * 2, {})
        with pytest.raises(ArgumentError, match="'what' would be ignored"):
            ours.InferenceSession(MODEL, saying(ours, "add_provider_for_devices", [device], {"what": 1}))


def test_a_snapshot_has_what_was_chosen() -> None:
    policy = ours.OrtExecutionProviderDevicePolicy.PREFER_CPU
    options = ours.InferenceSession(MODEL, saying(ours, "set_provider_selection_policy", policy)).get_session_options()
    assert options.has_providers()


@pytest.mark.parametrize("name", list(ours.OrtExecutionProviderDevicePolicy.__members__))
@pytest.mark.usefixtures("with_gpu")
def test_a_gpu_is_a_device_that_policies_prefer(name: str) -> None:
    gpu, processor = ours.get_ep_devices()
    assert (gpu.ep_name, gpu.device.type, processor.ep_name) == (CUDA, ours.OrtHardwareDeviceType.GPU, CPU)
    found = selected(ours.OrtExecutionProviderDevicePolicy[name], MODEL)
    first = [(CUDA, {"device_id": "0"})] if name in ("PREFER_GPU", "MAX_PERFORMANCE") else []
    assert found == [*first, (CPU, {})]


def state(api: Any) -> Any:
    return api.capi.onnxruntime_pybind11_state


def test_no_model_is_compiled_for_a_provider(api: Any) -> None:
    asked = state(api)
    kinds, devices = asked.OrtCompiledModelCompatibility, api.get_ep_devices()[-1:]
    assert asked.get_model_compatibility_for_ep_devices(devices, "any") == kinds.EP_NOT_APPLICABLE
    with pytest.raises(RuntimeError):
        asked.get_model_compatibility_for_ep_devices([], "any")
    with pytest.raises(TypeError):
        asked.get_model_compatibility_for_ep_devices(devices, None)


def test_a_model_says_what_it_was_compiled_for(api: Any, tmp_path: Path) -> None:
    asked, path = state(api), tmp_path / "model.onnx"
    made = onnx.load_model_from_string(MODEL)
    made.metadata_props.add(key="ep_compatibility_info.Some", value="of 2026")
    path.write_bytes(made.SerializeToString())
    of_bytes, of_file = asked.get_compatibility_info_from_model_bytes, asked.get_compatibility_info_from_model
    assert of_bytes(path.read_bytes(), "Some") == of_file(str(path), "Some") == "of 2026"
    assert of_bytes(MODEL, "Some") is None
    for source, provider in ((b"no model", "Some"), (b"", "Some"), (MODEL, "")):
        with pytest.raises(RuntimeError):
            of_bytes(source, provider)
    for name in ("nowhere.onnx", ""):
        with pytest.raises(RuntimeError):
            of_file(name, "Some")


def test_the_processor_fits_its_provider(api: Any) -> None:
    asked = state(api)
    (processor,) = (d for d in asked.get_hardware_devices() if int(d.type) == 0)
    details = asked.get_hardware_device_ep_incompatibility_details(CPU, processor)
    assert details == {"reasons_bitmask": 0, "notes": None, "error_code": 0}
    with pytest.raises(asked.InvalidArgument):
        asked.get_hardware_device_ep_incompatibility_details("Nope", processor)
    for name in ("OrtCompiledModelCompatibility", "OrtDeviceEpIncompatibilityReason"):
        mine, theirs = (getattr(state(m), name).__members__ for m in (ours, api))
        assert {n: int(v) for n, v in mine.items()} == {n: int(v) for n, v in theirs.items()}


@pytest.mark.usefixtures("with_gpu")
def test_a_gpu_does_not_fit_the_processors_provider() -> None:
    gpu, _ = state(ours).get_hardware_devices()
    assert state(ours).get_hardware_device_ep_incompatibility_details(CPU, gpu)["reasons_bitmask"] == 2
