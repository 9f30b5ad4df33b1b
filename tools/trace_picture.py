"""A trace as a picture: one row per thread, one bar per span, in the colours of their kinds. Steps of programs are a
strip at the foot of the workload that runs the program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from ..runtime.files import replace_file

COLOURS = {
    "forward": "#8fb3dd", "backward": "#3b76c4", "update": "#6aa56a", "wait": "#e3c04b", "network": "#c8553d",
    "compute": "#3b76c4", "copy": "#8a6bb1", "io": "#7f7f7f", "caller": "#b0b0b0",
    "step": "#9cc3f0",
}  # fmt: skip
WIDTH, LEFT, RIGHT, TOP, HIGH = 1180, 170, 20, 70, 26
FOOT, LETTER = 5, 6.2  # the height of a strip, the width of a letter of a label
Event = Mapping[str, Any]


def draw(events: Sequence[Event], title: str, path: Path) -> None:
    """Write the picture of trace events (runtime/engine/trace.py) as a self-contained SVG file."""
    replace_file(path, [picture(events, title).encode()])


def picture(events: Sequence[Event], title: str) -> str:
    """The SVG. Hovering over a bar tells its name, its beginning and its length."""
    spans = [e for e in events if e["ph"] == "X"]
    names = {e["tid"]: e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
    end = max((e["ts"] + e["dur"] for e in spans), default=1.0) or 1.0
    high = TOP + HIGH * len(names) + 40
    scale = (WIDTH - LEFT - RIGHT) / end
    rows = {tid: TOP + HIGH * i for i, tid in enumerate(names)}
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {high}" font-family="system-ui,sans-serif"'
        ' font-size="12">',
        f'<rect width="{WIDTH}" height="{high}" fill="#fff"/>',
        f'<text x="{LEFT}" y="22" font-weight="bold">{escape(title)}</text>',
    ]
    at = LEFT
    for kind in dict.fromkeys(e["cat"] for e in spans):
        parts.append(f'<rect x="{at}" y="36" width="12" height="12" fill="{_colour(kind)}"/>')
        parts.append(f'<text x="{at + 17}" y="46">{escape(kind)}</text>')
        at += 110
    for tid, name in names.items():
        parts.append(f'<text x="{LEFT - 8}" y="{rows[tid] + 16}" text-anchor="end">{escape(str(name))}</text>')
        parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{rows[tid] + 24}" y2="{rows[tid] + 24}" stroke="#eee"/>'
        )
    for e in spans:
        x, wide = LEFT + e["ts"] * scale, max(e["dur"] * scale, 0.5)
        tooltip = f"{e['name']} ({e['cat']}): at {e['ts'] / 1e3:.3f} ms, {e['dur'] / 1e3:.3f} ms"
        inside = e["cat"] == "step"
        y, height = (rows[e["tid"]] + HIGH - 4 - FOOT, FOOT) if inside else (rows[e["tid"]] + 2, HIGH - 6)
        parts.append(
            f'<rect x="{x:.2f}" y="{y}" width="{wide:.2f}" height="{height}" '
            f'fill="{_colour(e["cat"])}"><title>{escape(tooltip)}</title></rect>'
        )
        if not inside and wide > LETTER * len(e["name"]) + 6:
            label = f'<text x="{x + 3:.2f}" y="{y + 11}" font-size="10" fill="#fff" pointer-events="none">'
            parts.append(f"{label}{escape(e['name'])}</text>")
    for i in range(6):
        x = LEFT + i / 5 * (WIDTH - LEFT - RIGHT)
        anchor = "end" if i == 5 else "middle"
        parts.append(f'<text x="{x:.1f}" y="{high - 14}" text-anchor="{anchor}">{end * i / 5e3:.1f} ms</text>')
    return "\n".join([*parts, "</svg>\n"])


def _colour(kind: str) -> str:
    return COLOURS.get(kind, "#b0b0b0")
