"""`mezzo bench`: loads a model, makes its inputs, and measures it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ..ops.errors import InputError
from ..runtime.environment import processors
from ..runtime.file import is_mezzo
from . import feeds as inputs
from .compare import accuracy as errors
from .compare import against as times
from .load import load
from .report import Report

REDUCED = ("bf16-math", "bf16")  # that need no data to calibrate with


def bench(
    model: Path,
    given: Mapping[str, Any],
    shapes: Sequence[str],
    seed: int,
    *,
    against: Sequence[str],
    accuracy: bool,
    precisions: Sequence[str],
    rounds: int,
    seconds: float,
    threads: int | None,
) -> Report:
    """Times or errors of a model; inputs that are not `given` are random."""
    session = load(model)
    feeds = dict(given)
    if {p.name for p in session.inputs} - set(given):
        sizes = inputs.shapes(session, inputs.parse_sizes(shapes))
        feeds = {**inputs.random_feeds(session, sizes, seed), **given}
    count = threads or processors()
    if accuracy:
        return errors(model, feeds, precisions or REDUCED, threads=count)
    if len(precisions) > 1:
        raise InputError("one --precision at a time is timed", hint="several can be given with --accuracy")
    precision = precisions[0] if precisions else "fp32"
    with TemporaryDirectory() as folder:
        onnx = None
        if against and is_mezzo(model):
            from ..exporters import save_onnx

            onnx = Path(folder) / "model.onnx"
            save_onnx(session.graph, onnx)
        del session  # its weights would only take room beside the engines'
        return times(
            model, feeds, against, threads=count, rounds=rounds, seconds=seconds, precision=precision, onnx=onnx
        )
