"""What looks on a fit: speed, TensorBoard's files, the report, the manifest and its replay."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import mezzo as mz
from mezzo.gluon import Trainer, fit, loss, nn
from mezzo.models.digits import held_out
from mezzo.tools.cli import cli
from mezzo.train.callbacks import Callback

SCRIPT = """
import sys
import numpy as np
import mezzo as mz
from mezzo.gluon import Trainer, fit, loss, nn

mz.random.seed(3)
net = nn.HybridSequential(nn.Dense(8, "relu", in_units=64), nn.Dropout(0.2), nn.Dense(10, in_units=8))
net.initialize("xavier").hybridize()
rng = np.random.default_rng(0 if len(sys.argv) < 2 else None)
data = [(rng.random((16, 64), np.float32), rng.integers(0, 10, 16)) for _ in range(4)]
trainer = Trainer(net.collect_params(), "adam", {"learning_rate": 0.01})
fit(net, loss.SoftmaxCrossEntropyLoss(), trainer, data, epochs=2, metrics="accuracy",
    callbacks=[mz.callbacks.Record("run.json")])
"""


def batches() -> list[tuple[Any, Any]]:
    images, labels = held_out().inputs[:96], held_out().labels[:96]
    return [(images[i : i + 32], labels[i : i + 32]) for i in range(0, 96, 32)]


def learned(*callbacks: Any, epochs: int = 2) -> Any:
    mz.random.seed(0)
    net = nn.HybridSequential(nn.Dense(16, "relu"), nn.Dense(10)).initialize("xavier").hybridize()
    trainer = Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    held = batches()
    return fit(
        net, loss.SoftmaxCrossEntropyLoss(), trainer, held, epochs=epochs, validate=held[:1], metrics="accuracy",
        callbacks=callbacks,
    )  # fmt: skip


class Page(HTMLParser):
    """The tags of a page, and whether all are closed."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)
        self.links += [v for n, v in attrs if n in ("src", "href")]


def test_the_report_stands_alone_and_tells_what_happened(tmp_path: Path) -> None:
    report = mz.callbacks.Report(tmp_path / "run.html", samples=5)
    history = learned(report)
    text = (tmp_path / "run.html").read_text("utf8")
    page = Page()
    page.feed(text)
    assert page.tags.count("svg") == 5  # loss, rate, norm by step; loss and accuracy by epoch
    assert page.tags.count("figure") == page.tags.count("img") == 5
    assert all(link.startswith("data:") for link in page.links)
    assert f"{len(history)} of 2" in text
    losses = [float(v) for v in re.findall(r"<figcaption>loss ([\d.e+-]+)", text)]
    assert losses == sorted(losses, reverse=True)
    told = dict(re.findall(r"<td>(data|steps|validation|callbacks)</td><td>([\d.]+) s", text))
    assert set(told) == {"data", "steps", "validation", "callbacks"}


def test_the_largest_losses_are_those_of_the_last_epoch() -> None:
    seen: list[np.ndarray[Any, Any]] = []

    class See(Callback):
        def epoch_begin(self, run: Any) -> None:
            seen.clear()

        def step_end(self, run: Any) -> None:
            seen.append(run.losses)

    report = mz.callbacks.Report("unwritten.html", samples=7)
    report._write = lambda run: None
    learned(See(), report)
    wanted = np.sort(np.concatenate(seen))[::-1][:7]
    np.testing.assert_allclose([s.loss for s in report._worst], wanted, rtol=1e-6)


def test_norms_are_those_of_the_mean_gradient() -> None:
    norms: list[float] = []

    class See(Callback):
        norm = True

        def step_end(self, run: Any) -> None:
            norms.append(run.last.norm)

    mz.random.seed(0)
    net = nn.Dense(1, use_bias=False, in_units=3).initialize("ones")
    data = np.random.default_rng(0).random((8, 3), np.float32)
    fit(
        net,
        loss.L2Loss(),
        Trainer(net.collect_params(), "sgd"),
        [(data, np.zeros((8, 1), np.float32))],
        callbacks=[See()],
    )
    gradient = (data.sum(1, keepdims=True) * data).mean(0)
    np.testing.assert_allclose(norms, [np.linalg.norm(gradient)], rtol=1e-5)


def test_speed_is_told_and_a_bar_is_shown_nowhere_else_than_on_terminals(capsys: pytest.CaptureFixture[str]) -> None:
    lines: list[str] = []
    learned(mz.callbacks.Speedometer(2, write=lines.append), mz.callbacks.Progress())
    assert [re.sub(r"[\d.]+ samples/s, loss [\d.]+", "S", line) for line in lines] == [
        "epoch 0, step 2: S", "epoch 1, step 4: S", "epoch 1, step 6: S",
    ]  # fmt: skip
    assert not capsys.readouterr().out.strip()
    with pytest.raises(mz.InputError, match="every 0 steps"):
        mz.callbacks.Speedometer(0)


def test_the_same_callbacks_serve_a_trainer_of_graphs(tmp_path: Path) -> None:
    from mezzo.models.digits import digits_model

    feeds = [{"image": x, "target": y} for x, y in batches()]
    trainer = mz.Trainer(digits_model(), optimizer=mz.optimizer.SGD(rate=0.01))
    record, lines = mz.callbacks.Record(tmp_path / "run.json"), list[str]()
    shown = mz.callbacks.Speedometer(1, write=lines.append)
    trainer.fit(feeds, epochs=1, callbacks=[mz.callbacks.Report(tmp_path / "run.html"), record, shown])
    assert len(lines) == 3
    assert "norm of gradients" in (tmp_path / "run.html").read_text("utf8")
    assert record.manifest is not None
    assert {"before", "after", "batches", "metrics"} <= set(record.manifest.digests)


def test_tensorboard_reads_what_was_written(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX", reason="the extra [tensorboard] is not installed")
    from tensorboardX.proto.event_pb2 import Event

    learned(mz.callbacks.TensorBoard(tmp_path))
    (file,) = tmp_path.iterdir()
    data, tags, at = file.read_bytes(), list[tuple[str, int]](), 0
    while at < len(data):  # records: length, its checksum, an event, its checksum
        size = int.from_bytes(data[at : at + 8], "little")
        event = Event.FromString(data[at + 12 : at + 12 + size])
        tags += [(v.tag, event.step) for v in event.summary.value]
        at += 16 + size
    assert [s for t, s in tags if t == "step/loss"] == [1, 2, 3, 4, 5, 6]
    assert ("validation/accuracy", 1) in tags


def test_without_tensorboardx_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(mz.MissingPackage, match=r"mezzo\[tensorboard\]"):
        mz.callbacks.TensorBoard("runs")


def test_a_replay_comes_to_the_same_bits(tmp_path: Path) -> None:
    """And one of a script that has changed does not; a record of something else is refused."""
    script = tmp_path / "lesson.py"
    script.write_text(SCRIPT)
    subprocess.run([sys.executable, str(script)], cwd=tmp_path, check=True, timeout=120)
    kept = (tmp_path / "run.json").read_bytes()
    runner = CliRunner()
    result = runner.invoke(cli, ["replay", str(tmp_path / "run.json"), "--json"])
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert told["bits"] == "the same"
    assert {row["of"] for row in told["digests"]} == {"before", "after", "batches", "metrics"}
    assert (tmp_path / "run.json").read_bytes() == kept

    script.write_text(SCRIPT.replace("0.01", "0.011"))
    result = runner.invoke(cli, ["replay", str(tmp_path / "run.json"), "--json"])
    assert result.exit_code == 1
    found = {row["of"]: row["before"] for row in json.loads(result.stdout)["digests"]}
    assert found["before"] == found["batches"] == "the same"
    assert found["after"] != "the same"

    mz.random.seed_all(1, tmp_path / "other.json")
    result = runner.invoke(cli, ["replay", str(tmp_path / "other.json")])
    assert isinstance(result.exception, mz.InputError)
    script.write_text("raise SystemExit(3)")
    result = runner.invoke(cli, ["replay", str(tmp_path / "run.json")])
    assert isinstance(result.exception, mz.ExecutionError)
    assert "ended with 3" in str(result.exception)
