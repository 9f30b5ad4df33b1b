"""Cases of old opsets: the node data that old `onnx` wheels carry as files, through the whole path.

The wheels are not committed: pip brings them into a folder beside the virtual environment, once. Where there is no
index to ask, the tests skip and say so. Every case runs in the soak; a suite run takes every eighth.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper
import pytest

import mezzo as mz
from mezzo.ops import DType

FOLDER = Path(sys.prefix) / "old-onnx"
DATA = "onnx/backend/test/data/node/"
EVERY = 8


@dataclass(frozen=True)
class Wheel:
    """An old release of onnx, and how its newest opset is called."""

    version: str
    python: str
    platform: str
    cases: int
    # Cases whose stored answer is not what the operator says, and why.
    wrong: tuple[tuple[str, str], ...]

    def path(self) -> Path:
        """The wheel as a file; downloads it if need be, and skips the test if it cannot be had."""
        found = [*FOLDER.glob(f"onnx-{self.version}-*.whl")]
        if not found:
            FOLDER.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=FOLDER) as own:  # another worker may be at the same
                ask = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:",
                       "--python-version", self.python, "--platform", self.platform, "--dest", own,
                       f"onnx=={self.version}"]  # fmt: skip
                try:
                    done = subprocess.run(ask, capture_output=True, text=True, check=False, timeout=300)
                    brought, told = [*Path(own).glob("*.whl")], done.stderr.strip()[-200:]
                except subprocess.TimeoutExpired:
                    brought, told = [], "no answer within five minutes"
                if not brought:
                    pytest.skip(f"pip cannot bring onnx {self.version}: {told}")
                found = [brought[0].replace(FOLDER / brought[0].name)]
        return found[0]


EPSILON = "computed with an epsilon that the model does not give"
DRAWN = "it compares with a draw of NumPy's generator that no seed in the model leads to"
ALWAYS = (("test_adam_multiple", EPSILON),)
WHEELS = [
    Wheel("1.8.1", "38", "manylinux2010_x86_64", 775,
          (*ALWAYS, ("test_sequence_insert_at_front", "its answer has the tensor at the end"))),
    Wheel("1.12.0", "310", "manylinux_2_17_x86_64", 932,
          (*ALWAYS, ("test_dft_inverse", "computed in float64, with a tolerance of 1e-7 around zero"),
           *((f"test_bernoulli{kind}", DRAWN) for kind in ("", "_double", "_seed")),
           *((f"test_bernoulli{kind}_expanded", DRAWN) for kind in ("", "_double", "_seed")))),
]  # fmt: skip
wheels = pytest.mark.parametrize("wheel", WHEELS, ids=lambda w: w.version)


@cache
def contents(wheel: Wheel) -> dict[str, list[str]]:
    """The files of each case of a wheel."""
    found: dict[str, list[str]] = {}
    with zipfile.ZipFile(wheel.path()) as file:
        for name in sorted(file.namelist()):
            if name.startswith(DATA) and not name.endswith("/"):
                found.setdefault(name[len(DATA) :].split("/")[0], []).append(name)
    return found


@dataclass(frozen=True)
class Case:
    """A model with sets of inputs and expected outputs."""

    model: onnx.ModelProto
    sets: list[tuple[list[Any], list[Any]]]

    @classmethod
    def read(cls, file: zipfile.ZipFile, name: str, stored: list[str]) -> Case:
        """One case out of the files that a wheel has of it."""
        base = f"{DATA}{name}/"
        model = onnx.load_model_from_string(file.read(f"{base}model.onnx"))
        sets = []
        for folder in sorted({n[len(base) :].split("/")[0] for n in stored if "/test_data_set" in n}):

            def all_of(kind: str, infos: Any, folder: str = folder) -> list[Any]:
                count = sum(n.startswith(f"{base}{folder}/{kind}_") for n in stored)
                return [_value(file.read(f"{base}{folder}/{kind}_{i}.pb"), infos[i].type) for i in range(count)]

            sets.append((all_of("input", model.graph.input), all_of("output", model.graph.output)))
        return cls(_declared_again(model, sets[0][0]), sets)


def _value(data: bytes, kind: onnx.TypeProto) -> Any:
    """A stored value. Old releases had no bfloat16 in NumPy and stored its bits as uint16."""
    if kind.HasField("sequence_type"):
        sequence = onnx.SequenceProto.FromString(data)
        return onnx.numpy_helper.to_list(sequence)
    if kind.HasField("optional_type"):
        return onnx.numpy_helper.to_optional(onnx.OptionalProto.FromString(data))
    array = onnx.numpy_helper.to_array(onnx.TensorProto.FromString(data))
    bits = array.dtype == np.uint16 and kind.tensor_type.elem_type == DType.BFLOAT16.onnx
    return array.view(DType.BFLOAT16.numpy) if bits else array


def _declared_again(model: onnx.ModelProto, inputs: list[Any]) -> onnx.ModelProto:
    """The model with the dims of its inputs as the wheel's own data have them, which some declare otherwise."""
    for info, array in zip(model.graph.input, inputs, strict=False):
        if not info.type.HasField("tensor_type"):
            continue
        kind = info.type.tensor_type
        dims = [d.dim_value for d in kind.shape.dim if d.HasField("dim_value")]
        if (
            isinstance(array, np.ndarray)
            and kind.HasField("shape")
            and len(dims) == len(kind.shape.dim)
            and dims != list(array.shape)
        ):
            info.CopyFrom(onnx.helper.make_tensor_value_info(info.name, kind.elem_type, array.shape))
    return model


def disagreement(expected: Any, found: Any) -> str:
    """What differs between two outputs beyond the tolerance of the official suite; empty if nothing does."""
    if isinstance(expected, list):
        if not isinstance(found, list) or len(found) != len(expected):
            return f"{found} is not a list of {len(expected)}"
        return next(filter(None, map(disagreement, expected, found)), "")
    if expected is None:
        return "" if found is None else f"{found} is not None"
    if found.dtype != expected.dtype or found.shape != expected.shape:
        return f"{found.dtype}{list(found.shape)} is not {expected.dtype}{list(expected.shape)}"
    if expected.dtype == object:
        return "" if np.array_equal(found, expected) else f"{found} is not {expected}"
    rtol = 2**-6 if expected.dtype == DType.BFLOAT16.numpy else 1e-3  # two of its steps, as the official suite has it
    a, b = (x.astype(np.float64) if x.dtype.kind not in "iubc" else x for x in (expected, found))
    return "" if np.allclose(b, a, rtol=rtol, atol=1e-7, equal_nan=True) else f"{found} is not {expected}"


def failures(wheel: Wheel, chosen: list[str]) -> dict[str, str]:
    """The cases that do not give what is stored, each with what it gives."""
    found = {}
    with zipfile.ZipFile(wheel.path()) as file:
        for name in chosen:
            case = Case.read(file, name, contents(wheel)[name])
            try:
                rep = mz.onnx.Backend.prepare(case.model)
                told = (disagreement(outs, list(rep.run(ins))) for ins, outs in case.sets)
                problem = next(filter(None, told), "")
            except mz.MezzoError as error:
                problem = str(error)
            if problem:
                found[name] = problem
    return found


@wheels
def test_old_cases_give_what_they_gave(wheel: Wheel) -> None:
    known = dict(wheel.wrong)
    chosen = [n for i, n in enumerate(contents(wheel)) if i % EVERY == 0]
    assert failures(wheel, [n for n in chosen if n not in known]) == {}


@pytest.mark.soak
@wheels
def test_all_old_cases_give_what_they_gave(wheel: Wheel) -> None:
    every = [*contents(wheel)]
    assert len(every) == wheel.cases
    assert failures(wheel, every).keys() == dict(wheel.wrong).keys()


@wheels
def test_ninety_nine_of_a_hundred(wheel: Wheel) -> None:
    assert len(wheel.wrong) <= 0.01 * wheel.cases
