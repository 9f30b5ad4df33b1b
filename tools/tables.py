"""Arrays of an .npz and the columns of a .csv as training data."""

from __future__ import annotations

import math
import os
import zipfile
from array import array
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..data.csv_table import number, rows_of
from ..ops import MezzoError, Tensor
from ..ops.errors import BudgetError, InputError
from ..ops.types import Array
from .batches import TARGET, Data, Reading, numbered

COLUMNS = "mend the cell; --input NAME=COLUMN,... chooses columns, --target the one that is asked for"
USUAL = ("target", "label", "labels", "class", "y")  # where the target is looked for


def table(path: Path, how: Reading) -> Data:
    """The data of a file, by its ending (see `datasets.read`)."""
    kind = KINDS.get(path.suffix.lower())
    if kind is None or not path.is_file():
        raise InputError(
            "no data" if kind else f"{path.suffix or 'a file without ending'!r} is no kind of data",
            where=str(path),
            hint=f"give a file {', '.join([*KINDS, '.rec'])}, or a folder with a folder of images for each class",
        )
    if how.size or how.scale is not None or how.mean or how.std:
        raise InputError("--size, --scale, --mean and --std are for images", where=str(path), hint="leave them out")
    try:
        return kind(path, how)
    except MezzoError:
        raise
    except Exception as error:  # zipfile, zlib and NumPy raise all kinds for damage
        raise InputError(f"the file cannot be read: {error}", where=str(path), hint="is it damaged?") from error


def _npz(path: Path, how: Reading) -> Data:
    """Arrays by the names of inputs; one array beside the target is that of the only input, whatever its name."""
    sizes = _npz_sizes(path)
    named = _target_names(path, how, tuple(sizes))
    if len(named) > 1:
        raise InputError("one array is the target", where=str(path), hint=f"not {', '.join(named)}")
    left = [n for n in sizes if n not in named]
    sources = {}
    for name in how.inputs:
        given = how.sources.get(name, (name,))
        if name not in how.sources and name not in sizes and len(how.inputs) == len(left) == 1:
            given = (left[0],)
        sources[name] = _present(path, given, sizes, f"the array of the input {name!r}")[0]
    used = {*sources.values(), *named}
    _in_memory(sum(sizes[n] for n in used), path)
    with np.load(path, allow_pickle=False) as stored:
        arrays = {n: stored[n] for n in used}
    inputs = {n: fitted(arrays[source], how.inputs[n], f"{path}, {source!r}") for n, source in sources.items()}
    where = f"{path}, {named[0]!r}"
    if how.asked is not None:
        return _table(path, inputs, fitted(arrays[named[0]], how.asked, where), ())
    return _table(path, inputs, *_classes(arrays[named[0]], how.names, where))


def _npz_sizes(path: Path) -> dict[str, int]:
    """The bytes of each array, from its header; what a header claims must lie in the file."""
    sizes = {}
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            with archive.open(member) as file:
                version = np.lib.format.read_magic(file)
                header = (
                    np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
                )
                shape, _, dtype = header(file)
            if dtype.hasobject:
                continue
            nbytes = math.prod(shape) * dtype.itemsize
            if nbytes > member.file_size:
                raise ValueError(f"{member.filename} claims {nbytes} bytes and has {member.file_size}")
            sizes[member.filename.removesuffix(".npy")] = nbytes
    return sizes


def _csv(path: Path, how: Reading) -> Data:
    """Numbers under a header; the columns that are not the target are those of the only input, in their order."""
    _in_memory(6 * path.stat().st_size, path)  # two characters are at least one number, which takes 8 bytes, then 4
    header, rows = rows_of(path)
    named = _target_names(path, how, header)
    columns = _columns(path, how, [n for n in header if n not in named], header)
    numbers = {n: (array("d"), [header.index(c) for c in wanted]) for n, wanted in columns.items()}
    asked, texts = array("d"), dict[str, int]()
    for where, row in rows:
        for into, places in numbers.values():
            into.extend(number(row[at], where, header[at], COLUMNS) for at in places)
        for name in named:
            cell = row[header.index(name)].strip()
            asked.append(
                texts.setdefault(cell, len(texts)) if how.asked is None else number(cell, where, name, COLUMNS)
            )
    if not asked:
        raise InputError("no rows below the header", where=str(path), hint="the first line names the columns")
    count, column = len(asked) // len(named), f"{path}, column {', '.join(named)}"
    inputs = {
        n: fitted(np.frombuffer(into).reshape(count, -1), how.inputs[n], str(path)) for n, (into, _) in numbers.items()
    }
    wanted = np.frombuffer(asked).reshape(count, -1)
    if how.asked is not None:
        return _table(path, inputs, fitted(wanted, how.asked, column), ())
    if len(named) > 1:
        raise InputError("one column tells the class", where=column, hint="give --target once, or another --loss")
    whole = all(map(str.isdecimal, texts)) and not how.names
    classes = np.array([int(t) for t in texts]) if whole else np.array([*texts])
    indices, names = _classes(classes, how.names, column)
    return _table(path, inputs, indices[wanted[:, 0].astype(np.int64)], names)


def _columns(path: Path, how: Reading, left: Sequence[str], header: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The columns of each input."""
    if len(how.inputs) == 1 and not how.sources:
        return {name: tuple(left) for name in how.inputs}
    return {n: _present(path, how.sources.get(n, (n,)), header, f"the columns of the input {n!r}") for n in how.inputs}


def _target_names(path: Path, how: Reading, present: Sequence[str]) -> tuple[str, ...]:
    if how.target:
        return _present(path, how.target, present, "the target")
    usual = [n for n in USUAL if n in present and n not in how.inputs]
    return _present(path, usual[:1] or (TARGET,), present, "the target (--target names it)")


def _present(
    path: Path, wanted: Sequence[str], present: Sequence[str] | Mapping[str, Any], what: str
) -> tuple[str, ...]:
    for name in wanted:
        if name not in present:
            shown = ", ".join([*present][:20]) + (", ..." if len(present) > 20 else "")
            raise InputError(f"there is no {name!r}, {what}", where=str(path), hint=f"there are {shown or 'none'}")
    return tuple(wanted)


def fitted(array: Array, wanted: Tensor, where: str) -> Array:
    """Samples in the element type and the shape of an input; InputError where that would change them."""
    if not array.ndim or not len(array):
        raise InputError("no samples", where=where, hint="the first axis counts them")
    if wanted.dims is not None:
        dims, own = wanted.dims[1:], array.shape[1:]
        known = [d for d in dims if isinstance(d, int)]
        if len(known) == len(dims) and math.prod(known) == math.prod(own):
            return _converted(array.reshape(len(array), *known), wanted, where)
        if len(dims) != len(own) or any(isinstance(d, int) and d != s for d, s in zip(dims, own, strict=True)):
            raise InputError(
                f"samples of shape {list(own)}, the model takes {wanted}",
                where=where,
                hint="give as many numbers for each sample as the model takes",
            )
    return _converted(array, wanted, where)


def _converted(array: Array, wanted: Tensor, where: str) -> Array:
    if array.dtype == wanted.dtype.numpy:
        return array
    if array.dtype.kind in "biuf" and (wanted.dtype.floating or wanted.dtype.integer):
        converted = array.astype(wanted.dtype.numpy)
        if wanted.dtype.floating or np.array_equal(converted, array):
            return converted
    raise InputError(
        f"elements {array.dtype}, the model takes {wanted.dtype}", where=where, hint="convert them without loss"
    )


def _table(path: Path, arrays: Mapping[str, Array], target: Array, names: tuple[str, ...]) -> Data:
    """Data that lie in memory."""
    lengths = {n: len(a) for n, a in arrays.items()} | {TARGET: len(target)}
    if len(set(lengths.values())) > 1:
        counts = ", ".join(f"{n} {count}" for n, count in lengths.items())
        raise InputError(f"unequal numbers of samples: {counts}", where=str(path), hint="the first axis counts them")
    return Data(str(path), target, names, lambda some: {n: a[some] for n, a in arrays.items()})


def _classes(target: Array, names: tuple[str, ...], where: str) -> tuple[Array, tuple[str, ...]]:
    """Classes as numbers from 0: numbers are taken as they are, texts are numbered in alphabetical order."""
    if not target.ndim or not target.size:
        raise InputError("no samples", where=where, hint="the first axis counts them")
    if target.dtype.kind == "U" and target.ndim == 1:
        return numbered(target.tolist(), names, where)
    whole = target.astype(np.int64) if target.dtype.kind in "biu" else None
    if whole is None or whole.min() < 0:
        raise InputError(
            f"elements {target.dtype}{'' if whole is None else f' from {whole.min()}'} are no classes",
            where=where,
            hint="number the classes from 0, name them by texts, or choose a --loss for numbers",
        )
    return whole, ()


def _in_memory(nbytes: int, path: Path) -> None:
    """BudgetError where the machine has not so much memory."""
    if not hasattr(os, "sysconf"):  # Windows
        return
    most = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if nbytes > most:
        raise BudgetError(
            f"{nbytes} bytes of arrays, and the machine has {most} bytes of memory",
            where=str(path),
            hint="give fewer samples, or a folder of images, of which one batch at a time is read",
        )


KINDS: dict[str, Callable[[Path, Reading], Data]] = {".npz": _npz, ".csv": _csv}
