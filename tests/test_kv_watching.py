"""Looking on: percentiles, lines of JSON, Prometheus text and traces say what happened."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mezzo as mz
from mezzo.kvstore.protocol.messages import Overview, Seen
from mezzo.kvstore.watching import Span, Timing
from mezzo.ops.errors import InputError, ShapeError

LINE = re.compile(r'(\w+)\{((?:\w+="(?:[^"\\\n]|\\\\|\\"|\\n)*",?)+)\} (\S+)')


@pytest.mark.parametrize("seed", range(5))
def test_percentiles_are_near(seed: int) -> None:
    times = np.random.default_rng(seed).lognormal(-7, 1.5, 3000)
    timing = Timing()
    for seconds in times:
        timing.add(float(seconds))
    for share in (0.01, 0.5, 0.95, 0.99, 1.0):
        true = float(np.quantile(times, share, method="inverted_cdf"))
        assert true <= timing.percentile(share) * (1 + 1e-9) <= true * 1.021
    assert Timing().percentile(0.5) == 0


def busy(kv: mz.kv.KVStore) -> None:
    kv.init(["w", 'a "b\\\n'], [np.zeros(10, np.float32), np.zeros(3)])
    for _ in range(4):
        kv.push("w", np.ones(10, np.float32))
        kv.pull("w")
    kv.pushpull('a "b\\\n', np.ones(3), wait=False).wait()
    kv.row_sparse_pull("w", np.empty(2, np.float32), [1, 3])
    kv.barrier()


def test_what_is_counted(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with mz.kv.create("local") as kv:
        watch = kv.watch(trace=True)
        busy(kv)
        assert {name: timing.count for name, timing in watch.timings.items()} == {
            ("push", "w"): 4,
            ("pull", "w"): 4,
            ("pushpull", 'a "b\\\n'): 1,
            ("pull_rows", "w"): 1,
            ("barrier", ""): 1,
        }
        assert watch.timings["push", "w"].nbytes == 160
        assert 0 < watch.timings["push", "w"].percentile(0.5) < 1
        samples = [LINE.fullmatch(line) for line in watch.prometheus().splitlines() if not line.startswith("#")]
        assert all(samples)
        found = {(sample[1], sample[2]): float(sample[3]) for sample in samples if sample}
        assert found["mezzo_kv_seconds_count", 'verb="push",key="w",rank="0"'] == 4
        assert found["mezzo_kv_value_bytes_total", 'verb="pushpull",key="a \\"b\\\\\\n",rank="0"'] == 24
        watch.write_prometheus(tmp_path / "kv.prom")
        assert (tmp_path / "kv.prom").read_text().endswith("\n")
        watch.write_trace(tmp_path / "0.json")
    assert capfd.readouterr().err == ""
    mz.kv.merge_traces([tmp_path / "0.json", tmp_path / "0.json"], tmp_path / "all.json")
    events = json.loads((tmp_path / "all.json").read_text())["traceEvents"]
    waits = [event for event in events if "waits" in (event["name"], event["args"].get("name"))]
    assert len(events) - len(waits) == 2 * (12 + 3)  # each key has a name of its own
    spans = [event for event in events if event["ph"] == "X"]
    assert all(event["ts"] >= 0 and event["dur"] >= 0 for event in spans)
    with pytest.raises(InputError, match="no trace"):
        mz.kv.merge_traces([tmp_path / "kv.prom"], tmp_path / "none.json")
    with mz.kv.create("local") as kv, pytest.raises(InputError, match="keeps no trace"):
        kv.watch().write_trace(tmp_path / "none.json")


def test_a_step_is_told_by_its_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the scheduler tells of this worker, among others."""
    parts = {"compute": 0.5, "data": 0.25, "network": 0.125, "others": 0.0625}
    mine: Seen = ("worker", 0, "a", 0.0, {"steps": 7.0, "rate": 1.0, **parts})
    others: list[Seen] = [("server", 0, "a", 0.0, {}), ("worker", 1, "a", 0.0, {**mine[4], "compute": 9.0})]
    with mz.kv.create("local") as kv:
        watch = kv.watch()
        assert "mezzo_kv_step_seconds{" not in watch.prometheus()
        monkeypatch.setattr(watch.backend, "overview", lambda: Overview(0, 3, (*others, mine), 2))
        samples = [LINE.fullmatch(line) for line in watch.prometheus().splitlines() if "_step" in line]
    found = {(sample[1], sample[2]): float(sample[3]) for sample in samples if sample}
    told = {("mezzo_kv_step_seconds", f'part="{part}",rank="0"'): value for part, value in parts.items()}
    assert found == {**told, ("mezzo_kv_steps_total", 'rank="0"'): 7}


def test_what_overlaps_has_rows_of_its_own(tmp_path: Path) -> None:
    """The format has no complete events in one thread that overlap, and numbers of threads; these were names."""
    with mz.kv.create("local") as kv:
        watch = kv.watch(trace=True)
        spans = [("pull", "w", 1.2, 0.1), ("push", "w", 0.0, 1.0), ("push", "w", 0.5, 1.0), ("push", "v", 0, 3)]
        watch._spans = [Span(f"{verb} {key}", "kv", key, began, took, {}) for verb, key, began, took in spans]
        watch.write_trace(tmp_path / "0.json")
    events = json.loads((tmp_path / "0.json").read_text())["traceEvents"]
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    shown = sorted((e["tid"], e["ts"], e["ts"] + e["dur"], e["name"]) for e in events if e["ph"] == "X")
    assert sorted(names.values()) == ["v", "w", "w"]
    assert all(name.split()[1] == names[tid] for tid, _, _, name in shown)
    for (tid, _, end, _), (other, begin, _, _) in pairwise(shown):
        assert tid != other or end <= begin


def test_a_line_for_each_event(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("MEZZO_KV_VERBOSE", "1")
    with mz.kv.create("local") as kv:
        busy(kv)
        with pytest.raises(ShapeError):
            kv.push("w", np.ones(3, np.float32))
    lines: list[dict[str, Any]] = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    said = [line["event"] for line in lines]
    assert said == ["join", "init", "init", *["push", "pull"] * 4, "pushpull", "pull_rows", "barrier", "close"]
    assert lines[3].keys() == {"time", "rank", "event", "key", "ms", "bytes"}
    assert lines[3]["bytes"] == 40
