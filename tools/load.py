"""`mz.load`: from a model file to a session."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..importers import load_graph
from ..ops.budget import Budget
from ..ops.errors import InputError
from ..ops.types import Array
from ..runtime.execution.session import Session
from ..runtime.file import is_mezzo, open_file
from ..runtime.ir.graph import Graph
from ..runtime.memory.plan import Strategy

if TYPE_CHECKING:
    from ..train.ranges import Feeds


def load(
    source: str | os.PathLike[str] | bytes,
    *,
    device: str = "cpu",
    budget: Budget | None = None,
    strategy: Strategy | str = Strategy.BOTH,
    instances: int | None = None,
    max_programs: int = 64,
    max_memory: int | None = None,
    fuse: bool = False,
    threads: int | None = None,
    onednn: bool = True,
    precision: str = "fp32",
    calibration: Iterable[Feeds | Array | Sequence[Array]] | None = None,
    buckets: Mapping[str, Sequence[int]] | None = None,
    seed: int = 0,
) -> Session:
    """Load a model and make a session of it.

    `source` is the path of an ONNX or a `.mezzo` file, or one of a registered format (`importers.register_importer`),
    which are told apart by how they begin, or its bytes. `budget` limits
    what the model may ask for; see Session for the rest. `precision="int8"` quantises a float model by what its
    activations are on `calibration` (see train/quantize.py). A model whose input sizes are all known is planned here,
    so that the first run only replays; the programs in a `.mezzo` file are taken where they were made for such a
    machine.

    Raises ModelError if the file is malformed, UnsupportedModel if it needs what is not carried (all at once),
    ShapeError if its operands do not fit, BudgetError if a limit would be passed, MissingPackage for a device that is
    not there.

    >>> from mezzo.models.digits import digits_model
    >>> print(*load(digits_model()).inputs)
    image: float32[batch,1,8,8]
    """
    model = open_file(source, budget) if is_mezzo(source) else load_graph(source, budget=budget)
    if precision == "int8":
        if calibration is None:
            raise InputError("precision 'int8' needs data", where="load", hint="give calibration=[inputs, ...]")
        from ..train.quantize import quantize

        model = quantize(model if isinstance(model, Graph) else model.graph, calibration)
    return Session(
        model,
        device=device,
        budget=budget,
        strategy=strategy,
        instances=instances,
        max_programs=max_programs,
        max_memory=max_memory,
        fuse=fuse,
        threads=threads,
        onednn=onednn,
        precision="fp32" if precision == "int8" else precision,
        buckets=buckets,
        seed=seed,
        name=file_name(source),
    )


def file_name(source: object) -> str:
    """The name of a model's file, by which errors call it; empty for what is no path.

    >>> file_name("models/digits.onnx"), file_name(b"")
    ('digits.onnx', '')
    """
    return Path(source).name if isinstance(source, str | os.PathLike) else ""
