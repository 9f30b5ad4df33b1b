"""Forecasts of a job from the parts of its steps, and dry runs that measure them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from mezzo.ops.errors import InputError
from mezzo.tools.forecast import MeasuredSteps, forecast
from mezzo.tools.job import Operation, Traced, TracedJob, WorkerStep

from .test_job import worker

SCRIPT = """
import sys
import numpy as np
import mezzo as mz
from mezzo.runtime.ir.graph import GraphBuilder
from mezzo.ops.types import f32

g = GraphBuilder("net")
graph = g.graph([g.MatMul(g.input("x", f32("n", 4)), g.const(np.ones((4, 3), np.float32)))])
with mz.kv.create("dist_sync") as kv:
    trainer = mz.Trainer(graph, kvstore=kv)
    for step in range(1000):
        trainer.step({"x": np.ones((2, 4), np.float32), "target": np.zeros(2, np.int64)})
print("to the end")
"""


def steps_of(rank: int, hosts: int = 2) -> Traced:
    """Three steps of 10 and 11 seconds: 6 of computing by rank 0 and 8 by rank 1; what is pushed arrives 2 later."""
    steps = [WorkerStep(10.0 * i, 10.0 * i + 10, 0.0, None) for i in range(3)]
    began = (6.0, 8.0)[rank]
    moves = [Operation("pushpull", "k", 10.0 * i + began, 10.0 * i + 10, 8) for i in range(3)]
    return worker(rank, *moves, steps=steps, host=f"h{rank % hosts}", between=400)


def test_the_parts_of_a_job() -> None:
    measured = MeasuredSteps.of(TracedJob([steps_of(0), steps_of(1)]), servers=1)
    assert measured.alone == [6.0, 6.0, 8.0, 8.0]  # the first step of each is left out
    assert measured.slowest(1) == 7.0
    assert measured.slowest(2) == 7.5
    assert measured.slowest(1000) == pytest.approx(8.0)
    assert measured.exposed == 2.5  # beyond the slowest of two
    assert measured.network == 2.5
    assert measured.nbytes == 100
    assert measured.step(2, 2, 1) == (10.0, 2.5)


def test_what_a_server_moves_grows_with_its_hosts() -> None:
    measured = MeasuredSteps.of(TracedJob([steps_of(0), steps_of(1)]), servers=1)
    assert measured.travels(2, 1) == 2.5
    assert measured.travels(8, 4) == 2.5
    assert measured.travels(8, 1) == 10.0
    assert measured.travels(8, 1, 0.5) == 5.0
    assert measured.travels(2, 4) == 1.25, "a worker's own bytes are the least"
    hidden = MeasuredSteps(2, 2, 1, [7.0], 4.0, 1.0, 0.0)
    assert hidden.step(2, 2, 1) == (8.0, 1.0)
    assert hidden.step(4, 4, 1) == (12.0, 5.0)
    assert hidden.step(2, 2, 1, overlap=False) == (11.0, 4.0)
    assert hidden.step(2, 2, 1, 0.5) == (7.0, 0.0)


def test_a_table_of_more_workers() -> None:
    table = forecast(MeasuredSteps(4, 2, 1, [1.0], 0.5, 0.5, 0.0))
    rows = table.records()
    assert [(r["workers"], r["hosts"], r["servers"]) for r in rows] == [
        (4, 2, 1),
        (8, 4, 2),
        (64, 32, 16),
        (512, 256, 128),
    ]
    assert {r["step ms"] for r in rows} == {"1500.00"}
    assert [r["same servers %"] for r in rows[:2]] == ["66.7", "50.0"]
    assert [r["one level %"] for r in rows[:2]] == ["50.0", "50.0"]


def test_what_no_forecast_can_be_made_of() -> None:
    with pytest.raises(InputError, match="worker 0, worker 1 told of no more than 1 step"):
        MeasuredSteps.of(TracedJob([worker(0), worker(1)]), 1)
    with pytest.raises(InputError, match="in rounds"):
        MeasuredSteps.of(TracedJob([steps_of(0)], missing=[1]), 1)


def launched(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mezzo", "launch", "-n", "2", *options, "--dry-run", "5", "script.py"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("options", [("--hosts", "2"), ("-s", "0", "--trace", "kept")])
def test_a_dry_run_ends_after_its_steps(options: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    made = launched(tmp_path, *options)
    assert made.returncode == 0, made.stderr
    assert "to the end" not in made.stdout
    assert "ended with" not in made.stderr
    assert "Expected steps of more workers" in made.stdout
    assert (tmp_path / "kept").is_dir() == ("kept" in options)
    if "kept" in options:
        job = TracedJob.read(tmp_path / "kept")
        assert [len(one.steps) for one in job.workers] == [5, 5]
        assert np.isfinite(job.losses()).all()


GLUON = """
import mezzo as mz
import numpy as np

with mz.kv.create("dist_sync") as kv:
    net = mz.gluon.nn.Dense(2, in_units=3)
    net.initialize()
    trainer = mz.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1}, kvstore=kv)
    for _ in range(50):
        with mz.autograd.record():
            loss = net(mz.nd.ones((4, 3))).sum()
        loss.backward()
        trainer.step(4)
print("it went on")
"""


def test_steps_of_a_trainer_of_blocks_count(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(GLUON)
    command = [sys.executable, "-m", "mezzo", "launch", "-n", "2", "--dry-run", "5", "script.py"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "it went on" not in ended.stdout
    assert "8 workers" in ended.stdout or "64" in ended.stdout, ended.stdout


def test_a_job_that_fails_has_no_forecast(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("import sys; sys.exit(3)")
    made = launched(tmp_path)
    assert made.returncode == 3
    assert "Expected" not in made.stdout
