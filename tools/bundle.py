"""Bundles: a model and the runtime in one zip file that Python runs."""

from __future__ import annotations

import os
import py_compile
import stat
import struct
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZIP_STORED, ZipFile, ZipInfo

from ..ops import Tensor
from ..ops.errors import ModelError
from ..runtime.execution.bundled import MODEL, open_bundle
from ..runtime.file import encode, is_mezzo, open_file
from ..runtime.files import put_in_place, temporary_beside
from .report import Report, Table

PACKAGES = ("ops", "runtime")
FRONT = {
    "mezzo/__init__.py": '"""A model and the runtime that it needs."""\n\n'
    "from .ops.errors import MezzoError\nfrom .runtime.execution.bundled import load\n"
    "from .runtime.execution.session import Session\n\n"
    '__all__ = ["MezzoError", "Session", "load"]\n',
    "__main__.py": "from mezzo.runtime.execution.bundled import main\n\nmain()\n",
}
SHEBANG = b"#!/usr/bin/env python3\n"
ALIGN, ZIP64_EXTRA = 64, 20
EPOCH = (1980, 1, 1, 0, 0, 0)  # the same model makes the same bytes


def bundle(model: Path, output: Path) -> Report:
    """Put a model and the modules that run it into one file that needs numpy alone.

    A `.mezzo` file is taken as it is; another model is compiled first, without variants. Raises ModelError if either
    file cannot be read or written.
    """
    pieces = _contents(model) if is_mezzo(model) else _compiled(model)
    root = Path(__file__).parents[1]
    modules = [p for package in PACKAGES for p in sorted((root / package).rglob("*.py"))]
    target = Path(os.path.realpath(output))
    try:
        handle, temporary = temporary_beside(target.parent, "pyz")
        try:
            with handle:
                handle.write(SHEBANG)
                with ZipFile(handle, "w", ZIP_DEFLATED) as archive:
                    _store_model(archive, handle.tell(), pieces)
                    for name, text in FRONT.items():
                        archive.writestr(ZipInfo(name, EPOCH), text, ZIP_DEFLATED)
                    for path in modules:
                        _add_module(archive, path, f"mezzo/{path.relative_to(root).as_posix()}")
                handle.flush()
                os.fsync(handle.fileno())
            put_in_place(temporary, target)
            target.chmod(target.stat().st_mode | (stat.S_IXUSR if os.name == "posix" else 0))
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise ModelError(
            f"the file cannot be written: {error}", where=str(target), hint="check the folder and its free space"
        ) from error
    return _report(target, len(modules))


def _contents(model: Path) -> Iterator[bytes]:
    open_file(model)  # a damaged file is refused now, not where the bundle runs
    with model.open("rb") as file:
        while piece := file.read(1 << 20):
            yield piece


def _compiled(model: Path) -> Iterator[Any]:
    from .load import load

    yield from encode(load(model).graph, source=model.name)


def _store_model(archive: ZipFile, begin: int, pieces: Iterable[Any]) -> None:
    """The model uncompressed, its first byte aligned, so that it is mapped where it lies."""
    entry = ZipInfo(MODEL, EPOCH)
    entry.compress_type = ZIP_STORED
    start = begin + 30 + len(MODEL) + ZIP64_EXTRA + 4
    padding = -start % ALIGN
    entry.extra = struct.pack("<HH", 0xD935, padding) + b"\0" * padding  # the id that Android uses for padding
    with archive.open(entry, "w", force_zip64=True) as file:
        for piece in pieces:
            file.write(piece)


def _add_module(archive: ZipFile, path: Path, name: str) -> None:
    archive.writestr(ZipInfo(name, EPOCH), path.read_bytes(), ZIP_DEFLATED)
    # Python reads compiled modules from a zip and never writes them: without these every start would compile
    with tempfile.TemporaryDirectory() as folder:
        compiled = Path(folder, "module.pyc")
        mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
        py_compile.compile(str(path), str(compiled), dfile=name, doraise=True, invalidation_mode=mode)
        archive.writestr(ZipInfo(f"{name}c", EPOCH), compiled.read_bytes(), ZIP_DEFLATED)


def _report(target: Path, modules: int) -> Report:
    opened = open_bundle(target)
    needs = ["numpy"]
    types = [*opened.graph.types.values(), *(t for b in opened.graph.walk() for t in b[0].types.values())]
    used = {s.dtype for s in opened.stored} | {t.dtype for t in types if isinstance(t, Tensor)}
    if any(d.numpy.isbuiltin != 1 for d in used):
        needs.append("ml_dtypes")
    facts = {
        "bytes": target.stat().st_size,
        "modules": modules,
        "needs": ", ".join(needs),
        "variants": len(opened.variants),
    }
    inputs = [(n, str(opened.graph.types[n])) for n in opened.graph.inputs]
    return Report(str(target), facts, (Table("Inputs", ("input", "type"), inputs),))
