"""Tables of text with a header: CSV with commas, semicolons or tabs."""

from __future__ import annotations

import csv
import math
import os
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from ..ops.errors import InputError
from ..ops.types import Array
from .dataset import ArrayDataset
from .sources import local


def rows_of(path: str | os.PathLike[str]) -> tuple[list[str], Iterator[tuple[str, list[str]]]]:
    """The names of the columns, and the cells of each row with its place in words. Raises InputError for a row with
    another number of cells."""
    rows = _rows(Path(path))
    return next(rows)[1], rows


def _rows(path: Path) -> Iterator[tuple[str, list[str]]]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            separator = max(",;\t", key=file.readline().count)
            file.seek(0)
            rows = csv.reader(file, delimiter=separator)
            header = [name.strip() for name in next(rows, [])]
            yield "", header
            for row in rows:
                if not row:
                    continue
                where = f"{path}, line {rows.line_num}"
                if len(row) != len(header):
                    told = f"{len(row)} cells under a header of {len(header)}"
                    raise InputError(told, where=where, hint="mend the line")
                yield where, row
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"the file cannot be read: {error}", where=str(path), hint="is it a table of text?") from error


def number(text: str, where: str, name: str, hint: str = "mend the cell") -> float:
    """The number in a cell. Raises InputError."""
    try:
        value = float(text)
        if math.isfinite(value):
            return value
    except ValueError:
        pass
    raise InputError(f"{text!r} under {name!r} is no number", where=where, hint=hint)


class CSVDataset(ArrayDataset):
    """The rows of a table: float32 numbers of `columns` (all but the target if not given), and the target.

    A target of whole numbers is int64, of other numbers float32, of texts their number in alphabetical order; `classes`
    has these texts. Without `target` a sample is the numbers alone. Raises InputError that names line and column.
    """

    def __init__(
        self, path: str | os.PathLike[str], target: str | None = None, columns: Sequence[str] | None = None
    ) -> None:
        path = local(path)
        header, rows = rows_of(path)
        wanted = [c for c in header if c != target] if columns is None else list(columns)
        for name in (*wanted, *([target] if target is not None else [])):
            if name not in header:
                raise InputError(f"there is no column {name!r}", where=str(path), hint=f"there are {', '.join(header)}")
        asked = [*wanted, *([target] if target is not None else [])]
        if twice := [name for name in asked if header.count(name) > 1]:
            raise InputError(
                f"two columns are called {twice[0]!r}", where=str(path), hint="give them names of their own"
            )
        places = [header.index(c) for c in wanted]
        numbers, texts = array("d"), list[str]()
        for where, row in rows:
            numbers.extend(number(row[at], where, header[at]) for at in places)
            if target is not None:
                texts.append(row[header.index(target)].strip())
                if not texts[-1]:
                    raise InputError(f"column {target!r} is empty", where=where, hint="leave the row out")
        self.columns, self.classes = tuple(wanted), tuple[str, ...]()
        inputs = (
            np.frombuffer(numbers).reshape(-1, len(wanted)).astype(np.float32)
            if numbers
            else np.zeros((0, len(wanted)))
        )
        super().__init__(inputs, *([self._targets(texts)] if target is not None else []))

    def _targets(self, texts: Sequence[str]) -> Array:
        try:
            values = np.array(texts, np.float64)
            if not np.isfinite(values).all():
                odd = texts[int(np.argmin(np.isfinite(values)))]
                raise InputError(f"a target is {odd!r}", where="CSVDataset", hint="leave such rows out")
            whole = values.astype(np.int64)
            return whole if np.array_equal(whole, values) else values.astype(np.float32)
        except (ValueError, OverflowError):
            self.classes = tuple(sorted({*texts}))
            place = {text: i for i, text in enumerate(self.classes)}
            return np.array([place[t] for t in texts], np.int64)
