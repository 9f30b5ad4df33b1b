"""Providers and options of InferenceSession: what is accepted is done, all else is refused; beside ONNX Runtime."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any

import numpy as np
import pytest

import mezzo as mz
from mezzo.exporters import to_onnx
from mezzo.models.digits import digits_model, held_out
from mezzo.ops import Body, DType, Tensor
from mezzo.ops.errors import ArgumentError
from mezzo.ops.types import f32, i64
from mezzo.runtime.ir.graph import GraphBuilder
from mezzo.tools.ort.options import RunOptions, SessionOptions
from mezzo.tools.ort.providers import CPU, CUDA, KNOWN

MODEL = str(digits_model())


@pytest.fixture
def ort() -> Any:
    return pytest.importorskip("onnxruntime", reason="ONNX Runtime is the referee: pip install --group peers")


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine without one, whatever this one has."""

    def gone(name: str) -> Any:
        raise mz.MissingPackage("CUDA shows no GPU")

    monkeypatch.setattr("mezzo.tools.ort.providers.device_named", gone)


def opened(
    module: Any, providers: Any = None, options: Any = None, **more: Any
) -> tuple[Sequence[str], Mapping[str, Any], list[str]]:
    """What a session says of its providers, and the warnings of making it."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        made = module.InferenceSession(MODEL, providers=providers, provider_options=options, **more)
    assert {w.category for w in told} <= {UserWarning}
    return made.get_providers(), made.get_provider_options(), [str(w.message) for w in told]


ACCEPTED: dict[str, tuple[Any, Any]] = {
    "none": (None, None),
    "empty": ([], None),
    "cpu": ([CPU], None),
    "a tuple": ((CPU,), None),
    "pair": ([(CPU, {})], None),
    "options": ([CPU], [{}]),
    "twice": ([CPU, CPU], None),
    "gpu": ([CUDA], None),
    "gpu, cpu": ([CUDA, CPU], None),
    "gpu with options, cpu": ([(CUDA, {"device_id": 0}), CPU], None),
    "options beside": ([CUDA, CPU], [{"device_id": "0"}, {}]),
    "not here": (["TensorrtExecutionProvider", CUDA, CPU], None),
}


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize("how", ACCEPTED)
def test_what_is_accepted_is_what_onnxruntime_accepts(how: str, ort: Any) -> None:
    if CUDA in ort.get_available_providers():
        pytest.skip("this ONNX Runtime is built with CUDA")
    ours, theirs = opened(mz, *ACCEPTED[how]), opened(ort, *ACCEPTED[how])
    assert ours[:2] == theirs[:2] == ([CPU], {CPU: {}})
    for message in (*ours[2], *theirs[2]):
        assert "Provider" in message
    assert len(ours[2]) == len(theirs[2])


def test_what_is_not_here_is_a_warning_and_the_next_provider(no_gpu: None) -> None:
    assert opened(mz)[2] == []
    for name in KNOWN[2:]:
        assert opened(mz, [name, CPU]) == (
            [CPU],
            {CPU: {}},
            [
                f"InferenceSession(providers=): {name} is not one of {CUDA}, {CPU}, which this build has; "
                "the next one is taken"
            ],
        )
    (message,) = opened(mz, [CUDA])[2]
    assert message.endswith(f"{CUDA} is not available: CUDA shows no GPU; the next one is taken")
    (message,) = opened(mz, [CPU, CUDA])[2]
    assert message.endswith(f"{CUDA} is not used: {CPU} runs the whole model")
    with pytest.warns(UserWarning, match="is not available") as told:
        mz.InferenceSession(MODEL, providers=[CUDA])
    assert [w.filename for w in told] == [__file__]


# providers, their options, what the error says, whether ONNX Runtime's is a ValueError
REFUSED: dict[str, tuple[Any, Any, str, bool]] = {
    "unknown": (["CUDAExecutionProvide"], None, "did you mean 'CUDAExecutionProvider'", False),
    "unknown behind": ([CPU, "nothing"], None, "Unknown Provider Type: nothing", False),
    "a string": (CPU, None, "is no list", False),
    "a set": ({CPU}, None, "is no list", True),
    "a number": ([3], None, "neither a name nor a pair", True),
    "a pair without options": ([(CPU, 3)], None, "neither a name nor a pair", True),
    "three": ([(CPU, {}, 1)], None, "neither a name nor a pair", True),
    "too many options": ([CPU], [{}, {}], "options for each of 1", True),
    "no list of options": ([CPU], {}, "options for each of 1", True),
    "no options": ([CPU], [3], "neither a name nor a pair", True),
    "options twice": ([(CPU, {})], [{}], "has options of its own", True),
}
# what ONNX Runtime takes and forgets
FORGOTTEN: dict[str, tuple[Any, Any, str]] = {
    "of the cpu": ([(CPU, {"use_arena": "0"})], None, "'use_arena' would be ignored"),
    "of the cpu, beside": ([CPU], [{"use_arena": "0"}], "'use_arena' would be ignored"),
    "of nobody": (None, [{}], "there are options and no providers"),
}


@pytest.mark.parametrize("how", [*REFUSED, *FORGOTTEN])
def test_what_is_refused(how: str) -> None:
    providers, options, told, *_ = (REFUSED | FORGOTTEN)[how]
    with pytest.raises(ArgumentError) as caught:
        opened(mz, providers, options)
    assert told in str(caught.value)
    assert caught.value.where
    for kind in (mz.InputError, ValueError, RuntimeError):
        assert isinstance(caught.value, kind)


@pytest.mark.parametrize("how", REFUSED)
def test_onnxruntime_refuses_it_too(how: str, ort: Any) -> None:
    """Then it begins again with the CPU, unless it is told not to."""
    providers, options, _, wrong = REFUSED[how]
    with pytest.raises(ValueError if wrong else RuntimeError):
        opened(ort, providers, options, enable_fallback=0)


def test_its_providers_are_known(ort: Any) -> None:
    assert set(ort.get_all_providers()) <= set(KNOWN)
    assert KNOWN[:2] == (CPU, CUDA)


@pytest.mark.usefixtures("standin")
@pytest.mark.parametrize(
    ("providers", "options"),
    [
        ([CUDA], {"device_id": "0", "use_tf32": "1"}),
        ([CUDA, CPU], {"device_id": "0", "use_tf32": "1"}),
        ([("CUDAExecutionProvider", {"use_tf32": 0}), CPU], {"device_id": "0", "use_tf32": "0"}),
        ([("CUDAExecutionProvider", {"device_id": 0, "use_tf32": 1}), CPU], {"device_id": "0", "use_tf32": "1"}),
    ],
)
def test_cuda_is_the_gpu(providers: Any, options: dict[str, str]) -> None:
    made = mz.InferenceSession(MODEL, providers=providers)
    assert made.session.device.name == "gpu:0"
    assert made.get_providers() == [CUDA, CPU]
    assert made.get_provider_options() == {CUDA: options, CPU: {}}
    feeds = {"image": held_out().inputs[:3]}
    (got,), (want,) = made.run(None, feeds), mz.InferenceSession(MODEL).run(None, feeds)
    assert np.abs(got - want).max() <= 1e-5 * np.abs(want).max()


@pytest.mark.usefixtures("standin")
def test_options_of_the_gpu_are_checked() -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"gpu_mem_limit": "1"}, "'gpu_mem_limit' would be ignored"),
        ({"device_id": "first"}, "device_id=first"),
        ({"device_id": -1}, "device_id=-1"),
        ({"use_tf32": "yes"}, "use_tf32=yes"),
    ]
    for options, told in wrong:
        with pytest.raises(ArgumentError, match=told):
            mz.InferenceSession(MODEL, providers=[(CUDA, options)])
    with pytest.raises(ArgumentError, match="'use_arena' would be ignored"):
        mz.InferenceSession(MODEL, providers=[CUDA, (CPU, {"use_arena": 1})])
    given = SessionOptions()
    given.use_deterministic_compute = True
    with pytest.raises(ArgumentError, match="use_deterministic_compute"):
        mz.InferenceSession(MODEL, given, [CUDA])


# ------------------------------------------------------------------------------------------------- options


def test_options_have_the_names_and_values_of_onnxruntime(ort: Any) -> None:
    """Each attribute and method of its objects is known here, with the same value where nobody has set it."""
    for mine, its in ((SessionOptions(), ort.SessionOptions()), (RunOptions(), ort.RunOptions())):
        names = [name for name in dir(its) if not name.startswith("_")]
        for name in names:
            value = getattr(its, name)
            if not callable(value):
                assert getattr(mine, name) == value or getattr(mine, name).name == value.name, name
                setattr(mine, name, value)
            elif name in mine._methods:
                with pytest.raises(ArgumentError) as caught:
                    getattr(mine, name)("what", "ever")
                assert caught.value.hint
            else:
                assert callable(getattr(mine, name))
        assert (
            {*mine._about, *mine._methods} <= {*names} == {n for n in dir(mine) if not n.startswith("_")} - {"snapshot"}
        )


def test_options_that_would_be_ignored_are_refused_where_they_are_set() -> None:
    other: dict[type, Any] = {bool: True, int: 3, str: "other"}
    for kind, done in ((SessionOptions, DONE), (RunOptions, {"terminate", "only_execute_path_to_fetches", *LOGGED})):
        for name, option in kind._about.items():
            made, default = kind(), option.default
            if isinstance(default, IntEnum):
                value: Any = next(member for member in type(default) if member is not default)
            else:
                value = not default if isinstance(default, bool) else other[type(default)]
            if name in done:
                setattr(made, name, value)
                assert getattr(made, name) == value
                continue
            with pytest.raises(ArgumentError, match=f"{kind.__name__}.{name}: .* would be ignored") as caught:
                setattr(made, name, value)
            assert caught.value.hint
            assert getattr(made, name) == option.default
    with pytest.raises(ArgumentError, match="there is no such option"):
        SessionOptions().intra_op_threads = 3
    with pytest.raises(ArgumentError, match="means nothing"):
        SessionOptions().intra_op_num_threads = -1
    with pytest.raises(AttributeError):
        _ = SessionOptions().intra_op_threads


LOGGED = {"log_severity_level", "log_verbosity_level", "logid"}
DONE = {
    *("intra_op_num_threads", "enable_mem_reuse", "use_deterministic_compute", "use_per_session_threads"),
    *("enable_cpu_mem_arena", "enable_profiling", "profile_file_prefix", "graph_optimization_level"),
    *("optimized_model_filepath", *LOGGED),
}


def test_what_is_said_is_done() -> None:
    feeds = {"image": held_out().inputs[:3]}
    plain = mz.InferenceSession(MODEL)
    want = plain.run(None, feeds)[0]
    given = SessionOptions()
    given.intra_op_num_threads, given.inter_op_num_threads, given.log_severity_level = 1, 1, 3
    given.enable_mem_reuse, given.use_deterministic_compute = False, True
    made = mz.InferenceSession(MODEL, given)
    got = made.run(None, feeds)[0]
    assert np.abs(got - want).max() <= 1e-5 * np.abs(want).max()
    assert made.session._options.threads == 1
    assert made.session.program.arena_bytes > plain.session.program.arena_bytes
    assert all((made.run(None, feeds)[0] == got).all() for _ in range(3))


def test_other_objects_are_no_options(ort: Any) -> None:
    feeds = {"image": held_out().inputs[:3]}
    with pytest.raises(ArgumentError, match=r"(?s)sess_options is onnxruntime.*SessionOptions.*say it to a mz.Session"):
        mz.InferenceSession(MODEL, ort.SessionOptions())
    with pytest.raises(ArgumentError, match=r"(?s)run_options is onnxruntime.*RunOptions.*say it to a mz.RunOptions"):
        mz.InferenceSession(MODEL).run(None, feeds, ort.RunOptions())
    with pytest.raises(ArgumentError, match=r"sess_options is builtins\.dict"):
        mz.InferenceSession(MODEL, {})  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"(?s)disabled_optimizers=\): x would be ignored.*ORT_DISABLE_ALL"):
        mz.InferenceSession(MODEL, disabled_optimizers=["x"])


def test_feeds_that_do_not_fit_are_value_errors(ort: Any) -> None:
    for module in (mz, ort):
        with pytest.raises(ValueError, match="image"):
            module.InferenceSession(MODEL).run(None, {})


def test_a_run_is_terminated_from_another_thread() -> None:
    g = GraphBuilder("endless")
    body = Body([i64(), Tensor(DType.BOOL, ()), f32(2)], lambda g, i, go, x: (g.Identity(go), g.Neg(x)))
    graph = g.graph([g.Loop(None, g.const(True), g.input("x", f32(2)), body=body)])
    session = mz.InferenceSession(to_onnx(graph).SerializeToString(), budget=mz.Budget(steps=1 << 40))
    feeds, given = {"x": np.zeros(2, np.float32)}, RunOptions()

    def terminate() -> None:
        given.terminate = True

    timer = threading.Timer(0.2, terminate)
    timer.start()
    with pytest.raises(mz.Cancelled):
        session.run(None, feeds, given)
    timer.join()
    image, digits = {"image": held_out().inputs[:1]}, mz.InferenceSession(MODEL)
    with pytest.raises(mz.Cancelled):
        digits.run(None, image, given)
    given.terminate = False
    assert len(digits.run(None, image, given)) == 1
