"""`mezzo train`: what it reads, what it refuses and where, that it goes on to the same bits, and what it draws."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import xml.etree.ElementTree as ET
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest

from mezzo.exporters import save_onnx
from mezzo.importers import load_onnx
from mezzo.models.digits import digits_model, held_out
from mezzo.ops import DType, Tensor
from mezzo.ops.errors import BudgetError, Cancelled, ExecutionError, InputError, MezzoError, ModelError
from mezzo.runtime.execution.session import Session
from mezzo.runtime.ir.graph import Graph
from mezzo.runtime.ir.infer import infer
from mezzo.runtime.optimizer import KINDS, SGD
from mezzo.runtime.optimizer import schedule as schedules
from mezzo.tools import images, watch
from mezzo.tools import settings as module
from mezzo.tools.batches import Data, Reading
from mezzo.tools.cli import cli
from mezzo.tools.curve import MOST, Epoch, History, curve
from mezzo.tools.datasets import read
from mezzo.tools.fit import Course, Every
from mezzo.tools.load import load
from mezzo.train.loss import LOSSES, register

from .networks import Layers, mlp

Array = np.ndarray[Any, Any]
Line = Callable[..., str]
X = np.random.default_rng(0).standard_normal((60, 12)).astype(np.float32)
LABELS = (X[:, 0] > 0).astype(np.int64) + (X[:, 1] > 0)  # 0, 1, 2
NAMES = np.array(["low", "mid", "top"])


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, with a model and the same data in two forms; ONNX Runtime has tests of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    save_onnx(mlp(), "mlp.onnx")
    np.savez("data.npz", x=X, target=LABELS)
    header = ",".join([*(f"f{i}" for i in range(12)), "label"])
    rows = [",".join([*map(str, x), NAMES[t]]) for x, t in zip(X, LABELS, strict=True)]
    Path("data.csv").write_text("\n".join([header, *rows, ""]))
    return tmp_path


def mezzo(*args: str) -> None:
    """The command in this process; errors come out as they are."""
    try:
        cli.main(["train", *args], standalone_mode=False)
    except click.ClickException as error:
        raise AssertionError(error.format_message()) from error


def trained(*args: str, out: str = "out.onnx") -> dict[str, Any]:
    """What the command tells as JSON."""
    mezzo(*args, "-o", out, "--json", "told.json", "--quiet")
    told: dict[str, Any] = json.loads(Path("told.json").read_text())
    return told


def weights(path: str) -> dict[str, Array]:
    return dict(load_onnx(path).initializers)


# -- data -----------------------------------------------------------------------------------------------------------


def test_a_table_with_names_of_classes(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mezzo("mlp.onnx", "data.csv", "-o", "out.onnx", "--epochs", "12", "--rate", "0.02", "--json", "told.json")
    printed, told = capsys.readouterr().out, json.loads(Path("told.json").read_text())
    assert "epoch 12: loss" in printed
    assert "accuracy on validation" in printed
    assert told["classes"] == "low, mid, top"
    assert told["head"] == "a new one of 3"
    assert [e["epoch"] for e in told["epochs"]] == [*range(1, 13)]
    assert told["epochs"][-1]["loss"] < 0.5 * told["epochs"][0]["loss"]
    assert told["epochs"][-1]["accuracy"] > 0.9
    assert told["epochs"][-1]["validation_accuracy"] > 0.4
    assert told["updates"] == told["epochs"][-1]["step"] == 12 * 2
    answers = load("out.onnx")(X)
    assert answers.shape == (60, 3)
    assert (answers.argmax(1) == LABELS).mean() > 0.9
    assert "differs by" in told["loaded_again"]
    assert "onnx_runtime" in told


def test_arrays_under_names_of_their_own(place: Path) -> None:
    np.savez_compressed("other.npz", pixels=X.astype(np.float64), classes=LABELS.astype(np.uint8), more=X)
    told = trained("mlp.onnx", "other.npz", "--input", "x=pixels", "--target", "classes", "--epochs", "1")
    assert "head" not in told, "three numbers of classes fit into five"
    np.savez("one.npz", anything=X, label=NAMES[LABELS])
    assert trained("mlp.onnx", "one.npz", "--epochs", "1")["classes"] == "low, mid, top"
    assert trained("mlp.onnx", "data.npz", "--epochs", "1", "--validate", "0")["validation"] == "none"
    told = trained("mlp.onnx", "data.npz", "--epochs", "1", "--validation", "one.npz", "--validate", "0.5")
    assert told["data"].startswith("60 samples")
    assert told["validation"].startswith("60 samples")


def test_numbers_are_learned_too(place: Path) -> None:
    rows = "\n".join(f"{a};{b};{2 * a + b};{a - b}" for a, b in X[:, :2])
    Path("numbers.csv").write_text(f"a;b;sum;gap\n{rows}\n")
    g = Layers(DType.FLOAT, 2)
    save_onnx(g.done(g.linear("only", g.x, 2, 2)), "linear.onnx")
    told = trained(
        *("linear.onnx", "numbers.csv", "--loss", "mse", "--target", "sum", "--target", "gap", "--input", "x=a,b"),
        *("--optimizer", "sgd", "--momentum", "0.9", "--rate", "0.1", "--epochs", "40"),
    )
    assert told["epochs"][-1]["validation_loss"] < 1e-3
    assert told["epochs"][-1]["accuracy"] is None
    np.testing.assert_allclose(weights("out.onnx")["only.weight"], [[2, 1], [1, -1]], atol=0.05)


def picture(path: Path, pixels: Array) -> None:
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


@pytest.fixture
def folder(place: Path) -> Path:
    """Digits 0 to 2 as files, one folder for each."""
    digits = held_out()
    for i in np.flatnonzero(digits.labels < 3)[:45]:
        picture(place / "digits" / f"is {digits.labels[i]}" / f"{i}.png", digits.images[i, 0] * 15)
    return place / "digits"


def test_a_folder_of_images(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    most, decoded = 0, images.Form.decoded
    mine = threading.local()  # batches are read ahead

    def counted(self: images.Form, path: Path) -> Array:
        mine.alive += 1
        pixels: Array = decoded(self, path)
        return pixels

    def batch(self: Data, chosen: Array, feeds: Any = Data.feeds) -> Any:
        nonlocal most
        mine.alive = 0
        made = feeds(self, chosen)
        most = max(most, mine.alive)
        return made

    monkeypatch.setattr(images.Form, "decoded", counted)
    monkeypatch.setattr(Data, "feeds", batch)
    told = trained(
        str(digits_model()), str(folder), *("--epochs", "2", "--batch", "8", "--validate", "0.2", "--rate", "0.003")
    )
    assert told["classes"] == "is 0, is 1, is 2"
    assert told["head"] == "a new one of 3"
    assert told["epochs"][-1]["validation_accuracy"] > 0.8
    assert most == 8, "a batch at a time is decoded"


def test_pixels_are_scaled_and_stand_where_the_model_wants_them(tmp_path: Path) -> None:
    colours = np.array([[[255, 0, 51]] * 4] * 2, np.uint8)
    picture(tmp_path / "data/red/one.png", colours)
    (tmp_path / "data/red/notes.txt").write_text("not read")
    mean, std = (0.5, 0.5, 0.0), (0.5, 0.25, 0.2)
    expected = np.broadcast_to(np.array([1, -2, 1], np.float32), (1, 2, 4, 3))
    for dims, made in (
        (("n", 3, 2, 4), expected.transpose(0, 3, 1, 2)),
        (("n", 2, 4, 3), expected),
        (("n", 3, "h", "w"), expected[:, :1].repeat(3, 1).transpose(0, 3, 1, 2)[..., [0] * 5]),
    ):
        size = (3, 5) if "h" in dims else None
        how = Reading({"x": Tensor(DType.FLOAT, dims)}, size=size, mean=mean, std=std)
        feeds = read(tmp_path / "data", how).feeds(np.array([0]))
        np.testing.assert_allclose(feeds["x"], made, atol=1e-5)
        assert feeds["target"].tolist() == [0]
    raw = read(tmp_path / "data", Reading({"x": Tensor(DType.UINT8, (1, 2, 4, 3))})).feeds(np.array([0]))
    np.testing.assert_array_equal(raw["x"], colours[None])
    grey = read(tmp_path / "data", Reading({"x": Tensor(DType.FLOAT, (1, 1, 2, 4))}, scale=1.0)).feeds(np.array([0]))
    assert grey["x"].max() == 82, "Pillow's grey of this red"


# -- what is refused ------------------------------------------------------------------------------------------------


def csv(text: str) -> Callable[[], str]:
    def write() -> str:
        Path("bad.csv").write_text(text)
        return "bad.csv"

    return write


def npz(**arrays: Any) -> Callable[[], str]:
    def write() -> str:
        np.savez("bad.npz", **arrays)
        return "bad.npz"

    return write


def bad_image() -> str:
    picture(Path("pictures/a/1.png"), np.zeros((4, 4), np.uint8))
    Path("pictures/a/2.png").write_bytes(b"no picture")
    return "pictures"


def empty_folder() -> str:
    picture(Path("pictures/a/1.png"), np.zeros((4, 4), np.uint8))
    Path("pictures/b").mkdir()
    return "pictures"


def damaged() -> str:
    Path("bad.npz").write_bytes(Path("data.npz").read_bytes()[:-100])
    return "bad.npz"


def boastful() -> str:
    """A header that claims more than the file has."""
    import io
    import zipfile

    with zipfile.ZipFile("bad.npz", "w") as archive:
        for name, shape in (("x", (1 << 40, 12)), ("target", (1 << 40,))):
            header = io.BytesIO()
            np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": shape})
            archive.writestr(f"{name}.npy", header.getvalue())
    return "bad.npz"


HEAD = ",".join([*(f"f{i}" for i in range(12)), "label"])
ROW = "1," * 12
MLP = ("mlp.onnx",)
DIGITS = (str(digits_model()),)
BAD: list[tuple[Callable[[], str], Sequence[str], str, str]] = [
    (csv(f"{HEAD}\n{ROW}a\n{ROW[2:]}b\n"), MLP, "12 cells under a header of 13", "bad.csv, line 3"),
    (csv(f"{HEAD}\nx{ROW}a\n"), MLP, "'x1' under 'f0' is no number", "bad.csv, line 2"),
    (csv(f"{HEAD}\nnan,{ROW[2:]}a\n"), MLP, "'nan' under 'f0' is no number", "bad.csv, line 2"),
    (csv(HEAD + "\n"), MLP, "no rows", "bad.csv"),
    (csv(""), MLP, "no 'target'", "bad.csv"),
    (csv(f"{HEAD}\n{ROW}a\n"), (*MLP, "--target", "kind"), "no 'kind'", "bad.csv"),
    (csv(f"{HEAD}\n{ROW}a\n"), (*MLP, "--input", "x=f0,f1"), "shape [2]", "bad.csv"),
    (csv(f"{HEAD}\n{ROW}a\n"), (*MLP, "--input", "y=f0"), "no input 'y'", "--input"),
    (csv(f"{HEAD}\n{ROW}a\n"), (*MLP, "--loss", "mse"), "'a' under 'label' is no number", "bad.csv, line 2"),
    (csv(f"{HEAD}\n{ROW}a\n"), (*MLP, "--loss", "best"), "no loss 'best'", "loss"),
    (csv(f"{HEAD}\n{ROW}a\n"), MLP, "nothing on one side", "bad.csv"),
    (csv("a\0b"), MLP, "bad.csv", "bad.csv"),
    (npz(x=X, target=LABELS[:-1]), MLP, "x 60, target 59", "bad.npz"),
    (npz(x=X[:, :5], target=LABELS), MLP, "shape [5]", "bad.npz, 'x'"),
    (npz(y=X, z=X, target=LABELS), MLP, "no 'x'", "bad.npz"),
    (npz(x=X, target=LABELS - 1), MLP, "from -1 are no classes", "bad.npz, 'target'"),
    (npz(x=X, target=LABELS * 0.5), MLP, "float64 are no classes", "bad.npz, 'target'"),
    (npz(x=X, target=LABELS + 9), (*MLP, "--head", "3"), "up to 11", "bad.npz"),
    (npz(x=X.astype(str), target=LABELS), MLP, "elements <U", "bad.npz, 'x'"),
    (npz(x=X, target=LABELS), (*MLP, "--mean", "0.5"), "are for images", "bad.npz"),
    (damaged, MLP, "cannot be read", "bad.npz"),
    (boastful, MLP, "claims", "bad.npz"),
    (bad_image, DIGITS, "no image", "2.png"),
    (bad_image, MLP, "float32[n,12]", "pictures"),
    (empty_folder, DIGITS, "no image in 'b'", "pictures"),
    (empty_folder, (*DIGITS, "--loss", "mse"), "images have classes", "pictures"),
    (lambda: "nowhere.csv", MLP, "no data", "nowhere.csv"),
    (lambda: "mlp.onnx", MLP, "no kind of data", "mlp.onnx"),
]


@pytest.mark.parametrize(("write", "args", "said", "where"), BAD, ids=[said for _, _, said, _ in BAD])
def test_bad_data_are_refused_with_their_place(
    place: Path, write: Callable[[], str], args: Sequence[str], said: str, where: str
) -> None:
    model, *rest = args
    with pytest.raises(InputError) as refused:
        mezzo(model, write(), *rest, "-o", "out.onnx")
    assert said in str(refused.value)
    assert refused.value.where.endswith(where)
    assert refused.value.hint
    assert not Path("out.onnx").exists()


def test_what_is_larger_than_memory_is_not_read(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sysconf", lambda name: 10)
    for data in ("data.npz", "data.csv"):
        with pytest.raises(BudgetError, match="bytes of memory"):
            mezzo("mlp.onnx", data, "-o", "out.onnx")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("-o", "out.mezzo"), "an ONNX file"),
        (("-o", "nowhere/out.onnx"), "no such folder"),
        (("-o", "out.onnx", "--curve", "c.png"), ".svg or an .html"),
        (("-o", "out.onnx", "--resume"), "--checkpoint FOLDER"),
        (("-o", "out.onnx", "--optimizer", "magic"), "adam, adamw"),
        (("-o", "out.onnx", "--schedule", "magic"), "one-cycle"),
        (("-o", "out.onnx", "--momentum", "0.9"), "no setting 'momentum'"),
        (("-o", "out.onnx", "--set", "beta2=high"), "is no number"),
        (("-o", "out.onnx", "--freeze", "conv*"), "no weight matches"),
        (("-o", "out.onnx", "--head-at", "nowhere", "--head", "3"), "nowhere"),
        (("-o", "out.onnx", "--batch", "60", "--gather", "9"), "make no update"),
        (("-o", "out.onnx", "--every", "often"), "500steps"),
    ],
)
def test_settings_are_refused_before_the_training(place: Path, args: Sequence[str], said: str) -> None:
    with pytest.raises(MezzoError) as refused:
        mezzo("mlp.onnx", "data.npz", *args)
    assert said in str(refused.value)
    assert "hint" in str(refused.value)


def test_a_loss_that_is_no_number_ends_the_training(place: Path) -> None:
    with pytest.raises(ExecutionError, match="the loss is") as ended:
        mezzo("mlp.onnx", "data.npz", "-o", "out.onnx", "--optimizer", "sgd", "--rate", "1e30", "--quiet")
    assert "epoch 1" in ended.value.where
    assert not Path("out.onnx").exists()


# -- models ---------------------------------------------------------------------------------------------------------


def test_heads(place: Path) -> None:
    told = trained("mlp.onnx", "data.npz", "--head", "4", "--epochs", "1", "--freeze", "[024].*")
    assert told["head"] == "a new one of 4"
    before, after = weights("mlp.onnx"), weights("out.onnx")
    for name in ("0.weight", "2.bias"):
        np.testing.assert_array_equal(before[name], after[name])
    assert load("out.onnx")(X).shape == (60, 4)
    hidden = load_onnx("mlp.onnx").nodes[0].outputs[0]
    trained("mlp.onnx", "data.csv", "--head-at", hidden, "--epochs", "1", "--head", "3")
    assert "2.weight" not in weights("out.onnx"), "what the head does not read is gone"


def test_a_softmax_before_the_output_and_a_mezzo_file(place: Path) -> None:
    g = Layers(DType.FLOAT, 12)
    graph = g.done(g.Softmax(g.linear("only", g.x, 12, 3)))
    Session(graph).save("soft.mezzo", portable=True)
    told = trained("soft.mezzo", "data.npz", "--epochs", "8", "--rate", "0.1")
    assert told["epochs"][-1]["loss"] < told["epochs"][0]["loss"]
    shares = load("out.onnx")(X)
    np.testing.assert_allclose(shares.sum(1), 1, rtol=1e-5)
    told = trained("out.onnx", "data.npz", "--epochs", "1", "--rate", "1e-12", "--batch", "60", "--validate", "0")
    loss = -np.log(shares[np.arange(60), LABELS]).mean()
    assert told["epochs"][0]["loss"] == pytest.approx(loss, rel=1e-4), "of the logits, not of the shares"


def test_a_model_of_one_batch_size(place: Path) -> None:
    graph = mlp()
    save_onnx(infer(graph.but(types={"x": Tensor(DType.FLOAT, (4, 12))})), "four.onnx")
    told = trained("four.onnx", "data.npz", "--epochs", "1", "--validate", "0.5")
    assert told["updates"] == 30 // 4, "what is left is less than a batch"
    with pytest.raises(InputError, match="batches of 4 alone"):
        trained("four.onnx", "data.npz", "--batch", "3")


def test_mixed_precision_clipping_and_gathering(place: Path) -> None:
    told = trained(
        *("mlp.onnx", "data.npz", "--epochs", "2", "--amp", "bf16", "--clip-norm", "1", "--gather", "2"),
        *("--batch", "9", "--optimizer", "adamw", "--set", "beta2=0.98", "--opset", "17"),
    )
    assert told["updates"] == 2 * 6 // 2
    assert load_onnx("out.onnx").opsets[""] == 17


def plain_settings(**changes: Any) -> module.Settings:
    names = module.Settings.__dataclass_fields__
    plain: dict[str, Any] = dict.fromkeys(names) | {"optimizer": "adam", "schedule": "constant", "more": ()}
    return module.Settings(**{**plain, **changes})


@pytest.mark.parametrize("schedule", module.SCHEDULES)
@pytest.mark.parametrize("optimizer", [name.lower() for name in KINDS])
def test_every_optimizer_and_schedule_can_be_named(optimizer: str, schedule: str) -> None:
    made = module.optimizer(plain_settings(optimizer=optimizer, schedule=schedule, rate=0.5), 40)
    rates = [schedules.at(made.rate, t) for t in range(40)]
    assert max(rates) == pytest.approx(0.5, rel=0.01)
    assert (rates[0] < 0.5) == (schedule in ("warm-up", "one-cycle"))
    assert (rates[-1] < 0.1) == (schedule in ("step", "cosine", "polynomial", "one-cycle"))
    assert schedules.at(made.rate, 39) == pytest.approx(schedules.at(made.rate, 1000), abs=0.05), "there it stays"
    risen = module.optimizer(plain_settings(optimizer=optimizer, schedule=schedule, rate=0.5, warm_up=4), 40)
    assert schedules.at(risen.rate, 0) == 0
    assert schedules.at(risen.rate, 39) == pytest.approx(schedules.at(made.rate, 39), abs=0.05), (
        "it ends with the updates"
    )


def test_settings_reach_the_optimizer_and_the_schedule() -> None:
    how = plain_settings(
        optimizer="sgd", schedule="step", momentum=0.9, more=("nesterov=true", "every=7", "factor=0.5")
    )
    assert module.optimizer(how, 40) == SGD(rate=schedules.Step(0.01, 7, 0.5), momentum=0.9, nesterov=True)


# -- going on -------------------------------------------------------------------------------------------------------


def dropping() -> Graph:
    """A model whose training draws random numbers."""
    g = Layers(DType.FLOAT, 12)
    hidden = g.Relu(g.linear("0", g.x, 12, 16))
    return g.done(g.linear("1", g.Dropout(hidden, g.const(0.3, DType.FLOAT)), 16, 3))


GO_ON = (
    "--epochs",
    "4",
    "--batch",
    "7",
    "--gather",
    "3",
    "--schedule",
    "cosine",
    "--optimizer",
    "adamw",
    "--seed",
    "5",
)


def stopped_after(steps: int, end: BaseException | None = None) -> Callable[[watch.Watch, Course], None]:
    """In place of a Watch: the course is stopped by itself, or by an exception that leaves it no time."""

    def follow(_: watch.Watch, course: Course) -> None:
        def on_step(now: Course, __: Any) -> None:
            if end is not None and now.steps == steps:
                raise end

        course.on_step = on_step
        if end is None:
            course.stop = lambda: course.steps >= steps

    return follow


# in an epoch of 8 batches, at its end, and among the last
@pytest.mark.parametrize(("steps", "killed"), [(3, False), (16, False), (3, True), (31, True)])
def test_an_interrupted_training_goes_on_to_the_same_bits(
    place: Path, monkeypatch: pytest.MonkeyPatch, steps: int, killed: bool
) -> None:
    save_onnx(dropping(), "drop.onnx")
    whole = trained("drop.onnx", "data.npz", *GO_ON, out="whole.onnx")
    kept = ("--checkpoint", "kept", "--every", "2steps")
    end = RuntimeError("the power is off") if killed else None
    follow = watch.Watch.__call__
    monkeypatch.setattr(watch.Watch, "__call__", stopped_after(steps, end))
    with pytest.raises(RuntimeError if killed else Cancelled) as stop:
        trained("drop.onnx", "data.npz", *GO_ON, *kept, out="parts.onnx")
    monkeypatch.setattr(watch.Watch, "__call__", follow)
    if not killed:
        assert "--resume" in str(stop.value)
    assert not Path("parts.onnx").exists()
    told = trained("drop.onnx", "data.npz", *GO_ON, *kept, "--resume", out="parts.onnx")
    assert Path("whole.onnx").read_bytes() == Path("parts.onnx").read_bytes()
    for one, other in zip(whole["epochs"], told["epochs"], strict=True):
        assert {**one, "seconds": 0} == {**other, "seconds": 0}


def test_checkpoints_are_kept_apart(place: Path) -> None:
    kept = ("--checkpoint", "kept", "--epochs", "1")
    with pytest.raises(ModelError, match="no checkpoint can be read"):
        trained("mlp.onnx", "data.npz", *kept, "--resume")
    trained("mlp.onnx", "data.npz", *kept)
    with pytest.raises(InputError, match="another training"):
        trained("mlp.onnx", "data.npz", *kept)
    with pytest.raises(InputError, match="another batch"):
        trained("mlp.onnx", "data.npz", *kept, "--resume", "--batch", "9")
    with pytest.raises(InputError, match="another graph"):
        trained("mlp.onnx", "data.npz", *kept, "--resume", "--clip-norm", "1")
    first = Path("out.onnx").read_bytes()
    trained("mlp.onnx", "data.npz", *kept, "--resume")
    assert Path("out.onnx").read_bytes() == first, "a training that is over stays as it is"
    told = trained("mlp.onnx", "data.npz", "--checkpoint", "kept", "--epochs", "2", "--resume")
    assert [e["epoch"] for e in told["epochs"]] == [1, 2]


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_ctrl_c_keeps_the_training_and_exit_codes_tell(place: Path) -> None:
    command = [sys.executable, "-m", "mezzo", "train", "mlp.onnx", "data.npz", "-o", "out.onnx", "--epochs", "1000000"]
    with subprocess.Popen([*command, "--checkpoint", "kept"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as run:
        assert run.stdout is not None
        assert run.stdout.readline().startswith(b"epoch 1: loss")
        run.send_signal(signal.SIGINT)
        _, errors = run.communicate(timeout=60)
    assert run.returncode == 130
    assert b"--resume goes on" in errors
    assert b"Traceback" not in errors
    assert Path("kept/checkpoint.json").exists()
    done = subprocess.run([*command, "--optimizer", "magic"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "hint: One of adadelta" in done.stderr


def test_an_epoch_has_every_sample_once() -> None:
    data = Data("here", np.arange(10), (), lambda some: {"x": some * 2})
    orders = {tuple(f["target"].tolist()) for epoch in range(3) for f in data.shuffled(10, 1, epoch)}
    assert len(orders) == 3, "each epoch has its own"
    for epoch in range(3):
        seen = [f["target"] for f in data.shuffled(4, 1, epoch)]
        assert [len(s) for s in seen] == [4, 4, 2]
        assert sorted(np.concatenate(seen)) == [*range(10)]
        rest = [f["target"] for f in data.shuffled(4, 1, epoch, first=1)]
        np.testing.assert_array_equal(np.concatenate(rest), np.concatenate(seen[1:]))
    learn, held = data.split(0.3, 1)
    assert sorted([*learn.target, *held.target]) == [*range(10)]
    (feeds,) = held.batches(5)
    np.testing.assert_array_equal(feeds["x"], feeds["target"] * 2)


def test_every() -> None:
    assert Every.parse("2 epochs") == Every(2)
    assert Every.parse("1step") == Every(1, steps=True)


# -- pictures -------------------------------------------------------------------------------------------------------


def test_the_curve_is_a_picture(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # a terminal, for rich: a bar is drawn
    mezzo("mlp.onnx", "data.npz", "-o", "out.onnx", "--epochs", "2", "--curve", "curve.svg")
    assert "\x1b[" in capsys.readouterr().out
    text = Path("curve.svg").read_text()
    root = ET.fromstring(text)
    tag = "{http://www.w3.org/2000/svg}"
    assert root.tag == f"{tag}svg"
    assert len(root.findall(f"{tag}polyline")) == 6, "each batch, each epoch and validation, twice"
    titles = [t.text or "" for t in root.iter(f"{tag}title")]
    before = {t for t in titles if t.startswith("before, validation")}
    assert [t.split(": ")[1].split()[0] for t in sorted(before)] == ["accuracy", "loss"]
    (share,) = (float(t.split()[-1].rstrip("%")) for t in before if t.endswith("%"))
    assert 0 <= share <= 100
    trained("mlp.onnx", "data.npz", "--epochs", "1", "--curve", "curve.html")
    assert "<svg" in Path("curve.html").read_text()
    for path in ("curve.svg", "curve.html"):
        assert Path(path).read_text().replace("http://www.w3.org/2000/svg", "").count("http") == 0


def test_a_curve_is_drawn_of_anything() -> None:
    nothing = float("nan")
    for history in (
        History(),
        History(before=(nothing, None), epochs=[Epoch(1, 1, nothing, None, None, None, 0.0)]),
        History(
            epochs=[Epoch(1, 5, 0.0, 1.0, 0.0, 1.0, 0.0)], points=[(1, 0.0, 1.0), (2, nothing, None), (5, 0.0, 1.0)]
        ),
        History(points=[(1, 1e-30, None), (2, 1e30, None)]),
    ):
        ET.fromstring(curve(history, "a <title> & more"))


def test_a_long_history_stays_short() -> None:
    history = History()
    for step in range(1, 10 * MOST + 1):
        history.add(step, float(step), step / 100)
    assert len(history.points) < MOST
    assert history.points[0] == pytest.approx((8.5, 8.5, 0.085))
    assert History.from_dict(json.loads(json.dumps(history.to_dict()))) == history


def test_what_a_module_of_ones_own_registers(place: Path) -> None:
    """An optimizer and a loss, known by name once their module is imported."""
    (place / "of_mine.py").write_text(
        "import mezzo as mz\n"
        "@mz.loss.register\n"
        "def squares(y, target):\n"
        "    return (y - target) ** 2\n"
        "@mz.optimizer.register\n"
        "class Slow(mz.optimizer.SGD):\n"
        "    pass\n"
    )
    np.savez("rows.npz", x=X, target=np.eye(5, dtype=np.float32)[LABELS])
    how = ("mlp.onnx", "rows.npz", "--epochs", "1", "--rate", "0.01", "--set", "momentum=0.9")
    with pytest.raises(InputError, match="squares"):
        trained(*how, "--loss", "squares", "--optimizer", "sgd")
    try:
        trained(*how, "--import", "of_mine", "--loss", "squares", "--optimizer", "slow", out="a.onnx")
        trained(*how, "--loss", "mse", "--optimizer", "sgd", out="b.onnx")
        assert Path("a.onnx").read_bytes() == Path("b.onnx").read_bytes()
    finally:
        LOSSES.pop("squares", None)
        KINDS.pop("Slow", None)
    with pytest.raises(InputError, match="of_yours cannot be imported"):
        trained(*how, "--import", "of_yours")
    with pytest.raises(InputError, match="a name of Mezzo"):
        register(mse)


def mse() -> None:
    """A name that is taken."""
