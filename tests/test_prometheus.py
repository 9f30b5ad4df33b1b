"""A Prometheus of its own makers reads a running job, and answers every question of the dashboard."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from .test_job_metrics import DASHBOARD, LONG, running, until

pytestmark = pytest.mark.soak
CONFIG = """
global: {{scrape_interval: 1s}}
scrape_configs: [{{job_name: mezzo, static_configs: [{{targets: ['{target}']}}]}}]
"""
OF_WORKERS = "mezzo_kv_"  # what each worker writes for node_exporter: no job tells it
ONLY_SOMETIMES = {"mezzo_job_straggler_seconds", "mezzo_job_behind"}


def questions() -> list[str]:
    return sorted(set(re.findall(r'"expr": "(.*?)",\n', DASHBOARD.read_text())))


@contextmanager
def prometheus(folder: Path, target: str) -> Iterator[str]:
    """The address of a Prometheus that reads `target`."""
    (folder / "prometheus.yml").write_text(CONFIG.format(target=target))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    command = ["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
    with (folder / "prometheus.log").open("w") as log:
        server = subprocess.Popen([*command, f"--web.listen-address={address}"], stdout=log, stderr=log)
        try:
            yield f"http://{address}"
        finally:
            server.terminate()
            server.wait(LONG)


def answer(address: str, expression: str) -> Sequence[Any]:
    """The series that an expression has now, none where Prometheus has not begun."""
    asked = urllib.parse.urlencode({"query": expression})
    try:
        with urllib.request.urlopen(f"{address}/api/v1/query?{asked}", timeout=LONG) as said:
            series: list[Any] = json.load(said)["data"]["result"]
    except urllib.error.HTTPError as error:
        if error.code != 503:  # it is starting
            raise
        return []
    except urllib.error.URLError:
        return []
    return series


@pytest.mark.skipif(shutil.which("prometheus") is None, reason="there is no prometheus")
def test_prometheus_answers_the_dashboard(tmp_path: Path) -> None:
    with running(tmp_path, "0") as job:
        assert job.stderr is not None
        said = re.search(r"http://(\S+)/metrics", next(line for line in job.stderr if "metrics: http" in line))
        assert said is not None
        with prometheus(tmp_path, said[1]) as address:
            until(lambda: answer(address, "mezzo_job_loss"))
            time.sleep(3)  # two readings: rates have a first and a last one
            expressions = [text.replace('\\"', '"') for text in questions()]
            answered = {text: answer(address, text) for text in expressions if OF_WORKERS not in text}
            kinds = answer(address, "mezzo_job_up")[0]["metric"]
    assert kinds["job"] == "mezzo"
    assert len(answered) > 8
    assert {text for text, series in answered.items() if not series} <= ONLY_SOMETIMES
