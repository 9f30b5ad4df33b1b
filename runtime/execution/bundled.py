"""The entry point of a bundle: one file that holds a model and the modules to run it, and needs numpy alone.

`mezzo bundle` puts this module, the runtime and a `.mezzo` file into a zip that Python runs and imports from:
`python app.pyz --input x=x.npy`, or `sys.path.insert(0, "app.pyz"); import mezzo; session = mezzo.load()`.
"""

from __future__ import annotations

import argparse
import json
import os
import struct
import sys
from collections.abc import Sequence
from typing import Any
from zipfile import BadZipFile, ZipFile

import numpy as np

from ...ops.errors import InputError, MezzoError, ModelError
from ...ops.types import Tensor
from ..file import Opened, open_file
from .session import Session

MODEL = "model.mezzo"  # its name in the bundle


def open_bundle(path: str | os.PathLike[str]) -> Opened:
    """Open the model in a bundle: it lies there as it is, and is mapped in place. Raises ModelError."""
    try:
        with ZipFile(path) as bundle, open(path, "rb") as file:
            entry = bundle.getinfo(MODEL)
            file.seek(entry.header_offset)
            name, extra = struct.unpack("<26xHH", file.read(30))
    except (OSError, KeyError, BadZipFile, struct.error) as error:
        raise ModelError(
            f"this is no bundle: {error}", where=os.fspath(path), hint="make one with `mezzo bundle`"
        ) from error
    if entry.compress_type or entry.file_size != entry.compress_size:
        raise ModelError("the model in it is compressed", where=os.fspath(path), hint="make it with `mezzo bundle`")
    begin = entry.header_offset + 30 + name + extra
    return open_file(path, at=begin, size=entry.file_size)


def load(**options: Any) -> Session:
    """A session of the model in the bundle that this module was imported from; options as for Session.

    Raises ModelError outside of a bundle.
    """
    archive = getattr(globals().get("__loader__"), "archive", "")
    opened = open_bundle(archive or __file__)
    return Session(opened, **options)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the model once, from files to a file; errors of ours become one message and exit code 2."""
    parser = argparse.ArgumentParser(description="Run the model in this file once.")
    parser.add_argument("--input", action="append", default=[], metavar="NAME=FILE.npy", help="an input")
    parser.add_argument("--output", metavar="FILE.npz", help="where to write the outputs")
    parser.add_argument("--json", action="store_true", help="print the outputs as JSON")
    given = parser.parse_args(arguments)
    try:
        session = load()
        results = session.run({name: _read(path) for name, path in map(_pair, given.input)})
        if given.output:
            with open(given.output, "wb") as file:
                arrays: dict[str, Any] = {n: np.asarray(v) for n, v in results.items()}
                np.savez(file, **arrays)
        print(json.dumps({n: _shown(v) for n, v in results.items()}) if given.json else _table(session, results))
    except (MezzoError, OSError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        sys.exit(2)


def _pair(text: str) -> tuple[str, str]:
    name, equals, path = text.rpartition("=")
    if not equals:
        raise InputError(f"{text!r} is not NAME=FILE.npy", hint="write for example --input x=x.npy")
    return name, path


def _read(path: str) -> Any:
    try:
        return np.load(path, allow_pickle=False)
    except Exception as error:  # NumPy raises all kinds for damage
        raise InputError(f"not a .npy file: {error}", where=path, hint="write it with numpy.save") from error


def _shown(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return {"element type": str(value.dtype), "shape": list(value.shape), "values": value.tolist()}
    if isinstance(value, list):
        return [_shown(v) for v in value]
    return value


def _table(session: Session, results: dict[str, Any]) -> str:
    ports = {p.name: p.type for p in session.program.outputs}
    width = max(map(len, results), default=0)
    return "\n".join(
        f"{n:<{width}}  {v.dtype}{list(v.shape)}" if isinstance(ports[n], Tensor) else f"{n:<{width}}  {ports[n]}"
        for n, v in results.items()
    )
