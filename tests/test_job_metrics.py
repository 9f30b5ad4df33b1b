"""`mezzo launch --metrics`: what is told of a job, to whom, and that the dashboard asks for nothing else."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from mezzo.kvstore.create import create
from mezzo.ops.errors import InputError, MissingPackage, ModelError
from mezzo.tools import job_outputs
from mezzo.tools.cli import cli
from mezzo.tools.job_metrics import METRICS, JobMetrics
from mezzo.tools.job_outputs import ToReaders, measured

ROOT = Path(__file__).parents[1]
DASHBOARD = ROOT / "docs/examples/grafana.json"
LONG = 60.0  # seconds: ten times what anything here takes
SAMPLE = re.compile(r"(mezzo_\w+)(?:\{(.*)\})? (\S+)")
SCRIPT = """
import time
from pathlib import Path
import numpy as np
import mezzo as mz

with mz.kv.create("dist_async") as kv:
    kv.init("w", np.zeros(100, np.float32))
    while not Path("seen").exists():
        time.sleep(0.01 + 0.05 * kv.rank)
        kv.pushpull("w", np.ones(100, np.float32))
        kv.stepped(0.25)
"""
SEEN: dict[str, Any] = {
    "workers": [
        {"rank": 0, "host": "a", "state": "trains", "steps": 7, "rate": 2.0, "loss": None, "compute": 0.25, "data": 0.0,
         "network": 0.125, "others": 0.125, "inside": 1e6, "between": None, "behind": None, "heard": 0.5},
        {"rank": 1, "state": "not here"},
    ],
    "others": [{"role": "server", "rank": 0, "host": "b", "heard": 0.25}],
    "straggler": {"rank": 0, "cause": "data", "seconds": 0.5, "by": 0.25, "said": ""},
}  # fmt: skip


def samples(text: str) -> dict[str, dict[str, float]]:
    """By name the value of each set of labels."""
    made: dict[str, dict[str, float]] = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            found = SAMPLE.fullmatch(line)
            assert found, line
            made.setdefault(found[1], {})[found[2] or ""] = float(found[3])
    return made


def looked() -> JobMetrics:
    metrics = JobMetrics()
    metrics.attempts = 2
    metrics.look(SEEN)
    return metrics


def test_what_is_told_of_a_look() -> None:
    told = samples(looked().text())
    assert told["mezzo_job_up"] == {"": 1}
    assert told["mezzo_job_attempts_total"] == {"": 2}
    assert told["mezzo_job_workers"] == {'state="here"': 1, 'state="expected"': 2}
    assert told["mezzo_job_steps_total"] == {'host="a",rank="0"': 7}
    assert told["mezzo_job_step_seconds"]['host="a",part="network",rank="0"'] == 0.125
    assert told["mezzo_job_moved_bytes_per_second"] == {'host="a",level="inside",rank="0"': 1e6}
    assert told["mezzo_job_heard_seconds"]['host="b",rank="0",role="server"'] == 0.25
    assert told["mezzo_job_straggler_seconds"] == {'cause="data",rank="0"': 0.5}
    assert not {"mezzo_job_loss", "mezzo_job_behind"} & told.keys(), "nobody knows them"
    assert set(told) <= set(METRICS)


def until(found: Callable[[], Any]) -> Any:
    end = time.monotonic() + LONG
    while not (made := found()):
        assert time.monotonic() < end, "nothing came"
        time.sleep(0.05)
    return made


@contextmanager
def running(folder: Path, where: str) -> Iterator[subprocess.Popen[str]]:
    """A job that trains until `seen` is there; how it ends is its exit code."""
    (folder / "work.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "mezzo", "launch", "-n", "2", "-s", "0", "--metrics", where, "work.py"]
    job = subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True)
    try:
        yield job
        (folder / "seen").touch()
        job.communicate(timeout=LONG)
        assert job.returncode == 0
    finally:
        job.kill()
        job.communicate()


def test_prometheus_reads_a_running_job(tmp_path: Path) -> None:
    with running(tmp_path, "0") as job:
        assert job.stderr is not None
        said = re.search(r"http://\S+", next(line for line in job.stderr if "metrics: http" in line))
        assert said is not None

        def asked() -> dict[str, dict[str, float]] | None:
            with urllib.request.urlopen(said[0], timeout=LONG) as answer:
                assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
                told = samples(answer.read().decode())
            return told if len(told.get("mezzo_job_step_seconds", ())) == 8 else None

        told = until(asked)
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(said[0].replace("metrics", "other"), timeout=LONG)
    assert told["mezzo_job_up"] == {"": 1}
    assert set(told["mezzo_job_loss"].values()) == {0.25}
    fast, slow = (next(v for k, v in told["mezzo_job_steps_per_second"].items() if f'"{r}"' in k) for r in (0, 1))
    assert fast > slow > 0
    assert told.keys() >= {"mezzo_job_steps_total", "mezzo_job_behind", "mezzo_job_moved_bytes_per_second"}


def test_a_file_for_node_exporter(tmp_path: Path) -> None:
    path = tmp_path / "job.prom"
    with running(tmp_path, str(path)):
        until(lambda: path.exists() and samples(path.read_text()).get("mezzo_job_loss"))
    assert samples(path.read_text())["mezzo_job_up"] == {"": 0}, "it has ended"


def test_what_cannot_be(tmp_path: Path) -> None:
    metrics = JobMetrics()
    taken = ToReaders(metrics, 0)
    try:
        with pytest.raises(InputError, match=f"port {taken.port} cannot be had"):
            ToReaders(metrics, taken.port)
    finally:
        taken.close()
    (tmp_path / "work.py").write_text("raise SystemExit(3)")
    wrong = CliRunner().invoke(cli, ["launch", "-n", "1", "--metrics", f"{tmp_path}/no/file", f"{tmp_path}/work.py"])
    assert isinstance(wrong.exception, ModelError)
    assert "no/file" in str(wrong.exception)


def test_without_opentelemetry(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("opentelemetry", "opentelemetry.metrics", "opentelemetry.exporter"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingPackage, match="not installed") as caught, measured(lambda scale: (), "http://here"):
        pass
    assert "mezzo[opentelemetry]" in str(caught.value)


def test_opentelemetry_reads_the_same() -> None:
    export = pytest.importorskip("opentelemetry.sdk.metrics.export")
    from mezzo.tools.telemetry import observed

    metrics, reader = looked(), export.InMemoryMetricReader()
    provider = observed(metrics, reader)
    (resource,) = reader.get_metrics_data().resource_metrics
    (scope,) = resource.scope_metrics
    provider.shutdown()
    assert resource.resource.attributes["service.name"] == "mezzo"
    for metric in scope.metrics:
        points = [(dict(p.attributes), p.value) for p in metric.data.data_points]
        assert sorted(points, key=str) == sorted(metrics.values(metric.name), key=str), metric.name
        assert getattr(metric.data, "is_monotonic", False) == (METRICS[metric.name][0] == "counter")
    assert {metric.name for metric in scope.metrics} == {name for name in METRICS if metrics.values(name)}


def test_a_collector_hears_of_them() -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

    heard: list[Any] = []

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            heard.append(ExportMetricsServiceRequest.FromString(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        metrics = looked()
        job_outputs.output_of(metrics, f"http://127.0.0.1:{server.server_address[1]}/v1/metrics").close()
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    found = [metric for each in heard[0].resource_metrics for scope in each.scope_metrics for metric in scope.metrics]
    assert {metric.name for metric in found} == {name for name in METRICS if metrics.values(name)}
    (steps,) = (metric for metric in found if metric.name == "mezzo_job_steps_total")
    assert steps.sum.data_points[0].as_int == 7


def test_the_dashboard_asks_for_what_is_written() -> None:
    asked = set(re.findall(r"mezzo_\w+", DASHBOARD.read_text()))
    with create("local") as kv:
        watch = kv.watch()
        kv.init("w", np.zeros(3))
        kv.push("w", np.ones(3))
        written = set(samples(watch.prometheus()))
    assert len(asked) > 8
    assert asked <= set(METRICS) | written
    assert set(METRICS) <= asked, "and it shows all that there is of a job"


def test_the_dashboard_fits_its_schema() -> None:
    pytest.importorskip("grafana_foundation_sdk")
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.cog.plugins import register_default_plugins
    from grafana_foundation_sdk.models.dashboard import Dashboard

    register_default_plugins()
    given = json.loads(DASHBOARD.read_text())
    assert json.loads(JSONEncoder().encode(Dashboard.from_json(given))) == given, "what is no field of it is lost"
    assert all(panel["targets"] for panel in given["panels"])
