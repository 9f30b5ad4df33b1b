"""The demonstration: a network that reads handwritten digits, checked against PyTorch's answers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from ..models.digits import Digits, digits_model, held_out
from ..ops.errors import ExecutionError
from ..runtime.session import Session
from .load import load
from .report import Report, Table

TOLERANCE = 1e-3


def demo(picture: Path, tick: Callable[[], None] = lambda: None) -> Report:
    """Classify the held-out digits one by one and all at once, compare every logit with PyTorch's, draw a picture.

    `tick` is called after each image. Raises ExecutionError if a logit is further from PyTorch's than the tolerance.
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
    rows = [
        (name, plan.size, plan.bound, plan.total(), f"{plan.total() / max(plan.size, 1):.1f} x")
        for name, plan in (("1 image", single), (f"{len(digits.labels)} images", session.plan))
    ]
    columns = ("batch", "arena bytes", "largest sum of live bytes", "without reuse bytes", "saved")
    return Report("Handwritten digits", facts, (Table("Memory", columns, rows),))


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
