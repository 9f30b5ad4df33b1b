"""Other launchers than ours: a training begun by mpirun, by srun, or on hosts by the variables that Kubernetes' pods
have (docs/examples/kubernetes.yaml), comes to the bits of `mezzo launch`. Each is skipped where it is not installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from mezzo.kvstore.recording import recorded_in

from .conftest import ROOT
from .test_kv_hosts import Hosts, made_hosts

pytestmark = pytest.mark.soak
LESSON = """
import mezzo as mz
from mezzo.models.digits import digits_model, held_out

data = held_out()
with mz.kv.create("dist_sync") as kv:
    trainer = mz.Trainer(digits_model(), optimizer="adam", kvstore=kv, threads=1)
    for step in range(5):
        at = slice(64 * step + 16 * kv.rank, 64 * step + 16 * kv.rank + 16)
        trainer.step((data.inputs[at], data.labels[at]))
"""
WORKERS = 4


@pytest.fixture(scope="module")
def lesson(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("lesson") / "lesson.py"
    path.write_text(LESSON)
    return path


@pytest.fixture(scope="module")
def wanted(lesson: Path) -> Mapping[str, Mapping[str, str]]:
    launch = [sys.executable, "-m", "mezzo", "launch", "-n", str(WORKERS), "-s", "0", "--record", "kept", str(lesson)]
    subprocess.run(launch, cwd=lesson.parent, env=clean(), check=True, timeout=200)
    return digests(lesson.parent / "kept")


def digests(folder: Path) -> dict[str, Mapping[str, str]]:
    return {name: found.digests for name, found in recorded_in(folder).items()}


def clean(**given: str) -> dict[str, str]:
    inherited = {n: v for n, v in os.environ.items() if not n.startswith(("DMLC_", "MEZZO_", "RANK", "WORLD_"))}
    return {**inherited, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src"), **given}


@pytest.mark.parametrize(
    ("program", "command"),
    [
        ("mpirun", ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", str(WORKERS)]),
        ("srun", ["srun", "--overcommit", "-n", str(WORKERS)]),
    ],
)
def test_a_launcher_comes_to_the_same_bits(
    program: str, command: list[str], lesson: Path, wanted: Mapping[str, Mapping[str, str]], tmp_path: Path
) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"there is no {program}")
    if program == "srun" and subprocess.run(["sinfo"], capture_output=True, timeout=60, check=False).returncode:
        pytest.skip("no Slurm runs here")
    given = clean(MEZZO_RECORD=str(tmp_path), MEZZO_KV_DEADLINE="60")
    subprocess.run([*command, sys.executable, str(lesson)], env=given, cwd=lesson.parent, check=True, timeout=200)
    assert digests(tmp_path) == wanted


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    with made_hosts("abcd") as made:
        yield made


def test_hosts_come_to_the_same_bits(
    hosts: Hosts, lesson: Path, wanted: Mapping[str, Mapping[str, str]], tmp_path: Path
) -> None:
    """A worker on each of four hosts, with the variables of pods; the key is theirs."""
    place = {"WORLD_SIZE": str(WORKERS), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "MASTER_PORT": "29500"}
    place |= {"MASTER_ADDR": hosts.address("a"), "MEZZO_JOB_KEY": "of this job", "MEZZO_RECORD": str(tmp_path)}
    job = [
        subprocess.Popen(
            hosts.on(name, sys.executable, str(lesson)), cwd=lesson.parent,
            env=clean(**place, RANK=str(rank), MEZZO_HOST=f"host-{name}", MEZZO_KV_DEADLINE="60"),
        )
        for rank, name in enumerate(hosts.names)
    ]  # fmt: skip
    try:
        assert [process.wait(200) for process in job] == [0] * WORKERS
    finally:
        for process in job:
            process.kill()
            process.wait()
    found = digests(tmp_path)
    assert {name: one["after"] for name, one in found.items()} == {name: one["after"] for name, one in wanted.items()}
    assert found == wanted


def test_the_manifests_of_kubernetes_are_valid() -> None:
    yaml, validate = pytest.importorskip("yaml"), pytest.importorskip("kubernetes_validate")
    documents = list(yaml.safe_load_all((ROOT / "docs/examples/kubernetes.yaml").read_text()))
    assert [document["kind"] for document in documents] == ["Service", "Job"]
    for document in documents:
        validate.validate(document, "1.30", strict=True)
    worker = documents[1]["spec"]["template"]["spec"]["containers"][0]
    assert {each["name"] for each in worker["env"]} >= {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MEZZO_JOB_KEY"}
