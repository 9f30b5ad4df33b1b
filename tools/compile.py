"""From a model file to a `.mezzo` file, with programs for the input shapes that are asked for."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..ops import Tensor
from ..ops.dataclasses import dataclass
from ..ops.errors import InputError
from ..runtime.execution.cached_session import CachedSession
from ..runtime.execution.session import Session
from ..runtime.file import is_mezzo, open_file
from . import feeds
from .explain_sizes import parse_walk
from .load import load
from .report import Report, Table


@dataclass(frozen=True, slots=True)
class SizesToPlan:
    """The sizes to plan for: `given` are NAME=SIZES or DIM=SIZE as for `mezzo run`, of which a name that comes several
    times makes a program for each; `walks` are ranges of dims, as length=1..512, whose sizes are rounded up where that
    is proven to change nothing; `conversation` is how many rows the conversations of a decoder may have."""

    given: tuple[str, ...] = ()
    walks: tuple[str, ...] = ()
    conversation: int | None = None


def compile_model(model: Path, output: Path, planned: SizesToPlan | None = None, *, portable: bool = False) -> Report:
    """Write MODEL as a `.mezzo` file, planned for this machine and the given shapes unless `portable`.

    A model whose sizes are all known is planned without being asked. Raises MezzoError as loading does, InputError for
    sizes that do not fit the model, and ModelError if the file cannot be written.
    """
    wanted = planned or SizesToPlan()
    if portable and (wanted.walks or wanted.conversation):
        raise InputError("a portable file has no programs", where="compile", hint="leave out portable, or the sizes")
    session: Session = load(model, buckets="auto" if wanted.walks else None)
    if wanted.conversation is not None:
        session = load(model, cache="auto")
    if not portable:
        _plan(session, wanted)
    before = open_file(model).about if is_mezzo(model) else None
    source, producer = (before.source, before.producer) if before else (model.name, _producer(model))
    session.save(output, portable=portable, source=source, producer=producer)
    return _report(output, session)


def _plan(session: Session, wanted: SizesToPlan) -> None:
    if isinstance(session, CachedSession):
        for sizes in _combinations(wanted.given) or [{}]:
            batch = feeds.shapes(session, sizes)[session.token_inputs[0]][0]
            session.warmup_conversations(wanted.conversation or 0, batch)
        return
    walks = dict(map(parse_walk, wanted.walks))
    for sizes in _combinations(wanted.given) or ([{}] if walks else []):
        for walked in itertools.product(*walks.values()):
            more = dict(zip(walks, map(str, walked), strict=True))
            session.warmup(feeds.shapes(session, {**sizes, **more}))


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

    proto = onnx.load_model(str(model), load_external_data=False)
    return f"{proto.producer_name} {proto.producer_version}".strip()


def _report(output: Path, session: Session) -> Report:
    opened = open_file(output)
    facts: dict[str, Any] = {
        "bytes": output.stat().st_size,
        "weights_bytes": sum(s.nbytes for s in opened.stored),
        "nodes": sum(1 for _ in opened.graph.walk()),
        "variants": len(opened.variants),
        "rounded_programs": session.stats().rounded if opened.rounds else 0,
    }
    dynamic = [p for p in session.inputs if not (isinstance(p.type, Tensor) and p.type.static)]
    if dynamic and not opened.variants and not opened.rounds:
        names = ", ".join(p.name for p in dynamic)
        facts["note"] = f"no program: the sizes of {names} are open; give --shape or --sizes"
    rows = [(k.device, k.isa, k.signature) for k in opened.variants]
    return Report(str(output), facts, (Table("Variants", ("device", "processor", "signature"), rows),))
