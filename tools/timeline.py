"""The memory plan as a picture: bytes over steps, one rectangle per value, with the owners of the peak named."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from ..runtime.compile.program import Program
from ..runtime.memory.plan import MemoryPlan, Slot
from .report import size

WIDTH, HEIGHT, MARGIN = 1100, 520, 60


def timeline(program: Program, title: str) -> str:
    """A self-contained HTML page with an SVG of the arena; hovering over a rectangle tells its value."""
    memory = program.plan
    steps = max(len(program.steps), 1)
    alive = live_at(memory, steps)
    peak = max(range(steps), key=lambda i: alive[i], default=0)
    owners = [s for s in memory.arena() if s.life.first <= peak <= s.life.last]
    return "\n".join(
        [
            "<!doctype html><meta charset=utf-8>",
            f"<title>{escape(title)}: memory</title>",
            "<style>body{font:14px system-ui,sans-serif;margin:2em;color:#222}rect.v:hover{stroke:#000;stroke-width:2}"
            "td,th{padding:2px 12px 2px 0;text-align:left}text{font:11px system-ui,sans-serif}</style>",
            f"<h1>{escape(title)}</h1>",
            f"<p>Arena {size(memory.size)}; the largest sum of live bytes is {size(memory.bound)} "
            f"(ratio {memory.size / max(memory.bound, 1):.3f}), at step {peak} of {steps}; without reuse the values "
            f"would take {size(memory.total())}.</p>",
            _svg(program, alive, peak),
            f"<h2>Who owns the peak (step {peak}: {escape(_step_name(program, peak))})</h2>",
            _table(program, owners),
        ]
    )


def live_at(memory: MemoryPlan, steps: int) -> list[int]:
    """Bytes that hold something at each step; bytes shared by several values count once."""
    starts: list[list[Slot]] = [[] for _ in range(steps)]
    for slot in memory.arena():
        starts[min(slot.life.first, steps - 1)].append(slot)
    alive: list[Slot] = []
    totals = []
    for step in range(steps):
        alive = [s for s in alive if s.life.last >= step] + starts[step]
        held = at = 0
        for slot in sorted(alive, key=lambda s: s.offset):
            held += max(0, slot.end - max(slot.offset, at))
            at = max(at, slot.end)
        totals.append(held)
    return totals


def _svg(program: Program, alive: Sequence[int], peak: int) -> str:
    memory, steps = program.plan, len(alive)
    across, up = (WIDTH - 2 * MARGIN) / steps, (HEIGHT - 2 * MARGIN) / max(memory.size, 1)

    def x(step: float) -> float:
        return MARGIN + step * across

    def y(offset: float) -> float:
        return HEIGHT - MARGIN - offset * up

    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" width="100%" role="img" aria-label="bytes over steps">']
    for slot in memory.arena():
        hue = sum(map(ord, slot.life.value)) * 47 % 360
        wide, high = (slot.life.last - slot.life.first + 1) * across, slot.life.nbytes * up
        label = f"{slot.life.value}: {program.types.get(slot.life.value, 'workspace')}, {size(slot.life.nbytes)}, "
        label += f"bytes {slot.offset} to {slot.end}, steps {slot.life.first} to {slot.life.last}"
        parts.append(
            f'<rect class="v" x="{x(slot.life.first):.2f}" y="{y(slot.end):.2f}" width="{max(wide, 0.6):.2f}" '
            f'height="{max(high, 0.6):.2f}" fill="hsl({hue},55%,70%)" stroke="#fff" stroke-width="0.4">'
            f"<title>{escape(label)}</title></rect>"
        )
        if wide > 60 and high > 12:
            parts.append(
                f'<text x="{x(slot.life.first) + 3:.1f}" y="{y(slot.end) + 12:.1f}">{escape(_fit(slot, wide))}</text>'
            )
    line = " ".join(f"{x(i):.1f},{y(b):.1f} {x(i + 1):.1f},{y(b):.1f}" for i, b in enumerate(alive))
    parts.append(f'<polyline points="{line}" fill="none" stroke="#c00" stroke-width="1.5"/>')
    parts.append(
        f'<line x1="{x(peak):.1f}" x2="{x(peak):.1f}" y1="{MARGIN}" y2="{HEIGHT - MARGIN}" '
        'stroke="#c00" stroke-dasharray="4 3"/>'
    )
    for part in range(5):
        at = memory.size * part / 4
        parts.append(f'<text x="{MARGIN - 6}" y="{y(at) + 4:.1f}" text-anchor="end">{size(round(at))}</text>')
        step = round((steps - 1) * part / 4)
        parts.append(f'<text x="{x(step):.1f}" y="{HEIGHT - MARGIN + 16}" text-anchor="middle">{step}</text>')
    parts.append(f'<text x="{WIDTH / 2}" y="{HEIGHT - 12}" text-anchor="middle">step (red: bytes alive)</text></svg>')
    return "\n".join(parts)


def _fit(slot: Slot, wide: float) -> str:
    room = int(wide / 6.5)
    name = slot.life.value
    return name if len(name) <= room else name[: max(room - 1, 1)] + "…"


def _step_name(program: Program, index: int) -> str:
    if not program.steps:
        return "none"
    node = program.steps[index].node
    return f"{node.op} {node.name}".strip()


def _table(program: Program, slots: Sequence[Slot]) -> str:
    rows = "".join(
        f"<tr><td>{escape(s.life.value)}</td><td>{escape(str(program.types.get(s.life.value, 'workspace')))}</td>"
        f"<td>{size(s.life.nbytes)}</td><td>{s.life.first} to {s.life.last}</td></tr>"
        for s in sorted(slots, key=lambda s: -s.life.nbytes)
    )
    return f"<table><tr><th>value</th><th>type</th><th>bytes</th><th>steps</th></tr>{rows}</table>"
