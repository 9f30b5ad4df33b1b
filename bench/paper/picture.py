"""The figures as self-contained SVG files: groups of bars, and lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from math import ceil, isfinite, log10

COLOURS = ("#9aa5b1", "#e8a33d", "#3b76c4", "#5a9e6f", "#c8553d", "#7b5aa6")
WIDTH, LEFT, RIGHT, TOP, BOTTOM = 460, 62, 12, 46, 34  # of a panel
HIGH = 260


def _panel(title: str, unit: str, top: float, at: int) -> tuple[list[str], float]:
    """Title and horizontal lines of a panel from 0 to a round number above `top`, and that number."""
    step = 10 ** (ceil(log10(max(top, 1e-9))) - 1)
    step *= next(f for f in (0.5, 1, 2, 5) if top / (step * f) <= 5)
    high = ceil(top / step) * step
    parts = [f'<text x="{at + LEFT}" y="{TOP - 10}" font-weight="bold">{escape(title)} ({escape(unit)})</text>']
    for i in range(round(high / step) + 1):
        y = HIGH - BOTTOM - i * step / high * (HIGH - TOP - BOTTOM)
        parts.append(f'<line x1="{at + LEFT}" x2="{at + WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{at + LEFT - 5}" y="{y + 4:.1f}" text-anchor="end">{i * step:g}</text>')
    return parts, high


def _whole(panels: Sequence[list[str]], names: Sequence[str]) -> str:
    wide = WIDTH * max(len(panels), 1)
    legend, at = [], LEFT
    for name, colour in zip(names, COLOURS, strict=False):
        legend.append(f'<rect x="{at}" y="6" width="11" height="11" fill="{colour}"/>')
        legend.append(f'<text x="{at + 15}" y="16">{escape(name)}</text>')
        at += 30 + 7 * len(name)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {HIGH}" font-family="sans-serif" font-size="11">'
    )
    back = f'<rect width="{wide}" height="{HIGH}" fill="#fff"/>'
    return "\n".join([head, back, *legend, *(part for panel in panels for part in panel), "</svg>\n"])


def bars(panels: Mapping[str, Mapping[str, Mapping[str, float]]], names: Sequence[str], unit: str) -> str:
    """Groups of bars: {panel: {group: {name: value}}}; a value that is absent has no bar."""
    made = []
    for number, (title, groups) in enumerate(panels.items()):
        at = number * WIDTH
        parts, high = _panel(title, unit, max(v for g in groups.values() for v in g.values()), at)
        room = (WIDTH - LEFT - RIGHT) / len(groups)
        wide = room * 0.8 / len(names)
        for g, (group, values) in enumerate(groups.items()):
            x = at + LEFT + g * room + room * 0.1
            parts.append(f'<text x="{x + room * 0.4:.1f}" y="{HIGH - 18}" text-anchor="middle">{escape(group)}</text>')
            for i, name in enumerate(names):
                if name in values:
                    tall = values[name] / high * (HIGH - TOP - BOTTOM)
                    parts.append(
                        f'<rect x="{x + i * wide:.1f}" y="{HIGH - BOTTOM - tall:.1f}" width="{wide - 1:.1f}" '
                        f'height="{tall:.1f}" fill="{COLOURS[i]}"><title>{escape(f"{group}, {name}")}: '
                        f"{values[name]:.2f} {escape(unit)}</title></rect>"
                    )
        made.append(parts)
    return _whole(made, names)


def lines(panels: Mapping[str, Mapping[str, Sequence[tuple[float, float]]]], unit: str, axis: str) -> str:
    """Lines: {panel: {name: points (x, y)}}, x from 0."""
    names = list(dict.fromkeys(n for panel in panels.values() for n in panel))
    made = []
    for number, (title, found) in enumerate(panels.items()):
        at = number * WIDTH
        known = {n: [(x, y) for x, y in points if isfinite(y)] for n, points in found.items()}
        parts, high = _panel(title, unit, max(y for points in known.values() for _, y in points), at)
        last = max(x for points in known.values() for x, _ in points)

        def place(x: float, y: float, at: int = at, last: float = last, high: float = high) -> tuple[float, float]:
            across = at + LEFT + x / last * (WIDTH - LEFT - RIGHT)
            return across, HIGH - BOTTOM - y / high * (HIGH - TOP - BOTTOM)

        for x in sorted({x for points in known.values() for x, _ in points})[
            :: max(1, len(max(known.values(), key=len)) // 6)
        ]:
            parts.append(f'<text x="{place(x, 0)[0]:.1f}" y="{HIGH - 20}" text-anchor="middle">{x:g}</text>')
        parts.append(f'<text x="{at + WIDTH - RIGHT}" y="{HIGH - 6}" text-anchor="end">{escape(axis)}</text>')
        for name, points in known.items():
            colour = COLOURS[names.index(name)]
            spots = [place(x, y) for x, y in points]
            parts.append(
                f'<polyline fill="none" stroke="{colour}" stroke-width="1.6" '
                f'points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in spots)}"/>'
            )
            parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2" fill="{colour}"/>' for x, y in spots if len(spots) < 40]
        made.append(parts)
    return _whole(made, names)
