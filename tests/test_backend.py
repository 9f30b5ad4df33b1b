"""mezzo.onnx.Backend: the official interface. Whether it computes well is for tests/test_conformance.py."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import onnx
import onnx.helper
import pytest

import mezzo as mz
from mezzo.ops.errors import InputError, UnsupportedModel

from .models import model, node, value


def add(*, default: bool = False) -> onnx.ModelProto:
    weights = {"b": np.array([1, 2], np.float32)} if default else {}
    return model([node("Sub", "a b", "y")], [value("a", 2), value("b", 2)], [value("y", 2)], initializers=weights)


A, B = np.array([1, 2], np.float32), np.array([3, 5], np.float32)


@pytest.mark.parametrize("inputs", [[A, B], (A, B), {"a": A, "b": B}], ids=["list", "tuple", "dict"])
def test_inputs_come_by_position_or_name(inputs: Any) -> None:
    (y,) = mz.onnx.Backend.run_model(add(), inputs)
    np.testing.assert_array_equal(y, A - B)


def test_inputs_with_a_default_may_be_left_out() -> None:
    rep = mz.onnx.Backend.prepare(add(default=True))
    np.testing.assert_array_equal(rep.run([A])[0], [0, 0])
    np.testing.assert_array_equal(rep.run([A, B])[0], A - B)


def test_the_wrong_number_of_inputs_is_told() -> None:
    with pytest.raises(InputError, match=r"1 inputs given, the model takes 2"):
        mz.onnx.Backend.run_model(add(), [A])


def test_one_node() -> None:
    split = onnx.helper.make_node("TopK", ["x", "k"], ["values", "indices"])
    values, indices = mz.onnx.Backend.run_node(split, [np.array([1, 5, 3], np.float32), np.array([2])])
    np.testing.assert_array_equal(values, [5, 3])
    np.testing.assert_array_equal(indices, [1, 2])
    old = onnx.helper.make_node("Squeeze", ["x"], ["y"], axes=[0])
    assert mz.onnx.Backend.run_node(old, [np.ones((1, 2), np.float32)], opset_version=11)[0].shape == (2,)


def test_devices() -> None:
    assert mz.onnx.Backend.supports_device("CPU")
    assert not mz.onnx.Backend.supports_device("CUDA:1")
    with pytest.raises(InputError, match="no device 'CUDA'"):
        mz.onnx.Backend.prepare(add(), "CUDA")


def test_nothing_is_declined() -> None:
    strange = model([node("Strange", "a", "y")], [value("a", 2)], [value("y", 2)])
    assert mz.onnx.Backend.is_compatible(strange)
    with pytest.raises(UnsupportedModel, match="Strange"):
        mz.onnx.Backend.prepare(strange)


def test_unknown_names_are_told() -> None:
    with pytest.raises(AttributeError, match=r"'mezzo\.onnx' has no attribute 'Frontend'"):
        mz.onnx.Frontend  # noqa: B018


def test_onnx_is_imported_by_the_backend_only() -> None:
    probe = "import sys, mezzo as mz; mz.onnx.load; assert 'onnx' not in sys.modules; mz.onnx.Backend; import onnx"
    subprocess.run([sys.executable, "-c", probe], check=True, timeout=120)


def test_sessions_take_no_other_random_numbers() -> None:
    graph = mz.onnx.load(add())
    with pytest.raises(InputError, match="random='mersenne'"):
        mz.Session(graph, random="mersenne")  # type: ignore[arg-type]
