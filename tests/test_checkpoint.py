"""Checkpoints: whole or not there, refused when damaged, and the way on from one is the way that was interrupted."""

from __future__ import annotations

import errno
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mezzo.models.digits import digits_model
from mezzo.ops.errors import InputError, MezzoError, ModelError
from mezzo.runtime.optimizer import SGD, Adam, from_dict
from mezzo.runtime.optimizer.schedule import Cosine
from mezzo.train import checkpoint
from mezzo.train.checkpoint import MANIFEST, Checkpoint
from mezzo.train.trainer import Trainer

from . import killed
from .networks import batch_for, lenet, mlp, noisy

ROOT = Path(__file__).parents[1]
Array = np.ndarray[Any, Any]


def same(a: Any, b: Any) -> None:
    """Two mappings of arrays, to the last bit."""
    assert a.keys() == b.keys()
    for name, array in b.items():
        assert a[name].dtype == array.dtype
        assert a[name].shape == array.shape
        assert a[name].tobytes() == array.tobytes(), name


def some(run: int = 7) -> Checkpoint:
    rng = np.random.default_rng(0)
    arrays: dict[str, Any] = {
        "w": rng.standard_normal((3, 4)).astype(np.float32),
        "wide": rng.standard_normal(5),
        "half": rng.standard_normal(3).astype(np.float16),
        "brain": rng.standard_normal(3).astype(ml_dtypes.bfloat16),
        "count": np.array(3),
        "empty": np.zeros((0, 2), np.float32),
        "flags": np.array([True, False]),
    }
    return Checkpoint(arrays, run, "graph", Adam(rate=Cosine(0.1, 5)).to_dict(), {"position": 12, "name": "é"})


# Files


def test_what_was_saved_is_read(tmp_path: Path) -> None:
    assert not checkpoint.exists(tmp_path)
    checkpoint.save(tmp_path / "made" / "here", some())
    assert checkpoint.exists(tmp_path / "made" / "here")
    found = checkpoint.load(tmp_path / "made" / "here")
    same(found.arrays, some().arrays)
    assert (found.run, found.graph, found.notes) == (7, "graph", some().notes)
    assert from_dict(found.optimizer) == Adam(rate=Cosine(0.1, 5))


def test_the_newest_stay_and_the_newest_whole_one_is_read(tmp_path: Path) -> None:
    for run in range(1, 6):
        made = Checkpoint({"w": np.full(3, run)}, run, "graph")
        checkpoint.save(tmp_path, made, keep=3)
    assert checkpoint.runs(tmp_path) == [5, 4, 3]
    assert len(list(tmp_path.glob("*.safetensors"))) == 3
    newest = json.loads((tmp_path / MANIFEST).read_text())["data"]
    (tmp_path / newest).write_bytes((tmp_path / newest).read_bytes()[:-1])  # torn
    with pytest.warns(UserWarning, match="the newest checkpoint is damaged .* that of run 4 is whole"):
        found = checkpoint.load(tmp_path)
    assert (found.run, found.arrays["w"].tolist()) == (4, [4, 4, 4])
    checkpoint.save(tmp_path, Checkpoint({"w": np.full(3, 9)}, 4, "graph"), keep=3)  # what came after is abandoned
    assert checkpoint.runs(tmp_path) == [4, 3]
    assert checkpoint.load(tmp_path).arrays["w"].tolist() == [9, 9, 9]
    checkpoint.save(tmp_path, Checkpoint({"w": np.zeros(3)}, 5, "graph"))
    assert (checkpoint.runs(tmp_path), len(list(tmp_path.glob("*.safetensors")))) == ([], 1)


def test_a_disk_that_is_full_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for run in (1, 2):
        checkpoint.save(tmp_path, Checkpoint({"w": np.full(3, run)}, run, "graph"), keep=2)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def full(fd: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ModelError, match=r"cannot be written: .*No space left"):
        checkpoint.save(tmp_path, Checkpoint({"w": np.full(3, 3)}, 3, "graph"), keep=2)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_the_data_are_safetensors_beside_a_manifest(tmp_path: Path) -> None:
    """Others read them: a file of tensors by name, and JSON."""
    from safetensors.numpy import load_file

    with_names_of_numpy = {n: a for n, a in some().arrays.items() if n != "brain"}
    checkpoint.save(tmp_path, Checkpoint(with_names_of_numpy, 1, "g"))
    manifest = json.loads((tmp_path / MANIFEST).read_text())
    assert {"format", "data", "digest", "run", "graph", "optimizer", "notes", "versions"} <= manifest.keys()
    assert manifest["versions"].keys() == {"mezzo", "numpy"}
    same(load_file(tmp_path / manifest["data"]), with_names_of_numpy)


def test_a_new_checkpoint_takes_the_place_of_the_former(tmp_path: Path) -> None:
    for run in range(3):
        checkpoint.save(tmp_path, Checkpoint({"w": np.full(4, run)}, run, "g"))
        assert len(list(tmp_path.iterdir())) == 2
        assert checkpoint.load(tmp_path).run == run
    (tmp_path / ".mezzo-left.part").write_bytes(b"of a writer that was killed")
    checkpoint.save(tmp_path, some())
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("fails", range(1, 5))
def test_a_write_that_fails_leaves_the_former(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: int) -> None:
    """Whichever of its flushes to the disk it is: of the data, of the manifest, of the folder after each."""
    checkpoint.save(tmp_path, some(1))
    real, calls = os.fsync, []

    def fsync(handle: int) -> None:
        calls.append(handle)
        if len(calls) == fails:
            raise OSError("no space left on device")
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(ModelError, match="no space left"):
        checkpoint.save(tmp_path, Checkpoint({"w": np.ones(9)}, 2, "g"))
    assert len(calls) == fails
    monkeypatch.undo()
    found = checkpoint.load(tmp_path)
    assert found.run == (2 if fails == 4 else 1), "the new manifest is in place before the folder is flushed"
    same(found.arrays, {"w": np.ones(9)} if fails == 4 else some().arrays)


def test_what_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ModelError, match="cannot be written"):
        checkpoint.save(tmp_path / "file" / "below", some())
    with pytest.raises(ModelError, match="cannot be written"):
        checkpoint.save(tmp_path, Checkpoint({"w": np.ones(2)}, 1, "g", notes={"what": object()}))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a checkpoint, that tests damage and mend."""
    made = tmp_path_factory.mktemp("checkpoint")
    checkpoint.save(made, some())
    return made


def files(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())


@given(data=st.data())
def test_flipped_bits_are_noticed(folder: Path, data: st.DataObject) -> None:
    """In the manifest a flip may fall on white space and change nothing; whatever is read is what was written."""
    path = data.draw(st.sampled_from(files(folder)))
    content = path.read_bytes()
    damaged = bytearray(content)
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    try:
        path.write_bytes(damaged)
        found = checkpoint.load(folder)
        same(found.arrays, some().arrays)
        assert (found.run, found.graph, found.notes) == (7, "graph", some().notes)
        assert from_dict(found.optimizer) == Adam(rate=Cosine(0.1, 5))
    except ModelError:
        pass
    finally:
        path.write_bytes(content)


def test_every_byte_of_the_manifest_matters(folder: Path) -> None:
    path = folder / MANIFEST
    content = path.read_bytes()
    try:
        for i in range(len(content)):
            path.write_bytes(content[:i] + bytes([content[i] ^ 1]) + content[i + 1 :])
            with pytest.raises(ModelError):
                checkpoint.load(folder)
    finally:
        path.write_bytes(content)


@given(data=st.data())
def test_files_that_end_early_are_noticed(folder: Path, data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(files(folder)))
    content = path.read_bytes()
    try:
        path.write_bytes(content[: data.draw(st.integers(0, len(content) - 1))])
        with pytest.raises(ModelError):
            checkpoint.load(folder)
    finally:
        path.write_bytes(content)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(value=json_values, key=st.sampled_from(["format", "data", "digest", "run", "graph", "optimizer", "notes"]))
def test_manifests_of_strangers(folder: Path, value: Any, key: str) -> None:
    """Sealed as ours are, with anything in one place: an error of ours, or a checkpoint."""
    path = folder / MANIFEST
    content = path.read_bytes()
    manifest = json.loads(content)
    manifest.pop("seal")
    manifest[key] = value
    try:
        path.write_text(json.dumps({**manifest, "seal": checkpoint._seal(json.loads(json.dumps(manifest)))}))
        checkpoint.load(folder)
    except MezzoError:
        pass
    finally:
        path.write_bytes(content)


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"3", b'"x"', b"null", b"{}", b"\xff\xfe", b"[" * 100_000, b'{"format": 1}', b'{"format": 2}'],
)
def test_what_is_no_manifest(tmp_path: Path, content: bytes) -> None:
    (tmp_path / MANIFEST).write_bytes(content)
    with pytest.raises(ModelError, match="no checkpoint can be read"):
        checkpoint.load(tmp_path)


def test_a_manifest_names_a_file_beside_it_alone(tmp_path: Path) -> None:
    outside = tmp_path / "outside.safetensors"
    checkpoint.save(tmp_path / "inside", some())
    path = tmp_path / "inside" / MANIFEST
    manifest = json.loads(path.read_text())
    os.rename(tmp_path / "inside" / manifest["data"], outside)
    manifest.pop("seal")
    for name in ("../outside.safetensors", str(outside), "..", ""):
        manifest["data"] = name
        path.write_text(json.dumps({**manifest, "seal": checkpoint._seal(manifest)}))
        with pytest.raises(ModelError, match="no file beside"):
            checkpoint.load(tmp_path / "inside")


def test_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no checkpoint can be read"):
        Trainer(mlp()).resume(tmp_path)


# Going on


@pytest.mark.parametrize("after", [1, 2, 3, 7])
@pytest.mark.parametrize("amp", [None, "fp16"])
def test_the_way_on_is_the_same(tmp_path: Path, after: int, amp: str | None) -> None:
    """Losses, parameters, all states: with dropout, gathered gradients, a schedule and a loss scale."""

    def trainer() -> Trainer:
        return Trainer(noisy(), optimizer=Adam(rate=Cosine(0.01, 12)), gather=2, clip_norm=1.0, seed=3, amp=amp)

    whole, first, second = trainer(), trainer(), trainer()
    losses = [whole.step(batch_for(whole.source, i)) for i in range(12)]
    found = [first.step(batch_for(first.source, i)) for i in range(after)]
    first.notes["position"] = after
    first.save(tmp_path)
    first.step(batch_for(first.source, 99))
    notes = second.resume(tmp_path)
    assert notes == {"position": after}
    found += [second.step(batch_for(second.source, i)) for i in range(notes["position"], 12)]
    assert found == losses
    same(second.states, whole.states)
    assert second.metrics() == whole.metrics()


def test_evaluation_and_export_after_resuming(tmp_path: Path) -> None:
    trainer, again = (Trainer(noisy(), optimizer=SGD(rate=0.1)) for _ in range(2))
    feeds = batch_for(trainer.source, 0)
    again.evaluate([feeds])
    for i in range(5):
        trainer.step(batch_for(trainer.source, i))
    trainer.save(tmp_path)
    again.resume(tmp_path)
    assert again.evaluate([feeds]) == trainer.evaluate([feeds])
    same(again.graph().initializers, trainer.graph().initializers)


def test_another_training_is_refused(tmp_path: Path) -> None:
    trainer = Trainer(mlp(), optimizer=Adam(rate=0.1))
    trainer.step(batch_for(trainer.source, 0))
    trainer.save(tmp_path)
    before = {n: a.copy() for n, a in trainer.states.items()}
    for other in (
        Trainer(lenet(), optimizer=Adam(rate=0.1)),
        Trainer(digits_model(), optimizer=Adam(rate=0.1)),
        Trainer(mlp(), optimizer=Adam(rate=0.2)),
        Trainer(mlp(), optimizer=Adam(rate=0.1, weight_decay=0.1)),
        Trainer(mlp(), optimizer=Adam(rate=0.1), clip_norm=1.0),
        Trainer(mlp(), optimizer=Adam(rate=0.1), gather=2),
        Trainer(mlp(), optimizer=Adam(rate=0.1), freeze=["0.*"]),
        Trainer(mlp(), optimizer=Adam(rate=0.1), seed=1),
        Trainer(mlp(), optimizer=Adam(rate=0.1), amp="bf16"),
        Trainer(mlp(), optimizer=SGD(rate=0.1)),
    ):
        with pytest.raises(InputError, match="another graph"):
            other.resume(tmp_path)
        assert other.updates == 0
    Trainer(mlp(), optimizer=Adam(rate=0.1)).resume(tmp_path)
    same(trainer.states, before)


def test_a_checkpoint_without_one_of_the_arrays_is_refused(tmp_path: Path) -> None:
    trainer = Trainer(mlp(), optimizer=Adam(rate=0.1))
    trainer.save(tmp_path)
    found = checkpoint.load(tmp_path)
    rest = {n: a for n, a in found.arrays.items() if n != "optimizer/mean/0.weight"}
    checkpoint.save(tmp_path, Checkpoint(rest, found.run, found.graph))
    with pytest.raises(InputError, match=r"no float32\[16,12\] 'optimizer/mean/0.weight'"):
        trainer.resume(tmp_path)


# kill -9


def run_and_kill(folder: Path, stall: int, steps: int) -> str:
    """Train in a process of its own, and kill it inside of flush number `stall` to the disk, or after so many steps;
    returns the last thing that it said. It ends by itself where both are 0."""
    command = [sys.executable, "-m", "tests.killed", str(folder), str(stall)]
    done, flushes, last = 0, 0, ""
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True, bufsize=1) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write("go\n")  # three steps ahead
        for line in child.stdout:
            last = line.strip()
            done, flushes = done + (last == "step"), flushes + (last == "writing")
            if (stall and flushes == stall) or (steps and done == steps):
                child.kill()
                break
            if last == "step":
                child.stdin.write("\n")
        last = ([last, *child.stdout.read().split()])[-1]
    assert child.returncode == (-9 if stall or steps else 0), "it came to its end before it was killed"
    return last


@pytest.mark.skipif(os.name == "nt", reason="there is no kill -9 on Windows")
def test_killed_ten_times(tmp_path: Path) -> None:
    """At random moments, four of them inside of a checkpoint's write. The last to run finds its way to the end, and
    arrives where the one arrives that nobody disturbs."""
    rng = random.Random(20)
    moments = [(rng.randint(1, 8), 0) for _ in range(4)] + [(0, rng.randint(2, 15)) for _ in range(6)]
    rng.shuffle(moments)
    inside = 0
    for stall, steps in moments:
        inside += run_and_kill(tmp_path, stall, steps) == "writing"
        if checkpoint.exists(tmp_path):
            checkpoint.load(tmp_path)
    assert inside >= 3
    run_and_kill(tmp_path, 0, 0)
    whole = killed.trainer()
    for i in range(killed.STEPS):
        whole.step(batch_for(whole.source, i))
    found = checkpoint.load(tmp_path)
    same(found.arrays, whole.states)
    assert found.notes == {"position": killed.STEPS}
    assert len(files(tmp_path)) == 2, "nothing is left of the writes that were killed"
