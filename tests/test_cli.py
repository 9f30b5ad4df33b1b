"""The mezzo command, as users call it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mezzo.exporters import save_onnx
from mezzo.models.digits import digits_model, held_out
from mezzo.ops.errors import BudgetError
from mezzo.ops.types import f32
from mezzo.runtime.backends.onednn.library import library
from mezzo.runtime.ir.graph import GraphBuilder
from mezzo.tools.load import load

from .models import LIGHT, model, node, value

DIGITS = str(digits_model())


def mezzo(*args: str, code: int = 0) -> str:
    """Run the command in a process of its own; returns what it printed."""
    done = subprocess.run([sys.executable, "-m", "mezzo", *args], capture_output=True, text=True, timeout=300)
    assert done.returncode == code, done.stderr + done.stdout
    assert "Traceback" not in done.stderr
    return done.stdout if not code else done.stdout + done.stderr


def as_json(*args: str, code: int = 0) -> Any:
    return json.loads(mezzo(*args, "--json", code=code))


def test_run_reads_and_writes_arrays(tmp_path: Path) -> None:
    np.save(tmp_path / "image.npy", held_out().inputs[:3])
    report = as_json("run", DIGITS, "--input", f"image={tmp_path}/image.npy", "--output", f"{tmp_path}/out.npz")
    assert report["outputs"][0]["shape"] == "[3, 10]"
    with np.load(tmp_path / "out.npz") as stored:
        np.testing.assert_allclose(stored["logits"], held_out().logits[:3], rtol=1e-3, atol=1e-4)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["image.npy", "out.npz"]


def test_run_makes_up_what_is_not_given() -> None:
    assert "random" in mezzo("run", DIGITS, "--shape", "batch=5")
    assert as_json("run", DIGITS, "--shape", "image=2,1,8,8")["outputs"][0]["shape"] == "[2, 10]"


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("run", "nowhere.onnx"), "nowhere.onnx"),
        (("run", DIGITS, "--input", "image"), "NAME=VALUE"),
        (("run", DIGITS, "--input", "image=nowhere.npy"), "nowhere.npy"),
        (("run", DIGITS, "--shape", "picture=1"), "no input or dim 'picture'"),
        (("run", DIGITS, "--shape", "batch=many"), "batch=many: 'many' is no size"),
        (("explain", DIGITS, "--shape", "batch=-1"), "batch=-1: '-1' is no size"),
        (("run", DIGITS, "--shape", "image=2,1,8,9"), "expected 8"),
    ],
)
def test_bad_calls_get_one_message(args: tuple[str, ...], said: str) -> None:
    printed = mezzo(*args, code=2)
    assert said in printed
    assert "hint" in printed


def test_explain_tells_kernels_and_memory() -> None:
    report = as_json("explain", DIGITS, "--shape", "batch=4")
    assert report["steps"] == len(report["kernels"])
    assert report["allocating_steps"] == sum("allocates" in k["marks"] for k in report["kernels"])
    sizes = {row["strategy"]: row["arena bytes"] for row in report["strategies"]}
    assert sizes["none"] >= sizes["inplace"] >= sizes["both"] == report["arena_bytes"]
    assert sizes["none"] >= sizes["sharing"] >= sizes["both"]
    assert (report["references_allocate_at_most_bytes"] > 0) == (report["allocating_steps"] > 0)
    assert any(row["implementation"] for row in report["kernels"]) == bool(library())
    assert {row["space"] for row in report["spaces"]} == {"arena", "input", "output", "weight"}
    text = mezzo("explain", DIGITS, "--memory")
    assert "Arena" in text
    assert "Kernels" not in text


def test_explain_tells_the_device_of_each_step_and_what_is_copied() -> None:
    report = as_json("explain", DIGITS, "--dim", "batch=4", "--place", "[03].*=cpu:0", "--place", "7.*=cpu:1")
    (brought,) = report["between_devices"]
    assert (brought["from"], brought["to"], brought["bytes"]) == ("cpu:0", "cpu:1", report["bytes_between_devices"])
    steps = Counter(row["device"] for row in report["kernels"])
    assert set(steps) == {"cpu:0", "cpu:1"}
    assert {row["device"]: row["steps"] for row in report["devices"]} == steps
    assert "--place beside --workers" in mezzo("explain", DIGITS, "--workers", "2", "--place", "*=cpu", code=2)


def test_explain_takes_sizes_as_check_does() -> None:
    assert "float32[7,1,8,8]" in as_json("explain", DIGITS, "--dim", "batch=7")["inputs"]


def test_explain_tells_what_rounded_sizes_cost(tmp_path: Path) -> None:
    rounded, exact = ["planned, rounded up", "known", "planned, rounded up"], ["planned", "from a template"]
    for op, hows in (("Softmax", rounded), ("Hardmax", exact)):
        g = GraphBuilder("net")
        save_onnx(g.graph([g.op(op, g.input("x", f32(2, "length")), axis=-1)]), tmp_path / "net.onnx")
        report = as_json("explain", str(tmp_path / "net.onnx"), "--sizes", "length=9..13", "--buckets", "auto")
        assert [row["how"] for row in report["sizes"]] == hows
        assert ("not_rounded_up" in report) == (op == "Hardmax")
    assert report["not_rounded_up"].startswith("Hardmax: 'x' follows a size")


def test_explain_tells_what_sizes_cost() -> None:
    report = as_json("explain", DIGITS, "--sizes", "batch=2..9,70")
    assert [row["how"] for row in report["sizes"]] == ["planned", "from a template"]
    assert [row["batch"] for row in report["sizes"]] == ["2", "3..70 (8)"]
    assert report["templates"] == 2  # one of the batch of 1 that the report itself is of
    assert report["planned_from_a_template"] == 8
    assert "no input has a dim 'length'" in mezzo("explain", DIGITS, "--sizes", "length=1", code=2)
    assert "is no walk" in mezzo("explain", DIGITS, "--sizes", "batch=1..", code=2)


def test_explain_draws_the_plan(tmp_path: Path) -> None:
    picture = tmp_path / "memory.html"
    report = as_json("explain", DIGITS, "--memory", "--html", str(picture))
    text = picture.read_text("utf8")
    assert text.count("<rect") == len(report["arena"])
    assert "Who owns the peak" in text
    assert "http" not in text, "the page is complete in itself"


def test_the_largest_batch_runs_and_one_more_is_refused() -> None:
    report = as_json("explain", DIGITS, "--memory", "--budget", "256KiB")
    batch = report["largest_batch"]
    assert report["its_arena_bytes"] <= 256 << 10
    session = load(DIGITS, max_memory=256 << 10)
    assert session(np.zeros((batch, 1, 8, 8), np.float32)).shape == (batch, 10)
    with pytest.raises(BudgetError):
        session(np.zeros((batch + 1, 1, 8, 8), np.float32))
    assert "larger --budget" in mezzo("explain", DIGITS, "--budget", "1KiB", code=2)
    assert "no size" in mezzo("explain", DIGITS, "--budget", "much", code=2)


def test_explain_shows_resnets_bound() -> None:
    report = as_json("explain", str(next(r for r in LIGHT if "resnet" in r.name).path()), "--memory")
    assert report["arena_bytes"] <= 1.05 * report["largest_sum_of_live_bytes"]


def test_check_names_all_that_is_missing(tmp_path: Path) -> None:
    good, bad, broken = tmp_path / "good.onnx", tmp_path / "bad.onnx", tmp_path / "broken.onnx"
    nodes = [
        node("Relu", "x", "a"),
        node("Frobnicate", "a", "b", domain="acme"),
        node("Twist", "b", "c", domain="acme"),
    ]
    made = model(nodes, [value("x", 2)], [value("c", 2)], domains={"acme": 1})
    bad.write_bytes(made.SerializeToString())
    good.write_bytes(Path(DIGITS).read_bytes())
    broken.write_bytes(good.read_bytes()[:1000])
    assert as_json("check", str(good))["status"] == "covered"
    (report,) = as_json("check", str(bad), code=1)["models"]
    assert report["status"] == "not covered"
    assert {o["operator"]: o["covered"] for o in report["operators"]} == {
        "Relu": "yes",
        "Frobnicate": "no",
        "Twist": "no",
    }
    assert as_json("check", str(broken), code=3)["status"] == "bad file"
    both = as_json("check", str(good), str(bad), code=1)["models"]
    assert [m["status"] for m in both] == ["covered", "not covered"]


def test_doctor_says_why_something_is_off() -> None:
    report = as_json("doctor")
    off = [row for table in ("devices", "features") for row in report[table] if row["state"] == "off"]
    assert off
    assert all(row["why"] for row in off)
    assert {p["package"] for p in report["packages"]} >= {"mezzo", "numpy", "onnx"}


def test_demo_reads_digits_and_draws_them(tmp_path: Path) -> None:
    from PIL import Image

    report = as_json("demo", "--picture", str(tmp_path / "digits.png"))
    assert float(report["accuracy"].rstrip("%")) > 98
    assert report["memory"][0]["arena bytes"] < report["memory"][0]["without reuse bytes"]
    (row,) = [r for r in report["turned_by_90_degrees"] if r[""] == "accuracy"]
    assert float(row["before"].rstrip("%")) < 30
    assert float(row["after"].rstrip("%")) > 90
    assert sorted(p.name for p in tmp_path.iterdir()) == ["digits-turned.onnx", "digits-turned.svg", "digits.png"]
    with Image.open(tmp_path / "digits.png") as picture:
        assert picture.size[0] > 500
        assert len(np.unique(np.asarray(picture.convert("RGB")))) > 10


@pytest.mark.parametrize(
    "said", [("run", "--output", "nowhere/o.npz"), ("explain", "--html", "nowhere/x.html"), ("explain", "--html", ".")]
)
def test_files_that_cannot_be_written(said: tuple[str, ...]) -> None:
    told = mezzo(said[0], DIGITS, *said[1:], code=2)  # and no traceback
    assert f"mezzo: {said[2]}" in told


def test_version_and_help() -> None:
    assert "0.1.0" in mezzo("--version")
    for command in ("run", "explain", "check", "doctor", "demo", "train"):
        assert command in mezzo("--help")
        assert "--json" in mezzo(command, "--help")
