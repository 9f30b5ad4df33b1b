"""The profiler's trace and table, pictures of networks, features of this build."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

import mezzo as mz
from mezzo.gluon import symbols as sym
from mezzo.models.workloads import WORKLOADS
from mezzo.ops.errors import InputError
from mezzo.runtime import arrays as nd
from mezzo.runtime.profiling import PROFILING
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
    found: list[dict[str, Any]] = whole["traceEvents"]
    return found


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
