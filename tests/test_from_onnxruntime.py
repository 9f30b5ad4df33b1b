"""ONNX Runtime's calls on our sessions: the same names, answers and kinds of errors, beside ONNX Runtime where it is
there."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mezzo import onnxruntime as ours
from mezzo.ops.errors import ArgumentError

from .api_calls import CALLS, MODEL, X, outcome, public, same
from .peers import peer

PAGE = Path(__file__).parents[1] / "docs/from-onnxruntime.md"
ROWS = {
    name: (status, note)
    for name, status, note in re.findall(r"^\| `([\w.]+)` \| (\w+) \| (.*) \|$", PAGE.read_text("utf8"), re.M)
}


@pytest.fixture
def ort() -> Any:
    found = peer("onnxruntime")
    found.set_default_logger_severity(4)
    return found


def test_the_table_has_every_name_of_onnxruntime(ort: Any) -> None:
    if ort.__version__ != ours.version:
        pytest.skip(f"the table is that of ONNX Runtime {ours.version}, this is {ort.__version__}")
    names = public(ort)
    assert names == {name for name in ROWS if "." not in name}
    for name in names:
        theirs = getattr(ort, name)
        members = {row.partition(".")[2] for row in ROWS if row.startswith(f"{name}.")}
        if hasattr(theirs, "__members__"):
            mine = getattr(ours, name).__members__
            assert {n: int(m) for n, m in mine.items()} == {n: int(m) for n, m in theirs.__members__.items()}, name
        elif isinstance(theirs, type) and ROWS[name][0] != "refused" and name != "SessionIOBinding":
            assert members == public(theirs), name
        else:
            assert not members, name


def exemplar(name: str) -> Any:
    """An object of the class of this name."""
    session = ours.InferenceSession(MODEL)
    made: dict[str, Callable[[], Any]] = {
        "AdapterFormat": ours.AdapterFormat,
        "IOBinding": session.io_binding,
        "InferenceSession": lambda: session,
        "LoraAdapter": ours.LoraAdapter,
        "ModelCompiler": lambda: ours.ModelCompiler(ours.SessionOptions(), MODEL),
        "ModelMetadata": session.get_modelmeta,
        "NodeArg": lambda: session.get_inputs()[0],
        "OrtArenaCfg": lambda: ours.OrtArenaCfg({}),
        "OrtDevice": lambda: ours.OrtDevice.make("cpu", 0),
        "OrtEpAssignedNode": lambda: ours.OrtEpAssignedNode("name", "", "Relu"),
        "OrtEpAssignedSubgraph": lambda: ours.OrtEpAssignedSubgraph("CPUExecutionProvider", ()),
        "OrtEpDevice": lambda: ours.get_ep_devices()[0],
        "OrtExternalInitializerInfo": lambda: ours.OrtExternalInitializerInfo("weights.bin", 0, 4),
        "OrtHardwareDevice": lambda: ours.get_ep_devices()[0].device,
        "OrtMemoryInfo": lambda: session.get_input_memory_infos()[0],
        "OrtValue": lambda: ours.OrtValue.ortvalue_from_numpy(X),
        "RunOptions": ours.RunOptions,
        "SessionOptions": ours.SessionOptions,
    }
    return made[name]()


def test_the_table_tells_what_ours_has() -> None:
    """What works or differs is there; what is refused raises an error that says what to do, or is nowhere."""
    assert len(ROWS) > 150
    assert {status for status, _ in ROWS.values()} == {"works", "differs", "refused"}
    exemplars: dict[str, Any] = {}
    for row, (status, note) in ROWS.items():
        name, _, member = row.partition(".")
        if member and name not in exemplars:
            exemplars[name] = exemplar(name)
        holder = exemplars[name] if member else ours
        assert status == "works" or note, row
        if status != "refused":
            assert hasattr(holder, member or name), row
            assert member or name in ours.__all__, row
        elif note.startswith(("an accident", "checks of its own")):
            assert not hasattr(holder, name), row
        else:
            with pytest.raises(ArgumentError) as caught:
                getattr(holder, member or name)(*[{}] * (member == "set_ep_dynamic_options"), *["x"] * takes(row))
            assert caught.value.hint, row
            assert caught.value.where, row


def takes(row: str) -> int:
    one = ("OrtValue.ort_value_from_sparse_tensor", "ModelCompiler.set_ep_context_data_write_func")
    return 2 if row == "ModelCompiler.set_ep_context_binary_information" else int(row in one)


def test_what_is_refused_is_still_a_class() -> None:
    for name, call in (
        ("SparseTensor", "sparse_coo_from_numpy"),
        ("ModelPackage", "open"),
    ):
        assert not isinstance(X, getattr(ours, name))
        with pytest.raises(ArgumentError, match=f"{name}: this is not built"):
            getattr(getattr(ours, name), call)(1, two=2)


@pytest.mark.parametrize("name", CALLS)
def test_both_answer_the_same(name: str, ort: Any) -> None:
    """Where ONNX Runtime raises, ours is an error of that name."""
    (mine, got), (theirs, want) = outcome(CALLS[name], ours), outcome(CALLS[name], ort)
    assert mine == theirs, (got, want)
    if mine == "answers":
        assert same(got, want), (got, want)
    elif want not in ({"AttributeError"}, set()):  # the last: a bare Exception
        assert want <= got, (got, want)


@pytest.mark.parametrize("name", CALLS)
def test_errors_are_ours(name: str) -> None:
    """Without ONNX Runtime too: what raises is a MezzoError."""
    kind, got = outcome(CALLS[name], ours)
    assert kind == "answers" or "MezzoError" in got
