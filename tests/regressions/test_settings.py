"""Settings that a caller gets wrong easily, and that were taken for something else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mezzo as mz
from mezzo.exporters import to_onnx
from mezzo.models.digits import digits_model
from mezzo.ops.types import f32
from mezzo.runtime.ir.graph import Graph, GraphBuilder

from .cases import numbers


def two_layers() -> Graph:
    g = GraphBuilder()
    y = g.MatMul(g.Relu(g.MatMul(g.input("x", f32("n", 4)), g.const(numbers(4, 8)))), g.const(numbers(8, 3)))
    return g.graph([y])


def test_threads_as_text() -> None:
    """Text from the environment became an address, taken for a number of threads: oneDNN did not end."""
    code = (
        "import mezzo as mz, numpy as np\n"
        "from mezzo.models.digits import digits_model\n"
        "for threads in ('2', 1.5, -1, None, 0, np.int64(1)):\n"
        "    try:\n"
        "        mz.load(digits_model(), threads=threads)(np.zeros((1, 1, 8, 8), np.float32))\n"
        "        print('ran')\n"
        "    except mz.InputError as error:\n"
        "        print('refused' if 'an integer' in str(error) else error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["refused"] * 3 + ["ran"] * 3


@pytest.mark.parametrize("given", [{"instances": 0}, {"max_programs": -1}, {"max_memory": "1GiB"}, {"max_memory": 1e9}])
def test_counts(given: dict[str, Any]) -> None:
    with pytest.raises(mz.InputError, match="an integer"):
        mz.Session(two_layers(), **given)


def test_one_pattern_is_not_its_letters() -> None:
    """`*` is among the letters of most patterns, and stands for all names."""
    group = mz.optimizer.Group("*bias*", weight_decay=0.0)
    adamw = mz.optimizer.AdamW(weight_decay=0.1, groups=(group,))
    assert (adamw.decay("layer.weight"), adamw.decay("layer.bias")) == (0.1, 0.0)
    first, second = mz.Trainer(two_layers()).trained
    assert mz.Trainer(two_layers(), train=f"*{first[-2:]}").trained == [first]
    assert mz.Trainer(two_layers(), freeze=f"*{first[-2:]}").trained == [second]
    whole, x = two_layers(), numbers(5, 4)
    quantized = mz.quantize(whole, [x], skip="MatMul")
    assert "QuantizeLinear" not in {n.op for n in quantized.nodes}  # was passed over in silence, as a wrong name was
    with pytest.raises(mz.InputError, match="Matmul"):
        mz.quantize(whole, [x], skip=["Matmul"])


@pytest.mark.parametrize(
    "wrong",
    [
        {"rate": -0.1},
        {"rate": np.nan},
        {"rate": "0.1"},
        {"momentum": -0.9},
        {"weight_decay": -1.0},
        {"weight_decay": np.inf},
    ],
    ids=str,
)
def test_optimizers(wrong: dict[str, Any]) -> None:
    with pytest.raises(mz.InputError, match=next(iter(wrong))):
        mz.optimizer.SGD(**wrong)
    with pytest.raises(mz.InputError, match="beta2"):
        mz.optimizer.Adam(beta2=1.0)
    assert mz.optimizer.SGD(rate=np.float32(0.5)).rate == 0.5


@pytest.mark.parametrize(
    "wrong", [{"clip_norm": -1.0}, {"clip_norm": np.nan}, {"clip_value": 0.0}, {"gather": 0}, {"gather": 1.5}], ids=str
)
def test_steps(wrong: dict[str, Any]) -> None:
    """A norm below zero turned the gradients around."""
    with pytest.raises(mz.InputError, match=next(iter(wrong))):
        mz.Trainer(two_layers(), **wrong)


def test_sizes_are_whole() -> None:
    x = mz.nd.ones(6)
    with pytest.raises(mz.ShapeError, match="is no shape"):
        mz.nd.zeros((2.7, 3))
    with pytest.raises(mz.ShapeError, match="is no shape"):
        x.reshape((2.9, 3))
    with pytest.raises(mz.ShapeError, match="is no shape"):
        x.reshape(6 / 2, 2)


@pytest.mark.parametrize(
    "given",
    [
        {"device": None}, {"device": 0}, {"device": ["cpu"]}, {"budget": 1 << 30}, {"budget": {}}, {"strategy": "most"},
        {"fuse": "no"}, {"onednn": "false"}, {"onednn": 2}, {"seed": "a"}, {"seed": 2.5}, {"seed": None},
        {"buckets": True}, {"buckets": 8}, {"buckets": {"n": 8}}, {"buckets": {"n": "8"}}, {"buckets": {"n": (1.5,)}},
        {"cache": True}, {"cache": ["x"]}, {"calibration": [numbers(5, 4)]},
    ],
)  # fmt: skip
def test_settings_of_another_kind(given: dict[str, Any], tmp_path: Path) -> None:
    """They were errors of Python, or said nothing: `onednn="false"` meant True, a seed of text failed in a run."""
    mz.onnx.save(two_layers(), tmp_path / "m.onnx")
    with pytest.raises(mz.InputError) as told:
        mz.load(tmp_path / "m.onnx", **given)
    assert next(iter(given)) in str(told.value)
    assert told.value.hint


@pytest.mark.parametrize(
    "given", [{"fuse": 0, "onednn": np.False_, "seed": -(1 << 70)}, {"buckets": {"n": [np.int8(8)]}}]
)
def test_settings_of_a_like_kind(given: dict[str, Any]) -> None:
    mz.Session(two_layers(), **given).run({"x": numbers(5, 4)})


@pytest.mark.parametrize(
    "given",
    [{"cancel": True}, {"cancel": 0}, {"deadline": "a"}, {"deadline": float("nan")}, {"deadline": [1]}, {"observe": 5}],
)
def test_arguments_of_a_run(given: dict[str, Any]) -> None:
    """A run blamed the operands of its first step, and `deadline=nan` meant none."""
    session = mz.Session(two_layers())
    for _ in range(2):
        with pytest.raises(mz.InputError, match=next(iter(given))):
            session.run({"x": numbers(5, 4)}, **given)
        session.run({"x": numbers(5, 4)}, deadline=np.float64(9))


def test_sizes_that_a_model_does_not_take_are_not_planned() -> None:
    session = mz.Session(two_layers())
    for sizes, said in (((2, 5), "has 5 in axis 1, expected 4"), ((2,), "no shape"), ("24", "no shape")):
        with pytest.raises(mz.InputError, match=said):
            session.warmup({"x": sizes})  # type: ignore[dict-item]
    with pytest.raises(mz.InputError, match="are a mapping"):
        session.warmup([(2, 4)])  # type: ignore[arg-type]
    session.warmup({"x": (2, 4)})


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "MODEL", "--dim", "batch=99999999999"], "there is not enough memory"),
        (["run", "MODEL", "--input", "image=IN.npz"], "IN.npz: not a .npy file"),
        (["run", "MODEL", "--dim", "batch=a"], "batch=a: 'a' is no size"),
        (["run", "MODEL", "--dim", "image=1,1,8,-8"], "image=1,1,8,-8: '-8' is no size"),
        (["serve", "=MODEL"], "no name of a model"),
        (["serve", "a/b=MODEL"], "no name of a model"),
    ],
)
def test_arguments_of_the_command(arguments: list[str], said: str, tmp_path: Path) -> None:
    """A traceback, an array of text, and servers of models that no address names."""
    np.savez(tmp_path / "IN.npz", image=np.zeros((1, 1, 8, 8), np.float32))
    asked = [a.replace("MODEL", str(digits_model())).replace("IN", str(tmp_path / "IN")) for a in arguments]
    done = subprocess.run(
        [sys.executable, "-m", "mezzo", *asked], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert said in done.stderr.replace(f"{tmp_path}/", "")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("MEZZO_ONEDNN", "/no/library", "cannot be loaded"),
        ("MEZZO_ONEDNN", "libc.so.6", "is not oneDNN"),
        ("MEZZO_MACHINE_CODE", "no", "it is 'off' to run without"),
        ("MEZZO_ENGINE", "x", "it is 'threaded', or 'naive'"),
        ("MEZZO_KV_VERBOSE", "yes", "it is 1 to write"),
    ],
)
@pytest.mark.parametrize("suffix", ["onnx", "mezzo"])
def test_settings_of_the_environment(name: str, value: str, said: str, suffix: str, tmp_path: Path) -> None:
    """A library that is not there left the work to NumPy without a word, and values that nothing reads did nothing."""
    path = digits_model()
    if suffix == "mezzo":
        path = tmp_path / "m.mezzo"
        mz.load(digits_model()).save(path)
    done = subprocess.run(
        [sys.executable, "-m", "mezzo", "run", str(path)], capture_output=True, text=True, timeout=60, check=False,
        env={**os.environ, name: value},
    )  # fmt: skip
    assert done.returncode == 2
    assert f"environment: {name}={value!r}" in done.stderr
    assert said in done.stderr


@pytest.mark.parametrize("given", [{"draw": "a"}, {"draw": (1.5,)}, {"draw": 3}, {"names": np.array(3)}])
def test_what_a_run_is_asked_for(given: dict[str, Any]) -> None:
    """These were passed over in silence, or ended in NumPy's words; an array of names is a list of them."""
    session, x = mz.Session(two_layers(), random="numpy"), numbers(2, 4)
    for _ in range(3):
        with pytest.raises(mz.InputError, match="|".join(given)):
            session.run({"x": x}, **given)
        session.run({"x": x}, draw=(1, 2), names=np.array(list(session.signature.outputs)))  # type: ignore[arg-type]


def test_what_onnxruntime_refuses_or_says() -> None:
    """Sizes of values were cut to whole numbers, and a file without a version had version 0."""
    from mezzo.tools.ort.values import OrtValue

    for sizes in ([2.5], ["a"], 3):
        with pytest.raises(mz.MezzoError, match="whole numbers"):
            OrtValue.ortvalue_from_shape_and_type(sizes, np.float32)  # type: ignore[arg-type]
    made = to_onnx(two_layers())
    assert not made.HasField("model_version")
    for version in (None, 0, 7):
        if version is not None:
            made.model_version = version
        found = mz.InferenceSession(made.SerializeToString()).get_modelmeta().version
        assert found == (2**63 - 1 if version is None else version)
        again = to_onnx(mz.onnx.load(made.SerializeToString()))
        assert (again.model_version if again.HasField("model_version") else None) == version
