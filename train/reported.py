"""A report of a fit as one HTML file: curves, rates, norms, where the time went, samples of the largest loss."""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import nlargest
from html import escape
from io import BytesIO
from math import isfinite
from time import time
from typing import Any

import numpy as np

from ..runtime.files import replace_file
from ..runtime.version import __version__
from .following import PARTS, Callback, Run
from .watching import numbers_of

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 640, 220, 64, 24, 26  # of a curve
COLOURS = ("#3b76c4", "#c8553d")
MOST = 800  # points of a curve: more are means of neighbours
STYLE = (
    "body{font:14px system-ui,sans-serif;margin:2em;color:#222;max-width:1320px}"
    "td,th{padding:2px 12px 2px 0;text-align:right}"
    "svg{margin:8px 12px 8px 0}figure{display:inline-block;margin:6px 10px 6px 0;vertical-align:top;width:150px;"
    "overflow:hidden;font-size:12px}img{width:96px;image-rendering:pixelated;display:block}"
)


@dataclass(frozen=True, slots=True)
class Sample:
    """A sample of large loss: its loss, step, what it is, and its label."""

    loss: float
    step: int
    data: Any
    label: Any


class Report(Callback):
    """Write a self-contained HTML page about the fit, after each epoch and at the end: `samples` is how many of the
    largest loss in the last epoch it shows, where the loss has a number for each (as pictures, where they are such)."""

    norm = True  # fit of blocks computes the norm of the gradients for it

    def __init__(self, path: str | os.PathLike[str], *, samples: int = 12) -> None:
        self.path, self.samples = path, samples

    def fit_begin(self, run: Run) -> None:
        self._steps: list[tuple[float, ...]] = []
        self._worst: list[Sample] = []
        self._ends: list[int] = []
        self._begun = time()

    def epoch_begin(self, run: Run) -> None:
        self._worst = []

    def step_end(self, run: Run) -> None:
        if run.last is not None:
            norm = float("nan") if run.last.norm is None else run.last.norm
            self._steps.append((run.step, run.last.loss, run.last.rate, norm))
        if run.losses is not None and self.samples and isinstance(run.batch, Sequence):
            data, labels = run.batch[0], run.batch[-1]
            losses = np.asarray(run.losses, np.float64)
            losses = losses.reshape(len(losses), -1).mean(1)
            order = np.argsort(-losses)[: self.samples]
            fresh = [(float(losses[i]), int(i)) for i in order]
            floor = self._worst[-1].loss if len(self._worst) >= self.samples else -np.inf
            samples = [Sample(v, run.step, _row(data, i), _row(labels, i)) for v, i in fresh if v > floor]
            self._worst = nlargest(self.samples, [*self._worst, *samples], key=lambda s: s.loss)

    def epoch_end(self, run: Run) -> None:
        self._ends.append(run.step)
        self._write(run)

    def fit_end(self, run: Run) -> None:
        self._write(run)

    def _write(self, run: Run) -> None:
        replace_file(self.path, [self.page(run).encode()])

    def page(self, run: Run) -> str:
        """The page as text."""
        steps = np.array(self._steps).reshape(-1, 4)
        names = ("loss", "rate", "norm of gradients")
        curves = [curve(name, {name: (steps[:, 0], steps[:, i])}) for i, name in enumerate(names, 1)]
        ends = np.array(self._ends, float)
        for name in dict.fromkeys(n for pair in run.history for m in pair for n in numbers_of(m)):
            lines = {}
            for where, title in enumerate(("training", "validation")):
                values = [numbers_of(pair[where]).get(name, float("nan")) for pair in run.history][: len(ends)]
                lines[title] = (ends[: len(values)], np.array(values))
            curves.append(curve(f"{name} by epoch", lines))
        facts = {
            "epochs": f"{len(run.history)} of {run.epochs}", "steps": run.step,
            "seconds": f"{time() - self._begun:.1f}", "mezzo": __version__, "ended": run.reason or "as asked",
        }  # fmt: skip
        whole = sum(run.seconds.values()) or 1.0
        parts = "".join(
            f"<tr><td>{n}</td><td>{run.seconds[n]:.2f} s</td><td>{run.seconds[n] / whole:.1%}</td></tr>" for n in PARTS
        )
        return "".join([
            f'<!doctype html><meta charset="utf-8"><title>A training</title><style>{STYLE}</style><h1>A training</h1>',
            "<table>", *(f"<tr><td>{n}</td><td>{escape(str(v))}</td></tr>" for n, v in facts.items()), "</table>",
            *curves, f"<h2>Where the time went</h2><table>{parts}</table>",
            "<h2>Samples of the largest loss</h2>" if self._worst else "", *map(_figure, self._worst), "\n",
        ])  # fmt: skip


def _row(batch: Any, i: int) -> Any:
    """One sample of an array, or of arrays by name."""
    if isinstance(batch, Mapping):
        return {n: _row(a, i) for n, a in batch.items()}
    return np.asarray(batch.asnumpy() if hasattr(batch, "asnumpy") else batch)[i].copy()


def _figure(sample: Sample) -> str:
    label = escape(np.array2string(np.asarray(sample.label), threshold=8))
    caption = f"<figcaption>loss {sample.loss:.4g}<br>label {label}<br>step {sample.step}</figcaption>"
    return f"<figure>{_picture(sample.data)}{caption}</figure>"


def _picture(data: Any) -> str:
    """An image [1 or 3, height, width] or [height, width], its numbers from black to white; the first numbers of
    anything else."""
    x = np.asarray(data) if not isinstance(data, Mapping) else np.zeros(0)
    if x.ndim == 3 and x.shape[0] in (1, 3):
        x = x[0] if x.shape[0] == 1 else np.moveaxis(x, 0, -1)
    picture = (x.ndim == 2 or (x.ndim == 3 and x.shape[-1] == 3)) and min(x.shape[:2]) > 3
    if not picture or x.dtype.kind not in "fui" or not np.isfinite(x).all():
        return f"<code>{escape(str(data) if isinstance(data, Mapping) else np.array2string(x, threshold=8))}</code>"
    from PIL import Image

    low, high = float(x.min()), float(x.max())
    grey = ((x - low) * (255 / max(high - low, 1e-12))).astype(np.uint8)
    held = BytesIO()
    Image.fromarray(grey).save(held, "PNG")
    return f'<img alt="" src="data:image/png;base64,{base64.b64encode(held.getvalue()).decode()}">'


def curve(title: str, lines: Mapping[str, tuple[Any, Any]]) -> str:
    """An SVG of lines over steps: {name: (steps, values)}; numbers that are not finite are left out, and nothing is
    drawn where there are no others."""
    drawn = {}
    for name, (steps, values) in lines.items():
        kept = np.isfinite(values)
        x, y = np.asarray(steps, float)[kept], np.asarray(values, float)[kept]
        if len(x) > MOST:
            pieces = np.array_split(np.arange(len(x)), MOST)
            x, y = (np.array([v[p].mean() for p in pieces]) for v in (x, y))
        if len(x):
            drawn[name] = (x, y)
    if not drawn:
        return ""
    everything = np.concatenate([y for _, y in drawn.values()])
    low, high = float(everything.min()), float(everything.max())
    last = max(float(x.max()) for x, _ in drawn.values())
    span, wide = (high - low) or abs(high) or 1.0, max(last, 1.0)
    assert isfinite(span)
    parts = [f'<text x="{LEFT}" y="16" font-weight="bold">{escape(title)}</text>']
    for share in (0.0, 0.5, 1.0):
        at = HEIGHT - BOTTOM - share * (HEIGHT - BOTTOM - TOP)
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH}" y1="{at:.1f}" y2="{at:.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{low + share * span:.4g}</text>')
    parts.append(f'<text x="{WIDTH}" y="{HEIGHT - 6}" text-anchor="end">step {last:g}</text>')
    for i, (name, (x, y)) in enumerate(drawn.items()):
        points = " ".join(
            f"{LEFT + a / wide * (WIDTH - LEFT):.1f},{HEIGHT - BOTTOM - (b - low) / span * (HEIGHT - BOTTOM - TOP):.1f}"
            for a, b in zip(x, y, strict=True)
        )
        colour = COLOURS[i % len(COLOURS)]
        parts.append(f'<polyline fill="none" stroke="{colour}" stroke-width="1.5" points="{points}"/>')
        if len(x) == 1:
            parts.append(f'<circle cx="{points.split(",")[0]}" cy="{points.split(",")[1]}" r="3" fill="{colour}"/>')
        if len(drawn) > 1:
            at = WIDTH - 180 + 90 * i
            parts.append(f'<text x="{at}" y="16" fill="{colour}">{escape(name)}</text>')
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif"'
    return f'{head} font-size="12">{"".join(parts)}</svg>'
