"""The manifest of a fit: all for `mezzo replay` to run it again, to the same bits."""

from __future__ import annotations

import os
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

from ..nd.random import state
from ..ops.errors import InputError
from ..runtime.environment import switch
from ..runtime.manifest import REPLAY, Manifest, digest, program, taken
from .following import Callback, Run
from .watching import numbers_of


class Record(Callback):
    """Write a manifest of the fit: seed, versions, machine, environment, the command that ran, and digests of the
    parameters before and after, of all batches in their order, and of the metrics. `noted` has other values whose
    digests matter. `mezzo replay FILE` runs the command again, and tells whether every digest is the same.

    Parameters and batches are read for it: what is not deterministic elsewhere shows, and is not made so.
    """

    def __init__(self, path: str | os.PathLike[str], **noted: Any) -> None:
        self.path, self.noted = Path(path), noted
        self.manifest: Manifest | None = None

    def fit_begin(self, run: Run) -> None:
        exchange = getattr(run.trainer, "exchange", run.trainer)
        if getattr(exchange, "workers", 1) > 1 and not getattr(exchange, "one_process", False):
            raise InputError(
                "each worker of a job would write its own manifest there", where="Record",
                hint="`mezzo launch --record FOLDER` writes one for each rank, and `mezzo replay FOLDER` runs the job",
            )  # fmt: skip
        manifest = taken(int(state()["seed"])).noting(**self.noted, before=run.trainer.snapshot())
        self._batches, self._begun = blake2b(digest_size=16), manifest

    def step_begin(self, run: Run) -> None:
        batch = run.batch
        self._batches.update(digest(list(batch) if isinstance(batch, tuple) else batch).encode())

    def fit_end(self, run: Run) -> None:
        pairs = [[numbers_of(m) for m in pair] for pair in run.history]
        manifest = self._begun.noting(after=run.trainer.snapshot(), metrics=pairs)
        digests = {**manifest.digests, "batches": self._batches.hexdigest()}
        self.manifest = replace(manifest, digests=digests, command=program(), folder=os.getcwd())
        self.manifest.write(switch(REPLAY) or self.path)
