"""The demonstration: a network reads handwritten digits, checked against PyTorch's answers, and learns turned ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from ..models.digits import Digits, digits_model, held_out
from ..ops.errors import ExecutionError
from ..runtime.execution.session import Session
from .load import load
from .report import Report, Table

TOLERANCE = 1e-3
EPOCHS, BATCH = 15, 32  # of the fine-tuning


def demo(picture: Path, tick: Callable[[], None] = lambda: None) -> Report:
    """Classify the held-out digits one by one and all at once, compare every logit with PyTorch's, draw a picture; then
    teach the network to read them turned by 90 degrees, and export it.

    `tick` is called after each image and each epoch, `ticks()` times. Raises ExecutionError if a logit is further from
    PyTorch's than the tolerance, or the exported model does not do what was learned.
    """
    started = perf_counter()
    session = load(digits_model())
    loaded = perf_counter() - started
    digits = held_out()
    singles, seconds = _one_by_one(session, digits, tick)
    single = session.plan
    batch = session(digits.inputs)
    error = max(_distance(singles, digits.logits), _distance(batch, digits.logits))
    if error > TOLERANCE:
        raise ExecutionError(f"the logits are {error:.1e} from PyTorch's, the tolerance is {TOLERANCE}", where="digits")
    draw(digits, batch, picture)
    facts: dict[str, Any] = {
        "images": len(digits.labels),
        "accuracy": f"{(batch.argmax(1) == digits.labels).mean():.2%}",
        "accuracy_of_pytorch": f"{(digits.logits.argmax(1) == digits.labels).mean():.2%}",
        "largest_difference_of_logits": f"{error:.1e}",
        "load_ms": round(loaded * 1e3, 1),
        "latency_ms": round(median(seconds) * 1e3, 3),
        "picture": str(picture),
    }
    trained, learned = fine_tune(digits, picture, tick)
    rows = [
        (name, plan.size, plan.bound, plan.total(), f"{plan.total() / max(plan.size, 1):.1f} x")
        for name, plan in (("1 image", single), (f"{len(digits.labels)} images", session.plan))
    ]
    columns = ("batch", "arena bytes", "largest sum of live bytes", "without reuse bytes", "saved")
    tables = (Table("Memory", columns, rows), Table("Turned by 90 degrees", ("", "before", "after"), trained))
    return Report("Handwritten digits", {**facts, **learned}, tables)


def ticks() -> int:
    """Return the number of progress steps of the demonstration."""
    return len(held_out().labels) + EPOCHS


def fine_tune(digits: Digits, picture: Path, tick: Callable[[], None]) -> tuple[list[tuple[Any, ...]], dict[str, Any]]:
    """Train with half of the digits, turned, and read the others before and after; the rows and facts to tell.

    The curve and the ONNX file lie beside the picture.
    """
    from ..runtime.optimizer import Adam
    from ..runtime.optimizer.schedule import OneCycle
    from ..train.trainer import Trainer
    from .batches import ALL, Data
    from .curve import draw as draw_curve
    from .exported import check_export
    from .fit import Course

    turned = np.rot90(digits.inputs, axes=(2, 3)).copy()
    everything = Data("turned digits", digits.labels.astype(np.int64), (), lambda some: {"image": turned[some]})
    learn, judge = everything.split(0.5, seed=0)
    updates = EPOCHS * ALL.steps(len(learn), BATCH)
    trainer = Trainer(digits_model(), optimizer=Adam(rate=OneCycle(0.02, updates)))
    course = Course(trainer, learn, judge, BATCH, EPOCHS, on_epoch=lambda epoch: tick())
    started = perf_counter()
    course.run()
    seconds = perf_counter() - started
    curve, model = picture.with_name(f"{picture.stem}-turned.svg"), picture.with_name(f"{picture.stem}-turned.onnx")
    draw_curve(course.history, "Learning to read digits turned by 90 degrees", curve)
    trainer.export(model)
    last = course.history.epochs[-1]
    assert course.history.before is not None
    (loss, accuracy) = course.history.before
    rows: list[tuple[Any, ...]] = [
        ("accuracy", f"{accuracy:.2%}", f"{last.validation_accuracy:.2%}"),
        ("loss", f"{loss:.4f}", f"{last.validation_loss:.4f}"),
    ]
    facts = {
        "trained": f"{updates} updates with {len(learn)} turned digits in {seconds:.1f} s, read {len(judge)} others",
        "curve": str(curve),
        "exported": str(model),
        **check_export(course, model, "cross_entropy"),
    }
    return rows, facts


def _one_by_one(session: Session, digits: Digits, tick: Callable[[], None]) -> tuple[Any, list[float]]:
    answers, seconds = [], []
    for image in digits.inputs:
        at = perf_counter()
        answers.append(session(image[None]))
        seconds.append(perf_counter() - at)
        tick()
    return np.concatenate(answers), seconds


def _distance(a: Any, b: Any) -> float:
    return float(np.abs(a - b).max() / np.abs(b).max())


def draw(digits: Digits, logits: Any, path: Path, *, columns: int = 12, rows: int = 6, scale: int = 8) -> None:
    """Save a PNG of digits with their predictions: green where right, red where wrong; the wrong ones come first."""
    from PIL import Image, ImageDraw

    guesses = logits.argmax(1)
    order = np.argsort(guesses == digits.labels, kind="stable")[: columns * rows]
    side, caption = 8 * scale, 16
    sheet = Image.new("RGB", (columns * (side + 8) + 8, rows * (side + caption + 8) + 8), "white")
    pen = ImageDraw.Draw(sheet)
    for at, index in enumerate(order):
        x, y = 8 + at % columns * (side + 8), 8 + at // columns * (side + caption + 8)
        pixels = (255 - digits.images[index, 0].astype(np.uint16) * 255 // 16).astype(np.uint8)
        sheet.paste(Image.fromarray(pixels).resize((side, side), Image.Resampling.NEAREST), (x, y))
        right = guesses[index] == digits.labels[index]
        text = f"{guesses[index]}" if right else f"{guesses[index]}, is {digits.labels[index]}"
        pen.text((x + 2, y + side + 2), text, fill="darkgreen" if right else "red")
    sheet.save(path)
