"""Run manifests: a run in a fresh process gives the same bits, and what is not the same is told by name."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import mezzo as mz
from mezzo.gluon import nn
from mezzo.kvstore.local import Local
from mezzo.kvstore.recording import RecordedBackend, begins, recorded_in, recorded_into
from mezzo.kvstore.store import KVStore
from mezzo.models.digits import digits_model, held_out
from mezzo.runtime.environment import SWITCHES
from mezzo.runtime.manifest import LARGEST, Manifest, NotTheSame, digest, read, taken
from mezzo.tools.cli import cli
from mezzo.train.following import Run, Trains

ROOT = Path(__file__).parents[1]
TRAINING = """
import random, sys
import numpy as np
import mezzo as mz
from mezzo.gluon import nn

data = np.linspace(-1, 1, 48, dtype=np.float32).reshape(8, 6)

def train(hybrid):
    net = nn.HybridSequential()
    net.add(nn.Dense(16, activation="relu", in_units=6), nn.Dropout(0.5), nn.Dense(3, in_units=16))
    net.initialize("xavier")
    if hybrid:
        net.hybridize()
    trainer = mz.gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.1})
    for _ in range(5):
        x = mz.nd.asarray(data[np.random.permutation(8)[:4]]) * random.random() + mz.random.normal((4, 6))
        with mz.autograd.record():
            loss = mz.nd.mean(net(x) ** 2)
        loss.backward()
        trainer.step(1)
    return net

"""
FIRST = (
    TRAINING
    + """
manifest = mz.random.seed_all(11, sys.argv[1], data=data)
manifest.noting(eager=train(False), hybrid=train(True)).write(sys.argv[1])
"""
)
AGAIN = (
    TRAINING
    + """
manifest = mz.random.replay(sys.argv[1], data=data)
manifest.check(eager=train(False), hybrid=train(True))
assert {*manifest.digests} == {"data", "eager", "hybrid"}
mz.random.seed_all(12)
(difference,) = manifest.differences(eager=train(False))
assert difference.startswith("digests: eager was ")
"""
)


def run(code: str, path: Path) -> None:
    ran = subprocess.run([sys.executable, "-c", code, str(path)], cwd=ROOT, capture_output=True, text=True, check=False)
    assert not ran.returncode, ran.stderr


def test_a_run_in_a_fresh_process_gives_the_same_bits(tmp_path: Path) -> None:
    """A small block, in training with dropout, data from three generators; eager and hybridized."""
    path = tmp_path / "run.json"
    run(FIRST, path)
    run(AGAIN, path)


def test_every_difference_is_told_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run.json"
    monkeypatch.setenv("MEZZO_ENGINE", "naive")
    monkeypatch.setenv("MEZZO_JOB_KEY", "a secret")
    made = mz.random.seed_all(3, path, model=digits_model(), data={"x": np.arange(4)})
    first = (mz.random.normal((3,)).tolist(), np.random.random())
    assert "a secret" not in path.read_text("utf8")
    assert read(path) == made
    assert mz.random.replay(path, data={"x": np.arange(4)}) == made
    assert (mz.random.normal((3,)).tolist(), np.random.random()) == first
    older = replace(
        made, versions={**made.versions, "numpy": "1.0", "gone": "2"}, machine={**made.machine, "threads": "99"}
    )
    older.write(path)
    monkeypatch.delenv("MEZZO_ENGINE")
    monkeypatch.setenv("OMP_PROC_BIND", "true")
    with pytest.raises(mz.InputError) as told:
        mz.random.replay(path, data={"x": np.arange(5)}, model=digits_model(), extra=1)
    for said in (
        "7 things", f"numpy was 1.0, and is {np.__version__}", "gone was 2, and is not there", "threads was 99",
        "MEZZO_ENGINE was naive, and is not there", "OMP_PROC_BIND was not there, and is true", "digests: data was ",
        "digests: extra was not there",
    ):  # fmt: skip
        assert said in str(told.value)
    assert "model" not in str(told.value)
    with pytest.warns(NotTheSame) as warned:
        mz.random.replay(path, strict=False)
    assert len(warned) == 5
    assert (mz.random.normal((3,)).tolist(), np.random.random()) == first


def test_digests_tell_everything_apart() -> None:
    net = nn.Dense(2, in_units=3)
    net.initialize("ones")
    session, trainer, path = mz.load(digits_model()), mz.Trainer(digits_model()), Path(__file__)
    values: list[Any] = [
        None, 1, 1.0, True, "1", b"1", [1], [[1]], [1, 1], {"1": 1}, {}, [], path, net, session, trainer,
        digits_model(), session.graph,
        np.arange(3), np.arange(3, dtype=np.int32), np.arange(3)[:, None], np.arange(3) + 0.0, mz.nd.ones((3,)),
        np.array(["a", "b"], object), np.array(["ab"], object), np.zeros(0), np.float32(1),
    ]  # fmt: skip
    digests = [digest(v) for v in values]
    assert len({*digests}) == len(values)
    assert digests == [digest(v) for v in values]
    assert digest(np.ones(3, np.float32)) == digest(mz.nd.ones((3,)))
    assert digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})
    net.weight.set_data(np.full((2, 3), 2, np.float32))
    assert digest(net) != digests[values.index(net)]
    with pytest.raises(mz.InputError, match="no digest of a object"):
        digest([object()])
    with pytest.raises(mz.InputError, match="No such file"):
        digest(Path("nowhere"))


JOB = """
import numpy as np
import mezzo as mz

data = np.load("data.npz")
with mz.kv.create("dist_sync") as kv:
    kv.init("own", np.zeros(2))
    trainer = mz.Trainer("model.onnx", optimizer="adam", kvstore=kv)
    for i in range(3):
        at = slice(8 * kv.rank + 16 * i, 8 * kv.rank + 16 * i + 8)
        trainer.step((data["image"][at], data["target"][at]))
        kv.push("own", np.full(2, data["own"][kv.rank]))
"""


def test_a_job_comes_to_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A manifest for each rank; what has changed of one rank's data, or of what it pushes, is told of that rank."""
    monkeypatch.chdir(tmp_path)
    digits = held_out()
    arrays: dict[str, Any] = {"image": digits.inputs[:48], "target": digits.labels[:48], "own": np.arange(2.0)}
    np.savez("data.npz", **arrays)
    shutil.copy(digits_model(), "model.onnx")
    Path("job.py").write_text(JOB)
    launch = [sys.executable, "-m", "mezzo", "launch", "-n", "2", "-s", "0", "--record", "kept", "job.py"]
    subprocess.run(launch, check=True)
    first, second = recorded_in("kept").values()
    assert first.command[-5:] == ("-s", "0", "--record", "kept", "job.py")
    assert {*first.digests} == {"before", "after", "batches", "declared", "pushed"}
    alike = {name for name, digest in first.digests.items() if second.digests[name] == digest}
    assert alike == {"before", "after", "declared"}
    assert first.digests["before"] != first.digests["after"]

    arrays["image"] = arrays["image"].copy()
    arrays["image"][11, 0, 2, 3] += 1  # of rank 1
    arrays["own"][0] += 1  # of rank 0
    for changed in (False, True):
        if changed:
            np.savez("data.npz", **arrays)
        told = CliRunner().invoke(cli, ["replay", "kept", "--json"])
        rows = json.loads(told.stdout)["digests"]
        others = {row["of"] for row in rows if row["before"] != "the same"}
        assert len(rows) == 10
        assert told.exit_code == changed, told.output
        assert others == ({f"worker {r} {what}" for r in (0, 1) for what in ("pushed", "after")} | {"worker 1 batches"}
                          if changed else set())  # fmt: skip


def test_records_of_a_store(tmp_path: Path) -> None:
    """Blocks' parameters and rows, too; nothing is written where it ends with an error, and once where it does not."""

    def ended(error: Exception | None = None, rate: float = 0.5) -> Mapping[str, str]:
        kv = KVStore(RecordedBackend(Local("local"), str(tmp_path)))
        net = nn.Dense(1, in_units=2).initialize("ones")
        trainer = mz.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": rate}, kvstore=kv)
        with mz.autograd.record():
            net(mz.nd.ones((4, 2))).backward()
        trainer.step(4)
        kv.init("words", np.zeros((5, 2)))
        kv.push("words", mz.nd.row_sparse_array((np.ones((1, 2)), [3]), (5, 2)))
        kv.__exit__(None if error is None else type(error), error, None)
        kv.close()
        begins(dict)  # nobody records any more
        return {} if error else recorded_in(tmp_path)["worker 0"].digests

    ended(ValueError())
    with pytest.raises(mz.InputError, match="no worker has recorded"):
        recorded_in(tmp_path)
    first, again, other = ended(), ended(), ended(rate=0.25)
    assert first == again
    assert {name for name in first if first[name] != other[name]} == {"after"}
    assert not recorded_into(tmp_path).keys() - SWITCHES.keys()
    assert not [*tmp_path.glob("rank-*")]


def test_one_file_for_all_workers_is_refused(tmp_path: Path) -> None:
    run = Run(cast(Trains, SimpleNamespace(exchange=SimpleNamespace(workers=2))), 1)
    with pytest.raises(mz.InputError, match="--record FOLDER"):
        mz.callbacks.Record(tmp_path / "run.json").fit_begin(run)


GOOD = json.dumps({"format": 1, "seed": 2, "versions": {}, "machine": {}, "environment": {}, "digests": {}})


@given(st.one_of(st.binary(max_size=200), st.sampled_from([GOOD, "[]", "1", "[" * 5000, '"x"']).map(str.encode),
                 st.builds(lambda at, b: GOOD.encode()[:at] + b + GOOD.encode()[at:], st.integers(0, len(GOOD)),
                           st.binary(min_size=1, max_size=3))))  # fmt: skip
def test_a_bad_file_is_an_error(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "bad.json"
    path.write_bytes(data)
    with suppress(mz.MezzoError):
        assert isinstance(read(path), Manifest)


def test_files_that_are_not_there_or_too_large(tmp_path: Path) -> None:
    large = tmp_path / "large.json"
    large.write_bytes(GOOD.encode() + b" " * LARGEST)
    for path in (large, tmp_path / "nowhere.json", tmp_path):
        with pytest.raises(mz.MezzoError, match="no run manifest"):
            mz.random.replay(path)
    with pytest.raises(mz.MezzoError, match="cannot be written"):
        mz.random.seed_all(1, tmp_path / "nowhere" / "run.json")
    assert str(taken(4)).startswith("seed: 4\nversions mezzo: ")
