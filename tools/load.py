"""From a file to a session."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from ..importers import load_onnx
from ..ops.budget import Budget
from ..runtime.file import is_mezzo, open_file
from ..runtime.plan import Strategy
from ..runtime.session import Session


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
    buckets: Mapping[str, Sequence[int]] | None = None,
    seed: int = 0,
) -> Session:
    """Load a model and make a session of it.

    `source` is the path of an ONNX or a `.mezzo` file (told apart by how they begin), or its bytes. `budget` limits
    what the model may ask for; see Session for the rest. A model whose input sizes are all known is planned here, so
    that the first run only replays; the programs in a `.mezzo` file are taken where they were made for such a machine.

    Raises ModelError if the file is malformed, UnsupportedModel if it needs what is not carried (all at once),
    ShapeError if its operands do not fit, BudgetError if a limit would be passed, MissingPackage for a device that is
    not there.

    >>> from mezzo.models.digits import digits_model
    >>> print(*load(digits_model()).inputs)
    image: float32[batch,1,8,8]
    """
    return Session(
        open_file(source, budget) if is_mezzo(source) else load_onnx(source, budget=budget or Budget()),
        device=device,
        budget=budget,
        strategy=strategy,
        instances=instances,
        max_programs=max_programs,
        max_memory=max_memory,
        fuse=fuse,
        buckets=buckets,
        seed=seed,
    )
