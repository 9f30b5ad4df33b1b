"""`mezzo pack`, training from packed records, and the warning of data that hold a training back."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

import mezzo as mz
from mezzo.data.images import decode
from mezzo.models.digits import digits_model, held_out
from mezzo.ops.errors import InputError, MezzoError
from mezzo.tools.cli import cli


def mezzo(*args: object) -> dict[str, Any]:
    ended = CliRunner().invoke(cli, [*map(str, args), "--json"], catch_exceptions=True)
    if isinstance(ended.exception, MezzoError):
        raise ended.exception
    assert ended.exit_code in (0, 3), ended.output
    told: dict[str, Any] = json.loads(ended.stdout)
    return {**told, "exit code": ended.exit_code}


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    for kind in ("ant", "bee", "cow"):
        for i in range(7):
            path = tmp_path / "photos" / kind / f"{i}.{'jpg' if i % 2 else 'png'}"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(rng.integers(0, 256, (30 + i, 40, 3), np.uint8)).save(path)
    return tmp_path / "photos"


def test_a_folder_is_packed_and_verified(photos: Path) -> None:
    out = photos.parent / "photos.rec"
    assert mezzo("pack", photos, "-o", out)["records"] == 21
    data = mz.data.ImageRecordDataset(out)
    assert list(data.classes) == ["ant", "bee", "cow"]
    folder = mz.data.ImageFolderDataset(photos)
    ids = [mz.data.unpack(r)[0].id for r in data.records]
    assert sorted(ids) == [*range(21)]
    assert ids != [*range(21)]
    for number, (pixels, label) in zip(ids, data, strict=True):
        assert label == folder[number][1]
        assert np.array_equal(pixels, folder[number][0])
        assert mz.data.unpack(data.records[ids.index(number)])[1] == folder.items[number][0].read_bytes()
    told = mezzo("pack", "--verify", out)
    assert (told["records"], told["damaged"], told["exit code"]) == (21, 0, 0)
    before = out.read_bytes()
    mezzo("pack", photos, "-o", out, "--workers", 0)
    assert out.read_bytes() == before
    broken = bytearray(before)
    broken[len(broken) // 2] ^= 4
    out.write_bytes(broken)
    told = mezzo("pack", "--verify", out)
    assert (told["damaged"], told["exit code"]) == (1, 3)
    out.write_bytes(before)
    out.with_suffix(".idx").unlink()
    assert mezzo("pack", "--index", out)["records"] == 21
    assert mezzo("pack", "--verify", out)["damaged"] == 0


def test_sizes_shards_and_lists(photos: Path) -> None:
    out = photos.parent / "small.rec"
    told = mezzo("pack", photos, "-o", out, "--resize", 32, "--quality", 80, "--shards", 4, "--in-order")
    assert told["records"] == 21
    parts = sorted(photos.parent.glob("small-*.rec"))
    assert [p.name for p in parts] == [f"small-{i:05d}-of-00004.rec" for i in range(4)]
    several = [mz.data.ImageRecordDataset(p) for p in parts]
    assert [len(p) for p in several] == [6, 5, 5, 5]
    data = mz.data.Joined(*several)
    assert [min(pixels.shape[:2]) for pixels, _ in data] == [min(30 + i % 7, 32) for i in range(21)]
    mezzo("pack", photos, "-o", photos.parent / "png.rec", "--resize", 20, "--encoding", "PNG")
    content = mz.data.unpack(mz.data.RecordFile(photos.parent / "png.rec")[0])[1]
    assert bytes(content[1:4]) == b"PNG"
    assert min(decode(content).shape[:2]) == 20


def test_bad_images_are_named_or_skipped(photos: Path) -> None:
    (photos / "bee/3.jpg").write_bytes((photos / "bee/3.jpg").read_bytes()[:200])
    out = photos.parent / "photos.rec"
    with pytest.raises(MezzoError, match=r"bee/3\.jpg"):
        mezzo("pack", photos, "-o", out)
    assert not out.exists()
    told = mezzo("pack", photos, "-o", out, "--skip-bad")
    assert (told["records"], told["skipped"]) == (20, 1)
    for args in (("photos", "-o", "x.idx"), ("photos",), ("x.rec", "--verify", "--index"), ("none", "-o", "x.rec")):
        with pytest.raises(InputError):
            mezzo("pack", *args)


def digits(place: Path) -> Path:
    data = held_out()
    for i in range(160):
        path = place / "digits" / str(data.labels[i]) / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(data.images[i, 0] * 15).save(path)
    return place / "digits"


def test_training_from_packed_records_by_two_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The two commands of the page; the packed file trains as the folder does."""
    monkeypatch.chdir(tmp_path)
    folder = digits(tmp_path)
    shutil.copy(digits_model(), "model.onnx")
    mezzo("pack", folder, "-o", "digits.rec", "--in-order")
    how = ("--epochs", 1, "--seed", 3, "--rate", 0.01)
    one = mezzo("train", "model.onnx", folder, "-o", "a.onnx", *how)
    two = mezzo("train", "model.onnx", "digits.rec", "-o", "b.onnx", *how)
    assert Path("a.onnx").read_bytes() == Path("b.onnx").read_bytes()
    assert one["classes"] == two["classes"]
    assert "waiting_for_data" in one
    command = "-m mezzo train model.onnx digits.rec -o tuned.onnx -n 2 --epochs 1 --quiet".split()
    subprocess.run([sys.executable, *command], check=True, timeout=240, capture_output=True)
    assert mz.load("tuned.onnx")(held_out().inputs[:2]).shape == (2, 10)


def test_bad_records_to_train_with(tmp_path: Path) -> None:
    with mz.data.RecordWriter(tmp_path / "x.rec") as out:
        out.write(mz.data.pack(mz.data.IRHeader(0, 0.5, 0), b"no image"))
    with pytest.raises(InputError, match="no class"):
        mezzo("train", digits_model(), tmp_path / "x.rec", "-o", tmp_path / "y.onnx")


def test_a_fit_that_waits_for_data_warns() -> None:
    data = held_out()

    def slow(seconds: float) -> Any:
        for i in range(0, 60, 4):
            time.sleep(seconds)
            yield {"image": data.inputs[i : i + 4], "target": data.labels[i : i + 4]}

    trainer = mz.Trainer(digits_model())
    with pytest.warns(UserWarning, match=r"waiting for batches: mz\.data\.DataLoader"):
        trainer.fit(lambda epoch: slow(0.1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer.fit(lambda epoch: slow(0))

    def late(image: Any, target: Any) -> Any:
        time.sleep(0.03)
        return {"image": image, "target": target}

    samples = mz.data.ArrayDataset(data.inputs[:48], data.labels[:48].astype(np.int64)).transform(late)
    loader = mz.data.DataLoader(samples, 8)
    with pytest.warns(UserWarning, match=r"the trainer waited \d+% of the time for data, of which \d+% is augment"):
        trainer.fit(loader)
    assert loader.stats().utilisation < 0.9
