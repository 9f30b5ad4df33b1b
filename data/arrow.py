"""Datasets in Parquet, Arrow and Hugging Face's folders, through pyarrow (the extra `mezzo[arrow]`).

A sample is a dict of the columns: numbers, texts, arrays; `images` are columns of image files, as bytes or as Hugging
Face stores them, which are decoded.
"""

from __future__ import annotations

import json
import os
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..ops.errors import InputError, MissingPackage
from .dataset import Dataset
from .images import decode
from .sources import local

Path_ = str | os.PathLike[str]


def _pyarrow() -> Any:
    try:
        import pyarrow
    except ImportError as error:
        raise MissingPackage(
            "such files are read by pyarrow", where="mezzo.data", hint="pip install 'mezzo[arrow]'"
        ) from error
    return pyarrow


class _Columns(Dataset):
    """A dataset of columns. Those of its kinds open their files anew in each process."""

    path: Path
    columns: Sequence[str] | None
    images: Sequence[str]

    def _open(self) -> None:
        raise NotImplementedError

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if not k.startswith("_")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()

    def name(self, number: int) -> str:
        return f"{self.path}, row {number}"

    def _check(self, names: Sequence[str]) -> None:
        for name in (*(self.columns or ()), *self.images):
            if name not in names:
                raise InputError(
                    f"there is no column {name!r}", where=str(self.path), hint=f"there are {', '.join(names)}"
                )

    def _sample(self, table: Any, row: int, where: str) -> dict[str, Any]:
        sample = {}
        for name, column in zip(table.column_names, table.columns, strict=True):
            if self.columns is None or name in self.columns:
                value = column[row].as_py()
                sample[name] = self._image(value, where, name) if name in self.images else _plain(value)
        return sample

    def _image(self, value: Any, where: str, name: str) -> Any:
        content = value.get("bytes") if isinstance(value, dict) else value
        if content is None and isinstance(value, dict) and value.get("path"):
            content = self.path.parent / value["path"]
        if not isinstance(content, bytes | Path):
            raise InputError(
                f"no image under {name!r}, but a {type(value).__name__}", where=where, hint="leave images= out"
            )
        return decode(content, where=where)


def _plain(value: Any) -> Any:
    """Lists of numbers as arrays."""
    if isinstance(value, list):
        try:
            array = np.array(value)
            if array.dtype.kind in "biuf":
                return array
        except ValueError:
            pass  # lists of unequal lengths
    return value


class ParquetDataset(_Columns):
    """The rows of a Parquet file, or of a folder of them in the order of their names.

    Row groups are read when a row of theirs is, and `keep` of them stay in memory: write small groups where rows are
    shuffled.
    """

    def __init__(
        self, path: Path_, columns: Sequence[str] | None = None, images: Sequence[str] = (), *, keep: int = 8
    ) -> None:
        self.path, self.columns, self.images, self.keep = local(path), columns, tuple(images), keep
        self._open()

    def _open(self) -> None:
        pyarrow = _pyarrow()
        from pyarrow import parquet

        files = sorted(self.path.glob("*.parquet")) if self.path.is_dir() else [self.path]
        if not files:
            raise InputError("no .parquet file", where=str(self.path), hint="check the path")
        self._groups: list[tuple[Any, int]] = []
        self._ends: list[int] = []
        end = 0
        for file in files:
            try:
                opened = parquet.ParquetFile(file, memory_map=True)
            except (OSError, pyarrow.ArrowException) as error:
                raise InputError(f"no Parquet file: {error}", where=str(file), hint="is it damaged?") from error
            self._check(opened.schema_arrow.names)
            for group in range(opened.num_row_groups):
                end += opened.metadata.row_group(group).num_rows
                self._groups.append((opened, group))
                self._ends.append(end)
        self._tables: OrderedDict[int, Any] = OrderedDict()

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, number: int) -> dict[str, Any]:
        if not 0 <= number < len(self):
            raise IndexError(f"row {number} of {len(self)}")
        group = bisect_right(self._ends, number)
        table = self._tables.get(group)
        if table is None:
            file, within = self._groups[group]
            wanted = None if self.columns is None else [*self.columns]
            try:
                table = file.read_row_group(within, columns=wanted)
            except (OSError, _pyarrow().ArrowException) as error:
                raise InputError(f"the row group is damaged: {error}", where=self.name(number)) from error
            self._tables[group] = table
            while len(self._tables) > self.keep:
                self._tables.popitem(last=False)
        first = self._ends[group - 1] if group else 0
        return self._sample(table, number - first, self.name(number))


class ArrowDataset(_Columns):
    """The rows of an Arrow file (or stream), of several in a folder, or of a folder that Hugging Face's
    `Dataset.save_to_disk` wrote; of a dict of splits `split` names one. Files are mapped, not read."""

    def __init__(
        self,
        path: Path_,
        columns: Sequence[str] | None = None,
        images: Sequence[str] = (),
        *,
        split: str | None = None,
    ) -> None:
        self.path, self.columns, self.images = local(path), columns, tuple(images)
        splits = self.path / "dataset_dict.json"
        if splits.is_file():
            names = _json(splits).get("splits", [])
            if split not in names:
                raise InputError(
                    f"there is no split {split!r}", where=str(self.path), hint=f"there are {', '.join(names)}"
                )
            self.path = self.path / str(split)
        self._open()

    def _open(self) -> None:
        pyarrow = _pyarrow()
        tables = [_mapped(pyarrow, file) for file in self._files()]
        try:
            table = pyarrow.concat_tables(tables)
        except pyarrow.ArrowException as error:
            raise InputError(f"files of different columns: {error}", where=str(self.path)) from error
        self._check(table.column_names)
        self._table, self._rows = table, None
        indices = _json(self.path / "state.json").get("_indices_files") or [] if self.path.is_dir() else []
        if indices:  # of a selection or a shuffle
            parts = [_mapped(pyarrow, self.path / i["filename"]) for i in indices]
            self._rows = pyarrow.concat_tables(parts).column(0).to_numpy()

    def _files(self) -> list[Path]:
        if not self.path.is_dir():
            return [self.path]
        listed = [f["filename"] for f in _json(self.path / "state.json").get("_data_files") or []]
        files = [self.path / name for name in listed] or sorted(self.path.glob("*.arrow"))
        if not files or any(not f.resolve().is_relative_to(self.path.resolve()) for f in files):
            raise InputError("no Arrow files", where=str(self.path), hint="check the path")
        return files

    def __len__(self) -> int:
        return int(self._table.num_rows) if self._rows is None else len(self._rows)

    def __getitem__(self, number: int) -> dict[str, Any]:
        if not 0 <= number < len(self):
            raise IndexError(f"row {number} of {len(self)}")
        row = number if self._rows is None else int(self._rows[number])
        return self._sample(self._table, row, self.name(number))


def _mapped(pyarrow: Any, path: Path) -> Any:
    """The table of an Arrow file or stream, mapped. Raises InputError."""
    try:
        source = pyarrow.memory_map(str(path))
        if _is_file_format(path):
            return pyarrow.ipc.open_file(source).read_all()
        return pyarrow.ipc.open_stream(source).read_all()
    except (OSError, pyarrow.ArrowException) as error:
        raise InputError(f"no Arrow file: {error}", where=str(path), hint="is it damaged?") from error


def _is_file_format(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(6) == b"ARROW1"


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        description = json.loads(path.read_bytes())
    except ValueError as error:
        raise InputError(f"no JSON: {error}", where=str(path), hint="is it damaged?") from error
    return description if isinstance(description, dict) else {}
