"""Weights that stay in a model's file once a packed form or a copy stands for them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mezzo as mz
from mezzo.exporters import save_onnx
from mezzo.importers import load_graph
from mezzo.ops.types import f32
from mezzo.runtime.execution.session import Session
from mezzo.runtime.ir.graph import GraphBuilder
from mezzo.runtime.memory import model_file as files

pytestmark = pytest.mark.skipif(not files.CAN_GIVE_BACK, reason="this system maps no model files")
CHANNELS = 256


def convolutions(path: Path) -> None:
    """Write two convolutions of 2.25 MiB of weights each, with batch normalisation, and a product, over open sizes."""
    rng = np.random.default_rng(0)
    g = GraphBuilder()
    x = g.input("x", f32("n", CHANNELS, "h", 8))
    for _ in range(2):
        w = rng.standard_normal((CHANNELS, CHANNELS, 3, 3), np.float32) / 50
        x = g.Conv(x, g.const(w), pads=[1, 1, 1, 1])
        x = g.Relu(g.BatchNormalization(x, *(g.const(rng.random(CHANNELS, np.float32) + 0.5) for _ in range(4))))
    y = g.MatMul(g.ReduceMean(x, g.const([2, 3]), keepdims=0), g.const(rng.random((CHANNELS, 500), np.float32)))
    save_onnx(g.graph([y]), path)


def resident(file: files.ModelFile) -> int:
    """Bytes of the map of a file that are in the memory of this process."""
    here = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        head = line.split()[0]
        if "-" in head:
            here = int(head.partition("-")[0], 16) == file.begin
        elif here and head == "Rss:":
            return int(line.split()[1]) << 10
    raise AssertionError("the file is not mapped")


def image(height: int = 8) -> dict[str, Any]:
    return {"x": np.random.default_rng(1).standard_normal((1, CHANNELS, height, 8), np.float32)}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    convolutions(tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def mapped(session: Session) -> files.ModelFile:
    found = {file for a in session.graph.initializers.values() if (file := files.model_file(a)) is not None}
    assert len(found) == 1
    return found.pop()


def test_runs_read_nothing_of_the_file_and_nothing_of_it_stays_in_memory(path: Path) -> None:
    session, plain = mz.load(path), Session(load_graph(path))
    expected = plain.run(image())
    assert {n: a.tobytes() for n, a in session.run(image()).items()} == {n: a.tobytes() for n, a in expected.items()}
    assert all(files.model_file(a) is None for a in plain.graph.initializers.values())
    assert all(files.model_file(a) is None and a.flags.aligned for a in session.executable.constants.values())
    if os.path.exists("/proc/self/smaps"):
        assert resident(mapped(session)) < 1 << 20  # of 5 MiB
    session.run(image(5))
    if os.path.exists("/proc/self/smaps"):
        assert resident(mapped(session)) < 1 << 20


def test_a_file_that_is_replaced_or_deleted_goes_on_serving(path: Path, tmp_path: Path) -> None:
    session, plain = mz.load(path), Session(load_graph(path))
    other = tmp_path / "other.onnx"
    other.write_bytes(b"something else")
    os.replace(other, path)
    for height in (8, 5):
        got, want = session.run(image(height)), plain.run(image(height))
        assert all(got[n].tobytes() == want[n].tobytes() for n in want)
    path.unlink()
    session.run(image(9))


@pytest.mark.parametrize("cut", [False, True], ids=["written over", "cut short"])
def test_a_file_that_is_written_over_is_an_error_where_more_is_needed_of_it(path: Path, cut: bool) -> None:
    session = mz.load(path)
    before = session.run(image())
    with open(path, "r+b") as file:
        file.truncate(100) if cut else file.write(b"\0" * 1000)
    os.utime(path, ns=(0, 0))  # two writes within one tick of the clock
    again = session.run(image())  # what is planned needs nothing of the file
    assert all(again[n].tobytes() == before[n].tobytes() for n in before)
    with pytest.raises(mz.ModelError, match=r"(?s)m\.onnx.*written to after it was loaded.*renaming"):
        session.run(image(5))


def test_inputs_with_values_of_the_file_are_copied(tmp_path: Path) -> None:
    g = GraphBuilder()
    y = g.Add(g.input("x", f32(2, 4096)), g.input("w", f32(4096)))
    graph = g.graph([y])
    values = np.arange(4096, dtype=np.float32)
    save_onnx(graph.but(initializers={"w": values, "pad": np.zeros(1 << 19, np.float32)}), tmp_path / "m.onnx")
    session = mz.load(tmp_path / "m.onnx")
    assert (session.run({"x": np.zeros((2, 4096), np.float32)})[session.outputs[0].name] == values).all()
    assert (session(np.zeros((2, 4096), np.float32), np.ones(4096, np.float32)) == 1).all()
    assert files.model_file(session.signature.defaults["w"]) is None


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="this system does not list open files")
def test_the_map_ends_with_the_session(path: Path) -> None:
    def opened() -> int:
        return len(os.listdir("/proc/self/fd"))

    before = opened()
    session = mz.load(path)
    session.run(image())
    assert opened() == before + 2  # the map has one of its own
    del session
    assert opened() == before
