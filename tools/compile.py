"""From a model file to a `.mezzo` file, with programs for the input shapes that are asked for."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..ops import Tensor
from ..runtime.execution.session import Session
from ..runtime.file import is_mezzo, open_file
from . import feeds
from .load import load
from .report import Report, Table


def compile_model(model: Path, output: Path, given: Iterable[str] = (), *, portable: bool = False) -> Report:
    """Write MODEL as a `.mezzo` file, planned for this machine and the given shapes unless `portable`.

    `given` are NAME=SIZES or DIM=SIZE as for `mezzo run`; a name that is given several times makes a program for
    each. A model whose sizes are all known is planned without being asked. Raises MezzoError as loading does, and
    ModelError if the file cannot be written.
    """
    session = load(model)
    for sizes in [] if portable else _combinations(given):
        session.warmup(feeds.shapes(session, sizes))
    before = open_file(model).about if is_mezzo(model) else None
    source, producer = (before.source, before.producer) if before else (model.name, _producer(model))
    session.save(output, portable=portable, source=source, producer=producer)
    return _report(output, session)


def _combinations(given: Iterable[str]) -> list[dict[str, str]]:
    """Return every combination of one text for each name; an empty list if nothing is given."""
    texts: dict[str, list[str]] = {}
    for text in given:
        for name, value in feeds.parse_sizes([text]).items():
            texts.setdefault(name, []).append(value)
    choices = [[(name, value) for value in values] for name, values in texts.items()]
    return [dict(choice) for choice in itertools.product(*choices)] if choices else []


def _producer(model: Path) -> str:
    import onnx

    made = onnx.load_model(str(model), load_external_data=False)
    return f"{made.producer_name} {made.producer_version}".strip()


def _report(output: Path, session: Session) -> Report:
    opened = open_file(output)
    facts: dict[str, Any] = {
        "bytes": output.stat().st_size,
        "weights_bytes": sum(s.nbytes for s in opened.stored),
        "nodes": sum(1 for _ in opened.graph.walk()),
        "variants": len(opened.variants),
    }
    dynamic = [p for p in session.inputs if not (isinstance(p.type, Tensor) and p.type.static)]
    if dynamic and not opened.variants:
        facts["note"] = f"no program: the sizes of {', '.join(p.name for p in dynamic)} are open; give --shape"
    rows = [(k.device, k.isa, k.signature) for k in opened.variants]
    return Report(str(output), facts, (Table("Variants", ("device", "processor", "signature"), rows),))
