"""`mz.viz`: pictures and tables of networks: graphs, symbols, or exports of blocks.

>>> from mezzo.models.workloads import WORKLOADS
>>> print(print_summary(WORKLOADS["mlp"].build(1)).splitlines()[-1])
in all 109386 numbers
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from ..ops import Op, Tensor
from ..ops.dataclasses import dataclass
from ..ops.errors import InputError
from ..runtime.files import replace_file
from ..runtime.ir.graph import Graph, Node
from ..runtime.ir.infer import infer
from ..sym.graphs import graph_of
from ..sym.shapes import typed
from ..sym.symbol import Symbol

WIDE, HIGH, GAP, ROW = 168, 40, 24, 84
COLOURS = {  # by the kind of an operator
    "convolution": "#fb8072", "matmul": "#fb8072", "pooling": "#80b1d3", "normalization": "#bebada",
    "softmax": "#fccde5", "moving": "#fdb462", "activation": "#ffffb3",
}  # fmt: skip


def _graph(network: Any, shapes: Mapping[str, Sequence[int]] | None) -> Graph:
    """The typed graph of a network."""
    if isinstance(network, Graph):
        return infer(network)
    if isinstance(network, Symbol):
        types = typed(network, shapes or {})
        return graph_of(network.entries, types, name=network.name)
    raise InputError(f"{type(network).__name__} is no network", where="viz", hint="give a graph or a symbol")


def _weights(graph: Graph, node: Node, fed: set[str]) -> list[tuple[str, int]]:
    """The weights that a node reads: initialisers, and variables of a symbol that nobody feeds."""
    weights = []
    for name in node.inputs:
        known = graph.types.get(name)
        weighs = name in graph.initializers or (name in graph.inputs and name not in fed)
        if name and weighs and isinstance(known, Tensor):
            weights.append((name, known.elements or 0))
    return weights


def _fed(graph: Graph, shapes: Mapping[str, Sequence[int]] | None) -> set[str]:
    """Inputs that are data: those whose shapes are given, else the first."""
    given = {n for n in graph.inputs if shapes and n in shapes}
    return given or set(graph.inputs[:1] if shapes is None and not graph.initializers else graph.inputs)


def print_summary(network: Any, shapes: Mapping[str, Sequence[int]] | None = None) -> str:
    """A table of the nodes: what each gives, how many numbers it weighs, and what it reads. `shapes` are those of the
    data, for a symbol. Returned as text."""
    graph = _graph(network, shapes)
    fed, makers = _fed(graph, shapes), graph.producers()
    lines = [f"{'node':<40}{'gives':<28}{'numbers':>12}  reads"]
    seen: set[str] = set()
    for node in graph.nodes:
        own = [(n, count) for n, count in _weights(graph, node, fed) if n not in seen]
        seen.update(n for n, _ in own)
        reads = [makers[n].name or n if n in makers else n for n in node.inputs if n in makers or n in fed]
        gives = str(graph.types.get(node.outputs[0], "?"))
        name = f"{node.name or node.outputs[0]} ({node.op})"
        lines.append(f"{name[:39]:<40}{gives[:27]:<28}{sum(c for _, c in own):>12}  {', '.join(reads)}")
    counted: dict[str, int] = {}
    for node in graph.nodes:
        counted |= dict(_weights(graph, node, fed))
    return "\n".join([*lines, f"in all {sum(counted.values())} numbers"])


@dataclass(slots=True)
class Box:
    """A node of the picture."""

    name: str
    op: str
    told: str
    kind: str = ""
    rank: int = 0
    at: float = 0.0


def plot_network(
    network: Any, path: str | os.PathLike[str] | None = None, shapes: Mapping[str, Sequence[int]] | None = None
) -> str:
    """The network as a self-contained SVG, written to `path` if one is given: nodes in rows by how far they are from
    the inputs, each with the type that it gives. Nothing but Python draws it."""
    graph = _graph(network, shapes)
    fed = _fed(graph, shapes)
    boxes, arrows = _boxes(graph, fed)
    _place(boxes, arrows)
    text = _svg(graph, boxes, arrows)
    if path is not None:
        replace_file(path, [text.encode()])
    return text


def _kind(op: Op) -> str:
    """The name of an operator's colour."""
    if op.unary:
        return "activation"
    return "moving" if op.moves else op.kind


def _boxes(graph: Graph, fed: set[str]) -> tuple[dict[str, Box], list[tuple[str, str]]]:
    """Boxes by the value that they make, and arrows between them."""
    boxes: dict[str, Box] = {}
    source: dict[str, str] = {}
    arrows: list[tuple[str, str]] = []
    for name in graph.inputs:
        if name in fed:
            boxes[name] = Box(name, "input", str(graph.types.get(name, "")))
            source[name] = name
    for node in graph.nodes:
        key = node.outputs[0]
        box = boxes[key] = Box(node.name or key, node.op, str(graph.types.get(key, "")), _kind(node.record))
        source.update(dict.fromkeys(filter(None, node.outputs), key))
        for name in dict.fromkeys(node.reads()):
            if name in source and source[name] != key:
                arrows.append((source[name], key))
                box.rank = max(box.rank, boxes[source[name]].rank + 1)
    return boxes, arrows


def _place(boxes: Mapping[str, Box], arrows: Sequence[tuple[str, str]]) -> None:
    """Put the boxes of a row where those lie that they hang on."""
    above: dict[str, list[str]] = {}
    for a, b in arrows:
        above.setdefault(b, []).append(a)
    rows: dict[int, list[str]] = {}
    for key, box in boxes.items():
        rows.setdefault(box.rank, []).append(key)
    for rank in sorted(rows):
        wish = {k: [boxes[a].at for a in above.get(k, ())] for k in rows[rank]}
        order = sorted(rows[rank], key=lambda k: sum(wish[k]) / len(wish[k]) if wish[k] else 0.0)
        left = -1e9
        for key in order:
            wanted = sum(wish[key]) / len(wish[key]) if wish[key] else 0.0
            boxes[key].at = left = max(wanted, left + WIDE + GAP)


def _svg(graph: Graph, boxes: Mapping[str, Box], arrows: Sequence[tuple[str, str]]) -> str:
    least = min((b.at for b in boxes.values()), default=0.0)
    wide = max((b.at for b in boxes.values()), default=0.0) - least + WIDE + 2 * GAP
    high = (max((b.rank for b in boxes.values()), default=0) + 1) * ROW + GAP + 30

    def corner(b: Box) -> tuple[float, float]:
        return b.at - least + GAP, b.rank * ROW + 40

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide:.0f} {high:.0f}"'
        ' font-family="system-ui,sans-serif" font-size="11">',
        f'<rect width="{wide:.0f}" height="{high:.0f}" fill="#fff"/>',
        f'<text x="{GAP}" y="22" font-size="14" font-weight="bold">{escape(graph.name or "network")}</text>',
        '<defs><marker id="end" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0L8 4L0 8z" fill="#777"/></marker></defs>',
    ]
    for a, b in arrows:
        (x1, y1), (x2, y2) = corner(boxes[a]), corner(boxes[b])
        x1, y1, x2 = x1 + WIDE / 2, y1 + HIGH, x2 + WIDE / 2
        bend = f"M{x1:.1f} {y1:.1f}C{x1:.1f} {y1 + 24:.1f} {x2:.1f} {y2 - 24:.1f} {x2:.1f} {y2:.1f}"
        parts.append(f'<path d="{bend}" fill="none" stroke="#999" marker-end="url(#end)"/>')
    for box in boxes.values():
        x, y = corner(box)
        colour = "#8dd3c7" if box.op == "input" else COLOURS.get(box.kind, "#eeeeee")
        parts.append(
            f'<g><title>{escape(f"{box.name}: {box.op} {box.told}")}</title><rect x="{x:.1f}" y="{y}" width="{WIDE}" '
            f'height="{HIGH}" rx="6" fill="{colour}" stroke="#555"/>'
            f'<text x="{x + WIDE / 2:.1f}" y="{y + 16}" text-anchor="middle" font-weight="bold">{escape(box.op)}</text>'
            f'<text x="{x + WIDE / 2:.1f}" y="{y + 31}" text-anchor="middle" fill="#444">{escape(box.told[:26])}</text>'
            "</g>"
        )
    return "\n".join([*parts, "</svg>\n"])
