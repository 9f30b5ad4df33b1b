"""Conversion of models: ONNX to `.mezzo` and back, another opset, 16 bits, weights inside or beside."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from ..exporters import save_onnx
from ..importers import load_graph
from ..ops.errors import InputError
from ..runtime.execution.functions import save_compiled
from ..runtime.file import is_mezzo, open_file
from ..runtime.ir.graph import Graph
from ..train.prepare import hoisted
from .check import check
from .check_options import Options
from .report import Report, Table


def convert(
    source: Path,
    output: Path,
    *,
    opset: int | None = None,
    precision: str | None = None,
    keep_io: bool = True,
    external_data: Literal["always", "never", "auto"] = "auto",
) -> Report:
    """Write the model of one file as another; their names tell what they are to be: `.onnx` or `.mezzo`.

    Raises ModelError, UnsupportedModel (naming each node that the opset cannot express) and InputError.
    """
    if output.suffix not in (".onnx", ".mezzo"):
        raise InputError(f"{output.suffix or 'no suffix'}: neither .onnx nor .mezzo", where=str(output))
    opened = open_file(source) if is_mezzo(source) else None
    graph = load_graph(source) if opened is None else opened.graph
    facts: dict[str, Any] = {"from": str(source)}
    tables = []
    if precision is not None:
        from .halve import halved

        narrowed = halved(graph, precision, keep_io=keep_io)
        graph = narrowed.graph
        facts |= {"precision": precision, "nodes_in_16_bits": narrowed.narrow, "nodes_in_32_bits": len(narrowed.wide)}
        tables.append(Table("In 32 bits", ("node",), [(place,) for place in narrowed.wide]))
    if output.suffix == ".mezzo":
        _to_mezzo(graph, output, opset, source if opened is None else Path(opened.about.source))
    else:
        if external_data == "always":
            graph = hoisted(graph)  # only initialisers lie beside a file
        save_onnx(graph, output, opset=opset, external_data=external_data)
        facts["opset"] = check(output, Options()).facts["opset"]
    beside = sorted(p.name for p in output.parent.glob(f"{output.name}.*.data"))
    facts |= {"bytes": output.stat().st_size, "beside_it": ", ".join(beside) or "nothing"}
    return Report(str(output), facts, [t for t in tables if t.rows])


def _to_mezzo(graph: Graph, output: Path, opset: int | None, source: Path) -> None:
    if opset is not None:
        raise InputError("a .mezzo file has the opset of its runtime", where="--opset", hint="write an .onnx file")
    save_compiled(graph, output, source=source.name)
