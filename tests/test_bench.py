"""`mezzo bench`, the comparison of engines under it and the tables made with that, on tiny models; no time is
asserted."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from mezzo.exporters import save_onnx
from mezzo.models.digits import digits_model, held_out
from mezzo.ops.types import f32
from mezzo.runtime.execution.session import Session
from mezzo.runtime.ir.graph import Graph, GraphBuilder
from mezzo.tools import compare
from mezzo.tools.compare import Agreement, Contestant, EngineFailed, Measured, command, error, lined_up, race, ratios

from .models import referee
from .peers import peer
from .test_cli import as_json, mezzo

DIGITS = str(digits_model())
SHORT = ("--rounds", "3", "--seconds", "0.001", "--threads", "1")


def test_ours_alone(tmp_path: Path) -> None:
    np.save(tmp_path / "image.npy", held_out().inputs[:3])
    report = as_json("bench", DIGITS, *SHORT, "--input", f"image={tmp_path}/image.npy")
    (row,) = report["engines"]
    assert row["engine"].startswith("mezzo ")
    assert 0 < row["p50 ms"] <= row["p99 ms"]
    assert row["median ms"] > 0
    assert row["load ms"] > 0
    if sys.platform == "linux":
        assert row["peak bytes"] > 10 << 20
    assert (report["threads"], report["rounds"], report["inputs"]) == (1, 3, "image float32[3, 1, 8, 8]")


def test_against_onnx_runtime(tmp_path: Path) -> None:
    referee()
    Session(_net()).save(tmp_path / "net.mezzo")
    file = tmp_path / "found.json"
    text = mezzo("bench", str(tmp_path / "net.mezzo"), *SHORT, "--against", "ort", "--json", str(file))
    assert "Ratios" in text  # the table is printed all the same
    report = json.loads(file.read_text())
    assert [row["engine"].split()[0] for row in report["engines"]] == ["mezzo", "ort"]
    (row,) = report["ratios"]
    assert 0 < row["lowest round"] <= row["its time over ours"] <= row["highest round"]
    assert float(row["outputs differ by"]) < 1e-5


def test_accuracy() -> None:
    report = as_json("bench", DIGITS, "--accuracy", "--precision", "fp32", "--precision", "none", "--threads", "1")
    same, refused = report["accuracy"]
    assert (same["output"], float(same["max relative error"])) == ("logits", 0)
    assert (refused["precision"], refused["output"]) == ("none", "refused")
    assert "none" in refused["max relative error"]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--precision", "bf16", "--precision", "int8"), "one --precision at a time"),
        (("--precision", "none", *SHORT), "none"),
    ],
)
def test_bad_calls(args: tuple[str, ...], said: str) -> None:
    assert said in mezzo("bench", DIGITS, *args, code=2)


def test_relative_errors() -> None:
    expected = np.array([[1, -4], [0, 2]], np.float32)
    assert error(expected + np.float32(1), expected) == (0.25, 0.25)
    assert error(expected[0], expected) == (np.inf, np.inf)
    holes = np.where(expected == 0, np.nan, expected)
    assert error(holes, holes) == (0, 0)
    assert error(holes, expected) == (np.inf, np.inf)
    assert error(np.array(["a"]), np.array(["a"])) == (0, 0)
    assert error(np.array(["a"]), np.array(["b"])) == (np.inf, np.inf)
    assert error(np.zeros((0, 3)), np.zeros((0, 3))) == (0, 0)


def test_ratios_are_of_rounds() -> None:
    ours, peer = Measured("mezzo", rounds=[1, 2, 4]), Measured("ort", rounds=[2, 2, 2])
    assert ratios(ours, peer) == [2, 1, 0.5]
    assert (ours.median, Measured("none").median) == (2, None)


LAST_WORDS = "import sys; sys.exit('there is no such engine')"


def test_an_engine_that_fails_is_told_and_left_out(tmp_path: Path) -> None:
    save_onnx(_net(), tmp_path / "net.onnx")
    found = race(
        [
            Contestant("mezzo", command("mezzo"), {"model": str(tmp_path / "net.onnx")}),
            Contestant("gone", command("mezzo"), {"model": "nowhere.onnx"}),
            Contestant("dead", [sys.executable, "-c", LAST_WORDS], {}),
        ],
        {"x": np.ones((2, 3), np.float32)},
        threads=1,
        rounds=2,
        seconds=0.001,
    )
    assert len(found["mezzo"].rounds) == 2
    assert "nowhere.onnx" in (found["gone"].failed or "")
    assert found["dead"].failed == "there is no such engine"
    assert found["gone"].rounds == found["dead"].rounds == []


def test_an_engine_that_disagrees_is_told_and_left_out(tmp_path: Path) -> None:
    save_onnx(_net(), tmp_path / "net.onnx")
    save_onnx(_net(2), tmp_path / "twice.onnx")
    files = {"mezzo": "net", "same": "net", "twice": "twice"}
    engines = [Contestant(n, command("mezzo"), {"model": str(tmp_path / f"{f}.onnx")}) for n, f in files.items()]
    feeds = {"x": np.ones((2, 3), np.float32)}
    agreement = Agreement(runs=3, judge="mezzo", tolerance=0.5)
    found = race(engines, feeds, threads=1, rounds=1, seconds=0.001, agreement=agreement)
    assert (found["mezzo"].error, found["same"].error, found["twice"].error) == (None, 0, 1)
    assert found["twice"].failed == "its answers are 1.0e+00 away from those of mezzo"
    assert [len(m.rounds) for m in found.values()] == [1, 1, 0]


def table(name: str, *args: str) -> subprocess.CompletedProcess[str]:
    """Run one of bench/."""
    program = Path(__file__).parents[1] / "bench" / f"{name}.py"
    return subprocess.run([sys.executable, str(program), *args], capture_output=True, text=True)


@pytest.mark.parametrize("other", ["", "torch-eager"])
def test_the_table_of_training(other: str, tmp_path: Path) -> None:
    """Ours, and beside it PyTorch: their first losses agree, and the row has all that is told of it."""
    if other:
        peer("torch")
    file = tmp_path / "training.json"
    short = ("--quick", "--rounds", "1", "--seconds", "0.001", "--threads", "1")
    done = table("training", "--rows", "mlp/b64/fp32", "--peers", other, *short, "--json", str(file))
    assert not done.returncode, done.stderr
    (row,) = json.loads(file.read_text())
    assert (row["case"], row["rounds"], row["threads"]) == ("mlp/b64/fp32", 1, 1)
    assert set(row["engines"]) == {"mezzo", *filter(None, [other])}
    for engine in row["engines"].values():
        assert engine["precision"] == "fp32"
        assert min(engine["median_ms"], engine["first_ms"], engine["load_ms"]) > 0
        assert engine["error"] is None or engine["error"] < 1e-5
    for ratio in row["ratios"].values():
        assert ratio["bar"] == 1.7
        assert ratio["aim"] == 1.5
        assert 0 < ratio["low"] <= ratio["median"] <= ratio["high"]
    assert "mlp/b64/fp32" in file.with_suffix(".svg").read_text("utf8")
    assert "first" in done.stdout


@pytest.mark.parametrize("asked", [("--rows", "nothing/*"), ("--quick", "--peers", "nobody")])
@pytest.mark.parametrize(
    ("name", "row"), [("training", "fig6/vgg-a/b32"), ("inference", "bert/b8/fp32"), ("mxnet_models", "vgg11/b1")]
)
def test_a_table_lists_its_rows_and_peers(name: str, row: str, asked: tuple[str, ...]) -> None:
    """Rows come first: those of --quick are known."""
    done = table(name, *asked, "--json", "-")
    assert done.returncode == 1
    assert f"there is no {asked[-1]!r}; rows: " in done.stderr
    assert row in done.stderr
    assert "peers: " in done.stderr


def test_many_threads_at_once(tmp_path: Path) -> None:
    save_onnx(_net(), tmp_path / "net.onnx")
    ours = Contestant("mezzo", command("mezzo"), {"model": str(tmp_path / "net.onnx")})
    with lined_up([ours], {"x": np.ones((2, 3), np.float32)}, threads=1) as (_, engines):
        served = engines["mezzo"].ask("crowd", seconds=0.05, threads=4)
        assert served["calls"] >= 4
        assert 0 < served["p50"] <= served["p99"]
        assert engines["mezzo"].ask("stats")["calls"] == served["calls"]


def test_an_engine_that_answers_too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "PATIENCE", 0.2)
    engine = compare.Engine("slow", [sys.executable, "-c", "import time; time.sleep(60)"], threads=1, environment={})
    with pytest.raises(EngineFailed, match="slow: its process ended"):
        engine.ask("stats")
    engine.close()


def _net(scale: float = 1) -> Graph:
    g = GraphBuilder("net")
    return g.graph([g.Relu(g.MatMul(g.input("x", f32("n", 3)), g.const(scale * np.eye(3, 4, dtype=np.float32))))])
