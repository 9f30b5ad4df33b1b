"""Manifests for clusters: Kubeflow Trainer's fits its schema, and what its pods run tells the worker who it is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mezzo.kvstore.schedulers import scheduled

KUBEFLOW = Path(__file__).parents[1] / "docs/examples/kubeflow.yaml"


def documents() -> list[dict[str, Any]]:
    yaml = pytest.importorskip("yaml")
    return list(yaml.safe_load_all(KUBEFLOW.read_text()))


def test_kubeflows_manifests_fit_their_schema() -> None:
    """Nothing is lost on the way through the classes of its schema, which drop what is no field."""
    models = pytest.importorskip("kubeflow_trainer_api.models")
    runtime, job = documents()
    for document in (runtime, job):
        found = getattr(models, f"TrainerV1alpha1{document['kind']}").from_dict(document)
        assert found.to_dict() == document
    reference = job["spec"]["runtimeRef"]
    assert (reference["kind"], reference["name"]) == (runtime["kind"], runtime["metadata"]["name"])
    assert runtime["apiVersion"].partition("/")[0] == reference["apiGroup"]


def test_a_pod_of_kubeflow_is_a_worker(tmp_path: Path) -> None:
    runtime, _ = documents()
    (node,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    assert node["template"]["metadata"]["labels"] == {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    (container,) = node["template"]["spec"]["template"]["spec"]["containers"]
    python = tmp_path / "python"  # what would run the lesson tells its variables instead
    python.write_text(
        f"#!{sys.executable} -S\nimport os, sys\nprint(*sys.argv[1:], *map('='.join, os.environ.items()))"
    )
    python.chmod(0o755)
    pets = {"PET_NODE_RANK": "2", "PET_NNODES": "4", "PET_MASTER_ADDR": "lesson-node-0-0.lesson"}
    told = {"PATH": f"{tmp_path}:{os.defpath}", "PET_MASTER_PORT": "29400", **pets}
    command = [*container["command"], *container["args"]]
    script, *said = subprocess.run(command, env=told, capture_output=True, text=True, check=True).stdout.split()
    assert script == "/lesson/lesson.py"
    worker = scheduled(dict(each.split("=", 1) for each in said))
    assert worker is not None
    assert (worker.rank, worker.workers, worker.local_rank, worker.hosts) == (2, 4, 0, 4)
    assert (worker.address, worker.port) == ("lesson-node-0-0.lesson", 29400)
