"""Traces of a job, what is read from them, and the page that shows it."""

from __future__ import annotations

import json
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import mezzo as mz
from mezzo.tools.cli import cli
from mezzo.tools.job import Operation, Traced, TracedJob, WorkerStep
from mezzo.tools.job_page import page

SCRIPT = """
import time
import numpy as np
import mezzo as mz

with mz.kv.create("dist_sync") as kv:
    kv.init("<w>", np.zeros(1000, np.float32))
    def batches():
        for step in range(12):
            if kv.rank == 1:
                time.sleep(0.05)
            yield np.ones(1000, np.float32)
    kv.stepped(1.0)
    for step, batch in enumerate(kv.batches(batches())):
        if kv.rank == 0:
            time.sleep(0.01)
        kv.pushpull("<w>", batch)
        kv.stepped(1 / (step + 2))
"""


def worker(rank: int, *operations: Operation, steps: Any = (), workers: int = 2, **about: Any) -> Traced:
    told = {"rank": rank, "workers": workers, "kind": "dist_sync", "host": "h", "inside": 10, "between": 0}
    told |= {"rounds": True, "cut": False, **about}
    waits = [(o.began, o.ended) for o in operations]
    return Traced(told, operations, waits, steps)


def test_who_waits_for_whom_is_told_by_rounds() -> None:
    """The n-th push of a key is of one round; a pull belongs to the last push of it; nobody waits for himself."""
    a = worker(0, Operation("pushpull", "k", 1.0, 4.0, 8), Operation("pushpull", "k", 5.0, 6.0, 8))
    b = worker(1, Operation("push", "k", 3.0, 3.0, 8), Operation("pull", "k", 3.0, 4.0, 8),
               Operation("push", "k", 4.0, 4.1, 8), Operation("pull", "k", 4.1, 6.0, 8))  # fmt: skip
    job = TracedJob([a, b])
    assert [dict(by) for by in job.blamed] == [{1: [(1.0, 3.0)]}, {0: [(4.1, 5.0)]}]
    assert TracedJob([a, worker(1, rounds=False)]).blamed == [{}, {}]
    assert TracedJob([a], missing=[1]).blamed == [{}]
    assert job.report().facts.get("cut") is None
    assert "worker 1 end early" in TracedJob([a, worker(1, cut=True)]).report().facts["cut"]


def test_parts_of_a_step_and_of_a_piece_of_it() -> None:
    a = worker(0, Operation("pushpull", "k", 1.0, 4.0, 8), steps=[WorkerStep(0.0, 5.0, 0.5, 2.0)])
    b = worker(1, Operation("pushpull", "k", 3.0, 4.0, 8), steps=[WorkerStep(0.0, 5.0, 0.0, 4.0)])
    job = TracedJob([a, b])
    assert job.parts(0) == {"compute": 1.5, "data": 0.5, "network": 1.0, "others": 2.0}
    assert job.parts(0, 0.25, 2.0) == {"compute": 0.5, "data": 0.25, "network": 0.0, "others": 1.0}
    assert job.losses() == [3.0]


def test_a_job_is_traced_and_told(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    launch = [sys.executable, "-m", "mezzo", "launch", "-n", "2", "-s", "0", "--trace", "kept", "script.py"]
    subprocess.run(launch, cwd=tmp_path, check=True, timeout=100)
    kept, html = tmp_path / "kept", tmp_path / "job.html"
    assert sorted(path.name for path in kept.iterdir()) == ["trace-0.json", "trace-1.json"]
    told = CliRunner().invoke(cli, ["report", str(kept), "-o", str(html), "--json"])
    assert told.exit_code == 0, told.output
    found = json.loads(told.stdout)
    first, second = found["what_a_step_is_made_of"]
    assert first["steps"] == second["steps"] == 12
    assert float(second["data ms"]) > 45
    assert float(first["compute ms"]) > 9
    assert float(first["others ms"]) > 5 + float(second["others ms"])
    waits = {row["seconds of"]: row for row in found["who_waited_for_whom"]}
    assert float(waits["worker 0"]["for worker 1"]) > 12 * 0.005
    assert {row["key"] for row in found["the_slowest_keys"]} == {"<w>"}
    assert "1 in the first" not in found["loss"]  # the first call begins the count
    checked(html.read_text("utf8"))
    merged = tmp_path / "all.json"
    mz.kv.merge_traces(sorted(kept.iterdir()), merged)
    kinds = {event["cat"] for event in json.loads(merged.read_text())["traceEvents"] if event["ph"] == "X"}
    assert kinds == {"kv", "wait", "step"}

    (kept / "trace-0.json").unlink()
    alone = CliRunner().invoke(cli, ["report", str(kept), "-o", str(html), "--json"])
    assert json.loads(alone.stdout)["no trace of"].startswith("workers 0;")
    checked(html.read_text("utf8"))


def checked(text: str) -> None:
    """A page that is well formed, asks for nothing from elsewhere, and has no name of a user's as a tag."""
    open_tags, void = list[str](), {"meta", "br"}

    class Page(HTMLParser):
        def handle_starttag(self, tag: str, attrs: Any) -> None:
            assert tag != "w"
            assert not {"src", "href"} & {name for name, _ in attrs}
            if tag not in {*void, "rect", "path", "line", "polyline", "circle"}:
                open_tags.append(tag)

        def handle_endtag(self, tag: str) -> None:
            if tag in open_tags:
                assert open_tags.pop() == tag

    Page().feed(text)
    assert not open_tags
    assert "&lt;w&gt;" in text


def test_a_job_without_steps_or_operations_has_a_page() -> None:
    for workers in ([worker(0), worker(1)], [worker(0, workers=1)]):
        assert "A job" in page(TracedJob(workers))


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({}, "there are no traces"),
        ({"trace-0.json": "{}"}, "no trace of a worker"),
        ({"trace-0.json": '{"traceEvents": []}'}, "otherData"),
        ({"trace-0.json": '{"traceEvents": [{"ph": "X"}], "otherData": {"rank": 0, "workers": 1, "kind": "x", '
          '"host": "h", "inside": 0, "between": 0, "rounds": true, "cut": false}}'}, "ts"),
    ],
)  # fmt: skip
def test_what_is_no_trace_is_named(tmp_path: Path, files: dict[str, str], said: str) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(mz.InputError, match=said):
        TracedJob.read(tmp_path)
