"""The result of a command as data, printed as tables or as JSON by one function."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from io import StringIO
from typing import TYPE_CHECKING, Any

import numpy as np

from ..ops.dataclasses import dataclass, field
from ..ops.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under column names; cells are strings or numbers. Columns named `bytes` are shown in readable units."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[Sequence[Any]]

    def records(self) -> list[dict[str, Any]]:
        """The rows as dicts."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


@dataclass(frozen=True, slots=True)
class Report:
    """A report: single facts, then tables."""

    title: str
    facts: Mapping[str, Any] = field(default_factory=dict[str, Any])
    tables: Sequence[Table] = ()

    def as_json(self) -> dict[str, Any]:
        """One JSON object: the facts, and a list of records for each table."""
        tables = {t.title.lower().replace(" ", "_"): t.records() for t in self.tables}
        return {"title": self.title, **self.facts, **tables}

    def json_text(self) -> str:
        """`as_json` as text."""
        return json.dumps(self.as_json(), indent=1, default=_plain)


def size(nbytes: int) -> str:
    """Bytes for people.

    >>> size(1536), size(3 << 20)
    ('1.5 KiB', '3.0 MiB')
    """
    value, units = float(nbytes), ["B", "KiB", "MiB", "GiB", "TiB"]
    while value >= 1024 and len(units) > 1:
        value, units = value / 1024, units[1:]
    return f"{value:.0f} B" if units[0] == "B" else f"{value:.1f} {units[0]}"


def parse_size(text: str) -> int:
    """Bytes from `2GiB`, `512 MB`, `1e6`; raises InputError for anything else.

    >>> parse_size("2GiB"), parse_size("1.5 kB")
    (2147483648, 1500)
    """
    match = re.fullmatch(r"([\d.]+(?:e\d+)?)\s*([kmgt]?)(i?)b?", text.strip().lower())
    try:
        if match is None:
            raise ValueError
        number, unit, binary = match.groups()
        return int(float(number) * (1024 if binary else 1000) ** " kmgt".index(unit or " "))
    except ValueError as error:
        raise InputError(f"{text!r} is no size", hint="write 2GiB, 512MB or a number of bytes") from error


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    return str(value)


def show(report: Report, *, as_json: bool, width: int | None = None) -> None:
    """Print a report to standard output; `width` is for where that is no terminal."""
    if as_json:
        print(report.json_text())
        return
    from rich.console import Console

    console = Console()
    if width and not console.is_terminal:
        console.width = width
    _print(report, console)


def text(report: Report, width: int = 120) -> str:
    """A report as plain text."""
    from rich.console import Console

    console = Console(file=StringIO(), width=width, color_system=None, force_terminal=False)
    _print(report, console)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def _print(report: Report, console: Console) -> None:
    from rich.markup import escape
    from rich.table import Table as Grid

    console.print(f"[bold]{escape(report.title)}[/]")
    facts = Grid.grid(padding=(0, 2))
    for name, value in report.facts.items():
        shown = size(value) if name.endswith("bytes") and isinstance(value, int) else value
        facts.add_row(f"[dim]{escape(name.replace('_', ' '))}[/]", escape(str(shown)))
    console.print(facts)
    for table in report.tables:
        grid = Grid(
            title=escape(table.title), title_justify="left", header_style="bold", show_edge=False, pad_edge=False
        )
        for name in table.columns:
            numbers = all(isinstance(r[table.columns.index(name)], int | float) for r in table.rows)
            grid.add_column(escape(name), justify="right" if numbers else "left", overflow="fold")
        for row in table.rows:
            cells = zip(table.columns, row, strict=True)
            grid.add_row(*(escape(size(v) if c.endswith("bytes") and isinstance(v, int) else str(v)) for c, v in cells))
        console.print(grid)
