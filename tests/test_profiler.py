"""The profiler's trace and table, pictures of networks, features of this build."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

import mezzo as mz
from mezzo import nd, sym
from mezzo.models.workloads import WORKLOADS
from mezzo.ops.errors import InputError
from mezzo.runtime.execution.observers import PROFILING
from mezzo.tools import profiler, viz


@pytest.fixture(autouse=True)
def _stopped() -> Iterator[None]:
    yield
    profiler.set_state(False)
    profiler.set_config(filename="profile.json")


PLACE = {"ts", "pid", "tid"}
PHASES = {
    "X": {"name", "dur", *PLACE}, "M": {"name", "pid", "args"}, "C": {"name", "ts", "pid", "args"},
    "i": {"name", "ts", "pid", "s"}, "s": {"id", *PLACE}, "f": {"id", "bp", *PLACE},
}  # fmt: skip


def valid(path: Path) -> list[dict[str, Any]]:
    """The events of a file, if it is in the Trace Event Format."""
    whole = json.loads(path.read_text())
    assert set(whole) == {"traceEvents", "displayTimeUnit"}
    for event in whole["traceEvents"]:
        assert PHASES[event["ph"]] <= set(event), event
        assert event.get("ts", 0) >= 0
        assert event.get("dur", 0) >= 0
        for key in {"pid", "tid", "id"} & set(event):
            assert event[key].__class__ is int
        assert isinstance(event["name"], str)
        assert isinstance(event.get("args", {}), dict)
        if event["ph"] == "C":
            assert all(isinstance(v, int | float) for v in event["args"].values())
    found: list[dict[str, Any]] = whole["traceEvents"]
    rows = {e["tid"] for e in found if e["ph"] == "M" and e["name"] == "thread_name"}
    for row in {e["tid"] for e in found if e["ph"] == "X"}:
        assert row in rows, "a thread has a name"
        nested([e for e in found if e["ph"] == "X" and e["tid"] == row])
    return found


def nested(spans: list[dict[str, Any]]) -> None:
    """Complete events of one thread lie beside or within each other: the format knows no others."""
    open_until: list[float] = []
    for e in sorted(spans, key=lambda e: (e["ts"], -e["dur"])):
        while open_until and open_until[-1] <= e["ts"]:
            open_until.pop()
        end = e["ts"] + e["dur"]
        assert not open_until or end <= open_until[-1] + 1e-3, e
        open_until.append(end)


def test_a_recording(tmp_path: Path) -> None:
    profiler.set_config(filename=tmp_path / "trace.json", profile_all=True)
    work = WORKLOADS["mlp"]
    session = mz.Session(work.build(1))
    session.run(work.feeds(1))
    examples = profiler.Counter("examples")
    profiler.set_state("run")
    with profiler.scope("my part"):
        a = nd.ones((64, 64))
        (a * 2 + 1).wait_to_read()
    session.run(work.feeds(1))
    examples += 5
    profiler.Marker("here").mark()
    task = profiler.Task("epoch")
    task.start()
    task.stop()
    profiler.pause()
    session.run(work.feeds(1))
    profiler.resume()
    profiler.dump()
    events = valid(tmp_path / "trace.json")
    steps = [e for e in events if e.get("cat") == "step"]
    assert len(steps) == len(session.program.steps)  # of one run of three: before, recorded, paused
    assert all(e["args"]["kernel"] for e in steps)
    names = {e["name"] for e in events}
    assert {"my part", "epoch", "here", "examples", "arena bytes"} <= names
    assert [e["args"]["value"] for e in events if e["name"] == "examples"] == [5]
    table = profiler.dumps()
    assert re.search(r"step +Gemm\+? +\d", table)
    assert "my part" in table
    assert PROFILING.observer is None
    assert len(profiler.dumps(reset=True).splitlines()) > 1
    assert len(profiler.dumps().splitlines()) == 1


def test_a_training_step_overlaps(tmp_path: Path) -> None:
    """The run that the picture in docs/gluon.md shows: two independent branches, and a copy beside what computes."""
    script = Path(__file__).parent.parent / "bench/branches.py"
    files = [str(tmp_path / "trace.json"), str(tmp_path / "trace.svg")]
    for _ in range(3):  # a machine that is busy may hold one thread up for as long as the other runs
        done = subprocess.run(
            [sys.executable, str(script), "--trace", files[0], "--picture", files[1], "--batch", "16"],
            env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        beside = dict(line.split(":") for line in done.stdout.splitlines())
        if all(float(told.split()[0]) > 0 for told in beside.values()):
            break
    else:
        pytest.fail(f"nothing ran beside anything: {done.stdout}")
    assert set(beside) == {"compute beside compute", "compute beside copy"}
    events = valid(Path(files[0]))
    spans = [e for e in events if e["ph"] == "X"]
    towers = [e for e in spans if e["name"] == "Conv" and e["cat"] == "compute"]
    first, second = sorted(towers, key=lambda e: e["ts"])
    assert first["tid"] != second["tid"]
    assert not {*first["args"]["writes"]} & {*second["args"]["reads"]} - {"Conv"}
    assert {"backward", "update", "copy", "SoftmaxCrossEntropyLoss"} <= {e["name"] for e in spans}
    assert any(e["cat"] == "step" and "Conv" in e["name"] for e in spans)
    for name in (files[1], str(Path(__file__).parent.parent / "docs/trace.svg")):
        bars = ElementTree.parse(name).getroot().findall(".//{*}rect/{*}title")
        told = [bar.text or "" for bar in bars]
        assert sum(t.startswith("Conv (compute)") for t in told) == 2
        assert any(t.startswith("copy (copy)") for t in told)
        assert any(t.startswith("backward (compute)") for t in told)


def test_states_and_settings() -> None:
    for state in (True, True, False, "run", "stop", False):
        profiler.set_state(state)
    with pytest.raises(InputError, match="'sometimes'"):
        profiler.set_state("sometimes")
    with pytest.raises(InputError, match="no setting file"):
        profiler.set_config(file="x")


def test_results_are_the_same_while_somebody_looks_on() -> None:
    work = WORKLOADS["resnet50"]
    session = mz.Session(work.build(1, small=True))
    feeds = work.feeds(1, small=True)
    (expected,) = session.run(feeds).values()
    profiler.set_state(True)
    (found,) = session.run(feeds).values()
    assert np.array_equal(found, expected)


def test_a_table_of_a_network() -> None:
    net = sym.Variable("data").FullyConnected(num_hidden=4, name="fc").Activation(act_type="relu", name="bend")
    text = viz.print_summary(net, {"data": (2, 3)})
    assert re.search(r"fc \(Gemm\) +float32\[2,4\] +16 +fc_flat", text)
    assert text.endswith("in all 16 numbers")
    graph = WORKLOADS["resnet50"].build(1)
    assert viz.print_summary(graph).endswith(f"in all {sum(a.size for a in graph.initializers.values())} numbers")
    with pytest.raises(InputError, match="no network"):
        viz.print_summary(3)


@pytest.mark.parametrize("name", ["mlp", "resnet50", "bert"])
def test_a_picture_of_a_network(name: str, tmp_path: Path) -> None:
    graph = WORKLOADS[name].build(1, small=True)
    viz.plot_network(graph, tmp_path / "net.svg")
    root = ElementTree.parse(tmp_path / "net.svg").getroot()
    inside = "{http://www.w3.org/2000/svg}"
    boxes = [(float(r.attrib["x"]), float(r.attrib["y"])) for r in root.iter(f"{inside}rect") if "rx" in r.attrib]
    assert len(boxes) == len(graph.nodes) + len(graph.inputs)
    for i, (x, y) in enumerate(boxes):  # no two lie upon each other
        assert not any(abs(x - u) < viz.WIDE and abs(y - v) < viz.HIGH for u, v in boxes[:i])
    paths = [p for p in root.iter(f"{inside}path") if "marker-end" in p.attrib]
    assert len(paths) >= len(graph.nodes)


def test_features() -> None:
    found = mz.runtime.Features()
    assert found.is_enabled("cpu")
    for feature in found.values():
        assert feature.why
    assert {"CUDA", "ONEDNN"} <= {*found}
    assert "off CUDA" in str(found) or "on  CUDA" in str(found)
