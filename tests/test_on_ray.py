"""Jobs on the nodes of a Ray cluster: one of three nodes, all on this machine."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mezzo as mz
from mezzo.tools.on_ray import shared_out

SUMS = """
import os, sys
import numpy as np
import mezzo as mz
with mz.kv.create("dist_sync") as kv:
    kv.init("w", np.zeros(3))
    print(os.environ["MEZZO_HOST"], kv.rank, kv.pushpull("w", np.full(3, kv.rank + 1.0)).tolist(), flush=True)
sys.exit(int(sys.argv[1]) * (kv.rank == 2))
"""
TRAINING = """
import os, sys, time
from pathlib import Path
import numpy as np
import mezzo as mz
from mezzo.models.digits import digits_model, held_out
from mezzo.train import checkpoint
with mz.kv.create("dist_sync") as kv:
    trainer = mz.Trainer(digits_model(), optimizer=mz.optimizer.Adam(rate=0.01), kvstore=kv)
    if checkpoint.exists("kept"):
        trainer.resume("kept")
    data, mine = held_out(), slice(kv.rank, None, kv.num_workers)
    for number in range(trainer.notes.get("position", 0), 40):
        at = slice(32 * number % 256, 32 * number % 256 + 32)
        trainer.step({"image": data.inputs[at][mine], "target": data.labels[at][mine]})
        trainer.notes = {"position": number + 1}
        if number % 5 == 4:
            trainer.save("kept", keep=3)
        if "slowly" in sys.argv:
            Path(f"host-{kv.rank}").write_text(os.environ["MEZZO_HOST"])
            Path(f"step-{number}-{kv.rank}").touch()
            time.sleep(0.2)
    np.savez(f"end-{kv.rank}.npz", **{name: np.asarray(value) for name, value in trainer.parameters.items()})
"""
LARGE = """
import numpy as np
import mezzo as mz
with mz.kv.create("dist_sync") as kv:
    kv.init("w", np.zeros(16 << 20, np.float32))
    for _ in range(20):
        kv.pushpull("w", np.ones(16 << 20, np.float32))
    print("summed", flush=True)
"""


def test_workers_are_shared_out() -> None:
    """As equal as the room allows, on the fewest nodes or on as many as are asked for."""
    rng = np.random.default_rng(0)
    for _ in range(300):
        room = [int(n) for n in rng.integers(0, 9, rng.integers(1, 6))]
        workers, nodes = int(rng.integers(1, 20)), int(rng.integers(0, 4))
        shares, best = shared_out(workers, room, nodes), sorted(filter(None, room), reverse=True)
        if not shares:
            assert not nodes or sum(best[:nodes]) < workers or nodes > min(workers, len(best))
            assert nodes or sum(room) < workers
            continue
        assert sum(shares) == workers
        assert all(0 < share <= held for share, held in zip(shares, best, strict=False))
        assert len(shares) == nodes or (not nodes and sum(best[: len(shares) - 1]) < workers)
        spare = [share for share, held in zip(shares, best, strict=False) if share < held]
        assert not spare or max(shares) - min(spare) <= 1


@pytest.mark.skipif(find_spec("ray") is not None, reason="Ray is installed")
def test_without_ray(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mezzo", "launch", "-n", "2", "--on", "ray", "true"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode
    assert "pip install mezzo[ray]" in done.stderr


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    pytest.importorskip("ray", reason="Ray is not installed: pip install --group ray")
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    cluster.nodes = [cluster.add_node(num_cpus=2), cluster.add_node(num_cpus=2)]
    yield cluster
    cluster.shutdown()


def launched(cluster: Any, folder: Path, script: str, *options: str, **variables: str) -> Any:
    """A launcher that runs a script on the cluster."""
    (folder / "script.py").write_text(script)
    given = {n: v for n, v in os.environ.items() if not n.startswith(("DMLC_", "MEZZO_"))}
    at = options.index("--") if "--" in options else len(options)
    command = [sys.executable, "-m", "mezzo", "launch", "--on", "ray", *options[:at], "script.py", *options[at + 1 :]]
    return subprocess.Popen(
        command, cwd=folder, env={**given, "RAY_ADDRESS": cluster.address, **variables}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def written(stdout: str) -> list[str]:
    return sorted(line.partition("]")[2].strip() for line in stdout.splitlines())


def until(there: Callable[[], bool], process: Any) -> None:
    end = time.monotonic() + 200
    while not there():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.soak
@pytest.mark.parametrize(("options", "hosts"), [(("-n", "4"), 2), (("-n", "2"), 1), (("-n", "3", "--hosts", "3"), 3)])
def test_a_job_on_a_cluster(cluster: Any, tmp_path: Path, options: tuple[str, ...], hosts: int) -> None:
    """Workers of a node are together; output and exit codes come back; the key stands on no command line."""
    process = launched(cluster, tmp_path, SUMS, *options, "--", "7", MEZZO_JOB_KEY="a secret of theirs")
    lines = set[str]()
    while process.poll() is None:
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                lines.add(path.read_text())
            except OSError:
                continue
        time.sleep(0.05)
    stdout, stderr = process.communicate()
    workers = int(options[1])
    total = float(sum(range(1, workers + 1)))
    assert process.returncode == (7 if workers > 2 else 0), stderr
    said = [line.split(" ", 1) for line in written(stdout)]
    assert sorted(rest for _, rest in said) == [f"{rank} {[total] * 3}" for rank in range(workers)]
    assert len({host for host, _ in said}) == hosts
    assert any("mezzo.tools.remote" in line for line in lines)
    assert not any("a secret of theirs" in line for line in lines)


@pytest.mark.soak
def test_more_than_there_is_room_for(cluster: Any, tmp_path: Path) -> None:
    process = launched(cluster, tmp_path, SUMS, "-n", "7", "--", "0")
    _, stderr = process.communicate(timeout=100)
    assert process.returncode
    assert "no room for 7 workers with 1 CPUs each" in stderr
    assert "2, 2, 2" in stderr


@pytest.mark.soak
def test_values_do_not_travel_through_ray(cluster: Any, tmp_path: Path) -> None:
    """While 64 MiB are summed between nodes, Ray's stores hold next to nothing."""
    import ray
    from ray._private.internal_api import memory_summary

    process = launched(cluster, tmp_path, LARGE, "-n", "2", "--hosts", "2")
    ray.init(address=cluster.address, logging_level="ERROR", log_to_driver=False)
    try:
        used = []
        while process.poll() is None:
            summary = memory_summary(stats_only=True)
            used += [int(line.split()[3]) for line in summary.splitlines() if line.startswith("Plasma memory usage")]
            time.sleep(0.1)
    finally:
        ray.shutdown()
    stdout, stderr = process.communicate()
    assert process.returncode == 0, stderr
    assert written(stdout) == ["summed", "summed"]
    assert used
    assert max(used) <= 1  # MiB


@pytest.mark.soak
def test_a_launcher_that_is_killed_leaves_nothing(cluster: Any, tmp_path: Path) -> None:
    process = launched(cluster, tmp_path, TRAINING, "-n", "2", "--hosts", "2", "--", "slowly")

    def running() -> list[str]:
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                if b"script.py" in path.read_bytes() and os.readlink(path.parent / "cwd") == str(tmp_path):
                    found.append(path.parent.name)
            except OSError:
                continue
        return found

    until(lambda: (tmp_path / "step-1-1").exists(), process)
    assert len(running()) > 1
    process.kill()
    process.communicate()
    end = time.monotonic() + 60
    while running() and time.monotonic() < end:
        time.sleep(0.1)
    assert not running()


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore::DeprecationWarning:ray")
def test_ray_train(cluster: Any, tmp_path: Path) -> None:
    """A function that Ray Train calls on each worker finds the store."""
    ray = pytest.importorskip("ray")
    pytest.importorskip("pyarrow")
    pytest.importorskip("pandas", reason='Ray Train needs pip install "ray[train]"')
    from ray.train import RunConfig, ScalingConfig

    from mezzo.ray import MezzoTrainer

    def loop(config: dict[str, float]) -> None:
        with mz.kv.create("dist_sync") as kv:
            kv.init("w", np.zeros(3))
            total = kv.pushpull("w", np.full(3, kv.rank + config["plus"])).tolist()
            Path(config["folder"], f"rank-{kv.rank}").write_text(f"{kv.num_workers} {total}")  # type: ignore[arg-type]

    ray.init(address=cluster.address, logging_level="ERROR", log_to_driver=False)
    try:
        MezzoTrainer(
            loop,
            train_loop_config={"plus": 1.0, "folder": str(tmp_path)},
            scaling_config=ScalingConfig(num_workers=4),
            run_config=RunConfig(storage_path=str(tmp_path)),
        ).fit()
    finally:
        ray.shutdown()
    assert [(tmp_path / f"rank-{rank}").read_text() for rank in range(4)] == ["4 [10.0, 10.0, 10.0]"] * 4


@pytest.mark.soak
def test_a_node_is_lost_in_the_middle_of_a_training(cluster: Any, tmp_path: Path) -> None:
    """The job begins again on the nodes that are left, and ends at the bits of a training that nothing befell."""
    alone, disturbed = tmp_path / "alone", tmp_path / "disturbed"
    alone.mkdir()
    disturbed.mkdir()
    (alone / "script.py").write_text(TRAINING)
    command = [sys.executable, "-m", "mezzo", "launch", "-n", "4", "--hosts", "2", "script.py"]  # two workers on each
    subprocess.run(command, cwd=alone, check=True)
    process = launched(cluster, disturbed, TRAINING, "-n", "4", "--restarts", "2", "--", "slowly")
    until(lambda: (disturbed / "step-12-3").exists(), process)
    hosts = {(disturbed / f"host-{rank}").read_text().rpartition("/")[2] for rank in range(4)}
    lost = next(node for node in cluster.nodes if node.node_id[:6] in hosts)
    cluster.remove_node(lost, allow_graceful=False)
    _, stderr = process.communicate(timeout=250)
    assert process.returncode == 0, stderr
    assert "all start again" in stderr
    ends = [np.load(folder / f"end-{rank}.npz") for folder in (alone, disturbed) for rank in range(4)]
    assert ends[0].files
    for end in ends[1:]:
        assert all(end[name].tobytes() == ends[0][name].tobytes() for name in ends[0].files)
