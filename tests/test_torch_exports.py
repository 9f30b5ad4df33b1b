"""Models that PyTorch exports and ONNX Runtime quantises answer as in ONNX Runtime, and as PyTorch itself does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import mezzo
from mezzo.models.digits import digits_model, held_out
from mezzo.runtime.execution.session import Session

from .models import FLOAT, INT64, node, ort_run, referee, value
from .peers import peer

pytestmark = pytest.mark.filterwarnings("ignore")  # the exporters', about their own dependencies

Array = np.ndarray[Any, Any]


def features(*sizes: int) -> Array:
    return np.random.default_rng(sizes).standard_normal(sizes).astype(np.float32)


def close(ours: Array, theirs: Array, tolerance: float = 1e-3) -> None:
    """Equal per tensor: no element further away than a part of the largest."""
    assert ours.shape == theirs.shape
    assert ours.dtype == theirs.dtype
    if ours.size:
        assert np.abs(ours - theirs).max() <= tolerance * np.abs(theirs).max()


@pytest.fixture(scope="module")
def torch() -> Any:
    """PyTorch with its exporter, beside ONNX Runtime."""
    referee()
    peer("onnxscript")
    return peer("torch")


@pytest.fixture(scope="module")
def modules(torch: Any) -> Any:
    """Modules to export, and both ways to do it."""
    from . import torch_exports

    return torch_exports


def agree(content: bytes, session: Session, module: Any, x: Array) -> None:
    """ONNX Runtime, PyTorch and the session say the same of an input."""
    torch = peer("torch")
    got = session.run({"x": x})
    theirs = ort_run(content, {"x": x})
    with torch.no_grad():
        original = module(torch.from_numpy(x))
    assert list(got) == list(theirs)
    originals = original if isinstance(original, tuple) else (original,)
    for name, said in zip(theirs, originals, strict=True):
        close(got[name], theirs[name])
        close(got[name], said.numpy())


# A transformer encoder


@pytest.fixture(scope="module")
def encoder(torch: Any) -> Any:
    """A network of two layers; its batch and its length are free."""
    nn = torch.nn
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, activation="gelu")
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()


@pytest.fixture(scope="module")
def encoder_file(modules: Any, encoder: Any) -> Any:
    return modules.exported(encoder, features(2, 7, 32), {0: "batch", 1: "length"}, ["y"])


def test_transformer_encoder(encoder: Any, encoder_file: bytes) -> None:
    session = mezzo.load(encoder_file)
    for batch, length in ((2, 7), (1, 1), (3, 19), (5, 2)):
        agree(encoder_file, session, encoder, features(batch, length, 32))


def test_transformer_encoder_of_the_older_exporter(modules: Any, encoder: Any) -> None:
    """It writes the sizes of its example into the file."""
    content = modules.traced(encoder, features(2, 7, 32), {}, ["y"])
    agree(content, mezzo.load(content), encoder, features(2, 7, 32))


# An LSTM


@pytest.mark.parametrize("export", ["exported", "traced"])
def test_lstm_that_reads_both_ways(export: str, torch: Any, modules: Any) -> None:
    torch.manual_seed(1)
    tagger = modules.Tagger().eval()
    content = getattr(modules, export)(tagger, features(4, 2, 6), {0: "length"}, ["y", "h", "c"])
    session = mezzo.load(content)
    assert "LSTM" in {n.op_type for n in onnx.load_from_string(content).graph.node}
    for length in (4, 1, 23) if export == "traced" else (4,):  # the newer one writes its example's length into the file
        agree(content, session, tagger, features(length, 2, 6))


# A detector


@pytest.fixture(scope="module")
def detector(torch: Any, modules: Any) -> bytes:
    """The backbone as PyTorch exports it, with non-maximum suppression behind it."""
    torch.manual_seed(2)
    content = modules.exported(
        modules.Backbone().eval(), features(2, 3, 32, 32), {0: "batch", 2: "height", 3: "width"}, ["boxes", "scores"]
    )
    model = onnx.load_from_string(content)
    numbers = {"most": np.array(20), "overlap": np.array(0.4, np.float32), "last": np.array(2)}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(a, n) for n, a in numbers.items())
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([0, 2]), "image_and_box"))
    model.graph.input.append(value("threshold"))
    model.graph.node.extend(
        [
            node("NonMaxSuppression", "boxes scores most overlap threshold", "selected"),
            node("Gather", "selected image_and_box", "places", axis=1),
            node("GatherND", "boxes places", "chosen"),
        ]
    )
    model.graph.output.extend([value("selected", None, 3, kind=INT64), value("chosen", None, 4, kind=FLOAT)])
    onnx.checker.check_model(model, full_check=True)
    made: bytes = model.SerializeToString()
    return made


def test_detector_with_suppression(detector: bytes) -> None:
    session = mezzo.load(detector)
    counts = set()
    for batch, height, width, threshold in ((2, 32, 32, 0.5), (1, 24, 40, 0.2), (3, 16, 32, 0.5), (1, 32, 32, 1.0)):
        feeds = {"x": features(batch, 3, height, width), "threshold": np.array(threshold, np.float32)}
        got, theirs = session.run(feeds), ort_run(detector, feeds)
        np.testing.assert_array_equal(got["selected"], theirs["selected"])
        for name in ("boxes", "scores", "chosen"):
            close(got[name], theirs[name])
        counts.add(len(got["selected"]))
    assert len(counts) > 2
    assert 0 in counts


# Quantised models


def within_a_step(ours: Array, theirs: Array, step: float) -> None:
    """At most one quantisation step apart on 99.9 % of the values."""
    assert ours.shape == theirs.shape
    assert (np.abs(ours - theirs) <= 1.001 * step).mean() >= 0.999


@pytest.mark.parametrize("signed", [True, False], ids=["int8", "uint8"])
def test_transformer_quantised_dynamically(encoder_file: bytes, tmp_path: Path, signed: bool) -> None:
    tools = peer("onnxruntime.quantization")
    made = tmp_path / "quantised.onnx"
    tools.quantize_dynamic(
        onnx.load_from_string(encoder_file),
        made,
        weight_type=tools.QuantType.QInt8 if signed else tools.QuantType.QUInt8,
        per_channel=signed,
    )
    kinds = {n.op_type for n in onnx.load(made).graph.node}
    assert kinds >= {"DynamicQuantizeLinear", "MatMulInteger"}
    content = made.read_bytes()
    session = mezzo.load(content)
    for batch, length in ((2, 7), (3, 19)):
        x = features(batch, length, 32)
        ours, theirs = session.run({"x": x})["y"], ort_run(content, {"x": x})["y"]
        within_a_step(ours, theirs, float(np.ptp(theirs)) / 255)


@pytest.mark.parametrize("per_channel", [True, False])
def test_digits_quantised_with_calibration(tmp_path: Path, per_channel: bool) -> None:
    tools = peer("onnxruntime.quantization")
    digits = held_out()

    class Reader(tools.CalibrationDataReader):  # type: ignore[misc, name-defined]
        """The first hundred images, a few at a time."""

        def __init__(self) -> None:
            self.left = [digits.inputs[i : i + 20] for i in range(0, 100, 20)]

        def get_next(self) -> Any:
            return {"image": self.left.pop()} if self.left else None

    made = tmp_path / "quantised.onnx"
    tools.quantize_static(
        digits_model(), made, Reader(), quant_format=tools.QuantFormat.QDQ, per_channel=per_channel,
        activation_type=tools.QuantType.QUInt8, weight_type=tools.QuantType.QInt8,
    )  # fmt: skip
    model = onnx.load(made)
    last = next(n for n in model.graph.node if n.output[0] == "logits")
    assert last.op_type == "DequantizeLinear"
    scale = next(onnx.numpy_helper.to_array(t) for t in model.graph.initializer if t.name == last.input[1])
    session = mezzo.load(made.read_bytes())
    ours, theirs = session.run({"image": digits.inputs})["logits"], ort_run(made, {"image": digits.inputs})["logits"]
    within_a_step(ours, theirs, float(scale))
    assert (ours.argmax(1) == digits.labels).mean() > 0.95
