"""Metrics of a running job, for `mezzo launch --metrics`: what the scheduler knows of each process."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from typing import Any

from ..kvstore.protocol.pace import PARTS
from .serve.metrics import Tally
from .top import RATES

Sample = tuple[str, float | None, dict[str, str]]  # a metric, its value if it is known, labels

# Name -> its kind, and what it is. Labels: rank and host, beside those that are named here.
METRICS: dict[str, tuple[str, str]] = {
    "mezzo_job_up": ("gauge", "1 while the scheduler of the job answers."),
    "mezzo_job_attempts_total": ("counter", "How often the job was begun."),
    "mezzo_job_workers": ("gauge", "Workers of the job, by state: here, or expected."),
    "mezzo_job_steps_total": ("counter", "Steps of each worker since its first report."),
    "mezzo_job_steps_per_second": ("gauge", "Steps by the second of each worker, in the last seconds."),
    "mezzo_job_loss": ("gauge", "The last loss that each worker told."),
    "mezzo_job_step_seconds": ("gauge", "The mean step of the last seconds, by what it is made of (part)."),
    "mezzo_job_moved_bytes_per_second": ("gauge", "Bytes that move within hosts and between them (level)."),
    "mezzo_job_behind": ("gauge", "The mean number of steps that pulls were behind, where workers do not wait."),
    "mezzo_job_heard_seconds": ("gauge", "Seconds since each process was heard (role)."),
    "mezzo_job_straggler_seconds": ("gauge", "What a step of the slowest rank takes more than others', by its cause."),
}
OF_WORKERS = {
    "mezzo_job_steps_total": "steps",
    "mezzo_job_steps_per_second": "rate",
    "mezzo_job_loss": "loss",
    "mezzo_job_behind": "behind",
}


class JobMetrics:
    """The metrics as they were last seen."""

    def __init__(self) -> None:
        self.attempts = 0
        self._lock = threading.Lock()
        self._tallies: dict[str, Tally] = {}
        self.look(None)

    def look(self, seen: Mapping[str, Any] | None) -> None:
        """Take a look (`top.view`); None where there is no job."""
        tallies = {name: Tally(name, about, kind) for name, (kind, about) in METRICS.items()}
        own = {"mezzo_job_up": float(seen is not None), "mezzo_job_attempts_total": float(self.attempts)}
        given: list[Sample] = [(name, value, {}) for name, value in own.items()]
        for name, value, labels in [*given, *([] if seen is None else _samples(seen))]:
            if value is not None:
                tallies[name].set(value, **labels)
        with self._lock:
            self._tallies = tallies

    def values(self, name: str) -> list[tuple[dict[str, str], float]]:
        """Labels and value of each sample of a metric."""
        with self._lock:
            return [(dict(labels), value) for labels, value in self._tallies[name].values.items()]

    def text(self) -> str:
        """All of them as Prometheus reads them."""
        with self._lock:
            return "\n".join(line for each in self._tallies.values() for line in each.lines()) + "\n"


def _samples(seen: Mapping[str, Any]) -> Iterator[Sample]:
    """Yield samples of the processes of a job."""
    here = [row for row in seen["workers"] if row["state"] not in ("not here", "has left")]
    yield "mezzo_job_workers", len(here), {"state": "here"}
    yield "mezzo_job_workers", len(seen["workers"]), {"state": "expected"}
    for row in here:
        who = {"rank": str(row["rank"]), "host": row["host"]}
        for name, key in OF_WORKERS.items():
            yield name, row.get(key), who
        for part in PARTS:
            yield "mezzo_job_step_seconds", row.get(part), {**who, "part": part}
        for level in RATES:
            yield "mezzo_job_moved_bytes_per_second", row.get(level), {**who, "level": level}
    for row in (*({**row, "role": "worker"} for row in here), *seen["others"]):
        labels = {"rank": str(row["rank"]), "host": row["host"], "role": row["role"]}
        yield "mezzo_job_heard_seconds", row["heard"], labels
    if (slow := seen["straggler"]) is not None:
        yield "mezzo_job_straggler_seconds", slow["seconds"], {"rank": str(slow["rank"]), "cause": slow["cause"]}
