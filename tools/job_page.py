"""A job that has ended as one HTML page, which needs nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

import numpy as np

from ..kvstore.protocol.pace import PARTS
from ..kvstore.protocol.pace import SAID as WORDS
from ..train.reported import STYLE, curve
from .job import Interval, TracedJob, common
from .report import Table, size

WIDTH, LEFT, LANE, GAP = 1200, 90, 46, 14  # of a picture, in pixels
BUCKETS = 220  # of the timeline of the whole job
STEPS = 8  # in the picture of the slowest ones
COLOURS = {"compute": "#4c9f70", "data": "#e0a030", "network": "#3b76c4", "others": "#c8553d"}
SAID = {**WORDS, "network": "bytes that move", "others": "waiting for others"}


def page(job: TracedJob) -> str:
    """The page as text."""
    report = job.report()
    facts = "".join(f"<tr><td>{escape(n)}</td><td>{escape(str(v))}</td></tr>" for n, v in report.facts.items())
    losses = np.array(job.losses())
    tables = [_table(table) for table in report.tables]
    return "".join([
        f'<!doctype html><meta charset="utf-8"><title>A job</title><style>{STYLE}th{{border-bottom:1px solid #999}}'
        "table.facts td{text-align:left}</style><h1>A job</h1>",
        f'<table class="facts">{facts}</table>',
        f"<h2>The whole job</h2><p>{_legend()}</p>", _overview(job),
        "<h2>Around the slowest step</h2>" + _slowest(job) if any(one.steps for one in job.workers) else "",
        tables[0],
        "<h2>Bytes</h2>", _bytes(job),
        *tables[1:-1],
        curve("loss, mean of the workers, by step", {"loss": (np.arange(1, len(losses) + 1), losses)}),
        *tables[1:][-1:], "\n",
    ])  # fmt: skip


def _table(table: Table) -> str:
    head = "".join(f"<th>{escape(str(c))}</th>" for c in table.columns)
    rows = "".join(f"<tr>{''.join(f'<td>{escape(str(v))}</td>' for v in row)}</tr>" for row in table.rows)
    return f"<h2>{escape(table.title)}</h2><table><tr>{head}</tr>{rows}</table>"


def _legend() -> str:
    return " &nbsp; ".join(f'<span style="color:{COLOURS[part]}">&#9632;</span> {SAID[part]}' for part in PARTS)


def _overview(job: TracedJob) -> str:
    """Lanes of all workers over the whole time: of each piece of it, the share that each part has."""
    took = max(job.end - job.begin, 1e-9) / BUCKETS
    wide, parts = (WIDTH - LEFT) / BUCKETS, _frame(job, job.begin, job.end)
    for i in range(len(job.workers)):
        for bucket in range(BUCKETS):
            bottom = float(_top(i) + LANE)
            for part, seconds in job.parts(i, job.begin + bucket * took, job.begin + (bucket + 1) * took).items():
                high = LANE * seconds / took
                bottom -= high
                if high > 0.05:
                    parts.append(_rect(LEFT + bucket * wide, bottom, wide + 0.3, high, COLOURS[part]))
    return _svg(job, parts)


def _slowest(job: TracedJob) -> str:
    """Lanes of all workers around the longest step, with its times as they were."""
    i = max(range(len(job.workers)), key=lambda i: max((s.ended - s.began for s in job.workers[i].steps), default=0.0))
    steps = job.workers[i].steps
    longest = max(range(len(steps)), key=lambda n: steps[n].ended - steps[n].began)
    around = steps[max(0, longest - STEPS // 2) : longest + STEPS // 2]
    low, high = around[0].began, around[-1].ended
    across = (WIDTH - LEFT) / (high - low)
    parts = _frame(job, low, high)

    def bars(lane: int, times: list[Interval], colour: str) -> Iterator[str]:
        for a, b in common(times, [(low, high)]):
            yield _rect(LEFT + (a - low) * across, _top(lane), max((b - a) * across, 0.3), LANE, colour)

    for lane, one in enumerate(job.workers):
        parts += bars(lane, [(s.began, s.ended) for s in one.steps], COLOURS["compute"])
        parts += bars(lane, [(s.began, s.began + s.data) for s in one.steps], COLOURS["data"])
        parts += bars(lane, list(one.waits), COLOURS["network"])
        parts += bars(lane, job.others[lane], COLOURS["others"])
        for number, s in enumerate(one.steps, 1):
            if low <= s.began < high:
                x = LEFT + (s.began - low) * across
                parts.append(f'<path d="M{x:.1f} {_top(lane)}v{LANE}" stroke="#000" stroke-width="1"/>')
                parts.append(f'<text x="{x + 3:.1f}" y="{_top(lane) + LANE - 4}" fill="#fff">{number}</text>')
    return _svg(job, parts)


def _top(lane: int) -> int:
    return GAP + lane * (LANE + GAP)


def _frame(job: TracedJob, low: float, high: float) -> list[str]:
    """Names of lanes, and the time below."""
    bottom = _top(len(job.workers))
    parts = [f'<text x="0" y="{_top(i) + LANE / 2 + 4}">{one.name}</text>' for i, one in enumerate(job.workers)]
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        at, anchor = LEFT + share * (WIDTH - LEFT), "end" if share == 1 else "middle" if share else "start"
        parts.append(f'<path d="M{at:.1f} {GAP}V{bottom}" stroke="#ddd"/>')
        label = f"{low + share * (high - low):.4g} s"
        parts.append(f'<text x="{at:.1f}" y="{bottom + 12}" text-anchor="{anchor}">{label}</text>')
    return parts


def _rect(x: float, y: float, wide: float, high: float, colour: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{high:.1f}" fill="{colour}"/>'


def _svg(job: TracedJob, parts: list[str]) -> str:
    high = _top(len(job.workers)) + 20
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{high}" font-family="sans-serif"'
    return f'{head} font-size="12">{"".join(parts)}</svg>'


def _bytes(job: TracedJob) -> str:
    """Bars of the bytes within the host and between hosts."""
    most = max((one.about[level] for one in job.workers for level in ("inside", "between")), default=0) or 1
    parts, y = list[str](), 4
    for one in job.workers:
        for level, colour in (("inside", "#8fb8de"), ("between", "#3b76c4")):
            wide = (WIDTH - LEFT - 240) * one.about[level] / most
            label = "within the host" if level == "inside" else "between hosts"
            parts.append(f'<text x="0" y="{y + 11}">{one.name if level == "inside" else ""}</text>')
            parts.append(_rect(LEFT, y, wide, 14, colour))
            parts.append(f'<text x="{LEFT + wide + 6:.1f}" y="{y + 11}">{label} {size(int(one.about[level]))}</text>')
            y += 17
        y += 5
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{y}" font-family="sans-serif"'
    return f'{head} font-size="12">{"".join(parts)}</svg>'
