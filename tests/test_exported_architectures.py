"""Architectures that PyTorch exports answer as in ONNX Runtime: as they were exported, and as it optimises them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mezzo

from .exports.agree import difference, verdict
from .exports.all import EXCUSED, FILES, NAMES, row
from .exports.architecture import Architecture
from .exports.page import PAGE, keep, page, read
from .exports.plain import PLAIN
from .exports.write import exported, optimised
from .peers import peer

# What the exporters say about themselves and their own dependencies.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def peers() -> None:
    """PyTorch, which exports, and ONNX Runtime, which is the referee."""
    for name in ("torch", "onnxscript", "onnxruntime"):
        peer(name)


@pytest.fixture
def exporters(peers: None) -> None:
    """Those, and transformers, which has the architectures; `make soak PEERS=1` installs it."""
    pytest.importorskip("transformers", reason="transformers is not installed: pip install --group exports")


@pytest.mark.parametrize("form", ["exported", "optimised"])
@pytest.mark.parametrize("made", PLAIN, ids=lambda made: made.name)
def test_small_ones(peers: None, made: Architecture, form: str) -> None:
    content = exported(made, "torchscript")
    found = verdict(made, optimised(content) if form == "optimised" else content, {})
    assert not found.problems
    assert len(found.tried) == 16  # five batches at three sizes, and the first again


def test_a_small_one_of_the_newer_exporter(peers: None) -> None:
    (made,) = (made for made in PLAIN if made.name.startswith("ConvNeXt"))
    found = verdict(made, exported(made, "dynamo"), {})
    assert not found.problems
    assert len(found.tried) == 16


@pytest.mark.soak
@pytest.mark.parametrize(("made", "exporter"), FILES, ids=[" ".join(name) for name in NAMES])
def test_exported_architecture(exporters: None, made: Architecture, exporter: str) -> None:
    found, problems = row(made, exporter)
    assert not problems, "\n".join(problems)
    keep(found, NAMES, EXCUSED)


@pytest.mark.soak
@pytest.mark.parametrize("devices", [2, 4])
@pytest.mark.parametrize(("made", "exporter"), FILES, ids=[" ".join(name) for name in NAMES])
def test_devices_share_an_exported_architecture(
    exporters: None, made: Architecture, exporter: str, devices: int
) -> None:
    place = mezzo.TensorParallel([f"cpu:{i}" for i in range(devices)])
    try:
        found = verdict(made, exported(made, exporter), {"place": place}, (1, 3))
    except mezzo.ops.errors.InputError as error:
        pytest.xfail(error.message)
    assert not found.problems, "\n".join(found.problems)


def test_the_page_is_what_the_soak_writes() -> None:
    text = PAGE.read_text("utf8")
    rows, versions = read(text)
    assert page(rows, versions, EXCUSED) == text
    assert tuple((r.architecture, r.exporter) for r in rows) == NAMES
    assert all(float(e) <= 1e-4 for r in rows for e in (r.error, r.optimised_error))


def test_a_difference_is_seen() -> None:
    """The comparison is no yes-man: NaN, infinity, shape, type, and a wrong element in a thousand."""
    right = np.linspace(1, 2, 1000, dtype=np.float32)
    assert difference(right, right) == 0
    assert difference(right * np.float32(1.00001), right) < 1e-4
    wrongs: list[Any] = [right[:-1], right.astype(np.float64)]
    for value in (np.nan, np.inf, 1.5):
        wrongs.append(right.copy())
        wrongs[-1][7] = value
    assert all(difference(wrong, right) > 1e-4 for wrong in wrongs)
    assert difference(wrongs[2], wrongs[2]) == 0  # NaN where NaN belongs
    assert difference(right, wrongs[2]) == float("inf")
