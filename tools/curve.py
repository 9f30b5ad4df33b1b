"""The curves of a training as a picture: loss and accuracy over steps and epochs, in training and on validation
data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from math import floor, isfinite, log10
from pathlib import Path
from typing import Any

from ..ops.dataclasses import asdict, dataclass, field
from ..ops.errors import InputError

TRAINING, VALIDATION = "#3b76c4", "#c8553d"
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 980, 330, 70, 24, 58, 44  # of one panel
MOST = 1000  # points of the training's line


@dataclass(frozen=True, slots=True)
class Epoch:
    """The numbers of one epoch. Accuracies are None if the loss has no classes, validation's also if there is no
    validation."""

    epoch: int
    step: int  # the last of the epoch, of all from the first
    loss: float
    accuracy: float | None
    validation_loss: float | None
    validation_accuracy: float | None
    seconds: float


@dataclass(slots=True)
class History:
    """Loss and accuracy of a training so far. `points` are (step, loss, accuracy), each the mean of `each` steps;
    neighbours are merged when there are too many."""

    before: tuple[float, float | None] | None = None  # validation's loss and accuracy before the first step
    epochs: list[Epoch] = field(default_factory=list[Epoch])
    points: list[tuple[float, float, float | None]] = field(default_factory=list[tuple[float, float, float | None]])
    each: int = 1
    pending: list[tuple[float, float, float | None]] = field(default_factory=list[tuple[float, float, float | None]])

    def add(self, step: int, loss: float, accuracy: float | None) -> None:
        """One step."""
        self.pending.append((step, loss, accuracy))
        if len(self.pending) >= self.each:
            self.points.append(_mean(self.pending))
            self.pending.clear()
        if len(self.points) >= MOST:
            self.points = [_mean(self.points[i : i + 2]) for i in range(0, len(self.points), 2)]
            self.each *= 2

    def to_dict(self) -> dict[str, Any]:
        """Return the history as plain data; see `from_dict`."""
        return asdict(self)

    @staticmethod
    def from_dict(data: Any) -> History:
        """The history that `to_dict` described.

        >>> History.from_dict(History(each=2).to_dict()) == History(each=2)
        True
        """
        return History(
            tuple(data["before"]) if data["before"] else None,
            [Epoch(**e) for e in data["epochs"]],
            [tuple(p) for p in data["points"]],
            data["each"],
            [tuple(p) for p in data["pending"]],
        )


def _mean(points: Sequence[tuple[float, float, float | None]]) -> tuple[float, float, float | None]:
    steps, losses, accuracies = zip(*points, strict=True)
    known = [a for a in accuracies if a is not None]
    return sum(steps) / len(steps), sum(losses) / len(losses), sum(known) / len(known) if known else None


def check_name(path: Path) -> None:
    """InputError unless a picture can have this name."""
    if path.suffix.lower() not in (".svg", ".html", ".htm"):
        raise InputError("a curve is an .svg or an .html file", where=str(path), hint=f"write {path.stem}.svg")


def draw(history: History, title: str, path: Path) -> None:
    """Write the picture: an SVG file, or an HTML page with a table of the epochs."""
    check_name(path)
    svg = curve(history, title)
    path.write_text(svg if path.suffix.lower() == ".svg" else _page(history, title, svg), "utf8")


def curve(history: History, title: str) -> str:
    """A self-contained SVG. Hovering over a point tells its numbers."""
    panels = [_panel(history, "loss", 0)]
    if any(e.accuracy is not None for e in history.epochs) or any(p[2] is not None for p in history.points):
        panels.append(_panel(history, "accuracy", HEIGHT))
    high = HEIGHT * len(panels)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {high}" font-family="system-ui,sans-serif"'
            ' font-size="12">',
            f'<rect width="{WIDTH}" height="{high}" fill="#fff"/>',
            f'<text x="{LEFT}" y="22" font-weight="bold">{escape(title)}</text>',
            *panels,
            "</svg>\n",
        ]
    )


def _panel(history: History, what: str, top: float) -> str:
    """One quantity over the steps."""
    share = what == "accuracy"
    line = [(p[0], p[2] if share else p[1]) for p in history.points]
    fit = [(e.step, e.accuracy if share else e.loss, e.epoch) for e in history.epochs]
    held = [(e.step, e.validation_accuracy if share else e.validation_loss, e.epoch) for e in history.epochs]
    if history.before:
        held.insert(0, (0, history.before[1 if share else 0], 0))
    values = [v for v in (*(v for _, v in line), *(v for _, v, _ in (*fit, *held))) if v is not None and isfinite(v)]
    last = max([*(p[0] for p in history.points), *(float(e.step) for e in history.epochs)], default=1.0) or 1.0
    ticks = _ticks(min(values, default=0.0), max(values, default=1.0), most=1.0 if share else None)
    low, high = ticks[0], ticks[-1]

    def x(step: float) -> float:
        return LEFT + step / last * (WIDTH - LEFT - RIGHT)

    def y(value: float) -> float:
        return top + HEIGHT - BOTTOM - (value - low) / (high - low) * (HEIGHT - TOP - BOTTOM)

    def shown(value: float, digits: str = ".2%") -> str:
        return f"{value:{digits}}" if share else f"{value:.4g}"

    parts = []
    for tick in ticks:
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(tick):.1f}" y2="{y(tick):.1f}" stroke="#ddd"/>')
        label = shown(tick, ".0%" if ticks[1] - ticks[0] >= 0.01 else ".2%")
        parts.append(f'<text x="{LEFT - 6}" y="{y(tick) + 4:.1f}" text-anchor="end">{label}</text>')
    parts += _axis(history, x, y(low), top, last)
    parts += _line(line, x, y, f'stroke="{TRAINING}" stroke-opacity="0.4"')
    for points, colour, name in ((fit, TRAINING, "training"), (held, VALIDATION, "validation")):
        parts += _line([(s, v) for s, v, _ in points], x, y, f'stroke="{colour}" stroke-width="2"')
        parts += [
            f'<circle cx="{x(s):.1f}" cy="{y(v):.1f}" r="3" fill="{colour}"><title>'
            f"{f'epoch {e}' if e else 'before'}, {name}: {what} {shown(v)}</title></circle>"
            for s, v, e in points
            if v is not None and isfinite(v)
        ]
    at = WIDTH - RIGHT - 330
    for colour, name in ((TRAINING, f"{what} while training"), (VALIDATION, f"{what} on validation")):
        parts.append(f'<rect x="{at}" y="{top + 16}" width="12" height="4" fill="{colour}"/>')
        parts.append(f'<text x="{at + 17}" y="{top + 22}">{name}</text>')
        at += 170
    return "\n".join(parts)


def _axis(history: History, x: Callable[[float], float], bottom: float, top: float, last: float) -> list[str]:
    """Steps below, epochs above."""
    parts = [
        f'<text x="{x(tick):.1f}" y="{bottom + 16:.1f}" text-anchor="middle">{tick:g}</text>'
        for tick in _ticks(0, last)
        if tick <= last and tick == int(tick)
    ]
    parts.append(f'<text x="{x(last / 2):.1f}" y="{bottom + 32:.1f}" text-anchor="middle">step</text>')
    every = -(-len(history.epochs) // 16)
    for e in history.epochs:
        if e.epoch % max(every, 1) == 0:
            at = x(e.step)
            parts.append(
                f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{top + TOP}" y2="{bottom:.1f}" stroke="#ddd" '
                'stroke-dasharray="3 3"/>'
            )
            parts.append(f'<text x="{at:.1f}" y="{top + TOP - 4}" text-anchor="middle" fill="#888">{e.epoch}</text>')
    parts.append(f'<text x="{LEFT}" y="{top + TOP - 4}" fill="#888">epoch</text>')
    return parts


def _line(points: Sequence[tuple[float, float | None]], x: Any, y: Any, style: str) -> list[str]:
    """Lines between neighbours that are numbers."""
    runs: list[list[str]] = [[]]
    for step, value in points:
        if value is None or not isfinite(value):
            runs.append([])
        else:
            runs[-1].append(f"{x(step):.1f},{y(value):.1f}")
    return [f'<polyline points="{" ".join(run)}" fill="none" {style}/>' for run in runs if len(run) > 1]


def _ticks(low: float, high: float, most: float | None = None) -> list[float]:
    """Round numbers around a span, at most seven.

    >>> _ticks(0.13, 2.2), _ticks(0.91, 0.99, 1.0)
    ([0.0, 0.5, 1.0, 1.5, 2.0, 2.5], [0.9, 0.92, 0.94, 0.96, 0.98, 1.0])
    """
    span = max(high - low, abs(high) * 1e-3, 1e-12)
    unit = 10.0 ** floor(log10(span))
    step = next((unit * f for f in (0.2, 0.5, 1, 2, 5) if span / (unit * f) <= 5), unit * 10)
    first = floor(low / step)
    count = first
    while count * step < high and (most is None or count * step < most):
        count += 1
    count = max(count, first + 1)
    return [float(f"{i * step:.12g}") for i in range(first, count + 1)]


def _page(history: History, title: str, svg: str) -> str:
    def cell(value: Any) -> str:
        return f"<td>{'' if value is None else f'{value:.6g}'}</td>"

    names = Epoch.__dataclass_fields__
    rows = "".join(f"<tr>{''.join(cell(getattr(e, n)) for n in names)}</tr>" for e in history.epochs)
    head = "".join(f"<th>{n.replace('_', ' ')}</th>" for n in names)
    return (
        f'<!doctype html><meta charset="utf-8"><title>{escape(title)}</title>'
        "<style>body{font:14px system-ui,sans-serif;margin:2em;color:#222}"
        "td,th{padding:2px 12px 2px 0;text-align:right}</style>"
        f"\n{svg}<table><tr>{head}</tr>{rows}</table>\n"
    )
