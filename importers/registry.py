"""Formats of model files. `load_graph` reads any of them: `.mezzo` files, formats that were registered, and ONNX."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..ops.budget import Budget
from ..ops.dataclasses import dataclass
from ..ops.errors import InputError, MezzoError, ModelError
from ..runtime.file import is_mezzo, open_file
from ..runtime.ir.graph import Graph

if TYPE_CHECKING:
    from .tensors import ExternalData

Source = str | os.PathLike[str] | bytes
HEAD = 64  # bytes of a file that tell its format
OURS = ("mezzo", "onnx")


@dataclass(frozen=True, slots=True)
class Importer:
    """A format: `recognizes` tells it by the first 64 bytes of a file, `read(source, budget)` makes a graph of it."""

    name: str
    recognizes: Callable[[bytes], bool]
    read: Callable[[Source, Budget], Graph]


IMPORTERS: dict[str, Importer] = {}  # by name, in the order in which they are asked


def register_importer(
    name: str, recognizes: Callable[[bytes], bool], read: Callable[[Source, Budget], Graph]
) -> Importer:
    """Add a format: `mz.load`, `mz.Trainer`, `mz.quantize`, blocks and the `mezzo` command read its files then.

    `recognizes(head)` is given the first 64 bytes of a file; `read(source, budget)` gets the path or the bytes, and
    builds a graph (`mezzo.runtime.ir.graph.GraphBuilder`); it should raise ModelError for malformed files, and check
    sizes against the budget before it takes memory. A format that is registered again takes the place of the former.
    Raises InputError for the names of Mezzo's own formats.

    >>> from mezzo.ops.types import f32
    >>> from mezzo.runtime.ir.graph import GraphBuilder
    >>> def read(source, budget):
    ...     g = GraphBuilder()
    ...     return g.graph([g.Relu(g.input("x", f32(2)))])
    >>> importer = register_importer("acme", lambda head: head.startswith(b"ACME"), read)
    >>> [node.op for node in load_graph(b"ACME 1").nodes]
    ['Relu']
    >>> del IMPORTERS["acme"]
    """
    if name in OURS:
        raise InputError(f"{name!r} is a format of Mezzo", where="register_importer", hint="use another name")
    IMPORTERS[name] = importer = Importer(name, recognizes, read)
    return importer


def load_graph(
    source: Any,
    *,
    budget: Budget | None = None,
    folder: Path | None = None,
    mapped: bool = False,
    data: ExternalData | None = None,
) -> Graph:
    """Read a model file of any format: a path, the bytes of a file, or an `onnx.ModelProto`. `folder` has the external
    data of ONNX models that are no files; those of a file are in its own, but for `data` that are given. `mapped` lets
    the weights of an ONNX file stay in it (see runtime/memory/model_file.py).

    Raises ModelError for malformed files, UnsupportedModel for what is not carried, BudgetError beyond a limit.
    """
    if is_mezzo(source):
        return open_file(source, budget).graph
    head = first_bytes(source)
    for importer in IMPORTERS.values():
        if importer.recognizes(head):
            return _read(importer, source, Budget.of(budget))
    from .load import load

    return load(source, Budget.of(budget), folder, mapped=mapped, data=data)


def _read(importer: Importer, source: Source, budget: Budget) -> Graph:
    try:
        graph = importer.read(source, budget)
    except MezzoError:
        raise
    except Exception as error:
        raise ModelError(
            f"the importer {importer.name!r} failed: {type(error).__name__}: {error}",
            where=source if isinstance(source, str) else "model",
            hint="this is a defect of the importer, or the file is malformed",
        ) from error
    if not isinstance(graph, Graph):
        raise ModelError(f"the importer {importer.name!r} returned {type(graph).__name__}", hint="return a Graph")
    return graph


def first_bytes(source: Any) -> bytes:
    """The first bytes of a regular file; none of anything else."""
    if isinstance(source, bytes | bytearray | memoryview):
        return bytes(source[:HEAD])
    try:
        if not stat.S_ISREG(os.stat(source).st_mode):
            return b""
        with open(source, "rb", buffering=0) as file:
            return file.read(HEAD)
    except (OSError, TypeError, ValueError):
        return b""
