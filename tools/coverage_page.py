"""The coverage table as a report, as docs/coverage.md, as a page of coloured cells and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from html import escape
from itertools import groupby
from typing import TYPE_CHECKING

from .coverage_cells import CELLS_OF, Cell, Mark, OperatorCoverage
from .report import Report, Table

if TYPE_CHECKING:
    from .coverage import Coverage

COMMAND = "mezzo coverage --markdown docs/coverage.md"
COLUMNS = ("operator", "opsets", "types", *CELLS_OF, "kernels", "GPU", "not covered")
# Groups of element types that are named together.
GROUPS = {
    "floats": "float double float16 bfloat16",
    "ints": "int8 int16 int32 int64 uint8 uint16 uint32 uint64",
    "complex": "complex64 complex128",
    "float8s": "float8e4m3fn float8e4m3fnuz float8e5m2 float8e5m2fnuz float8e8m0",
    "float6s": "float6e2m3 float6e3m2",
    "int4s": "int4 uint4",
    "int2s": "int2 uint2",
}
# Of these types the processor decides who computes them, and a table has to be the same on all of them.
BY_PROCESSOR = {"float16", "bfloat16"}
INTRODUCTION = """# What is covered, operator by operator

Written by `{command}`, never by hand. A test runs a fifth of it again and fails when this
page is stale; `make soak` runs all of it.

A cell is one operator at one opset at which its schema changed, with one element type for one of its type parameters.
It counts only if a sample ran in it when this page was written:

- **run**: the sample, written as an ONNX model of one node at that opset and in that type, was imported, planned and
  run, and gave the numbers of the operator's reference, and those of ONNX Runtime or ONNX's reference evaluator where
  these run it. Of random numbers only the types are compared.
- **train**: its gradient was that of finite differences. `-`: there is nothing to differentiate.
- **export**: it left again at that opset, onnx.checker took it, and after import it gave the same numbers. Opsets of
  ai.onnx below 7 are not written.
- **kernels**: what the planned programs chose on a processor with {processor}: oneDNN, loops generated from the
  operator's expression, kernels written over NumPy, the reference itself; float16 and bfloat16 are left out, since
  there each kind of processor decides otherwise. `-`: no step was left to run, the result is a constant or a view.

`types` are those of the newest opset. Of {cells} cells on the CPU {run} run, of {trainable} {train} train, of
{exportable} {export} are exported; {judged} were confirmed by another runtime. Of {all_pairs} pairs of documented
values of attributes {pairs} ran. GPU: {gpu}.
"""


def spelled(types: Iterable[str]) -> str:
    """Element types in few words.

    >>> spelled(["float", "double", "float16", "bfloat16", "int4", "seq(float)"])
    'floats int4 seq(float)'
    """
    left, words = list(dict.fromkeys(types)), list[str]()
    for form in ("{}", "seq({})", "optional({})", "optional(seq({}))"):
        for group, members in GROUPS.items():
            inside = [form.format(m) for m in members.split()]
            if set(inside) <= set(left):
                words.append(form.format(group))
                left = [t for t in left if t not in inside]
    return " ".join([*words, *left])


def types_of(o: OperatorCoverage) -> str:
    """The types of the newest opset that run, by type parameter."""
    newest = [c for c in o.cells if c.opset == o.opsets[-1] and c.run is Mark.YES]
    names = dict.fromkeys(c.parameter for c in newest)
    by_parameter = {p: spelled(c.type for c in newest if c.parameter == p) for p in names}
    return "; ".join(
        t if p.removeprefix("tensor(").removesuffix(")") == t else f"{p}: {t}" for p, t in by_parameter.items()
    )


def kernels_of(o: OperatorCoverage) -> str:
    """The families of kernels that the planned programs chose, the same on every processor."""
    cells = [c for c in o.cells if not any(t in c.type for t in BY_PROCESSOR)]
    return ", ".join(sorted({k for c in cells for k in c.kernels}, key=str.lower)) or "-"


def row(o: OperatorCoverage, coverage: Coverage) -> tuple[str, ...]:
    """One line of the table."""
    counts = [o.count(what) for what in CELLS_OF]
    marks = [f"{yes}/{asked}" if asked else "-" for yes, asked in counts]
    missing = len(list(o.problems()))
    gpu = coverage.devices["gpu"]
    return (
        o.name,
        " ".join(map(str, o.opsets)),
        types_of(o),
        *marks,
        kernels_of(o),
        gpu.value if gpu is not Mark.YES else "{}/{}".format(*o.count("run", "gpu")),
        str(missing) if missing else "",
    )


def report(coverage: Coverage) -> Report:
    """Return a report for the terminal: a line for each operator, of few also the gaps, of a single one all of its
    opsets."""
    tables = [Table("Operators", COLUMNS, [row(o, coverage) for o in coverage.operators])]
    if len(coverage.operators) == 1:
        tables.append(_opsets(coverage.operators[0]))
    lacking = [(o.name, text) for o in coverage.operators for text in merged(o)]
    if lacking and len(coverage.operators) < 20:
        tables.append(Table("Not covered", ("operator", "what"), lacking))
    return Report("coverage", {**{d: m.value for d, m in coverage.devices.items()}, **coverage.versions}, tables)


def _opsets(o: OperatorCoverage) -> Table:
    """Return a table of the types that run, train and export at each opset, and of the runtimes that confirmed them."""
    rows = []
    for key, cells in groupby(o.cells, lambda c: (c.opset, c.parameter)):
        of_it = list(cells)
        types = [spelled(c.type for c in of_it if getattr(c, what) is Mark.YES) or "-" for what in CELLS_OF]
        kernels = ", ".join(sorted({k for c in of_it for k in c.kernels})) or "-"
        judges = ", ".join(sorted({j for c in of_it for j in c.judges})) or "our reference"
        rows.append((*key, *types, kernels, judges))
    return Table("Opsets", ("opset", "parameter", *CELLS_OF, "kernels", "confirmed by"), rows)


def merged(o: OperatorCoverage) -> list[str]:
    """Return a line for each reason why something is not covered, with the opsets and types that share it."""
    bad = [c for c in o.cells if Mark.NO in (c.run, c.train, c.export)]
    by_reason: dict[tuple[str, str], list[Cell]] = {}
    for cell in bad:
        why = "; ".join(cell.why) or "no sample can be written"
        by_reason.setdefault((cell.parameter, why), []).append(cell)
    lines = []
    for (parameter, why), cells in by_reason.items():
        opsets = ", ".join(map(str, sorted({c.opset for c in cells})))
        lines.append(f"opset {opsets}, {parameter}: {spelled(c.type for c in cells)}: {why}")
    return [*lines, *o.gaps]


def markdown(coverage: Coverage) -> str:
    """The page docs/coverage.md."""
    totals = {
        what: [sum(n) for n in zip(*(o.count(what) for o in coverage.operators), strict=True)] for what in CELLS_OF
    }
    cells = [c for o in coverage.operators for c in o.cells if c.device == "cpu"]
    counted = [sum(n) for n in zip(*(o.combinations for o in coverage.operators), strict=True)]
    (run, of_cells), (train, trainable), (export, exportable) = totals.values()
    text = INTRODUCTION.format(
        command=COMMAND, run=run, cells=of_cells, train=train, trainable=trainable, export=export,
        exportable=exportable, judged=sum(bool(c.judges) for c in cells), pairs=counted[0], all_pairs=counted[1],
        gpu=coverage.devices["gpu"].value, processor=coverage.versions["processor"],
    )  # fmt: skip
    lines = [line(COLUMNS), line(["---"] * len(COLUMNS))]
    lines += [line(row(o, coverage)) for o in coverage.operators]
    lacking = [(o.name, merged(o)) for o in coverage.operators]
    lines += ["", "## What is not covered", ""]
    lines += [f"- **{name}**: {_plain('; '.join(texts))}" for name, texts in lacking if texts]
    digests = [f"{o.name} {o.digest}" for o in coverage.operators]
    wrapped = ["; ".join(digests[i : i + 5]) for i in range(0, len(digests), 5)]
    return "\n".join([text, *lines, "", "<!-- samples and schemas:", *wrapped, "-->", ""])


def line(cells: Sequence[str]) -> str:
    """A line of a table in Markdown."""
    return f"| {' | '.join(_plain(c) for c in cells)} |"


def _plain(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def as_json(coverage: Coverage) -> str:
    """Return all cells as JSON."""
    return json.dumps(asdict(coverage), indent=1)


COLOURS = {Mark.YES: "#3a9d5d", Mark.NO: "#c8453b", Mark.NONE: "#d8d8d8", Mark.NOT_RUN: "#ffffff"}
STYLE = """body{font:13px sans-serif;margin:2em}td{vertical-align:top;padding:2px 8px}
th{text-align:left;padding:2px 8px}
i{display:inline-block;width:9px;height:9px;margin:1px}"""


def html(coverage: Coverage) -> str:
    """A page with a square for each cell: hover over one to read what it is."""
    parts = [f"<!doctype html><meta charset=utf-8><title>Coverage</title><style>{STYLE}</style>", "<h1>Coverage</h1>"]
    key = " ".join(f'<i style="background:{c};outline:1px solid #999"></i> {m.value}' for m, c in COLOURS.items())
    parts.append(f"<p>{key}; {escape(', '.join(f'{p} {v}' for p, v in coverage.versions.items()))}</p><table>")
    parts.append(
        f"<tr><th>operator<th>opset{''.join(f'<th>{what}' for what in CELLS_OF)}<th>kernels<th>not covered</tr>"
    )
    for o in coverage.operators:
        for opset, cells in groupby(o.cells, lambda c: c.opset):
            of_it = list(cells)
            squares = "".join(f"<td>{''.join(_square(c, what) for c in of_it)}" for what in CELLS_OF)
            kernels = ", ".join(sorted({k for c in of_it for k in c.kernels}))
            gaps = "; ".join(o.gaps) if opset == o.opsets[-1] else ""
            name = o.name if opset == o.opsets[0] else ""
            parts.append(f"<tr><td>{escape(name)}<td>{opset}{squares}<td>{kernels}<td>{escape(gaps)}</tr>")
    return "\n".join([*parts, "</table>", ""])


def _square(cell: Cell, what: str) -> str:
    mark = getattr(cell, what)
    title = f"{cell.place}: {mark.value}" + "".join(f"; {w}" for w in (*cell.why, *cell.judges))
    return f'<i style="background:{COLOURS[mark]}" title="{escape(title, quote=True)}"></i>'
