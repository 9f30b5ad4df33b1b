"""Forecasts of a job's steps beside measured ones (tools/forecast.py): 4 and 8 workers, from a dry run of 2.

Each worker waits for 40 ms (it would compute, but workers share processors here) and pushes a key of 4 MB; every worker
is a host of its own, all with one server. A round is a dry run of each size; the figure is the measured step in ms, the
peer the forecast from 2 workers, which knows nothing of the larger jobs.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

HERE = Path(__file__).resolve()
sys.path.append(str(HERE.parent))

from rows import Row, arguments, machine, show, users_environment  # noqa: E402

import mezzo as mz  # noqa: E402
from mezzo.tools.forecast import FIRST, MeasuredSteps  # noqa: E402
from mezzo.tools.job import TracedJob  # noqa: E402

STEPS, COMPUTES, SIZE = 40, 0.04, 1_000_000  # steps, seconds, elements
SIZES = (2, 4, 8)


def worker() -> None:
    """A worker of the job."""
    with mz.kv.create("dist_sync") as kv:
        kv.init("w", np.zeros(SIZE, np.float32))
        gradient = np.ones(SIZE, np.float32)
        kv.stepped()
        for _ in range(2 * STEPS):
            time.sleep(COMPUTES)
            kv.pushpull("w", gradient)
            kv.stepped(1.0)


def measured(workers: int) -> tuple[float, MeasuredSteps]:
    """The mean step of a dry run in seconds, and its parts."""
    with TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "mezzo", "launch", "-n", str(workers), "--hosts", str(workers), "-s", "1"]
        command += ["--trace", folder, "--dry-run", str(STEPS), str(HERE), "worker"]
        subprocess.run(command, check=True, env=users_environment(), stdout=subprocess.DEVNULL, timeout=300)
        job = TracedJob.read(Path(folder))
    steps = [step.ended - step.began for one in job.workers for step in one.steps[FIRST:]]
    return statistics.mean(steps), MeasuredSteps.of(job, 1)


def main() -> None:
    if sys.argv[1:2] == ["worker"]:
        worker()
        return
    args = arguments(__doc__)
    rounds = 5 if args.quick else 15
    times: dict[int, list[float]] = {n: [] for n in SIZES}
    expected: dict[int, list[float]] = {n: [] for n in SIZES}
    for _ in range(rounds):
        for n in SIZES:
            took, parts = measured(n)
            times[n].append(1e3 * took)
            if n == SIZES[0]:
                small = parts
            expected[n].append(1e3 * small.step(n, n, 1)[0])
    rows, notes = list[Row](), [machine()]
    for n in SIZES:
        row = Row(f"{n} workers", "ms", statistics.median(times[n]), {"forecast": statistics.median(expected[n])})
        off = [100 * (e / t - 1) for e, t in zip(expected[n], times[n], strict=True)]
        rows.append(row)
        notes.append(
            f"{row.case}: the forecast is {statistics.median(off):+.1f} % off ({min(off):+.1f} to {max(off):+.1f})"
        )
    show(rows, args, notes)


if __name__ == "__main__":
    main()
