"""The rows of engines that race (`racing.py`) as a picture: one bar for each peer of each row, on a scale of ratios."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from math import ceil, floor, log2
from typing import Any

COLOURS = {"ort": "#3b76c4", "torch-eager": "#e8a33d", "torch-compile": "#c8553d", "mxnet": "#5a9e6f"}
TICKS = {"aim": "#aaa", "bar": "#000"}
WIDTH, LEFT, RIGHT, TOP, BAR, GAP = 1000, 190, 90, 78, 15, 12


def chart(rows: Sequence[dict[str, Any]]) -> str:
    """A self-contained SVG. Bars to the right of the line at 1 are rows where ours is faster; a black tick is the bar
    to reach, a grey one the aim, and words stand where a peer has no figure."""
    powers = [log2(max(of["median"], 2**-6)) for r in rows for of in r["ratios"].values()]
    low, high = floor(min([*powers, -1])), ceil(max([*powers, 1]))
    scale = (WIDTH - LEFT - RIGHT) / (high - low)

    def x(ratio: float) -> float:
        return LEFT + (min(log2(max(ratio, 2.0**low)), high) - low) * scale

    parts, y = [], float(TOP)
    for r in rows:
        peers = [p for p in r["engines"] if p in COLOURS]
        parts.append(f'<text x="{LEFT - 10}" y="{y + BAR * len(peers) / 2 + 4}" text-anchor="end">{r["case"]}</text>')
        for peer in peers:
            parts += _bar(r, peer, x, y)
            y += BAR
        y += BAR * (not peers) + GAP
    for power in range(low, high + 1):
        at, label = x(2.0**power), f"{2.0**power:g}"
        style = 'stroke="#222"' if power == 0 else 'stroke="#ddd"'
        parts.insert(0, f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{TOP - 8}" y2="{y:.0f}" {style}/>')
        parts.append(f'<text x="{at:.1f}" y="{TOP - 14}" text-anchor="middle">{label}</text>')
    at = LEFT
    for peer, colour in ((p, c) for p, c in COLOURS.items() if any(p in r["engines"] for r in rows)):
        parts.append(f'<rect x="{at}" y="36" width="12" height="12" fill="{colour}"/>')
        parts.append(f'<text x="{at + 17}" y="46">{peer}</text>')
        at += 130
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y + 20:.0f}" font-family="system-ui,sans-serif"'
    )
    title = "Time of the peer over ours (log scale; right of 1: ours is faster; ticks: black the bar, grey the aim)"
    back = f'<rect width="{WIDTH}" height="{y + 20:.0f}" fill="#fff"/>'
    return "\n".join(
        [
            f'{head} font-size="12">',
            back,
            f'<text x="{LEFT}" y="22" font-weight="bold">{title}</text>',
            *parts,
            "</svg>\n",
        ]
    )


def _bar(row: dict[str, Any], peer: str, x: Any, y: float) -> list[str]:
    engine, ratio = row["engines"][peer], row["ratios"].get(peer)
    if ratio is None:
        said = engine.get("failed") or row["engines"]["mezzo"].get("failed") or "not measured"
        return [f'<text x="{x(1) + 5:.1f}" y="{y + 11}" fill="#888">{escape(f"{peer}: {said}"[:100])}</text>']
    one, at = x(1), x(ratio["median"])
    ours = row["engines"]["mezzo"]
    told = f"{row['case']}: {peer} {engine['median_ms']} ms in {engine['precision']}, ours {ours['median_ms']} ms in "
    told += f"{ours['precision']}; ratio {ratio['median']} ({ratio['low']:.3f} to {ratio['high']:.3f})"
    label = f"{ratio['median']:.2f}" + (f" ({engine['precision']})" if engine["precision"] != ours["precision"] else "")
    ticks = [(x(ratio[kind]), colour) for kind, colour in TICKS.items() if kind in ratio]
    made = [
        f'<rect x="{min(one, at):.1f}" y="{y + 1}" width="{max(abs(at - one), 1):.1f}" height="{BAR - 3}" '
        f'fill="{COLOURS[peer]}"><title>{escape(told)}</title></rect>',
        f'<text x="{max(one, at, *(t for t, _ in ticks)) + 6:.1f}" y="{y + 11}" font-size="11">{label}</text>',
    ]
    for t, colour in ticks:
        made.append(f'<line x1="{t:.1f}" x2="{t:.1f}" y1="{y}" y2="{y + BAR - 1}" stroke="{colour}" stroke-width="2"/>')
    return made
